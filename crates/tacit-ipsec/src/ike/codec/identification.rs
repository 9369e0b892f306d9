//! Parses and writes the identification payload (RFC 7296 section 3.5).

use super::error::CodecError;
use super::reader::Reader;

/// An identity as the wire has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdPayload {
    pub(crate) kind: u8,
    pub(crate) data: Vec<u8>,
}

impl IdPayload {
    pub(super) fn parse(body: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new("identification payload", body);
        let kind = reader.u8()?;
        reader.take(3)?; // RESERVED: ignored on receipt
        Ok(Self { kind, data: reader.nonempty()? })
    }

    /// Appends the body, which AUTH covers: `RestOfInitIDPayload` (RFC 7296 section 2.15).
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend([self.kind, 0, 0, 0]);
        out.extend(&self.data);
    }
}
