//! Collects samples at equal intervals in a buffer of limited size.
//!
//! When the buffer is full, this module removes every second sample and doubles the interval. So
//! the samples always cover the whole time.

use std::time::{Duration, Instant};

/// The maximum number of samples.
pub(super) const SAMPLES_MAX: usize = 600;
const INTERVAL: Duration = Duration::from_millis(100);

/// Samples of one quantity.
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

    /// The start of the measurement.
    pub(super) fn start(&self) -> Instant {
        self.start
    }

    /// The time until the next sample is due.
    pub(super) fn wait(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Adds the sample that is due.
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

    /// Skips the sample that is due.
    pub(super) fn skip(&mut self) {
        // Samples that were missed because sampling took too long are skipped as well.
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
    fn samples_are_bounded_and_cover_the_whole_time() {
        let mut samples = Samples::starting(Instant::now());
        (0..10_000).for_each(|number| samples.keep(number));
        assert!(samples.interval > INTERVAL);
        let kept = samples.into_kept();
        assert!((SAMPLES_MAX / 2..SAMPLES_MAX).contains(&kept.len()), "{}", kept.len());
        assert_eq!(kept[0], 0);
        assert!(kept.last().is_some_and(|last| *last > 9000), "{kept:?}");
    }

    #[test]
    fn the_next_sample_is_due_after_one_interval() {
        let samples = Samples::<()>::starting(Instant::now());
        assert!(samples.wait() > INTERVAL / 2 && samples.wait() <= INTERVAL);
    }
}
