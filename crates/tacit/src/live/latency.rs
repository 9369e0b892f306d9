//! Counts the durations of a rule's handshakes and connection attempts, in the buckets of a
//! Prometheus histogram.
//!
//! Threads add durations without a lock, because the counters are atomic.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets, in microseconds: from a handshake on one host to a timeout.
const BOUNDS_US: [u64; 14] = [
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 10_000_000,
];

/// A histogram of durations. Without durations it needs no memory for the buckets.
#[derive(Debug, Default)]
pub struct Latency(OnceLock<Box<Buckets>>);

#[derive(Debug, Default)]
struct Buckets {
    /// The counts by upper bound, not cumulative.
    counts: [AtomicU64; BOUNDS_US.len()],
    longer: AtomicU64,
    sum_us: AtomicU64,
}

/// A snapshot of a histogram.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LatencyCounts {
    /// Upper bounds in seconds, with the number of durations up to each.
    pub at_most: Vec<(f64, u64)>,
    /// The number of durations.
    pub count: u64,
    /// The sum of the durations in seconds.
    pub sum_seconds: f64,
}

impl Latency {
    /// Adds a duration.
    pub fn add(&self, duration: Duration) {
        let buckets = self.0.get_or_init(Box::default);
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let position = BOUNDS_US.partition_point(|bound| *bound < us);
        let count = buckets.counts.get(position).unwrap_or(&buckets.longer);
        count.fetch_add(1, Ordering::Relaxed);
        buckets.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn counts(&self) -> LatencyCounts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let none = Buckets::default();
        let buckets = self.0.get().map_or(&none, |buckets| &**buckets);
        let mut count = 0;
        let at_most = BOUNDS_US
            .iter()
            .zip(&buckets.counts)
            .map(|(bound_us, counter)| {
                count += load(counter);
                (*bound_us as f64 / 1e6, count)
            })
            .collect();
        LatencyCounts {
            at_most,
            count: count + load(&buckets.longer),
            sum_seconds: load(&buckets.sum_us) as f64 / 1e6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_counted_in_every_bucket_that_holds_them() {
        let latency = Latency::default();
        assert_eq!(latency.counts().count, 0);
        for us in [100, 250, 251, 3_000, 20_000_000] {
            latency.add(Duration::from_micros(us));
        }
        let LatencyCounts { at_most, count, sum_seconds } = latency.counts();
        let of = |seconds: f64| at_most.iter().find(|(bound, _)| *bound == seconds).unwrap().1;
        assert_eq!((of(0.00025), of(0.0005), of(0.0025), of(0.005), of(10.0)), (2, 3, 3, 4, 4));
        assert_eq!(count, 5);
        assert!((sum_seconds - 20.003_601).abs() < 1e-9);
    }
}
