//! Computes a mean with its confidence interval.

use super::line::student;

/// The mean of values that are assumed independent and identically distributed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    /// The estimate.
    pub value: f64,
    /// Half the width of the 95 % confidence interval.
    pub margin: f64,
}

impl Mean {
    /// Returns the mean of at least two values; `None` if there are fewer, which have no spread.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let freedom = values.len().checked_sub(1).filter(|freedom| *freedom > 0)?;
        let count = values.len() as f64;
        let value = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|one| (one - value).powi(2)).sum();
        let deviation = (squares / freedom as f64).sqrt();
        Some(Self { value, margin: student(freedom) * deviation / count.sqrt() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worked_example_has_its_known_interval() {
        let mean = Mean::of(&[10.0, 12.0, 14.0, 12.0]).unwrap();
        assert!((mean.value - 12.0).abs() < 1e-9);
        // The sum of squares is 8: the variance is 8 / 3 with three degrees of freedom.
        let margin = 3.182 * (8.0_f64 / 3.0).sqrt() / 2.0;
        assert!((mean.margin - margin).abs() < 1e-9, "{mean:?}");
        assert_eq!(Mean::of(&[5.0, 5.0]), Some(Mean { value: 5.0, margin: 0.0 }));
        assert_eq!(Mean::of(&[5.0]), None);
    }
}
