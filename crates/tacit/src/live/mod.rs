//! Defines the live policy: the installed rules with their TLS configurations, targets and
//! counters. A reload replaces the live policy as a whole.
//!
//! ```text
//!   file ──check──> Policy, Credentials ──build──> Live ──ArcSwap──> data workers, tacit show
//! ```
//!
//! The installed form of a rule is a [`LiveRule`]. If a rule does not change, a reload keeps its
//! [`LiveRule`] and its counters. If a rule changes, a reload creates a new [`LiveRule`]. A
//! connection belongs to the [`LiveRule`] with which it was opened. If this [`LiveRule`] is no
//! longer installed, the connection is *stale*.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tacit_core::flow::{Address, Flow};
use tacit_core::policy::{
    CaptureRange, Explanation, Index, Limits, OwnTls, Policy, RelayOn, Rule, SourcePosition, Start,
    Starttls, TlsCommon, explain_at, handable,
};

use crate::ledger::{Account, Owner};
use crate::net::target::LiveTargets;
use crate::packet::FilterCounter;

mod action;
mod build;
mod check;
mod clear_access;
mod counters;
mod credentials;
mod failures;
mod files;
mod filters;
mod latency;
mod local_ids;
mod names;
mod sa_keys;
mod senders;
mod shared_keys;
mod tls_sources;
mod waived;

pub use action::{LiveAction, LiveTls, TlsRole};
pub use build::{BuildContext, Built, Changes, Installed, RuleRefused, build, rebuild, renew};
pub use check::{
    Checked, check_file, check_parsed, check_rules, check_rules_text, check_standard_input,
    check_text, link_credentials, localize,
};
pub use clear_access::{ClearAccess, ClearAccessState};
pub use counters::RuleCounters;
pub use credentials::{CredentialNames, Credentials, Refreshed};
pub use files::{ENCODING_FIX, directory_of, read_limited, read_policy};
pub use latency::{Latency, LatencyCounts};
pub use names::NoRule;
pub use tls_sources::{NETWORKS_PER_SITE_MAX, TLS_SOURCES_MAX};
pub use waived::WaivedCheck;

/// One installed policy.
#[derive(Debug)]
pub struct Live {
    /// The number of the installation, from 1.
    pub generation: u64,
    /// The parsed policy. A rule that was kept has its old source position: see [`Self::position`].
    pub policy: Arc<Policy>,
    /// The rules, in order.
    pub rules: Vec<Arc<LiveRule>>,
    /// The counters of filter rules, in the order of the policy.
    pub filters: Vec<Arc<FilterCounter>>,
    /// The index of the rules. If only credentials were renewed, the old one is used again.
    search: Arc<Search>,
}

/// One installed rule.
#[derive(Debug)]
pub struct LiveRule {
    /// The rule as it was parsed.
    pub rule: Arc<Rule>,
    /// Its action.
    pub action: LiveAction,
    /// Its targets; `None` for a deny and for rules of runs. They are kept if the rule changes and
    /// its targets do not.
    pub targets: Option<Arc<LiveTargets>>,
    /// Which of its clients may be in clear; `None`: every client needs TLS. It outlives a reload
    /// that changes the rule.
    pub clear_access: Option<Arc<ClearAccess>>,
    /// The number of handshakes of this rule in progress.
    pub handshakes: Arc<AtomicUsize>,
    /// Its counters, which are kept if a reload changes the rule.
    pub counters: Arc<RuleCounters>,
    /// Whether it is no longer installed.
    replaced: AtomicBool,
}

impl LiveRule {
    /// The account to which its CPU time is charged.
    #[must_use]
    pub fn account(&self) -> &Arc<Account> {
        &self.counters.account
    }

    /// The TLS settings that both roles have; `None` without TLS.
    #[must_use]
    pub fn tls_common(&self) -> Option<&TlsCommon> {
        Some(self.action.tls()?.common())
    }

    /// Whether it is no longer installed.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        // A handshake enters the table before it reads this, and a pass reads the table after this
        // was set. So at least one of the two sees the other.
        self.replaced.load(Ordering::SeqCst)
    }

    /// Whether the program decides when TLS begins.
    #[must_use]
    pub fn is_controlled(&self) -> bool {
        self.action.tls().is_some_and(|tls| tls.common().start == Start::Controlled)
    }

    /// How a connection is handled whose program uses TLS itself; `None` if that is not detected.
    #[must_use]
    pub fn own_tls(&self) -> Option<OwnTls> {
        self.action.tls()?.own_tls()
    }

    /// The STARTTLS settings, if it has any.
    #[must_use]
    pub fn starttls(&self) -> Option<&Starttls> {
        self.action.tls()?.common().start.starttls()
    }

    /// Whether engines relay the connections of the rule.
    fn relays_on_engine(&self) -> bool {
        self.action.tls().is_some_and(|tls| tls.common().relay == RelayOn::Engine)
    }

    /// The name of the rule.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.rule.name
    }
}

/// The indexes of a policy's rules.
#[derive(Debug)]
struct Search {
    /// The index by flow.
    index: Index,
    /// The positions of rules by name.
    places: HashMap<ByName, usize>,
    /// The position at which each rule begins.
    positions: Vec<SourcePosition>,
    /// The listening addresses with `accept-proxy`.
    proxied: HashSet<Address>,
    /// Whether a rule has a time window.
    has_windows: bool,
    /// Whether a rule depends on the address of a program's socket.
    selects_local: bool,
    /// The destinations for which programs may get sockets of the agent.
    handable: Vec<CaptureRange>,
}

impl Search {
    /// Builds the indexes. Rules that were kept replace equal ones in the policy.
    fn new(policy: &mut Policy, rules: &[Arc<LiveRule>]) -> Self {
        let positions = policy.rules.iter().map(|rule| rule.position).collect();
        policy.rules = rules.iter().map(|rule| Arc::clone(&rule.rule)).collect();
        Self::beside(policy, positions, Index::new(&policy.rules))
    }

    /// Builds the indexes beside that by flow.
    fn beside(policy: &Policy, positions: Vec<SourcePosition>, index: Index) -> Self {
        let named = policy.rules.iter().enumerate();
        let forwards = policy.rules.iter().filter_map(|rule| rule.forward());
        let proxied = forwards.filter(|forward| forward.accept_proxy);
        Self {
            index,
            places: named.map(|(place, rule)| (ByName(Arc::clone(rule)), place)).collect(),
            positions,
            proxied: proxied.flat_map(|forward| forward.listen.iter().cloned()).collect(),
            has_windows: policy.rules.iter().any(|rule| rule.selectors.when.is_some())
                || policy.filters.iter().any(|rule| rule.selectors.when.is_some()),
            selects_local: policy.selects_local(),
            handable: handable(policy),
        }
    }

    fn place(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied()
    }
}

/// A rule as a key by its name, which is stored only in the rule.
#[derive(Debug)]
struct ByName(Arc<Rule>);

impl Borrow<str> for ByName {
    fn borrow(&self) -> &str {
        #[cfg(test)]
        tests::NAMES_READ.with(|count| count.set(count.get() + 1));
        &self.0.name
    }
}

impl Hash for ByName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name.hash(state);
    }
}

impl PartialEq for ByName {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for ByName {}

impl Live {
    fn new(
        generation: u64,
        policy: Arc<Policy>,
        rules: Vec<Arc<LiveRule>>,
        search: Arc<Search>,
        filters: Vec<Arc<FilterCounter>>,
    ) -> Self {
        Self { generation, policy, rules, filters, search }
    }

    /// Sets in all accounts whether engines may do the relays, as this policy says. Called when it
    /// is installed.
    pub fn mark_relays(&self) {
        for rule in &self.rules {
            rule.account().set_relay_eligible(rule.relays_on_engine());
        }
    }

    /// The rule that decides a flow; `None` if the flow is denied. If the program of a flow is not
    /// known, it is not permitted in clear if an earlier rule could require TLS for that program.
    #[must_use]
    pub fn lookup(&self, flow: &Flow) -> Option<&Arc<LiveRule>> {
        let found = self.search.index.lookup(flow);
        let rule = found.rule.and_then(|at| self.rules.get(at))?;
        let evades = found.may_need_tls && matches!(rule.action, LiveAction::Permit);
        (!evades).then_some(rule)
    }

    /// Evaluates the policy for a flow, for `tacit explain`.
    #[must_use]
    pub fn explain(&self, flow: &Flow) -> Explanation {
        explain_at(&self.policy, flow, |place| self.position(place).unwrap_or_default())
    }

    /// Whether knowing the program of a flow could change its rule.
    #[must_use]
    pub fn needs_owner(&self, flow: &Flow) -> bool {
        self.search.index.lookup(flow).needs_owner
    }

    /// The rule with that name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Arc<LiveRule>> {
        self.search.place(name).and_then(|place| self.rules.get(place))
    }

    /// The number of failed connections of the rule with this account; `None` if that rule is not
    /// installed.
    #[must_use]
    pub fn failures(&self, account: &Account) -> Option<u64> {
        let Owner::Rule(name) = account.owner() else { return None };
        let rule = self.find(name).filter(|rule| std::ptr::eq(&**rule.account(), account))?;
        Some(rule.counters.failures())
    }

    /// Whether a connection's rule is the installed one.
    #[must_use]
    pub fn is_current(&self, rule: &Arc<LiveRule>) -> bool {
        self.find(rule.name()).is_some_and(|installed| Arc::ptr_eq(installed, rule))
    }

    /// The line in its file at which a rule begins, by the index of the rule in [`Self::rules`].
    #[must_use]
    pub fn line(&self, place: usize) -> Option<usize> {
        self.position(place).map(|position| position.line)
    }

    /// The source position at which a rule begins, by the index of the rule in [`Self::rules`].
    #[must_use]
    pub fn position(&self, place: usize) -> Option<SourcePosition> {
        self.search.positions.get(place).copied()
    }

    /// Whether some rule applies only at certain times.
    #[must_use]
    pub fn has_windows(&self) -> bool {
        self.search.has_windows
    }

    /// Whether a rule for connections that programs open depends on the address of their socket.
    #[must_use]
    pub fn selects_local(&self) -> bool {
        self.search.selects_local
    }

    /// The destinations for which programs may get sockets of the agent: [`handable`].
    #[must_use]
    pub fn handable(&self) -> &[CaptureRange] {
        &self.search.handable
    }

    /// Whether connections to a listening address begin with a PROXY header. Rules with the same
    /// address have the same setting.
    #[must_use]
    pub fn accepts_proxy(&self, listen: &Address) -> bool {
        !self.search.proxied.is_empty() && self.search.proxied.contains(listen)
    }

    /// Whether some rule has `max-age` or `idle`.
    #[must_use]
    pub fn ends_by_time(&self) -> bool {
        let has_age = |rule: &LiveRule| rule.tls_common().is_some_and(|tls| tls.max_age.is_some());
        self.rules.iter().any(|rule| rule.rule.idle.is_some() || has_age(rule))
    }

    /// Notes which rules of the policy before this one are no longer installed.
    pub fn mark_replaced(&self, before: &Self) {
        for rule in before.rules.iter().filter(|rule| !self.is_current(rule)) {
            rule.replaced.store(true, Ordering::SeqCst);
        }
    }

    /// The rule that decides about an open connection of a rule: the installed one of that name if
    /// it still has the same role in TLS, else its own.
    #[must_use]
    pub fn deciding<'a>(&'a self, own: &'a Arc<LiveRule>) -> &'a Arc<LiveRule> {
        let role = |rule: &LiveRule| rule.action.tls().map(|tls| tls.role().word());
        self.find(own.name()).filter(|installed| role(installed) == role(own)).unwrap_or(own)
    }

    /// The limits in force.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.policy.limits
    }
}

#[cfg(test)]
mod tests;
