//! Counts values in a histogram, and computes percentiles.
//!
//! A percentile is exact if its value is below 128. A larger value may be up to 0.8 % too high.
//! Values over [`Histogram::VALUE_MAX`] are counted as `VALUE_MAX`. The maximum is exact, because
//! it is stored separately.

/// The number of buckets for each power of two.
const STEPS: u64 = 128;
const STEPS_BITS: u32 = STEPS.trailing_zeros();

/// A histogram of values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum: u128,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        let counts = vec![0; index(Self::VALUE_MAX) + 1];
        Self { counts, count: 0, sum: 0, max: 0 }
    }
}

impl Histogram {
    /// The largest value; in nanoseconds it is 18 minutes.
    pub const VALUE_MAX: u64 = (1 << 40) - 1;

    /// Counts a value.
    pub fn record(&mut self, value: u64) {
        if let Some(count) = self.counts.get_mut(index(value.min(Self::VALUE_MAX))) {
            *count += 1;
        }
        self.count += 1;
        self.sum += u128::from(value);
        self.max = self.max.max(value);
    }

    /// Adds the counts of another histogram.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// Returns the number of counted values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The largest value.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns the mean of all values; 0 if there are none.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.count.max(1) as f64
    }

    /// Returns the value that `per_mille` of a thousand values do not exceed (nearest rank); 0 if
    /// there are no values.
    #[must_use]
    pub fn per_mille(&self, per_mille: u64) -> u64 {
        let rank = (u128::from(self.count) * u128::from(per_mille)).div_ceil(1000).max(1);
        let mut below = 0;
        for (index, count) in self.counts.iter().enumerate() {
            below += u128::from(*count);
            if below >= rank {
                return highest(index).min(self.max);
            }
        }
        self.max
    }
}

/// The bucket of a value.
fn index(value: u64) -> usize {
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(STEPS_BITS + 1);
    let index = STEPS * u64::from(shift) + (value >> shift);
    usize::try_from(index).unwrap_or(usize::MAX)
}

/// The highest value of a bucket.
fn highest(index: usize) -> u64 {
    let index = index as u64;
    if index < 2 * STEPS {
        return index;
    }
    let shift = index / STEPS - 1;
    ((index % STEPS + STEPS + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn percentiles_of_one_to_a_hundred_are_themselves() {
        let mut histogram = Histogram::default();
        (1..=100).for_each(|value| histogram.record(value));
        assert_eq!(histogram.per_mille(500), 50);
        assert_eq!(histogram.per_mille(990), 99);
        assert_eq!(histogram.per_mille(999), 100);
        assert_eq!(histogram.per_mille(0), 1);
        assert_eq!([histogram.count(), histogram.max()], [100, 100]);
        assert_eq!(histogram.mean(), 50.5);
    }

    #[test]
    fn of_nothing_everything_is_zero() {
        let histogram = Histogram::default();
        assert_eq!([histogram.per_mille(999), histogram.max(), histogram.count()], [0; 3]);
        assert_eq!(histogram.mean(), 0.0);
    }

    #[test]
    fn one_slow_answer_in_a_thousand_is_the_last_per_mille_only() {
        let mut histogram = Histogram::default();
        (0..999).for_each(|_| histogram.record(10));
        histogram.record(5_000_000);
        assert_eq!(histogram.per_mille(999), 10);
        histogram.record(5_000_000);
        assert_eq!(histogram.per_mille(999), 5_000_000, "never above the largest value");
    }

    #[test]
    fn what_is_too_long_counts_as_the_longest() {
        let mut histogram = Histogram::default();
        histogram.record(u64::MAX);
        assert_eq!(histogram.per_mille(500), Histogram::VALUE_MAX);
        assert_eq!(histogram.max(), u64::MAX);
    }

    proptest! {
        #[test]
        fn a_percentile_is_never_low_and_at_most_a_128th_high(
            mut values in prop::collection::vec(0..=Histogram::VALUE_MAX, 1..200),
            per_mille in 0_u64..=1000,
        ) {
            let mut histogram = Histogram::default();
            values.iter().for_each(|value| histogram.record(*value));
            values.sort_unstable();
            let rank = (values.len() as u64 * per_mille).div_ceil(1000).max(1);
            let exact = values[usize::try_from(rank).unwrap() - 1];
            let found = histogram.per_mille(per_mille);
            prop_assert!(found >= exact && found - exact <= exact / 128, "{found} for {exact}");
        }

        #[test]
        fn what_is_counted_apart_is_counted_together(
            values in prop::collection::vec(any::<u64>(), 0..50),
            split in 0_usize..50,
        ) {
            let [mut all, mut one, mut other] = std::array::from_fn(|_| Histogram::default());
            for (at, value) in values.iter().enumerate() {
                all.record(*value);
                if at < split { one.record(*value) } else { other.record(*value) }
            }
            one.add(&other);
            prop_assert_eq!(one, all);
        }
    }
}
