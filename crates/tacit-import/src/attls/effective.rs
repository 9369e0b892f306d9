//! What holds for a rule, once its actions, their parts and all defaults are put together.
//!
//! ```text
//!   connection action ─> environment action ─> group action ─> default
//! ```
//!
//! The first that says an attribute decides. Of two parts of one kind in one action, the later
//! replaces the earlier entirely: what it leaves out falls back to the default, not to the other.
//! Cipher suites are taken from one action as a whole. Connection actions have no defaults.

use std::fmt::Write;

use super::conditions::{End, show_ports};
use super::objects::{Field, Misplaced, Object, Objects};
use super::time;
use super::words::{Form, Kind};
use crate::draft::Toml;
use crate::finding::{Findings, Origin};

/// A rule with everything that decides about it.
#[derive(Clone, Debug)]
pub(super) struct Effective<'o> {
    /// The rule.
    pub rule: &'o Object,
    /// Its local end.
    pub local: End,
    /// Its remote end.
    pub remote: End,
    /// When it holds, as a policy of ours says it; `None`: at all times.
    pub when: Option<Toml>,
    /// Its actions: group, environment and connection; with their parts.
    actions: Vec<Action<'o>>,
}

/// One action of a rule with its parts.
#[derive(Clone, Debug)]
struct Action<'o> {
    object: &'o Object,
    /// The parts that hold, each followed by its own.
    parts: Vec<&'o Object>,
}

impl<'o> Effective<'o> {
    /// Puts a rule together.
    #[must_use]
    pub(super) fn of(rule: &'o Object, objects: &'o Objects, findings: &mut Findings) -> Self {
        let [local, remote] = ["Local", "Remote"].map(|side| {
            tell_double_end(rule, side, findings);
            End::of(rule, side, objects)
        });
        let references =
            ["TTLSGroupActionRef", "TTLSEnvironmentActionRef", "TTLSConnectionActionRef"];
        let mut actions = Vec::new();
        for field in references.iter().filter_map(|word| rule.said(word)) {
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
        self.rule.said("Priority").and_then(|field| field.value.parse().ok()).unwrap_or(1)
    }

    /// The action of a kind.
    #[must_use]
    pub(super) fn action(&self, kind: Kind) -> Option<&'o Object> {
        self.actions.iter().map(|action| action.object).find(|object| object.kind == kind)
    }

    /// The line to show where an attribute of the security environment is not said.
    #[must_use]
    pub(super) fn environment_at(&self) -> &'o Origin {
        self.action(Kind::Environment).map_or(&self.rule.at, |object| &object.at)
    }

    /// The line that says an attribute, or else the environment that leaves it out.
    #[must_use]
    pub(super) fn at_of(&self, word: &str) -> &'o Origin {
        self.said(word).map_or_else(|| self.environment_at(), |field| &field.at)
    }

    /// What some action says of an attribute.
    #[must_use]
    pub(super) fn said(&self, word: &str) -> Option<&'o Field> {
        self.all(word).last().copied()
    }

    /// What holds for an attribute, as the manual writes it; `None` if it is not said and has no
    /// default.
    #[must_use]
    pub(super) fn value(&self, word: &str) -> Option<&'o str> {
        self.said(word).map(|field| field.value.as_str()).or_else(|| default(word))
    }

    /// Whether a switch is on.
    #[must_use]
    pub(super) fn is_on(&self, word: &str) -> bool {
        self.value(word) == Some("On")
    }

    /// All that the deciding action says of a list, in order.
    #[must_use]
    pub(super) fn all(&self, word: &str) -> Vec<&'o Field> {
        for action in self.actions.iter().rev() {
            let fields: Vec<_> = action.fields().filter(|f| f.attribute.word == word).collect();
            if !fields.is_empty() {
                return fields;
            }
            // An action that has suites has them all.
            let ciphers = action.parts.iter().any(|part| part.kind == Kind::Cipher);
            if ciphers && Kind::Cipher.attribute(word).is_some() {
                return Vec::new();
            }
        }
        Vec::new()
    }

    /// Everything that the actions say, the deciding action or not.
    pub(super) fn everything(&self) -> impl Iterator<Item = &'o Field> {
        self.actions.iter().flat_map(Action::fields)
    }

    fn check_misplaced(&self, findings: &mut Findings) {
        for action in &self.actions {
            for Misplaced { part: kind, field } in &action.object.misplaced {
                let word = field.attribute.word;
                let parts = action.parts.iter().filter(|part| part.kind == *kind);
                if let Some(there) = parts.filter_map(|part| part.said(word)).next() {
                    let message =
                        format!("`{word}` is also said where it belongs, at {}", there.at);
                    findings.error(&field.at, message, "remove one of the two");
                }
            }
        }
    }

    /// A table of everything that holds, with where it is said.
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
            let said = self.rule.said(word);
            let any = if word == "Priority" { "1" } else { "any" };
            row(out, 1, word, said.map_or(any, |field| &field.value), said.map(|field| &field.at));
        }
    }
}

impl<'o> Action<'o> {
    /// What it says, itself and by its parts; what is misplaced as what it is.
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

/// The kinds of parts that an action may have, and those that these may have.
fn parts_of(kind: Kind) -> Vec<Kind> {
    let mut parts: Vec<Kind> = kind.parts().collect();
    parts.extend(kind.parts().flat_map(Kind::parts).collect::<Vec<_>>());
    parts.sort_by_key(|part| Kind::ALL.iter().position(|kind| kind == part));
    parts
}

/// The parts of an object that hold: the last of each kind.
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
                "{} `{}` has more than one {}: this one replaces that at {} entirely",
                object.kind.word(),
                object.name,
                kind.word(),
                before.at
            );
            findings.changed(&last.at, message, "keep one; what it leaves out has its default");
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

/// Tells of a condition that is said in two ways; both hold.
pub(super) fn tell_double_end(rule: &Object, side: &str, findings: &mut Findings) {
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
                "the rule says both `{}` and `{}`: which one counts?",
                first.attribute.word, last.attribute.word
            );
            findings.error(&last.at, message, format!("keep one; the other is at {}", first.at));
        }
    }
}

/// Whether an attribute that is not said is shown with its default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defaults {
    Shown,
    /// There are none.
    None,
}

fn attributes(out: &mut String, kind: Kind, object: Option<&Object>, defaults: Defaults) {
    let depth = if kind.parts().next().is_some() && kind != Kind::Gsk { 2 } else { 3 };
    for attribute in kind.attributes() {
        if matches!(attribute.form, Form::Block(_) | Form::Ref(_)) {
            continue;
        }
        let said: Vec<&Field> = object.map(|o| o.all(attribute.word).collect()).unwrap_or_default();
        let counted =
            if attribute.repeats { &said[..] } else { &said[said.len().saturating_sub(1)..] };
        for field in counted {
            let shown = if attribute.is_secret() { "(not shown)" } else { &field.value };
            row(out, depth, attribute.word, shown, Some(&field.at));
        }
        // Signature parameters of a connection replace all pairs of its environment.
        let replaces = attribute.word == "SignaturePairs";
        if let Some(default) = attribute.default
            && said.is_empty()
            && (defaults == Defaults::Shown || replaces)
        {
            row(out, depth, attribute.word, default, None);
        }
    }
}

/// Columns of the table: words and values are shorter as a rule.
const WORD_CHARS: usize = 40;
const VALUE_CHARS: usize = 28;

fn row(out: &mut String, depth: usize, word: &str, value: &str, at: Option<&Origin>) {
    let indented = format!("{}{word}", "  ".repeat(depth));
    let shown = if value.is_empty() { "-" } else { value };
    let place = at.map_or_else(|| "default".to_owned(), ToString::to_string);
    let _ = writeln!(out, "{indented:WORD_CHARS$} {shown:VALUE_CHARS$} {place}");
}
