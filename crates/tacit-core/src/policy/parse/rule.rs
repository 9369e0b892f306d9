//! Parses one rule of a policy: a table `[[rule]]`.

use std::time::Duration;

use super::activate;
use super::forward::{self, Destination};
use super::ipsec;
use super::names::Names;
use super::run;
use super::selectors::{addresses, ports, programs, refuse_filter_keys, users};
use super::tls::{self, RoleDefault, ServerNameDefault, Setting};
use super::words::Scope;
use super::{address, value, when};
use crate::flow::{Direction, Protocol};
use crate::message_id::MessageId;
use crate::policy::rule::{Action, Answers, Deny, ForwardRule, PathChoice, Rule, RuleForm};
use crate::policy::selector::Selectors;
use crate::policy::selector::{AddressSelector, NamePattern};
use crate::policy::target::Target;
use crate::policy::text::{TableTitle, TomlTable, TomlValue};

/// The range of `idle`. Its lower end prevents normal pauses of programs from closing connections.
const IDLE_MIN: Duration = Duration::from_secs(1);
const IDLE_MAX: Duration = Duration::from_secs(365 * 86_400);

/// Reads one rule; `None` after an error was reported.
pub(super) fn read(value: &TomlValue<'_>, names: &Names<'_>) -> Option<Rule> {
    let table = value.table(Scope::Rule, title(value))?;
    refuse_filter_keys(&table);
    let name = name(&table);
    let word = action_word(&table);
    let Body { selectors, form, setting } = match word {
        Some(Word::Ipsec) => tunnel_body(&table),
        _ if is_forwarding(&table) => forwarding_body(&table, word, names),
        _ => run_body(&table),
    };
    let allowed = allowed_names(&table, word, selectors.as_ref());
    let tls = table.value("tls").map(|value| tls::read(&value, &setting, names));
    let action = word.and_then(|word| match word {
        Word::Permit => Some(Action::Permit),
        Word::Deny => table.value("deny").and_then(|value| deny(&value)).map(Action::Deny),
        Word::Tls => tls.flatten().map(Action::Tls),
        Word::Ipsec => table.value("ipsec").and_then(|value| ipsec::action(&value, names)),
    });
    let mode = mode(&table);
    let log = table.boolean("log", false);
    let idle = table
        .value("idle")
        .map_or(Some(None), |value| value::duration(&value, IDLE_MIN, IDLE_MAX).map(Some));
    let words = [("destination", Answers::Destination), ("any", Answers::Any)];
    let answers = table.value("answers").map_or(Some(None), |value| value.choice(&words).map(Some));
    let path = path(&table);
    let position = table.report.position(table.at.start);
    let rule = Rule {
        name: name?.to_owned(),
        selectors: selectors?,
        names: allowed?,
        form: form?,
        action: action?,
        audited: None,
        log: log?,
        idle: idle?,
        answers: answers?.unwrap_or_default(),
        path: path?,
        position,
    };
    let sound = check_protocol(&table, &rule)
        & check_prohibited(&table, &rule)
        & check_idle(&table, &rule)
        & check_answers(&table, &rule)
        & check_path(&table, &rule)
        & forward::check_clear(&table, &rule)
        & forward::check_send_proxy(&table, &rule)
        & activate::check(&table, &rule);
    let rule = match mode? {
        Mode::Enforce => rule,
        Mode::Audit => {
            warn_of_audit(&table, &rule.action);
            rule.in_audit_mode()
        }
    };
    warn_of_names(&table, &rule);
    warn_of_all_names(&table, &rule);
    sound.then_some(rule)
}

/// The name of a rule in messages.
pub(super) fn title<'a>(value: &TomlValue<'a>) -> TableTitle<'a> {
    let name = value.value.get("name").and_then(|name| name.data.as_str());
    match name {
        Some(name) => TableTitle::Named { kind: "rule", name },
        None => "this rule".into(),
    }
}

/// Reads the name of a rule.
pub(super) fn name<'a>(table: &TomlTable<'a>) -> Option<&'a str> {
    let name = table.required("name", "set a name: name = \"front\"");
    name.and_then(|value| value::name(&value))
}

/// Whether a rule is enforced.
#[derive(Clone, Copy, Debug)]
enum Mode {
    Enforce,
    Audit,
}

/// Parses `mode`. A forwarding rule cannot be in audit mode, because without the agent it would
/// have no connections.
fn mode(table: &TomlTable<'_>) -> Option<Mode> {
    let Some(value) = table.value("mode") else { return Some(Mode::Enforce) };
    let mode = value.choice(&[("enforce", Mode::Enforce), ("audit", Mode::Audit)])?;
    if is_forwarding(table) {
        let why = "`mode` is only for rules that apply to programs under `tacit run` or to a \
                   captured host, but this is a forwarding rule";
        table.refuse(&["mode"], why, "remove `mode`");
        return None;
    }
    Some(mode)
}

/// Warns about a rule in audit mode: flows pass, although its action would protect or refuse them.
fn warn_of_audit(table: &TomlTable<'_>, action: &Action) {
    let (Some(value), Action::Tls(_) | Action::Deny(_)) = (table.value("mode"), action) else {
        return;
    };
    let position = table.report.position(value.at.start);
    let action = action.word();
    let message = format!(
        "{rule} is in audit mode: tacit permits the matching flows in clear, and does not apply \
         `{action}`",
        rule = table.title
    );
    let fix = "set mode = \"enforce\" when `tacit show audit` reports only flows that the rule \
               should match";
    table.report.warning(MessageId("audit-mode"), position, message, fix);
}

/// The parts of a rule except its name and action. A part is `None` after an error.
struct Body {
    selectors: Option<Selectors>,
    form: Option<RuleForm>,
    /// The defaults of `tls`.
    setting: Setting,
}

fn forwarding_body(table: &TomlTable<'_>, word: Option<Word>, names: &Names<'_>) -> Body {
    let destination = match word {
        Some(Word::Deny) => forward::refuse_connect(table),
        _ if table.holds("activate") => activate::named(table, names).map(Destination::Program),
        _ => forward::connect(table),
    };
    let setting = forwarding_setting(destination.as_ref());
    let forward = forward::read(table, destination);
    let selectors = forwarding_selectors(table, forward.as_ref());
    Body { selectors, form: forward.map(RuleForm::Forward), setting }
}

fn run_body(table: &TomlTable<'_>) -> Body {
    body_of(run::read(table))
}

fn tunnel_body(table: &TomlTable<'_>) -> Body {
    body_of(ipsec::read(table))
}

fn body_of(rule: Option<run::RunRule>) -> Body {
    let setting = run::setting(rule.as_ref());
    match rule {
        Some(rule) => Body { selectors: Some(rule.selectors), form: Some(rule.form), setting },
        None => Body { selectors: None, form: None, setting },
    }
}

/// The action of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Permit,
    Deny,
    Tls,
    Ipsec,
}

/// Parses which action a rule has.
pub(super) fn action_word(table: &TomlTable<'_>) -> Option<Word> {
    let actions = [
        ("permit", Word::Permit),
        ("deny", Word::Deny),
        ("tls", Word::Tls),
        ("ipsec", Word::Ipsec),
    ];
    let given = || {
        let all = actions.into_iter();
        all.filter_map(|(key, word)| table.value(key).map(|value| (value, word)))
    };
    match given().count() {
        0 => {
            let fix = "add one of `permit = true`, `deny = true`, `tls = { … }`";
            let message = format!("{} has no action", table.title);
            table.incomplete(message, fix);
            None
        }
        1 => given().find(|(value, word)| is_chosen(value, *word)).map(|(_, word)| word),
        _ => {
            let mut values: Vec<_> = given().map(|(value, _)| value).collect();
            values.sort_by_key(|value| value.name_at.start);
            let [first, second] = [&values[0], &values[1]];
            let message = format!(
                "{rule} has two actions, `{first}` and `{second}`",
                rule = table.title,
                first = first.name,
                second = second.name
            );
            let fix = "remove one of the two actions, or write two rules: tacit applies the first \
                       rule that matches";
            table.report.error(MessageId("two-actions"), &second.name_at, message, fix);
            None
        }
    }
}

/// Parses `deny`.
fn deny(value: &TomlValue<'_>) -> Option<Deny> {
    if value.value.is_bool() {
        return Some(Deny::Refused);
    }
    value.choice(&[("refused", Deny::Refused), ("prohibited", Deny::Prohibited)])
}

/// Returns whether `permit` or `deny` is true; other values are errors.
fn is_chosen(value: &TomlValue<'_>, word: Word) -> bool {
    if matches!(word, Word::Tls | Word::Ipsec) || (word == Word::Deny && value.value.is_str()) {
        return true;
    }
    match value.boolean() {
        Some(true) => true,
        Some(false) => {
            let message = format!("`{key} = false` is not an action", key = value.name);
            value.error(message, "set the action: `permit = true`, `deny = true` or `tls`");
            false
        }
        None => false,
    }
}

/// Whether the author meant a forwarding rule, even if the rule has errors.
fn is_forwarding(table: &TomlTable<'_>) -> bool {
    let has_target = table.holds("connect") || table.holds("activate");
    let of_run = table.holds("direction") && !has_target;
    table.holds("listen") && !table.holds("local-ports") && !of_run
}

fn forwarding_setting(destination: Option<&Destination>) -> Setting {
    let connect = match destination {
        Some(Destination::Server(connect)) => Some(connect),
        Some(Destination::Nowhere | Destination::Program(_)) | None => None,
    };
    let server = connect.map(|connect| {
        let hosts: Option<Vec<_>> = connect.targets.iter().map(Target::host).collect();
        match hosts.as_deref() {
            Some([first, others @ ..]) if others.iter().all(|other| other == first) => {
                ServerNameDefault::Host(first.clone())
            }
            Some(_) => ServerNameDefault::Dialled,
            None => ServerNameDefault::Nothing,
        }
    });
    Setting { role: RoleDefault::MustBeSaid, server }
}

fn forwarding_selectors(table: &TomlTable<'_>, forward: Option<&ForwardRule>) -> Option<Selectors> {
    let why = "a forwarding rule always matches inbound connections over TCP or a UNIX socket";
    let fix = "remove `{key}`: `listen` already determines its value";
    table.refuse(&["direction", "protocol", "local"], why, fix);
    let why = "this key selects programs, but a rule with `listen` is a forwarding rule and \
               applies to clients";
    let keys = ["run", "group", "cgroup", "slice", "unit"];
    let fix = "remove `{key}`; or remove `listen`, and set direction = \"outbound\"";
    table.refuse(&keys, why, fix);
    let remote = addresses(table, "remote", |value| {
        let selector = address::selector(value)?;
        if matches!(selector, AddressSelector::Name { .. }) {
            let message = "`remote` of a rule with `listen` cannot be a name: tacit knows only the \
                           client's address";
            value.error(message, "write the client's address or network");
            return None;
        }
        Some(selector)
    });
    let remote_ports = ports(table, "remote-ports");
    if let Some(forward) = forward {
        warn_of_unix_clients(table, forward);
    }
    Some(Selectors {
        direction: Direction::Inbound,
        protocol: Protocol::Tcp,
        local: Vec::new(),
        local_ports: Vec::new(),
        remote: remote?,
        remote_ports: remote_ports?,
        program: programs(table)?,
        user: users(table)?,
        group: Vec::new(),
        cgroup: Vec::new(),
        unit: Vec::new(),
        run: Vec::new(),
        when: when::read(table)?,
    })
}

/// A client on a UNIX socket has no address, unless a PROXY header contains one.
fn warn_of_unix_clients(table: &TomlTable<'_>, forward: &ForwardRule) {
    let only_unix = forward.listen.iter().all(|address| address.ip().is_none());
    if !only_unix || forward.accept_proxy {
        return;
    }
    for value in ["remote", "remote-ports"].into_iter().filter_map(|key| table.value(key)) {
        let position = table.report.position(value.name_at.start);
        let message = format!(
            "`{key}` has no effect, because clients of a UNIX socket have no IP address",
            key = value.name
        );
        table.report.warning(
            MessageId("no-effect"),
            position,
            message,
            format!("remove `{}`; `unix-mode` controls which users may connect", value.name),
        );
    }
}

/// Parses `names`: the names that programs may resolve because of a rule that matches by address.
fn allowed_names(
    table: &TomlTable<'_>,
    word: Option<Word>,
    selectors: Option<&Selectors>,
) -> Option<Vec<NamePattern>> {
    let Some(value) = table.value("names") else { return Some(Vec::new()) };
    let refuse = |message: &str, fix: &str| {
        table.report.error(
            MessageId("misplaced-key"),
            &value.name_at,
            message.to_owned(),
            fix.to_owned(),
        );
        None
    };
    let direction = selectors.map(|selectors| selectors.direction);
    if is_forwarding(table) || direction == Some(Direction::Inbound) {
        let message = "`names` is only for outbound rules, because it selects the DNS names that \
                       programs may resolve";
        return refuse(message, "remove `names`, or write a rule with direction = \"outbound\"");
    }
    if word == Some(Word::Deny) {
        let message = "`names` has no effect in a rule with `deny`";
        return refuse(message, "remove `names`");
    }
    let remote = selectors.map_or(&[][..], |selectors| &selectors.remote);
    let is_name = |selector: &AddressSelector| matches!(selector, AddressSelector::Name { .. });
    if !remote.is_empty() && remote.iter().all(is_name) {
        let message = "`names` needs addresses in `remote`, but `remote` of this rule is a name";
        return refuse(
            message,
            "remove `names`; programs can resolve the names in `remote` without this key",
        );
    }
    value.each(address::name_pattern)
}

/// Warns about `*`, because a program can leak data in the names that it resolves.
fn warn_of_all_names(table: &TomlTable<'_>, rule: &Rule) {
    if rule.names.contains(&NamePattern::Any)
        && let Some(value) = table.value("names")
    {
        let position = table.report.position(value.at.start);
        let message = format!(
            "{rule} lets programs resolve every name, so a program can send out data in DNS \
             queries",
            rule = table.title
        );
        let fix = "write only the domains that are needed: names = [\"*.example.com\"]";
        table.report.warning(MessageId("all-names"), position, message, fix);
    }
}

/// Checks that the protocol supports the action.
fn check_protocol(table: &TomlTable<'_>, rule: &Rule) -> bool {
    let sound = rule.selectors.protocol == Protocol::Tcp || !matches!(rule.action, Action::Tls(_));
    if !sound && let Some(tls) = table.value("tls") {
        let fix = "set protocol = \"tcp\", or use `permit = true` or `deny = true`";
        table.report.error(
            MessageId("conflicting-keys"),
            &tls.name_at,
            "`tls` needs TCP, but this rule is for UDP",
            fix,
        );
    }
    sound
}

/// Only programs of runs can get an error that states a reason.
fn check_prohibited(table: &TomlTable<'_>, rule: &Rule) -> bool {
    let is_wrong = rule.action == Action::Deny(Deny::Prohibited)
        && rule.selectors.direction != Direction::Outbound;
    if is_wrong && let Some(deny) = table.value("deny") {
        let message = "`deny = \"prohibited\"` is only for connections that programs open, but \
                       this rule is for inbound connections";
        table.report.error(
            MessageId("conflicting-keys"),
            &deny.name_at,
            message,
            "set `deny = true`, which resets the connection",
        );
    }
    !is_wrong
}

/// UDP flows have their own idle timeout, and denied flows have none.
fn check_idle(table: &TomlTable<'_>, rule: &Rule) -> bool {
    let has_streams = rule.selectors.protocol == Protocol::Tcp;
    let is_wrong = rule.idle.is_some() && (!has_streams || matches!(rule.action, Action::Deny(_)));
    if is_wrong && let Some(idle) = table.value("idle") {
        let message = "`idle` applies only to TCP connections that tacit relays";
        table.report.error(MessageId("conflicting-keys"), &idle.name_at, message, "remove `idle`");
    }
    !is_wrong
}

/// Only datagram flows that programs of runs begin can have answers from other addresses.
fn check_answers(table: &TomlTable<'_>, rule: &Rule) -> bool {
    let Selectors { direction, protocol, .. } = &rule.selectors;
    let is_right = rule.action == Action::Permit
        && *direction == Direction::Outbound
        && *protocol == Protocol::Udp;
    let Some(answers) = table.value("answers").filter(|_| !is_right) else { return true };
    let message = "`answers` is only for rules that permit UDP flows of programs under `tacit run`";
    let fix = "remove `answers`, or set direction = \"outbound\", protocol = \"udp\" and permit = \
               true";
    table.report.error(MessageId("conflicting-keys"), &answers.name_at, message, fix);
    false
}

/// Reads `path`. The outer `None` means that an error was reported.
pub(super) fn path(table: &TomlTable<'_>) -> Option<Option<PathChoice>> {
    table.value("path").map_or(Some(None), |value| value.choice(&PathChoice::WORDS).map(Some))
}

/// Only connections that the agent neither protects nor refuses can have another path.
fn check_path(table: &TomlTable<'_>, rule: &Rule) -> bool {
    let is_wrong = rule.path.is_some() && !rule.permits_connections();
    if is_wrong && let Some(path) = table.value("path") {
        let message = "`path` is only for rules that permit outbound TCP connections in clear";
        let fix = "remove `path`, or set direction = \"outbound\" and permit = true";
        table.report.error(MessageId("conflicting-keys"), &path.name_at, message, fix);
    }
    !is_wrong
}

/// A rule that permits by name is only as secure as DNS.
fn warn_of_names(table: &TomlTable<'_>, rule: &Rule) {
    if rule.action != Action::Permit {
        return;
    }
    let by_remote = rule.selectors.remote.iter().any(|s| matches!(s, AddressSelector::Name { .. }));
    let connect = rule.connect();
    let targets = connect.map_or(&[][..], |connect| &connect.targets);
    let by_connect = targets
        .iter()
        .position(|target| matches!(target, Target::Name { host, .. } if host != "localhost"));
    let remote = if by_remote { table.value("remote") } else { None };
    let connect = by_connect.and_then(|place| forward::item(table, "connect", place));
    for value in [remote, connect].into_iter().flatten() {
        let position = table.report.position(value.at.start);
        let message = format!(
            "{rule} permits connections by name, so an attacker who forges DNS answers can choose \
             the destination",
            rule = table.title
        );
        let fix =
            "write addresses instead of names, or use `tls`, which verifies the server's name";
        table.report.warning(MessageId("permit-by-name"), position, message, fix);
    }
}
