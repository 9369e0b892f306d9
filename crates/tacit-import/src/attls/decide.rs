//! Second step of an import: what each rule becomes.
//!
//! `flows` decides which flows a rule is about, `tls` how TLS is done, `start` when it begins, and
//! `ignored` reports what has no effect here.

use std::net::SocketAddr;

use super::conditions::{End, show_ports};
use super::context::Context;
use super::effective::Effective;
use super::flows::{self, Listening};
use super::map::Map;
use super::names::Names;
use super::needs::Needs;
use super::patterns::covers;
use super::request::AttlsOptions;
use super::ring_users::RingUsers;
use super::tls::Treatment;
use super::words::Kind;
use crate::draft::{Item, Toml};
use crate::finding::{Findings, Origin};
use tacit_core::flow::Direction;
use tacit_core::policy::text::nearest_word;

/// The rules and tables of the policy that is written.
#[derive(Debug, Default)]
pub(super) struct Decisions {
    /// In the order in which they are tried.
    pub(super) rules: Vec<Item>,
    /// The identities and trusts that they name.
    pub(super) tables: Vec<Item>,
}

/// Decides about all rules; what the map lacks or says too much is reported.
pub(super) fn decide(
    rules: &[Effective<'_>],
    map: &Map,
    options: AttlsOptions,
    findings: &mut Findings,
) -> Decisions {
    check_owners_of_rules(rules, map, findings);
    let needs = Needs::default();
    let names = Names::default();
    let ring_users = RingUsers::of(rules);
    let mut context = Context { map, options, ring_users, needs, names, findings };
    let mut decided: Vec<Decided> = Vec::new();
    for rule in rules {
        decided.extend(context.rule(rule));
    }
    let listening: Vec<Listening<'_>> = decided.iter().map(Decided::listening).collect();
    flows::check_listens(&listening, context.findings);
    let Context { needs, names, findings, .. } = context;
    needs.report(map, findings);
    check_map(rules, map, findings);
    if !findings.has_errors() {
        map.tell_unused(findings);
    }
    let rules = decided.into_iter().map(|decided| decided.item).collect();
    Decisions { rules, tables: names.tables }
}

/// Reports programs and users that the map says of one rule, where the pattern of another rule
/// covers its job name or user ID: that rule would not be for them.
fn check_owners_of_rules(rules: &[Effective<'_>], map: &Map, findings: &mut Findings) {
    let said_of = |rule: &Effective<'_>, keys: &[&str]| {
        keys.iter().any(|key| map.rule(&rule.rule.name, key).is_some())
    };
    for (word, table, keys) in
        [("Jobname", "job", &["program", "user"][..]), ("Userid", "user", &["user"])]
    {
        for rule in rules.iter().filter(|rule| said_of(rule, keys)) {
            let Some(own) = rule.rule.said(word) else { continue };
            let wider = |other: &&Effective<'_>| {
                let pattern = other.rule.said(word).map(|field| field.value.as_str());
                let is_wider = |pattern: &str| {
                    pattern.ends_with('*')
                        && !pattern.eq_ignore_ascii_case(&own.value)
                        && covers(pattern, &own.value)
                };
                pattern.is_some_and(is_wider) && !said_of(other, keys)
            };
            let Some(other) = rules.iter().find(wider) else { continue };
            let message = format!(
                "rule `{}` covers `{}` too, and would not be for what the map says in [rule.{:?}]",
                other.rule.name, own.value, rule.rule.name
            );
            let fix =
                format!("say it in [{table}], as {:?} = …, where each rule finds it", own.value);
            findings.error(&own.at, message, fix);
        }
    }
}

/// A rule with the sockets that were made of its addresses and ports.
struct Decided {
    item: Item,
    listens: Vec<SocketAddr>,
}

impl Decided {
    fn listening(&self) -> Listening<'_> {
        Listening { at: &self.item.at, sockets: &self.listens }
    }
}

impl Context<'_> {
    /// What a rule becomes.
    fn rule(&mut self, rule: &Effective<'_>) -> Vec<Decided> {
        let Some(direction) = rule.rule.said("Direction") else {
            let fix = "say Inbound for what is accepted, Outbound for what is opened, or Both";
            self.findings.error(&rule.rule.at, "the rule has no `Direction`", fix);
            return Vec::new();
        };
        if !has_condition(rule) {
            // It was reported, and stops the import.
            if rule.rule.rejected.iter().any(|word| is_end(word)) {
                return Vec::new();
            }
            let fix = "say a port, an address, a job name or a user ID";
            let message = "the rule has no condition but its direction";
            self.findings.error(&rule.rule.at, message, fix);
            return Vec::new();
        }
        let Some(action) = action(rule, self.findings) else { return Vec::new() };
        if action == Action::Tls {
            self.tell_ignored(rule);
        }
        let directions: &[Direction] = match direction.value.as_str() {
            "Inbound" => &[Direction::Inbound],
            "Outbound" => &[Direction::Outbound],
            _ => &[Direction::Inbound, Direction::Outbound],
        };
        let mut decided = Vec::new();
        for direction in directions {
            let mut ways = self.ways(rule, *direction);
            if directions.len() > 1 {
                ways.iter_mut().for_each(|way| way.add_direction());
            }
            let treatment = match action {
                Action::Tls => self.tls(rule, *direction),
                Action::Permit => Some(Treatment::Permit),
            };
            let Some(treatment) = treatment else { continue };
            for way in ways {
                let mut item = Item::new("[[rule]]", &rule.rule.at);
                item.comments.push(comment(rule));
                item.set("name", format!("{}{}", rule.rule.name, way.suffix));
                item.keys.extend(way.keys);
                match &treatment {
                    Treatment::Tls(keys) => item.set("tls", Toml::Table(keys.clone())),
                    Treatment::Permit => item.set("permit", true),
                    Treatment::Deny => item.set("deny", true),
                }
                if self.is_logged(rule) {
                    item.set("log", true);
                }
                decided.push(Decided { item, listens: way.listens });
            }
        }
        decided
    }

    /// Whether the trace level asks for a line when a connection begins.
    fn is_logged(&mut self, rule: &Effective<'_>) -> bool {
        let Some(field) = rule.said("Trace") else { return false };
        let Ok(trace) = field.value.parse::<u32>() else { return false };
        // 4: a connection is mapped; 8: events, its start among them.
        let logs = trace & (4 | 8) != 0;
        let message = if logs {
            format!("Trace {trace}: begin and end of connections are logged")
        } else {
            format!("Trace {trace}: errors are logged, as they always are")
        };
        self.findings.info(&field.at, message);
        logs
    }
}

fn has_condition(rule: &Effective<'_>) -> bool {
    let end = |end: &End| !end.addresses.is_empty() || !end.ports.is_empty();
    let said = |word: &&str| rule.rule.said(word).is_some();
    let all = ["LocalAddr", "RemoteAddr", "Jobname", "Userid"];
    end(&rule.local) || end(&rule.remote) || all.iter().any(said)
}

/// Whether a word of a rule is about addresses or ports.
fn is_end(word: &str) -> bool {
    ["Local", "Remote"].iter().any(|side| word.starts_with(side))
}

/// What stands above a rule.
fn comment(rule: &Effective<'_>) -> String {
    let kinds = [Kind::Group, Kind::Environment, Kind::Connection];
    let actions = kinds.into_iter().filter_map(|kind| rule.action(kind));
    let names: Vec<&str> = actions.map(|action| action.name.as_str()).collect();
    let all = rule.local.ports.iter().chain(&rule.remote.ports);
    let ports: Vec<String> = all.map(show_ports).collect();
    let shown = match ports.as_slice() {
        [] => String::new(),
        ports => format!(", ports {}", ports.join(" ")),
    };
    format!("priority {}{shown}; actions {}", rule.priority(), names.join(", "))
}

/// What the actions of a rule ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Tls,
    Permit,
}

/// What the actions of a rule ask for; `None` after an error.
fn action(rule: &Effective<'_>, findings: &mut Findings) -> Option<Action> {
    // `check_references` has already reported a reference to a missing action.
    let named = |word| rule.rule.said(word).is_some();
    let Some(group) = rule.action(Kind::Group) else {
        if named("TTLSGroupActionRef") {
            return None;
        }
        let message = "the rule names no group action";
        findings.error(&rule.rule.at, message, "add TTLSGroupActionRef: it says whether TLS is on");
        return None;
    };
    let Some(enabled) = group.said("TTLSEnabled") else {
        let message = "the group action does not say `TTLSEnabled`";
        findings.error(&group.at, message, "say On or Off");
        return None;
    };
    if enabled.value != "On" {
        return Some(Action::Permit);
    }
    if rule.action(Kind::Environment).is_none() {
        if named("TTLSEnvironmentActionRef") {
            return None;
        }
        let fix = "add TTLSEnvironmentActionRef: it says how TLS is done";
        findings.error(&rule.rule.at, "the rule names no environment action", fix);
        return None;
    }
    Some(Action::Tls)
}

/// Reports what the map says of rules that do not exist.
fn check_map(rules: &[Effective<'_>], map: &Map, findings: &mut Findings) {
    let Some(file) = &map.file else { return };
    let known: Vec<&str> = rules.iter().map(|rule| rule.rule.name.as_str()).collect();
    for (name, rule) in &map.rules {
        if known.contains(&name.as_str()) {
            continue;
        }
        let at = Origin { file: file.as_str().into(), line: rule.line };
        let fix = match nearest_word(name, &known) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "remove it".to_owned(),
        };
        findings.error(&at, format!("no rule is named `{name}`"), fix);
    }
}
