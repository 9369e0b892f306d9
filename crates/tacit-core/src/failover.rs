//! Chooses one of several targets for a connection, and temporarily skips targets that are down.
//!
//! ```text
//!        connect failed                      TARGET_SKIPPED later
//!   up ────────────────> down, skipped ──────────────────────────> down, due
//!   ^                        ^                                        │
//!   │                        └──── connect failed ────────────────────┤ one connection tries it
//!   └───────────────────────────── connected ─────────────────────────┘
//! ```
//!
//! Connections skip a failed target for [`TARGET_SKIPPED`]. Then the target is *due*, and one
//! connection tries it again. If no other target answers, a connection tries the skipped targets
//! too. The agent sends no probes.
//!
//! All threads of the agent share the states of the targets. A thread changes a state with one
//! atomic operation, so no thread waits for another.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::policy::TargetOrder;

/// How long a target is skipped after a failed connection attempt.
pub const TARGET_SKIPPED: Duration = Duration::from_secs(10);

/// The state of a rule's targets.
#[derive(Debug)]
pub struct Failover {
    order: TargetOrder,
    /// The start of the clock of this state.
    start: Instant,
    /// The number of connections, for round robin.
    next: AtomicUsize,
    /// For each target the millisecond until which it is skipped, or [`UP`].
    skipped_until_ms: Box<[AtomicU64]>,
}

/// The value for a target to which the last connection attempt did not fail.
const UP: u64 = 0;

impl Failover {
    /// Creates the state with all targets up.
    #[must_use]
    pub fn new(order: TargetOrder, targets: usize, now: Instant) -> Self {
        let skipped_until_ms = (0..targets).map(|_| AtomicU64::new(UP)).collect();
        Self { order, start: now, next: AtomicUsize::new(0), skipped_until_ms }
    }

    /// Returns the indexes of all targets, in the order in which a connection tries them. `again`
    /// is the connection's previous target, if any, which comes first.
    #[must_use]
    pub fn attempts(&self, again: Option<usize>, now: Instant) -> Vec<usize> {
        let now_ms = self.ms(now);
        let (mut ready, mut skipped): (Vec<usize>, Vec<usize>) =
            (0..self.skipped_until_ms.len()).partition(|place| self.until_ms(*place) <= now_ms);
        match (again, self.order) {
            (Some(again), _) => ready.sort_by_key(|place| *place != again),
            (None, TargetOrder::First) => {}
            (None, TargetOrder::RoundRobin) => {
                let next = self.next.fetch_add(1, Ordering::Relaxed);
                let first = next.checked_rem(ready.len()).unwrap_or(0);
                ready.rotate_left(first);
            }
        }
        while let Some(first) = ready.first().copied().filter(|first| !self.take(*first, now_ms)) {
            ready.remove(0);
            skipped.push(first);
        }
        skipped.sort_unstable();
        ready.append(&mut skipped);
        ready
    }

    /// Records a successful connection. Returns whether the target was down.
    pub fn connected(&self, place: usize) -> bool {
        let target = self.skipped_until_ms.get(place);
        target.is_some_and(|until| {
            until.load(Ordering::Relaxed) != UP && until.swap(UP, Ordering::Relaxed) != UP
        })
    }

    /// Records a failed connection. Returns whether the target was up.
    pub fn failed(&self, place: usize, now: Instant) -> bool {
        let until_ms = self.ms(now + TARGET_SKIPPED);
        let target = self.skipped_until_ms.get(place);
        target.is_some_and(|until| until.swap(until_ms, Ordering::Relaxed) == UP)
    }

    /// Whether the target is down.
    #[must_use]
    pub fn is_down(&self, place: usize) -> bool {
        self.until_ms(place) != UP
    }

    /// Whether a connection may try the target. If the target is due, only one connection may.
    fn take(&self, place: usize, now_ms: u64) -> bool {
        let Some(until) = self.skipped_until_ms.get(place) else { return false };
        let due = until.load(Ordering::Relaxed);
        let skip_ms = now_ms.saturating_add(as_ms(TARGET_SKIPPED));
        let take =
            || until.compare_exchange(due, skip_ms, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        due == UP || (due <= now_ms && take())
    }

    fn until_ms(&self, place: usize) -> u64 {
        self.skipped_until_ms.get(place).map_or(UP, |until| until.load(Ordering::Relaxed))
    }

    /// Returns the time in milliseconds; never [`UP`].
    fn ms(&self, at: Instant) -> u64 {
        as_ms(at.saturating_duration_since(self.start)).saturating_add(1)
    }
}

/// Divides the connect timeout among the targets of one connection.
#[derive(Debug)]
pub struct Shares {
    deadline: Instant,
    targets_left: u32,
}

impl Shares {
    /// Starts with this timeout for the connection and this number of targets.
    #[must_use]
    pub fn new(timeout: Duration, targets: usize, now: Instant) -> Self {
        let targets_left = u32::try_from(targets).unwrap_or(u32::MAX);
        Self { deadline: now + timeout, targets_left }
    }

    /// Returns the timeout for the next target: an equal part of the remaining time; `None` if no
    /// time is left.
    pub fn take(&mut self, now: Instant) -> Option<Duration> {
        let share = self.deadline.saturating_duration_since(now).checked_div(self.targets_left)?;
        self.targets_left -= 1;
        (!share.is_zero()).then_some(share)
    }
}

fn as_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn new(order: TargetOrder, targets: usize) -> (Failover, Instant) {
        let now = Instant::now();
        (Failover::new(order, targets, now), now)
    }

    #[test]
    fn the_first_target_that_is_not_down_comes_first() {
        let (targets, now) = new(TargetOrder::First, 3);
        assert_eq!(targets.attempts(None, now), [0, 1, 2]);
        assert_eq!(targets.attempts(None, now), [0, 1, 2]);
        assert!(targets.failed(0, now));
        assert_eq!(targets.attempts(None, now), [1, 2, 0], "what is skipped comes last");
        assert!(targets.failed(1, now + SECOND));
        assert_eq!(targets.attempts(None, now + SECOND), [2, 0, 1]);
        assert!(targets.is_down(0) && targets.is_down(1) && !targets.is_down(2));
    }

    #[test]
    fn all_that_are_down_are_tried_in_order() {
        let (targets, now) = new(TargetOrder::First, 3);
        for (place, after) in [(2, SECOND), (0, 2 * SECOND), (1, 3 * SECOND)] {
            assert!(targets.failed(place, now + after));
        }
        assert_eq!(targets.attempts(None, now + 4 * SECOND), [0, 1, 2]);
        let (targets, now) = new(TargetOrder::RoundRobin, 2);
        assert!(targets.failed(0, now) & targets.failed(1, now));
        assert_eq!(targets.attempts(None, now), [0, 1]);
        assert_eq!(targets.attempts(None, now), [0, 1]);
    }

    #[test]
    fn a_target_that_is_due_delays_one_connection() {
        let (targets, now) = new(TargetOrder::First, 2);
        assert!(targets.failed(0, now));
        let due = now + TARGET_SKIPPED;
        assert_eq!(targets.attempts(None, due - SECOND), [1, 0]);
        assert_eq!(targets.attempts(None, due), [0, 1], "one connection tries it");
        assert_eq!(targets.attempts(None, due), [1, 0], "the others do not wait for it");
        // That connection was dropped and did not report a result.
        assert_eq!(targets.attempts(None, due + TARGET_SKIPPED), [0, 1]);
        assert!(!targets.failed(0, due + TARGET_SKIPPED + SECOND), "it was down before");
        let later = due + 2 * TARGET_SKIPPED;
        assert_eq!(targets.attempts(None, later), [1, 0]);
        assert_eq!(targets.attempts(None, later + SECOND), [0, 1]);
        assert!(targets.connected(0), "it is back");
        assert!(!targets.connected(0), "which is reported once");
        assert_eq!(targets.attempts(None, later + SECOND), [0, 1]);
        assert_eq!(targets.attempts(None, later + SECOND), [0, 1]);
    }

    #[test]
    fn round_robin_spreads_over_the_targets_that_are_not_skipped() {
        let (targets, now) = new(TargetOrder::RoundRobin, 3);
        let firsts = |count, at| -> Vec<usize> {
            (0..count).map(|_| targets.attempts(None, at)[0]).collect()
        };
        assert_eq!(firsts(6, now), [0, 1, 2, 0, 1, 2]);
        assert_eq!(targets.attempts(None, now), [0, 1, 2]);
        assert_eq!(targets.attempts(None, now), [1, 2, 0]);
        assert!(targets.failed(1, now));
        let mut counts = [0; 3];
        firsts(100, now).into_iter().for_each(|place| counts[place] += 1);
        assert_eq!(counts, [50, 0, 50], "the others share evenly");
        let mut counts = [0; 3];
        firsts(100, now + TARGET_SKIPPED).into_iter().for_each(|place| counts[place] += 1);
        assert_eq!(counts[1], 1, "one connection tries it again");
    }

    #[test]
    fn a_connection_stays_with_its_target() {
        let (targets, now) = new(TargetOrder::RoundRobin, 3);
        assert_eq!(targets.attempts(Some(2), now), [2, 0, 1]);
        assert_eq!(targets.attempts(None, now), [0, 1, 2], "it takes no turn from others");
        assert!(targets.failed(2, now));
        assert_eq!(targets.attempts(Some(2), now), [0, 1, 2]);
    }

    #[test]
    fn each_target_has_an_equal_part_of_the_time_that_is_left() {
        let now = Instant::now();
        let mut shares = Shares::new(12 * SECOND, 3, now);
        assert_eq!(shares.take(now), Some(4 * SECOND));
        assert_eq!(shares.take(now + 2 * SECOND), Some(5 * SECOND), "the first left some");
        assert_eq!(shares.take(now + 7 * SECOND), Some(5 * SECOND));
        assert_eq!(shares.take(now + 8 * SECOND), None, "there are no more targets");
        let mut shares = Shares::new(2 * SECOND, 2, now);
        assert_eq!(shares.take(now), Some(SECOND));
        assert_eq!(shares.take(now + 2 * SECOND), None, "there is no more time");
    }

    #[test]
    fn every_target_is_tried_once_whatever_has_happened() {
        let (targets, start) = new(TargetOrder::RoundRobin, 4);
        let mut draw = 12_345_u64;
        for step in 0..10_000 {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let place = usize::try_from(draw >> 60).unwrap();
            let now = start + Duration::from_millis(700) * step;
            match (draw >> 40) % 3 {
                0 => drop(targets.connected(place)),
                1 => drop(targets.failed(place, now)),
                _ => {
                    let mut tried = targets.attempts(Some(place).filter(|_| place > 8), now);
                    tried.sort_unstable();
                    assert_eq!(tried, [0, 1, 2, 3]);
                }
            }
        }
    }
}
