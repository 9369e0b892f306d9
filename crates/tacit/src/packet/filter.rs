//! Defines [`TunnelFilter`]: the filter rules for the packets inside the tunnels with one peer.
//!
//! ```text
//! policy ── reload ──> TunnelFilter: filter rules, generation
//!                        │ copied to each direction of a tunnel when the generation changes
//!                        v
//! packet ──> flow cache (results for known flows) ──> copy of the filter rules ──> result
//! ```
//!
//! A packet must belong to a flow that the tunnel permits. For such a packet, the first matching
//! filter rule decides. So filter rules can deny packets of permitted flows, but cannot permit
//! other flows.
//!
//! Each direction of a tunnel has a copy of the filter rules. A reload of the policy changes the
//! generation (version) of the rules. Each direction checks the generation for each packet, and
//! replaces its copy after a change. Each direction empties its flow cache when the rules change,
//! and when a time window opens or closes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tacit_core::policy::filter::PacketClassifier;
use tacit_core::policy::{Policy, tunnel_classifier};

/// The filter rules for the tunnels with one peer. They can be replaced while tunnels use them.
#[derive(Debug, Default)]
pub struct TunnelFilter {
    /// Counts installations.
    generation: AtomicU64,
    installed: Mutex<Arc<FilterRules>>,
}

/// Filter rules with their counters.
#[derive(Debug, Default)]
pub(super) struct FilterRules {
    pub(super) classifier: PacketClassifier,
    /// By the position of the rule in the policy.
    pub(super) counters: Vec<Arc<FilterCounter>>,
}

/// The filters of all peers, by the name of `[ike.NAME]` or `[sa.NAME]`.
#[derive(Debug, Default)]
pub struct TunnelFilters(BTreeMap<String, Arc<TunnelFilter>>);

/// The counter of an installed filter rule.
#[derive(Debug)]
pub struct FilterCounter {
    /// The name of the rule.
    pub name: String,
    packets: AtomicU64,
}

impl FilterCounter {
    /// The counter of a rule with this name.
    #[must_use]
    pub fn new(name: &str) -> Arc<Self> {
        Arc::new(Self { name: name.to_owned(), packets: AtomicU64::new(0) })
    }

    /// Adds packets that the kernel or a tunnel has counted.
    pub fn count(&self, more: u64) {
        self.packets.fetch_add(more, Ordering::Relaxed);
    }

    /// The packets that the rule has decided about since it was installed.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed)
    }
}

impl TunnelFilter {
    fn install(&self, rules: FilterRules) {
        let mut installed = self.installed.lock().unwrap_or_else(PoisonError::into_inner);
        *installed = Arc::new(rules);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// The rules, and their generation.
    pub(super) fn read(&self) -> (Arc<FilterRules>, u64) {
        let installed = self.installed.lock().unwrap_or_else(PoisonError::into_inner);
        (Arc::clone(&installed), self.generation.load(Ordering::Acquire))
    }

    /// Whether other rules have been installed since a generation was read.
    pub(super) fn has_changed(&self, generation: u64) -> bool {
        self.generation.load(Ordering::Acquire) != generation
    }
}

impl TunnelFilters {
    /// The filter for the tunnels with a peer.
    pub fn of(&mut self, peer: &str) -> Arc<TunnelFilter> {
        Arc::clone(self.0.entry(peer.to_owned()).or_default())
    }

    /// Installs the rules of a policy. `counters` are those of its filter rules, in order.
    pub fn follow(&mut self, policy: &Policy, counters: &[Arc<FilterCounter>]) {
        // A tunnel with a peer that the policy no longer has is about to end.
        let is_known = |peer: &String| policy.has_tunnel_peer(peer);
        self.0.retain(|peer, filter| is_known(peer) || Arc::strong_count(filter) > 1);
        for peer in policy.ikes.keys().chain(policy.sas.keys()) {
            self.of(peer);
        }
        for (peer, filter) in &self.0 {
            let classifier = tunnel_classifier(policy, peer);
            filter.install(FilterRules { classifier, counters: counters.to_vec() });
        }
    }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// A policy with rules for the tunnels with the peer `branch`, its filter, and the counters.
    pub(in crate::packet) struct Filtered {
        pub(in crate::packet) policy: Policy,
        pub(in crate::packet) filters: TunnelFilters,
        pub(in crate::packet) counters: Vec<Arc<FilterCounter>>,
    }

    impl Filtered {
        /// Each rule is the text of its keys.
        pub(in crate::packet) fn new(rules: &[impl AsRef<str>]) -> Self {
            let mut one = Self {
                policy: policy(rules),
                filters: TunnelFilters::default(),
                counters: Vec::new(),
            };
            one.install(rules);
            one
        }

        pub(in crate::packet) fn install(&mut self, rules: &[impl AsRef<str>]) {
            self.policy = policy(rules);
            let names = self.policy.filters.iter().map(|filter| filter.name.as_str());
            self.counters = names.map(FilterCounter::new).collect();
            self.filters.follow(&self.policy, &self.counters);
        }
    }

    fn policy(rules: &[impl AsRef<str>]) -> Policy {
        let rules = rules.iter().enumerate().map(|(at, keys)| {
            format!("[[rule]]\nname = \"r{at}\"\ntunnel = \"branch\"\n{}\n", keys.as_ref())
        });
        let text = format!(
            "version = 1\n{}[ike.branch]\npeer = \"192.0.2.1\"\npsk-file = \"psk\"\nlocal-id = \
             \"c.example\"\ninner = \"10.1.0.1\"\n",
            rules.collect::<String>()
        );
        let parsed = tacit_core::policy::parse(&text);
        parsed.policy.unwrap_or_else(|| panic!("{:?}\n{text}", parsed.diagnostics))
    }
}
