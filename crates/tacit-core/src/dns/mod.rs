//! DNS as far as a forwarder that takes notes needs it: which name is asked for, which addresses
//! the answer gives it, and how a name that no rule can match is refused.
//!
//! Messages are forwarded as they are. They are parsed only to decide and to remember; what cannot
//! be parsed is not forwarded. Limit: [`ADDRESSES_MAX`] addresses an answer.
//!
//! It does not cache, resolve, validate DNSSEC, or change an answer.

mod names;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use simple_dns::rdata::RData;
use simple_dns::{Name, OPCODE, Packet, PacketFlag, QTYPE, RCODE, TYPE};

pub use names::{NAMES_MAX, Names, TTL_MAX, TTL_MIN};

/// Addresses taken from one answer.
pub const ADDRESSES_MAX: usize = 64;
/// Aliases followed from the question to its addresses.
const ALIASES_MAX: usize = 16;

/// What a program asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Lower case, no final dot.
    pub name: String,
    /// Whether the answer can give the name an address (A, AAAA, or what contains them).
    pub asks_address: bool,
}

/// An address that an answer gives to the name that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The address.
    pub address: IpAddr,
    /// How long it may be believed: the least along the chain of aliases.
    pub ttl: Duration,
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

/// How a question is answered without asking anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No rule can match the name.
    Refused,
    /// Nobody could be asked.
    ServerFailure,
}

/// Reads a query.
///
/// # Errors
/// See [`DnsError`].
pub fn question(query: &[u8]) -> Result<Question, DnsError> {
    let packet = Packet::parse(query).map_err(|_| DnsError::Malformed)?;
    let [question] = packet.questions.as_slice() else { return Err(DnsError::NotAQuestion) };
    if packet.has_flags(PacketFlag::RESPONSE) || packet.opcode() != OPCODE::StandardQuery {
        return Err(DnsError::NotAQuestion);
    }
    let asks_address = matches!(
        question.qtype,
        QTYPE::TYPE(TYPE::A | TYPE::AAAA | TYPE::HTTPS | TYPE::SVCB) | QTYPE::ANY
    );
    Ok(Question { name: text(&question.qname), asks_address })
}

/// The addresses that a response gives to the name its question asks for, through aliases.
/// A response to another question gives none.
///
/// # Errors
/// See [`DnsError`].
pub fn answers(response: &[u8], asked: &Question) -> Result<Vec<Answer>, DnsError> {
    let packet = Packet::parse(response).map_err(|_| DnsError::Malformed)?;
    let [question] = packet.questions.as_slice() else { return Err(DnsError::NotAQuestion) };
    if !packet.has_flags(PacketFlag::RESPONSE) || text(&question.qname) != asked.name {
        return Err(DnsError::NotAQuestion);
    }
    let mut found = Vec::new();
    let (mut name, mut ttl_s) = (asked.name.clone(), u32::MAX);
    for _ in 0..ALIASES_MAX {
        let mut alias = None;
        for record in packet.answers.iter().filter(|record| text(&record.name) == name) {
            let ttl = Duration::from_secs(ttl_s.min(record.ttl).into());
            let address = match &record.rdata {
                RData::A(a) => IpAddr::from(a.address.to_be_bytes()),
                RData::AAAA(aaaa) => IpAddr::from(aaaa.address.to_be_bytes()),
                RData::CNAME(target) => {
                    alias = Some((text(&target.0), ttl_s.min(record.ttl)));
                    continue;
                }
                _ => continue,
            };
            if found.len() < ADDRESSES_MAX {
                found.push(Answer { address, ttl });
            }
        }
        match alias {
            Some((next, least_s)) => (name, ttl_s) = (next, least_s),
            None => break,
        }
    }
    Ok(found)
}

/// The response that refuses a query.
///
/// # Errors
/// The query cannot be read.
pub fn refuse(query: &[u8], why: Refusal) -> Result<Vec<u8>, DnsError> {
    let asked = Packet::parse(query).map_err(|_| DnsError::Malformed)?;
    let mut reply = Packet::new_reply(asked.id());
    *reply.rcode_mut() = match why {
        Refusal::Refused => RCODE::Refused,
        Refusal::ServerFailure => RCODE::ServerFailure,
    };
    if asked.has_flags(PacketFlag::RECURSION_DESIRED) {
        reply.set_flags(PacketFlag::RECURSION_DESIRED | PacketFlag::RECURSION_AVAILABLE);
    }
    reply.questions = asked.questions;
    reply.build_bytes_vec().map_err(|_| DnsError::Malformed)
}

fn text(name: &Name<'_>) -> String {
    name.to_string().trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use simple_dns::rdata::{A, AAAA, CNAME};
    use simple_dns::{CLASS, QCLASS, ResourceRecord};

    fn query(name: &str, kind: TYPE) -> Vec<u8> {
        let mut packet = Packet::new_query(7);
        packet.set_flags(PacketFlag::RECURSION_DESIRED);
        packet.questions.push(simple_dns::Question::new(
            Name::new_unchecked(name),
            kind.into(),
            QCLASS::CLASS(CLASS::IN),
            false,
        ));
        packet.build_bytes_vec().unwrap()
    }

    fn response(name: &str, records: Vec<(&'static str, u32, RData<'static>)>) -> Vec<u8> {
        let asked = query(name, TYPE::A);
        let mut packet = Packet::parse(&asked).unwrap().into_reply();
        for (owner, ttl, data) in records {
            packet.answers.push(ResourceRecord::new(
                Name::new_unchecked(owner),
                CLASS::IN,
                ttl,
                data,
            ));
        }
        packet.build_bytes_vec().unwrap()
    }

    fn asked(name: &str) -> Question {
        question(&query(name, TYPE::A)).unwrap()
    }

    #[test]
    fn names_are_lower_case_without_a_final_dot() {
        let expected = Question { name: "db.corp.example".into(), asks_address: true };
        assert_eq!(question(&query("Db.CORP.example", TYPE::AAAA)), Ok(expected));
        assert!(!question(&query("db.corp.example", TYPE::TXT)).unwrap().asks_address);
    }

    #[test]
    fn an_alias_gives_its_addresses_to_the_name_that_was_asked_for() {
        let wire = response(
            "www.example",
            vec![
                ("www.example", 300, RData::CNAME(CNAME(Name::new_unchecked("cdn.example")))),
                ("cdn.example", 60, RData::A(A { address: 0x0a07_0005 })),
                ("cdn.example", 900, RData::AAAA(AAAA { address: 0x2001_0db8 << 96 | 1 })),
                ("other.example", 60, RData::A(A { address: 0x0a07_0006 })),
            ],
        );
        let expected = [("10.7.0.5", 60), ("2001:db8::1", 300)].map(|(address, ttl_s)| Answer {
            address: address.parse().unwrap(),
            ttl: Duration::from_secs(ttl_s),
        });
        assert_eq!(answers(&wire, &asked("www.example")).unwrap(), expected);
    }

    #[test]
    fn a_loop_of_aliases_ends() {
        let alias = |owner, target| (owner, 60, RData::CNAME(CNAME(Name::new_unchecked(target))));
        let wire = response(
            "a.example",
            vec![alias("a.example", "b.example"), alias("b.example", "a.example")],
        );
        assert_eq!(answers(&wire, &asked("a.example")), Ok(Vec::new()));
    }

    #[test]
    fn the_answer_to_another_question_gives_nothing() {
        let wire = response("a.example", vec![("a.example", 60, RData::A(A { address: 1 }))]);
        assert_eq!(answers(&wire, &asked("b.example")), Err(DnsError::NotAQuestion));
        assert_eq!(
            answers(&query("a.example", TYPE::A), &asked("a.example")),
            Err(DnsError::NotAQuestion)
        );
    }

    #[test]
    fn a_refusal_answers_the_question_it_refuses() {
        let asked = query("no.example", TYPE::A);
        let refused = refuse(&asked, Refusal::Refused).unwrap();
        let packet = Packet::parse(&refused).unwrap();
        assert_eq!((packet.id(), packet.rcode()), (7, RCODE::Refused));
        assert_eq!(answers(&refused, &question(&asked).unwrap()), Ok(Vec::new()));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = question(&bytes);
            let _ = refuse(&bytes, Refusal::ServerFailure);
            let _ = answers(&bytes, &Question { name: "a".into(), asks_address: true });
        }
    }
}
