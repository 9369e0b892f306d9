//! Parses the DNS query of a program. The result is the question, and the properties that the
//! answer must have, such as the maximum size.

use super::message::{
    AUTHENTIC_DATA, CHECKING_DISABLED, DNSSEC_OK, DnsError, HEADER_BYTES, MessageHeader, OPERATION,
    OPT, OPT_BYTES, RECURSION_AVAILABLE, RECURSION_DESIRED, RESPONSE, push_opt, question_end,
    record,
};
use super::question::{DnsQuestion, ResponseCode, question};

/// Maximum datagram size without EDNS (RFC 1035, section 2.3.4).
pub const PLAIN_BYTES_MAX: usize = 512;
/// Maximum payload of a datagram.
const DATAGRAM_BYTES_MAX: usize = 65_507;

/// The flags of a program's query that are forwarded to a resolver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QueryFlags {
    /// DO: request signatures.
    pub dnssec_ok: bool,
    /// AD: request the validation status.
    pub authentic_data: bool,
    /// CD: accept an answer that fails validation.
    pub checking_disabled: bool,
}

impl QueryFlags {
    /// The flags of an OPT record.
    pub(super) fn edns_flags(self) -> u16 {
        if self.dnssec_ok { DNSSEC_OK } else { 0 }
    }
}

/// The parts of a program's query that determine the question and the format of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The question.
    pub question: DnsQuestion,
    /// The flags that are forwarded.
    pub bits: QueryFlags,
    /// The program's message ID.
    pub id: u16,
    /// The question as the program wrote it: name, type and class.
    pub(super) wire: Vec<u8>,
    /// Whether the RD flag is set; the answer repeats it.
    recursion_desired: bool,
    /// The EDNS payload size of the program; `None` without EDNS.
    edns_bytes: Option<u16>,
}

impl Query {
    /// Parses a program's message. Only the size and the DO bit are read from EDNS.
    ///
    /// # Errors
    /// It is not a single standard query, or a record after the question is malformed.
    pub fn read(message: &[u8]) -> Result<Self, DnsError> {
        let question = question(message)?;
        let MessageHeader { id, flags, counts } = MessageHeader::read(message)?;
        let end = question_end(message)?;
        let mut at = end;
        let mut edns = None;
        for _ in 0..counts[1..].iter().map(|count| u32::from(*count)).sum() {
            let record = record(message, at).ok_or(DnsError::Malformed)?;
            at = record.end;
            if record.kind == OPT && edns.replace(record).is_some() {
                return Err(DnsError::Malformed);
            }
        }
        let bits = QueryFlags {
            dnssec_ok: edns.is_some_and(|opt| opt.ttl & u32::from(DNSSEC_OK) != 0),
            authentic_data: flags & AUTHENTIC_DATA != 0,
            checking_disabled: flags & CHECKING_DISABLED != 0,
        };
        Ok(Self {
            question,
            bits,
            id,
            wire: message[HEADER_BYTES..end].to_vec(),
            recursion_desired: flags & RECURSION_DESIRED != 0,
            edns_bytes: edns.map(|opt| opt.class),
        })
    }

    /// Returns the maximum size of the answer in a datagram.
    #[must_use]
    pub fn datagram_bytes_max(&self) -> usize {
        let announced = self.edns_bytes.map_or(0, usize::from);
        announced.clamp(PLAIN_BYTES_MAX, DATAGRAM_BYTES_MAX)
    }

    /// Builds an answer without a resolver.
    #[must_use]
    pub fn refused(&self, why: ResponseCode) -> Vec<u8> {
        let mut response = Vec::with_capacity(HEADER_BYTES + self.wire.len() + OPT_BYTES);
        let flags = RESPONSE | self.own_flags() | RECURSION_AVAILABLE | why as u16;
        let counts = [1, 0, 0, u16::from(self.has_edns())];
        MessageHeader { id: self.id, flags, counts }.push(&mut response);
        response.extend_from_slice(&self.wire);
        self.push_opt(&mut response, 0);
        response
    }

    pub(super) fn has_edns(&self) -> bool {
        self.edns_bytes.is_some()
    }

    /// Returns the flags that the answer repeats.
    pub(super) fn own_flags(&self) -> u16 {
        let recursion = if self.recursion_desired { RECURSION_DESIRED } else { 0 };
        let checking = if self.bits.checking_disabled { CHECKING_DISABLED } else { 0 };
        recursion | checking
    }

    /// Appends an OPT record if the program sent one. `code_high` is the upper part of the response
    /// code.
    pub(super) fn push_opt(&self, message: &mut Vec<u8>, code_high: u8) {
        if self.has_edns() {
            push_opt(message, code_high, self.bits.edns_flags());
        }
    }
}

/// Builds the error response to a malformed query; `None` if the message is too short or is a
/// response.
#[must_use]
pub fn refuse(message: &[u8], why: ResponseCode) -> Option<Vec<u8>> {
    let MessageHeader { id, flags, .. } = MessageHeader::read(message).ok()?;
    if flags & RESPONSE != 0 {
        return None;
    }
    let requested = question_end(message).ok().and_then(|end| message.get(HEADER_BYTES..end));
    let kept = flags & (OPERATION | RECURSION_DESIRED);
    let flags = RESPONSE | kept | RECURSION_AVAILABLE | why as u16;
    let mut response = Vec::new();
    MessageHeader { id, flags, counts: [u16::from(requested.is_some()), 0, 0, 0] }
        .push(&mut response);
    response.extend_from_slice(requested.unwrap_or_default());
    Some(response)
}

#[cfg(test)]
mod tests;
