//! Parses the question of a DNS message.
//!
//! tacit parses the question itself. tacit uses its DNS library (`simple-dns`) only for answers.

use std::fmt::Write;

use super::message::{DnsError, HEADER_BYTES, MessageHeader, OPERATION, RESPONSE, question_end};

/// The question of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsQuestion {
    /// The name in lower case, without a final dot. Bytes other than letters, digits, `-` and `_`
    /// are escaped, so that a label that contains a dot differs from two labels.
    pub name: String,
    /// The type of record: 1 for A, 28 for AAAA.
    pub kind: u16,
    /// The class: 1 for the Internet.
    pub class: u16,
}

impl DnsQuestion {
    /// The type, if this is the query for a zone transfer (RFC 5936, RFC 1995).
    #[must_use]
    pub fn zone_transfer(&self) -> Option<&'static str> {
        match self.kind {
            251 => Some("IXFR"),
            252 => Some("AXFR"),
            _ => None,
        }
    }
}

/// The response code of an answer that the agent gives itself (RFC 1035, section 4.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseCode {
    /// The name has no such records.
    NoRecords = 0,
    /// The query is malformed.
    FormatError = 1,
    /// No server could be queried.
    ServerFailure = 2,
    /// The name does not exist: the program tries its next search domain.
    NoSuchName = 3,
    /// Queries of this type are not forwarded.
    NotImplemented = 4,
    /// No rule can match the name.
    Refused = 5,
}

/// Parses the question of a query.
///
/// # Errors
/// See [`DnsError`].
pub fn question(query: &[u8]) -> Result<DnsQuestion, DnsError> {
    let head = Head::read(query)?;
    // RFC 1035, section 4.1.1: the message must be a query with the operation "standard query".
    if head.flags & (RESPONSE | OPERATION) != 0 {
        return Err(DnsError::NotAQuestion);
    }
    Ok(head.question)
}

/// Parses the question of a response that was not asked for here.
///
/// # Errors
/// See [`DnsError`].
pub fn response_question(response: &[u8]) -> Result<DnsQuestion, DnsError> {
    let head = Head::read(response)?;
    if head.flags & RESPONSE == 0 {
        return Err(DnsError::NotAQuestion);
    }
    Ok(head.question)
}

/// Header and question of a message.
pub(super) struct Head {
    /// The flags, among them the response code.
    pub(super) flags: u16,
    /// The one question.
    pub(super) question: DnsQuestion,
}

impl Head {
    pub(super) fn read(message: &[u8]) -> Result<Self, DnsError> {
        let MessageHeader { flags, counts, .. } = MessageHeader::read(message)?;
        if counts[0] != 1 {
            return Err(DnsError::NotAQuestion);
        }
        let end = question_end(message)?;
        let (name, tail) = message[HEADER_BYTES..end].split_at(end - 4 - HEADER_BYTES);
        let &[a, b, c, d] = tail else { return Err(DnsError::Malformed) };
        let kind = u16::from_be_bytes([a, b]);
        let class = u16::from_be_bytes([c, d]);
        Ok(Self { flags, question: DnsQuestion { name: text(name), kind, class } })
    }
}

/// Formats an uncompressed name.
fn text(wire: &[u8]) -> String {
    let mut text = String::with_capacity(wire.len());
    let mut rest = wire;
    while let Some((length, behind)) = rest.split_first() {
        let Some((label, next)) = behind.split_at_checked(usize::from(*length)) else { break };
        if !text.is_empty() && !label.is_empty() {
            text.push('.');
        }
        push_label(&mut text, label);
        rest = next;
    }
    text
}

/// Appends a label as text.
pub(super) fn push_label(name: &mut String, label: &[u8]) {
    for byte in label {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(*byte)),
            b'A'..=b'Z' => name.push(char::from(byte.to_ascii_lowercase())),
            other => {
                // Writing to a String cannot fail.
                let _ = write!(name, "\\{other:03}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::query;
    use super::*;
    use proptest::prelude::*;
    use simple_dns::TYPE;

    #[test]
    fn names_are_lower_case_without_a_final_dot() {
        let expected = DnsQuestion { name: "db.corp.example".into(), kind: 28, class: 1 };
        assert_eq!(question(&query("Db.CORP.example", TYPE::AAAA)), Ok(expected));
    }

    #[test]
    fn a_label_with_a_dot_does_not_look_like_two() {
        let mut requested = query("db-corp.example", TYPE::A);
        requested[HEADER_BYTES + 3] = b'.';
        assert_eq!(question(&requested).unwrap().name, "db\\046corp.example");
    }

    #[test]
    fn what_is_not_one_question_is_rejected() {
        let requested = query("db.example", TYPE::A);
        let changed = |at: usize, value: u8| {
            let mut changed = requested.clone();
            changed[at] = value;
            question(&changed)
        };
        assert_eq!(changed(2, 0x81), Err(DnsError::NotAQuestion), "a response");
        assert_eq!(changed(2, 0x28), Err(DnsError::NotAQuestion), "an update");
        assert_eq!(changed(5, 2), Err(DnsError::NotAQuestion), "two questions");
        assert_eq!(changed(12, 0xc0), Err(DnsError::Malformed), "a pointer");
        assert_eq!(changed(12, 62), Err(DnsError::Malformed), "a label beyond the end");
        for length in 0..requested.len() {
            assert_eq!(question(&requested[..length]), Err(DnsError::Malformed), "{length}");
        }
        let unknown = changed(requested.len() - 3, 99).unwrap();
        assert_eq!(unknown.kind, 99, "an unknown type is still a question");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = question(&bytes);
        }
    }
}
