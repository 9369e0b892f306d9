use std::net::IpAddr;

use proptest::prelude::*;

use super::packet::{FilterPacket, PacketPath, TransportHeader};
use super::{FilterEffect, FilterGate, filter_scan};
use crate::policy::{
    Policy, RULES_MAX, filter_plan, host_classifier, parse, tunnel_classifier, tunnel_filter_plan,
};

fn policy(rules: &str) -> Policy {
    let parsed = parse(&format!(
        "version = 1\n[host]\nunmatched = \"permit\"\nclasses = {{ a0 = 1, b0 = 1, c0 = 2 }}\n\
         {rules}"
    ));
    parsed.policy.unwrap_or_else(|| panic!("{:?}\n{rules}", parsed.diagnostics))
}

/// The name of the rule that decides about a packet.
fn decided(policy: &Policy, packet: &str) -> String {
    let packet = FilterPacket::parse(packet).unwrap();
    let found = filter_scan(policy, &packet, 0);
    let filter = found.filter.map(|filter| filter.name.clone());
    let flow = found.flow.map(|rule| rule.name.clone());
    let by_scan = filter.or(flow).unwrap_or_default();
    assert_eq!(by_scan, by_plan(policy, &packet), "{packet}");
    by_scan
}

fn by_plan(policy: &Policy, packet: &FilterPacket) -> String {
    let (plan, classifier) = match packet.path.tunnel() {
        None => (filter_plan(policy, 0), host_classifier(policy, 0)),
        Some(ike) => (tunnel_filter_plan(policy, ike, 0), tunnel_classifier(policy, ike)),
    };
    let is_present = |number: u32| plan.schedules[number as usize].present;
    let found = plan.decide(packet, is_present);
    assert_eq!(found, classifier.decide(packet, &classifier.windows_at(0)), "{packet}");
    let Some(element) = found else { return String::new() };
    match (element.outcome, element.rule) {
        (FilterEffect::Decided { .. }, Some(rule)) => policy.filters[rule as usize].name.clone(),
        (FilterEffect::Flow, None) => {
            // The scan names the rule.
            let found = filter_scan(policy, packet, 0);
            found.flow.map_or_else(|| "no rule for flows".to_owned(), |rule| rule.name.clone())
        }
        other => panic!("{other:?}"),
    }
}

const ORDER: &str = r#"
[[rule]]
name = "ssh"
filter = "permit"
protocol = "tcp"
local-ports = 22
opened-by = "remote"
[[rule]]
name = "web"
direction = "outbound"
remote = "10.1.0.0/16"
remote-ports = 443
tls = { trust = "system" }
[[rule]]
name = "ping"
filter = "permit"
protocol = ["icmp", "icmpv6"]
icmp-type = [0, 8, 128, 129]
[[rule]]
name = "dmz"
filter = "deny"
discard = "icmp"
class = 1
protocol = "gre"
[[rule]]
name = "rest"
filter = "deny"
direction = "inbound"
[[rule]]
name = "late"
direction = "outbound"
remote-ports = 25
deny = true
"#;

#[test]
fn the_first_rule_that_matches_decides_about_filters_and_flows_alike() {
    let policy = policy(ORDER);
    for (packet, wanted) in [
        ("in a0 tcp 192.0.2.1:4000 > 10.0.0.1:22 syn", "ssh"),
        ("out a0 tcp 10.0.0.1:22 > 192.0.2.1:4000", "ssh"),
        ("out a0 tcp 10.0.0.1:22 > 192.0.2.1:4000 syn", ""),
        ("out a0 tcp 10.0.0.1:4000 > 10.1.2.3:443 syn", "web"),
        ("in a0 tcp 10.1.2.3:443 > 10.0.0.1:4000", "web"),
        ("in a0 tcp 10.1.2.3:443 > 10.0.0.1:4000 syn", "rest"),
        ("in a0 icmp 192.0.2.1 > 10.0.0.1 type 8", "ping"),
        ("in a0 icmp 192.0.2.1 > 10.0.0.1 type 5", "rest"),
        ("in a0 icmpv6 2001:db8::1 > 2001:db8::2 type 128", "ping"),
        ("in a0 gre 192.0.2.1 > 10.0.0.1", "dmz"),
        ("in c0 gre 192.0.2.1 > 10.0.0.1", "rest"),
        ("out b0 47 10.0.0.1 > 192.0.2.1", "dmz"),
        ("out c0 tcp 10.0.0.1:4000 > 192.0.2.1:25 syn", ""),
        ("routed a0 b0 tcp 192.0.2.1:4000 > 10.0.0.1:22 syn", ""),
    ] {
        assert_eq!(decided(&policy, packet), wanted, "{packet}");
    }
}

#[test]
fn a_routed_packet_has_two_views() {
    let policy = policy(
        r#"
[[rule]]
name = "from-lan"
filter = "permit"
routing = "routed"
direction = "outbound"
interface = "b0"
local = "10.0.0.0/8"
[[rule]]
name = "answers"
filter = "permit"
routing = "either"
protocol = "tcp"
remote-ports = 443
opened-by = "local"
[[rule]]
name = "rest"
filter = "deny"
routing = "routed"
"#,
    );
    for (packet, wanted) in [
        ("routed a0 b0 udp 10.0.0.1:1 > 192.0.2.1:2", "from-lan"),
        ("routed a0 c0 udp 10.0.0.1:1 > 192.0.2.1:2", "rest"),
        ("routed b0 a0 udp 10.0.0.1:1 > 192.0.2.1:2", "rest"),
        ("routed c0 a0 tcp 192.0.2.1:443 > 10.0.0.1:5", "answers"),
        ("routed c0 a0 tcp 192.0.2.1:443 > 10.0.0.1:5 syn", "rest"),
        ("routed a0 c0 tcp 192.0.2.9:5 > 192.0.2.1:443 syn", "answers"),
        ("in a0 udp 10.0.0.1:1 > 192.0.2.1:2", ""),
    ] {
        assert_eq!(decided(&policy, packet), wanted, "{packet}");
    }
}

#[test]
fn fragments_have_rules_of_their_own() {
    let policy = policy(
        r#"
[[rule]]
name = "fragments"
filter = "deny"
fragments = true
protocol = "udp"
remote = "192.0.2.0/24"
[[rule]]
name = "rest"
filter = "deny"
"#,
    );
    for (packet, wanted) in [
        ("in a0 udp 192.0.2.1:1 > 10.0.0.1:2 fragment", "fragments"),
        ("routed a0 b0 udp 192.0.2.1:1 > 10.0.0.1:2 fragment", "fragments"),
        ("in a0 udp 192.0.3.1:1 > 10.0.0.1:2 fragment", ""),
        ("in a0 udp 192.0.2.1:1 > 10.0.0.1:2", "rest"),
    ] {
        assert_eq!(decided(&policy, packet), wanted, "{packet}");
    }
}

/// The host filters nothing that goes through a tunnel, and each tunnel has its own rules.
#[test]
fn rules_for_tunnels_and_for_the_host_are_apart() {
    let policy = policy(
        r#"
[[rule]]
name = "host"
filter = "deny"
[[rule]]
name = "web"
filter = "permit"
tunnel = ["branch", "other"]
protocol = "tcp"
remote-ports = 443
opened-by = "local"
[[rule]]
name = "branch"
filter = "deny"
tunnel = "branch"
remote = "10.2.0.0/16"
[ike.branch]
peer = "192.0.2.1"
psk-file = "psk"
local-id = "c.example"
inner = "10.1.0.1"
[ike.other]
peer = "192.0.2.2"
psk-file = "psk"
local-id = "c.example"
inner = "10.1.0.2"
"#,
    );
    for (packet, wanted) in [
        ("in a0 tcp 10.2.0.1:443 > 10.1.0.1:5", "host"),
        ("to-tunnel branch tcp 10.1.0.1:5 > 10.2.0.1:443 syn", "web"),
        ("from-tunnel branch tcp 10.2.0.1:443 > 10.1.0.1:5", "web"),
        ("from-tunnel branch tcp 10.2.0.1:443 > 10.1.0.1:5 syn", "branch"),
        ("from-tunnel branch icmp 10.2.0.1 > 10.1.0.1 type 8", "branch"),
        ("from-tunnel branch icmp 10.3.0.1 > 10.1.0.1 type 8", ""),
        ("to-tunnel other tcp 10.1.0.1:5 > 10.2.0.1:443 syn", "web"),
        ("to-tunnel other udp 10.1.0.1:5 > 10.2.0.1:443", ""),
        ("to-tunnel absent udp 10.1.0.1:5 > 10.2.0.1:443", ""),
    ] {
        assert_eq!(decided(&policy, packet), wanted, "{packet}");
    }
}

#[test]
fn the_text_of_a_packet_is_read_as_it_is_shown() {
    for text in [
        "in eth0 tcp 192.0.2.7:40000 > 10.0.0.1:22 syn",
        "out eth0 icmp 10.0.0.1 > 192.0.2.7 type 8 code 1",
        "routed a b udp [2001:db8::1]:5000 > [2001:db8::2]:53",
        "in eth0 gre 192.0.2.7 > 10.0.0.1 fragment",
        "in eth0 200 192.0.2.7 > 10.0.0.1",
        "from-tunnel branch tcp 10.2.0.1:5 > 10.1.0.1:22 syn",
        "to-tunnel branch icmp 10.1.0.1 > 10.2.0.1 type 8 code 0",
    ] {
        assert_eq!(FilterPacket::parse(text).unwrap().to_string(), text);
    }
    for (text, wanted) in [
        ("", "in, out, routed"),
        ("to-tunnel", "name of the tunnel"),
        ("to eth0", "must begin with"),
        ("in eth0 xyz 1.1.1.1 > 1.1.1.2", "unknown protocol"),
        ("in eth0 tcp 1.1.1.1 > 1.1.1.2:1", "addresses with ports"),
        ("in eth0 tcp 1.1.1.1:1 1.1.1.2:1", "write `>` between"),
        ("in eth0 tcp 1.1.1.1:1 > [::1]:1", "different IP versions"),
        ("in eth0 udp 1.1.1.1:1 > 1.1.1.2:1 syn", "not valid for the protocol"),
        ("in eth0 icmp 1.1.1.1 > 1.1.1.2 type 256", "0 to 255"),
        ("in eth0 icmp 1.1.1.1 > 1.1.1.2 type", "ends before type"),
    ] {
        let error = FilterPacket::parse(text).unwrap_err().to_string();
        assert!(error.contains(wanted), "{text}: {error}");
    }
}

#[test]
fn the_bytes_of_a_packet_are_read_in_both_ip_versions() {
    let read = |hex: &str, wanted: Option<&str>| {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let text =
            |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        let bytes: Vec<u8> = digits.chunks(2).map(text).collect();
        let path = || PacketPath::In("a".to_owned());
        let found = FilterPacket::of_bytes(path(), &bytes).map(|packet| packet.to_string());
        assert_eq!(found.as_deref(), wanted, "{hex}");
        for end in 0..bytes.len() {
            let _ = FilterPacket::of_bytes(path(), &bytes[..end]);
        }
    };
    read(
        "45000028 00000000 4006 0000 0a000001 0a000002 \
         0001 0016 00000000 00000000 5002 0000 00000000",
        Some("in a tcp 10.0.0.1:1 > 10.0.0.2:22 syn"),
    );
    read(
        "46000020 00002000 4001 0000 0a000001 0a000002 00000000 0800 0000 00000000",
        Some("in a icmp 10.0.0.1 > 10.0.0.2 type 8 code 0 fragment"),
    );
    read(
        "45000020 00000001 4011 0000 0a000001 0a000002 0001 0016",
        Some("in a udp 10.0.0.1 > 10.0.0.2 fragment"),
    );
    let v6 = "20010db8 00000000 00000000 00000001 20010db8 00000000 00000000 00000002";
    read(
        &format!("60000000 0010 0040 {v6} 1100 000000000000 0001 0016 00000000"),
        Some("in a udp [2001:db8::1]:1 > [2001:db8::2]:22"),
    );
    read(
        &format!("60000000 0010 2c40 {v6} 3a000001 00000000 8000 0000"),
        Some("in a icmpv6 2001:db8::1 > 2001:db8::2 type 128 code 0 fragment"),
    );
    read("50", None);
    read("4500", None);
}

#[test]
fn rules_of_one_kind_are_one_lookup() {
    let rule = |number: usize| {
        format!(
            "[[rule]]\nname = \"r{number}\"\nfilter = \"permit\"\nprotocol = \"tcp\"\n\
             remote = \"10.{}.{}.1\"\nremote-ports = {}\n",
            number / 200 % 200,
            number % 200,
            number + 1,
        )
    };
    let rules: String = (0..1000).map(rule).collect();
    let rest = "[[rule]]\nname = \"rest\"\nfilter = \"deny\"\n";
    let plan = filter_plan(&policy(&format!("{rules}{rest}")), 0);
    assert_eq!(plan.lookups(), 2);
    assert!(plan.groups[0].exact && plan.groups[0].elements.len() == 1000);
}

/// As many rules as a policy can have, with values and with ranges.
#[test]
fn as_many_rules_as_a_policy_can_have_fit_and_do_not_overlap() {
    let exact = |number: usize| {
        let [high, low] = [number >> 8 & 0xff, number & 0xff];
        format!("remote = \"10.{high}.{low}.1\"\nremote-ports = {}", number % 7 + 1)
    };
    let range = |number: usize| {
        let [high, low] = [number >> 8 & 0xff, number & 0xff];
        format!("remote = \"172.{high}.{low}.0/28\"\nremote-ports = \"1-{}\"", number % 7 + 2)
    };
    let half = RULES_MAX / 2;
    let rules = (0..half).map(exact).chain((1..half).map(range)).enumerate().map(|(at, keys)| {
        format!("[[rule]]\nname = \"r{at}\"\nfilter = \"permit\"\nprotocol = \"tcp\"\n{keys}\n")
    });
    let rest = "[[rule]]\nname = \"rest\"\nfilter = \"deny\"\n".to_owned();
    let policy = policy(&rules.chain([rest]).collect::<String>());
    assert_eq!(policy.filters.len(), RULES_MAX);
    let plan = filter_plan(&policy, 0);
    assert_eq!((plan.lookups(), plan.exceeded()), (3, None));
    let classifier = host_classifier(&policy, 0);
    for (remote, wanted) in
        [("10.127.255.1:1", "r32767"), ("172.0.9.15:1", "r32776"), ("172.0.9.16:1", "rest")]
    {
        let text = format!("in a0 tcp {remote} > 192.0.2.1:5 syn");
        let packet = FilterPacket::parse(&text).unwrap();
        let found = classifier.decide(&packet, &classifier.windows_at(0)).unwrap();
        assert_eq!(policy.filters[found.rule.unwrap() as usize].name, wanted, "{text}");
    }
}

#[test]
fn rules_beyond_a_limit_are_an_error_with_a_fix() {
    let rule = |name: usize, body: &str| {
        format!("[[rule]]\nname = \"r{name}\"\nfilter = \"permit\"\n{body}\n")
    };
    let list = |one: fn(usize) -> String| (0..200).map(one).collect::<Vec<_>>().join(", ");
    let addresses = list(|number| format!("\"10.0.0.{number}\""));
    let ports = list(|number| (number + 1).to_string());
    let elements = rule(
        0,
        &format!(
            "protocol = \"tcp\"\nlocal = [{addresses}]\nremote = \"10.0.0.1\"\n\
             local-ports = [{ports}]\nremote-ports = [1, 2, 3, 4]"
        ),
    );
    let overlapping = (1..300).map(|number| {
        rule(number, &format!("protocol = \"tcp\"\nremote-ports = \"{}-30000\"", 300 - number))
    });
    let windows = (0..300).map(|number| {
        let hours = format!("00:00-{:02}:{:02}", 1 + number / 60, number % 60);
        rule(number, &format!("protocol = {}\nwhen = {{ hours = \"{hours}\" }}", number % 256))
    });
    let logged = (0..300).map(|number| {
        rule(number, &format!("protocol = \"tcp\"\nlocal-ports = {}\nlog = true", number + 1))
    });
    for (rules, wanted) in [
        (elements, "need more than 131072 combinations"),
        (overlapping.collect(), "299 lookups for each packet; the limit is 256"),
        (windows.collect(), "300 different time windows"),
        (logged.collect(), "300 filter rules have `log`"),
    ] {
        let parsed = parse(&format!("version = 1\n[host]\nunmatched = \"permit\"\n{rules}"));
        let errors: Vec<_> = parsed.diagnostics.iter().map(|one| &one.message).collect();
        assert!(parsed.policy.is_none() && errors[0].contains(wanted), "{errors:?}");
        assert!(parsed.diagnostics[0].fix.is_some() && parsed.diagnostics[0].position.line == 4);
    }
}

#[test]
fn what_is_covered_by_earlier_rules_needs_no_element() {
    let plan = filter_plan(
        &policy(
            "[[rule]]\nname = \"a\"\nfilter = \"permit\"\nremote = \"10.0.0.0/8\"\n\
             [[rule]]\nname = \"b\"\nfilter = \"deny\"\nprotocol = \"tcp\"\n\
             remote = \"10.1.0.0/16\"\n",
        ),
        0,
    );
    assert_eq!(plan.groups.iter().map(|group| group.elements.len()).sum::<usize>(), 1);
}

/// The state of the only schedule at a time: whether its rule applies, and until when.
fn window(policy: &Policy, time: &str) -> (bool, String) {
    let at = |text: &str| text.parse::<jiff::Timestamp>().unwrap().as_second();
    let plan = filter_plan(policy, at(time));
    let until = plan.schedules[0].until_unix_s.map(jiff::Timestamp::from_second);
    let packet = FilterPacket::parse("in a0 udp 10.0.0.1:1 > 10.0.0.2:2").unwrap();
    let is_present = |number: u32| plan.schedules[number as usize].present;
    let applies = plan.decide(&packet, is_present).is_some();
    assert_eq!(applies, filter_scan(policy, &packet, at(time)).filter.is_some());
    (applies, until.unwrap().unwrap().to_string())
}

#[test]
fn windows_end_when_the_clock_says_so_also_across_summer_time() {
    for verdict in ["permit", "deny"] {
        let policy = policy(&format!(
            "[[rule]]\nname = \"night\"\nfilter = \"{verdict}\"\n\
             when = {{ hours = \"01:30-02:30\", zone = \"Europe/Berlin\" }}\n"
        ));
        for (time, applies, until) in [
            // The clock is set from 02:00 to 03:00.
            ("2026-03-29T00:00:00Z", false, "2026-03-29T00:30:00Z"),
            ("2026-03-29T00:30:00Z", true, "2026-03-29T01:00:00Z"),
            ("2026-03-29T01:00:00Z", false, "2026-03-29T23:30:00Z"),
            // The clock is set from 03:00 to 02:00.
            ("2026-10-24T23:45:00Z", true, "2026-10-25T00:30:00Z"),
            ("2026-10-25T00:30:00Z", false, "2026-10-25T01:00:00Z"),
            ("2026-10-25T01:00:00Z", true, "2026-10-25T01:30:00Z"),
            ("2026-10-25T01:30:00Z", false, "2026-10-26T00:30:00Z"),
        ] {
            assert_eq!(window(&policy, time), (applies, until.to_owned()), "{verdict} {time}");
        }
    }
}

#[test]
fn a_permit_is_present_in_its_window_and_a_deny_outside() {
    for (verdict, gate, present) in
        [("permit", FilterGate::Present(0), true), ("deny", FilterGate::Absent(0), false)]
    {
        let policy = policy(&format!(
            "[[rule]]\nname = \"w\"\nfilter = \"{verdict}\"\n\
             when = {{ hours = \"00:00-12:00\", zone = \"UTC\" }}\n"
        ));
        let plan = filter_plan(&policy, 3600);
        assert_eq!(plan.groups[0].gate, Some(gate));
        let noon = 12 * 3600;
        // Without an agent, the permit ends at noon, and nothing makes the deny end.
        assert_eq!(
            plan.present_at(3600).collect::<Vec<_>>(),
            match present {
                true => vec![(0, Some(11 * 3600))],
                false => Vec::new(),
            }
        );
        assert_eq!(plan.present_at(noon).count(), 0);
        let later = filter_plan(&policy, noon);
        let half_a_day = Some(12 * 3600);
        assert_eq!(
            later.present_at(noon).collect::<Vec<_>>(),
            match present {
                true => Vec::new(),
                false => vec![(0, half_a_day)],
            }
        );
    }
}

fn addresses() -> impl Strategy<Value = String> {
    let v4 = (0_u8..8, 29_u8..=32).prop_map(|(last, length)| {
        format!("10.0.0.{}/{length}", u32::from(last) & (0xff_u32 << (32 - length)) & 0xff)
    });
    let range = (0_u8..8, 0_u8..4)
        .prop_map(|(first, more)| format!("10.0.0.{first}-10.0.0.{}", first + more));
    let v6 = (0_u8..8).prop_map(|last| format!("fd00::{last}"));
    prop_oneof![3 => v4, 1 => range, 1 => v6]
}

fn any_filter() -> impl Strategy<Value = String> {
    let list = |key: &'static str| {
        prop_oneof![
            2 => Just(String::new()),
            2 => addresses().prop_map(move |one| format!("{key} = \"{one}\"\n")),
            1 => (addresses(), addresses())
                .prop_map(move |(one, other)| format!("{key} = [\"{one}\", \"{other}\"]\n")),
        ]
    };
    let ports = |key: &'static str| {
        let range = (1_u16..6, 0_u16..3)
            .prop_map(move |(low, more)| format!("{key} = \"{low}-{}\"\n", low + more));
        prop_oneof![Just(String::new()), range]
    };
    let opened = prop_oneof![
        2 => Just(String::new()),
        1 => Just("opened-by = \"local\"\n".to_owned()),
        1 => Just("opened-by = \"remote\"\n".to_owned()),
    ];
    let with_ports = (
        prop_oneof![Just("tcp"), Just("udp"), Just("sctp")],
        ports("local-ports"),
        ports("remote-ports"),
        opened,
    )
        .prop_map(|(protocol, local, remote, opened)| {
            let opened = if protocol == "tcp" { opened } else { String::new() };
            format!("protocol = \"{protocol}\"\n{local}{remote}{opened}")
        });
    let icmp = (0_u8..3, 0_u8..3).prop_map(|(kind, code)| {
        format!("protocol = [\"icmp\", \"icmpv6\"]\nicmp-type = [8, {kind}]\nicmp-code = {code}\n")
    });
    let protocol = prop_oneof![
        3 => with_ports,
        1 => icmp,
        1 => Just(String::new()),
        1 => Just("protocol = [\"tcp\", 47]\n".to_owned()),
    ];
    let direction = prop_oneof![
        3 => Just(""),
        1 => Just("direction = \"inbound\"\n"),
        1 => Just("direction = \"outbound\"\n"),
    ];
    let interface = prop_oneof![
        4 => Just(""),
        1 => Just("interface = \"a0\"\n"),
        1 => Just("class = 1\n"),
    ];
    let routing = prop_oneof![
        2 => Just(""),
        1 => Just("routing = \"routed\"\n"),
        1 => Just("routing = \"either\"\n"),
    ];
    let verdict = prop_oneof![Just("permit"), Just("deny")];
    let when = prop_oneof![
        5 => Just(""),
        1 => Just("when = { days = \"thu\", zone = \"UTC\" }\n"),
        1 => Just("when = { days = \"fri\", zone = \"UTC\" }\n"),
    ];
    let [local, remote] = ["local", "remote"].map(list);
    (verdict, local, remote, protocol, direction, interface, routing, when).prop_map(
        |(verdict, local, remote, protocol, direction, interface, routing, when)| {
            format!(
                "filter = \"{verdict}\"\n{local}{remote}{protocol}{direction}{interface}{routing}\
                 {when}"
            )
        },
    )
}

fn any_flow_rule() -> impl Strategy<Value = String> {
    let outbound = (addresses(), 1_u16..6, prop_oneof![Just("tcp"), Just("udp")]).prop_map(
        |(remote, port, protocol)| {
            format!(
                "direction = \"outbound\"\nremote = \"{remote}\"\nremote-ports = {port}\n\
                 protocol = \"{protocol}\"\npermit = true\n"
            )
        },
    );
    let inbound = (1_u16..6)
        .prop_map(|port| format!("direction = \"inbound\"\nlocal-ports = {port}\ndeny = true\n"));
    prop_oneof![outbound, inbound]
}

fn any_packet() -> impl Strategy<Value = FilterPacket> {
    let interface = || prop_oneof![Just("a0"), Just("b0"), Just("c0")].prop_map(str::to_owned);
    let path = prop_oneof![
        interface().prop_map(PacketPath::In),
        interface().prop_map(PacketPath::Out),
        (interface(), interface())
            .prop_map(|(received, sent)| PacketPath::Routed { received, sent }),
    ];
    let ends = prop_oneof![
        4 => (0_u8..10, 0_u8..10).prop_map(|(one, other)| {
            [one, other].map(|last| IpAddr::from([10, 0, 0, last]))
        }),
        1 => (0_u16..10, 0_u16..10).prop_map(|(one, other)| {
            [one, other].map(|last| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last]))
        }),
    ];
    let with_ports = (
        prop_oneof![3 => Just(6_u8), 2 => Just(17), 1 => Just(132)],
        1_u16..9,
        1_u16..9,
        any::<bool>(),
    )
        .prop_map(|(protocol, source, destination, opens)| {
            let opens = opens && protocol == 6;
            (protocol, TransportHeader::Ports { source, destination, opens })
        });
    let icmp = (prop_oneof![Just(1_u8), Just(58)], 0_u8..9, 0_u8..4)
        .prop_map(|(protocol, kind, code)| (protocol, TransportHeader::Icmp { kind, code }));
    let header = prop_oneof![4 => with_ports, 1 => icmp, 1 => Just((47, TransportHeader::Other))];
    (path, ends, header).prop_map(|(path, [source, destination], (protocol, header))| {
        FilterPacket { path, source, destination, protocol, header, is_fragment: false }
    })
}

/// The rules, with filters for the tunnels with a peer.
fn for_tunnel(rules: &[String]) -> String {
    let named = rules.iter().enumerate();
    let rules = named.map(|(at, body)| {
        let kept = |line: &&str| {
            !["interface", "class", "routing"].iter().any(|key| line.starts_with(key))
        };
        let body: Vec<_> = body.lines().filter(kept).collect();
        format!("[[rule]]\nname = \"r{at}\"\ntunnel = \"branch\"\n{}\n", body.join("\n"))
    });
    let peer = "[ike.branch]\npeer = \"192.0.2.1\"\npsk-file = \"psk\"\nlocal-id = \
                \"c.example\"\ninner = \"10.0.0.1\"\n";
    rules.chain([peer.to_owned()]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_rules_of_tunnels_decide_as_a_scan_does(
        rules in prop::collection::vec(any_filter(), 1..14),
        packets in prop::collection::vec((any_packet(), any::<bool>()), 60),
    ) {
        let rules = for_tunnel(&rules);
        let policy = policy(&rules);
        for (packet, is_sent) in packets {
            let ike = "branch".to_owned();
            let path =
                if is_sent { PacketPath::ToTunnel(ike) } else { PacketPath::FromTunnel(ike) };
            let packet = FilterPacket { path, ..packet };
            let found = filter_scan(&policy, &packet, 0);
            let wanted = found.filter.map_or("", |one| &one.name);
            prop_assert_eq!(wanted, by_plan(&policy, &packet), "{}\n{}", packet, rules);
        }
    }

    #[test]
    fn the_plan_decides_as_the_scan_does(
        rules in prop::collection::vec(
            prop_oneof![3 => any_filter(), 1 => any_flow_rule()],
            1..14,
        ),
        packets in prop::collection::vec(any_packet(), 60),
    ) {
        let named = rules.iter().enumerate();
        let rules: String =
            named.map(|(at, body)| format!("[[rule]]\nname = \"r{at}\"\n{body}")).collect();
        let policy = policy(&rules);
        for packet in packets {
            let found = filter_scan(&policy, &packet, 0);
            let of_flow = || found.flow.map(|one| &one.name);
            let wanted = found.filter.map(|one| &one.name).or_else(of_flow);
            let decided = by_plan(&policy, &packet);
            prop_assert_eq!(wanted.map_or("", |name| name), decided, "{}\n{}", packet, rules);
        }
    }
}
