//! Parses the headers of the encrypted payload (RFC 7296 section 3.14) and of the encrypted
//! fragment payload (RFC 7383 section 2.5). Also writes the header of the encrypted payload.

use super::error::CodecError;
use super::header::{HEADER_BYTES, IkeHeader};
use super::reader::Reader;

/// Where the encrypted payload of a message is. It ends with the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EncryptedPart {
    /// The type of the first payload inside.
    pub(crate) first_payload: u8,
    /// The offset of the IV. Everything before it is authenticated, and not encrypted.
    pub(crate) offset: usize,
    /// Which part of a larger message this is.
    pub(crate) fragment: Option<Fragment>,
}

/// The position of a fragment in its message. `number` is between 1 and `total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) number: u16,
    pub(crate) total: u16,
}

/// Reads what precedes the IV of an SK or SKF payload. `offset` is where its body begins.
pub(super) fn read(
    kind: u8,
    first_payload: u8,
    offset: usize,
    message: &[u8],
) -> Result<EncryptedPart, CodecError> {
    if kind != ENCRYPTED_FRAGMENT {
        return Ok(EncryptedPart { first_payload, offset, fragment: None });
    }
    let mut reader = Reader::new("fragment", message.get(offset..).unwrap_or_default());
    let number = reader.u16()?;
    let total = reader.u16()?;
    if number == 0 || number > total {
        return Err(CodecError::Value("fragment number"));
    }
    if total > FRAGMENTS_MAX {
        return Err(CodecError::TooMany("fragments"));
    }
    // Only the first fragment names the type of the first payload (RFC 7383 section 2.5).
    if number > 1 && first_payload != 0 {
        return Err(CodecError::Value("Next Payload field of a fragment"));
    }
    let fragment = Some(Fragment { number, total });
    Ok(EncryptedPart { first_payload, offset: offset + FRAGMENT_BYTES, fragment })
}

/// Writes everything that precedes the IV of a message whose encrypted part has `length` bytes from
/// the IV to the end.
pub(crate) fn encode_prefix(
    header: &IkeHeader,
    first_payload: u8,
    fragment: Option<Fragment>,
    length: usize,
) -> Vec<u8> {
    let extra = if fragment.is_some() { FRAGMENT_BYTES } else { 0 };
    let payload = 4 + extra + length;
    let total = u32::try_from(HEADER_BYTES + payload).unwrap_or(u32::MAX);
    let kind = if fragment.is_some() { ENCRYPTED_FRAGMENT } else { ENCRYPTED };
    let mut out = Vec::with_capacity(HEADER_BYTES + payload);
    header.encode(kind, total, &mut out);
    out.extend([first_payload, 0]);
    out.extend(u16::try_from(payload).unwrap_or(u16::MAX).to_be_bytes());
    if let Some(Fragment { number, total }) = fragment {
        out.extend(number.to_be_bytes());
        out.extend(total.to_be_bytes());
    }
    out
}

/// SK (RFC 7296 section 3.14).
pub(super) const ENCRYPTED: u8 = 46;
/// SKF (RFC 7383 section 2.5).
pub(super) const ENCRYPTED_FRAGMENT: u8 = 53;
/// The bytes of number and total of a fragment.
const FRAGMENT_BYTES: usize = 4;
/// What precedes the IV of a fragment: the headers of the message and of the payload, number and
/// total.
pub(crate) const FRAGMENT_PREFIX_BYTES: usize = HEADER_BYTES + 4 + FRAGMENT_BYTES;
/// The most fragments of a message.
const FRAGMENTS_MAX: u16 = 64;
