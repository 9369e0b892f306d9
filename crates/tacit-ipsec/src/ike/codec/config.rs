//! Parses and writes the configuration payload (RFC 7296 section 3.15).

use super::error::CodecError;
use super::reader::Reader;

/// Addresses that a peer requests or assigns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigPayload {
    pub(crate) kind: ConfigKind,
    pub(crate) attributes: Vec<ConfigAttribute>,
}

/// What the sender wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConfigKind {
    Request,
    Reply,
    /// `CFG_SET` or `CFG_ACK`, which RFC 7296 leaves without a use.
    Other(u8),
}

/// An attribute. In a request the value is often empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigAttribute {
    pub(crate) kind: u16,
    pub(crate) value: Vec<u8>,
}

impl ConfigPayload {
    pub(super) fn parse(body: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new("configuration payload", body);
        let kind = match reader.u8()? {
            1 => ConfigKind::Request,
            2 => ConfigKind::Reply,
            other => ConfigKind::Other(other),
        };
        reader.take(3)?; // RESERVED: ignored on receipt
        let mut attributes = Vec::new();
        while !reader.is_empty() {
            if attributes.len() == ATTRIBUTES_MAX {
                return Err(CodecError::TooMany("configuration attributes"));
            }
            // The first bit is reserved.
            let kind = reader.u16()? & 0x7fff;
            let length = usize::from(reader.u16()?);
            attributes.push(ConfigAttribute { kind, value: reader.take(length)?.to_vec() });
        }
        Ok(Self { kind, attributes })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let kind = match self.kind {
            ConfigKind::Request => 1,
            ConfigKind::Reply => 2,
            ConfigKind::Other(number) => number,
        };
        out.extend([kind, 0, 0, 0]);
        for ConfigAttribute { kind, value } in &self.attributes {
            out.extend(kind.to_be_bytes());
            out.extend(u16::try_from(value.len()).unwrap_or(u16::MAX).to_be_bytes());
            out.extend(value);
        }
    }
}

/// The most attributes of a payload.
const ATTRIBUTES_MAX: usize = 64;
