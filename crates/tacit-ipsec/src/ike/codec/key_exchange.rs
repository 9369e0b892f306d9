//! Parses and writes the key exchange payload (RFC 7296 section 3.4).

use super::error::CodecError;
use super::reader::Reader;

/// A public value of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KePayload {
    /// The number of the group (transform type 4).
    pub(crate) group: u16,
    pub(crate) public_value: Vec<u8>,
}

impl KePayload {
    pub(super) fn parse(body: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new("key exchange payload", body);
        let group = reader.u16()?;
        reader.u16()?; // RESERVED: ignored on receipt
        Ok(Self { group, public_value: reader.nonempty()? })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.group.to_be_bytes());
        out.extend([0, 0]);
        out.extend(&self.public_value);
    }
}
