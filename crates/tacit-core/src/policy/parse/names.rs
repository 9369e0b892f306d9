//! Parses the tables `[identity.NAME]`, `[trust.NAME]` and `[[map.NAME]]` of a policy. Also finds
//! the tables to which a rule refers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use super::map;
use super::value;
use super::words::Scope;
use crate::message_id::MessageId;
use crate::parallel::lock;
use crate::policy::activate::Activation;
use crate::policy::credentials::{
    ExpiredAnchors, FilePositions, Identity, Revocation, SYSTEM_TRUST, Trust, TrustSource,
};
use crate::policy::diagnostic::SourcePosition;
use crate::policy::ike::IkePeer;
use crate::policy::map::IdentityMap;
use crate::policy::sa::ManualSa;
use crate::policy::text::{ByteSpan, Diagnostics, TomlTable, TomlValue, nearest_word};

/// All identities, trusts and maps of the policy, and which of them rules use.
pub(super) struct Names<'a> {
    report: &'a Diagnostics<'a>,
    /// A table with errors is entered with its name only, so that references to it are not reported
    /// too.
    identities: BTreeMap<&'a str, Option<Identity>>,
    trusts: BTreeMap<&'a str, Option<Trust>>,
    maps: BTreeMap<&'a str, Option<IdentityMap>>,
    ikes: BTreeMap<&'a str, Option<IkePeer>>,
    sas: BTreeMap<&'a str, Option<ManualSa>>,
    activations: BTreeMap<&'a str, Option<Activation>>,
    used_identities: UsedNames,
    used_trusts: UsedNames,
    used_maps: UsedNames,
    used_ikes: UsedNames,
    used_sas: UsedNames,
    used_activations: UsedNames,
    system_first_named: Mutex<Option<SourcePosition>>,
    /// Whether there is an `[engine]`, valid or not.
    pub(super) has_engine: bool,
}

/// The names of tables that rules use. Several threads read rules.
#[derive(Default)]
struct UsedNames(Mutex<BTreeSet<String>>);

impl UsedNames {
    fn add(&self, name: &str) {
        let mut names = lock(&self.0);
        if !names.contains(name) {
            names.insert(name.to_owned());
        }
    }

    fn contains(&self, name: &str) -> bool {
        lock(&self.0).contains(name)
    }
}

/// The tables of the policy.
pub(super) struct Tables {
    pub(super) identities: BTreeMap<String, Identity>,
    pub(super) trusts: BTreeMap<String, Trust>,
    pub(super) maps: BTreeMap<String, IdentityMap>,
    pub(super) ikes: BTreeMap<String, IkePeer>,
    pub(super) sas: BTreeMap<String, ManualSa>,
    pub(super) activations: BTreeMap<String, Activation>,
}

impl<'a> Names<'a> {
    /// Reads all kinds of tables.
    pub(super) fn read(top: &TomlTable<'a>) -> Self {
        Self {
            report: top.report,
            identities: tables(top, "identity", Scope::Identities, identity),
            trusts: tables(top, "trust", Scope::Trusts, trust),
            maps: tables(top, "map", Scope::Maps, map::read),
            ikes: BTreeMap::new(),
            sas: BTreeMap::new(),
            activations: BTreeMap::new(),
            used_identities: UsedNames::default(),
            used_trusts: UsedNames::default(),
            used_maps: UsedNames::default(),
            used_ikes: UsedNames::default(),
            used_sas: UsedNames::default(),
            used_activations: UsedNames::default(),
            system_first_named: Mutex::default(),
            has_engine: top.holds("engine"),
        }
    }

    /// Adds the peers of tunnels, which name identities and trusts.
    pub(super) fn with_ikes(self, ikes: BTreeMap<&'a str, Option<IkePeer>>) -> Self {
        Self { ikes, ..self }
    }

    /// Adds the peers of tunnels whose keys are in files.
    pub(super) fn with_sas(self, sas: BTreeMap<&'a str, Option<ManualSa>>) -> Self {
        Self { sas, ..self }
    }

    /// Adds the activations.
    pub(super) fn with_activations(
        self,
        activations: BTreeMap<&'a str, Option<Activation>>,
    ) -> Self {
        Self { activations, ..self }
    }

    /// Resolves the value as the name of an identity.
    pub(super) fn identity(&self, value: &TomlValue<'_>) -> Option<String> {
        let name = value.string()?;
        self.used_identities.add(name);
        let known: Vec<&str> = self.identities.keys().copied().collect();
        check_known(value, name, &known, "identity", "the keys `cert` and `key`")
    }

    /// Resolves the value as the name of a trust.
    pub(super) fn trust(&self, value: &TomlValue<'_>) -> Option<String> {
        let name = value.string()?;
        if name == SYSTEM_TRUST {
            let position = value.report.position(value.at.start);
            let mut first = lock(&self.system_first_named);
            *first = Some(first.map_or(position, |first| first.min(position)));
            return Some(name.to_owned());
        }
        self.used_trusts.add(name);
        let known: Vec<&str> = self.trusts.keys().copied().chain([SYSTEM_TRUST]).collect();
        check_known(value, name, &known, "trust", "the key `ca` or `pinned`")
    }

    /// Whether the value names a trust with pinned certificates.
    pub(super) fn is_pinned(&self, value: &TomlValue<'_>) -> bool {
        let trust = value.value.as_str().and_then(|name| self.trusts.get(name)?.as_ref());
        trust.is_some_and(|trust| !trust.pinned.is_empty())
    }

    /// Resolves the value as the name of a map.
    pub(super) fn map(&self, value: &TomlValue<'_>) -> Option<String> {
        let name = value.string()?;
        self.used_maps.add(name);
        let known: Vec<&str> = self.maps.keys().copied().collect();
        check_known(value, name, &known, "map", "entries that begin with [[map.NAME]]")
    }

    /// Resolves the value as the name of a peer of tunnels.
    pub(super) fn ike(&self, value: &TomlValue<'_>) -> Option<String> {
        let name = value.string()?;
        self.used_ikes.add(name);
        let known: Vec<&str> = self.ikes.keys().copied().collect();
        check_known(
            value,
            name,
            &known,
            "ike",
            "the keys `peer`, `psk-file`, `local-id` and `inner`",
        )
    }

    /// Resolves the value as the name of a peer whose keys are in files.
    pub(super) fn sa(&self, value: &TomlValue<'_>) -> Option<String> {
        let name = value.string()?;
        self.used_sas.add(name);
        let known: Vec<&str> = self.sas.keys().copied().collect();
        let keys = "the keys `peer`, `encryption`, `integrity`, `spi-in`, `spi-out`, `keys-in`, \
                    `keys-out` and `inner`";
        check_known(value, name, &known, "sa", keys)
    }

    /// Resolves the value as the name of a peer of tunnels.
    pub(super) fn tunnel_peer(&self, value: &TomlValue<'_>) -> Option<String> {
        let is_manual = value.string().is_some_and(|name| self.sas.contains_key(name));
        if is_manual { self.sa(value) } else { self.ike(value) }
    }

    /// Returns the peer of tunnels with this name, if it has no error.
    pub(super) fn ike_named(&self, name: &str) -> Option<&IkePeer> {
        self.ikes.get(name)?.as_ref()
    }

    /// Returns the manual SAs with this name, if they have no error.
    pub(super) fn sa_named(&self, name: &str) -> Option<&ManualSa> {
        self.sas.get(name)?.as_ref()
    }

    /// Resolves the value as the name of an activation.
    pub(super) fn activation(&self, value: &TomlValue<'_>) -> Option<String> {
        let name = value.string()?;
        self.used_activations.add(name);
        let known: Vec<&str> = self.activations.keys().copied().collect();
        check_known(value, name, &known, "activate", "the key `command`")
    }

    /// Returns the activation with this name, if it has no error.
    pub(super) fn activation_named(&self, name: &str) -> Option<&Activation> {
        self.activations.get(name)?.as_ref()
    }

    /// Warns about tables that no rule uses.
    pub(super) fn warn_of_unused(&self) {
        let warn = |kind: &str, name: &str, position: SourcePosition| {
            let message = format!("no rule uses [{kind}.{name}]");
            let action = match kind {
                "ike" | "sa" => "ipsec",
                "activate" => "activate",
                _ => "tls",
            };
            let fix = format!("remove the table, or use its name in `{action}` of a rule");
            self.report.warning(MessageId("unused"), position, message, fix);
        };
        for (name, identity) in &self.identities {
            if let Some(identity) = identity
                && !self.used_identities.contains(name)
            {
                warn("identity", name, identity.position);
            }
        }
        for (name, trust) in &self.trusts {
            if let Some(trust) = trust
                && !self.used_trusts.contains(name)
            {
                warn("trust", name, trust.position);
            }
        }
        for (name, map) in &self.maps {
            if let Some(first) = map.as_ref().and_then(|map| map.entries().first())
                && !self.used_maps.contains(name)
            {
                warn("map", name, first.position);
            }
        }
        for (name, peer) in &self.ikes {
            if let Some(peer) = peer
                && !self.used_ikes.contains(name)
            {
                warn("ike", name, peer.position);
            }
        }
        for (name, sa) in &self.sas {
            if let Some(sa) = sa
                && !self.used_sas.contains(name)
            {
                warn("sa", name, sa.position);
            }
        }
        for (name, activation) in &self.activations {
            if let Some(activation) = activation
                && !self.used_activations.contains(name)
            {
                warn("activate", name, activation.position);
            }
        }
    }

    /// Returns the tables that were read.
    pub(super) fn finish(self) -> Option<Tables> {
        let identities = owned(self.identities)?;
        let mut trusts = owned(self.trusts)?;
        if let Some(position) =
            self.system_first_named.into_inner().unwrap_or_else(PoisonError::into_inner)
        {
            let system = Trust {
                source: TrustSource::System,
                pinned: Vec::new(),
                crls: Vec::new(),
                revocation: Revocation::Off,
                expired_anchors: ExpiredAnchors::Reject,
                position,
                file_positions: FilePositions::default(),
            };
            trusts.insert(SYSTEM_TRUST.to_owned(), system);
        }
        let ikes = owned(self.ikes)?;
        let sas = owned(self.sas)?;
        let activations = owned(self.activations)?;
        Some(Tables { identities, trusts, maps: owned(self.maps)?, ikes, sas, activations })
    }
}

fn owned<T>(read: BTreeMap<&str, Option<T>>) -> Option<BTreeMap<String, T>> {
    read.into_iter().map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// Reads the tables with names below a key.
pub(super) fn tables<'a, T>(
    top: &TomlTable<'a>,
    key: &'static str,
    scope: Scope,
    read: impl Fn(&str, &TomlValue<'a>) -> Option<T>,
) -> BTreeMap<&'a str, Option<T>> {
    let Some(outer) = top.value(key).and_then(|value| value.table(scope, scope.title())) else {
        return BTreeMap::new();
    };
    let read = |(name, table): (&'a str, TomlValue<'a>)| {
        let named =
            value::check_name(&TomlValue { at: table.name_at.clone(), ..table.clone() }, name);
        (name, read(name, &table).filter(|_| named))
    };
    outer.named_tables().map(read).collect()
}

fn identity(name: &str, value: &TomlValue<'_>) -> Option<Identity> {
    let table = value.table(Scope::Identity, format!("[identity.{name}]"))?;
    let cert = table
        .required("cert", "set a PEM file: cert = \"web.pem\"")
        .and_then(|value| value::file(&value));
    let key = table
        .required("key", "set a PEM file: key = \"web.key\"")
        .and_then(|value| value::file(&value));
    let position = position(&table.at, value.report);
    let file_positions = file_positions(&table, &["cert", "key"]);
    Some(Identity { cert: cert?, key: key?, position, file_positions })
}

fn trust(name: &str, value: &TomlValue<'_>) -> Option<Trust> {
    if name == SYSTEM_TRUST {
        let fix = "choose another name: `system` is reserved for the CA certificates of the \
                   Linux distribution";
        value.report.error(
            MessageId("reserved-name"),
            &value.name_at,
            "[trust.system] is predefined",
            fix,
        );
        return None;
    }
    let table = value.table(Scope::Trust, format!("[trust.{name}]"))?;
    let pins = table.value("pinned").map(|value| value.each_once(value::file));
    let source = match (table.value("ca"), &pins) {
        (Some(ca), _) => ca.each_once(value::file).map(TrustSource::Files),
        (None, Some(_)) => Some(TrustSource::Pinned),
        (None, None) => {
            let fix = "set a PEM file with CA certificates (ca = \"corp-ca.pem\"), or a PEM file \
                       with the peer's own certificate (pinned = \"peer.pem\")";
            table.missing("ca", fix);
            None
        }
    };
    if source == Some(TrustSource::Pinned) {
        let why = "this key needs a CA, but the [trust] table has no `ca`";
        let fix = "remove `{key}`, or add the CA: ca = \"corp-ca.pem\"";
        table.refuse(&["crl", "revocation", "expired-anchors"], why, fix);
    }
    // A value that was just rejected is not read again, because a second error would contradict the
    // first.
    let crl_settings = match source {
        Some(TrustSource::Pinned) => {
            Some(CrlSettings { crls: Vec::new(), revocation: Revocation::Off })
        }
        Some(TrustSource::Files(_) | TrustSource::System) | None => crl_settings(&table),
    };
    let words = [("reject", ExpiredAnchors::Reject), ("accept", ExpiredAnchors::Accept)];
    let expired_anchors = table
        .value("expired-anchors")
        .map_or(Some(ExpiredAnchors::Reject), |value| value.choice(&words));
    let position = position(&table.at, value.report);
    let pinned = pins.unwrap_or_else(|| Some(Vec::new()))?;
    let CrlSettings { crls, revocation } = crl_settings?;
    let expired_anchors = expired_anchors?;
    let file_positions = file_positions(&table, &["ca", "pinned", "crl"]);
    let source = source?;
    Some(Trust { source, pinned, crls, revocation, expired_anchors, position, file_positions })
}

/// The CRLs of a trust, and how they are used.
struct CrlSettings {
    crls: Vec<PathBuf>,
    revocation: Revocation,
}

/// Parses the CRLs of a trust; the default of `revocation` is hard.
fn crl_settings(table: &TomlTable<'_>) -> Option<CrlSettings> {
    let words = [Revocation::Off, Revocation::Soft, Revocation::Hard].map(|it| (it.word(), it));
    let given = table.value("revocation").map(|value| value.choice(&words));
    let Some(crl) = table.value("crl") else {
        if let Some(Some(Revocation::Soft | Revocation::Hard)) = given {
            let fix = "set the file that contains the CRLs: crl = \"corp.crl\"; or set \
                       revocation = \"off\"";
            table.missing("crl", fix);
            return None;
        }
        let revocation = given.unwrap_or(Some(Revocation::Off))?;
        return Some(CrlSettings { crls: Vec::new(), revocation });
    };
    let crls = crl.each_once(value::file);
    let revocation = given.unwrap_or(Some(Revocation::Hard))?;
    if revocation == Revocation::Off {
        let fix = "set revocation = \"hard\" or \"soft\", or remove `crl`";
        let position = table.report.position(crl.name_at.start);
        table.report.warning(
            MessageId("no-effect"),
            position,
            "`crl` has no effect with revocation = \"off\"",
            fix,
        );
    }
    Some(CrlSettings { crls: crls?, revocation })
}

fn position(at: &ByteSpan, report: &Diagnostics<'_>) -> SourcePosition {
    report.position(at.start)
}

/// Returns the positions of the files that these keys of a table name.
fn file_positions(table: &TomlTable<'_>, keys: &[&'static str]) -> FilePositions {
    let mut files = Vec::new();
    for value in keys.iter().filter_map(|key| table.value(key)) {
        // Errors in the values were reported when they were read.
        let list = value.value.as_array();
        let items = list.unwrap_or_default().iter().map(|item| (&item.data, &item.at));
        let items = items.chain(list.is_none().then_some((value.value, &value.at)));
        files.extend(items.filter_map(|(item, at)| {
            Some((PathBuf::from(item.as_str()?), position(at, table.report)))
        }));
    }
    FilePositions::new(files)
}

fn check_known(
    value: &TomlValue<'_>,
    name: &str,
    known: &[&str],
    kind: &str,
    keys: &str,
) -> Option<String> {
    if known.contains(&name) {
        return Some(name.to_owned());
    }
    let fix = match nearest_word(name, known) {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => format!("add a table [{kind}.{name}] with {keys}"),
    };
    value.report.missing(
        MessageId("unknown-name"),
        &value.at,
        format!("the policy has no table [{kind}.{name}]"),
        fix,
    );
    None
}
