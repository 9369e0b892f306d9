//! Computes medians, means, percentiles and linear fits of measurements.
//!
//! `tacit workload` and the benchmarks use this module.

mod histogram;
mod line;
mod mean;

pub use histogram::Histogram;
pub use line::{FittedLine, Point, Rise};
pub use mean::Mean;

/// The median; NaN without values.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    match sorted.len() % 2 {
        1 => at(half),
        _ => f64::midpoint(at(half.saturating_sub(1)), at(half)),
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn a_median_is_the_middle_of_any_order() {
        assert!(median(&[]).is_nan());
        assert_eq!(median(&[5.0]), 5.0);
        assert_eq!(median(&[9.0, 1.0, 5.0]), 5.0);
        assert_eq!(median(&[9.0, 1.0, 5.0, 6.0]), 5.5);
    }
}
