//! Extracts the addresses of a name from a DNS response, and follows CNAME records.

use std::net::IpAddr;
use std::time::Duration;

use simple_dns::rdata::RData;
use simple_dns::{Name, Packet};

use super::message::{DnsError, RESPONSE};
use super::question::{DnsQuestion, Head, push_label};

/// The largest number of addresses taken from one answer.
pub const ADDRESSES_MAX: usize = 64;
/// The largest number of CNAME records that are followed from the question to its addresses.
const ALIASES_MAX: usize = 32;

/// An address of the name that was queried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResolvedAddress {
    /// The address.
    pub address: IpAddr,
    /// How long it is valid: the smallest TTL of the CNAME records and of the address.
    pub ttl: Duration,
}

/// Returns the addresses that a response has for the name in its question, following CNAME records.
///
/// # Errors
/// The message is not a response, or answers another question.
pub fn answers(response: &[u8], requested: &DnsQuestion) -> Result<Vec<ResolvedAddress>, DnsError> {
    chain(response, requested).map(|chain| chain.addresses)
}

/// The names and addresses to which a response leads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerChain {
    /// The name in the question and the target of each CNAME record, in the order of the records.
    pub names: Vec<String>,
    /// The addresses at the end; caches may use them for each of the names.
    pub addresses: Vec<ResolvedAddress>,
}

/// Returns the names and addresses that a response has for its question, following CNAME records.
///
/// # Errors
/// The message is not a response, or answers another question.
pub fn chain(response: &[u8], requested: &DnsQuestion) -> Result<AnswerChain, DnsError> {
    let head = Head::read(response)?;
    if head.flags & RESPONSE == 0 || head.question != *requested {
        return Err(DnsError::NotAQuestion);
    }
    let packet = Packet::parse(response).map_err(|_| DnsError::Malformed)?;
    let mut found = Vec::new();
    let mut names = Vec::new();
    let mut name = requested.name.clone();
    let mut ttl_s = u32::MAX;
    for _ in 0..=ALIASES_MAX {
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
                found.push(ResolvedAddress { address, ttl });
            }
        }
        names.push(name);
        let Some((next, least_s)) = alias else { break };
        (name, ttl_s) = (next, least_s);
    }
    Ok(AnswerChain { names, addresses: found })
}

fn text(name: &Name<'_>) -> String {
    let mut text = String::new();
    for label in name.as_bytes() {
        if !text.is_empty() {
            text.push('.');
        }
        push_label(&mut text, label);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::question::question;
    use super::super::testing::{query, record, response};
    use super::*;
    use proptest::prelude::*;
    use simple_dns::TYPE;
    use simple_dns::rdata::{A, AAAA, CNAME};

    fn requested(name: &str) -> DnsQuestion {
        question(&query(name, TYPE::A)).unwrap()
    }

    #[test]
    fn an_alias_gives_its_addresses_to_the_name_that_was_asked_for() {
        let wire = response(
            "www.example",
            vec![
                record("www.example", 300, RData::CNAME(CNAME(Name::new_unchecked("CDN.example")))),
                record("cdn.example", 60, RData::A(A { address: 0x0a07_0005 })),
                record("cdn.example", 900, RData::AAAA(AAAA { address: 0x2001_0db8 << 96 | 1 })),
                record("other.example", 60, RData::A(A { address: 0x0a07_0006 })),
            ],
        );
        let expected = [("10.7.0.5", 60), ("2001:db8::1", 300)].map(|(address, ttl_s)| {
            ResolvedAddress { address: address.parse().unwrap(), ttl: Duration::from_secs(ttl_s) }
        });
        assert_eq!(answers(&wire, &requested("www.example")).unwrap(), expected);
        assert_eq!(
            chain(&wire, &requested("www.example")).unwrap().names,
            ["www.example", "cdn.example"]
        );
    }

    #[test]
    fn a_loop_of_aliases_ends() {
        let alias =
            |owner, target| record(owner, 60, RData::CNAME(CNAME(Name::new_unchecked(target))));
        let wire = response(
            "a.example",
            vec![alias("a.example", "b.example"), alias("b.example", "a.example")],
        );
        assert_eq!(answers(&wire, &requested("a.example")), Ok(Vec::new()));
    }

    #[test]
    fn the_answer_to_another_question_gives_nothing() {
        let wire = response("a.example", vec![record("a.example", 60, RData::A(A { address: 1 }))]);
        for other in [query("b.example", TYPE::A), query("a.example", TYPE::AAAA)] {
            let other = question(&other).unwrap();
            assert_eq!(answers(&wire, &other), Err(DnsError::NotAQuestion));
        }
        let query_a = query("a.example", TYPE::A);
        assert_eq!(answers(&query_a, &requested("a.example")), Err(DnsError::NotAQuestion));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = answers(&bytes, &DnsQuestion { name: "a".into(), kind: 1, class: 1 });
        }

        #[test]
        fn records_behind_the_question_never_panic(
            records in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut wire = response("a.example", Vec::new());
            wire[7] = 3;
            wire.extend_from_slice(&records);
            let _ = answers(&wire, &requested("a.example"));
        }
    }
}
