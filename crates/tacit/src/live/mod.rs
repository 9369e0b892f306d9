//! The live policy: rules with everything they need to serve, swapped as a whole.
//!
//! A rule that a reload did not change keeps its [`LiveRule`] with its counters; a changed one
//! gets a new one. A connection holds the rule it opened with, so it is stale exactly when that
//! rule is no longer the installed one.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tacit_core::flow::{Address, Flow};
use tacit_core::policy::{
    Action, Index, Limits, Policy, RelayOn, Rule, Start, Starttls, TlsCommon,
};
use tokio::sync::Semaphore;

use crate::ledger::Account;
use crate::net::target::LiveTarget;
use tacit_tls::{ClientSettings, ServerSettings};

mod build;

pub use build::{Checked, Materials, build_rules, check_file, directory_of, localize, names};

/// One installed policy.
#[derive(Debug)]
pub struct Live {
    /// Counts installations from 1.
    pub generation: u64,
    /// What was parsed.
    pub policy: Policy,
    /// The rules, in order.
    pub rules: Vec<Arc<LiveRule>>,
    /// Whether some rule holds at certain times only.
    pub has_windows: bool,
    index: Index,
    proxied: HashSet<Address>,
}

/// One installed rule.
#[derive(Debug)]
pub struct LiveRule {
    /// The rule as it was parsed.
    pub rule: Rule,
    /// What is done with its connections.
    pub action: LiveAction,
    /// Where its connections go; `None` for a deny and for rules about runs.
    pub target: Option<LiveTarget>,
    /// Places for handshakes of this rule.
    pub handshakes: Arc<Semaphore>,
    /// Counters; they outlive a reload that changes the rule.
    pub counters: Arc<RuleCounters>,
}

/// What is done with a rule's connections.
#[derive(Debug)]
pub enum LiveAction {
    /// Bytes are carried as they are.
    Permit,
    /// Connections are reset.
    Deny,
    /// tacit answers the handshake on the leg away from the program.
    TlsServer(Arc<ServerSettings>),
    /// tacit opens the handshake on the leg away from the program.
    TlsClient(Arc<ClientSettings>),
}

/// The listening addresses at which a PROXY header comes first.
fn proxied(policy: &Policy) -> HashSet<Address> {
    let forwards = policy.rules.iter().filter_map(Rule::forward);
    let proxied = forwards.filter(|forward| forward.accept_proxy);
    proxied.flat_map(|forward| forward.listen.iter().cloned()).collect()
}

/// What a rule has done so far.
#[derive(Debug)]
pub struct RuleCounters {
    /// What it has cost and carried.
    pub account: Arc<Account>,
    hits: AtomicU64,
    failures: AtomicU64,
    last_hit_unix_ms: AtomicU64,
}

impl RuleCounters {
    /// Those of a rule that is new.
    #[must_use]
    pub fn new(rule: &str) -> Self {
        Self {
            account: Account::open(rule),
            hits: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            last_hit_unix_ms: AtomicU64::new(0),
        }
    }

    /// Counts a connection that the rule decided.
    pub fn count_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        self.last_hit_unix_ms.store(ms, Ordering::Relaxed);
    }

    /// Counts a connection of the rule that failed before it carried a byte.
    pub fn count_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Connections the rule decided.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Connections that failed before they carried a byte.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// When the last one came.
    #[must_use]
    pub fn last_hit(&self) -> Option<SystemTime> {
        let ms = self.last_hit_unix_ms.load(Ordering::Relaxed);
        (ms > 0).then(|| UNIX_EPOCH + Duration::from_millis(ms))
    }
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
        match &self.rule.action {
            Action::Tls(tls) => Some(tls.common()),
            Action::Permit | Action::Deny => None,
        }
    }

    /// Whether the program says when TLS begins.
    #[must_use]
    pub fn is_controlled(&self) -> bool {
        matches!(&self.rule.action, Action::Tls(tls) if tls.common().start == Start::Controlled)
    }

    /// The dialogue before its TLS, if there is one.
    #[must_use]
    pub fn starttls(&self) -> Option<&Starttls> {
        match &self.rule.action {
            Action::Tls(tls) => tls.common().start.starttls(),
            Action::Permit | Action::Deny => None,
        }
    }

    /// Whether the rule keeps its relay on the engine.
    fn relays_on_engine(&self) -> bool {
        matches!(&self.rule.action, Action::Tls(tls) if tls.common().relay == RelayOn::Engine)
    }

    /// The rule's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.rule.name
    }
}

impl Live {
    /// Puts rules under their policy.
    #[must_use]
    pub fn new(generation: u64, policy: Policy, rules: Vec<Arc<LiveRule>>) -> Self {
        let index = Index::new(&policy.rules);
        let proxied = proxied(&policy);
        let has_windows = policy.rules.iter().any(|rule| rule.selectors.when.is_some());
        for rule in &rules {
            rule.account().set_relay_eligible(rule.relays_on_engine());
        }
        Self { generation, policy, rules, has_windows, index, proxied }
    }

    /// The rule that decides a flow; `None` is a deny. Whose program is not known does not go in
    /// clear by one rule where an earlier one may want TLS for it.
    #[must_use]
    pub fn lookup(&self, flow: &Flow) -> Option<&Arc<LiveRule>> {
        let found = self.index.lookup(flow);
        let rule = found.rule.and_then(|at| self.rules.get(at))?;
        let evades = found.may_need_tls && matches!(rule.action, LiveAction::Permit);
        (!evades).then_some(rule)
    }

    /// Whether knowing the program of a flow could change its rule.
    #[must_use]
    pub fn needs_owner(&self, flow: &Flow) -> bool {
        self.index.lookup(flow).needs_owner
    }

    /// The rule of that name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Arc<LiveRule>> {
        self.rules.iter().find(|rule| rule.name() == name)
    }

    /// How many connections failed of the rule whose account it is; `None`: it is not installed,
    /// though another of its name may be.
    #[must_use]
    pub fn failures(&self, account: &Account) -> Option<u64> {
        let rule = self.rules.iter().find(|rule| std::ptr::eq(&**rule.account(), account))?;
        Some(rule.counters.failures())
    }

    /// Whether a connection's rule is the installed one.
    #[must_use]
    pub fn is_current(&self, rule: &Arc<LiveRule>) -> bool {
        self.rules.iter().any(|installed| Arc::ptr_eq(installed, rule))
    }

    /// Whether what arrives at a listening address begins with a PROXY header; rules that share
    /// an address agree on that.
    #[must_use]
    pub fn accepts_proxy(&self, listen: &Address) -> bool {
        !self.proxied.is_empty() && self.proxied.contains(listen)
    }

    /// The limits in force.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.policy.limits
    }
}
