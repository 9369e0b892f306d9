//! Collects the entries that the map file of an import lacks. Reports all of them at the end, with
//! the lines that the user must add.

use std::collections::{BTreeMap, BTreeSet};

use super::map::{Map, PolicyPrograms};
use crate::draft::{name_of, word};
use crate::finding::{Findings, Origin};
use tacit_core::policy::SYSTEM_TRUST;

/// The entries that the map file lacks.
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

/// A key that a rule needs in the map file.
#[derive(Debug)]
struct Need {
    at: Origin,
    why: String,
    /// The line to add.
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

/// The name of the virtual key ring of all CA certificates begins with this.
pub(super) const VIRTUAL_CA_RING: &str = "*AUTH*";

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

    /// Records a missing key of a rule, with the reason and the line to add.
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

    /// Reports all of it, each line with the header of its table where that is not there yet.
    /// Reports nothing if the map file has errors, because an entry with an error is not in `map`.
    pub(super) fn report(self, map: &Map, findings: &mut Findings) {
        if map.has_errors {
            return;
        }
        let mut fixes = Fixes::of(map);
        for (name, at) in by_origin(&self.jobs) {
            let or = if map.programs == PolicyPrograms::Host {
                "# or { unit = \"NAME.service\" }, for a systemd unit\n"
            } else {
                "# or { run = \"NAME\" }, for programs that `tacit run --name NAME` starts\n"
            };
            let or = if fixes.has("[job]") { "" } else { or };
            let line = format!("{} = {{ program = \"/usr/bin/PROGRAM\" }}", quoted(name));
            let message = format!("the map file has no program for the job name `{name}`");
            findings.error(at, message, fixes.line("[job]", &format!("{or}{line}")));
        }
        for (name, at) in by_origin(&self.users) {
            let line = format!("{} = \"{}\"", quoted(name), lower(name));
            let message = format!("the map file has no Linux user for the z/OS user ID `{name}`");
            findings.error(at, message, fixes.line("[user]", &line));
        }
        for (name, ring) in &self.keyrings {
            let message = if !map.keyrings.contains_key(name) {
                format!("the map file has no files for the key ring `{name}`")
            } else if let Some(label) = ring.labels.first().filter(|_| !ring.ca && !ring.pair) {
                format!(
                    "the map file has no certificate for the label `{label}` of key ring `{name}`"
                )
            } else {
                format!("the map file does not name all files of key ring `{name}`")
            };
            findings.error(&ring.at, message, fixes.lines(&ring.lines(name)));
        }
        for (RuleKey { rule, .. }, Need { at, why, line }) in &self.rules {
            findings.error(at, why.clone(), fixes.line(&format!("[rule.{}]", word(rule)), line));
        }
    }
}

/// In the order of the lines that need them, as findings are printed.
fn by_origin(names: &BTreeMap<String, Origin>) -> Vec<(&String, &Origin)> {
    let mut names: Vec<_> = names.iter().collect();
    names.sort_by_key(|(_, at)| *at);
    names
}

/// Lines to add to the map file. A table may have one header only.
struct Fixes<'m> {
    file: Option<&'m str>,
    /// Headers in the file, and in the fixes so far.
    headers: BTreeSet<String>,
}

impl<'m> Fixes<'m> {
    fn of(map: &'m Map) -> Self {
        let tables = [("[job]", map.jobs.is_empty()), ("[user]", map.users.is_empty())];
        let tables = tables.into_iter().filter(|(_, is_empty)| !is_empty);
        let tables = tables.map(|(table, _)| table.to_owned());
        let rules = map.rules.keys().map(|rule| format!("[rule.{}]", word(rule)));
        Self { file: map.file.as_deref(), headers: tables.chain(rules).collect() }
    }

    fn has(&self, header: &str) -> bool {
        self.headers.contains(header)
    }

    /// A fix with lines that have their headers.
    fn lines(&self, lines: &str) -> String {
        match self.file {
            Some(file) => format!("add these lines to {file}:\n{lines}"),
            None => format!(
                "write a map file that begins with these lines, and pass the file with \
                 --map:\n{lines}"
            ),
        }
    }

    /// A fix with a line of a table.
    fn line(&mut self, header: &str, line: &str) -> String {
        if self.headers.insert(header.to_owned()) {
            return self.lines(&format!("{header}\n{line}"));
        }
        format!(
            "add to {file}, below {header}:\n{line}",
            file = self.file.unwrap_or("the map file")
        )
    }
}

impl Ring {
    /// The lines to add for this key ring.
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
            let ca = if name.starts_with(VIRTUAL_CA_RING) {
                SYSTEM_TRUST.to_owned()
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
