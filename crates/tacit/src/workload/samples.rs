//! Samples at equal distances of time, and never too many: every other one is dropped when there
//! are, and the distance doubles.

use std::time::{Duration, Instant};

/// Samples kept.
pub(super) const SAMPLES_MAX: usize = 600;
const INTERVAL: Duration = Duration::from_millis(100);

/// What is looked at again and again.
#[derive(Debug)]
pub(super) struct Samples<T> {
    start: Instant,
    interval: Duration,
    next: Instant,
    kept: Vec<T>,
}

impl<T> Samples<T> {
    pub(super) fn starting(start: Instant) -> Self {
        Self { start, interval: INTERVAL, next: start + INTERVAL, kept: Vec::new() }
    }

    /// Since when.
    pub(super) fn start(&self) -> Instant {
        self.start
    }

    /// How long until the next one is due.
    pub(super) fn wait(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Keeps one that was due.
    pub(super) fn keep(&mut self, sample: T) {
        self.kept.push(sample);
        if self.kept.len() == SAMPLES_MAX {
            let mut keep = false;
            self.kept.retain(|_| {
                keep = !keep;
                keep
            });
            self.interval *= 2;
        }
        self.skip();
    }

    /// Leaves one out that was due.
    pub(super) fn skip(&mut self) {
        // Those that could not be had in time are left out as well.
        self.next = (self.next + self.interval).max(Instant::now());
    }

    pub(super) fn into_kept(self) -> Vec<T> {
        self.kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_bounded_and_span_all_of_the_time() {
        let mut samples = Samples::starting(Instant::now());
        (0..10_000).for_each(|number| samples.keep(number));
        assert!(samples.interval > INTERVAL);
        let kept = samples.into_kept();
        assert!((SAMPLES_MAX / 2..SAMPLES_MAX).contains(&kept.len()), "{}", kept.len());
        assert_eq!(kept[0], 0);
        assert!(kept.last().is_some_and(|last| *last > 9000), "{kept:?}");
    }

    #[test]
    fn the_next_is_due_after_its_distance() {
        let samples = Samples::<()>::starting(Instant::now());
        assert!(samples.wait() > INTERVAL / 2 && samples.wait() <= INTERVAL);
    }
}
