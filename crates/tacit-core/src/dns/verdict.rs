//! Decides which DNS queries of programs the agent forwards, and how it answers all other queries.
//!
//! | question | answer |
//! |---|---|
//! | a name that some rule allows | the answer of the DNS server |
//! | a name that no rule allows, in a search domain | NXDOMAIN: the program tries its next domain |
//! | a name that no rule allows, outside the search domains | REFUSED |
//! | HTTPS, SVCB | an answer without records, because the records can contain addresses |
//! | a type that is not in the list of permitted types, such as ANY | NOTIMP |
//! | PTR of an alias (an address that tacit assigned to a name) | this name |
//! | PTR of an address that some rule can match | the answer of the DNS server |
//! | PTR of an address that no rule can match | REFUSED |
//! | zone transfers, classes other than IN | REFUSED |
//!
//! With `tacit agent --host` and `unmatched = "permit"`, programs may open connections that match
//! no rule. So programs may also resolve every name: [`open_verdict`] replaces this table.
//!
//! tacit records the addresses of a name only from answers to A and AAAA queries. tacit does not
//! trust PTR answers, because the owner of an address can choose any name.

use super::message::INTERNET;
use super::question::{DnsQuestion, ResponseCode};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The decision about a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is forwarded to a resolver.
    Forward,
    /// It is answered without a resolver.
    Refuse(ResponseCode),
    /// It is refused, because no rule allows the name.
    NotAllowed,
}

/// Decides about a query. `search` is the list of search domains that programs append to short
/// names.
pub fn verdict(
    question: &DnsQuestion,
    search: &[String],
    may_ask: impl Fn(&str) -> bool,
    can_match_address: impl Fn(IpAddr) -> bool,
) -> Verdict {
    let name = question.name.as_str();
    if question.class != INTERNET || question.zone_transfer().is_some() {
        return Verdict::Refuse(ResponseCode::Refused);
    }
    if name.ends_with(REVERSE_V4) || name.ends_with(REVERSE_V6) {
        return match address(name) {
            Some(address) if can_match_address(address) => forward_if_known(question.kind),
            _ => Verdict::Refuse(ResponseCode::Refused),
        };
    }
    if !may_ask(name) {
        let searched = search.iter().any(|domain| {
            name.strip_suffix(domain.as_str()).is_some_and(|rest| rest.ends_with('.'))
        });
        // Programs try their search domains in turn. So these queries do not mean that the program
        // wants these names.
        return if searched {
            Verdict::Refuse(ResponseCode::NoSuchName)
        } else {
            Verdict::NotAllowed
        };
    }
    if [HTTPS, SVCB].contains(&question.kind) {
        return Verdict::Refuse(ResponseCode::NoRecords);
    }
    forward_if_known(question.kind)
}

/// Decides about a query of a program that may resolve every name. If `has_rules` is true for the
/// name, the agent must record all its addresses, so only queries of known types are forwarded.
#[must_use]
pub fn open_verdict(question: &DnsQuestion, has_rules: impl Fn(&str) -> bool) -> Verdict {
    let DnsQuestion { name, kind, class } = question;
    // A transfer has several messages.
    if question.zone_transfer().is_some() {
        return Verdict::Refuse(ResponseCode::Refused);
    }
    if !has_rules(name) || *class != INTERNET {
        return Verdict::Forward;
    }
    if [HTTPS, SVCB].contains(kind) {
        return Verdict::Refuse(ResponseCode::NoRecords);
    }
    forward_if_known(*kind)
}

/// The program chooses the type. So only the types in this list are forwarded.
fn forward_if_known(kind: u16) -> Verdict {
    if TYPES.contains(&kind) {
        Verdict::Forward
    } else {
        Verdict::Refuse(ResponseCode::NotImplemented)
    }
}

/// Returns the address in a PTR query.
#[must_use]
pub fn asked_address(question: &DnsQuestion) -> Option<IpAddr> {
    address(&question.name).filter(|_| question.kind == POINTER && question.class == INTERNET)
}

/// Parses the address of a name in the reverse tree (RFC 1035, section 3.5; RFC 3596, section 2.5).
fn address(name: &str) -> Option<IpAddr> {
    if let Some(labels) = name.strip_suffix(REVERSE_V4) {
        let mut octets = [0; 4];
        let mut labels = labels.rsplit('.');
        for octet in &mut octets {
            *octet = labels.next()?.parse().ok()?;
        }
        return labels.next().is_none().then(|| Ipv4Addr::from(octets).into());
    }
    let mut bits = 0_u128;
    let mut count = 0;
    for label in name.strip_suffix(REVERSE_V6)?.rsplit('.') {
        let digit = u128::from_str_radix(label, 16).ok().filter(|_| label.len() == 1)?;
        (bits, count) = (bits << 4 | digit, count + 1);
        if count > 32 {
            return None;
        }
    }
    (count == 32).then(|| Ipv6Addr::from_bits(bits).into())
}

/// Permitted types: A, NS, CNAME, SOA, PTR, HINFO, MX, TXT, RP, AFSDB, AAAA, LOC, SRV, NAPTR, KX,
/// CERT, DNAME, DS, SSHFP, RRSIG, NSEC, DNSKEY, NSEC3, NSEC3PARAM, TLSA, SMIMEA, CDS, CDNSKEY,
/// OPENPGPKEY, CSYNC, SPF, EUI48, EUI64, URI, CAA.
const TYPES: [u16; 35] = [
    1, 2, 5, 6, 12, 13, 15, 16, 17, 18, 28, 29, 33, 35, 36, 37, 39, 43, 44, 46, 47, 48, 50, 51, 52,
    53, 59, 60, 61, 62, 99, 108, 109, 256, 257,
];
const POINTER: u16 = 12;
const SVCB: u16 = 64;
const HTTPS: u16 = 65;
const REVERSE_V4: &str = ".in-addr.arpa";
const REVERSE_V6: &str = ".ip6.arpa";

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(name: &str, kind: u16) -> Verdict {
        let question = DnsQuestion { name: name.to_owned(), kind, class: 1 };
        let search = ["svc.cluster.local".to_owned(), "example".to_owned()];
        verdict(
            &question,
            &search,
            |name| name == "db.example",
            |address| address == IpAddr::from([10, 7, 0, 5]) || address.is_ipv6(),
        )
    }

    const REFUSED: Verdict = Verdict::Refuse(ResponseCode::Refused);
    const NO_SUCH_NAME: Verdict = Verdict::Refuse(ResponseCode::NoSuchName);
    const NO_RECORDS: Verdict = Verdict::Refuse(ResponseCode::NoRecords);
    const PTR: u16 = 12;

    #[test]
    fn names_that_a_rule_can_match_are_forwarded_for_types_of_the_list() {
        for kind in [1, 28, 15, 16, 33, 257] {
            assert_eq!(decide("db.example", kind), Verdict::Forward, "{kind}");
            assert_eq!(decide("no.elsewhere", kind), Verdict::NotAllowed, "{kind}");
        }
        for kind in [0, 41, 249, 255, 9999, 65400] {
            let refused = Verdict::Refuse(ResponseCode::NotImplemented);
            assert_eq!(decide("db.example", kind), refused, "{kind}");
            assert_eq!(decide("5.0.7.10.in-addr.arpa", kind), refused, "{kind}");
            assert_eq!(decide("no.elsewhere", kind), Verdict::NotAllowed, "{kind}");
        }
    }

    #[test]
    fn a_program_that_searches_goes_on_to_its_next_domain() {
        assert_eq!(decide("db.example.svc.cluster.local", 1), NO_SUCH_NAME);
        assert_eq!(decide("no.example", 1), NO_SUCH_NAME);
        assert_eq!(decide("example", 1), Verdict::NotAllowed, "the domain itself was not searched");
        assert_eq!(decide("noexample", 1), Verdict::NotAllowed);
    }

    #[test]
    fn where_every_name_may_be_resolved_only_names_with_rules_are_restricted() {
        let decide = |kind, has_rules| {
            let question = DnsQuestion { name: "db.example".into(), kind, class: 1 };
            open_verdict(&question, |_| has_rules)
        };
        for kind in [1, 28, PTR, 16] {
            assert_eq!([decide(kind, true), decide(kind, false)], [Verdict::Forward; 2], "{kind}");
        }
        for kind in [HTTPS, SVCB] {
            assert_eq!([decide(kind, true), decide(kind, false)], [NO_RECORDS, Verdict::Forward]);
        }
        let unknown = Verdict::Refuse(ResponseCode::NotImplemented);
        assert_eq!([decide(255, true), decide(255, false)], [unknown, Verdict::Forward]);
        assert_eq!([decide(252, true), decide(251, false)], [REFUSED; 2]);
    }

    #[test]
    fn hints_at_addresses_are_left_out() {
        assert_eq!([decide("db.example", 64), decide("db.example", 65)], [NO_RECORDS; 2]);
    }

    #[test]
    fn zones_and_other_classes_are_refused() {
        assert_eq!([decide("db.example", 251), decide("db.example", 252)], [REFUSED; 2]);
        let chaos = DnsQuestion { name: "db.example".into(), kind: 16, class: 3 };
        assert_eq!(verdict(&chaos, &[], |_| true, |_| true), REFUSED);
    }

    #[test]
    fn an_address_is_asked_for_backwards_if_a_rule_can_match_it() {
        assert_eq!(decide("5.0.7.10.in-addr.arpa", PTR), Verdict::Forward);
        for no in ["6.0.7.10.in-addr.arpa", "7.10.in-addr.arpa", "1.5.0.7.10.in-addr.arpa"] {
            assert_eq!(decide(no, PTR), REFUSED, "{no}");
        }
        let six = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa";
        assert_eq!(decide(six, PTR), Verdict::Forward);
        assert_eq!(address(six), Some("2001:db8::1".parse().unwrap()));
        assert_eq!(decide(&format!("1.{six}"), PTR), REFUSED);
        assert_eq!(decide(&six[2..], PTR), REFUSED);
        assert_eq!(decide(&six.replacen("1.", "+1.", 1), PTR), REFUSED);
    }
}
