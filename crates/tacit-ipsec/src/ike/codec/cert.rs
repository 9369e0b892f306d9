//! The certificate payload (RFC 7296 section 3.6) and the certificate request (section 3.7).

use super::error::CodecError;
use super::reader::Reader;

/// A certificate or what stands for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CertPayload {
    pub(crate) encoding: u8,
    pub(crate) data: Vec<u8>,
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
    pub(super) fn parse(body: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new("certificate request", body);
        Ok(Self { encoding: reader.u8()?, authorities: reader.rest().to_vec() })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.encoding);
        out.extend(&self.authorities);
    }
}
