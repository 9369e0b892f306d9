//! Converts policy rules with DNS names to sets of addresses in the kernel, for `tacit agent
//! --host`. The kernel cannot match DNS names, so the agent adds the addresses of the names to
//! these sets.
//!
//! A *part* is a group of ports to which the same rules apply. The kernel has a map from ports to
//! parts, and a set of pairs. Each pair contains an address and a part: packets to this address
//! are captured if their port is in this part.
//!
//! ```text
//!   rule in the policy       map: port -> part     set, if db.example has the address 10.0.0.5
//!   *.example, port 443      443  -> 0             (10.0.0.5, 0)
//!   db.example, port 5432    5432 -> 1             (10.0.0.5, 1)
//! ```
//!
//! Both rules match the name `db.example`, so the set contains its address once for each part.
//!
//! Limits: [`PORT_PARTS_MAX`] parts, [`NAMED_PORTS_MAX`] ranges of ports.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::{JoinedRun, is_of_host, is_open, plain, ports};
use crate::flow::Protocol;
use crate::policy::content::Policy;
use crate::policy::rule::Rule;
use crate::policy::selector::AddressSelector;

/// The maximum number of parts into which rules by name divide the ports.
pub const PORT_PARTS_MAX: usize = 64;
/// The maximum number of port ranges of rules by name.
pub const NAMED_PORTS_MAX: usize = 1024;

/// Ports for which the same rules by name exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NamedPorts {
    /// The transport.
    pub udp: bool,
    /// The lowest port.
    pub first_port: u16,
    /// The highest port.
    pub last_port: u16,
    /// Their part.
    pub part: u32,
}

/// An address with a name for which rules exist at the ports of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NamedAddress {
    /// The address.
    pub address: IpAddr,
    /// The part.
    pub part: u32,
    /// How long it is captured; `None` if the name is in the host's `/etc/hosts`.
    pub seconds: Option<u64>,
}

/// A name with rules and one of its addresses, as the kernel keeps them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct HostName {
    /// The address.
    pub address: IpAddr,
    /// The name in lower case, without a final dot.
    pub name: String,
    /// How long it is kept, in seconds.
    pub seconds: u64,
}

/// The rules by name that a name matches, by their number in the policy. Flows to names with equal
/// sets get the same decision.
pub type RuleSet = Vec<u32>;

/// The rules by name of a policy at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameRules {
    exact: HashMap<String, RuleSet>,
    below: HashMap<String, RuleSet>,
    ports: Vec<NamedPorts>,
    /// The parts of each rule; none outside its time window.
    parts: HashMap<u32, Vec<u32>>,
}

impl NameRules {
    /// The rules by name of a policy at a time, in seconds since 1970; `None` if there are none.
    #[must_use]
    pub fn of(policy: &Policy, unix_s: i64) -> Option<Self> {
        let rules = policy.rules.iter().map(|rule| &**rule);
        Self::new(rules, is_by_name, |rule| is_open(rule, unix_s))
    }

    /// The same of the rules for a joined namespace.
    #[must_use]
    pub fn of_joined(policy: &Policy, joined: JoinedRun<'_>, unix_s: i64) -> Option<Self> {
        let rules = policy.rules.iter().map(|rule| &**rule);
        let applies = |rule: &Rule| joined.has(rule) && has_name(rule);
        Self::new(rules, applies, |rule| is_open(rule, unix_s))
    }

    /// The same of all rules, as if every time window were open.
    pub(in crate::policy) fn always<'r>(rules: impl Iterator<Item = &'r Rule>) -> Option<Self> {
        Self::new(rules, is_by_name, |_| true)
    }

    fn new<'r>(
        rules: impl Iterator<Item = &'r Rule>,
        applies: impl Fn(&Rule) -> bool,
        is_open: impl Fn(&Rule) -> bool,
    ) -> Option<Self> {
        let mut all = Self::default();
        let mut open = Vec::new();
        for (number, rule) in (0..).zip(rules).filter(|(_, rule)| applies(rule)) {
            for selector in &rule.selectors.remote {
                let AddressSelector::Name { host, wildcard } = selector else { continue };
                let map = if *wildcard { &mut all.below } else { &mut all.exact };
                map.entry(host.clone()).or_default().push(number);
            }
            if is_open(rule) {
                open.push((number, rule));
            }
        }
        if all.exact.is_empty() && all.below.is_empty() {
            return None;
        }
        let mut parts = Parts::default();
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let of_protocol = open.iter().filter(|(_, rule)| rule.selectors.protocol == protocol);
            let of_protocol: Vec<_> =
                of_protocol.map(|(number, rule)| (*number, ports(rule))).collect();
            parts.divide(protocol, &of_protocol);
        }
        all.ports = parts.ports;
        for (rules, part) in parts.numbers {
            for rule in rules {
                all.parts.entry(rule).or_default().push(part);
            }
        }
        Some(all)
    }

    /// The ports of rules that are open; disjoint.
    #[must_use]
    pub fn ports(&self) -> &[NamedPorts] {
        &self.ports
    }

    /// Whether the rules divide the ports into more parts or ranges than the limits allow.
    pub(in crate::policy) fn are_too_many(&self) -> bool {
        let parts: BTreeSet<u32> = self.ports.iter().map(|one| one.part).collect();
        parts.len() > PORT_PARTS_MAX || self.ports.len() > NAMED_PORTS_MAX
    }

    /// The rules that a name matches, in order, those outside their time windows too. The cost does
    /// not grow with the number of rules.
    #[must_use]
    pub fn rules_of(&self, name: &str) -> RuleSet {
        let name = plain(name);
        let mut found: BTreeSet<u32> =
            self.exact.get(&*name).into_iter().flatten().copied().collect();
        for (at, _) in name.match_indices('.').filter(|(at, _)| *at > 0) {
            found.extend(self.below.get(&name[at + 1..]).into_iter().flatten());
        }
        found.into_iter().collect()
    }

    /// The parts in which some of these rules applies now.
    #[must_use]
    pub fn parts(&self, rules: &[u32]) -> BTreeSet<u32> {
        rules.iter().filter_map(|rule| self.parts.get(rule)).flatten().copied().collect()
    }
}

/// Whether a rule applies to flows that programs of the host open to destinations by name.
pub(in crate::policy) fn is_by_name(rule: &Rule) -> bool {
    is_of_host(rule) && has_name(rule)
}

fn has_name(rule: &Rule) -> bool {
    let mut remote = rule.selectors.remote.iter();
    remote.any(|one| matches!(one, AddressSelector::Name { .. }))
}

/// Ports with the rules that apply to them.
#[derive(Default)]
struct Parts {
    ports: Vec<NamedPorts>,
    /// The part of each set of rules.
    numbers: BTreeMap<RuleSet, u32>,
}

impl Parts {
    /// Divides the ports of one transport.
    fn divide(&mut self, protocol: Protocol, rules: &[(u32, &[RangeInclusive<u16>])]) {
        let ranges = || rules.iter().flat_map(|(_, ranges)| *ranges);
        let ends = ranges().filter_map(|range| range.end().checked_add(1));
        let starts: BTreeSet<u16> = ranges().map(|range| *range.start()).chain(ends).collect();
        let next = starts.iter().skip(1).map(|next| next - 1).chain([u16::MAX]);
        for (first_port, last_port) in starts.iter().copied().zip(next) {
            let about = |ranges: &[RangeInclusive<u16>]| {
                ranges.iter().any(|range| range.contains(&first_port))
            };
            let found = rules.iter().filter(|(_, ranges)| about(ranges));
            let found: RuleSet = found.map(|(number, _)| *number).collect();
            if found.is_empty() {
                continue;
            }
            // A policy has fewer rules than a number of 32 bits counts.
            let new = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
            let part = *self.numbers.entry(found).or_insert(new);
            let udp = protocol == Protocol::Udp;
            self.ports.push(NamedPorts { udp, first_port, last_port, part });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::parse;

    fn rules(texts: &[&str]) -> Option<NameRules> {
        let rule = |(at, body): (usize, &&str)| {
            format!("[[rule]]\nname = \"r{at}\"\ndirection = \"outbound\"\n{body}\n")
        };
        let rules: String = texts.iter().enumerate().map(rule).collect();
        let parsed = parse(&format!("version = 1\n[host]\nunmatched = \"permit\"\n{rules}"));
        NameRules::of(&parsed.policy.unwrap_or_else(|| panic!("{:?}", parsed.diagnostics)), 0)
    }

    fn shown(rules: &NameRules) -> Vec<(bool, u16, u16, u32)> {
        let ports = rules.ports().iter();
        ports.map(|one| (one.udp, one.first_port, one.last_port, one.part)).collect()
    }

    #[test]
    fn ports_are_divided_by_the_rules_that_are_about_them() {
        let rules = rules(&[
            "remote = \"db.example\"\nremote-ports = [5432, 443]\ndeny = true",
            "remote = [\"*.example\", \"10.0.0.1\"]\nremote-ports = \"400-500\"\ndeny = true",
            "remote = \"10.0.0.2\"\nremote-ports = 80\ndeny = true",
            "remote = \"time.example\"\nprotocol = \"udp\"\ndeny = true",
            "remote = \"run.example\"\nrun = \"job\"\ndeny = true",
        ]);
        let rules = rules.unwrap();
        let expected = [
            (false, 400, 442, 0),
            (false, 443, 443, 1),
            (false, 444, 500, 0),
            (false, 5432, 5432, 2),
            (true, 1, 65_535, 3),
        ];
        assert_eq!(shown(&rules), expected);
        for (name, found, parts) in [
            ("db.example", &[0, 1][..], &[0, 1, 2][..]),
            ("DB.example.", &[0, 1], &[0, 1, 2]),
            ("a.b.example", &[1], &[0, 1]),
            ("time.example", &[1, 3], &[0, 1, 3]),
            ("example", &[], &[]),
            ("run.example.org", &[], &[]),
        ] {
            assert_eq!(rules.rules_of(name), found, "{name}");
            let found: Vec<_> = rules.parts(found).into_iter().collect();
            assert_eq!(found, parts, "{name}");
        }
    }

    #[test]
    fn a_policy_without_rules_by_name_has_none() {
        let by_run = "remote = \"run.example\"\nrun = \"job\"\ndeny = true";
        assert_eq!(rules(&["remote = \"10.0.0.1\"\ndeny = true", by_run]), None);
    }

    #[test]
    fn a_rule_outside_its_window_has_names_and_no_ports() {
        // 1970-01-01 was a Thursday.
        let closed = rules(&[
            "remote = \"db.example\"\nwhen = { days = \"mon\", zone = \"UTC\" }\ndeny = true",
        ]);
        let closed = closed.unwrap();
        assert_eq!(closed.rules_of("db.example"), [0]);
        assert!(closed.ports().is_empty() && closed.parts(&[0]).is_empty());
    }

    #[test]
    fn a_policy_with_too_many_parts_is_rejected() {
        let text = |count: usize| {
            let rule = |at: usize| {
                format!(
                    "[[rule]]\nname = \"r{at}\"\ndirection = \"outbound\"\n\
                     remote = \"n{at}.example\"\nremote-ports = {}\ndeny = true\n",
                    at + 1
                )
            };
            let rules: String = (0..count).map(rule).collect();
            format!("version = 1\n[host]\nunmatched = \"deny\"\n{rules}")
        };
        assert!(parse(&text(PORT_PARTS_MAX)).policy.is_some());
        let refused = parse(&text(PORT_PARTS_MAX + 1));
        assert!(refused.policy.is_none());
        assert!(
            refused.diagnostics[0].message.contains("limits are 64 groups"),
            "{:?}",
            refused.diagnostics
        );
    }

    proptest! {
        #[test]
        fn a_part_holds_a_port_exactly_for_the_rules_of_it(
            ranges in prop::collection::vec((1_u16..40, 0_u16..9), 1..6),
        ) {
            let texts: Vec<_> = ranges.iter().enumerate().map(|(at, (low, more))| {
                let high = low + more;
                format!("remote = \"n{at}.example\"\nremote-ports = \"{low}-{high}\"\ndeny = true")
            }).collect();
            let rules = rules(&texts.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
            for port in 1_u16..60 {
                let mut holding = rules.ports().iter();
                let part = holding.find(|one| (one.first_port..=one.last_port).contains(&port));
                for (at, (low, more)) in ranges.iter().enumerate() {
                    let parts = rules.parts(&rules.rules_of(&format!("n{at}.example")));
                    let is_captured = part.is_some_and(|one| parts.contains(&one.part));
                    prop_assert_eq!(is_captured, (*low..=low + more).contains(&port));
                }
            }
        }
    }
}
