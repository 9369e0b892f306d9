//! Adds runs (programs under `tacit run`) to the IKE thread, and removes runs from this thread.
//! When the policy or the addresses of the host change, this module computes the routes of the runs
//! again.
//!
//! The gateway of a tunnel assigns an address to a run only once. Later, something else may use the
//! same address: the host, a rule of a new policy, or a DNS name that a program resolves. Packets
//! from the run to this address would then stay inside the run. So tacit checks the assigned
//! addresses again after changes (module `assigned`).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tacit_core::policy::{InnerAddressSource, TunnelRoutes};

use super::config::accounts;
use super::connection::{Pair, PeerSettings};
use super::driven_run::DrivenRun;
use super::thread::IkeThread;
use super::{IkePolicy, RUNS_MAX, TunnelRun};
use crate::clock::boottime;

/// How often looked-up names are compared with assigned addresses.
pub(super) const NAMES_CHECK_INTERVAL: Duration = Duration::from_secs(5);

impl IkeThread {
    /// Uses another policy. Connections end whose configuration is another one now.
    pub(super) fn follow(&mut self, policy: IkePolicy) {
        let changed_keys: BTreeSet<String> = policy
            .policy
            .ikes
            .keys()
            .filter(|ike| !policy.has_same_keys(&self.policy, ike))
            .cloned()
            .collect();
        self.filters.follow(&policy.policy, &policy.filters);
        self.policy = policy;
        self.accounts = accounts(&self.policy.policy);
        self.follow_peers();
        self.follow_routes(&changed_keys);
    }

    /// The host has other addresses now.
    pub(super) fn follow_own(&mut self, own: &[IpAddr]) {
        self.sources.begin(boottime());
        self.runs.values_mut().for_each(|run| run.own = own.to_vec());
        self.follow_routes(&BTreeSet::new());
    }

    /// Computes the routes of all runs again. Ends the connections whose routes or keys are others
    /// now, and those with an assigned address that has another meaning now.
    fn follow_routes(&mut self, changed_keys: &BTreeSet<String>) {
        let mut changed_runs = BTreeSet::new();
        for (id, run) in &mut self.runs {
            let routes = TunnelRoutes::of(&self.policy.policy, &run.name, &run.own);
            let routes = Arc::new(routes.unwrap_or_default());
            if std::mem::replace(&mut run.routes, routes) != run.routes {
                changed_runs.insert(*id);
            }
        }
        let is_same = |pair: &Pair, settings: &PeerSettings| {
            let peer = self.policy.policy.ikes.get(&pair.ike);
            !changed_runs.contains(&pair.run)
                && !changed_keys.contains(&pair.ike)
                && peer.is_some_and(|peer| peer.same(&settings.peer))
        };
        for one in &mut self.connections {
            let is_kept = is_same(&one.pair, &one.settings)
                && one.candidates.iter().all(|other| is_same(&other.pair, &other.settings));
            one.is_closing |= !is_kept;
        }
        let now = boottime();
        for at in 0..self.connections.len() {
            if self.connections[at].is_closing {
                self.close_one(at, now);
            }
        }
        changed_runs.iter().for_each(|run| self.report_port(*run));
        self.check_assigned(|_| true);
        let runs: Vec<u64> = self.runs.keys().copied().collect();
        runs.into_iter().for_each(|run| self.connect_for_addresses(run));
        self.follow_manual();
    }

    pub(super) fn add_run(&mut self, run: TunnelRun) {
        let TunnelRun { id, name, tun, lease, own, names } = run;
        if self.runs.len() >= RUNS_MAX {
            return;
        }
        let Ok(tun) = self.context.worker.add_tun(tun) else { return };
        self.drive(id, DrivenRun::new(name, tun, own, names, lease));
    }

    /// Adds a run whose device the worker has.
    pub(super) fn drive(&mut self, id: u64, mut run: DrivenRun) {
        let routes = TunnelRoutes::of(&self.policy.policy, &run.name, &run.own);
        run.routes = Arc::new(routes.unwrap_or_default());
        self.runs.insert(id, run);
        self.report_port(id);
        self.connect_for_addresses(id);
        self.follow_manual();
    }

    pub(super) fn remove_run(&mut self, id: u64) {
        let Some(run) = self.runs.remove(&id) else { return };
        let now = boottime();
        for at in 0..self.connections.len() {
            if self.connections[at].may_be_of(id) {
                self.close_one(at, now);
            }
        }
        // If the worker has ended, the device is closed.
        let _ = self.context.worker.remove_tun(run.tun);
        self.follow_manual();
    }

    /// Connects a run with the peers that assign its addresses: before that, no program can send
    /// a packet to them.
    fn connect_for_addresses(&mut self, run: u64) {
        let Some(driven) = self.runs.get(&run) else { return };
        let assigns = |ike: &&str| {
            let peer = self.policy.policy.ikes.get(*ike);
            peer.is_some_and(|peer| peer.inner == InnerAddressSource::Gateway)
        };
        let ikes: Vec<String> = driven.routes.peers().filter(assigns).map(str::to_owned).collect();
        for ike in ikes {
            self.connect(&Pair { run, ike });
        }
    }

    /// Compares the names that programs have looked up since the last call with assigned addresses.
    pub(super) fn check_names(&mut self, now: Instant) {
        if now < self.names_check_at {
            return;
        }
        self.names_check_at = now + NAMES_CHECK_INTERVAL;
        let mut changed = BTreeSet::new();
        for (id, run) in &mut self.runs {
            let count = run.names.count();
            if std::mem::replace(&mut run.names_compared, count) != count {
                changed.insert(*id);
            }
        }
        if !changed.is_empty() {
            self.check_assigned(|run| changed.contains(&run));
        }
    }

    /// Ends the connections of these runs whose assigned address has another meaning now.
    fn check_assigned(&mut self, is_checked: impl Fn(u64) -> bool) {
        for at in 0..self.connections.len() {
            let one = &self.connections[at];
            let is_open = one.open.is_some() && !one.is_closing && one.ending.is_none();
            if !is_open || !is_checked(one.pair.run) || !one.has_assigned_addresses() {
                continue;
            }
            if let Some(Err(failure)) = self.check_addresses(one, &one.inner) {
                // The run must not keep the address.
                self.connections[at].inner.clear();
                self.end_with(at, failure);
                self.drain(at);
            }
        }
    }
}
