//! Tests which addresses and ports a policy captures. Some tests use fixed policies. Others use
//! random policies, and compare the captured addresses and ports with the rules.

use super::*;
use std::net::SocketAddr;

use proptest::prelude::*;

use crate::flow::{Address, Flow};
use crate::policy::parse;

fn policy(rules: &str) -> Policy {
    let parsed = parse(&format!("version = 1\n{rules}"));
    parsed.policy.unwrap_or_else(|| panic!("{:?}", parsed.diagnostics))
}

fn show(ranges: &[CaptureRange]) -> Vec<String> {
    let one = |b: &CaptureRange| {
        let protocol = if b.udp { "udp" } else { "tcp" };
        format!("{protocol} {}-{} {}-{}", b.first, b.last, b.first_port, b.last_port)
    };
    ranges.iter().map(one).collect()
}

const NONE: [LearntName<'_>; 0] = [];
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
fn address_ranges_are_those_of_the_rules_that_pass() {
    assert_eq!(
        show(&captured(&policy(DB), NONE, &[], 0)),
        [
            "tcp 10.7.0.0-10.7.2.255 5432-5432",
            "tcp 10.7.0.0-10.7.2.255 6000-6100",
            "tcp 10.7.4.0-10.7.255.255 5432-5432",
            "tcp 10.7.4.0-10.7.255.255 6000-6100",
            "udp 10.0.0.53-10.0.0.53 53-53",
        ]
    );
}

#[test]
fn a_deny_takes_away_what_comes_behind_it_unless_it_asks_for_more() {
    let ranges = |deny: &str| {
        let rules = format!(
            "[[rule]]\nname = \"no\"\ndirection = \"outbound\"\nremote-ports = \"20-30\"\n\
             {deny}deny = true\n[[rule]]\nname = \"yes\"\ndirection = \"outbound\"\n\
             remote = \"10.0.0.0/30\"\nremote-ports = \"1-100\"\npermit = true\n"
        );
        show(&captured(&policy(&rules), [("10.0.0.1".parse().unwrap(), "a.example")], &[], 0))
    };
    let left = ["tcp 10.0.0.0-10.0.0.3 1-19", "tcp 10.0.0.0-10.0.0.3 31-100"];
    assert_eq!(ranges(""), left);
    assert_eq!(ranges("remote = \"10.0.0.0/8\"\n"), left);
    let whole = ["tcp 10.0.0.0-10.0.0.3 1-100"];
    for more in ["user = \"nobody\"", "program = \"/bin/x\"", "remote = \"a.example\""] {
        assert_eq!(ranges(&format!("{more}\n")), whole, "{more}");
    }
}

#[test]
fn a_name_brings_its_addresses_with_the_ports_of_its_rule() {
    let learnt = [
        ("192.0.2.9".parse().unwrap(), "db.corp.example"),
        ("192.0.2.10".parse().unwrap(), "elsewhere.example"),
        ("2001:db8::9".parse().unwrap(), "a.db.corp.example"),
    ];
    let ranges = show(&captured(&policy(DB), learnt, &[], 0));
    assert!(ranges.contains(&"tcp 192.0.2.9-192.0.2.9 5432-5432".to_owned()), "{ranges:?}");
    assert!(ranges.contains(&"tcp 2001:db8::9-2001:db8::9 6000-6100".to_owned()), "{ranges:?}");
    assert!(!ranges.iter().any(|one| one.contains("192.0.2.10")), "{ranges:?}");
}

#[test]
fn an_alias_has_the_ports_of_every_rule_for_its_name_or_true_address() {
    let alias = |name| LearntName {
        name,
        address: "10.7.0.9".parse().unwrap(),
        alias: Some("198.18.0.1".parse().unwrap()),
    };
    for name in ["a.corp.example", "elsewhere.example"] {
        let ranges = show(&captured(&policy(DB), [alias(name)], &[], 0));
        for ports in ["5432-5432", "6000-6100"] {
            let one = format!("tcp 198.18.0.1-198.18.0.1 {ports}");
            assert!(ranges.contains(&one), "{ranges:?}");
        }
    }
}

#[test]
fn a_rule_by_address_with_another_outcome_disputes_a_name() {
    let disputed = |name, ip: &str| is_disputed(&policy(DB), name, ip.parse().unwrap(), 0);
    assert!(disputed("a.corp.example", "10.7.3.1"), "denied by address, permitted by name");
    assert!(!disputed("a.corp.example", "10.7.0.1"), "both permit");
    assert!(!disputed("elsewhere.example", "10.7.3.1"), "no rule by name");
    assert!(!disputed("a.corp.example", "10.9.0.1"), "no rule by address");
}

#[test]
fn a_rule_about_every_destination_disputes_an_address_unless_it_denies() {
    let by_name = "[[rule]]\nname = \"bank\"\ndirection = \"outbound\"\n\
                   remote = \"bank.example\"\ntls = { verify = \"none\" }\n";
    let last = |action: &str| {
        let rest = format!("[[rule]]\nname = \"rest\"\ndirection = \"outbound\"\n{action}\n");
        policy(&format!("{by_name}{rest}"))
    };
    let ip = "10.7.0.1".parse().unwrap();
    assert!(is_disputed(&last("permit = true"), "bank.example", ip, 0));
    assert!(!is_disputed(&last("deny = true"), "bank.example", ip, 0));
    assert!(!is_disputed(&last("permit = true"), "other.example", ip, 0), "no rule by name");
}

#[test]
fn a_rule_without_addresses_is_not_about_this_host_or_this_link() {
    let open = "[[rule]]\nname = \"all\"\ndirection = \"outbound\"\npermit = true\n";
    let ranges = captured(&policy(open), NONE, &[], 0);
    let inside = |text: &str| {
        let address: IpAddr = text.parse().unwrap();
        ranges.iter().any(|b| {
            b.first.is_ipv6() == address.is_ipv6() && b.first <= address && address <= b.last
        })
    };
    for yes in ["1.1.1.1", "10.0.0.1", "223.255.255.255", "2001:db8::1", "fd00::1"] {
        assert!(inside(yes), "{yes}");
    }
    for no in ["127.0.0.1", "169.254.169.254", "224.0.0.1", "0.0.0.0", "::1", "fe80::1", "ff02::1"]
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
        show(&captured(&policy(&rule), [("127.0.0.1".parse().unwrap(), "evil.example")], &[], 0))
    };
    assert_eq!(
        to("\"0.0.0.0/0\""),
        [
            "tcp 0.0.0.0-126.255.255.255 80-80",
            "tcp 128.0.0.0-169.253.255.255 80-80",
            "tcp 169.255.0.0-255.255.255.255 80-80",
        ]
    );
    assert_eq!(to("\"evil.example\""), [""; 0], "a forged DNS answer does not lead here");
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
fn addresses_of_this_host_are_captured_where_a_rule_names_them() {
    let own: IpAddr = "10.0.0.5".parse().unwrap();
    let ranges = |rule: &str, learnt: &[(IpAddr, &str)]| {
        let rule =
            format!("[[rule]]\nname = \"r\"\ndirection = \"outbound\"\n{rule}\npermit = true\n");
        show(&captured(&policy(&rule), learnt.iter().copied(), &[own], 0))
    };
    let around = ["tcp 10.0.0.4-10.0.0.4 1-65535", "tcp 10.0.0.6-10.0.0.7 1-65535"];
    assert_eq!(ranges("remote = \"10.0.0.4/30\"", &[]), around);
    assert!(ranges("", &[]).iter().any(|one| one.contains("-10.0.0.4 ")));
    let alone = ["tcp 10.0.0.5-10.0.0.5 1-65535"];
    assert_eq!(ranges("remote = \"10.0.0.5\"", &[]), alone);
    // The caller passes only the names of the host's own file.
    assert_eq!(ranges("remote = \"me.example\"", &[(own, "me.example")]), alone);
}

#[test]
fn a_rule_outside_its_window_captures_nothing_and_has_no_name_asked_for() {
    let weekend = "[[rule]]\nname = \"n\"\ndirection = \"outbound\"\n\
                   remote = [\"a.example\", \"10.0.0.1\"]\n\
                   when = { days = \"sat-sun\", zone = \"UTC\" }\npermit = true\n";
    let weekend = policy(weekend);
    let thursday = 0;
    let saturday = 2 * 86_400;
    assert_eq!(show(&captured(&weekend, NONE, &[], thursday)), [""; 0]);
    assert_eq!(show(&captured(&weekend, NONE, &[], saturday)), ["tcp 10.0.0.1-10.0.0.1 1-65535"]);
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

#[test]
fn a_rule_by_address_allows_the_names_that_it_lists() {
    let rule =
        |more: &str| policy(&format!("[[rule]]\nname = \"n\"\ndirection = \"outbound\"\n{more}\n"));
    let asked = |policy: &Policy| {
        ["a.corp.example", "corp.example", "other.org"].map(|name| may_ask(policy, name, 0))
    };
    let address = "remote = [\"10.0.0.0/8\", \"0.0.0.0/0\"]\n";
    let permit = |more: &str| rule(&format!("{address}{more}\npermit = true"));
    assert_eq!(asked(&permit("")), [false; 3]);
    assert_eq!(asked(&permit("names = \"*.corp.example\"")), [true, false, false]);
    assert_eq!(asked(&permit("names = [\"Corp.example.\", \"x.org\"]")), [false, true, false]);
    assert_eq!(asked(&permit("names = \"*\"")), [true; 3]);
    assert_eq!(asked(&rule("permit = true")), [true; 3], "it is about every destination");
    let listed = "names = \"*.corp.example\"\npermit = true";
    assert_eq!(asked(&rule(listed)), [true, false, false]);
    assert_eq!(
        asked(&rule("remote = [\"10.0.0.1\", \"corp.example\"]\npermit = true")),
        [false, true, false]
    );
    let window = "names = \"*\"\nwhen = { days = \"sat\", zone = \"UTC\" }";
    assert_eq!(asked(&permit(window)), [false; 3], "1970 began on a Thursday");
    let denied = "[[rule]]\nname = \"d\"\ndirection = \"outbound\"\nremote = \"corp.example\"\n\
                  deny = true\n";
    assert_eq!(asked(&policy(denied)), [false; 3]);
}

#[test]
fn names_that_are_listed_capture_no_address() {
    let text = |names: &str| {
        format!(
            "[[rule]]\nname = \"n\"\ndirection = \"outbound\"\nremote = \"10.0.0.1\"\n{names}\
             permit = true\n"
        )
    };
    let learnt = ["10.9.9.9", "10.0.0.1"].map(|ip| (ip.parse().unwrap(), "a.corp.example"));
    let with = captured(&policy(&text("names = \"*.corp.example\"\n")), learnt, &[], 0);
    assert_eq!(with, captured(&policy(&text("")), NONE, &[], 0));
}

/// Conditions on the far end that rules can have, chosen so that they overlap.
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
        let ranges = captured(&policy, learnt, &[], 0);
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
                    alias: None,
                    is_shared: false,
                    program: None,
                    user: None,
                    group: None,
                    cgroup: None,
                    run: None,
                    to_own_host: false,
                    at_unix_s: 0,
                };
                let unnamed = Flow { remote_names: Vec::new(), ..flow.clone() };
                let certain = policy.rules.iter().position(|rule| {
                    rule.action.is_deny() && rule.matches(&unnamed).is_ok()
                });
                let before = &policy.rules[..certain.unwrap_or(policy.rules.len())];
                let wanted = before.iter().any(|rule| {
                    !rule.action.is_deny() && rule.matches(&flow).is_ok()
                });
                let found = ranges.iter().filter(|b| {
                    b.first.is_ipv6() == ip.is_ipv6() && (b.first..=b.last).contains(&ip)
                        && (b.first_port..=b.last_port).contains(&port)
                }).count();
                prop_assert_eq!(found, usize::from(wanted), "{} {} {}", text, ip, port);
            }
        }
    }

    #[test]
    fn the_sweep_finds_what_a_naive_cut_finds(
        areas in prop::collection::vec((0_u128..40, 0_u128..20, 0_u16..30, 0_u16..10), 0..9),
        far in any::<bool>(),
    ) {
        // At either end of all addresses and ports.
        let (address, port) = if far { (u128::MAX - 59, u16::MAX - 39) } else { (0, 0) };
        let areas: Vec<Area> = areas
            .into_iter()
            .map(|(first, more, low, wide)| Area {
                first: address + first,
                last: address + first + more,
                ports: port + low..=port + low + wide,
            })
            .collect();
        prop_assert_eq!(sweep::cut(areas.clone()), naive_cut(&areas));
    }
}

/// Splits the areas into strips along all edges, each with the ports of all areas that cover it,
/// and merges neighbours.
fn naive_cut(areas: &[Area]) -> Vec<Area> {
    let mut edges: Vec<u128> = areas
        .iter()
        .flat_map(|area| [Some(area.first), area.last.checked_add(1)])
        .flatten()
        .collect();
    edges.sort_unstable();
    edges.dedup();
    let mut strips: Vec<(u128, u128, Vec<RangeInclusive<u16>>)> = Vec::new();
    for (at, &first) in edges.iter().enumerate() {
        let within = areas.iter().filter(|area| area.first <= first && first <= area.last);
        let ports = join(within.map(|area| area.ports.clone()).collect());
        let last = edges.get(at + 1).map_or(u128::MAX, |next| next - 1);
        match strips.last_mut() {
            Some(strip) if strip.2 == ports => strip.1 = last,
            _ => strips.push((first, last, ports)),
        }
    }
    let ranges = strips.into_iter().flat_map(|(first, last, ports)| {
        ports.into_iter().map(move |ports| Area { first, last, ports })
    });
    ranges.collect()
}

fn join(mut ranges: Vec<RangeInclusive<u16>>) -> Vec<RangeInclusive<u16>> {
    ranges.sort_unstable_by_key(|range| *range.start());
    let mut joined: Vec<RangeInclusive<u16>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if *range.start() <= last.end().saturating_add(1) => {
                *last = *last.start()..=*last.end().max(range.end());
            }
            _ => joined.push(range),
        }
    }
    joined
}

/// Many rules of one kind, with the expected number of ranges.
type Kind = (&'static str, u32, fn(u32) -> String);

const MANY: u32 = 10_000;

const KINDS: &[Kind] = &[
    ("addresses", MANY, |i| format!("remote = \"{}\"\nremote-ports = 443", spread(i))),
    ("addresses with a port each", MANY, |i| {
        format!("remote = \"{}\"\nremote-ports = {}", spread(i), i + 1)
    }),
    ("neighbouring addresses", 1, |i| {
        format!("remote = \"{}\"\nremote-ports = 443", Ipv4Addr::from_bits(0x0a00_0000 + i))
    }),
    ("ports of everywhere", 4 * MANY, |i| format!("remote-ports = {}", 2 * i + 1)),
    ("nested ranges", 4, |i| {
        let ip = |at| Ipv4Addr::from_bits(0x0a00_0000 + at);
        format!("remote = \"{}-{}\"\nremote-ports = {}", ip(i), ip(30_000 - i), 2 * (i % 2) + 1)
    }),
    ("ports of everywhere over addresses", 4, |i| match i % 2 {
        0 => format!("remote-ports = {}", i / 2 + 1),
        _ => format!("remote = \"{}\"\nremote-ports = {}", spread(i), i / 2 + 1),
    }),
    ("names", MANY, |i| format!("remote = \"www.h{i}.example\"\nremote-ports = 443")),
    ("names with wildcards", MANY, |i| format!("remote = \"*.h{i}.example\"\nremote-ports = 443")),
];

fn spread(i: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a00_0000 + 16 * i)
}

fn many(make: fn(u32) -> String) -> Policy {
    let rule = |i| {
        let more = make(i);
        format!("[[rule]]\nname = \"r{i}\"\ndirection = \"outbound\"\n{more}\npermit = true\n")
    };
    policy(&(0..MANY).map(rule).collect::<String>())
}

#[test]
fn ten_thousand_rules_have_the_expected_address_ranges() {
    for (kind, ranges, make) in KINDS {
        let policy = many(*make);
        let learnt: Vec<_> =
            (0..MANY).map(|i| (spread(i).into(), format!("www.h{i}.example"))).collect();
        let learnt = learnt.iter().map(|(ip, name)| (*ip, name.as_str()));
        let begun = std::time::Instant::now();
        let found = captured(&policy, learnt, &[], 0).len();
        println!("{kind}: {found} ranges in {:?}", begun.elapsed());
        assert_eq!(found, *ranges as usize, "{kind}");
    }
}
