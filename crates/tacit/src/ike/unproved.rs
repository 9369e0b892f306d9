//! Limits how many lines the audit log gets about senders that have not proved their identity.
//!
//! Anyone can send IKE_SA_INIT requests with the address of a peer. So the agent logs only the
//! first failure of each kind, and counts further failures of this kind for [`INTERVAL`]. At the
//! end of the interval, one line reports how many failures were not logged.
//!
//! Limit: one entry for each combination of a peer in the policy and a kind of failure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::connection::Pair;

/// How long further failures of one kind are only counted.
const INTERVAL: Duration = Duration::from_secs(10);

/// The failures of senders that have not proved who they are.
#[derive(Debug, Default)]
pub(super) struct UnprovedFailures {
    of_kind: BTreeMap<(Pair, &'static str), Counted>,
}

/// The failures of one kind in the present interval.
#[derive(Debug)]
struct Counted {
    until: Instant,
    /// Those without a line.
    suppressed: u64,
}

/// Failures without a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Suppressed {
    pub(super) pair: Pair,
    pub(super) kind: &'static str,
    pub(super) count: u64,
}

impl UnprovedFailures {
    /// Whether a failure has a line of its own; otherwise it is counted.
    pub(super) fn admits(&mut self, pair: &Pair, kind: &'static str, now: Instant) -> bool {
        let key = (pair.clone(), kind);
        match self.of_kind.get_mut(&key) {
            Some(counted) => {
                counted.suppressed = counted.suppressed.saturating_add(1);
                false
            }
            None => {
                let counted = Counted { until: now + INTERVAL, suppressed: 0 };
                self.of_kind.insert(key, counted);
                true
            }
        }
    }

    /// When an interval ends next.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.of_kind.values().map(|counted| counted.until).min()
    }

    /// Ends the intervals that are over. Returns the failures without a line.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Suppressed> {
        let mut due = Vec::new();
        self.of_kind.retain(|(pair, kind), counted| {
            let is_over = counted.until <= now;
            if is_over && counted.suppressed > 0 {
                due.push(Suppressed { pair: pair.clone(), kind, count: counted.suppressed });
            }
            !is_over
        });
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_one_kind_have_one_line_in_an_interval_and_the_others_are_counted() {
        let pair = |run: u64| Pair { run, ike: "branch".to_owned() };
        let mut failures = UnprovedFailures::default();
        let begun = Instant::now();
        assert_eq!(failures.next_at(), None);
        let lines = (0..1_000).filter(|_| failures.admits(&pair(1), "no-proposal", begun));
        assert_eq!(lines.count(), 1);
        assert!(failures.admits(&pair(2), "no-proposal", begun));
        assert!(failures.admits(&pair(1), "wrong-key", begun));
        assert_eq!(failures.take_due(begun + INTERVAL / 2), []);
        assert_eq!(failures.next_at(), Some(begun + INTERVAL));
        let suppressed = Suppressed { pair: pair(1), kind: "no-proposal", count: 999 };
        assert_eq!(failures.take_due(begun + INTERVAL), [suppressed]);
        assert_eq!(failures.next_at(), None);
        assert!(failures.admits(&pair(1), "no-proposal", begun + INTERVAL));
    }
}
