//! Computes the effective attributes of an AT-TLS rule. A rule has up to three actions that set
//! attributes. An attribute that no action sets has its default value.
//!
//! ```text
//!   connection action ─> environment action ─> group action ─> default
//! ```
//!
//! The value of an attribute comes from the first action in this order that sets the attribute. If
//! an action has two blocks of the same kind, the later block replaces the earlier one completely.
//! All cipher suites of a rule come from the same action.

use std::fmt::Write;

use super::conditions::{End, show_ports};
use super::objects::{Field, Misplaced, Object, Objects};
use super::time;
use super::words::{Form, Kind};
use crate::draft::Toml;
use crate::finding::{Findings, Origin};

/// A rule with its effective conditions and actions.
#[derive(Clone, Debug)]
pub(super) struct Effective<'o> {
    /// The rule.
    pub rule: &'o Object,
    /// Its local end.
    pub local: End,
    /// Its remote end.
    pub remote: End,
    /// The value of `when` in a tacit policy; `None`: the rule always applies.
    pub when: Option<Toml>,
    /// Its group, environment and connection actions, with their parts.
    actions: Vec<Action<'o>>,
}

/// One action of a rule with its parts.
#[derive(Clone, Debug)]
struct Action<'o> {
    object: &'o Object,
    /// Its effective parts; each is followed by its own parts.
    parts: Vec<&'o Object>,
}

impl<'o> Effective<'o> {
    /// Combines a rule with its actions and conditions.
    #[must_use]
    pub(super) fn of(rule: &'o Object, objects: &'o Objects, findings: &mut Findings) -> Self {
        let [local, remote] = ["Local", "Remote"].map(|side| {
            report_double_end(rule, side, findings);
            End::of(rule, side, objects)
        });
        let references =
            ["TTLSGroupActionRef", "TTLSEnvironmentActionRef", "TTLSConnectionActionRef"];
        let mut actions = Vec::new();
        for field in references.iter().filter_map(|word| rule.field(word)) {
            let Form::Ref(kind) = field.attribute.form else { continue };
            let Some(object) = objects.find(kind, &field.value) else { continue };
            let mut parts = Vec::new();
            collect_parts(object, objects, &mut parts, findings);
            actions.push(Action { object, parts });
        }
        // `time::when` reports any error in the condition, and the error stops the import.
        let when = time::when(rule, objects, findings).flatten();
        let effective = Self { rule, local, remote, when, actions };
        effective.check_misplaced(findings);
        effective
    }

    /// The rule's priority; the highest comes first.
    #[must_use]
    pub(super) fn priority(&self) -> u32 {
        self.rule.field("Priority").and_then(|field| field.value.parse().ok()).unwrap_or(1)
    }

    /// The action of a kind.
    #[must_use]
    pub(super) fn action(&self, kind: Kind) -> Option<&'o Object> {
        self.actions.iter().map(|action| action.object).find(|object| object.kind == kind)
    }

    /// The line to report if an attribute of the security environment is not set.
    #[must_use]
    pub(super) fn environment_at(&self) -> &'o Origin {
        self.action(Kind::Environment).map_or(&self.rule.at, |object| &object.at)
    }

    /// The line that sets an attribute, or else the line of the environment action.
    #[must_use]
    pub(super) fn at_of(&self, word: &str) -> &'o Origin {
        self.field(word).map_or_else(|| self.environment_at(), |field| &field.at)
    }

    /// The field of an attribute in the action that decides.
    #[must_use]
    pub(super) fn field(&self, word: &str) -> Option<&'o Field> {
        self.all(word).last().copied()
    }

    /// The effective value of an attribute, in the spelling of the manual; `None` if it is not set
    /// and has no default.
    #[must_use]
    pub(super) fn value(&self, word: &str) -> Option<&'o str> {
        self.field(word).map(|field| field.value.as_str()).or_else(|| default(word))
    }

    /// Whether a switch is on.
    #[must_use]
    pub(super) fn is_on(&self, word: &str) -> bool {
        self.value(word) == Some("On")
    }

    /// All fields of a list in the action that decides, in order.
    #[must_use]
    pub(super) fn all(&self, word: &str) -> Vec<&'o Field> {
        for action in self.actions.iter().rev() {
            let fields: Vec<_> = action.fields().filter(|f| f.attribute.word == word).collect();
            if !fields.is_empty() {
                return fields;
            }
            // All suites come from one action.
            let ciphers = action.parts.iter().any(|part| part.kind == Kind::Cipher);
            if ciphers && Kind::Cipher.attribute(word).is_some() {
                return Vec::new();
            }
        }
        Vec::new()
    }

    /// The fields of all actions, also of those that do not decide.
    pub(super) fn everything(&self) -> impl Iterator<Item = &'o Field> {
        self.actions.iter().flat_map(Action::fields)
    }

    fn check_misplaced(&self, findings: &mut Findings) {
        for action in &self.actions {
            for Misplaced { part: kind, field } in &action.object.misplaced {
                let word = field.attribute.word;
                let parts = action.parts.iter().filter(|part| part.kind == *kind);
                if let Some(there) = parts.filter_map(|part| part.field(word)).next() {
                    let message = format!(
                        "`{word}` does not belong in this block, and the correct block already has \
                         the same attribute at {other}",
                        other = there.at
                    );
                    findings.error(
                        &field.at,
                        message,
                        "remove the attribute from one of the two blocks",
                    );
                }
            }
        }
    }

    /// A table of all effective values, each with the line that sets it.
    #[must_use]
    pub(super) fn table(&self) -> String {
        let mut out = String::new();
        row(&mut out, 0, Kind::Rule.word(), &self.rule.name, Some(&self.rule.at));
        self.conditions(&mut out);
        for action in &self.actions {
            row(
                &mut out,
                1,
                action.object.kind.word(),
                &action.object.name,
                Some(&action.object.at),
            );
            let is_connection = action.object.kind == Kind::Connection;
            let defaults = if is_connection { Defaults::None } else { Defaults::Shown };
            attributes(&mut out, action.object.kind, Some(action.object), defaults);
            for kind in parts_of(action.object.kind) {
                let part = action.parts.iter().find(|part| part.kind == kind).copied();
                if part.is_none() && is_connection {
                    continue;
                }
                let name = part.map_or("", |part| &part.name);
                row(&mut out, 2, kind.word(), name, part.map(|part| &part.at));
                attributes(&mut out, kind, part, defaults);
                for Misplaced { field, .. } in &action.object.misplaced {
                    if kind.attribute(field.attribute.word) == Some(field.attribute) {
                        let is_secret = field.attribute.is_secret();
                        let shown = if is_secret { "(not shown)" } else { &field.value };
                        row(&mut out, 3, field.attribute.word, shown, Some(&field.at));
                    }
                }
            }
        }
        out
    }

    fn conditions(&self, out: &mut String) {
        for (side, end) in [("Local", &self.local), ("Remote", &self.remote)] {
            let addresses = end.addresses.join(" ");
            let ports: Vec<String> = end.ports.iter().map(show_ports).collect();
            for (word, any, shown) in
                [("Addr", "All", addresses), ("PortRange", "0", ports.join(" "))]
            {
                let begins = |field: &&Field| {
                    field
                        .attribute
                        .word
                        .strip_prefix(side)
                        .is_some_and(|rest| rest.starts_with(&word[..4]))
                };
                let at = self.rule.fields.iter().find(begins).map(|field| &field.at);
                let shown = if shown.is_empty() { any } else { &shown };
                row(out, 1, &format!("{side}{word}"), shown, at);
            }
        }
        for word in ["Jobname", "Userid", "Direction", "Priority", "IpTimeConditionRef"] {
            let field = self.rule.field(word);
            let any = if word == "Priority" { "1" } else { "any" };
            row(
                out,
                1,
                word,
                field.map_or(any, |field| &field.value),
                field.map(|field| &field.at),
            );
        }
    }
}

impl<'o> Action<'o> {
    /// Its fields and those of its parts; a misplaced field counts as one of the right part.
    fn fields(&self) -> impl Iterator<Item = &'o Field> + use<'o, '_> {
        let misplaced = self.object.misplaced.iter().map(|misplaced| &misplaced.field);
        let parts = self.parts.iter().flat_map(|part| &part.fields);
        self.object.fields.iter().chain(misplaced).chain(parts)
    }
}

/// The default of an attribute of the actions.
fn default(word: &str) -> Option<&'static str> {
    let actions = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Rule);
    actions.filter_map(|kind| kind.attribute(word)).find_map(|attribute| attribute.default)
}

/// The kinds of parts that an action may have, and the kinds of their parts.
fn parts_of(kind: Kind) -> Vec<Kind> {
    let mut parts: Vec<Kind> = kind.parts().collect();
    parts.extend(kind.parts().flat_map(Kind::parts).collect::<Vec<_>>());
    parts.sort_by_key(|part| Kind::ALL.iter().position(|kind| kind == part));
    parts
}

/// The effective parts of an object: the last of each kind.
fn collect_parts<'o>(
    object: &'o Object,
    objects: &'o Objects,
    into: &mut Vec<&'o Object>,
    findings: &mut Findings,
) {
    for kind in object.kind.parts() {
        let is_part = |field: &&Field| match field.attribute.form {
            Form::Block(of) | Form::Ref(of) => of == kind,
            _ => false,
        };
        let fields: Vec<&Field> = object.fields.iter().filter(is_part).collect();
        if let [.., before, last] = fields.as_slice() {
            let message = format!(
                "{action} `{name}` has more than one {block} block: the import uses only the last \
                 one, and ignores the block at {ignored}",
                action = object.kind.word(),
                name = object.name,
                block = kind.word(),
                ignored = before.at
            );
            findings.changed(
                &last.at,
                message,
                "keep one of the two blocks; an attribute that is missing in the remaining block \
                 has its default value",
            );
        }
        let part = fields.last().and_then(|field| match &field.block {
            Some(block) => Some(block),
            None => objects.find(kind, &field.value),
        });
        if let Some(part) = part {
            into.push(part);
            collect_parts(part, objects, into, findings);
        }
    }
}

/// Reports a condition that is set in two ways.
pub(super) fn report_double_end(rule: &Object, side: &str, findings: &mut Findings) {
    for what in ["Addr", "Port"] {
        let begins = |field: &&Field| {
            field.attribute.word.strip_prefix(side).is_some_and(|rest| rest.starts_with(what))
        };
        let fields: Vec<&Field> = rule.fields.iter().filter(begins).collect();
        let same = |field: &&Field| field.attribute == fields[0].attribute;
        if let [first, .., last] = fields.as_slice()
            && !fields.iter().all(same)
        {
            let message = format!(
                "the rule has both `{first}` and `{last}`, but only one of the two is allowed",
                first = first.attribute.word,
                last = last.attribute.word
            );
            findings.error(
                &last.at,
                message,
                format!(
                    "remove one of the two lines; the other line is at {other}",
                    other = first.at
                ),
            );
        }
    }
}

/// Whether an attribute that is not set is shown with its default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defaults {
    Shown,
    /// The attributes have no defaults.
    None,
}

fn attributes(out: &mut String, kind: Kind, object: Option<&Object>, defaults: Defaults) {
    let depth = if kind.parts().next().is_some() && kind != Kind::Gsk { 2 } else { 3 };
    for attribute in kind.attributes() {
        if matches!(attribute.form, Form::Block(_) | Form::Ref(_)) {
            continue;
        }
        let fields: Vec<&Field> =
            object.map(|o| o.all(attribute.word).collect()).unwrap_or_default();
        let counted =
            if attribute.repeats { &fields[..] } else { &fields[fields.len().saturating_sub(1)..] };
        for field in counted {
            let shown = if attribute.is_secret() { "(not shown)" } else { &field.value };
            row(out, depth, attribute.word, shown, Some(&field.at));
        }
        // Signature parameters of a connection replace all pairs of its environment.
        let replaces = attribute.word == "SignaturePairs";
        if let Some(default) = attribute.default
            && fields.is_empty()
            && (defaults == Defaults::Shown || replaces)
        {
            row(out, depth, attribute.word, default, None);
        }
    }
}

/// Widths of the columns: most attributes and values are shorter.
const WORD_CHARS: usize = 40;
const VALUE_CHARS: usize = 28;

fn row(out: &mut String, depth: usize, word: &str, value: &str, at: Option<&Origin>) {
    let indented = format!("{}{word}", "  ".repeat(depth));
    let shown = if value.is_empty() { "-" } else { value };
    let place = at.map_or_else(|| "default".to_owned(), ToString::to_string);
    let _ = writeln!(out, "{indented:WORD_CHARS$} {shown:VALUE_CHARS$} {place}");
}
