//! Parses filter rules: the rules with the key `filter`. These rules permit or deny single packets.
//! With `tacit agent --host`, these are the packets of the host. With `tacit run`, these are the
//! packets in the IPsec tunnels of the program.

use std::collections::{BTreeMap, BTreeSet};

use super::names::Names;
use super::rule;
use super::selectors::{addresses, ports};
use super::words::{FORWARDING_KEYS, Scope};
use super::{address, when};
use crate::message_id::MessageId;
use crate::policy::capture::{self, named};
use crate::policy::filter::{
    Discard, FilterLimit, FilterLog, FilterPlan, FilterRule, FilterVerdict, FragmentMatch, Opener,
    PacketDirection, PacketSelectors, Routing, protocol_names, protocol_number,
};
use crate::policy::host::HostSettings;
use crate::policy::rule::Rule;
use crate::policy::selector::AddressSelector;
use crate::policy::text::{TomlTable, TomlValue, nearest_word};

use super::super::filter::{FlowArea, ICMP, ICMPV6, PlanScope, TCP, WITH_PORTS};

/// Whether a rule is a filter rule.
pub(super) fn is_filter(value: &TomlValue<'_>) -> bool {
    value.value.get("filter").is_some()
}

/// Reads a rule with `filter`; `None` after an error was reported. `flows_before` is the number of
/// other rules before it.
pub(super) fn rule(
    value: &TomlValue<'_>,
    flows_before: usize,
    host: Option<&HostSettings>,
    names: &Names<'_>,
) -> Option<FilterRule> {
    let table = value.table(Scope::Rule, rule::title(value))?;
    let is_alone = refuse(&table);
    let is_in_place = match table.holds("tunnel") {
        true => refuse_in_tunnel(&table),
        false => check_host(&table, host),
    };
    let name = rule::name(&table);
    let verdict = verdict(&table);
    let log = table.value("log").map_or(Some(FilterLog::None), |value| log(&value));
    let selectors = selectors(&table, host, names);
    let rule = FilterRule {
        name: name?.to_owned(),
        flows_before,
        verdict: verdict?,
        selectors: selectors?,
        log: log?,
        position: table.report.position(table.at.start),
    };
    (is_alone && is_in_place && is_sound(&table, &rule)).then_some(rule)
}

/// Reports keys that filter rules do not have. Returns whether there are none.
fn refuse(table: &TomlTable<'_>) -> bool {
    let actions = ["permit", "deny", "tls", "ipsec"];
    let fix = "remove one of the two actions, or write two rules: tacit applies the first rule \
               that matches";
    let why = "a rule has only one action, and this rule has the action `filter`";
    table.refuse(&actions, why, fix);
    let others = [
        "link", "names", "program", "user", "group", "cgroup", "slice", "unit", "run", "mode",
        "idle", "answers", "path", "listen",
    ];
    let why = "a rule with `filter` matches each packet by its headers only";
    let fix = "remove `{key}`, or replace `filter` with `permit` or `deny`";
    table.refuse(&others, why, fix);
    table.refuse(&FORWARDING_KEYS, why, fix);
    !actions.iter().chain(&others).chain(&FORWARDING_KEYS).any(|key| table.holds(key))
}

/// Reports keys that rules for the packets of tunnels do not have. Returns whether there are none.
fn refuse_in_tunnel(table: &TomlTable<'_>) -> bool {
    let of_host = ["interface", "class", "routing", "fragments", "discard"];
    let why = "this key cannot be used with `tunnel`, because the key is for packets of the host, \
               and `tunnel` is for packets inside IPsec tunnels of `tacit run`";
    table.refuse(&of_host, why, "remove `{key}`, or remove `tunnel`");
    let why = "tacit counts packets inside tunnels, but does not log them";
    let fix = "remove `log`; to see the packet count of each rule, run `tacit show filters`";
    table.refuse(&["log"], why, fix);
    !of_host.iter().chain(&["log"]).any(|key| table.holds(key))
}

fn check_host(table: &TomlTable<'_>, host: Option<&HostSettings>) -> bool {
    if host.is_none()
        && let Some(value) = table.value("filter")
    {
        let rule = &table.title;
        let message = format!("{rule} filters packets of a host, but the policy has no [host]");
        let fix = "add [host] with unmatched = \"permit\" or \"deny\". To filter packets of a \
                   tunnel instead, set `tunnel` to the NAME of its table [ike.NAME] or [sa.NAME]";
        table.report.error(MessageId("not-for-runs"), &value.name_at, message, fix);
    }
    host.is_some()
}

fn verdict(table: &TomlTable<'_>) -> Option<FilterVerdict> {
    let words = [("permit", true), ("deny", false)];
    let permits = table.value("filter").and_then(|value| value.choice(&words));
    let discard =
        table.value("discard").map_or(Some(None), |value| value.choice(&Discard::WORDS).map(Some));
    if permits? {
        let why = "`discard` is only for packets that a rule denies, but this rule permits packets";
        table.refuse(&["discard"], why, "remove `discard`");
        return (!table.holds("discard")).then_some(FilterVerdict::Permit);
    }
    Some(FilterVerdict::Deny(discard?.unwrap_or_default()))
}

/// `true` and `false` are as in other rules.
fn log(value: &TomlValue<'_>) -> Option<FilterLog> {
    match value.value.as_bool() {
        Some(true) => Some(FilterLog::All),
        Some(false) => Some(FilterLog::None),
        None => value.choice(&FilterLog::WORDS),
    }
}

fn selectors(
    table: &TomlTable<'_>,
    host: Option<&HostSettings>,
    names: &Names<'_>,
) -> Option<PacketSelectors> {
    let tunnels = table
        .value("tunnel")
        .map_or(Some(Vec::new()), |value| value.each_once(|one| names.tunnel_peer(one)));
    let fragments = table.boolean("fragments", false);
    let direction = direction(table, fragments);
    let protocols =
        table.value("protocol").map_or(Some(Vec::new()), |value| value.each_once(protocol));
    let local = addresses(table, "local", ip);
    let local_ports = ports(table, "local-ports");
    let remote = addresses(table, "remote", ip);
    let remote_ports = ports(table, "remote-ports");
    let numbers = |key| {
        table.value(key).map_or(Some(Vec::new()), |value| {
            value.each_once(|one| u8::try_from(one.integer(0, u8::MAX.into())?).ok())
        })
    };
    let icmp_types = numbers("icmp-type");
    let icmp_codes = numbers("icmp-code");
    let opened_by =
        table.value("opened-by").map_or(Some(None), |value| value.choice(&Opener::WORDS).map(Some));
    let interfaces = interfaces(table, host);
    let routing =
        table.value("routing").map_or(Some(Routing::Local), |value| value.choice(&Routing::WORDS));
    let when = when::read(table);
    Some(PacketSelectors {
        direction: direction?,
        protocols: protocols?,
        local: local?,
        local_ports: local_ports?,
        remote: remote?,
        remote_ports: remote_ports?,
        icmp_types: icmp_types?,
        icmp_codes: icmp_codes?,
        opened_by: opened_by?,
        fragments: if fragments? { FragmentMatch::Fragments } else { FragmentMatch::Whole },
        interfaces: interfaces?,
        routing: routing?,
        when: when?,
        tunnels: tunnels?,
    })
}

/// Fragments are seen only as they arrive.
fn direction(table: &TomlTable<'_>, fragments: Option<bool>) -> Option<PacketDirection> {
    let default = match fragments {
        Some(true) => PacketDirection::Inbound,
        _ => PacketDirection::default(),
    };
    let Some(value) = table.value("direction") else { return Some(default) };
    let direction = value.choice(&PacketDirection::WORDS)?;
    if fragments == Some(true) && direction != PacketDirection::Inbound {
        let message = "`fragments` is only for incoming packets: the nftables rules see outgoing \
                       packets before the kernel fragments them";
        value.error_of(MessageId("conflicting-keys"), message, "set direction = \"inbound\"");
        return None;
    }
    Some(direction)
}

fn protocol(value: &TomlValue<'_>) -> Option<u8> {
    if value.value.is_integer() {
        return u8::try_from(value.integer(0, u8::MAX.into())?).ok();
    }
    let text = value.string()?;
    let number = protocol_number(text).filter(|_| !text.starts_with(|c: char| c.is_ascii_digit()));
    if number.is_none() {
        let known: Vec<_> = protocol_names().collect();
        let fix = match nearest_word(text, &known) {
            Some(word) => format!("did you mean `{word}`?"),
            None => "write a number from 0 to 255, or a name such as \"gre\"".to_owned(),
        };
        value.error_of(MessageId("unknown-word"), format!("`protocol` cannot be `{text}`"), fix);
    }
    number
}

/// The name of a host has no effect on packets.
fn ip(value: &TomlValue<'_>) -> Option<AddressSelector> {
    let selector = address::selector(value)?;
    if matches!(selector, AddressSelector::Name { .. }) {
        let message = format!("`{key}` of a rule with `filter` cannot be a name", key = value.name);
        value.error(message, "write the address or network");
        return None;
    }
    Some(selector)
}

/// The interfaces of `interface`, or those that have a class.
fn interfaces(table: &TomlTable<'_>, host: Option<&HostSettings>) -> Option<Vec<String>> {
    let names = table.value("interface").map_or(Some(Vec::new()), |value| {
        value.each_once(|one| super::host::interface_name(one).map(str::to_owned))
    });
    let Some(value) = table.value("class") else { return names };
    if table.holds("interface") {
        let message = "`class` and `interface` cannot be in one rule";
        value.error_of(MessageId("conflicting-keys"), message, "remove `class` or `interface`");
        return None;
    }
    let classes = value.each_once(|one| {
        let class = u8::try_from(one.integer(0, u8::MAX.into())?).ok()?;
        let known = host.map(|host| &host.classes);
        let of_class = known.into_iter().flatten().filter(|(_, other)| **other == class);
        let of_class: Vec<String> = of_class.map(|(name, _)| name.clone()).collect();
        if of_class.is_empty() && host.is_some() {
            let message = format!("no interface in `classes` of [host] has class {class}");
            let fix =
                format!("give an interface this class in [host]: classes = {{ eth0 = {class} }}");
            one.error_of(MessageId("unknown-name"), message, fix);
            return None;
        }
        Some(of_class)
    });
    Some(classes?.into_iter().flatten().collect())
}

/// Reports conditions that no packet meets.
fn is_sound(table: &TomlTable<'_>, rule: &FilterRule) -> bool {
    let selectors = &rule.selectors;
    let of = |kinds: &[u8]| {
        !selectors.protocols.is_empty() && selectors.protocols.iter().all(|one| kinds.contains(one))
    };
    let is_fragments = selectors.fragments == FragmentMatch::Fragments;
    let mut is_sound = true;
    let mut needs = |keys: &[&'static str], is_met: bool, what: &str, fix: &str| {
        for value in keys.iter().filter_map(|key| table.value(key)).filter(|_| !is_met) {
            let message = format!("`{key}` does not work in this rule: {what}", key = value.name);
            value.error_at_name(MessageId("conflicting-keys"), message, fix);
            is_sound = false;
        }
    };
    needs(
        &["local-ports", "remote-ports"],
        of(&WITH_PORTS),
        "the rule matches protocols that have no ports",
        "set protocol = \"tcp\", \"udp\", \"sctp\", \"dccp\" or \"udplite\"",
    );
    needs(
        &["icmp-type", "icmp-code"],
        of(&[ICMP, ICMPV6]),
        "the rule matches protocols other than ICMP",
        "set protocol = \"icmp\" or \"icmpv6\"",
    );
    needs(
        &["opened-by"],
        of(&[TCP]),
        "the rule matches protocols other than TCP",
        "set protocol = \"tcp\"",
    );
    let keys = ["local-ports", "remote-ports", "icmp-type", "icmp-code", "opened-by", "routing"];
    needs(
        &keys,
        !is_fragments,
        "tacit supports this policy key only for unfragmented packets",
        "remove `{key}`, or remove `fragments`",
    );
    needs(
        &["discard"],
        !is_fragments || rule.verdict == FilterVerdict::Deny(Discard::Silent),
        "the kernel sends no ICMP error or TCP reset in reply to a fragment",
        "remove `discard`, or remove `fragments`",
    );
    is_sound
}

/// Reports what filter rules of a host cannot do together with the other rules.
pub(super) fn check(
    host: Option<&HostSettings>,
    rules: &[Option<&Rule>],
    filters: &[(&TomlValue<'_>, &FilterRule)],
) {
    let mut leading = BTreeMap::new();
    for (at, rule) in rules.iter().enumerate() {
        if let Some((rule, ipsec)) = rule.and_then(|rule| Some((rule, rule.ipsec()?))) {
            leading.entry(ipsec.peer.as_str()).or_insert((at, rule));
        }
    }
    filters.iter().for_each(|(value, filter)| check_order_of_tunnel(value, filter, &leading));
    let tunnels: BTreeSet<&str> =
        filters.iter().flat_map(|(_, one)| &one.selectors.tunnels).map(String::as_str).collect();
    let scopes = tunnels.into_iter().map(PlanScope::Tunnel);
    scopes.for_each(|scope| check_limits(&[], filters, scope));
    let Some(host) = host else { return };
    let of_host: Vec<_> =
        filters.iter().copied().filter(|(_, filter)| PlanScope::Host.has(filter)).collect();
    for (value, filter) in &of_host {
        let before = rules.get(..filter.flows_before).unwrap_or_default();
        check_order(value, filter, before.iter().copied().flatten());
        if !host.forwarded.is_empty() && filter.selectors.routing != Routing::Local {
            let at = value.at_key("routing");
            let message = format!(
                "rule `{}` cannot filter forwarded packets while `forwarded` is set in [host]: \
                 `forwarded` lists interfaces, and tacit captures the flows that the host forwards \
                 from these interfaces",
                filter.name
            );
            let fix = "remove `routing` from the rule, or remove `forwarded` from [host]";
            value.report.error(MessageId("not-for-host"), &at, message, fix);
        }
    }
    if !of_host.is_empty() {
        let flows: Vec<_> = rules.iter().map(|rule| rule.map(capture::flow_area)).collect();
        check_limits(&flows, filters, PlanScope::Host);
    }
}

/// Reports more filter rules of a scope than it can have.
fn check_limits(
    flows: &[Option<FlowArea<'_>>],
    filters: &[(&TomlValue<'_>, &FilterRule)],
    scope: PlanScope<'_>,
) {
    let Some((first, _)) = filters.iter().find(|(_, filter)| scope.has(filter)) else { return };
    let all: Vec<_> = filters.iter().map(|(_, filter)| (*filter).clone()).collect();
    if let Some(limit) = FilterPlan::of(flows, &all, 0, scope).exceeded() {
        let fix = match limit {
            FilterLimit::Elements => {
                "replace several rules by one rule with a network or a port range"
            }
            FilterLimit::Lookups(_) => {
                "write rules whose addresses and ports do not overlap, and set `protocol`"
            }
            FilterLimit::Schedules(_) => {
                "use fewer time windows: set the same `when` in several filter rules"
            }
            FilterLimit::Logged(_) => "remove `log` from some filter rules",
        };
        first.report.error(MessageId("too-many-ranges"), &first.at, limit.to_string(), fix);
    }
}

/// Reports a rule that leads packets into a tunnel before a rule that filters the tunnel: the first
/// rule that matches decides, and none is after it. `leading` has the first rule for each peer.
fn check_order_of_tunnel(
    value: &TomlValue<'_>,
    filter: &FilterRule,
    leading: &BTreeMap<&str, (usize, &Rule)>,
) {
    let mut found = filter.selectors.tunnels.iter().filter_map(|ike| leading.get(ike.as_str()));
    let Some((_, rule)) = found.find(|(at, _)| *at < filter.flows_before) else { return };
    let at = value.at_key("tunnel");
    let message = format!(
        "rule `{}` filters the packets of a tunnel, but the earlier rule `{}` sends packets \
         through the tunnel. tacit applies only the first rule that matches",
        filter.name, rule.name
    );
    let fix = format!("move rule `{}` before rule `{}`", filter.name, rule.name);
    value.report.error(MessageId("filter-after-tunnel"), &at, message, fix);
}

/// Reports a rule for some senders or names before a filter rule: the packets that such a rule
/// matches are not known from their headers.
fn check_order<'r>(
    value: &TomlValue<'_>,
    filter: &FilterRule,
    before: impl Iterator<Item = &'r Rule>,
) {
    for rule in before.filter(|rule| rule.is_of_host()) {
        let selectors = &rule.selectors;
        let lists = [
            ("program", selectors.program.is_empty()),
            ("user", selectors.user.is_empty()),
            ("group", selectors.group.is_empty()),
            ("cgroup", selectors.cgroup.is_empty()),
            ("unit", selectors.unit.is_empty()),
        ];
        let sender = lists.into_iter().find(|(_, is_empty)| !is_empty).map(|(key, _)| key);
        let by_name = named::is_by_name(rule).then_some("remote");
        let Some(key) = sender.or(by_name) else { continue };
        let at = value.at_key("filter");
        let message = format!(
            "rule `{}` filters packets by their headers, but the earlier rule `{}` selects flows \
             by {}. Packet headers do not contain this information",
            filter.name,
            rule.name,
            if key == "remote" { "name".to_owned() } else { format!("`{key}`") }
        );
        let fix = format!("move rule `{}` before rule `{}`", filter.name, rule.name);
        value.report.error(MessageId("not-for-host"), &at, message, fix);
        return;
    }
}
