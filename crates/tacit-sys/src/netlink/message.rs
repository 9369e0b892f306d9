//! Builds netlink messages attribute by attribute, and parses them.

use std::io;

use super::error::Error;

/// A message under construction, with the names of its parts, which errors mention.
#[derive(Clone, Debug)]
pub(super) struct NetlinkRequest {
    pub(super) bytes: Vec<u8>,
    pub(super) step: &'static str,
    parts: Vec<(usize, &'static str)>,
}

impl NetlinkRequest {
    pub(super) fn new(step: &'static str, kind: u16, flags: u16) -> Self {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
        Self { bytes, step, parts: Vec::new() }
    }

    /// Appends the fixed part, which precedes the attributes.
    pub(super) fn fixed(mut self, part: &[u8]) -> Self {
        self.bytes.extend_from_slice(part);
        self.pad();
        self
    }

    pub(super) fn attribute(&mut self, kind: u16, payload: &[u8]) {
        self.nest_as(kind, |message| message.bytes.extend_from_slice(payload));
    }

    /// Appends a number in network order, which nftables expects for all numbers.
    pub(super) fn be32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_be_bytes());
    }

    pub(super) fn text(&mut self, kind: u16, text: &str) {
        self.nest_as(kind, |message| {
            message.bytes.extend_from_slice(text.as_bytes());
            message.bytes.push(0);
        });
    }

    /// Replaces the text of the first attribute, which follows a fixed part of `fixed_bytes`.
    pub(super) fn with_first_text(mut self, fixed_bytes: usize, text: &str) -> Self {
        let start = HEADER_BYTES + fixed_bytes;
        let field = |at| usize::from(read_u16(&self.bytes, at).unwrap_or(0));
        let before = field(start).next_multiple_of(4);
        let kind = field(start + 2);
        let mut written = Self { bytes: Vec::new(), step: self.step, parts: Vec::new() };
        written.text(u16::try_from(kind).unwrap_or(0), text);
        let now = written.bytes.len();
        self.bytes.splice(start..start + before, written.bytes);
        for (at, _) in self.parts.iter_mut().filter(|(at, _)| *at > start) {
            *at = *at + now - before;
        }
        self
    }

    /// Appends an attribute that contains attributes.
    pub(super) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        self.nest_as(kind | NLA_F_NESTED, fill);
    }

    /// Names the part of the message that is appended from here to the next call.
    pub(super) fn part(&mut self, name: &'static str) {
        self.parts.push((self.bytes.len(), name));
    }

    #[cfg(test)]
    pub(super) fn bytes_len(&self) -> usize {
        self.bytes.len()
    }

    fn nest_as(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        fill(self);
        // All callers stay far below 64 KiB. If one did not, the kernel would refuse the message.
        let length = u16::try_from(self.bytes.len() - start).unwrap_or(u16::MAX);
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    pub(super) fn seal(&mut self, sequence: u32) {
        let length = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
    }

    pub(super) fn sequence(&self) -> u32 {
        read_u32(&self.bytes, 8).unwrap_or(0)
    }

    pub(super) fn wants_answer(&self) -> bool {
        read_u16(&self.bytes, 6).unwrap_or(0) & NLM_F_ACK != 0
    }

    /// Requests no acknowledgement. The kernel reports a refusal nevertheless.
    pub(super) fn want_no_answer(&mut self) {
        let flags = read_u16(&self.bytes, 6).unwrap_or(0) & !NLM_F_ACK;
        self.bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
    }

    pub(super) fn verdict(&self, answer: &NetlinkReply<'_>) -> Result<(), Error> {
        let number = read_u32(answer.payload, 0)
            .ok_or(Error::Malformed("the kernel's answer has no error number"))?;
        let errno = number.cast_signed().wrapping_neg();
        if errno == 0 {
            return Ok(());
        }
        let Extended { offset, explanation } = extended(answer);
        let part = offset.and_then(|offset| {
            // A name is recorded at the start of its part, and the offset may be that of the first
            // inner attribute of the part. So the last name at or before the offset is the right
            // one.
            self.parts.iter().rev().find(|(start, _)| *start <= offset).map(|(_, name)| *name)
        });
        let error = io::Error::from_raw_os_error(errno);
        Err(Error::Refused { step: self.step, part, error, explanation })
    }
}

/// A received message.
pub(super) struct NetlinkReply<'a> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
    pub(super) payload: &'a [u8],
}

/// Splits a datagram into messages.
pub(super) fn answers(mut bytes: &[u8]) -> impl Iterator<Item = Result<NetlinkReply<'_>, Error>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let length = read_u32(bytes, 0).and_then(|length| usize::try_from(length).ok());
        let (Some(length), Some(kind), Some(flags), Some(sequence)) =
            (length, read_u16(bytes, 4), read_u16(bytes, 6), read_u32(bytes, 8))
        else {
            bytes = &[];
            return Some(Err(Error::Malformed("the header of a message is truncated")));
        };
        let Some(payload) = bytes.get(HEADER_BYTES..length) else {
            bytes = &[];
            return Some(Err(Error::Malformed("the length in the header of a message is wrong")));
        };
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Ok(NetlinkReply { kind, flags, sequence, payload }))
    })
}

/// The additional information that the kernel gives with an error number.
#[derive(Default)]
struct Extended {
    /// The offset of the refused attribute.
    offset: Option<usize>,
    /// The kernel's explanation.
    explanation: Option<String>,
}

fn extended(answer: &NetlinkReply<'_>) -> Extended {
    let mut found = Extended::default();
    if answer.flags & NLM_F_ACK_TLVS == 0 {
        return found;
    }
    // The refused message follows the error number; if it is capped, only its header.
    let echoed = if answer.flags & NLM_F_CAPPED != 0 {
        HEADER_BYTES
    } else {
        read_u32(answer.payload, 4).and_then(|length| usize::try_from(length).ok()).unwrap_or(0)
    };
    for (kind, value) in attributes(answer.payload.get(4 + echoed..).unwrap_or_default()) {
        match kind {
            NLMSGERR_ATTR_MSG => {
                let text = String::from_utf8_lossy(value);
                found.explanation = Some(text.trim_end_matches('\0').to_owned());
            }
            NLMSGERR_ATTR_OFFS => {
                found.offset = read_u32(value, 0).and_then(|offset| usize::try_from(offset).ok());
            }
            _ => {}
        }
    }
    found
}

/// Splits a payload into attributes, each with its type and value. Stops at the first malformed
/// attribute.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(read_u16(bytes, 0)?);
        let kind = read_u16(bytes, 2)? & !NLA_F_NESTED;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub(super) fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(super) fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

const HEADER_BYTES: usize = 16;
pub(super) const NLMSG_ERROR: u16 = 2;
pub(super) const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x1;
pub(super) const NLM_F_ACK: u16 = 0x4;
pub(super) const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLA_F_NESTED: u16 = 0x8000;
const NLMSGERR_ATTR_MSG: u16 = 1;
const NLMSGERR_ATTR_OFFS: u16 = 2;

#[cfg(test)]
pub(super) mod testing {
    use super::NetlinkRequest;

    /// Decodes a text of hexadecimal digits; blanks are ignored.
    pub(crate) fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u32> = hex.chars().filter_map(|c| c.to_digit(16)).collect();
        let pairs = digits.as_chunks::<2>().0;
        pairs.iter().map(|[high, low]| u8::try_from(high << 4 | low).unwrap()).collect()
    }

    /// Returns the message as it is sent, with sequence number 0.
    pub(crate) fn sealed(message: &NetlinkRequest) -> Vec<u8> {
        let mut message = message.clone();
        message.seal(0);
        message.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(flags: u16, payload: &str) -> Error {
        let mut message = NetlinkRequest::new("a step", 1, NLM_F_ACK).fixed(&[0; 4]);
        message.part("first");
        message.be32(1, 0);
        message.part("second");
        message.nest(2, |inside| inside.be32(3, 0));
        let payload = testing::bytes(payload);
        let answer = NetlinkReply { kind: NLMSG_ERROR, flags, sequence: 0, payload: &payload };
        message.verdict(&answer).unwrap_err()
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_refusal_names_the_step_the_part_and_the_kernels_words() {
        // -ENOENT; the refused header; offset 28, inside the second part; "no".
        let header = "24000000 0100 0500 00000000 00000000";
        let tlvs = "0800 0200 1c000000 0700 0100 6e6f00 00";
        let capped = refusal(NLM_F_CAPPED | NLM_F_ACK_TLVS, &format!("feffffff {header} {tlvs}"));
        let text = "the kernel refused the netlink request for a step, in part 'second' of the \
                    request: No such file or directory (os error 2) (no)";
        assert_eq!(capped.to_string(), text);
        // Not capped: the whole refused message of 36 bytes stands before the attributes.
        let whole = format!("feffffff {header} {} {tlvs}", "00".repeat(20));
        assert_eq!(refusal(NLM_F_ACK_TLVS, &whole).to_string(), text);
        let bare = refusal(NLM_F_CAPPED, &format!("ffffffff {header}"));
        assert_eq!(
            bare.to_string(),
            "the kernel refused the netlink request for a step: Operation not permitted (os error \
             1)"
        );
        assert_eq!(bare.errno(), Some(libc::EPERM));
    }

    #[test]
    fn attributes_are_padded_and_nested() {
        let mut message = NetlinkRequest::new("", 1, 0);
        message.nest(1, |inside| inside.text(2, "abcd"));
        message.be32(3, 1);
        let body = &message.bytes[HEADER_BYTES..];
        let read: Vec<_> = attributes(body).collect();
        assert_eq!(read.len(), 2);
        assert_eq!(read[1], (3, &[0, 0, 0, 1][..]));
        let inner: Vec<_> = attributes(read[0].1).collect();
        assert_eq!(inner, [(2, &b"abcd\0"[..])]);
        assert_eq!(read[0].1.len(), 12, "the padding of the last inner attribute is counted");
    }

    #[test]
    fn answers_cut_short_are_errors() {
        assert!(matches!(answers(&[1, 0, 0]).next(), Some(Err(_))));
        let mut long = vec![0; HEADER_BYTES];
        long[0..4].copy_from_slice(&64_u32.to_ne_bytes());
        assert!(matches!(answers(&long).next(), Some(Err(_))));
        long[0..4].copy_from_slice(&8_u32.to_ne_bytes());
        assert!(matches!(answers(&long).next(), Some(Err(_))));
        assert!(answers(&[]).next().is_none());
    }
}
