//! Parses and writes the authentication payload (RFC 7296 section 3.8).

use super::error::CodecError;
use super::reader::Reader;

/// What proves the identity of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuthPayload {
    pub(crate) method: AuthMethod,
    pub(crate) data: Vec<u8>,
}

/// How a peer proves its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthMethod {
    SharedKey,
    /// A signature that names its algorithm (RFC 7427).
    DigitalSignature,
    /// A method that tacit does not use: RSA with PKCS #1 v1.5, the ECDSA methods of RFC 4754,
    /// NULL.
    Other(u8),
}

impl AuthPayload {
    pub(super) fn parse(body: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new("authentication payload", body);
        let method = match reader.u8()? {
            2 => AuthMethod::SharedKey,
            14 => AuthMethod::DigitalSignature,
            other => AuthMethod::Other(other),
        };
        reader.take(3)?; // RESERVED: ignored on receipt
        Ok(Self { method, data: reader.nonempty()? })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let method = match self.method {
            AuthMethod::SharedKey => 2,
            AuthMethod::DigitalSignature => 14,
            AuthMethod::Other(number) => number,
        };
        out.extend([method, 0, 0, 0]);
        out.extend(&self.data);
    }
}
