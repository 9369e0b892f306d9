//! Which destinations a run's traffic may reach at all: those that some rule other than a deny can
//! match. The kernel captures them and rejects everything else at once, with an honest error.
//!
//! The kernel's sets want boxes of addresses and ports that do not overlap; [`captured`] cuts the
//! rules' boxes along each other's edges and joins what can be joined.
//!
//! A rule by name gives no box by itself: the addresses that DNS gives the name come in as
//! `learnt`. Loopback and link-local addresses are captured only where a rule names them, as it
//! matches them; multicast and unspecified ones only where a rule gives addresses.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use super::selector::{AddressSelector, Family, Near, Span, family_and_bits};
use super::{Action, Policy, Rule};
use crate::flow::{Direction, Protocol};

/// Boxes that are computed at most; a policy that needs more is refused where it is installed.
pub const BOXES_MAX: usize = 65_536;

/// All addresses from the first to the last with all ports from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Captured {
    /// The transport.
    pub udp: bool,
    /// The lowest address.
    pub first: IpAddr,
    /// The highest address, of the same family.
    pub last: IpAddr,
    /// The lowest port.
    pub first_port: u16,
    /// The highest port.
    pub last_port: u16,
}

/// The boxes of a policy at a time, in seconds since 1970; disjoint and in order. `learnt` are
/// addresses with the names they have.
#[must_use]
pub fn captured<'a>(
    policy: &Policy,
    learnt: impl IntoIterator<Item = (IpAddr, &'a str)>,
    unix_s: i64,
) -> Vec<Captured> {
    let learnt: Vec<_> = learnt.into_iter().collect();
    let rules = policy.rules.iter().filter(|rule| can_pass(rule, unix_s));
    let mut planes: BTreeMap<(bool, Family), Vec<Area>> = BTreeMap::new();
    for rule in rules {
        let udp = rule.selectors.protocol == Protocol::Udp;
        for Span { family, first, last } in spans(rule, &learnt) {
            let plane = planes.entry((udp, family)).or_default();
            plane.push(Area { first, last, ports: ports(rule) });
        }
    }
    let disjoint = planes.into_iter().flat_map(|((udp, family), areas)| {
        cut(&areas).into_iter().map(move |(first, last, first_port, last_port)| Captured {
            udp,
            first: address(first, family),
            last: address(last, family),
            first_port,
            last_port,
        })
    });
    disjoint.collect()
}

/// Whether some rule other than a deny can match a flow to a host of that name at a time, in
/// seconds since 1970.
#[must_use]
pub fn can_match_name(policy: &Policy, name: &str, unix_s: i64) -> bool {
    policy.rules.iter().filter(|rule| can_pass(rule, unix_s)).any(|rule| {
        let remote = &rule.selectors.remote;
        remote.is_empty()
            || remote.iter().any(|selector| match selector {
                AddressSelector::Name { .. } => selector.matches(None, &[name.to_owned()]),
                // Any name may turn out to have an address in there; but names are not asked for
                // only because they might lead to this host or link.
                AddressSelector::Prefix { .. } | AddressSelector::Range { .. } => {
                    selector.near().is_none()
                }
                AddressSelector::Near(_) => false,
            })
    })
}

fn can_pass(rule: &Rule, unix_s: i64) -> bool {
    rule.fixed.is_none()
        && rule.selectors.direction == Direction::Outbound
        && rule.action != Action::Deny
        && rule.selectors.when.as_ref().is_none_or(|when| when.is_open(unix_s))
}

/// One rule's addresses with its ports, as numbers.
#[derive(Clone, Debug)]
struct Area {
    first: u128,
    last: u128,
    ports: Vec<(u16, u16)>,
}

fn ports(rule: &Rule) -> Vec<(u16, u16)> {
    match rule.selectors.remote_ports.as_slice() {
        [] => vec![(1, u16::MAX)],
        ranges => ranges.iter().map(|range| (*range.start(), *range.end())).collect(),
    }
}

fn spans(rule: &Rule, learnt: &[(IpAddr, &str)]) -> Vec<Span> {
    if rule.selectors.remote.is_empty() {
        return public();
    }
    let mut all = Vec::new();
    for selector in &rule.selectors.remote {
        if let AddressSelector::Name { .. } = selector {
            let named =
                learnt.iter().filter(|(_, name)| selector.matches(None, &[(*name).to_owned()]));
            let far = named.filter(|(ip, _)| Near::of(*ip).is_none());
            all.extend(far.map(|(ip, _)| {
                let (family, bits) = family_and_bits(*ip);
                Span { family, first: bits, last: bits }
            }));
        } else if selector.near().is_some() {
            all.extend(selector.spans());
        } else {
            all.extend(selector.spans().flat_map(without_near));
        }
    }
    all
}

/// Everything a rule without addresses is about: not this host, not this link, not many at once.
fn public() -> Vec<Span> {
    let v4 = |first: [u8; 4], last: [u8; 4]| {
        let [first, last] = [first, last].map(|ip| u32::from_be_bytes(ip).into());
        Span { family: Family::V4, first, last }
    };
    vec![
        v4([1, 0, 0, 0], [126, 255, 255, 255]),
        v4([128, 0, 0, 0], [169, 253, 255, 255]),
        v4([169, 255, 0, 0], [223, 255, 255, 255]),
        // 0::/16 holds the unspecified, the loopback and the mapped addresses.
        Span { family: Family::V6, first: 1 << 112, last: (0xfe80 << 112) - 1 },
    ]
}

/// What is left of addresses when those that must be named are taken out.
fn without_near(span: Span) -> Vec<Span> {
    let mut left = vec![span];
    for near in Near::ALL.into_iter().flat_map(Near::spans) {
        left = left.into_iter().flat_map(|span| without(span, near)).flatten().collect();
    }
    left
}

/// What of the span lies before and after the hole.
fn without(span: Span, hole: Span) -> [Option<Span>; 2] {
    if span.family != hole.family || hole.last < span.first || span.last < hole.first {
        return [Some(span), None];
    }
    let before = (span.first < hole.first).then(|| Span { last: hole.first - 1, ..span });
    let after = (hole.last < span.last).then(|| Span { first: hole.last + 1, ..span });
    [before, after]
}

fn address(bits: u128, family: Family) -> IpAddr {
    match family {
        // Spans of this family were made from IPv4 addresses, so the number fits.
        Family::V4 => Ipv4Addr::from_bits(u32::try_from(bits).unwrap_or(u32::MAX)).into(),
        Family::V6 => Ipv6Addr::from_bits(bits).into(),
    }
}

/// Cuts areas into strips of addresses along all their edges, joins the ports within a strip, and
/// joins neighbouring strips with the same ports.
fn cut(areas: &[Area]) -> Vec<(u128, u128, u16, u16)> {
    let mut edges: Vec<u128> = areas
        .iter()
        .flat_map(|area| [Some(area.first), area.last.checked_add(1)])
        .flatten()
        .collect();
    edges.sort_unstable();
    edges.dedup();
    let mut strips: Vec<Area> = Vec::new();
    for (at, &first) in edges.iter().enumerate() {
        let within = areas.iter().filter(|area| area.first <= first && first <= area.last);
        let ports = join(within.flat_map(|area| area.ports.iter().copied()).collect());
        if ports.is_empty() {
            continue;
        }
        let last = edges.get(at + 1).map_or(u128::MAX, |next| next - 1);
        match strips.last_mut() {
            Some(strip) if strip.last.checked_add(1) == Some(first) && strip.ports == ports => {
                strip.last = last;
            }
            _ => strips.push(Area { first, last, ports }),
        }
    }
    strips
        .into_iter()
        .flat_map(|Area { first, last, ports }| {
            ports.into_iter().map(move |(low, high)| (first, last, low, high))
        })
        .take(BOXES_MAX)
        .collect()
}

/// Sorted, without overlaps or neighbours.
fn join(mut ranges: Vec<(u16, u16)>) -> Vec<(u16, u16)> {
    ranges.sort_unstable();
    let mut joined: Vec<(u16, u16)> = Vec::new();
    for (low, high) in ranges {
        match joined.last_mut() {
            Some((_, end)) if low <= end.saturating_add(1) => *end = (*end).max(high),
            _ => joined.push((low, high)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    use proptest::prelude::*;

    use crate::flow::{Address, Flow};
    use crate::policy::parse;

    fn policy(rules: &str) -> Policy {
        let parsed = parse(&format!("version = 1\n{rules}"));
        parsed.policy.unwrap_or_else(|| panic!("{:?}", parsed.diagnostics))
    }

    fn show(boxes: &[Captured]) -> Vec<String> {
        let one = |b: &Captured| {
            let protocol = if b.udp { "udp" } else { "tcp" };
            format!("{protocol} {}-{} {}-{}", b.first, b.last, b.first_port, b.last_port)
        };
        boxes.iter().map(one).collect()
    }

    const DB: &str = r#"
        [[rule]]
        name = "no"
        direction = "outbound"
        remote = "10.7.3.0/24"
        deny = true
        [[rule]]
        name = "db"
        direction = "outbound"
        remote = ["10.7.0.0/16", "*.corp.example"]
        remote-ports = [5432, "6000-6100"]
        permit = true
        [[rule]]
        name = "dns"
        direction = "outbound"
        protocol = "udp"
        remote = "10.0.0.53"
        remote-ports = 53
        permit = true
    "#;

    #[test]
    fn boxes_are_those_of_the_rules_that_pass() {
        assert_eq!(
            show(&captured(&policy(DB), [], 0)),
            [
                "tcp 10.7.0.0-10.7.255.255 5432-5432",
                "tcp 10.7.0.0-10.7.255.255 6000-6100",
                "udp 10.0.0.53-10.0.0.53 53-53",
            ]
        );
    }

    #[test]
    fn a_name_brings_its_addresses_with_the_ports_of_its_rule() {
        let learnt = [
            ("192.0.2.9".parse().unwrap(), "db.corp.example"),
            ("192.0.2.10".parse().unwrap(), "elsewhere.example"),
            ("2001:db8::9".parse().unwrap(), "a.db.corp.example"),
        ];
        let boxes = show(&captured(&policy(DB), learnt, 0));
        assert!(boxes.contains(&"tcp 192.0.2.9-192.0.2.9 5432-5432".to_owned()), "{boxes:?}");
        assert!(boxes.contains(&"tcp 2001:db8::9-2001:db8::9 6000-6100".to_owned()), "{boxes:?}");
        assert!(!boxes.iter().any(|one| one.contains("192.0.2.10")), "{boxes:?}");
    }

    #[test]
    fn a_rule_without_addresses_is_not_about_this_host_or_this_link() {
        let open = "[[rule]]\nname = \"all\"\ndirection = \"outbound\"\npermit = true\n";
        let boxes = captured(&policy(open), [], 0);
        let inside = |text: &str| {
            let address: IpAddr = text.parse().unwrap();
            boxes.iter().any(|b| {
                b.first.is_ipv6() == address.is_ipv6() && b.first <= address && address <= b.last
            })
        };
        for yes in ["1.1.1.1", "10.0.0.1", "223.255.255.255", "2001:db8::1", "fd00::1"] {
            assert!(inside(yes), "{yes}");
        }
        for no in
            ["127.0.0.1", "169.254.169.254", "224.0.0.1", "0.0.0.0", "::1", "fe80::1", "ff02::1"]
        {
            assert!(!inside(no), "{no}");
        }
    }

    #[test]
    fn this_host_and_this_link_are_captured_only_where_they_are_named() {
        let to = |remote: &str| {
            let rule = format!(
                "[[rule]]\nname = \"r\"\ndirection = \"outbound\"\n\
                                remote = {remote}\nremote-ports = 80\npermit = true\n"
            );
            show(&captured(&policy(&rule), [("127.0.0.1".parse().unwrap(), "evil.example")], 0))
        };
        assert_eq!(
            to("\"0.0.0.0/0\""),
            [
                "tcp 0.0.0.0-126.255.255.255 80-80",
                "tcp 128.0.0.0-169.253.255.255 80-80",
                "tcp 169.255.0.0-255.255.255.255 80-80",
            ]
        );
        assert_eq!(to("\"evil.example\""), [""; 0], "whoever answers DNS does not lead here");
        assert_eq!(to("[\"evil.example\", \"127.0.0.1\"]"), ["tcp 127.0.0.1-127.0.0.1 80-80"]);
        assert_eq!(
            to("[\"loopback\", \"link-local\"]"),
            [
                "tcp 127.0.0.0-127.255.255.255 80-80",
                "tcp 169.254.0.0-169.254.255.255 80-80",
                "tcp ::1-::1 80-80",
                "tcp fe80::-febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff 80-80",
            ]
        );
    }

    #[test]
    fn a_rule_outside_its_window_captures_nothing_and_has_no_name_asked_for() {
        let weekend = "[[rule]]\nname = \"n\"\ndirection = \"outbound\"\n\
                       remote = [\"a.example\", \"10.0.0.1\"]\n\
                       when = { days = \"sat-sun\", zone = \"UTC\" }\npermit = true\n";
        let weekend = policy(weekend);
        let (thursday, saturday) = (0, 2 * 86_400);
        assert_eq!(show(&captured(&weekend, [], thursday)), [""; 0]);
        assert_eq!(show(&captured(&weekend, [], saturday)), ["tcp 10.0.0.1-10.0.0.1 1-65535"]);
        assert!(!can_match_name(&weekend, "a.example", thursday));
        assert!(can_match_name(&weekend, "a.example", saturday));
        assert_eq!(weekend.open_windows(thursday), [false]);
        assert_eq!(weekend.open_windows(saturday), [true]);
        assert_eq!(policy(DB).open_windows(thursday), [false; 0]);
    }

    #[test]
    fn names_are_asked_for_only_if_a_rule_can_match_them() {
        let by_name = "[[rule]]\nname = \"n\"\ndirection = \"outbound\"\n\
                       remote = \"*.corp.example\"\nremote-ports = 443\npermit = true\n";
        let by_name = policy(by_name);
        assert!(can_match_name(&by_name, "db.corp.example", 0));
        assert!(!can_match_name(&by_name, "example.org", 0));
        assert!(can_match_name(&policy(DB), "example.org", 0), "it may have an address in 10.7/16");
        let here = "[[rule]]\nname = \"n\"\ndirection = \"outbound\"\n\
                    remote = [\"loopback\", \"169.254.169.254\"]\npermit = true\n";
        assert!(!can_match_name(&policy(here), "example.org", 0), "that would be known by address");
    }

    /// What rules may say of the far end, and where they meet.
    const REMOTES: &[&str] = &[
        "0.0.0.0/0",
        "126.0.0.0/7",
        "10.0.0.0/8",
        "10.0.0.1",
        "10.0.0.1-10.0.0.3",
        "127.0.0.0/30",
        "127.0.0.2-127.0.0.9",
        "127.255.255.254-128.0.0.1",
        "loopback",
        "link-local",
        "169.254.169.254",
        "169.254.0.0/15",
        "::/0",
        "::/127",
        "::1",
        "fe80::/9",
        "fe80::1",
        "a.example",
        "*.example",
        "b.a.example",
    ];
    const LEARNT: &[(&str, &str)] = &[
        ("10.0.0.1", "a.example"),
        ("10.0.0.1", "b.a.example"),
        ("127.0.0.1", "a.example"),
        ("169.254.169.254", "b.a.example"),
        ("::1", "x.example"),
        ("fd00::1", "x.example"),
        ("192.0.2.1", "elsewhere"),
    ];
    const PROBES: &[&str] = &[
        "10.0.0.1",
        "10.0.0.2",
        "10.0.0.4",
        "126.0.0.1",
        "127.0.0.1",
        "127.0.0.2",
        "127.0.0.5",
        "127.255.255.255",
        "128.0.0.0",
        "128.0.0.2",
        "169.254.169.254",
        "169.255.0.1",
        "192.0.2.1",
        "1::",
        "::1",
        "fd00::1",
        "fe80::1",
    ];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_is_captured_is_what_some_rule_lets_through(
            rules in prop::collection::vec(
                (
                    prop::collection::vec(prop::sample::select(REMOTES), 0..4),
                    1_u16..4,
                    0_u16..3,
                    any::<bool>(),
                ),
                1..7,
            ),
        ) {
            let text: String = rules.iter().enumerate().map(|(at, (remote, port, wide, permit))| {
                let remote = match remote.as_slice() {
                    [] => String::new(),
                    remote => format!("remote = {remote:?}\n"),
                };
                let action = if *permit { "permit" } else { "deny" };
                format!("[[rule]]\nname = \"r{at}\"\ndirection = \"outbound\"\n{remote}\
                         remote-ports = \"{port}-{}\"\n{action} = true\n", port + wide)
            }).collect();
            let policy = policy(&text);
            let learnt = LEARNT.iter().map(|(ip, name)| (ip.parse().unwrap(), *name));
            let boxes = captured(&policy, learnt, 0);
            for ip in PROBES.iter().map(|ip| ip.parse::<IpAddr>().unwrap()) {
                let known = LEARNT.iter().filter(|(of, _)| of.parse() == Ok(ip));
                let names: Vec<String> = known.map(|(_, name)| (*name).to_owned()).collect();
                for port in 1..7 {
                    let flow = Flow {
                        direction: Direction::Outbound,
                        protocol: Protocol::Tcp,
                        listen: None,
                        local: Address::Unnamed,
                        remote: SocketAddr::new(ip, port).into(),
                        remote_names: names.clone(),
                        program: None,
                        user: None,
                        at_unix_s: 0,
                    };
                    let wanted = policy.rules.iter().any(|rule| {
                        rule.action != Action::Deny && rule.matches(&flow).is_ok()
                    });
                    let found = boxes.iter().filter(|b| {
                        b.first.is_ipv6() == ip.is_ipv6() && (b.first..=b.last).contains(&ip)
                            && (b.first_port..=b.last_port).contains(&port)
                    }).count();
                    prop_assert_eq!(found, usize::from(wanted), "{} {} {}", text, ip, port);
                }
            }
        }

        #[test]
        fn boxes_are_disjoint_and_cover_exactly_the_areas(
            areas in prop::collection::vec((0_u128..40, 0_u128..12, 1_u16..30, 0_u16..10), 0..8),
        ) {
            let areas: Vec<Area> = areas
                .into_iter()
                .map(|(first, more, port, wide)| Area {
                    first,
                    last: first + more,
                    ports: vec![(port, port + wide)],
                })
                .collect();
            let boxes = cut(&areas);
            for address in 0..60_u128 {
                for port in 0..45_u16 {
                    let wanted = areas.iter().any(|area| {
                        (area.first..=area.last).contains(&address)
                            && area.ports.iter().any(|(low, high)| (*low..=*high).contains(&port))
                    });
                    let found = boxes
                        .iter()
                        .filter(|(first, last, low, high)| {
                            (*first..=*last).contains(&address) && (*low..=*high).contains(&port)
                        })
                        .count();
                    prop_assert_eq!(found, usize::from(wanted), "{} {}", address, port);
                }
            }
        }
    }
}
