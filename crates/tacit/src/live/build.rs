//! Builds the live policy from a parsed policy. The live policy is the data structure that the
//! workers use. It contains the TLS configuration of each rule.
//!
//! The installed form of a rule is a [`LiveRule`]. A reload keeps the [`LiveRule`] of a rule if the
//! rule, its credentials and its identity map have not changed. So open connections of this rule
//! still belong to an installed rule. This module does not change the installed policy, and can run
//! on any thread.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};
use tacit_core::parallel::{self, Joined};
use tacit_core::policy::{Action, Deny, Index, Policy, Rule, Tls};
use tacit_tls::verify::ChainCache;
use tacit_tls::{ClientSettings, ServerSettings, SettingsError};

use crate::net::target::LiveTargets;

use super::credentials::CredentialNames;
use super::filters::{self, FilterChanges};
use super::{ClearAccess, Credentials, Live, LiveAction, LiveRule, LiveTls, RuleCounters, Search};

/// The input for building rules.
#[derive(Clone, Copy, Debug)]
pub struct BuildContext<'a> {
    /// The credentials that the policy names.
    pub credentials: &'a Credentials,
    /// The cache for chains that peers send; `None`: no cache.
    pub chains: Option<&'a Arc<ChainCache>>,
}

/// The installed policy, with the credentials that it was built with.
#[derive(Clone, Copy, Debug)]
pub struct Installed<'a> {
    /// The policy.
    pub live: &'a Live,
    /// Its credentials.
    pub credentials: &'a Credentials,
}

/// A policy that is ready to be installed.
#[derive(Debug)]
pub struct Built {
    /// The policy.
    pub live: Live,
    /// How it differs from the installed one.
    pub changes: Changes,
}

/// The rules in which two policies differ, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// Rules that only the new policy has.
    pub added: Vec<String>,
    /// Rules that differ, or use other credentials or another map.
    pub changed: Vec<String>,
    /// Rules that only the old policy has.
    pub removed: Vec<String>,
}

impl Changes {
    /// Whether the policies do not differ.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }
}

/// A rule that the TLS library rejects.
#[derive(Debug)]
pub struct RuleRefused {
    /// The name of the rule.
    pub rule: String,
    /// The error of the TLS library.
    pub error: SettingsError,
}

impl fmt::Display for RuleRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cannot use the TLS settings of rule `{rule}`: {error}",
            rule = self.rule,
            error = self.error
        )
    }
}

impl std::error::Error for RuleRefused {}

/// Builds all rules of the first policy.
///
/// # Errors
/// The TLS library rejects a rule.
pub fn build(policy: Policy, context: BuildContext<'_>) -> Result<Live, RuleRefused> {
    let build = |rule| build_rule(&policy, rule, context, Kept::nothing(rule));
    let Joined { other: index, own: rules } = parallel::join(
        policy.rules.len(),
        || Index::new(&policy.rules),
        || policy.rules.iter().map(build).collect::<Result<Vec<_>, _>>(),
    );
    let rules = rules?;
    let positions = policy.rules.iter().map(|rule| rule.position).collect();
    let search = Search::beside(&policy, positions, index);
    let filters = filters::counters(&policy, None);
    Ok(Live::new(1, Arc::new(policy), rules, Arc::new(search), filters))
}

/// Builds the rules of a new policy, and keeps those that did not change.
///
/// # Errors
/// The TLS library rejects a rule.
pub fn rebuild(
    mut policy: Policy,
    context: BuildContext<'_>,
    installed: Installed<'_>,
) -> Result<Built, RuleRefused> {
    let differing = Differing::of(&policy, context.credentials, installed);
    let mut changes = Changes::default();
    let mut rules = Vec::with_capacity(policy.rules.len());
    for rule in &policy.rules {
        let kept = match installed.live.find(&rule.name) {
            Some(old) if old.rule.same(rule) && !differing.concerns(rule) => {
                rules.push(Arc::clone(old));
                continue;
            }
            Some(old) => {
                changes.changed.push(rule.name.clone());
                Kept::of(old, rule)
            }
            None => {
                changes.added.push(rule.name.clone());
                Kept::nothing(rule)
            }
        };
        rules.push(build_rule(&policy, rule, context, kept)?);
    }
    let search = Search::new(&mut policy, &rules);
    let names = installed.live.rules.iter().map(|rule| rule.name());
    changes.removed =
        names.filter(|name| search.place(name).is_none()).map(str::to_owned).collect();
    let of_filters = FilterChanges::of(&policy, &installed.live.policy);
    changes.added.extend(of_filters.added);
    changes.changed.extend(of_filters.changed);
    changes.removed.extend(of_filters.removed);
    let generation = installed.live.generation + 1;
    let filters = filters::counters(&policy, Some(installed.live));
    let live = Live::new(generation, Arc::new(policy), rules, Arc::new(search), filters);
    Ok(Built { live, changes })
}

/// Builds those rules of the installed policy again whose credentials were loaded since.
///
/// # Errors
/// The TLS library rejects a rule.
pub fn renew(context: BuildContext<'_>, installed: Installed<'_>) -> Result<Built, RuleRefused> {
    let live = installed.live;
    let differing = Differing::of(&live.policy, context.credentials, installed);
    let mut changes = Changes::default();
    let mut rules = live.rules.clone();
    for rule in rules.iter_mut().filter(|rule| differing.concerns(&rule.rule)) {
        changes.changed.push(rule.name().to_owned());
        let kept = Kept::of(rule, &rule.rule);
        *rule = build_rule(&live.policy, &rule.rule, context, kept)?;
    }
    let policy = Arc::clone(&live.policy);
    let search = Arc::clone(&live.search);
    let built = Live::new(live.generation + 1, policy, rules, search, live.filters.clone());
    Ok(Built { live: built, changes })
}

/// The names of credentials and maps that differ between two policies.
#[derive(Debug)]
struct Differing<'a> {
    identities: HashSet<&'a str>,
    trusts: HashSet<&'a str>,
    maps: HashSet<&'a str>,
}

impl<'a> Differing<'a> {
    /// Compares a policy and its credentials with the installed ones.
    fn of(policy: &'a Policy, credentials: &'a Credentials, installed: Installed<'_>) -> Self {
        let Installed { live, credentials: before } = installed;
        let identities = credentials.identities.iter().filter(|(name, now)| {
            before.identities.get(*name).is_none_or(|old| !Arc::ptr_eq(old, now) && !old.same(now))
        });
        let trusts = credentials.trusts.iter().filter(|(name, now)| {
            before.trusts.get(*name).is_none_or(|old| !Arc::ptr_eq(old, now) && !old.same(now))
        });
        let maps = policy
            .maps
            .iter()
            .filter(|(name, now)| live.policy.maps.get(*name).is_none_or(|old| !old.same(now)));
        Self {
            identities: identities.map(|(name, _)| name.as_str()).collect(),
            trusts: trusts.map(|(name, _)| name.as_str()).collect(),
            maps: maps.map(|(name, _)| name.as_str()).collect(),
        }
    }

    /// Whether a rule uses a credential or map that differs.
    fn concerns(&self, rule: &Rule) -> bool {
        let Action::Tls(tls) = &rule.action else { return false };
        let map = match tls {
            Tls::Server(tls) => tls.client_cert.map(),
            Tls::Client(_) => None,
        };
        let CredentialNames { identities, trust } = CredentialNames::of(rule);
        identities.iter().any(|name| self.identities.contains(name))
            || trust.is_some_and(|name| self.trusts.contains(name))
            || map.is_some_and(|name| self.maps.contains(name))
    }
}

/// The state of an installed rule that its replacement keeps.
struct Kept {
    counters: Arc<RuleCounters>,
    /// The targets, if both rules have the same ones.
    targets: Option<Arc<LiveTargets>>,
    /// The record of clients that have used TLS.
    clear_access: Option<Arc<ClearAccess>>,
}

impl Kept {
    /// The state for a new rule.
    fn nothing(rule: &Rule) -> Self {
        Self {
            counters: Arc::new(RuleCounters::new(&rule.name)),
            targets: None,
            clear_access: None,
        }
    }

    fn of(old: &LiveRule, new: &Rule) -> Self {
        let same = old.rule.connect() == new.connect();
        let targets = old.targets.as_ref().filter(|_| same).map(Arc::clone);
        let clear_access = old.clear_access.clone();
        Self { counters: Arc::clone(&old.counters), targets, clear_access }
    }
}

fn build_rule(
    policy: &Policy,
    rule: &Arc<Rule>,
    context: BuildContext<'_>,
    kept: Kept,
) -> Result<Arc<LiveRule>, RuleRefused> {
    let action = build_action(policy, rule, context)
        .map_err(|error| RuleRefused { rule: rule.name.clone(), error })?;
    let Kept { counters, targets, clear_access } = kept;
    let made = || rule.connect().map(|connect| Arc::new(LiveTargets::new(connect)));
    let targets = targets.or_else(made);
    let accepts_clear = action.tls().is_some_and(|tls| tls.clear_clients().is_some());
    let clear_access = accepts_clear.then(|| clear_access.unwrap_or_default());
    Ok(Arc::new(LiveRule {
        rule: Arc::clone(rule),
        action,
        targets,
        clear_access,
        handshakes: Arc::default(),
        counters,
        replaced: AtomicBool::default(),
    }))
}

fn build_action(
    policy: &Policy,
    rule: &Rule,
    context: BuildContext<'_>,
) -> Result<LiveAction, SettingsError> {
    let parsed = match &rule.action {
        Action::Permit => return Ok(LiveAction::Permit),
        Action::Deny(deny) => return Ok(LiveAction::Deny(*deny)),
        // Packets of a tunnel do not reach the agent. What does must not leave in clear.
        Action::Ipsec(_) => return Ok(LiveAction::Deny(Deny::Refused)),
        Action::Tls(parsed) => parsed,
    };
    let BuildContext { credentials, chains } = context;
    let names = CredentialNames::of(rule);
    let mut found = names.identities.iter().filter_map(|name| credentials.identities.get(*name));
    let trust = names.trust.and_then(|name| credentials.trusts.get(name)).map(Arc::as_ref);
    let tls = match parsed {
        Tls::Server(tls) => {
            let identities: Vec<_> = found.cloned().collect();
            let map = tls.client_cert.map().and_then(|name| policy.maps.get(name));
            let settings = ServerSettings::new(tls, &identities, trust, map, chains)?;
            LiveTls::server(parsed.clone(), settings)
        }
        Tls::Client(tls) => {
            let identity = found.next().map(Arc::as_ref);
            let settings = ClientSettings::new(tls, identity, trust, chains)?;
            LiveTls::client(parsed.clone(), settings)
        }
    };
    Ok(LiveAction::Tls(Arc::new(tls)))
}
