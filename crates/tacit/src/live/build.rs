//! From policy text to rules that can serve: parse, resolve, validate, and only then swap.
//!
//! Everything that can fail happens before anything is changed. A rule that is the same as before,
//! with the same certificates, keeps its [`LiveRule`]: its connections stay current.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tacit_core::policy::{
    Action, Diagnostic, Policy, Position, Rule, Severity, Tls, Verify, parse,
};
use tokio::sync::Semaphore;

use crate::address;
use crate::clock;
use crate::net::target::LiveTarget;
use crate::placement;
use tacit_tls::material::{
    IdentityMaterial, MaterialError, TrustMaterial, load_identity, load_trust,
};
use tacit_tls::verify::Chains;
use tacit_tls::{ClientSettings, Role, ServerSettings, SettingsRefused};

use super::{Live, LiveAction, LiveRule, RuleCounters};

/// Certificates, keys and trust that a policy names, loaded.
#[derive(Clone, Debug, Default)]
pub struct Materials {
    /// By name of the identity.
    pub identities: BTreeMap<String, Arc<IdentityMaterial>>,
    /// By name of the trust.
    pub trusts: BTreeMap<String, Arc<TrustMaterial>>,
}

/// A policy that passed every check, with what it names.
#[derive(Debug)]
pub struct Checked {
    /// The policy.
    pub policy: Policy,
    /// What it names.
    pub materials: Materials,
    /// Warnings.
    pub warnings: Vec<Diagnostic>,
}

/// Reads and checks a policy file with everything it names.
///
/// # Errors
/// All findings, at least one of them an error.
pub fn check_file(path: &Path) -> Result<Checked, Vec<Diagnostic>> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        vec![
            Diagnostic::error(Position { line: 1, column: 1 }, format!("cannot be read: {error}"))
                .with_fix("name a policy file that this user can read"),
        ]
    })?;
    check_text(&text, &directory_of(path))
}

/// The directory that paths in a policy are relative to.
#[must_use]
pub fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn check_text(text: &str, base: &Path) -> Result<Checked, Vec<Diagnostic>> {
    let parsed = parse(text);
    let mut findings = parsed.diagnostics;
    let Some(mut policy) = parsed.policy else { return Err(findings) };
    findings.extend(placement::check(&policy));
    findings.extend(localize(&mut policy));
    let materials = load_all(&policy, base, &mut findings);
    findings.extend(wrong_usages(&policy, &materials));
    findings.sort_by_key(|finding| finding.position);
    if findings.iter().any(|finding| finding.severity == Severity::Error) {
        return Err(findings);
    }
    Ok(Checked { policy, materials, warnings: findings })
}

/// Says what a policy means on this host; what could not be found out comes back as a warning.
///
/// Flows carry users by name, so rules that give a number get the name, if the number has one.
/// Windows in local time get the local zone.
pub fn localize(policy: &mut Policy) -> Option<Diagnostic> {
    for user in policy.rules.iter_mut().flat_map(|rule| &mut rule.selectors.user) {
        *user = address::user_word(user);
    }
    let is_local = |rule: &&Rule| rule.selectors.when.as_ref().is_some_and(|w| w.zone.is_local());
    let position = policy.rules.iter().find(is_local)?.position;
    match clock::local_zone() {
        Ok(zone) => {
            policy.set_local_zone(&zone);
            None
        }
        Err(error) => {
            let message = format!("the time zone of this host is not known, UTC is used: {error}");
            let fix = "say zone = \"Europe/Berlin\" or the like in `when`, or link /etc/localtime";
            Some(Diagnostic::warning(position, message).with_fix(fix))
        }
    }
}

fn load_all(policy: &Policy, base: &Path, findings: &mut Vec<Diagnostic>) -> Materials {
    let mut materials = Materials::default();
    let mut note = |position, result: Result<&[String], MaterialError>| match result {
        Ok(warnings) => {
            let warnings = warnings.iter().map(|text| Diagnostic::warning(position, text));
            findings.extend(warnings);
        }
        Err(error) => findings.push(Diagnostic::error(position, error.to_string())),
    };
    for (name, identity) in &policy.identities {
        match load_identity(name, identity, base) {
            Ok(material) => {
                note(identity.position, Ok(&material.warnings));
                materials.identities.insert(name.clone(), Arc::new(material));
            }
            Err(error) => note(identity.position, Err(error)),
        }
    }
    for (name, trust) in &policy.trusts {
        match load_trust(name, trust, base) {
            Ok(material) => {
                note(trust.position, Ok(&material.warnings));
                materials.trusts.insert(name.clone(), Arc::new(material));
            }
            Err(error) => note(trust.position, Err(error)),
        }
    }
    materials
}

/// Identities whose certificate is not for the role that a rule gives them, each once.
fn wrong_usages(policy: &Policy, materials: &Materials) -> Vec<Diagnostic> {
    let mut reported = BTreeSet::new();
    let mut findings = Vec::new();
    for rule in &policy.rules {
        let role = match &rule.action {
            Action::Tls(Tls::Server(_)) => Role::Server,
            Action::Tls(Tls::Client(_)) => Role::Client,
            Action::Permit | Action::Deny => continue,
        };
        let (identities, _) = names(rule);
        for name in identities {
            let wrong = materials.identities.get(name).and_then(|found| found.wrong_usage(role));
            if let Some(wrong) = wrong
                && reported.insert((name, role.peer()))
            {
                let message = format!("rule `{}`: {wrong}", rule.name);
                findings.push(Diagnostic::error(rule.position, message));
            }
        }
    }
    findings
}

impl Materials {
    /// Loads anew what changed on disk. What cannot be loaded stays as it was, and is told of.
    #[must_use]
    pub fn refreshed(&self, policy: &Policy, base: &Path) -> (Self, Vec<MaterialError>) {
        let (mut fresh, mut errors) = (self.clone(), Vec::new());
        for (name, material) in &mut fresh.identities {
            let changed = material.sources.iter().any(|source| source.changed());
            if let Some(identity) = policy.identities.get(name).filter(|_| changed) {
                match load_identity(name, identity, base) {
                    Ok(loaded) => *material = Arc::new(loaded),
                    Err(error) => errors.push(error),
                }
            }
        }
        for (name, material) in &mut fresh.trusts {
            let changed = material.sources.iter().any(|source| source.changed());
            if let Some(trust) = policy.trusts.get(name).filter(|_| changed) {
                match load_trust(name, trust, base) {
                    Ok(loaded) => *material = Arc::new(loaded),
                    Err(error) => errors.push(error),
                }
            }
        }
        (fresh, errors)
    }

    /// Whether nothing was loaded anew between the two.
    #[must_use]
    pub fn same(&self, before: &Self) -> bool {
        let identities = self.identities.values().zip(before.identities.values());
        let trusts = self.trusts.values().zip(before.trusts.values());
        identities.into_iter().all(|(now, old)| Arc::ptr_eq(now, old))
            && trusts.into_iter().all(|(now, old)| Arc::ptr_eq(now, old))
    }
}

/// Makes every rule ready to serve; unchanged rules are taken over from `before`. Chains that peers
/// send are remembered in `chains`.
///
/// # Errors
/// The rule that the TLS library refuses.
pub fn build_rules(
    policy: &Policy,
    materials: &Materials,
    before: Option<(&Live, &Materials)>,
    chains: Option<&Arc<Chains>>,
) -> Result<Vec<Arc<LiveRule>>, (String, SettingsRefused)> {
    policy
        .rules
        .iter()
        .map(|rule| {
            let old = before.and_then(|(live, _)| live.find(&rule.name));
            if let (Some(old), Some((live, used))) = (old, before)
                && old.rule.same(rule)
                && uses_same(rule, used, materials)
                && same_map(rule, &live.policy, policy)
            {
                return Ok(Arc::clone(old));
            }
            build_rule(policy, rule, materials, (old, chains))
                .map_err(|error| (rule.name.clone(), error))
        })
        .collect()
}

/// Whether everything the rule names holds the same in both.
fn uses_same(rule: &Rule, before: &Materials, now: &Materials) -> bool {
    let (identities, trust) = names(rule);
    let same_identity = |name: &str| {
        matches!(
            (before.identities.get(name), now.identities.get(name)),
            (Some(old), Some(new)) if old.same(new)
        )
    };
    let same_trust = |name: &str| {
        matches!(
            (before.trusts.get(name), now.trusts.get(name)),
            (Some(old), Some(new)) if old.same(new)
        )
    };
    identities.into_iter().all(same_identity) && trust.is_none_or(same_trust)
}

/// Whether the map that the rule names says the same in both.
fn same_map(rule: &Rule, before: &Policy, now: &Policy) -> bool {
    let Action::Tls(Tls::Server(tls)) = &rule.action else { return true };
    tls.client_cert.map().is_none_or(|name| {
        matches!(
            (before.maps.get(name), now.maps.get(name)),
            (Some(old), Some(new)) if old.same(new)
        )
    })
}

/// The identities and the trust a rule names.
#[must_use]
pub fn names(rule: &Rule) -> (Vec<&str>, Option<&str>) {
    match &rule.action {
        Action::Tls(Tls::Server(tls)) => {
            let trust = tls.client_cert.trust();
            (tls.identities.iter().map(String::as_str).collect(), trust)
        }
        Action::Tls(Tls::Client(tls)) => {
            let trust = match &tls.verify {
                Verify::Full { trust, .. } | Verify::Chain { trust, .. } => Some(trust.as_str()),
                Verify::None { .. } => None,
            };
            (tls.identity.iter().map(String::as_str).collect(), trust)
        }
        Action::Permit | Action::Deny => (Vec::new(), None),
    }
}

fn build_rule(
    policy: &Policy,
    rule: &Rule,
    materials: &Materials,
    (old, chains): (Option<&Arc<LiveRule>>, Option<&Arc<Chains>>),
) -> Result<Arc<LiveRule>, SettingsRefused> {
    let (identities, trust) = names(rule);
    let identities: Vec<_> = identities
        .iter()
        .filter_map(|name| materials.identities.get(*name).map(Arc::clone))
        .collect();
    let trust = trust.and_then(|name| materials.trusts.get(name).map(Arc::as_ref));
    let action = match &rule.action {
        Action::Permit => LiveAction::Permit,
        Action::Deny => LiveAction::Deny,
        Action::Tls(Tls::Server(tls)) => {
            let map = tls.client_cert.map().and_then(|name| policy.maps.get(name));
            let settings = ServerSettings::new(tls, &identities, trust, map, chains)?;
            LiveAction::TlsServer(Arc::new(settings))
        }
        Action::Tls(Tls::Client(tls)) => {
            let identity = identities.first().map(Arc::as_ref);
            LiveAction::TlsClient(Arc::new(ClientSettings::new(tls, identity, trust, chains)?))
        }
    };
    let counters = old
        .map_or_else(|| Arc::new(RuleCounters::new(&rule.name)), |old| Arc::clone(&old.counters));
    let target = rule.forward().and_then(|forward| forward.connect.as_ref()).map(LiveTarget::new);
    Ok(Arc::new(LiveRule {
        rule: rule.clone(),
        action,
        target,
        handshakes: Arc::new(Semaphore::new(policy.limits.handshakes_per_rule)),
        counters,
    }))
}
