//! Parses the policy table `[host]`: the settings for capturing the traffic of a whole host. Also
//! reports rules with settings that `tacit agent --host` does not support.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::review::{self, Read};
use super::words::Scope;
use crate::message_id::MessageId;
use crate::policy::capture::named;
use crate::policy::capture::{
    self, HOST_RANGES_MAX, HOST_SECTIONS_MAX, HOST_UNITS_MAX, HostSection, NAMED_PORTS_MAX,
    NameRules, PORT_PARTS_MAX, SENDER_CHECKS_MAX,
};
use crate::policy::filter::is_interface_name;
use crate::policy::host::{FORWARDED_MAX, HostMode, HostSettings, Unmatched};
use crate::policy::rule::{Action, Rule, RuleForm};
use crate::policy::selector::{Near, Selectors};
use crate::policy::starttls::{Start, StarttlsProtocol};
use crate::policy::text::{TomlTable, TomlValue};
use crate::policy::tls::{OwnTls, Tls};

/// Reads `[host]`; `Some(None)` if there is none.
pub(super) fn read(top: &TomlTable<'_>) -> Option<Option<HostSettings>> {
    let Some(value) = top.value("host") else { return Some(None) };
    let table = value.table(Scope::Host, "[host]")?;
    let words = [("permit", Unmatched::Permit), ("deny", Unmatched::Deny)];
    let fix = "set what happens to flows that no rule matches: unmatched = \"permit\" or \"deny\"";
    let unmatched = table.required("unmatched", fix).and_then(|value| value.choice(&words));
    let mark = table.value("mark").map_or(Some(HostSettings::MARK_DEFAULT), |value| mark(&value));
    let unit_mark = unit_mark(&table, mark);
    let position = table.report.position(table.at.start);
    let mode = table.value("mode").map_or(Some(HostMode::Enforce), |value| mode(&value));
    let forwarded = table.value("forwarded").map_or(Some(Vec::new()), |value| forwarded(&value));
    let classes = table.value("classes").map_or(Some(BTreeMap::new()), |value| classes(&value));
    Some(Some(HostSettings {
        unmatched: unmatched?,
        mark: mark?,
        unit_mark: unit_mark?,
        mode: mode?,
        forwarded: forwarded?,
        classes: classes?,
        position,
    }))
}

fn mode(value: &TomlValue<'_>) -> Option<HostMode> {
    let mode = value.choice(&[("enforce", HostMode::Enforce), ("audit", HostMode::Audit)])?;
    if mode == HostMode::Audit {
        let message =
            "[host] is in audit mode: tacit permits all captured flows, and encrypts none of them";
        let fix = "set mode = \"enforce\" when `tacit show audit` shows the flows that you expect";
        let position = value.report.position(value.at.start);
        value.report.warning(MessageId("audit-mode"), position, message, fix);
    }
    Some(mode)
}

/// Names of interfaces.
fn forwarded(value: &TomlValue<'_>) -> Option<Vec<String>> {
    if value.value.as_array().is_some_and(|list| list.len() > FORWARDED_MAX) {
        value.list(FORWARDED_MAX)?;
    }
    value.each_once(|item| {
        let name = item.string()?;
        if !is_interface_except_lo(name) {
            let message = format!(
                "`forwarded` needs interface names other than `lo`, but contains `{}`",
                name.escape_debug()
            );
            item.error(message, "write the name of a bridge, as `ip link` shows it: \"docker0\"");
        }
        is_interface_except_lo(name).then(|| name.to_owned())
    })
}

/// The name of an interface for filter rules, which are not for `lo`.
pub(super) fn interface_name<'a>(value: &TomlValue<'a>) -> Option<&'a str> {
    let name = value.string()?;
    if !is_interface_except_lo(name) {
        let message = format!(
            "a filter rule needs interface names other than `lo`, but this rule has `{}`",
            name.escape_debug()
        );
        value.error(message, "write the name of an interface, as `ip link` shows it: \"eth0\"");
    }
    is_interface_except_lo(name).then_some(name)
}

/// Whether this is the name of an interface that `[host]` and filter rules can name.
fn is_interface_except_lo(name: &str) -> bool {
    is_interface_name(name) && name != "lo"
}

/// The classes of interfaces, by name.
fn classes(value: &TomlValue<'_>) -> Option<BTreeMap<String, u8>> {
    let table = value.table(Scope::InterfaceClasses, "`classes`")?;
    let mut classes = BTreeMap::new();
    for (name, class) in table.named_tables() {
        let class = TomlValue { name: "classes", ..class };
        if !is_interface_except_lo(name) || name.is_empty() {
            let message = format!(
                "`classes` needs interface names other than `lo`, but contains `{}`",
                name.escape_debug()
            );
            let fix = "write the name of an interface, as `ip link` shows it: \"eth0\"";
            class.report.error(MessageId("invalid-value"), &class.name_at, message, fix);
            return None;
        }
        classes.insert(name.to_owned(), u8::try_from(class.integer(0, u8::MAX.into())?).ok()?);
    }
    Some(classes)
}

/// Gives a rule what `[host]` says of all rules, and the defaults of rules of a host.
pub(super) fn with_settings(
    host: Option<&HostSettings>,
    value: &TomlValue<'_>,
    mut rule: Rule,
) -> Rule {
    let Some(host) = host else { return rule };
    if !rule.is_of_host() {
        return rule;
    }
    // Programs of a host are not started for tacit: those that use TLS keep it.
    let tls = value.value.get("tls").map(|tls| &tls.data);
    let is_open = tls.is_none_or(|tls| tls.get("on-tls").is_none());
    if let Action::Tls(tls) = &mut rule.action
        && let Tls::Client(client) = tls
        && let Some(own_tls) = &mut Arc::make_mut(client).own_tls
        && is_open
    {
        *own_tls = OwnTls::Pass;
    }
    // What passes anyway is not reported.
    if host.mode == HostMode::Audit && rule.audited.is_none() && rule.action != Action::Permit {
        return rule.in_audit_mode();
    }
    rule
}

/// Parses two bits, written as a hexadecimal number.
fn mark(value: &TomlValue<'_>) -> Option<u32> {
    let fix = "write a mask with two bits that no other program uses: \"0x30000000\"";
    bits(value, "mark", fix, |bits| bits.count_ones() == 2)
}

/// Parses the bit for units, which must not be one of `mark`.
fn unit_mark(table: &TomlTable<'_>, mark: Option<u32>) -> Option<u32> {
    let used = mark.unwrap_or_default();
    let fix = "write a mask with one bit that is not in `mark` and that no other program uses: \
               \"0x40000000\"";
    let is_free = |bit: &u32| bit & used == 0;
    match table.value("unit-mark") {
        Some(value) => bits(&value, "unit-mark", fix, |bit| bit.is_power_of_two() && is_free(bit)),
        None => HostSettings::UNIT_MARK_DEFAULTS.into_iter().find(is_free),
    }
}

/// Parses bits, written as a hexadecimal number.
fn bits(
    value: &TomlValue<'_>,
    key: &str,
    fix: &str,
    is_valid: impl FnOnce(&u32) -> bool,
) -> Option<u32> {
    let text = value.string()?;
    let digits = text.strip_prefix("0x").unwrap_or_default();
    let bits = u32::from_str_radix(digits, 16).ok().filter(is_valid);
    if bits.is_none() {
        value.error(format!("`{key}` cannot be `{}`", text.escape_debug()), fix);
    }
    bits
}

/// Reports inbound rules without `listen`, and senders, which only the capture of a host has.
pub(super) fn refuse_rules(rules: &[Read<'_, '_>]) {
    for Read { value, rule } in rules {
        if rule.form == RuleForm::HostInbound {
            let message = format!("rule `{}` has no `listen`", rule.name);
            let fix = "set where tacit listens: listen = \"0.0.0.0:8443\"; or, to capture this \
                       host, add [host]";
            value.report.missing(MessageId("missing-key"), &value.at, message, fix);
        }
        let Some(key) = sender_key(value, rule) else { continue };
        let message = format!(
            "rule `{}` has `{key}`, but this key is only for `tacit agent --host`, and the policy \
             has no table [host]",
            rule.name
        );
        let fix = format!("remove `{key}`; or, to capture this host, add [host]");
        let at = value.at_key(key);
        value.report.error(MessageId("not-for-runs"), &at, message, &fix);
    }
}

/// Reports for each rule the first setting that a captured host does not support.
pub(super) fn check_rules(host: &HostSettings, rules: &[Read<'_, '_>]) {
    for Read { value, rule } in rules {
        let (found, or) = match rule.form {
            RuleForm::Outbound if rule.selectors.run.is_empty() => (
                unsupported(rule),
                Some("add `run` if the rule is only for programs under `tacit run`"),
            ),
            RuleForm::HostInbound => (unsupported_inbound(rule), None),
            RuleForm::TunnelInbound if rule.selectors.run.is_empty() => {
                (Some(TUNNEL), Some("add `run` if the rule is only for programs under `tacit run`"))
            }
            RuleForm::Outbound
            | RuleForm::TunnelInbound
            | RuleForm::Inbound(_)
            | RuleForm::Forward(_) => continue,
        };
        let Some(Unsupported { key, problem, fix }) = found else { continue };
        let at = value.at_key(key);
        let message =
            format!("rule `{}` does not work with `tacit agent --host`: {problem}", rule.name);
        let fix = or.map_or_else(|| fix.to_owned(), |or| format!("{fix}; or {or}"));
        value.report.error(MessageId("not-for-host"), &at, message, fix);
    }
    if host.unmatched == Unmatched::Permit || host.mode == HostMode::Audit {
        check_other_programs(rules);
    }
    check_groups(rules);
    check_limits(host, rules);
    check_names(host, rules);
}

/// The first sender of a rule that the agent checks: the kernel cannot tell programs or units
/// apart.
fn agent_key(selectors: &Selectors) -> Option<&'static str> {
    let lists = [("program", selectors.program.is_empty()), ("unit", selectors.unit.is_empty())];
    lists.into_iter().find(|(_, is_empty)| !is_empty).map(|(key, _)| key)
}

/// Reports rules that name programs or units, where the agent would find no rule for others: it
/// rejects what no rule matches.
fn check_other_programs(rules: &[Read<'_, '_>]) {
    for (place, Read { value, rule }) in rules.iter().enumerate() {
        let key = agent_key(&rule.selectors).filter(|_| capture::is_of_host(rule));
        let Some(key) = key else { continue };
        let for_all = |read: &&Read<'_, '_>| {
            let selectors = &read.rule.selectors;
            let is_any_senders = selectors.program.is_empty()
                && selectors.unit.is_empty()
                && selectors.user.is_empty()
                && selectors.group.is_empty()
                && selectors.cgroup.is_empty()
                && selectors.run.is_empty();
            is_any_senders && selectors.when.is_none() && review::covers(read.rule, rule)
        };
        if rules[place + 1..].iter().any(|read| for_all(&read)) {
            continue;
        }
        let at = value.at_key(key);
        let message = format!(
            "rule `{}` selects programs by `{key}`, but tacit captures the flows of all programs \
             to the destinations of this rule. tacit refuses the flows that `{key}` does not \
             select, because no later rule matches these flows",
            rule.name
        );
        let fix = format!(
            "after this rule, add a rule that has the same destinations and no `{key}`, for \
             example a rule with permit = true; or set unmatched = \"deny\" and mode = \
             \"enforce\" in [host]"
        );
        value.report.error(MessageId("no-rule-for-others"), &at, message, fix);
    }
}

/// Reports rules with `group` that the agent would have to match: the kernel compares the group of
/// a socket, and the agent cannot find it out.
fn check_groups(rules: &[Read<'_, '_>]) {
    let of_host = || rules.iter().filter(|read| capture::is_of_host(read.rule));
    // The kernel captures by name before it compares senders.
    let mut undecided = of_host().map(|read| read.rule).find(|rule| named::is_by_name(rule));
    for Read { value, rule } in of_host() {
        let is_for_agent = agent_key(&rule.selectors).is_some();
        undecided = undecided.or_else(|| is_for_agent.then_some(*rule));
        if rule.selectors.group.is_empty() {
            continue;
        }
        let problem = if capture::is_captured(rule) {
            "the agent must compare flows with this rule, but only the kernel can determine the \
             group of a program"
                .to_owned()
        } else if let Some(other) = undecided {
            format!(
                "because of the earlier rule `{}`, the agent must compare flows with this rule, \
                 but only the kernel can determine the group of a program",
                other.name
            )
        } else {
            continue;
        };
        let at = value.at_key("group");
        let message = format!("the agent cannot apply `group` of rule `{}`: {problem}", rule.name);
        let fix = "select programs by `user` or `slice` instead. `group` works only in rules with \
                   `permit` or `deny` that come before all rules with `program` or `unit`. `group` \
                   does not work if any rule has a name in `remote`";
        value.report.error(MessageId("not-for-host"), &at, message, fix);
    }
}

/// Reports more ranges, sections or senders than the kernel's table has.
fn check_limits(host: &HostSettings, rules: &[Read<'_, '_>]) {
    // Rules with time windows count as open. When such a rule is closed, a later rule may need its
    // ranges.
    let all = rules.iter().map(|read| &**read.rule);
    let sections = capture::host_sections(all, host.unmatched);
    let Some(first) = rules.first() else { return };
    let report = |id, message: String, fix| first.value.report.error(id, &(0..0), message, fix);
    if sections.iter().map(|section| section.outbound.len()).sum::<usize>() > HOST_RANGES_MAX {
        let message = format!(
            "the outbound rules have too many ranges of addresses and ports: the limit for a host \
             is {HOST_RANGES_MAX}"
        );
        report(
            MessageId("too-many-ranges"),
            message,
            "replace several rules by one rule with a network or a port range",
        );
    }
    let units: BTreeSet<&String> =
        rules.iter().flat_map(|read| &read.rule.selectors.unit).collect();
    if units.len() > HOST_UNITS_MAX {
        let count = units.len();
        let message =
            format!("the rules contain {count} systemd units; the limit is {HOST_UNITS_MAX}");
        report(
            MessageId("too-many-senders"),
            message,
            "instead of each systemd unit, select the slice that contains the units",
        );
    }
    if sections.len() > HOST_SECTIONS_MAX {
        let message = format!(
            "the outbound rules form {} groups of consecutive rules with the same `user`, `group`, \
             `cgroup` and `unit`; the limit is {HOST_SECTIONS_MAX}",
            sections.len()
        );
        report(
            MessageId("too-many-senders"),
            message,
            "sort the rules, so that rules with the same `user`, `group`, `cgroup` and `unit` are \
             consecutive",
        );
    }
    let has_too_many = |section: &HostSection| section.senders.checks() > SENDER_CHECKS_MAX;
    if sections.iter().any(has_too_many) {
        let message = format!(
            "a rule has more than {SENDER_CHECKS_MAX} combinations of `user`, `group` and `cgroup`"
        );
        report(
            MessageId("too-many-senders"),
            message,
            "select a group that contains the users, or a slice that contains the control groups",
        );
    }
}

/// The first key of a rule that is about senders which no program of a run has.
fn sender_key(value: &TomlValue<'_>, rule: &Rule) -> Option<&'static str> {
    let Selectors { group, cgroup, unit, .. } = &rule.selectors;
    let has_any = !(group.is_empty() && cgroup.is_empty() && unit.is_empty());
    let mut keys = ["group", "cgroup", "slice", "unit"].into_iter();
    has_any.then(|| keys.find(|key| value.value.get(key).is_some())).flatten()
}

/// Reports what rules by name cannot do.
fn check_names(host: &HostSettings, rules: &[Read<'_, '_>]) {
    let all = rules.iter().map(|read| &**read.rule);
    let Some(named) = NameRules::always(all) else { return };
    let mut by_name = rules.iter().filter(|read| named::is_by_name(read.rule));
    let Some(Read { value, rule }) = by_name.next() else { return };
    if named.are_too_many() {
        let message = format!(
            "the outbound rules with names in `remote` have too many different `remote-ports`. \
             tacit puts ports into one group if exactly the same rules select them. The limits are \
             {PORT_PARTS_MAX} groups, and {NAMED_PORTS_MAX} port ranges in total"
        );
        let fix = "use the same `remote-ports` in these rules, or ranges that do not overlap";
        value.report.error(MessageId("too-many-ranges"), &(0..0), message, fix);
    }
    if host.unmatched == Unmatched::Permit {
        let message = format!(
            "rule `{}` has a name in `remote`, but tacit learns addresses only from DNS on port \
             53. If a program gets the address from mDNS, a VPN, an old cache, or encrypted DNS \
             (over TLS or HTTPS), the rule does not match. With unmatched = \"permit\", the \
             connection is then in clear",
            rule.name
        );
        let fix = "set unmatched = \"deny\", or write addresses in `remote`. If neither is \
                   possible, disable DNS over TLS and DNS over HTTPS in resolvers and browsers, \
                   and add a rule with remote-ports = 853 and deny = true";
        value.report.warning(MessageId("names-not-seen"), rule.position, message, fix);
    }
}

/// A setting that a captured host does not support.
struct Unsupported {
    key: &'static str,
    problem: &'static str,
    fix: &'static str,
}

const TUNNEL: Unsupported = Unsupported {
    key: "ipsec",
    problem: "only programs under `tacit run` can use IPsec tunnels",
    fix: "use `tls` or `deny`",
};

fn unsupported(rule: &Rule) -> Option<Unsupported> {
    if rule.ipsec().is_some() {
        return Some(TUNNEL);
    }
    let selectors = &rule.selectors;
    let select = "select flows by the addresses in `remote` and the ports in `remote-ports`";
    let found = |key, problem| Some(Unsupported { key, problem, fix: select });
    if !selectors.local.is_empty() {
        return found("local", "rules for programs outside `tacit run` cannot have `local`");
    }
    if !selectors.local_ports.is_empty() {
        return found(
            "local-ports",
            "outbound rules for programs outside `tacit run` cannot have `local-ports`",
        );
    }
    let by_name = || unsupported_by_name(selectors).filter(|_| named::is_by_name(rule));
    if let Some(found) = by_name() {
        return Some(found);
    }
    if selectors.remote.iter().any(|one| one.near() == Some(Near::Loopback)) {
        return found(
            "remote",
            "tacit does not capture connections to loopback addresses of the host",
        );
    }
    unsupported_tls(rule)
}

/// Senders of a rule by name. The kernel captures the addresses of its names from all senders, and
/// the agent rejects the flows that no rule matches.
fn unsupported_by_name(selectors: &Selectors) -> Option<Unsupported> {
    let found = |key, problem, fix| Some(Unsupported { key, problem, fix });
    if !selectors.user.is_empty() {
        return found(
            "user",
            "a rule with a name in `remote` applies to all users, so it cannot have `user`",
            "remove `user`, or write addresses in `remote`",
        );
    }
    if !selectors.cgroup.is_empty() {
        return found(
            "cgroup",
            "a rule with a name in `remote` applies to all control groups, so it cannot select a \
             control group",
            "remove `cgroup` or `slice`, or write addresses in `remote`",
        );
    }
    if !selectors.unit.is_empty() {
        return found(
            "unit",
            "a rule with a name in `remote` applies to all systemd units, so it cannot have `unit`",
            "remove `unit`, or write addresses in `remote`",
        );
    }
    if !selectors.program.is_empty() {
        return found(
            "program",
            "a rule with a name in `remote` applies to all programs, so it cannot have `program`",
            "remove `program`, or write addresses in `remote`",
        );
    }
    None
}

fn unsupported_inbound(rule: &Rule) -> Option<Unsupported> {
    if !rule.selectors.user.is_empty() {
        let problem = "the client of an inbound connection is another machine, and tacit does not \
                       know the user on that machine";
        return Some(Unsupported { key: "user", problem, fix: "remove `user`" });
    }
    unsupported_tls(rule)
}

fn unsupported_tls(rule: &Rule) -> Option<Unsupported> {
    let Action::Tls(tls) = rule.audited.as_ref().unwrap_or(&rule.action) else { return None };
    let problem = match &tls.common().start {
        Start::Controlled => {
            "with start = \"controlled\", a program uses tacit's query socket to request TLS. Only \
             programs under `tacit run` have this socket"
        }
        Start::Starttls(starttls) if matches!(starttls.protocol, StarttlsProtocol::Ftp(_)) => {
            "tacit does not capture FTP data connections of programs outside `tacit run`"
        }
        Start::Immediate | Start::Starttls(_) => return None,
    };
    Some(Unsupported { key: "tls", problem, fix: "run the program under `tacit run`" })
}
