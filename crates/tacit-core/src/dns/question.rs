//! The head of a message: what is asked, and how it is answered without asking anybody.
//!
//! Read by hand, unlike answers: a question holds no compressed name, and may be of a type that no
//! library knows.

use std::fmt::{self, Write};

/// What a program asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Lower case, no final dot. Bytes other than letters, digits, `-` and `_` are escaped, so
    /// that no label looks like two.
    pub name: String,
    /// The type of record: 1 for A, 28 for AAAA.
    pub kind: u16,
    /// The class: 1 for the Internet.
    pub class: u16,
}

/// A message that is not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DnsError {
    /// It is not a DNS message.
    Malformed,
    /// It is not one ordinary question.
    NotAQuestion,
}

impl fmt::Display for DnsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "the program sent port 53 what is not a DNS message",
            Self::NotAQuestion => "the program sent a DNS message that is not one question",
        })
    }
}

impl std::error::Error for DnsError {}

/// How a question is answered without asking anybody. The number is the one on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The name has no such records.
    NoRecords = 0,
    /// It is not a question that can be read.
    FormatError = 1,
    /// Nobody could be asked.
    ServerFailure = 2,
    /// There is no such name: the program shall try its next search domain.
    NoSuchName = 3,
    /// No rule can match the name.
    Refused = 5,
}

/// Reads a query.
///
/// # Errors
/// See [`DnsError`].
pub fn question(query: &[u8]) -> Result<Question, DnsError> {
    let head = Head::read(query)?;
    // RFC 1035, section 4.1.1: neither a response nor any operation but a standard query.
    if head.flags & (RESPONSE | OPERATION) != 0 {
        return Err(DnsError::NotAQuestion);
    }
    Ok(head.question)
}

/// The response that refuses a query; `None` for what is too short to be one, or no query.
#[must_use]
pub fn refuse(query: &[u8], why: Refusal) -> Option<Vec<u8>> {
    let (header, _) = query.split_first_chunk::<HEADER_BYTES>()?;
    let flags = u16::from_be_bytes([header[2], header[3]]);
    if flags & RESPONSE != 0 {
        return None;
    }
    let head = Head::read(query).ok();
    let asked = head.as_ref().and_then(|head| query.get(HEADER_BYTES..head.end));
    let kept = flags & (OPERATION | RECURSION_DESIRED);
    let flags = RESPONSE | kept | RECURSION_AVAILABLE | why as u16;
    let mut response = vec![header[0], header[1]];
    response.extend_from_slice(&flags.to_be_bytes());
    response.extend_from_slice(&[0, u8::from(asked.is_some()), 0, 0, 0, 0, 0, 0]);
    response.extend_from_slice(asked.unwrap_or_default());
    Some(response)
}

/// Header and question of a message.
pub(super) struct Head {
    /// The identification.
    pub(super) id: u16,
    /// The flags, among them the response code.
    pub(super) flags: u16,
    /// The one question.
    pub(super) question: Question,
    /// Where the question ends.
    end: usize,
}

impl Head {
    pub(super) fn read(message: &[u8]) -> Result<Self, DnsError> {
        let (header, _) = message.split_first_chunk::<HEADER_BYTES>().ok_or(DnsError::Malformed)?;
        let number = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        if number(4) != 1 {
            return Err(DnsError::NotAQuestion);
        }
        let Name { text, end } = name(message)?;
        let tail = message.get(end..).and_then(<[u8]>::first_chunk::<4>);
        let &[a, b, c, d] = tail.ok_or(DnsError::Malformed)?;
        let kind = u16::from_be_bytes([a, b]);
        let class = u16::from_be_bytes([c, d]);
        let question = Question { name: text, kind, class };
        Ok(Self { id: number(0), flags: number(2), question, end: end + 4 })
    }
}

/// The name behind the header.
struct Name {
    text: String,
    /// Where it ends in the message.
    end: usize,
}

fn name(message: &[u8]) -> Result<Name, DnsError> {
    let mut text = String::new();
    let mut at = HEADER_BYTES;
    loop {
        let length = usize::from(*message.get(at).ok_or(DnsError::Malformed)?);
        at += 1;
        // RFC 1035, section 2.3.4. A longer length would be a pointer, and there is nothing before
        // the question to point to.
        if length > LABEL_BYTES_MAX || at + length - HEADER_BYTES > NAME_BYTES_MAX {
            return Err(DnsError::Malformed);
        }
        if length == 0 {
            return Ok(Name { text, end: at });
        }
        if !text.is_empty() {
            text.push('.');
        }
        push_label(&mut text, message.get(at..at + length).ok_or(DnsError::Malformed)?);
        at += length;
    }
}

/// Appends a label as text.
pub(super) fn push_label(name: &mut String, label: &[u8]) {
    for byte in label {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(*byte)),
            b'A'..=b'Z' => name.push(char::from(byte.to_ascii_lowercase())),
            other => {
                // A String takes everything.
                let _ = write!(name, "\\{other:03}");
            }
        }
    }
}

const HEADER_BYTES: usize = 12;
const LABEL_BYTES_MAX: usize = 63;
const NAME_BYTES_MAX: usize = 255;
const RESPONSE: u16 = 0x8000;
const OPERATION: u16 = 0x7800;
const RECURSION_DESIRED: u16 = 0x0100;
const RECURSION_AVAILABLE: u16 = 0x0080;

#[cfg(test)]
mod tests {
    use super::super::testing::query;
    use super::*;
    use proptest::prelude::*;
    use simple_dns::{Packet, RCODE, TYPE};

    #[test]
    fn names_are_lower_case_without_a_final_dot() {
        let expected = Question { name: "db.corp.example".into(), kind: 28, class: 1 };
        assert_eq!(question(&query("Db.CORP.example", TYPE::AAAA)), Ok(expected));
    }

    #[test]
    fn a_label_with_a_dot_does_not_look_like_two() {
        let mut asked = query("db-corp.example", TYPE::A);
        asked[HEADER_BYTES + 3] = b'.';
        assert_eq!(question(&asked).unwrap().name, "db\\046corp.example");
    }

    #[test]
    fn what_is_not_one_question_is_told_so() {
        let asked = query("db.example", TYPE::A);
        let changed = |at: usize, value: u8| {
            let mut changed = asked.clone();
            changed[at] = value;
            question(&changed)
        };
        assert_eq!(changed(2, 0x81), Err(DnsError::NotAQuestion), "a response");
        assert_eq!(changed(2, 0x28), Err(DnsError::NotAQuestion), "an update");
        assert_eq!(changed(5, 2), Err(DnsError::NotAQuestion), "two questions");
        assert_eq!(changed(12, 0xc0), Err(DnsError::Malformed), "a pointer");
        assert_eq!(changed(12, 62), Err(DnsError::Malformed), "a label beyond the end");
        for length in 0..asked.len() {
            assert_eq!(question(&asked[..length]), Err(DnsError::Malformed), "{length}");
        }
        let unknown = changed(asked.len() - 3, 99).unwrap();
        assert_eq!(unknown.kind, 99, "a type that nobody knows is a question all the same");
    }

    #[test]
    fn a_refusal_answers_the_question_it_refuses() {
        let asked = query("no.example", TYPE::A);
        for (why, code) in [
            (Refusal::Refused, RCODE::Refused),
            (Refusal::ServerFailure, RCODE::ServerFailure),
            (Refusal::NoSuchName, RCODE::NameError),
            (Refusal::NoRecords, RCODE::NoError),
        ] {
            let refused = refuse(&asked, why).unwrap();
            let packet = Packet::parse(&refused).unwrap();
            assert_eq!((packet.id(), packet.rcode()), (7, code));
            assert_eq!(Head::read(&refused).unwrap().question, question(&asked).unwrap());
            assert_eq!(refuse(&refused, why), None, "a response is not answered");
        }
        let short = refuse(&asked[..14], Refusal::FormatError).unwrap();
        assert_eq!(short, [0, 7, 0x81, 0x81, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(refuse(&asked[..11], Refusal::FormatError), None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let asked = question(&bytes);
            let refused = refuse(&bytes, Refusal::ServerFailure);
            prop_assert!(asked.is_err() || refused.is_some());
        }
    }
}
