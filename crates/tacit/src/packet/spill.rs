//! Defines [`SpillLimits`], which decide when an engine (a thread on a reserved CPU) is saturated.
//! While an engine is saturated, a second thread receives the packets of IPsec tunnels.
//! [`SpillMeter`] measures the work of the threads, and compares it with these limits.

use std::time::{Duration, Instant};

/// When a second thread receives packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpillLimits {
    /// The time over which the work is measured.
    pub window: Duration,
    /// The part of the time in which the engine has work, at which the second thread begins.
    pub begin_busy_percent: u64,
    /// The work of both threads below which it ends, in percent of the time.
    pub end_busy_percent: u64,
}

/// Measures the work of one window after another.
#[derive(Debug)]
pub(super) struct SpillMeter {
    limits: SpillLimits,
    since: Instant,
    /// The work of both threads before that time, in nanoseconds.
    before_ns: u64,
}

impl SpillLimits {
    /// From when the engine has no time left until one thread is enough.
    pub const SATURATED: Self =
        Self { window: Duration::from_millis(10), begin_busy_percent: 95, end_busy_percent: 80 };
}

impl SpillMeter {
    pub(super) fn new(limits: SpillLimits) -> Self {
        Self { limits, since: Instant::now(), before_ns: 0 }
    }

    /// Begins a window. `busy_ns` is the work of both threads so far.
    pub(super) fn restart(&mut self, now: Instant, busy_ns: u64) {
        self.since = now;
        self.before_ns = busy_ns;
    }

    /// Reports whether a window has ended in whose work the second thread begins.
    pub(super) fn begins(&mut self, now: Instant, busy_ns: u64) -> bool {
        let limit = self.limits.begin_busy_percent;
        self.percent(now, busy_ns).is_some_and(|percent| percent >= limit)
    }

    /// Reports whether a window has ended in whose work the second thread ends.
    pub(super) fn ends(&mut self, now: Instant, busy_ns: u64) -> bool {
        let limit = self.limits.end_busy_percent;
        self.percent(now, busy_ns).is_some_and(|percent| percent < limit)
    }

    /// Returns the work in the window that ends now, if it is long enough.
    fn percent(&mut self, now: Instant, busy_ns: u64) -> Option<u64> {
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed < self.limits.window {
            return None;
        }
        let work_ns = u128::from(busy_ns.saturating_sub(self.before_ns));
        self.restart(now, busy_ns);
        Some(u64::try_from(work_ns * 100 / elapsed.as_nanos().max(1)).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_thread_begins_when_the_engine_has_no_time_left() {
        let start = Instant::now();
        let mut meter = SpillMeter::new(SpillLimits::SATURATED);
        meter.restart(start, 1_000);
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let busy_ns = |us: u64| 1_000 + us * 1_000;
        assert!(!meter.begins(at(9), busy_ns(9_000)), "the window has not ended");
        assert!(!meter.begins(at(10), busy_ns(9_400)), "94 % of 10 ms");
        assert!(meter.begins(at(20), busy_ns(18_900)), "95 %");
        assert!(!meter.ends(at(30), busy_ns(36_900)), "180 % of two threads");
        assert!(meter.ends(at(40), busy_ns(44_800)), "79 %");
        assert!(meter.ends(at(1_040), busy_ns(54_800)), "a pause is part of the window");
    }
}
