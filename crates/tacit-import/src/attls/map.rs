//! Reads the map file of an import. The file maps job names, user IDs and key rings of z/OS to
//! programs, users and files on Linux.
//!
//! ```toml
//! [job]
//! "CICS*" = { program = "/usr/bin/orders", user = "orders" }
//! NIGHT1 = { run = "night1" }
//! [user]
//! "WEBSRV" = "www-data"
//! [keyring."TCPIP/RING"]
//! cert = "web.pem"
//! key  = "web.key"
//! ca   = "corp-ca.pem"
//! [keyring."TCPIP/RING".label."Old Server"]
//! cert = "old.pem"
//! key  = "old.key"
//! [rule.TN3270]
//! starttls = "telnet"
//! [dataset]
//! "SYS1.PAGENT(TTLS)" = "pagent.ttls"
//! ```
//!
//! Some settings, such as `cert`, also exist in a tacit policy. The import copies these settings
//! into the policy; `map_values.rs` checks their values. The file can also contain identity maps
//! (the tables `[[map.NAME]]` of a policy). The import copies these tables completely.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::map_keys::{JOB, KEYRING, LABEL, NAMES, RULE, RULE_KEYS, TOP, TOP_TITLE};
use super::map_values;
use super::patterns::{covers, union};

use crate::draft::{Keys, Toml, set};
use crate::finding::{Findings, Origin};
use tacit_core::policy::text::{
    Diagnostics, TomlData, TomlDocument, TomlEntry, TomlTable, TomlValue,
};
use tacit_core::policy::{DiagnosticSeverity, POLICY_BYTES_MAX, SYSTEM_TRUST};

/// The programs to which the imported policy applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PolicyPrograms {
    /// Programs under `tacit run`.
    #[default]
    Runs,
    /// All programs of a captured host.
    Host,
}

/// The content of a map file.
#[derive(Debug, Default)]
pub(super) struct Map {
    /// The file, under the name that was given; `None` without one.
    pub file: Option<String>,
    /// The programs of the policy.
    pub programs: PolicyPrograms,
    /// `[job]`, by name or pattern.
    pub jobs: BTreeMap<String, Job>,
    /// `[user]`, by name or pattern: names of users on this host.
    pub users: BTreeMap<String, Toml>,
    /// `[keyring.NAME]`.
    pub keyrings: BTreeMap<String, Keyring>,
    /// `[rule.NAME]`: keys of tacit rules, which replace the conditions of the imported rule.
    pub rules: BTreeMap<String, RuleKeys>,
    /// `[dataset]`, by name: the files that contain copies of data sets.
    pub datasets: BTreeMap<String, String>,
    /// `[[map.NAME]]`.
    pub maps: Vec<MapTable>,
    /// Whether the file has an error. Then entries of the file may be missing here.
    pub has_errors: bool,
    /// The entries that some rule used.
    used: RefCell<BTreeSet<String>>,
}

/// A `[[map.NAME]]`.
#[derive(Debug)]
pub(super) struct MapTable {
    /// Its name.
    pub name: String,
    /// Its entries, unchanged.
    pub entries: Vec<Toml>,
}

/// The programs, users, runs, units and control groups of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Job {
    /// Its programs.
    pub program: Option<Toml>,
    /// Its users.
    pub user: Option<Toml>,
    /// The names of its runs.
    pub run: Option<Toml>,
    /// Its units of systemd, on a captured host.
    pub unit: Option<Toml>,
    /// Its control groups, on a captured host.
    pub cgroup: Option<Toml>,
}

impl Job {
    /// Whether the job stands for every program.
    pub(super) fn is_any(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the job stands for every program of a user.
    pub(super) fn is_user(&self) -> bool {
        self.user.is_some() && Self { user: None, ..self.clone() }.is_any()
    }
}

/// The files of a key ring.
#[derive(Debug, Default)]
pub(super) struct Keyring {
    /// Its default certificate and key.
    pub pair: Option<Pair>,
    /// Its CAs: a file, files, or `system`.
    pub ca: Option<Toml>,
    /// Its CRLs.
    pub crl: Option<Toml>,
    /// Its other certificates and keys.
    pub labels: BTreeMap<String, Pair>,
}

/// The files of a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    /// The certificate.
    pub cert: String,
    /// Its key.
    pub key: String,
}

/// `[rule.NAME]`.
#[derive(Debug)]
pub(super) struct RuleKeys {
    /// The line of its header.
    pub line: usize,
    /// Its keys.
    pub keys: BTreeMap<String, Toml>,
}

impl Map {
    /// A map without entries.
    #[must_use]
    pub(super) fn empty(programs: PolicyPrograms) -> Self {
        Self { programs, ..Self::default() }
    }

    /// Reads a map file, reporting everything that is wrong with it.
    #[must_use]
    pub(super) fn read(
        file: &str,
        text: &str,
        programs: PolicyPrograms,
        findings: &mut Findings,
    ) -> Self {
        let empty = Self { file: Some(file.to_owned()), ..Self::empty(programs) };
        if text.len() > POLICY_BYTES_MAX {
            let at = Origin { file: file.into(), line: 1 };
            findings.error(
                &at,
                format!("the map file has {} bytes; the limit is {POLICY_BYTES_MAX}", text.len()),
                "remove the entries of the map file that the imported AT-TLS policy does not need",
            );
            return Self { has_errors: true, ..empty };
        }
        let document = TomlDocument::parse(text);
        let report = Diagnostics::new(&document);
        let top = TomlTable::top(&report, &document, TOP, TOP_TITLE);
        let map = Self {
            jobs: tables(&top, "job", |_, value| job(value, programs)),
            users: tables(&top, "user", |_, value| user(value)),
            keyrings: tables(&top, "keyring", keyring)
                .into_iter()
                .map(|(name, ring)| (ring_name(&name), ring))
                .collect(),
            rules: tables(&top, "rule", rule),
            datasets: tables(&top, "dataset", |_, value| value.string().map(str::to_owned)),
            maps: maps(&top),
            ..empty
        };
        let found = report.finish();
        let has_errors = found.iter().any(|one| one.severity == DiagnosticSeverity::Error);
        findings.extend(file, found);
        Self { has_errors, ..map }
    }

    /// The entries for a job name or pattern: its own entry, and for a pattern also the entries
    /// that it covers. Empty if it has no entry of its own. The case of letters is ignored.
    #[must_use]
    pub(super) fn jobs(&self, name: &str) -> Vec<&Job> {
        self.covered("job", &self.jobs, name)
    }

    /// The users for a user ID or pattern, in the same way; `None` if it has no entry of its own.
    #[must_use]
    pub(super) fn users(&self, name: &str) -> Option<Toml> {
        let users = self.covered("user", &self.users, name);
        (!users.is_empty()).then(|| union(users.into_iter().cloned()))
    }

    /// The entry of a name, followed by the entries that it covers.
    fn covered<'m, T>(
        &self,
        table: &str,
        entries: &'m BTreeMap<String, T>,
        name: &str,
    ) -> Vec<&'m T> {
        let is_own = |key: &String| key.eq_ignore_ascii_case(name);
        if !entries.keys().any(is_own) {
            return Vec::new();
        }
        let mut covered: Vec<(&String, &T)> =
            entries.iter().filter(|(key, _)| covers(name, key)).collect();
        covered.sort_by_key(|(key, _)| !is_own(key));
        covered
            .into_iter()
            .map(|(key, value)| {
                self.used(format!("[{table}] {key:?}"));
                value
            })
            .collect()
    }

    /// The files of a key ring.
    #[must_use]
    pub(super) fn keyring(&self, name: &str) -> Option<&Keyring> {
        let ring = self.keyrings.get(name)?;
        self.used(format!("[keyring.{name:?}]"));
        Some(ring)
    }

    /// The value that the map sets for a key of a rule.
    #[must_use]
    pub(super) fn rule(&self, name: &str, key: &str) -> Option<&Toml> {
        let value = self.rules.get(name).and_then(|rule| rule.keys.get(key))?;
        self.used(format!("`{key}` of [rule.{name:?}]"));
        Some(value)
    }

    fn used(&self, what: String) {
        self.used.borrow_mut().insert(what);
    }

    /// Reports unused entries; an unused key of a rule is an error.
    pub(super) fn report_unused(&self, findings: &mut Findings) {
        let Some(file) = &self.file else { return };
        let at = |line| Origin { file: file.as_str().into(), line };
        let used = self.used.borrow();
        for (name, rule) in &self.rules {
            for key in rule.keys.keys() {
                let entry = format!("`{key}` of [rule.{name:?}]");
                if !used.contains(&entry) {
                    let fix = "remove the key: the AT-TLS rule already sets this value, or the key \
                               does not apply to the direction or TLS role of the rule";
                    findings.error(&at(rule.line), format!("{entry} has no effect"), fix);
                }
            }
        }
        let jobs = self.jobs.keys().map(|key| format!("[job] {key:?}"));
        let users = self.users.keys().map(|key| format!("[user] {key:?}"));
        let rings = self.keyrings.keys().map(|key| format!("[keyring.{key:?}]"));
        for entry in jobs.chain(users).chain(rings).filter(|entry| !used.contains(entry)) {
            findings.info(&at(1), format!("no rule uses {entry}"));
        }
    }
}

/// The name of a key ring for look-ups: the user ID before the slash is in capitals.
#[must_use]
pub(super) fn ring_name(name: &str) -> String {
    match name.split_once('/') {
        Some((user, ring)) => format!("{}/{ring}", user.to_ascii_uppercase()),
        None => name.to_owned(),
    }
}

/// The entries of a table whose keys are names.
fn tables<T>(
    top: &TomlTable<'_>,
    key: &'static str,
    read: impl Fn(&str, &TomlValue<'_>) -> Option<T>,
) -> BTreeMap<String, T> {
    let Some(value) = top.value(key) else { return BTreeMap::new() };
    let Some(table) = value.table(NAMES, format!("[{key}]")) else {
        return BTreeMap::new();
    };
    let read = table.named_tables().filter_map(|(name, value)| {
        let value = TomlValue { name: key, ..value };
        read(name, &value).map(|read| (name.to_owned(), read))
    });
    read.collect()
}

fn job(value: &TomlValue<'_>, programs: PolicyPrograms) -> Option<Job> {
    let table = value.table(JOB, "a job")?;
    let any = table.boolean("any", false)?;
    refuse_of_other_kind(&table, programs)?;
    let program = checked(&table, "program")?;
    let user = checked(&table, "user")?;
    let run = checked(&table, "run")?;
    let unit = checked(&table, "unit")?;
    let cgroup = checked(&table, "cgroup")?;
    let job = Job { program, user, run, unit, cgroup };
    if any != job.is_any() {
        let fix = if programs == PolicyPrograms::Host {
            "set one or more of program = \"/usr/bin/name\", unit = \"name.service\", \
             cgroup = \"a.slice/name\" and user = \"name\". To apply the rule to all programs of \
             this host, set any = true, and no other key"
        } else {
            "set one or more of program = \"/usr/bin/name\", run = \"name\" and user = \"name\". \
             To apply the rule to all programs under `tacit run`, set any = true, and no other \
             key"
        };
        let message = if any {
            "an entry of [job] with `any` cannot have other keys"
        } else if programs == PolicyPrograms::Host {
            "an entry of [job] needs at least one of the keys `program`, `unit`, `cgroup`, `user` \
             and `any`"
        } else {
            "an entry of [job] needs at least one of the keys `program`, `run`, `user` and `any`"
        };
        value.error(message, fix);
        return None;
    }
    Some(job)
}

/// Reports keys of a job that select no programs of a captured host, or none of runs.
fn refuse_of_other_kind(table: &TomlTable<'_>, programs: PolicyPrograms) -> Option<()> {
    let (keys, message, fix): (&[&'static str], _, _) = if programs == PolicyPrograms::Host {
        let message = "`run` selects programs under `tacit run`, but with --host the policy is for \
                       programs of this host";
        (&["run"], message, "set `unit`, `cgroup` or `program`")
    } else {
        let message = "tacit can select programs by systemd unit or cgroup only on a captured host \
                       (`tacit agent --host`)";
        let fix = "set run = \"NAME\", and start the program with `tacit run --name NAME`, for \
                   example in ExecStart= of its systemd unit; or run the import with --host, and \
                   use the policy with `tacit agent --host`";
        (&["unit", "cgroup"], message, fix)
    };
    let found = keys.iter().find_map(|key| table.value(key));
    if let Some(value) = &found {
        value.error(message, fix);
    }
    found.is_none().then_some(())
}

fn user(value: &TomlValue<'_>) -> Option<Toml> {
    let users = texts(value)?;
    map_values::is_accepted("user", value, &users).then_some(users)
}

fn texts(value: &TomlValue<'_>) -> Option<Toml> {
    let texts = value.each(|item| item.string().map(str::to_owned))?;
    Some(texts.into())
}

fn keyring(name: &str, value: &TomlValue<'_>) -> Option<Keyring> {
    let table = value.table(KEYRING, format!("[keyring.{name:?}]"))?;
    let own = if table.holds("cert") || table.holds("key") { Some(pair(&table)?) } else { None };
    let files = |key| table.value(key).map_or(Some(None), |value| texts(&value).map(Some));
    let ca = files("ca")?;
    let crl = files("crl")?;
    if ca == Some(Toml::from(SYSTEM_TRUST)) && crl.is_some() {
        let fix = "set `ca` to PEM files, or remove `crl`";
        value.error("`crl` cannot be used with ca = \"system\"", fix);
        return None;
    }
    let labels = tables(&table, "label", |label, value| {
        let title = format!("[keyring.{name:?}.label.{label:?}]");
        pair(&value.table(LABEL, title)?)
    });
    Some(Keyring { pair: own, ca, crl, labels })
}

/// Reads `cert` and `key`; both are required.
fn pair(table: &TomlTable<'_>) -> Option<Pair> {
    let file = |key, fix| table.required(key, fix)?.string().map(str::to_owned);
    let cert = file("cert", "set a PEM file: cert = \"web.pem\"");
    let key = file("key", "set a PEM file: key = \"web.key\"");
    Some(Pair { cert: cert?, key: key? })
}

fn rule(name: &str, value: &TomlValue<'_>) -> Option<RuleKeys> {
    let table = value.table(RULE, format!("[rule.{name:?}]"))?;
    let mut keys = BTreeMap::new();
    for key in RULE_KEYS {
        if let Some(toml) = checked(&table, key)? {
            keys.insert((*key).to_owned(), toml);
        }
    }
    if keys.contains_key("starttls") && keys.contains_key("start") {
        value.error("the rule has both `starttls` and `start`", "remove `starttls` or `start`");
        return None;
    }
    let starts = [("immediate", ()), ("controlled", ())];
    table.value("start").map_or(Some(()), |value| value.choice(&starts))?;
    for key in ["certificate", "server-name", "map"] {
        table.value(key).map_or(Some(()), |value| value.string().map(drop))?;
    }
    Some(RuleKeys { line: value.report.position(value.name_at.start).line, keys })
}

fn maps(top: &TomlTable<'_>) -> Vec<MapTable> {
    let lists = tables(top, "map", |_, value| {
        value.list(usize::MAX)?.iter().map(copy).collect::<Option<Vec<_>>>()
    });
    lists.into_iter().map(|(name, entries)| MapTable { name, entries }).collect()
}

/// The value of a key, unchanged; `Some(None)` if the key is missing, `None` after an error.
fn copied(table: &TomlTable<'_>, key: &'static str) -> Option<Option<Toml>> {
    table.value(key).map_or(Some(None), |value| copy(&value).map(Some))
}

/// The same, of a value that a policy accepts.
fn checked(table: &TomlTable<'_>, key: &'static str) -> Option<Option<Toml>> {
    let copied = copied(table, key)?;
    if let (Some(value), Some(copied)) = (table.value(key), &copied)
        && !map_values::is_accepted(key, &value, copied)
    {
        return None;
    }
    Some(copied)
}

fn copy(value: &TomlValue<'_>) -> Option<Toml> {
    let copied = toml_of(value.value);
    if copied.is_none() {
        value.wrong_type(
            "text, a whole number, a boolean, or a list or table that contains only these types",
        );
    }
    copied
}

fn toml_of(value: &TomlData<'_>) -> Option<Toml> {
    Some(match value {
        TomlData::String(text) => Toml::Text(text.to_string()),
        TomlData::Integer(number) => {
            Toml::Number(i64::from_str_radix(&number.digits, number.radix).ok()?)
        }
        TomlData::Boolean(flag) => Toml::Flag(*flag),
        TomlData::Array(items) => {
            let copies = items.iter().map(|item| toml_of(&item.data));
            Toml::List(copies.collect::<Option<_>>()?)
        }
        TomlData::Table(entries) => {
            let mut keys = Keys::new();
            for TomlEntry { key, value, .. } in entries {
                set(&mut keys, key, toml_of(&value.data)?);
            }
            Toml::Table(keys)
        }
        TomlData::Float | TomlData::Datetime => return None,
    })
}
