//! Parses and writes the security association payload: proposals and their transforms (RFC 7296
//! section 3.3).

use super::error::CodecError;
use super::reader::{Reader, with_length};

/// A set of algorithms that the initiator offers, or the one that the responder has chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proposal {
    pub(crate) number: u8,
    pub(crate) protocol: ProtocolId,
    /// The SPI of the sender; empty in `IKE_SA_INIT`.
    pub(crate) spi: Vec<u8>,
    pub(crate) transforms: Vec<Transform>,
}

/// The protocol of an SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProtocolId {
    Ike,
    Esp,
    /// AH, or a protocol that tacit does not know.
    Other(u8),
}

/// An algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transform {
    pub(crate) kind: TransformKind,
    pub(crate) id: u16,
    pub(crate) key_bits: Option<u16>,
    /// Whether there is an attribute other than the key length. Such a transform must not be
    /// chosen (RFC 7296 section 3.3.6).
    pub(crate) has_unknown_attribute: bool,
}

/// What an algorithm is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransformKind {
    Encryption,
    Prf,
    Integrity,
    KeyExchange,
    ExtendedSequence,
    /// A type that tacit does not know. A proposal with it must not be chosen.
    Other(u8),
}

/// Reads the body of a security association payload.
pub(crate) fn parse_proposals(body: &[u8]) -> Result<Vec<Proposal>, CodecError> {
    let mut reader = Reader::new("security association payload", body);
    let mut proposals = Vec::new();
    loop {
        if proposals.len() == PROPOSALS_MAX {
            return Err(CodecError::TooMany("proposals"));
        }
        let more = reader.u8()?;
        reader.u8()?; // RESERVED: ignored on receipt
        let length = usize::from(reader.u16()?);
        let length = length.checked_sub(4).ok_or(CodecError::Length("proposal"))?;
        proposals.push(read_proposal(reader.take(length)?)?);
        match more {
            LAST => break,
            MORE_PROPOSALS => {}
            _ => return Err(CodecError::Value("proposal")),
        }
    }
    reader.end()?;
    Ok(proposals)
}

fn read_proposal(body: &[u8]) -> Result<Proposal, CodecError> {
    let mut reader = Reader::new("proposal", body);
    let number = reader.u8()?;
    let protocol = ProtocolId::from_number(reader.u8()?);
    let spi_bytes = usize::from(reader.u8()?);
    let count = usize::from(reader.u8()?);
    if count > TRANSFORMS_MAX {
        return Err(CodecError::TooMany("transforms"));
    }
    let spi = reader.take(spi_bytes)?.to_vec();
    let mut transforms = Vec::with_capacity(count);
    for index in 0..count {
        let more = reader.u8()?;
        let expected = if index + 1 == count { LAST } else { MORE_TRANSFORMS };
        if more != expected {
            return Err(CodecError::Value("number of transforms"));
        }
        reader.u8()?; // RESERVED: ignored on receipt
        let length = usize::from(reader.u16()?);
        let length = length.checked_sub(4).ok_or(CodecError::Length("transform"))?;
        transforms.push(read_transform(reader.take(length)?)?);
    }
    reader.end()?;
    Ok(Proposal { number, protocol, spi, transforms })
}

fn read_transform(body: &[u8]) -> Result<Transform, CodecError> {
    let mut reader = Reader::new("transform", body);
    let kind = TransformKind::from_number(reader.u8()?);
    reader.u8()?; // RESERVED: ignored on receipt
    let id = reader.u16()?;
    let mut transform = Transform { kind, id, key_bits: None, has_unknown_attribute: false };
    // Each attribute has at least four bytes, so the length of the transform limits the number.
    while !reader.is_empty() {
        let kind = reader.u16()?;
        let value = reader.u16()?;
        if kind == KEY_LENGTH | SHORT_ATTRIBUTE && transform.key_bits.is_none() {
            transform.key_bits = Some(value);
        } else {
            transform.has_unknown_attribute = true;
            if kind & SHORT_ATTRIBUTE == 0 {
                reader.take(usize::from(value))?;
            }
        }
    }
    Ok(transform)
}

/// Writes the body of a security association payload.
pub(super) fn encode_proposals(proposals: &[Proposal], out: &mut Vec<u8>) {
    for (index, proposal) in proposals.iter().enumerate() {
        let more = if index + 1 == proposals.len() { LAST } else { MORE_PROPOSALS };
        with_length(out, 2, |out| {
            out.extend([more, 0, 0, 0, proposal.number, proposal.protocol.number()]);
            out.push(u8::try_from(proposal.spi.len()).unwrap_or(u8::MAX));
            out.push(u8::try_from(proposal.transforms.len()).unwrap_or(u8::MAX));
            out.extend(&proposal.spi);
            encode_transforms(&proposal.transforms, out);
        });
    }
}

fn encode_transforms(transforms: &[Transform], out: &mut Vec<u8>) {
    for (index, transform) in transforms.iter().enumerate() {
        let more = if index + 1 == transforms.len() { LAST } else { MORE_TRANSFORMS };
        with_length(out, 2, |out| {
            out.extend([more, 0, 0, 0, transform.kind.number(), 0]);
            out.extend(transform.id.to_be_bytes());
            if let Some(bits) = transform.key_bits {
                out.extend((KEY_LENGTH | SHORT_ATTRIBUTE).to_be_bytes());
                out.extend(bits.to_be_bytes());
            }
        });
    }
}

impl ProtocolId {
    pub(super) fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Ike,
            3 => Self::Esp,
            other => Self::Other(other),
        }
    }

    pub(super) fn number(self) -> u8 {
        match self {
            Self::Ike => 1,
            Self::Esp => 3,
            Self::Other(number) => number,
        }
    }
}

impl TransformKind {
    fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Encryption,
            2 => Self::Prf,
            3 => Self::Integrity,
            4 => Self::KeyExchange,
            5 => Self::ExtendedSequence,
            other => Self::Other(other),
        }
    }

    fn number(self) -> u8 {
        match self {
            Self::Encryption => 1,
            Self::Prf => 2,
            Self::Integrity => 3,
            Self::KeyExchange => 4,
            Self::ExtendedSequence => 5,
            Self::Other(number) => number,
        }
    }
}

const LAST: u8 = 0;
const MORE_PROPOSALS: u8 = 2;
const MORE_TRANSFORMS: u8 = 3;
/// The attribute "Key Length" (RFC 7296 section 3.3.5).
const KEY_LENGTH: u16 = 14;
/// Set in the type of an attribute whose value is in place of its length.
const SHORT_ATTRIBUTE: u16 = 0x8000;
/// The most proposals of a payload.
const PROPOSALS_MAX: usize = 64;
/// The most transforms of a proposal.
const TRANSFORMS_MAX: usize = 64;
