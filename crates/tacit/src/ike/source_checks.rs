//! Defines [`SourceChecks`]: when the addresses from which this host sends to peers are compared
//! with those that it has used before.
//!
//! The addresses of the host change before the routes do, and a new IPv6 address is not used until
//! the kernel has checked that no other host has it. So there are several comparisons ([`DELAYS`])
//! after a change of the addresses.
//!
//! Some hosts change their routes all the time, for example routers with a full routing table. So a
//! comparison because of routes follows the previous comparison after [`ROUTES_INTERVAL`] at the
//! earliest. The kernel may report the removal of a route before it removes the route. So there are
//! [`AFTER_ROUTES`] comparisons after the last change of the routes.

use std::time::{Duration, Instant};

/// When the source addresses are compared next.
#[derive(Debug, Default)]
pub(super) struct SourceChecks {
    /// When the addresses of the host changed last.
    changed_at: Option<Instant>,
    /// The number of comparisons since then.
    done: usize,
    /// When the next comparison because of a change of the routes is due.
    routes_at: Option<Instant>,
    /// The number of comparisons because of the last change of the routes.
    done_for_routes: usize,
    /// When the source addresses were compared last.
    compared_at: Option<Instant>,
}

impl SourceChecks {
    /// The addresses of the host have changed.
    pub(super) fn begin(&mut self, now: Instant) {
        self.changed_at = Some(now);
        self.done = 0;
    }

    /// The routes of the host have changed.
    pub(super) fn note_routes(&mut self, now: Instant) {
        let free_at = self.compared_at.map(|at| at + ROUTES_INTERVAL);
        self.routes_at = Some(free_at.map_or(now, |at| at.max(now)));
        self.done_for_routes = 0;
    }

    /// When the next comparison is due.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.addresses_at().into_iter().chain(self.routes_at).min()
    }

    /// Whether a comparison is due. It counts as done.
    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        let is_for_addresses = self.addresses_at().is_some_and(|at| at <= now);
        let is_for_routes = self.routes_at.take_if(|at| *at <= now).is_some();
        self.done += usize::from(is_for_addresses);
        if is_for_routes {
            self.done_for_routes += 1;
            let is_last = self.done_for_routes >= AFTER_ROUTES;
            self.routes_at = (!is_last).then(|| now + ROUTES_INTERVAL);
        }
        let is_compared = is_for_addresses || is_for_routes;
        if is_compared {
            self.compared_at = Some(now);
        }
        is_compared
    }

    /// When the next comparison because of a change of the addresses is due.
    fn addresses_at(&self) -> Option<Instant> {
        Some(self.changed_at? + *DELAYS.get(self.done)?)
    }
}

/// The shortest time between a comparison and the next one because of a change of the routes.
const ROUTES_INTERVAL: Duration = Duration::from_secs(1);
/// The number of comparisons after the last change of the routes.
const AFTER_ROUTES: usize = 2;

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

    #[test]
    fn sources_are_compared_at_once_and_once_more_when_the_routes_change() {
        let mut checks = SourceChecks::default();
        let changed = Instant::now();
        checks.note_routes(changed);
        for after in [Duration::ZERO, ROUTES_INTERVAL] {
            assert_eq!(checks.next_at(), Some(changed + after));
            assert!(checks.take_due(changed + after));
            assert!(!checks.take_due(changed + after));
        }
        assert_eq!(checks.next_at(), None);
    }

    #[test]
    fn many_changes_of_the_routes_cause_one_comparison_a_second() {
        let mut checks = SourceChecks::default();
        let first = Instant::now();
        let mut compared = Vec::new();
        for time in (0..10_000).step_by(10) {
            let now = first + Duration::from_millis(time);
            if time < 3000 {
                checks.note_routes(now);
            }
            if checks.take_due(now) {
                compared.push(time);
            }
        }
        // The last change occurs after 2,990 milliseconds.
        assert_eq!(compared, [0, 1000, 2000, 3000, 4000]);
    }

    #[test]
    fn a_change_of_the_routes_postpones_no_comparison_after_one_of_the_addresses() {
        let mut checks = SourceChecks::default();
        let changed = Instant::now();
        checks.begin(changed);
        assert!(checks.take_due(changed));
        let later = changed + Duration::from_millis(500);
        checks.note_routes(later);
        assert!(!checks.take_due(later));
        for seconds in [1, 2, 3, 7, 15] {
            let due = changed + Duration::from_secs(seconds);
            assert_eq!(checks.next_at(), Some(due));
            assert!(checks.take_due(due));
        }
        assert_eq!(checks.next_at(), None);
    }
}
