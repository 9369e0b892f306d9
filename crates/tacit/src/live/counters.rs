//! What a rule has done so far, as displays count it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::ledger::Account;

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
