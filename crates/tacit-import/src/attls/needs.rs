//! What the map file lacks, told all at once with the lines to add.

use std::collections::BTreeMap;

use super::map::Map;
use crate::draft::{name_of, word};
use crate::finding::{Findings, Origin};

/// Everything that was looked for in the map and not found.
#[derive(Debug, Default)]
pub(super) struct Needs {
    jobs: BTreeMap<String, Origin>,
    users: BTreeMap<String, Origin>,
    keyrings: BTreeMap<String, Ring>,
    rules: BTreeMap<RuleKey, Need>,
}

/// Which key of which rule, in their order.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RuleKey {
    rule: String,
    key: &'static str,
}

/// A key that a rule needs of the map.
#[derive(Debug)]
struct Need {
    at: Origin,
    why: String,
    /// The line that would say it.
    line: String,
}

/// Which key of which rule is missing.
pub(super) struct MissingKey<'a> {
    pub(super) rule: &'a str,
    pub(super) key: &'static str,
}

#[derive(Debug)]
struct Ring {
    at: Origin,
    pair: bool,
    ca: bool,
    labels: Vec<String>,
}

impl Needs {
    pub(super) fn job(&mut self, name: &str, at: &Origin) {
        self.jobs.entry(name.to_owned()).or_insert_with(|| at.clone());
    }

    pub(super) fn user(&mut self, name: &str, at: &Origin) {
        self.users.entry(name.to_owned()).or_insert_with(|| at.clone());
    }

    pub(super) fn pair(&mut self, ring: &str, at: &Origin) {
        self.ring(ring, at).pair = true;
    }

    pub(super) fn ca(&mut self, ring: &str, at: &Origin) {
        self.ring(ring, at).ca = true;
    }

    pub(super) fn label(&mut self, ring: &str, label: &str, at: &Origin) {
        let labels = &mut self.ring(ring, at).labels;
        if !labels.iter().any(|known| known == label) {
            labels.push(label.to_owned());
        }
    }

    /// A key of a rule, with why it is needed and the line that would say it.
    pub(super) fn rule(
        &mut self,
        missing: MissingKey<'_>,
        at: &Origin,
        why: impl Into<String>,
        line: impl Into<String>,
    ) {
        let need = Need { at: at.clone(), why: why.into(), line: line.into() };
        let key = RuleKey { rule: missing.rule.to_owned(), key: missing.key };
        self.rules.entry(key).or_insert(need);
    }

    fn ring(&mut self, ring: &str, at: &Origin) -> &mut Ring {
        let empty = || Ring { at: at.clone(), pair: false, ca: false, labels: Vec::new() };
        self.keyrings.entry(ring.to_owned()).or_insert_with(empty)
    }

    /// Reports all of it.
    pub(super) fn report(self, map: &Map, findings: &mut Findings) {
        let file = match &map.file {
            Some(file) => format!("add to {file}:"),
            None => "write a map file, give it with --map, and begin with:".to_owned(),
        };
        let mut missing = |at: &Origin, message: String, lines: &str| {
            findings.error(at, message, format!("{file}\n{lines}"));
        };
        for (name, at) in &self.jobs {
            let line = format!(
                "# or {{ run = \"NAME\" }}, for what `tacit run --name NAME` starts\n[job]\n\
                 {} = {{ program = \"/usr/bin/PROGRAM\" }}",
                quoted(name)
            );
            missing(at, format!("no program stands for the job name `{name}`"), &line);
        }
        for (name, at) in &self.users {
            let line = format!("[user]\n{} = \"{}\"", quoted(name), lower(name));
            missing(at, format!("no user stands for the user ID `{name}`"), &line);
        }
        for (name, ring) in &self.keyrings {
            let message = if !map.keyrings.contains_key(name) {
                format!("no files stand for the key ring `{name}`")
            } else if let Some(label) = ring.labels.first().filter(|_| !ring.ca && !ring.pair) {
                format!("no certificate stands for the label `{label}` of key ring `{name}`")
            } else {
                format!("key ring `{name}` lacks a file in the map")
            };
            missing(&ring.at, message, &ring.lines(name));
        }
        for (RuleKey { rule, .. }, Need { at, why, line }) in &self.rules {
            missing(at, why.clone(), &format!("[rule.{}]\n{line}", word(rule)));
        }
    }
}

impl Ring {
    /// The table to add, or to add to where it is there.
    fn lines(&self, name: &str) -> String {
        let path = format!("keyring.{}", quoted(name));
        let mut lines = Vec::new();
        let stem = lower(name);
        if self.pair || self.ca {
            lines.push(format!("[{path}]"));
        }
        if self.pair {
            lines.push(format!("cert = \"{stem}.pem\""));
            lines.push(format!("key = \"{stem}.key\""));
        }
        if self.ca {
            let ca = if name.starts_with("*AUTH*") {
                "system".to_owned()
            } else {
                format!("{stem}-ca.pem")
            };
            lines.push(format!("ca = \"{ca}\""));
        }
        for label in &self.labels {
            lines.push(format!("[{path}.label.{}]", quoted(label)));
            let stem = lower(label);
            lines.push(format!("cert = \"{stem}.pem\""));
            lines.push(format!("key = \"{stem}.key\""));
        }
        lines.join("\n")
    }
}

fn quoted(text: &str) -> String {
    crate::draft::quote(text)
}

fn lower(text: &str) -> String {
    name_of(text).to_ascii_lowercase()
}
