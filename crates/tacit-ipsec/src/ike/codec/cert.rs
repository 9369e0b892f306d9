//! Parses and writes the certificate payload (RFC 7296 section 3.6) and the certificate request
//! payload (section 3.7).

use super::error::CodecError;
use super::reader::Reader;

/// A certificate or what stands for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CertPayload {
    pub(crate) encoding: u8,
    pub(crate) data: Vec<u8>,
}

impl CertPayload {
    /// One certificate in DER: "X.509 Certificate - Signature".
    pub(crate) fn x509(data: Vec<u8>) -> Self {
        Self { encoding: ENCODING_X509, data }
    }

    /// Returns the certificate in DER, if it is one.
    pub(crate) fn as_x509(&self) -> Option<&[u8]> {
        (self.encoding == ENCODING_X509).then_some(self.data.as_slice())
    }
}

/// The CAs that a peer trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CertRequestPayload {
    pub(crate) encoding: u8,
    /// SHA-1 hashes of the public keys of CAs, if the encoding is X.509. They choose a certificate
    /// and prove nothing.
    pub(crate) authorities: Vec<u8>,
}

impl CertPayload {
    pub(super) fn parse(body: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new("certificate payload", body);
        Ok(Self { encoding: reader.u8()?, data: reader.nonempty()? })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.encoding);
        out.extend(&self.data);
    }
}

impl CertRequestPayload {
    /// Asks for a certificate of one of these CAs; of any, if there are none.
    pub(crate) fn x509(authorities: &[[u8; 20]]) -> Self {
        Self { encoding: ENCODING_X509, authorities: authorities.concat() }
    }

    pub(super) fn parse(body: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new("certificate request", body);
        Ok(Self { encoding: reader.u8()?, authorities: reader.rest().to_vec() })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.encoding);
        out.extend(&self.authorities);
    }
}

const ENCODING_X509: u8 = 4;
