//! The live policy: the installed rules with their TLS configurations, targets and counters. A
//! reload replaces it as a whole.
//!
//! ```text
//!   file ──check──> Policy, Credentials ──build──> Live ──ArcSwap──> data workers, displays
//! ```
//!
//! A rule that a reload did not change keeps its [`LiveRule`] with its counters; a changed rule
//! gets a new one. A connection keeps a reference to the [`LiveRule`] with which it opened, and is
//! stale if that is no longer installed. Policy, [`LiveRule`], index and the table of names share
//! each rule, so it is stored only once.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tacit_core::flow::{Address, Flow};
use tacit_core::policy::{
    Explanation, Index, Limits, OwnTls, Policy, RelayOn, Rule, Start, Starttls, TlsCommon,
    explain_at,
};

use crate::ledger::{Account, Owner};
use crate::net::target::LiveTargets;

mod action;
mod build;
mod check;
mod clear_access;
mod counters;
mod credentials;
mod failures;
mod latency;
mod names;

pub use action::{LiveAction, LiveTls, TlsRole};
pub use build::{BuildContext, Built, Changes, Installed, RuleRefused, build, rebuild, renew};
pub use check::{Checked, check_file, check_text, directory_of, localize, read_policy};
pub use clear_access::{ClearAccess, ClearAccessState, TLS_SOURCES_MAX};
pub use counters::RuleCounters;
pub use credentials::{CredentialNames, Credentials, Refreshed};
pub use latency::{Latency, LatencyCounts};
pub use names::NoRule;

/// One installed policy.
#[derive(Debug)]
pub struct Live {
    /// Counts installations from 1.
    pub generation: u64,
    /// What was parsed. A rule that an installation kept has the position that it had before: see
    /// [`Self::line`].
    pub policy: Arc<Policy>,
    /// The rules, in order.
    pub rules: Vec<Arc<LiveRule>>,
    /// What finds them; a policy of which only credentials were renewed has the same.
    search: Arc<Search>,
}

/// One installed rule.
#[derive(Debug)]
pub struct LiveRule {
    /// The rule as it was parsed.
    pub rule: Arc<Rule>,
    /// What is done with its connections.
    pub action: LiveAction,
    /// Where its connections go; `None` for a deny and for rules about runs. It outlives a change
    /// of the rule that leaves that as it is.
    pub targets: Option<Arc<LiveTargets>>,
    /// Which of its clients may be in clear; `None`: every client needs TLS. It outlives a reload
    /// that changes the rule.
    pub clear_access: Option<Arc<ClearAccess>>,
    /// The number of handshakes of this rule in progress.
    pub handshakes: Arc<AtomicUsize>,
    /// Counters; they outlive a reload that changes the rule.
    pub counters: Arc<RuleCounters>,
    /// Whether it is no longer installed.
    replaced: AtomicBool,
}

impl LiveRule {
    /// Where what it costs is charged to.
    #[must_use]
    pub fn account(&self) -> &Arc<Account> {
        &self.counters.account
    }

    /// What its TLS has in common in both roles; `None`: it has no TLS.
    #[must_use]
    pub fn tls_common(&self) -> Option<&TlsCommon> {
        Some(self.action.tls()?.common())
    }

    /// Whether it was noted that it is no longer installed.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        // A completed handshake stands in the table before this is read, and a pass reads the table
        // after this was set: one of the two sees the other.
        self.replaced.load(Ordering::SeqCst)
    }

    /// Whether the program says when TLS begins.
    #[must_use]
    pub fn is_controlled(&self) -> bool {
        self.action.tls().is_some_and(|tls| tls.common().start == Start::Controlled)
    }

    /// What becomes of a connection whose program speaks TLS itself; `None`: it is not looked for.
    #[must_use]
    pub fn own_tls(&self) -> Option<OwnTls> {
        self.action.tls()?.own_tls()
    }

    /// The dialogue before its TLS, if there is one.
    #[must_use]
    pub fn starttls(&self) -> Option<&Starttls> {
        self.action.tls()?.common().start.starttls()
    }

    /// Whether the rule keeps its relay on the engine.
    fn relays_on_engine(&self) -> bool {
        self.action.tls().is_some_and(|tls| tls.common().relay == RelayOn::Engine)
    }

    /// The rule's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.rule.name
    }
}

/// What finds the rules of a policy; places are those in its order.
#[derive(Debug)]
struct Search {
    /// By flow.
    index: Index,
    /// By name.
    places: HashMap<ByName, usize>,
    /// The line in which each rule begins.
    lines: Vec<usize>,
    /// The listening addresses at which a PROXY header comes first.
    proxied: HashSet<Address>,
    /// Whether some rule holds at certain times only.
    has_windows: bool,
}

impl Search {
    /// Arranges the rules; those that were kept take the places of their equals in the policy.
    fn new(policy: &mut Policy, rules: &[Arc<LiveRule>]) -> Self {
        let lines = policy.rules.iter().map(|rule| rule.position.line).collect();
        policy.rules = rules.iter().map(|rule| Arc::clone(&rule.rule)).collect();
        let named = policy.rules.iter().enumerate();
        let forwards = policy.rules.iter().filter_map(|rule| rule.forward());
        let proxied = forwards.filter(|forward| forward.accept_proxy);
        Self {
            index: Index::new(&policy.rules),
            places: named.map(|(place, rule)| (ByName(Arc::clone(rule)), place)).collect(),
            lines,
            proxied: proxied.flat_map(|forward| forward.listen.iter().cloned()).collect(),
            has_windows: policy.rules.iter().any(|rule| rule.selectors.when.is_some()),
        }
    }

    fn place(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied()
    }
}

/// A rule that is found by its name; the name is stored in the rule alone.
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
    ) -> Self {
        Self { generation, policy, rules, search }
    }

    /// Charges what the rules' relays cost from now on as this policy says: it is about to be
    /// installed.
    pub fn mark_relays(&self) {
        for rule in &self.rules {
            rule.account().set_relay_eligible(rule.relays_on_engine());
        }
    }

    /// The rule that decides a flow; `None` is a deny. Whose program is not known does not go in
    /// clear by one rule where an earlier one may want TLS for it.
    #[must_use]
    pub fn lookup(&self, flow: &Flow) -> Option<&Arc<LiveRule>> {
        let found = self.search.index.lookup(flow);
        let rule = found.rule.and_then(|at| self.rules.get(at))?;
        let evades = found.may_need_tls && matches!(rule.action, LiveAction::Permit);
        (!evades).then_some(rule)
    }

    /// Evaluates the policy with a flow, as `tacit explain` does.
    #[must_use]
    pub fn explain(&self, flow: &Flow) -> Explanation {
        explain_at(&self.policy, flow, |place| self.line(place).unwrap_or_default())
    }

    /// Whether knowing the program of a flow could change its rule.
    #[must_use]
    pub fn needs_owner(&self, flow: &Flow) -> bool {
        self.search.index.lookup(flow).needs_owner
    }

    /// The rule of that name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Arc<LiveRule>> {
        self.search.place(name).and_then(|place| self.rules.get(place))
    }

    /// How many connections failed of the rule whose account it is; `None`: it is not installed,
    /// though another of its name may be.
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

    /// The line of the policy in which the rule at a place of [`Self::rules`] begins.
    #[must_use]
    pub fn line(&self, place: usize) -> Option<usize> {
        self.search.lines.get(place).copied()
    }

    /// Whether some rule holds at certain times only.
    #[must_use]
    pub fn has_windows(&self) -> bool {
        self.search.has_windows
    }

    /// Whether what arrives at a listening address begins with a PROXY header; rules that share
    /// an address agree on that.
    #[must_use]
    pub fn accepts_proxy(&self, listen: &Address) -> bool {
        !self.search.proxied.is_empty() && self.search.proxied.contains(listen)
    }

    /// Whether connections of some rule end at an age, or when they were silent for long.
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
