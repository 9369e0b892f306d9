//! `[identity.NAME]` and `[trust.NAME]`, and who refers to them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::report::{Report, Span};
use super::table::{Table, Value};
use super::value;
use super::words::{self, Scope};
use crate::policy::{Identity, Position, Trust, TrustSource};

/// The trust that every policy has: the distribution's own bundle.
const SYSTEM: &str = "system";

/// Every identity and trust of the policy, and which of them some rule names.
pub(super) struct Names<'a> {
    report: &'a Report<'a>,
    /// A table that could not be read is known by name, so that its users are not blamed.
    identities: BTreeMap<&'a str, Option<Identity>>,
    trusts: BTreeMap<&'a str, Option<Trust>>,
    used_identities: RefCell<BTreeSet<String>>,
    used_trusts: RefCell<BTreeSet<String>>,
    system_first_named: RefCell<Option<Position>>,
    /// Whether there is an `[engine]`, be it right or wrong.
    pub(super) has_engine: bool,
}

/// What was read.
pub(super) struct Tables {
    pub(super) identities: BTreeMap<String, Identity>,
    pub(super) trusts: BTreeMap<String, Trust>,
}

impl<'a> Names<'a> {
    /// Reads both kinds of tables.
    pub(super) fn read(top: &Table<'a>) -> Self {
        Self {
            report: top.report,
            identities: tables(top, "identity", Scope::Identities, identity),
            trusts: tables(top, "trust", Scope::Trusts, trust),
            used_identities: RefCell::default(),
            used_trusts: RefCell::default(),
            system_first_named: RefCell::default(),
            has_engine: top.holds("engine"),
        }
    }

    /// The value as the name of an identity.
    pub(super) fn identity(&self, value: &Value<'_>) -> Option<String> {
        let name = value.string()?;
        self.used_identities.borrow_mut().insert(name.to_owned());
        let known: Vec<&str> = self.identities.keys().copied().collect();
        check_known(value, name, &known, "identity", "cert and key")
    }

    /// The value as the name of a trust.
    pub(super) fn trust(&self, value: &Value<'_>) -> Option<String> {
        let name = value.string()?;
        if name == SYSTEM {
            let position = value.report.position(value.at.start);
            self.system_first_named.borrow_mut().get_or_insert(position);
            return Some(name.to_owned());
        }
        self.used_trusts.borrow_mut().insert(name.to_owned());
        let known: Vec<&str> = self.trusts.keys().copied().chain([SYSTEM]).collect();
        check_known(value, name, &known, "trust", "ca")
    }

    /// Warns about tables that no rule names.
    pub(super) fn warn_of_unused(&self) {
        let warn = |kind: &str, name: &str, position: Position| {
            let message = format!("[{kind}.{name}] is not used by any rule");
            self.report.warning(position, message, "remove it, or name it in a rule's `tls`");
        };
        for (name, identity) in &self.identities {
            if let Some(identity) = identity
                && !self.used_identities.borrow().contains(*name)
            {
                warn("identity", name, identity.position);
            }
        }
        for (name, trust) in &self.trusts {
            if let Some(trust) = trust
                && !self.used_trusts.borrow().contains(*name)
            {
                warn("trust", name, trust.position);
            }
        }
    }

    /// Hands over what was read.
    pub(super) fn finish(self) -> Option<Tables> {
        let identities = owned(self.identities)?;
        let mut trusts = owned(self.trusts)?;
        if let Some(position) = self.system_first_named.take() {
            trusts.insert(SYSTEM.to_owned(), Trust { source: TrustSource::System, position });
        }
        Some(Tables { identities, trusts })
    }
}

fn owned<T>(read: BTreeMap<&str, Option<T>>) -> Option<BTreeMap<String, T>> {
    read.into_iter().map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

fn tables<'a, T>(
    top: &Table<'a>,
    key: &'static str,
    scope: Scope,
    read: impl Fn(&str, &Value<'a>) -> Option<T>,
) -> BTreeMap<&'a str, Option<T>> {
    let Some(outer) = top.value(key).and_then(|value| value.table(scope, scope.title())) else {
        return BTreeMap::new();
    };
    let read = |(name, table): (&'a str, Value<'a>)| {
        let named = value::check_name(&Value { at: table.name_at.clone(), ..table.clone() }, name);
        (name, read(name, &table).filter(|_| named))
    };
    outer.named_tables().map(read).collect()
}

fn identity(name: &str, value: &Value<'_>) -> Option<Identity> {
    let table = value.table(Scope::Identity, format!("[identity.{name}]"))?;
    let cert = table
        .required("cert", "name a PEM file: cert = \"web.pem\"")
        .and_then(|value| value::file(&value));
    let key = table
        .required("key", "name a PEM file: key = \"web.key\"")
        .and_then(|value| value::file(&value));
    Some(Identity { cert: cert?, key: key?, position: position(&table.at, value.report) })
}

fn trust(name: &str, value: &Value<'_>) -> Option<Trust> {
    if name == SYSTEM {
        let fix = "choose another name; `system` is the distribution's own bundle";
        value.report.error(&value.name_at, "[trust.system] is built in", fix);
        return None;
    }
    let table = value.table(Scope::Trust, format!("[trust.{name}]"))?;
    let files = table
        .required("ca", "name a PEM file: ca = \"corp-ca.pem\"")
        .and_then(|value| value.each_once(value::file))?;
    let source = TrustSource::Files(files);
    Some(Trust { source, position: position(&table.at, value.report) })
}

fn position(at: &Span, report: &Report<'_>) -> Position {
    report.position(at.start)
}

fn check_known(
    value: &Value<'_>,
    name: &str,
    known: &[&str],
    kind: &str,
    keys: &str,
) -> Option<String> {
    if known.contains(&name) {
        return Some(name.to_owned());
    }
    let fix = match words::nearest(name, known) {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => format!("add a table [{kind}.{name}] with {keys}"),
    };
    value.report.missing(&value.at, format!("there is no [{kind}.{name}]"), fix);
    None
}
