//! Converts AT-TLS rules to rules of a tacit policy. This is the second of the three steps of an
//! import: read, decide, write.
//!
//! The module `flows` converts the conditions of a rule, and `tls` converts its TLS settings.
//! `start` decides when TLS begins, and `ignored` reports the attributes that are not converted.

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
    /// The rules, in the order of evaluation.
    pub(super) rules: Vec<Item>,
    /// The identities and trusts that the rules name.
    pub(super) tables: Vec<Item>,
}

/// Converts all rules; reports missing and unused entries of the map file.
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
        map.report_unused(findings);
    }
    let rules = decided.into_iter().map(|decided| decided.item).collect();
    Decisions { rules, tables: names.tables }
}

/// Reports a program or user that the map file sets for one rule, if the pattern of another rule
/// covers the same job name or user ID: the other rule would not get this program or user.
fn check_owners_of_rules(rules: &[Effective<'_>], map: &Map, findings: &mut Findings) {
    let said_of = |rule: &Effective<'_>, keys: &[&str]| {
        keys.iter().any(|key| map.rule(&rule.rule.name, key).is_some())
    };
    for (word, table, keys) in
        [("Jobname", "job", &["program", "user"][..]), ("Userid", "user", &["user"])]
    {
        for rule in rules.iter().filter(|rule| said_of(rule, keys)) {
            let Some(own) = rule.rule.field(word) else { continue };
            let wider = |other: &&Effective<'_>| {
                let pattern = other.rule.field(word).map(|field| field.value.as_str());
                let is_wider = |pattern: &str| {
                    pattern.ends_with('*')
                        && !pattern.eq_ignore_ascii_case(&own.value)
                        && covers(pattern, &own.value)
                };
                pattern.is_some_and(is_wider) && !said_of(other, keys)
            };
            let Some(other) = rules.iter().find(wider) else { continue };
            let message = format!(
                "in the map file, [rule.{rule:?}] sets a program or user only for rule `{rule}`. \
                 Rule `{other}` also matches {word} `{name}`, but does not get this program or \
                 user",
                rule = rule.rule.name,
                other = other.rule.name,
                name = own.value
            );
            let fix = format!(
                "in the table [{table}] of the map file, write {name:?} = … with the program or \
                 user; the entries of this table apply to all rules",
                name = own.value
            );
            findings.error(&own.at, message, fix);
        }
    }
}

/// A rule of the policy, with the sockets on which it listens.
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
    /// Converts one rule to rules of the policy.
    fn rule(&mut self, rule: &Effective<'_>) -> Vec<Decided> {
        let Some(direction) = rule.rule.field("Direction") else {
            let fix = "add `Direction Inbound` for accepted connections, `Direction Outbound` for \
                       connections that programs open, or `Direction Both`";
            self.findings.error(&rule.rule.at, "the rule has no `Direction`", fix);
            return Vec::new();
        };
        if !has_condition(rule) {
            // The rejected value was reported, and stops the import.
            if rule.rule.rejected.iter().any(|word| is_end(word)) {
                return Vec::new();
            }
            let fix = "add a condition to the rule: a port, an address, a job name or a user ID";
            let message = "the rule has no condition except its direction";
            self.findings.error(&rule.rule.at, message, fix);
            return Vec::new();
        }
        let Some(action) = action(rule, self.findings) else { return Vec::new() };
        if action == Action::Tls {
            self.report_ignored(rule);
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

    /// Whether the trace level logs the begin of each connection.
    fn is_logged(&mut self, rule: &Effective<'_>) -> bool {
        let Some(field) = rule.field("Trace") else { return false };
        let Ok(trace) = field.value.parse::<u32>() else { return false };
        // 4: the rule that a connection is mapped to; 8: events, among them the begin.
        let logs = trace & (4 | 8) != 0;
        let message = if logs {
            format!("Trace {trace}: the agent logs the start and the end of each connection")
        } else {
            format!("Trace {trace}: no setting is needed, because the agent always logs errors")
        };
        self.findings.info(&field.at, message);
        logs
    }
}

fn has_condition(rule: &Effective<'_>) -> bool {
    let end = |end: &End| !end.addresses.is_empty() || !end.ports.is_empty();
    let is_set = |word: &&str| rule.rule.field(word).is_some();
    let all = ["LocalAddr", "RemoteAddr", "Jobname", "Userid"];
    end(&rule.local) || end(&rule.remote) || all.iter().any(is_set)
}

/// Whether an attribute of a rule is about addresses or ports.
fn is_end(word: &str) -> bool {
    ["Local", "Remote"].iter().any(|side| word.starts_with(side))
}

/// The comment above a rule of the policy.
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

/// What the actions of a rule require.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Tls,
    Permit,
}

/// What the actions of a rule require; `None` after an error.
fn action(rule: &Effective<'_>, findings: &mut Findings) -> Option<Action> {
    // `check_references` has already reported a reference to a missing action.
    let named = |word| rule.rule.field(word).is_some();
    let Some(group) = rule.action(Kind::Group) else {
        if named("TTLSGroupActionRef") {
            return None;
        }
        let message = "the rule has no `TTLSGroupActionRef`";
        findings.error(
            &rule.rule.at,
            message,
            "add TTLSGroupActionRef NAME; the group action switches TLS on or off",
        );
        return None;
    };
    let Some(enabled) = group.field("TTLSEnabled") else {
        let message = "the group action has no `TTLSEnabled`";
        findings.error(&group.at, message, "add TTLSEnabled On or TTLSEnabled Off");
        return None;
    };
    if enabled.value != "On" {
        return Some(Action::Permit);
    }
    if rule.action(Kind::Environment).is_none() {
        if named("TTLSEnvironmentActionRef") {
            return None;
        }
        let fix = "add TTLSEnvironmentActionRef NAME, where NAME is the action with the TLS \
                   settings";
        findings.error(&rule.rule.at, "the rule has no `TTLSEnvironmentActionRef`", fix);
        return None;
    }
    Some(Action::Tls)
}

/// Reports entries of the map file for rules that do not exist.
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
            None => "remove the table from the map file".to_owned(),
        };
        findings.error(&at, format!("the AT-TLS policy has no rule `{name}`"), fix);
    }
}
