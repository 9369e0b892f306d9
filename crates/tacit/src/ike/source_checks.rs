//! Defines [`SourceChecks`]: when the addresses from which this host sends to peers are compared
//! with those that it has used before.
//!
//! The addresses of the host change before the routes do, and a new IPv6 address is not used until
//! the kernel has checked that no other host has it. So there are several comparisons ([`DELAYS`])
//! after a change of the addresses.

use std::time::{Duration, Instant};

/// When the source addresses are compared next.
#[derive(Debug, Default)]
pub(super) struct SourceChecks {
    /// When the addresses of the host changed last.
    changed_at: Option<Instant>,
    /// The number of comparisons since then.
    done: usize,
}

impl SourceChecks {
    /// The addresses of the host have changed.
    pub(super) fn begin(&mut self, now: Instant) {
        *self = Self { changed_at: Some(now), done: 0 };
    }

    /// When the next comparison is due.
    pub(super) fn next_at(&self) -> Option<Instant> {
        Some(self.changed_at? + *DELAYS.get(self.done)?)
    }

    /// Whether a comparison is due. It counts as done.
    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        let is_due = self.next_at().is_some_and(|at| at <= now);
        self.done += usize::from(is_due);
        is_due
    }
}

/// How long after a change of the addresses of the host the source addresses are compared.
const DELAYS: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(7),
    Duration::from_secs(15),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_compared_at_once_and_until_the_routes_have_followed() {
        let mut checks = SourceChecks::default();
        let changed = Instant::now();
        assert!(!checks.take_due(changed));
        for _ in 0..2 {
            checks.begin(changed);
            for delay in DELAYS {
                assert_eq!(checks.next_at(), Some(changed + delay));
                assert!(checks.take_due(changed + delay));
                assert!(!checks.take_due(changed + delay));
            }
            assert_eq!(checks.next_at(), None);
        }
    }
}
