//! An agent that drains accepts nothing new, and ends when its connections have ended. It checks
//! repeatedly whether they have.

use std::time::Duration;

use tokio::time::Instant;

use crate::clock;

/// How long connections of a run stay open after its end, so that the last bytes of its program
/// arrive. The kernel keeps sockets of an ended process for a similar time.
pub(super) const LINGER: Duration = Duration::from_secs(60);
/// How often a drain is checked.
const DRAIN_INTERVAL: Duration = Duration::from_millis(20);
/// The longest time between two checks if the drain may last for days.
const OUTLIVED_INTERVAL: Duration = Duration::from_millis(500);
/// The time from the end of a run to the first check.
const ENDED_RUN_INTERVAL: Duration = Duration::from_millis(4);

/// The state of a drain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drain {
    /// When the last connections end; `None`: when programs or peers close them.
    pub(super) until: Option<Instant>,
    /// Whether the run has ended and its connections outlive it.
    pub(super) outlives_run: bool,
    checked: Instant,
    /// The time from the last check to the next one.
    interval: Duration,
}

impl Drain {
    /// A drain of an agent that does not end with a run.
    pub(super) fn new(until: Option<Instant>) -> Self {
        Self { until, outlives_run: false, checked: Instant::now(), interval: DRAIN_INTERVAL }
    }

    /// The drain after the end of a run. Without a time, the connections outlive the run. Mostly no
    /// connection is open then, and a caller that reads the standard error of the run waits for the
    /// end of the agent.
    pub(super) fn of_ended_run(until: Option<Instant>) -> Self {
        let outlives_run = until.is_none();
        Self { until, outlives_run, checked: Instant::now(), interval: ENDED_RUN_INTERVAL }
    }

    /// Begins the time to the next check.
    pub(super) fn note_check(&mut self, now: Instant) {
        let longest = if self.outlives_run { OUTLIVED_INTERVAL } else { DRAIN_INTERVAL };
        self.checked = now;
        self.interval = (self.interval * 2).min(longest);
    }
}

/// Waits until the next check of a drain, if there is one.
pub(super) async fn due(draining: Option<Drain>) {
    clock::sleep_until(draining.map(|drain| drain.checked + drain.interval)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times between the first checks, in milliseconds.
    fn intervals(mut drain: Drain) -> Vec<u128> {
        let next = |_| {
            let interval = drain.interval;
            drain.note_check(drain.checked + interval);
            interval.as_millis()
        };
        (0..10).map(next).collect()
    }

    #[test]
    fn the_end_of_a_run_is_checked_soon_and_then_less_often() {
        let first = [4, 8, 16];
        assert_eq!(
            intervals(Drain::of_ended_run(Some(Instant::now())))[..4],
            [&first[..], &[20]].concat()
        );
        let long = intervals(Drain::of_ended_run(None));
        assert_eq!(long[..3], first);
        assert_eq!(long[9], 500);
        assert_eq!(intervals(Drain::new(None)), [20; 10]);
    }
}
