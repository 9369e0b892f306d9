//! Counts the connections and failures of a rule, for `tacit show` and the metrics. Also measures
//! how long it takes to connect and to complete handshakes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tacit_core::audited::{AuditedEntry, AuditedFlow, AuditedFlows};
use tacit_core::failure_kind::FailureKind;

use super::failures::FailureCounts;
use super::latency::Latency;
use super::waived::{WaivedCheck, WaivedCounts};
use crate::ledger::Account;

/// The counters of a rule.
#[derive(Debug)]
pub struct RuleCounters {
    /// Its account: CPU time and traffic.
    pub account: Arc<Account>,
    /// Durations of successful handshakes, including the wait for a permit.
    pub handshakes: Latency,
    /// Durations of successful connects, including name resolution.
    pub connects: Latency,
    failures: FailureCounts,
    waived: WaivedCounts,
    /// The flows that the rule has let pass in audit mode.
    audited: Mutex<AuditedFlows>,
    hits: AtomicU64,
    last_hit_unix_ms: AtomicU64,
    /// Connections and datagrams that the kernel has decided without the agent.
    kernel_hits: AtomicU64,
}

impl RuleCounters {
    /// The counters of a new rule.
    #[must_use]
    pub fn new(rule: &str) -> Self {
        Self {
            account: Account::open(rule),
            handshakes: Latency::default(),
            connects: Latency::default(),
            failures: FailureCounts::default(),
            waived: WaivedCounts::default(),
            audited: Mutex::default(),
            hits: AtomicU64::new(0),
            last_hit_unix_ms: AtomicU64::new(0),
            kernel_hits: AtomicU64::new(0),
        }
    }

    /// Counts a connection that matched the rule.
    pub fn count_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        self.last_hit_unix_ms.store(ms, Ordering::Relaxed);
    }

    /// Counts connections and datagrams that the kernel has decided without the agent.
    pub fn count_kernel_hits(&self, more: u64) {
        self.kernel_hits.fetch_add(more, Ordering::Relaxed);
    }

    /// Counts a connection that failed before the first byte was relayed, with the kind in the log.
    pub fn count_failure(&self, kind: FailureKind) {
        self.failures.add(kind);
    }

    /// Counts a connection that the rule accepted although this check of the peer's certificate
    /// failed.
    pub fn count_waived(&self, check: WaivedCheck) {
        self.waived.add(check);
    }

    /// The number of connections that the rule accepted although this check failed.
    #[must_use]
    pub fn waived(&self, check: WaivedCheck) -> u64 {
        self.waived.of(check)
    }

    /// Records a flow that the rule lets pass in audit mode; returns whether it is a new one.
    pub fn record_audited(&self, flow: AuditedFlow) -> bool {
        self.lock_audited().record(flow, SystemTime::now())
    }

    /// The different flows that the rule has let pass in audit mode, newest first.
    #[must_use]
    pub fn audited(&self) -> Vec<AuditedEntry> {
        self.lock_audited().entries()
    }

    /// All flows that the rule has let pass in audit mode.
    #[must_use]
    pub fn audited_total(&self) -> u64 {
        self.lock_audited().total()
    }

    /// While this lock is held, the longest operation is a copy of the table.
    fn lock_audited(&self) -> MutexGuard<'_, AuditedFlows> {
        self.audited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of connections that matched the rule.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// The number of connections and datagrams that the kernel has decided without the agent.
    #[must_use]
    pub fn kernel_hits(&self) -> u64 {
        self.kernel_hits.load(Ordering::Relaxed)
    }

    /// The number of connections that failed before the first byte was relayed.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failures.total()
    }

    /// The number of failures for each kind that has occurred.
    pub fn failures_by_kind(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.failures.by_kind()
    }

    /// The time of the last connection that matched.
    #[must_use]
    pub fn last_hit(&self) -> Option<SystemTime> {
        let ms = self.last_hit_unix_ms.load(Ordering::Relaxed);
        (ms > 0).then(|| UNIX_EPOCH + Duration::from_millis(ms))
    }
}
