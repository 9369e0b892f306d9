//! Computes the destinations that a program under `tacit run` may reach with a handed socket. A
//! handed socket is a socket that the agent opens in its own network namespace, and then passes to
//! the program.
//!
//! The helper process intercepts the program's `connect` calls, and asks the agent only about these
//! destinations. The result may contain more destinations than necessary. If a rule selects
//! destinations by DNS name, the result contains all addresses. The order of rules is ignored.
//! Conditions on time, program and user are ignored too.

use super::{CaptureRange, Family, Span, address, family_and_bits, ports};
use crate::dns::AliasPolicy;
use crate::policy::content::Policy;
use crate::policy::rule::{PathChoice, Rule};
use crate::policy::selector::AddressSelector;

/// The maximum number of ranges. A policy that needs more gets all destinations.
pub const HANDABLE_RANGES_MAX: usize = 256;

/// The destinations, in the order of the rules; they may overlap.
#[must_use]
pub fn handable(policy: &Policy) -> Vec<CaptureRange> {
    if policy.selects_local() {
        return Vec::new();
    }
    let may_hand = |rule: &Rule| policy.path_of(rule) == PathChoice::Auto && rule.idle.is_none();
    let mut ranges = Vec::new();
    for rule in policy.rules.iter().filter(|rule| may_hand(rule)) {
        let ports = ports(rule);
        let parts =
            |span: Span| ports.iter().map(move |ports| range(span, *ports.start(), *ports.end()));
        ranges.extend(spans(rule).into_iter().flat_map(parts));
        if ranges.len() > HANDABLE_RANGES_MAX {
            return all().map(|span| range(span, 0, u16::MAX)).into();
        }
    }
    // A rule by address may match the true address of an alias.
    let aliases = policy.agent.aliases;
    if !ranges.is_empty() && aliases.given != AliasPolicy::Never {
        ranges.extend(aliases.ranges.first_and_last().map(|(first, last)| {
            let (family, first) = family_and_bits(first);
            range(Span { family, first, last: family_and_bits(last).1 }, 0, u16::MAX)
        }));
    }
    ranges
}

fn spans(rule: &Rule) -> Vec<Span> {
    let remote = &rule.selectors.remote;
    let is_name = |selector: &AddressSelector| matches!(selector, AddressSelector::Name { .. });
    if remote.is_empty() || remote.iter().any(is_name) {
        return all().into();
    }
    remote.iter().flat_map(AddressSelector::spans).collect()
}

fn all() -> [Span; 2] {
    let whole = |family, last| Span { family, first: 0, last };
    [whole(Family::V4, u32::MAX.into()), whole(Family::V6, u128::MAX)]
}

fn range(Span { family, first, last }: Span, first_port: u16, last_port: u16) -> CaptureRange {
    let [first, last] = [first, last].map(|bits| address(bits, family));
    CaptureRange { udp: false, first, last, first_port, last_port }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::policy::parse;

    fn found(rules: &[&str]) -> Vec<CaptureRange> {
        let mut text = "version = 1\n[trust.ca]\nca = \"ca.pem\"\n".to_owned();
        for (number, rule) in rules.iter().enumerate() {
            text += &format!("[[rule]]\nname = \"r{number}\"\ndirection = \"outbound\"\n{rule}\n");
        }
        handable(&parse(&text).policy.unwrap())
    }

    fn has(ranges: &[CaptureRange], remote: &str) -> bool {
        let remote: SocketAddr = remote.parse().unwrap();
        ranges.iter().any(|range| range.contains(remote))
    }

    #[test]
    fn only_destinations_that_a_permit_may_match_are_handable() {
        let ranges = found(&[
            "remote = \"10.0.0.0/8\"\nremote-ports = [80]\npermit = true",
            "remote = \"192.0.2.1\"\npermit = true\npath = \"relay\"",
            "remote = \"192.0.2.2\"\npermit = true\nidle = \"1h\"",
            "remote = \"192.0.2.3\"\ntls = { trust = \"ca\" }",
            "remote = \"192.0.2.4\"\nprotocol = \"udp\"\npermit = true",
        ]);
        assert!(has(&ranges, "10.1.2.3:80"));
        assert!(has(&ranges, "198.18.0.1:443"), "an alias");
        for no in ["10.1.2.3:81", "11.0.0.0:80", "192.0.2.1:80", "192.0.2.2:80", "192.0.2.3:80"] {
            assert!(!has(&ranges, no), "{no}");
        }
        assert!(!has(&ranges, "192.0.2.4:80"));
        assert!(!has(&ranges, "[2001:db8::1]:80"));
    }

    #[test]
    fn a_name_may_have_any_address() {
        let ranges = found(&["remote = \"db.example\"\nremote-ports = [5432]\npermit = true"]);
        assert!(has(&ranges, "203.0.113.9:5432") && has(&ranges, "[2001:db8::1]:5432"));
        assert!(!has(&ranges, "203.0.113.9:80"));
    }

    #[test]
    fn a_policy_without_a_permit_has_none_and_a_large_one_has_all() {
        assert_eq!(found(&["tls = { trust = \"ca\" }"]), []);
        let many: Vec<_> = (0..=HANDABLE_RANGES_MAX)
            .map(|n| format!("remote = \"10.0.{}.{}\"\npermit = true", n / 200, n % 200))
            .collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        let ranges = found(&many);
        assert!(ranges.len() == 2 && has(&ranges, "203.0.113.9:1") && has(&ranges, "[::1]:1"));
    }

    #[test]
    fn a_rule_by_the_address_of_sockets_prevents_all() {
        let ranges = found(&["permit = true", "local-ports = [99]\ndeny = true"]);
        assert_eq!(ranges, []);
    }
}
