//! Compares the rules of a policy with each other. Reports mistakes such as two rules with the same
//! name, or a rule that never matches because of an earlier rule.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::flow::{Address, Direction, Flow};
use crate::message_id::MessageId;
use crate::policy::lookup::Index;
use crate::policy::parse::FindingsShown;
use crate::policy::rule::{Action, ForwardRule, Rule, RuleForm};
use crate::policy::selector::Selectors;
use crate::policy::selector::{AddressSelector, Near, is_within};
use crate::policy::text::{Diagnostics, TomlValue};
use crate::policy::tls::{Tls, Verify};
use crate::policy::when::When;

/// Reports duplicate names, including names of rules with other errors.
pub(super) fn names(rules: &[TomlValue<'_>]) {
    let mut seen: HashMap<&str, usize> = HashMap::with_capacity(rules.len());
    for rule in rules {
        let Some(name) = rule.value.get("name") else { continue };
        let Some(text) = name.data.as_str() else { continue };
        if let Some(first) = seen.get(text) {
            let from = rule.report.position(name.at.start);
            let line = rule.report.line(rule.report.position(*first), from);
            let message = format!("two rules are named `{}`", text.escape_debug());
            let fix = format!("rename one of the two rules; the other rule is in line {line}");
            rule.report.error(MessageId("name-taken"), &name.at, message, fix);
        } else {
            seen.insert(text, name.at.start);
        }
    }
}

/// A rule without errors, and its position.
#[derive(Clone, Copy)]
pub(super) struct Read<'r, 'a> {
    pub(super) value: &'r TomlValue<'a>,
    pub(super) rule: &'r Arc<Rule>,
}

/// Reports rules that conflict, and warns about rules without effect.
pub(super) fn rules(report: &Diagnostics<'_>, rules: &[Read<'_, '_>], shown: FindingsShown) {
    shared_listens(rules);
    if shown == FindingsShown::All {
        unreachable(report, rules);
        weaker_before_tls(report, rules);
    }
}

/// The largest number of pairs of rules that are compared for [`weaker_before_tls`].
const COMPARED_MAX: usize = 1 << 20;

/// Warns about a rule that matches by name and does not check the server, if it comes before a rule
/// that does, and both match the same port. DNS answers then decide which of the two rules applies.
fn weaker_before_tls(report: &Diagnostics<'_>, rules: &[Read<'_, '_>]) {
    let is_by_name = |rule: &Rule| {
        let remote = &rule.selectors.remote;
        rule.selectors.direction == Direction::Outbound
            && remote.iter().any(|one| matches!(one, AddressSelector::Name { .. }))
    };
    let all = rules.iter().map(|read| &**read.rule);
    let by_name: Vec<&Rule> = all.filter(|rule| is_by_name(rule)).collect();
    let mut compared = 0;
    for (place, weak) in by_name.iter().enumerate().filter(|(_, rule)| is_unchecked(rule)) {
        let strict = by_name[place + 1..].iter().find(|rule| {
            compared += 1;
            matches!(rule.action, Action::Tls(_)) && !is_unchecked(rule) && share_a_port(weak, rule)
        });
        let Some(strict) = strict else { continue };
        let line = report.line(strict.position, weak.position);
        let weaker = &weak.name;
        let stricter = &strict.name;
        let message = format!(
            "rule `{weaker}` does not verify servers, and comes before rule `{stricter}` in line \
             {line}. Both rules match the same port. If a server's name matches both rules, tacit \
             does not verify the server. If two names have the same address, tacit cannot always \
             distinguish the names. Then tacit applies rule `{stricter}` to both names, or refuses \
             the connection"
        );
        let fix = format!(
            "move rule `{weaker}` after `{stricter}`, or give the two rules different ports"
        );
        report.warning(MessageId("unchecked-name"), weak.position, message, fix);
        if compared > COMPARED_MAX {
            return;
        }
    }
}

/// Whether the rule accepts any server without a check.
fn is_unchecked(rule: &Rule) -> bool {
    match &rule.action {
        Action::Permit => true,
        Action::Tls(Tls::Client(client)) => matches!(client.verify, Verify::None { .. }),
        Action::Tls(Tls::Server(_)) | Action::Deny(_) | Action::Ipsec(_) => false,
    }
}

fn share_a_port(a: &Rule, b: &Rule) -> bool {
    let a = &a.selectors;
    let b = &b.selectors;
    let overlap = |a: &RangeInclusive<u16>, b: &RangeInclusive<u16>| {
        a.start() <= b.end() && b.start() <= a.end()
    };
    let share = a.remote_ports.is_empty()
        || b.remote_ports.is_empty()
        || a.remote_ports.iter().any(|a| b.remote_ports.iter().any(|b| overlap(a, b)));
    a.protocol == b.protocol && share
}

/// Reports rules that share a listening address and have different settings for it.
fn shared_listens(rules: &[Read<'_, '_>]) {
    let mut first_at: HashMap<&Address, &Rule> = HashMap::new();
    for Read { value, rule } in rules {
        for address in rule.listens() {
            let first = *first_at.entry(address).or_insert(rule);
            let Some(Conflict { key, problem, fix }) = conflict(address, first, rule) else {
                continue;
            };
            let message = format!("rules `{}` and `{}` conflict: {problem}", first.name, rule.name);
            let at = value.at_key(key);
            value.report.error(MessageId("shared-listen"), &at, message, fix);
        }
    }
}

/// The reason why two rules cannot share a listening address.
struct Conflict {
    /// The key of the later rule to report.
    key: &'static str,
    problem: String,
    fix: String,
}

fn conflict(address: &Address, first: &Rule, rule: &Rule) -> Option<Conflict> {
    match (&first.form, &rule.form) {
        (RuleForm::Forward(one), RuleForm::Forward(other)) => {
            let key = disagreement(address, one, other)?;
            let problem =
                format!("both rules listen at {address}, but have different values of `{key}`");
            Some(Conflict { key, problem, fix: format!("set the same `{key}` in both rules") })
        }
        (RuleForm::Forward(_), _) | (_, RuleForm::Forward(_)) => Some(Conflict {
            key: "listen",
            problem: format!(
                "both rules listen at {address}, but one is a forwarding rule, and the other is a \
                 rule for programs under `tacit run`"
            ),
            fix: "choose another address for one of the two rules".to_owned(),
        }),
        // Only inbound rules for runs have addresses to share.
        _ => None,
    }
}

fn disagreement(address: &Address, a: &ForwardRule, b: &ForwardRule) -> Option<&'static str> {
    let has_path = matches!(address, Address::Path(_));
    let keys = [
        ("accept-proxy", a.accept_proxy == b.accept_proxy),
        ("unix-mode", !has_path || a.unix.mode == b.unix.mode),
        ("unix-owner", !has_path || a.unix.owner == b.unix.owner),
        ("replace-stale", !has_path || a.unix.replace_stale == b.unix.replace_stale),
    ];
    keys.into_iter().find(|(_, agree)| !agree).map(|(key, _)| key)
}

/// The largest number of earlier rules with which a rule is compared, so that the largest policy is
/// checked within seconds.
const COVER_PLACES_MAX: usize = 1024;

/// Warns about a rule that one earlier rule covers completely.
///
/// Two cases are not found: a rule that only several earlier rules together cover, and a rule whose
/// covering rule is more than [`COVER_PLACES_MAX`] after the first candidate.
fn unreachable(report: &Diagnostics<'_>, rules: &[Read<'_, '_>]) {
    let index = Index::new(rules.iter().map(|read| read.rule));
    for (place, Read { rule, .. }) in rules.iter().enumerate() {
        // A covering rule also matches this flow, and no rule before `first` does. For most rules
        // `first` is the rule itself, so most rules need no comparison.
        let Some(first) = index.lookup(&typical_flow(rule)).rule else { continue };
        let earlier = rules.get(first..place).unwrap_or_default();
        let mut compared = earlier.iter().take(COVER_PLACES_MAX);
        let Some(Read { rule: cover, .. }) = compared.find(|read| covers(read.rule, rule)) else {
            continue;
        };
        let line = report.line(cover.position, rule.position);
        let message = format!(
            "rule `{}` is never used, because all flows that it matches already match rule `{}` in \
             line {line}",
            rule.name, cover.name
        );
        let fix = format!("move this rule before rule `{}`, or remove this rule", cover.name);
        report.warning(MessageId("unreachable-rule"), rule.position, message, fix);
    }
}

/// Returns a flow that the rule matches.
fn typical_flow(rule: &Rule) -> Flow {
    let Selectors { direction, protocol, program, user, group, cgroup, unit, run, .. } =
        &rule.selectors;
    let local = typical_end(&rule.selectors.local, &rule.selectors.local_ports);
    let remote = typical_end(&rule.selectors.remote, &rule.selectors.remote_ports);
    Flow {
        direction: *direction,
        protocol: *protocol,
        listen: rule.listens().first().cloned(),
        local: local.address,
        remote: remote.address,
        remote_names: remote.name.into_iter().collect(),
        alias: None,
        is_shared: false,
        // An owner that no other rule can name.
        program: Some(program.first().cloned().unwrap_or_default()),
        user: Some(user.first().cloned().unwrap_or_default()),
        group: Some(group.first().cloned().unwrap_or_default()),
        // The control group of a unit has its name, below slices.
        cgroup: Some(cgroup.first().or_else(|| unit.first()).cloned().unwrap_or_default()),
        run: Some(run.first().cloned().unwrap_or_default()),
        to_own_host: false,
        at_unix_s: rule.selectors.when.as_ref().map_or(0, When::typical_time),
    }
}

/// One end of a flow.
struct End {
    address: Address,
    /// The name that the program resolved to the address.
    name: Option<String>,
}

fn typical_end(addresses: &[AddressSelector], ports: &[RangeInclusive<u16>]) -> End {
    let ip = match addresses.first() {
        None if ports.is_empty() => return End { address: Address::Unnamed, name: None },
        None | Some(AddressSelector::Name { .. }) => Ipv4Addr::BROADCAST.into(),
        Some(AddressSelector::Prefix { network, .. }) => *network,
        Some(AddressSelector::Range { first, .. }) => *first,
        Some(AddressSelector::Near(Near::Loopback)) => Ipv4Addr::LOCALHOST.into(),
        Some(AddressSelector::Near(Near::LinkLocal)) => Ipv4Addr::new(169, 254, 0, 0).into(),
    };
    let name = match addresses.first() {
        Some(AddressSelector::Name { host, wildcard: true }) => Some(format!("any.{host}")),
        Some(AddressSelector::Name { host, wildcard: false }) => Some(host.clone()),
        _ => None,
    };
    let port = ports.first().map_or(0, |ports| *ports.start());
    End { address: SocketAddr::new(ip, port).into(), name }
}

/// Whether `a` matches every flow that `b` matches.
pub(super) fn covers(a: &Rule, b: &Rule) -> bool {
    let listens = a.listens().is_empty() == b.listens().is_empty()
        && b.listens().iter().all(|address| a.listens().contains(address));
    // A rule that denies also matches unknown owners; other rules do not.
    let unknown_too = a.enforced().is_deny() || !b.enforced().is_deny();
    let a = &a.selectors;
    let b = &b.selectors;
    let ports = |a: &RangeInclusive<u16>, b: &RangeInclusive<u16>| {
        a.start() <= b.start() && b.end() <= a.end()
    };
    listens
        && a.direction == b.direction
        && a.protocol == b.protocol
        && (a.when.is_none() || a.when == b.when)
        && all_covered(&a.local, &b.local, AddressSelector::covers)
        && all_covered(&a.local_ports, &b.local_ports, ports)
        && remotes_covered(a, b)
        && all_covered(&a.remote_ports, &b.remote_ports, ports)
        && all_covered(&a.program, &b.program, |a, b| unknown_too && a == b)
        && all_covered(&a.user, &b.user, |a, b| unknown_too && a == b)
        && all_covered(&a.group, &b.group, |a, b| unknown_too && a == b)
        && all_covered(&a.cgroup, &b.cgroup, |a, b| unknown_too && is_within(b, a))
        && all_covered(&a.unit, &b.unit, |a, b| unknown_too && a == b)
        && all_covered(&a.run, &b.run, |a, b| unknown_too && a == b)
}

/// The same as [`all_covered`]. Wide selectors do not cover connections that programs open to this
/// host or this link.
fn remotes_covered(a: &Selectors, b: &Selectors) -> bool {
    let named = |selector: &AddressSelector| {
        selector.near().is_none()
            || a.remote.iter().any(|a| a.near().is_some() && a.covers(selector))
    };
    all_covered(&a.remote, &b.remote, AddressSelector::covers)
        && (a.direction != Direction::Outbound || b.remote.iter().all(named))
}

/// Whether each condition of `b` is covered by a condition of `a`; an empty list matches
/// everything.
fn all_covered<T>(a: &[T], b: &[T], covers: impl Fn(&T, &T) -> bool) -> bool {
    a.is_empty() || (!b.is_empty() && b.iter().all(|b| a.iter().any(|a| covers(a, b))))
}
