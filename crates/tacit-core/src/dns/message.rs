//! Splits a DNS message into header, question and records.
//!
//! The parser does not follow the compression pointers in names, because it needs only the position
//! at which each name ends.

use std::fmt;

/// The length of the header, which precedes the question.
pub(super) const HEADER_BYTES: usize = 12;
/// RFC 1035, section 2.3.4.
pub(super) const LABEL_BYTES_MAX: usize = 63;
const NAME_BYTES_MAX: usize = 255;
/// Flags of the header (RFC 1035, section 4.1.1; RFC 4035, section 3).
pub(super) const RESPONSE: u16 = 0x8000;
pub(super) const OPERATION: u16 = 0x7800;
pub(super) const AUTHORITATIVE: u16 = 0x0400;
pub(super) const TRUNCATED: u16 = 0x0200;
pub(super) const RECURSION_DESIRED: u16 = 0x0100;
pub(super) const RECURSION_AVAILABLE: u16 = 0x0080;
pub(super) const AUTHENTIC_DATA: u16 = 0x0020;
pub(super) const CHECKING_DISABLED: u16 = 0x0010;
pub(super) const CODE: u16 = 0x000f;
/// Class IN.
pub(super) const INTERNET: u16 = 1;
/// The type of the pseudo-record of EDNS (RFC 6891, section 6.1).
pub(super) const OPT: u16 = 41;
/// The DO bit in the TTL of the OPT record: the program requests signatures.
pub(super) const DNSSEC_OK: u16 = 0x8000;

/// The length of an OPT record without options.
pub(super) const OPT_BYTES: usize = 11;
/// The UDP payload size announced to resolvers. Datagrams of this size pass every link without
/// fragmentation.
pub const EDNS_BYTES: u16 = 1232;

/// The reason why a message is not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DnsError {
    /// It is not a DNS message.
    Malformed,
    /// It is not a single standard query.
    NotAQuestion,
}

impl fmt::Display for DnsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "the data that the program sent to port 53 is not a DNS message",
            Self::NotAQuestion => {
                "the program sent a DNS message that does not have exactly one question"
            }
        })
    }
}

impl std::error::Error for DnsError {}

/// The header of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageHeader {
    /// The identification.
    pub(super) id: u16,
    /// The flags and the response code.
    pub(super) flags: u16,
    /// The numbers of questions, answers, authority records and additional records.
    pub(super) counts: [u16; 4],
}

impl MessageHeader {
    pub(super) fn read(message: &[u8]) -> Result<Self, DnsError> {
        let (header, _) = message.split_first_chunk::<HEADER_BYTES>().ok_or(DnsError::Malformed)?;
        let number = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let counts = [number(4), number(6), number(8), number(10)];
        Ok(Self { id: number(0), flags: number(2), counts })
    }

    pub(super) fn push(self, message: &mut Vec<u8>) {
        message.extend_from_slice(&self.id.to_be_bytes());
        message.extend_from_slice(&self.flags.to_be_bytes());
        for count in self.counts {
            message.extend_from_slice(&count.to_be_bytes());
        }
    }
}

/// Appends an OPT record without options. `code_high` is the upper part of the response code,
/// `flags` the lower half of the TTL.
pub(super) fn push_opt(message: &mut Vec<u8>, code_high: u8, flags: u16) {
    let [_, kind] = OPT.to_be_bytes();
    let [size_high, size_low] = EDNS_BYTES.to_be_bytes();
    message.extend_from_slice(&[0, 0, kind, size_high, size_low, code_high, 0]);
    message.extend_from_slice(&flags.to_be_bytes());
    message.extend_from_slice(&[0, 0]);
}

/// Returns the end of the single question of a message, if its name is not compressed.
pub(super) fn question_end(message: &[u8]) -> Result<usize, DnsError> {
    let mut at = HEADER_BYTES;
    loop {
        let length = usize::from(*message.get(at).ok_or(DnsError::Malformed)?);
        at += 1 + length;
        // A larger length would be a compression pointer, and there is no earlier name to which it
        // could point.
        if length > LABEL_BYTES_MAX || at - HEADER_BYTES > NAME_BYTES_MAX {
            return Err(DnsError::Malformed);
        }
        if length == 0 {
            let end = at + 4;
            return if end <= message.len() { Ok(end) } else { Err(DnsError::Malformed) };
        }
    }
}

/// A resource record: its type, class, TTL and end.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResourceRecord {
    pub(super) kind: u16,
    pub(super) class: u16,
    /// The TTL; flags in an OPT record.
    pub(super) ttl: u32,
    /// The offset after its data.
    pub(super) end: usize,
}

/// Parses the record at an offset of the message; `None` if it is truncated.
pub(super) fn record(message: &[u8], start: usize) -> Option<ResourceRecord> {
    let at = name_end(message, start)?;
    let (&[k, l, c, d, t, u, v, w, m, n], _) = message.get(at..)?.split_first_chunk::<10>()?;
    let data_bytes = usize::from(u16::from_be_bytes([m, n]));
    let end = at + 10 + data_bytes;
    (end <= message.len()).then_some(ResourceRecord {
        kind: u16::from_be_bytes([k, l]),
        class: u16::from_be_bytes([c, d]),
        ttl: u32::from_be_bytes([t, u, v, w]),
        end,
    })
}

/// Returns the offset after a name, which may end in a compression pointer.
fn name_end(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        let length = usize::from(*message.get(at)?);
        match length {
            0 => return Some(at + 1),
            1..=LABEL_BYTES_MAX => at += 1 + length,
            0xc0..=0xff => return Some(at + 2),
            _ => return None,
        }
    }
}
