//! Loads the certificates, keys, trust anchors and CRLs that a policy uses.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use tacit_core::message_id::MessageId;
use tacit_core::policy::{Action, Diagnostic, Policy, Rule, SourcePosition, Tls};
use tacit_ipsec::{ManualKeys, SecretBytes};
use tacit_tls::HandshakeRole;
use tacit_tls::credentials::{
    CredentialError, LoadedIdentity, LoadedTrust, load_identity, load_trust,
};
use tacit_tls::fault::FaultText;
use tacit_tls::signer::KeyProvider;

use super::sa_keys;
use super::shared_keys;

/// The loaded certificates, keys and trusts that a policy names.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// The identities, by name.
    pub identities: BTreeMap<String, Arc<LoadedIdentity>>,
    /// The trusts, by name.
    pub trusts: BTreeMap<String, Arc<LoadedTrust>>,
    /// The keys that tacit shares with the peers of tunnels, by the name of the peer.
    pub shared_keys: BTreeMap<String, SecretBytes>,
    /// The keys of manual SAs, by the name of the peer.
    pub manual_keys: BTreeMap<String, ManualKeys>,
}

/// Credentials after changed files were loaded again.
#[derive(Debug)]
pub struct Refreshed {
    /// All credentials. A credential that cannot be loaded keeps its old content.
    pub credentials: Credentials,
    /// The errors of credentials that cannot be loaded or used.
    pub errors: Vec<String>,
}

impl Credentials {
    /// Loads all credentials that a policy names. Adds errors and warnings to `findings`.
    #[must_use]
    pub fn load(
        policy: &Policy,
        base: &Path,
        keys: &KeyProvider,
        findings: &mut Vec<Diagnostic>,
    ) -> Self {
        let keys = keys.if_enabled(policy.agent.signer);
        let shared_keys = shared_keys::load(policy, base, findings);
        let manual_keys = sa_keys::load(policy, base, findings);
        let mut credentials = Self { shared_keys, manual_keys, ..Self::default() };
        for (name, identity) in &policy.identities {
            match load_identity(name, identity, base, &keys) {
                Ok(loaded) => {
                    findings.extend(warnings(identity.position, &loaded.warnings));
                    credentials.identities.insert(name.clone(), Arc::new(loaded));
                }
                Err(error) => {
                    let at = identity.file_positions.of(&error.path, base);
                    findings.push(unusable(&error, at.unwrap_or(identity.position)));
                }
            }
        }
        for (name, trust) in &policy.trusts {
            match load_trust(name, trust, base) {
                Ok(loaded) => {
                    findings.extend(warnings(trust.position, &loaded.warnings));
                    credentials.trusts.insert(name.clone(), Arc::new(loaded));
                }
                Err(error) => {
                    let at = trust.file_positions.of(&error.path, base);
                    findings.push(unusable(&error, at.unwrap_or(trust.position)));
                }
            }
        }
        credentials
    }

    /// Whether some file has changed on disk since it was loaded.
    #[must_use]
    pub fn have_changed(&self) -> bool {
        let of_identities = self.identities.values().flat_map(|loaded| &loaded.sources);
        let of_trusts = self.trusts.values().flat_map(|loaded| &loaded.sources);
        of_identities.chain(of_trusts).any(|source| source.changed())
    }

    /// Loads the files that have changed on disk again.
    #[must_use]
    pub fn refreshed(&self, policy: &Policy, base: &Path, keys: &KeyProvider) -> Refreshed {
        let keys = keys.if_enabled(policy.agent.signer);
        let mut credentials = self.clone();
        let mut errors = Vec::new();
        for (name, current) in &mut credentials.identities {
            let changed = current.sources.iter().any(|source| source.changed());
            if let Some(identity) = policy.identities.get(name).filter(|_| changed) {
                match load_identity(name, identity, base, &keys) {
                    Ok(loaded) => *current = Arc::new(loaded),
                    Err(error) => errors.push(error.to_string()),
                }
            }
        }
        for (name, current) in &mut credentials.trusts {
            let changed = current.sources.iter().any(|source| source.changed());
            if let Some(trust) = policy.trusts.get(name).filter(|_| changed) {
                match load_trust(name, trust, base) {
                    Ok(loaded) => *current = Arc::new(loaded),
                    Err(error) => errors.push(error.to_string()),
                }
            }
        }
        // A credential that is unsuitable for its role must not prevent the use of other files.
        for unsuitable in unsuitable_credentials(policy, &credentials) {
            let is_restored = match unsuitable.credential {
                Credential::Identity(name) => {
                    restore(&mut credentials.identities, &self.identities, name)
                }
                Credential::Trust(name) => restore(&mut credentials.trusts, &self.trusts, name),
            };
            if is_restored {
                errors.push(unsuitable.to_string());
            }
        }
        Refreshed { credentials, errors }
    }

    /// Returns the tables whose files have other contents than before, such as `[ike.branch]`.
    /// New tables are not among them.
    #[must_use]
    pub fn tables_with_new_contents(&self, before: &Self) -> Vec<String> {
        let shared_keys = differing(&self.shared_keys, &before.shared_keys, PartialEq::eq);
        let manual_keys = differing(&self.manual_keys, &before.manual_keys, PartialEq::eq);
        let identities = differing(&self.identities, &before.identities, |now, old| now.same(old));
        let trusts = differing(&self.trusts, &before.trusts, |now, old| now.same(old));
        let kinds = [
            ("identity", identities),
            ("trust", trusts),
            ("ike", shared_keys),
            ("sa", manual_keys),
        ];
        let tables = |(kind, names): (&str, Vec<String>)| {
            names.into_iter().map(move |name| format!("[{kind}.{name}]")).collect::<Vec<_>>()
        };
        kinds.into_iter().flat_map(tables).collect()
    }

    /// Whether both hold the same loaded files.
    #[must_use]
    pub fn same(&self, before: &Self) -> bool {
        let mut identities = self.identities.values().zip(before.identities.values());
        let mut trusts = self.trusts.values().zip(before.trusts.values());
        identities.all(|(now, old)| Arc::ptr_eq(now, old))
            && trusts.all(|(now, old)| Arc::ptr_eq(now, old))
    }
}

/// The names of the credentials that both sides have, and that differ.
fn differing<T>(
    now: &BTreeMap<String, T>,
    before: &BTreeMap<String, T>,
    is_same: impl Fn(&T, &T) -> bool,
) -> Vec<String> {
    let differs =
        |(name, now): &(&String, &T)| before.get(*name).is_some_and(|old| !is_same(now, old));
    now.iter().filter(differs).map(|(name, _)| name.clone()).collect()
}

/// Uses the installed credential instead of the one that was loaded again. Returns whether there
/// was one.
fn restore<T>(
    renewed: &mut BTreeMap<String, Arc<T>>,
    installed: &BTreeMap<String, Arc<T>>,
    name: &str,
) -> bool {
    match (installed.get(name), renewed.get_mut(name)) {
        (Some(installed), Some(renewed)) if !Arc::ptr_eq(installed, renewed) => {
            *renewed = Arc::clone(installed);
            true
        }
        _ => false,
    }
}

/// A credential that is not for the role that a rule gives it.
pub(super) struct UnsuitableCredential<'p> {
    pub(super) rule: &'p Rule,
    credential: Credential<'p>,
    why: FaultText,
}

impl UnsuitableCredential<'_> {
    /// What is wrong with it for which rule, and what to do.
    pub(super) fn text(&self) -> FaultText {
        self.why.clone().prefixed(format_args!("rule `{}`", self.rule.name))
    }
}

/// A credential by name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Credential<'p> {
    Identity(&'p str),
    Trust(&'p str),
}

impl fmt::Display for UnsuitableCredential<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.text())
    }
}

/// All credentials that are unsuitable for a role, once for each credential and role, in the order
/// of the rules.
pub(super) fn unsuitable_credentials<'p>(
    policy: &'p Policy,
    credentials: &Credentials,
) -> Vec<UnsuitableCredential<'p>> {
    let mut found = BTreeSet::new();
    let mut unsuitable_credentials = Vec::new();
    for rule in &policy.rules {
        let role = match &rule.action {
            Action::Tls(Tls::Server(_)) => HandshakeRole::Server,
            Action::Tls(Tls::Client(_)) => HandshakeRole::Client,
            Action::Permit | Action::Deny(_) | Action::Ipsec(_) => continue,
        };
        let CredentialNames { identities, trust } = CredentialNames::of(rule);
        let identities = identities.into_iter().filter_map(|name| {
            let wrong = credentials.identities.get(name)?.wrong_usage(role)?;
            Some((Credential::Identity(name), wrong.text()))
        });
        let trust = trust.into_iter().filter_map(|name| {
            let unusable = credentials.trusts.get(name)?.unusable_pins(role)?;
            Some((Credential::Trust(name), unusable.text()))
        });
        for (credential, why) in identities.chain(trust) {
            if found.insert((credential, role.peer())) {
                unsuitable_credentials.push(UnsuitableCredential { rule, credential, why });
            }
        }
    }
    unsuitable_credentials
}

fn unusable(error: &CredentialError, position: SourcePosition) -> Diagnostic {
    diagnostic(MessageId("unusable-file"), position, error.text())
}

/// An error of the policy about a credential.
pub(super) fn diagnostic(id: MessageId, position: SourcePosition, text: FaultText) -> Diagnostic {
    let error = Diagnostic::error(id, position, text.message);
    text.fix.into_iter().fold(error, Diagnostic::with_fix)
}

fn warnings(position: SourcePosition, texts: &[String]) -> impl Iterator<Item = Diagnostic> {
    texts.iter().map(move |text| Diagnostic::warning(MessageId("doubtful-file"), position, text))
}

/// The names of the credentials that a rule uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CredentialNames<'a> {
    /// Names of identities; in the client role at most one.
    pub identities: Vec<&'a str>,
    /// The name of the trust that checks the peer.
    pub trust: Option<&'a str>,
}

impl<'a> CredentialNames<'a> {
    /// The credentials that a rule uses.
    #[must_use]
    pub fn of(rule: &'a Rule) -> Self {
        match &rule.action {
            Action::Tls(Tls::Server(tls)) => Self {
                identities: tls.identities.iter().map(String::as_str).collect(),
                trust: tls.client_cert.trust(),
            },
            Action::Tls(Tls::Client(tls)) => Self {
                identities: tls.identity.iter().map(String::as_str).collect(),
                trust: tls.verify.trust(),
            },
            Action::Permit | Action::Deny(_) | Action::Ipsec(_) => Self::default(),
        }
    }
}
