//! Tests that the computed routes select the same packets as the rules.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use proptest::prelude::*;

use super::*;
use crate::flow::{Address, Flow};
use crate::policy::diagnostic::SourcePosition;
use crate::policy::lookup::Index;
use crate::policy::rule::{Action, Answers, Deny, Ipsec, TunnelKeying};
use crate::policy::selector::{AddressSelector, Selectors};
use crate::policy::{Policy, parse};

const IKES: &str = "version = 1\n[ike.a]\npeer = \"192.0.2.1\"\npsk-file = \"a\"\nlocal-id = \
                    \"c.example\"\ninner = \"10.1.0.1\"\n[ike.b]\npeer = \"192.0.2.2\"\npsk-file = \
                    \"b\"\nlocal-id = \"c.example\"\ninner = \"gateway\"\n";

fn policy(rules: &[&str]) -> Policy {
    let rule = |(at, body): (usize, &&str)| format!("[[rule]]\nname = \"r{at}\"\n{body}\n");
    let rules: String = rules.iter().enumerate().map(rule).collect();
    let parsed = parse(&format!("{IKES}{rules}"));
    parsed.policy.unwrap_or_else(|| panic!("{:?}", parsed.diagnostics))
}

fn shown(routes: &TunnelRoutes) -> Vec<String> {
    let ports = |range: &Option<RangeInclusive<u16>>| {
        range
            .as_ref()
            .map_or_else(|| "*".to_owned(), |one| format!("{}-{}", one.start(), one.end()))
    };
    let group = |group: &TunnelGroup| {
        let prefixes: Vec<_> = group.prefixes.iter().map(ToString::to_string).collect();
        format!(
            "{} {:?} {} {} {} {}",
            group.peer,
            group.direction,
            group.protocol.word(),
            ports(&group.local_ports),
            ports(&group.remote_ports),
            prefixes.join(" ")
        )
    };
    routes.groups().iter().map(group).collect()
}

#[test]
fn rules_with_the_same_ports_are_one_group() {
    let out = "direction = \"outbound\"\nipsec = { ike = \"a\" }\n";
    let policy = policy(&[
        &format!("{out}remote = \"10.2.0.0/16\"\nremote-ports = [80, 443]"),
        &format!("{out}remote = [\"10.4.0.0/16\", \"fd02::/64\"]\nremote-ports = [80, 443]"),
        &format!("{out}protocol = \"icmp\"\nremote = \"10.2.0.0/15\""),
        "direction = \"inbound\"\nipsec = { ike = \"b\" }\nprotocol = \"udp\"\nlocal-ports = 53",
    ]);
    let routes = TunnelRoutes::of(&policy, "x", &[]).unwrap();
    let groups = shown(&routes);
    assert_eq!(
        groups[..3],
        [
            "a Outbound tcp * 80-80 10.2.0.0/16 10.4.0.0/16 fd02::/64",
            "a Outbound tcp * 443-443 10.2.0.0/16 10.4.0.0/16 fd02::/64",
            "a Outbound icmp * * 10.2.0.0/15",
        ]
    );
    assert!(groups[3].starts_with("b Inbound udp 53-53 * 1.0.0.0/8 2.0.0.0/7 "), "{groups:?}");
    let ranges: Vec<_> =
        routes.remotes("a").iter().map(|(first, last)| format!("{first}-{last}")).collect();
    assert_eq!(ranges, ["10.2.0.0-10.4.255.255", "fd02::-fd02::ffff:ffff:ffff:ffff"]);
}

#[test]
fn earlier_rules_take_addresses_and_ports_out() {
    let policy = policy(&[
        "direction = \"outbound\"\nremote = \"10.2.0.1\"\nremote-ports = 80\npermit = true",
        "direction = \"outbound\"\nremote = \"10.3.0.1\"\nremote-ports = 81\npermit = true",
        "direction = \"outbound\"\nremote = \"10.2.0.0/30\"\nipsec = { ike = \"a\" }",
    ]);
    let own = IpAddr::from([10, 2, 0, 3]);
    assert_eq!(
        shown(&TunnelRoutes::of(&policy, "x", &[own]).unwrap()),
        [
            "a Outbound tcp * 1-79 10.2.0.0/31 10.2.0.2/32",
            "a Outbound tcp * 80-80 10.2.0.0/32 10.2.0.2/32",
            "a Outbound tcp * 81-65535 10.2.0.0/31 10.2.0.2/32",
        ]
    );
}

#[test]
fn ports_of_one_ip_version_do_not_divide_those_of_the_other() {
    let policy = policy(&[
        "direction = \"outbound\"\nremote = \"10.2.0.1\"\nlocal-ports = 5000\npermit = true",
        "direction = \"outbound\"\nremote = [\"10.2.0.0/31\", \"fd02::/64\"]\nipsec = { ike = \
         \"a\" }",
        "direction = \"outbound\"\nremote = \"fd03::1\"\nlocal-ports = 6000\nipsec = { ike = \
         \"b\" }",
    ]);
    let groups = shown(&TunnelRoutes::of(&policy, "x", &[]).unwrap());
    assert_eq!(
        groups,
        [
            "a Outbound tcp 1-4999 * 10.2.0.0/31",
            "a Outbound tcp 5000-5000 * 10.2.0.0/32",
            "a Outbound tcp 5001-65535 * 10.2.0.0/31",
            "a Outbound tcp * * fd02::/64",
            "b Outbound tcp 6000-6000 * fd03::1/128",
        ]
    );
}

#[test]
fn only_inbound_rules_admit_connections_of_the_peer() {
    let policy = policy(&[
        "direction = \"outbound\"\nremote = \"10.2.0.0/16\"\nremote-ports = 80\nipsec = { ike = \
         \"a\" }",
        "direction = \"inbound\"\nremote = \"10.2.0.0/16\"\nlocal-ports = 22\nipsec = { ike = \
         \"a\" }",
    ]);
    let routes = TunnelRoutes::of(&policy, "x", &[]).unwrap();
    let packet = |local: u16, remote: u16| TunnelPacket {
        protocol: Protocol::Tcp,
        local: SocketAddr::from(([10, 1, 0, 1], local)),
        remote: SocketAddr::from(([10, 2, 0, 1], remote)),
    };
    for (packet, part, wanted) in [
        (packet(40_000, 80), PacketPart::Any, true),
        (packet(40_000, 80), PacketPart::Opening, false),
        (packet(22, 40_000), PacketPart::Opening, true),
        (packet(22, 40_000), PacketPart::Any, true),
        (packet(23, 40_000), PacketPart::Opening, false),
    ] {
        assert_eq!(routes.admits("a", &packet, part), wanted, "{packet:?} {part:?}");
        assert!(!routes.admits("b", &packet, part));
    }
}

#[test]
fn too_many_groups_are_refused() {
    let ports: Vec<String> = (0..TUNNEL_GROUPS_MAX).map(|at| (at * 2 + 1).to_string()).collect();
    let rule = |ports: &[String]| {
        let ports = ports.join(", ");
        format!(
            "{IKES}[[rule]]\nname = \"r\"\ndirection = \"outbound\"\nremote = \
             \"10.2.0.0/16\"\nremote-ports = [{ports}]\nipsec = {{ ike = \"a\" }}\n"
        )
    };
    assert!(parse(&rule(&ports)).policy.is_some());
    let more = [ports.as_slice(), &["60000".to_owned()]].concat();
    let parsed = parse(&rule(&more));
    let found = parsed.diagnostics.iter().any(|one| one.message.contains("64 combinations"));
    assert!(parsed.policy.is_none() && found, "{:?}", parsed.diagnostics);
}

fn selectors() -> impl Strategy<Value = Selectors> {
    let address = prop_oneof![
        (0..16_u8, 28..=32_u8)
            .prop_map(|(last, length)| AddressSelector::network([10, 0, 0, last].into(), length)),
        (0..16_u16, 124..=128_u8).prop_map(|(last, length)| {
            AddressSelector::network(IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last]), length)
        }),
        (0..16_u8, 0..8_u8).prop_map(|(first, more)| AddressSelector::Range {
            first: [10, 0, 0, first].into(),
            last: [10, 0, 0, first + more].into(),
        }),
    ];
    let ports = || prop::collection::vec((1..8_u16, 0..3_u16).prop_map(|(a, b)| a..=a + b), 0..2);
    let run = prop::collection::vec(prop_oneof![Just("x".to_owned()), Just("y".to_owned())], 0..2);
    let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp), Just(Protocol::Icmp)];
    let remote = prop::collection::vec(address, 0..3);
    (any::<bool>(), protocol, remote, ports(), ports(), run).prop_map(
        |(is_inbound, protocol, remote, local_ports, remote_ports, run)| Selectors {
            direction: if is_inbound { Direction::Inbound } else { Direction::Outbound },
            protocol,
            local: Vec::new(),
            local_ports: if protocol == Protocol::Icmp { Vec::new() } else { local_ports },
            remote,
            remote_ports: if protocol == Protocol::Icmp { Vec::new() } else { remote_ports },
            when: None,
            program: Vec::new(),
            user: Vec::new(),
            group: Vec::new(),
            cgroup: Vec::new(),
            unit: Vec::new(),
            run,
        },
    )
}

fn rule() -> impl Strategy<Value = Rule> {
    let ipsec =
        |peer: &str| Action::Ipsec(Ipsec { peer: peer.to_owned(), keyed_by: TunnelKeying::Ike });
    let action = prop_oneof![
        Just(Action::Permit),
        Just(Action::Deny(Deny::Refused)),
        Just(ipsec("a")),
        Just(ipsec("b")),
    ];
    (selectors(), action).prop_map(move |(selectors, action)| {
        let (form, action) = match selectors.direction {
            Direction::Outbound => (RuleForm::Outbound, action),
            // Without [host], each inbound rule without `listen` has a tunnel.
            Direction::Inbound if matches!(action, Action::Ipsec(_)) => {
                (RuleForm::TunnelInbound, action)
            }
            Direction::Inbound => (RuleForm::TunnelInbound, ipsec("a")),
        };
        Rule {
            name: "r".to_owned(),
            selectors,
            names: Vec::new(),
            form,
            action,
            audited: None,
            log: false,
            idle: None,
            answers: Answers::default(),
            path: None,
            position: SourcePosition::default(),
        }
    })
}

proptest! {
    #[test]
    fn routes_lead_a_packet_where_the_first_rule_says(
        rules in prop::collection::vec(rule(), 0..8),
        own in 0..20_u8,
        run in prop_oneof![Just("x"), Just("y"), Just("z")],
    ) {
        let own = IpAddr::from([10, 0, 0, own]);
        let named = |(at, rule): (usize, Rule)| Arc::new(Rule { name: format!("r{at}"), ..rule });
        let rules: Vec<Arc<Rule>> = rules.into_iter().enumerate().map(named).collect();
        let index = Index::new(&rules);
        let routes = TunnelRoutes::of_rules(&rules, run, &[own]);
        // Rules with so few ports never reach the limit of cells.
        let Ok(routes) = routes else { return Ok(()) };
        let v4 = (0..20_u8).map(|last| IpAddr::from([10, 0, 0, last]));
        let v6 = (0..20_u16).map(|last| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last]));
        for (ip, protocol) in v4.chain(v6).flat_map(|ip| {
            [Protocol::Tcp, Protocol::Udp, Protocol::Icmp].map(|protocol| (ip, protocol))
        }) {
            let ports = if protocol == Protocol::Icmp { 0..1 } else { 1..11 };
            for (local, remote) in ports.clone().flat_map(|a| ports.clone().map(move |b| (a, b))) {
                let ends = (local, SocketAddr::new(ip, remote));
                check(&rules, &index, &routes, own, run, protocol, ends)?;
            }
        }
    }
}

fn check(
    rules: &[Arc<Rule>],
    index: &Index,
    routes: &TunnelRoutes,
    own: IpAddr,
    run: &str,
    protocol: Protocol,
    (local, remote): (u16, SocketAddr),
) -> Result<(), TestCaseError> {
    let local = SocketAddr::new(Ipv4Addr::new(10, 1, 0, 1).into(), local);
    let packet = TunnelPacket { protocol, local, remote };
    let mut deciding = Vec::new();
    for direction in [Direction::Outbound, Direction::Inbound] {
        let flow = Flow {
            direction,
            protocol,
            listen: None,
            local: Address::Inet(local),
            remote: Address::Inet(remote),
            to_own_host: remote.ip() == own && direction == Direction::Outbound,
            remote_names: Vec::new(),
            alias: None,
            is_shared: false,
            program: None,
            user: None,
            group: None,
            cgroup: None,
            run: Some(run.to_owned()),
            at_unix_s: 0,
        };
        if remote.ip() == own && direction == Direction::Inbound {
            continue;
        }
        let found = index.lookup(&flow).rule.map(|at| &rules[at]);
        let of_tunnel = found.filter(|rule| rule.ipsec().is_some());
        deciding.extend(of_tunnel.map(|rule| rule.name.as_str()));
        let wanted = found.and_then(|rule| Some(rule.ipsec()?.peer.as_str()));
        let of_direction = routes.groups().iter().filter(|group| group.direction == direction);
        let got: Vec<&str> =
            of_direction.filter(|one| one.contains(&packet)).map(|one| one.peer.as_str()).collect();
        prop_assert_eq!(got.first().copied(), wanted, "{:?} {:?}", packet, direction);
        prop_assert!(got.len() < 2, "{:?} is in two groups", packet);
    }
    if remote.ip() != own {
        // The groups of outbound rules are first.
        prop_assert_eq!(routes.rule_of(&packet), deciding.first().copied(), "{:?}", packet);
    }
    Ok(())
}
