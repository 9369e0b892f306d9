//! Tests the index of rules. Some tests compare the index with a search through all rules. Others
//! measure the cost of a look-up for different numbers of rules.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::RngSeed;

use super::*;
use crate::policy::selector::Near;
use crate::policy::when::{Days, DaysOfMonth, Hours, Months, Zone};
use crate::policy::{Answers, Deny, Selectors};
use crate::policy::{ForwardRule, InboundRule, RuleForm, SourcePosition, UnixSocket, When};

fn rule(selectors: Selectors, listen: Vec<Address>, action: Action) -> Rule {
    let unix = UnixSocket { mode: 0o600, owner: None, replace_stale: false };
    let form = if listen.is_empty() {
        RuleForm::Outbound
    } else {
        RuleForm::Forward(ForwardRule {
            listen,
            connect: None,
            activate: None,
            accept_proxy: false,
            send_proxy: None,
            connect_timeout: Duration::from_secs(10),
            unix,
            clear: false,
        })
    };
    let position = SourcePosition::default();
    Rule {
        name: "r".to_owned(),
        selectors,
        names: Vec::new(),
        form,
        action,
        log: false,
        audited: None,
        idle: None,
        answers: Answers::Destination,
        path: None,
        position,
    }
}

/// The same rule for a run.
fn of_run(rule: Rule) -> Rule {
    let local_ports = vec![1..=1];
    let form = match rule.form {
        RuleForm::Forward(ForwardRule { listen, .. }) => {
            RuleForm::Inbound(InboundRule { listen, local_ports })
        }
        form => form,
    };
    Rule { form, ..rule }
}

fn outbound() -> Selectors {
    Selectors {
        direction: Direction::Outbound,
        protocol: Protocol::Tcp,
        local: Vec::new(),
        local_ports: Vec::new(),
        remote: Vec::new(),
        remote_ports: Vec::new(),
        when: None,
        program: Vec::new(),
        user: Vec::new(),
        group: Vec::new(),
        cgroup: Vec::new(),
        unit: Vec::new(),
        run: Vec::new(),
    }
}

fn to(remote: SocketAddr, names: &[String]) -> Flow {
    Flow {
        direction: Direction::Outbound,
        protocol: Protocol::Tcp,
        listen: None,
        local: SocketAddr::from(([10, 0, 0, 1], 40_000)).into(),
        remote: remote.into(),
        remote_names: names.to_vec(),
        alias: None,
        is_shared: false,
        program: None,
        user: None,
        group: None,
        cgroup: None,
        run: None,
        to_own_host: false,
        at_unix_s: 0,
    }
}

/// Addresses and ports are chosen from a few values near boundaries, so that rules often match
/// flows.
fn ip() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (0..4_u32, 0..8_u32)
            .prop_map(|(high, low)| Ipv4Addr::from_bits(0x0a00_00fc + (high << 30) + low).into()),
        (0..4_u128, 0..8_u128)
            .prop_map(|(high, low)| Ipv6Addr::from_bits((high << 126) + 0xfffc + low).into()),
        (0..8_u32).prop_map(|low| Ipv4Addr::from_bits(0x0a00_00fc + low).to_ipv6_mapped().into()),
        Just(Ipv6Addr::from_bits(u128::MAX).into()),
        select(NEAR).prop_map(|text| text.parse().unwrap()),
    ]
}

/// Addresses that rules must name, and their neighbours.
const NEAR: &[&str] = &[
    "126.255.255.255",
    "127.0.0.0",
    "127.0.0.53",
    "127.255.255.255",
    "128.0.0.0",
    "169.253.255.255",
    "169.254.169.254",
    "169.255.0.0",
    "::ffff:127.0.0.1",
    "::",
    "::1",
    "::2",
    "fe7f::1",
    "fe80::1",
    "febf::1",
    "fec0::",
];

fn address_selector() -> impl Strategy<Value = AddressSelector> {
    let prefix =
        (ip(), prop_oneof![0..=10_u8, 24..=32_u8, 96..=128_u8]).prop_map(|(ip, length)| {
            let (family, bits) = family_and_bits(ip);
            let length = u32::from(length).min(family.width());
            let network = to_ip(family, high_bits(bits, length, family.width()));
            AddressSelector::Prefix { network, length: u8::try_from(length).unwrap() }
        });
    let range = (ip(), ip()).prop_map(|(a, b)| {
        let ((family, a), (other, b)) = (family_and_bits(a), family_and_bits(b));
        let b = if family == other { b } else { a };
        AddressSelector::Range { first: to_ip(family, a.min(b)), last: to_ip(family, a.max(b)) }
    });
    let name = (select(HOSTS), any::<bool>())
        .prop_map(|(host, wildcard)| AddressSelector::Name { host: host.to_owned(), wildcard });
    let near = select(&Near::ALL[..]).prop_map(AddressSelector::Near);
    prop_oneof![4 => prefix, 4 => range, 4 => name, 1 => near]
}

fn to_ip(family: Family, bits: u128) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::from_bits(u32::try_from(bits).unwrap()).into(),
        Family::V6 => Ipv6Addr::from_bits(bits).into(),
    }
}

const HOSTS: &[&str] = &["example", "a.example", "b.a.example", "c.example"];
const NAMES: &[&str] = &["example", "A.example.", "b.a.example", "x.b.a.EXAMPLE", "other", "", "."];

fn port() -> impl Strategy<Value = u16> {
    prop_oneof![0..6_u16, 1020..1030_u16, 65_530..=65_535_u16]
}

fn port_range() -> impl Strategy<Value = RangeInclusive<u16>> {
    (port(), port()).prop_map(|(a, b)| a.min(b)..=a.max(b))
}

fn direction() -> impl Strategy<Value = Direction> {
    select(&[Direction::Inbound, Direction::Outbound][..])
}

fn protocol() -> impl Strategy<Value = Protocol> {
    prop_oneof![4 => Just(Protocol::Tcp), 1 => Just(Protocol::Udp)]
}

fn listen() -> impl Strategy<Value = Address> {
    select(&["127.0.0.1:1", "127.0.0.1:2", "unix:/x", "unix:@x"][..])
        .prop_map(|text| text.parse().unwrap())
}

fn when() -> impl Strategy<Value = When> {
    select(&["mon-fri", "sat", "wed-thu"][..]).prop_map(|days| When {
        days: Days::parse(days).unwrap(),
        days_of_month: DaysOfMonth::ALL,
        months: Months::ALL,
        hours: vec![Hours::ALL],
        from: None,
        until: None,
        zone: Zone::named("UTC").unwrap(),
    })
}

fn program() -> impl Strategy<Value = PathBuf> {
    select(&["/bin/a", "/bin/b"][..]).prop_map(PathBuf::from)
}

fn user() -> impl Strategy<Value = String> {
    select(&["ann", "bob"][..]).prop_map(str::to_owned)
}

fn cgroup() -> impl Strategy<Value = String> {
    select(&["a", "a/b", "ab"][..]).prop_map(str::to_owned)
}

fn unit() -> impl Strategy<Value = String> {
    select(&["a", "b"][..]).prop_map(str::to_owned)
}

fn run() -> impl Strategy<Value = String> {
    select(&["night"][..]).prop_map(str::to_owned)
}

prop_compose! {
    fn any_rule()(
        way in (direction(), protocol()),
        local in vec(address_selector(), 0..2),
        local_ports in vec(port_range(), 0..2),
        remote in vec(address_selector(), 0..4),
        remote_ports in vec(port_range(), 0..3),
        program in vec(program(), 0..2),
        user in vec(user(), 0..2),
        group in vec(user(), 0..2),
        cgroup in vec(cgroup(), 0..2),
        unit in vec(unit(), 0..2),
        run in vec(run(), 0..2),
        listen in vec(listen(), 0..3),
        when in option::weighted(0.2, when()),
        (deny, is_of_run, is_audited) in any::<(bool, bool, bool)>(),
    ) -> Rule {
        let arriving = (Direction::Inbound, Protocol::Tcp);
        let (direction, protocol) = if listen.is_empty() { way } else { arriving };
        // A unit is a control group, which may contradict another one.
        let unit = if cgroup.is_empty() { unit } else { Vec::new() };
        let selectors = Selectors {
            direction, protocol, local, local_ports, remote, remote_ports, when, program, user,
            group, cgroup, unit, run,
        };
        let action = if deny { Action::Deny(Deny::Refused) } else { Action::Permit };
        let rule = rule(selectors, listen, action);
        let rule = if is_audited { rule.in_audit_mode() } else { rule };
        if is_of_run { of_run(rule) } else { rule }
    }
}

fn end() -> impl Strategy<Value = Address> {
    prop_oneof![
        8 => (ip(), port()).prop_map(|(ip, port)| SocketAddr::new(ip, port).into()),
        1 => Just(Address::Unnamed),
    ]
}

prop_compose! {
    fn any_flow()(
        way in (direction(), protocol()),
        listen in option::of(listen()),
        local in end(),
        remote in end(),
        remote_names in vec(select(NAMES).prop_map(str::to_owned), 0..3),
        program in option::of(program()),
        user in option::of(user()),
        group in option::of(user()),
        cgroup in option::of(cgroup()),
        run in option::of(run()),
        day in 0..7_i64,
    ) -> Flow {
        let arriving = (Direction::Inbound, Protocol::Tcp);
        let (direction, protocol) = if listen.is_none() { way } else { arriving };
        let at_unix_s = day * 86_400;
        let to_own_host = day % 3 == 0;
        Flow {
            direction, protocol, listen, local, remote, remote_names, program, user, group, cgroup,
            run, at_unix_s, to_own_host, alias: None, is_shared: false,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn finds_what_a_naive_scan_finds(
        rules in vec(any_rule().prop_map(Arc::new), 0..12),
        flows in vec(any_flow(), 1..24),
    ) {
        let index = Index::new(&rules);
        for flow in flows {
            let naive = rules.iter().position(|rule| rule.matches(&flow).is_ok());
            prop_assert_eq!(index.lookup(&flow).rule, naive, "{:?}", flow);
        }
    }

    #[test]
    fn an_owner_is_needed_exactly_if_some_owner_gets_another_rule(
        rules in vec(any_rule().prop_map(Arc::new), 0..12),
        flows in vec(any_flow(), 1..3),
    ) {
        let index = Index::new(&rules);
        let programs = ["/bin/a", "/bin/b", "/bin/other"].map(|path| Some(PathBuf::from(path)));
        let users = ["ann", "bob", "other"].map(|name| Some(name.to_owned()));
        let groups = users.clone();
        let cgroups = ["a", "a/b", "ab", "b", "other"].map(|path| Some(path.to_owned()));
        let runs = ["night", "other"].map(|name| Some(name.to_owned()));
        for flow in flows {
            let found = index.lookup(&flow);
            let owners = programs.iter().flat_map(|p| users.iter().map(move |u| (p, u)));
            let owners = owners.flat_map(|(p, u)| groups.iter().map(move |g| (p, u, g)));
            let owners = owners.flat_map(|(p, u, g)| cgroups.iter().map(move |c| (p, u, g, c)));
            let owners = owners.flat_map(|(p, u, g, c)| runs.iter().map(move |r| (p, u, g, c, r)));
            let another = owners.map(|(program, user, group, cgroup, run)| Flow {
                program: flow.program.clone().or_else(|| program.clone()),
                user: flow.user.clone().or_else(|| user.clone()),
                group: flow.group.clone().or_else(|| group.clone()),
                cgroup: flow.cgroup.clone().or_else(|| cgroup.clone()),
                run: flow.run.clone().or_else(|| run.clone()),
                ..flow.clone()
            }).any(|owned| index.lookup(&owned).rule != found.rule);
            prop_assert_eq!(found.needs_owner, another, "{:?}", flow);
        }
    }

    #[test]
    fn prefixes_make_up_the_range_and_nothing_else(range in port_range(), probe in port()) {
        let mut parts = Vec::new();
        ports(std::slice::from_ref(&range), &mut parts);
        let inside = parts.iter().any(|part| {
            port_bits(part.port_length(), Some(probe)) == Some(narrow(part.bits))
        });
        prop_assert_eq!(inside, range.contains(&probe));
        prop_assert!(parts.len() <= 30);
    }
}

#[test]
fn an_audited_deny_matches_an_unknown_owner_as_the_deny_will() {
    let of_program = Selectors { program: vec!["/bin/a".into()], ..outbound() };
    let deny = rule(of_program, Vec::new(), Action::Deny(Deny::Refused));
    let flow = to(([10, 0, 0, 1], 80).into(), &[]);
    let unknown = Flow { program: None, ..flow.clone() };
    let other = Flow { program: Some("/bin/b".into()), ..flow };
    for rule in [deny.clone(), deny.in_audit_mode()] {
        assert!(rule.matches(&unknown).is_ok() && rule.matches(&other).is_err());
        assert_eq!(Index::new([&Arc::new(rule)]).lookup(&unknown).rule, Some(0));
    }
}

#[test]
fn an_address_of_this_host_is_reached_only_by_a_rule_that_names_it() {
    let own: SocketAddr = ([10, 0, 0, 5], 80).into();
    let matches = |remote: AddressSelector, names: &[&str], to_own_host: bool| {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let rule =
            rule(Selectors { remote: vec![remote], ..outbound() }, Vec::new(), Action::Permit);
        rule.matches(&Flow { to_own_host, ..to(own, &names) }).is_ok()
    };
    let wide = || AddressSelector::network(own.ip(), 8);
    let single = || AddressSelector::network(own.ip(), 32);
    let name = || AddressSelector::Name { host: "me.example".to_owned(), wildcard: false };
    assert!(matches(wide(), &[], false) && !matches(wide(), &[], true));
    assert!(matches(single(), &[], true));
    assert!(matches(name(), &["me.example"], true) && !matches(name(), &["other.example"], true));
}

#[test]
fn prefixes_of_the_widest_ranges() {
    assert!(prefixes(0, u128::MAX, 128).eq([(0, 0)]));
    assert_eq!(prefixes(1, u128::MAX - 1, 128).count(), 254);
    assert!(prefixes(0, 65_535, 16).eq([(0, 0)]));
    assert_eq!(prefixes(1, 65_534, 16).count(), 30);
    assert_eq!(prefixes(1, u128::from(u32::MAX) - 1, 32).count(), 62);
}

/// A way in which the rules of one test differ, and the flow that only the given rule matches.
type Kind = (&'static str, fn(u16) -> (Selectors, Flow));

const HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

const KINDS: &[Kind] = &[
    ("address", |i| {
        let ip = Ipv4Addr::from_bits(0x0a00_0000 + u32::from(i));
        let selector = AddressSelector::Prefix { network: ip.into(), length: 32 };
        (Selectors { remote: vec![selector], ..outbound() }, to((ip, 443).into(), &[]))
    }),
    ("prefix", |i| {
        let ip = Ipv6Addr::from_bits((0xfd00 << 112) + (u128::from(i) << 80));
        let selector = AddressSelector::Prefix { network: ip.into(), length: 48 };
        (Selectors { remote: vec![selector], ..outbound() }, to((ip, 443).into(), &[]))
    }),
    ("range", |i| {
        let first = 0x2c00_0003 + (u32::from(i) << 8);
        let [first, ip, last] = [first, first + 9, first + 90].map(Ipv4Addr::from_bits);
        let selector = AddressSelector::Range { first: first.into(), last: last.into() };
        (Selectors { remote: vec![selector], ..outbound() }, to((ip, 443).into(), &[]))
    }),
    ("port", |i| {
        let port = i + 1;
        let ports = vec![port..=port];
        let flow = to((HOST, port).into(), &[]);
        (Selectors { remote_ports: ports, ..outbound() }, flow)
    }),
    ("port range", |i| {
        let first = 6 * i + 1;
        let ports = vec![first..=first + 5];
        let flow = to((HOST, first + 4).into(), &[]);
        (Selectors { remote_ports: ports, ..outbound() }, flow)
    }),
    ("address and port range", |i| {
        let ip = Ipv4Addr::from_bits(0xac10_0000 + u32::from(i));
        let remote = vec![AddressSelector::Prefix { network: ip.into(), length: 32 }];
        let selectors = Selectors { remote, remote_ports: vec![5001..=5009], ..outbound() };
        (selectors, to((ip, 5004).into(), &[]))
    }),
    ("name", |i| {
        let host = format!("h{i}.corp.example");
        let flow = to((HOST, 443).into(), std::slice::from_ref(&host));
        let selector = AddressSelector::Name { host, wildcard: false };
        (Selectors { remote: vec![selector], ..outbound() }, flow)
    }),
    ("wildcard", |i| {
        let host = format!("h{i}.corp.example");
        let flow = to((HOST, 443).into(), &[format!("a.{host}")]);
        let selector = AddressSelector::Name { host, wildcard: true };
        (Selectors { remote: vec![selector], ..outbound() }, flow)
    }),
];

/// Returns the largest number of comparisons of a look-up among `count` rules: of flows for the
/// first, the middle and the last rule, and of a flow that matches no rule.
fn worst(count: u16, make: impl Fn(u16) -> (Selectors, Flow)) -> u32 {
    let rules: Vec<Arc<Rule>> =
        (0..count).map(|i| rule(make(i).0, Vec::new(), Action::Permit).into()).collect();
    let index = Index::new(&rules);
    let mut worst = 0;
    for i in [0, count / 2, count - 1] {
        let found = index.lookup(&make(i).1);
        assert_eq!(found.rule, Some(usize::from(i)));
        worst = worst.max(found.comparisons);
    }
    let stranger = to(([203, 0, 113, 1], 65_535).into(), &["x.y.example".to_owned()]);
    let missed = index.lookup(&stranger);
    assert_eq!(missed.rule, None);
    worst.max(missed.comparisons)
}

#[test]
fn comparisons_do_not_grow_with_rules_that_differ_in_address_or_port() {
    for (kind, make) in KINDS {
        let [few, more, many] = [10, 1000, 10_000].map(|count| worst(count, make));
        println!("{kind}: {few} comparisons among 10 rules, {more} among 1,000, {many} of 10,000");
        assert!(more <= few && many <= few, "{kind}: {few}, {more}, {many}");
    }
}

#[test]
fn comparisons_do_not_grow_when_kinds_are_mixed() {
    // A rule with only a port would match the flows of the other kinds.
    let kinds: Vec<_> = KINDS.iter().filter(|(kind, _)| !kind.starts_with("port")).collect();
    let count = u16::try_from(kinds.len()).unwrap();
    let mixed = |i: u16| kinds[usize::from(i % count)].1(i / count);
    let [few, more, many] = [10, 1000, 10_000].map(|count| worst(count, mixed));
    println!("mixed: {few} comparisons among 10 rules, {more} among 1,000, {many} of 10,000");
    assert!(more <= few && many <= few, "{few}, {more}, {many}");
}

#[test]
fn a_rule_of_many_long_lists_is_indexed_by_fewer_values() {
    let ranges: Vec<_> = (0..40).map(|i| 1000 * i + 1..=1000 * i + 998).collect();
    let whole = |bits| Ipv6Addr::from_bits(bits).into();
    let range = AddressSelector::Range { first: whole(1), last: whole(u128::MAX - 1) };
    let selectors = Selectors { remote: vec![range], remote_ports: ranges, ..outbound() };
    let index = Index::new(&[rule(selectors, Vec::new(), Action::Permit).into()]);
    let entries: usize = index.tables.iter().map(|table| table.rules.len()).sum();
    assert!(entries <= ENTRIES_PER_RULE_MAX, "{entries}");
    let ip: IpAddr = "2001:db8::1".parse().unwrap();
    assert_eq!(index.lookup(&to((ip, 1001).into(), &[])).rule, Some(0));
    assert_eq!(index.lookup(&to((ip, 1000).into(), &[])).rule, None);
}
