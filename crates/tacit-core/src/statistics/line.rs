//! Fits a straight line to points by least squares, with confidence intervals of 95 %.
//!
//! The errors are assumed to be independent and identically distributed.

/// A point in a plane.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// The x coordinate.
    pub x: f64,
    /// The y coordinate.
    pub y: f64,
}

/// A straight line through points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FittedLine {
    /// Its value at zero.
    pub intercept: f64,
    /// Its slope.
    pub slope: f64,
    /// The number of points.
    pub points: usize,
    /// The variance of the points around the line.
    variance: f64,
    x_mean: f64,
    x_squares: f64,
}

/// The increase of a line from zero to its end, in per cent of its value at zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rise {
    /// The estimate.
    pub percent: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
}

impl FittedLine {
    /// Fits a line to points; `None` if there are fewer than three points or only one x coordinate.
    #[must_use]
    pub fn through(points: &[Point]) -> Option<Self> {
        if points.len() < 3 {
            return None;
        }
        let count = points.len() as f64;
        let x_mean = points.iter().map(|point| point.x).sum::<f64>() / count;
        let y_mean = points.iter().map(|point| point.y).sum::<f64>() / count;
        let x_squares: f64 = points.iter().map(|point| (point.x - x_mean).powi(2)).sum();
        if x_squares <= 0.0 {
            return None;
        }
        let product = |point: &Point| (point.x - x_mean) * (point.y - y_mean);
        let products: f64 = points.iter().map(product).sum();
        let slope = products / x_squares;
        let intercept = y_mean - slope * x_mean;
        let error = |point: &Point| (point.y - intercept - slope * point.x).powi(2);
        let errors: f64 = points.iter().map(error).sum();
        let variance = errors / (count - 2.0);
        Some(Self { intercept, slope, points: points.len(), variance, x_mean, x_squares })
    }

    /// Returns the increase from zero to `end`. The interval includes the covariance of intercept
    /// and slope (to first order). `None` if the value at zero is not positive.
    #[must_use]
    pub fn rise(&self, end: f64) -> Option<Rise> {
        let Self { intercept: a, slope: b, variance, x_mean, x_squares, points } = *self;
        if a <= 0.0 {
            return None;
        }
        let ratio = b * end / a;
        let b_variance = variance / x_squares;
        let a_variance = variance * (1.0 / points as f64 + x_mean * x_mean / x_squares);
        let covariance = -x_mean * variance / x_squares;
        let relative = b_variance + (b / a).powi(2) * a_variance - 2.0 * (b / a) * covariance;
        let margin = student(points - 2) * (end / a) * relative.max(0.0).sqrt();
        let [percent, low, high] = [ratio, ratio - margin, ratio + margin].map(|r| r * 100.0);
        Some(Rise { percent, low, high })
    }
}

/// Returns Student's t for a two-sided interval of 95 %.
pub(super) fn student(freedom: usize) -> f64 {
    const FIRST: [f64; 10] =
        [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    if let Some(t) = freedom.checked_sub(1).and_then(|at| FIRST.get(at)) {
        return *t;
    }
    // The normal quantile with its first corrections. From here on, the error is below 0.003.
    let z = 1.959_964_f64;
    let n = freedom.max(1) as f64;
    z + (z.powi(3) + z) / (4.0 * n)
        + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * n * n)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, wanted: f64, off: f64) {
        assert!((found - wanted).abs() <= off, "{found} is not {wanted}");
    }

    fn points<const N: usize>(points: [(f64, f64); N]) -> [Point; N] {
        points.map(|(x, y)| Point { x, y })
    }

    #[test]
    fn points_on_a_line_give_the_line_and_no_doubt() {
        let point = |x| Point { x, y: 100.0 + 2.0 * x };
        let points: Vec<_> = (0..9).map(|x| point(f64::from(x))).collect();
        let line = FittedLine::through(&points).unwrap();
        near(line.intercept, 100.0, 1e-9);
        near(line.slope, 2.0, 1e-9);
        near(line.variance, 0.0, 1e-9);
        let rise = line.rise(50.0).unwrap();
        for percent in [rise.percent, rise.low, rise.high] {
            near(percent, 100.0, 1e-3);
        }
    }

    #[test]
    fn a_worked_example_has_its_known_interval() {
        let points = points([(1.0, 2.0), (2.0, 4.0), (3.0, 5.0), (4.0, 4.0), (5.0, 5.0)]);
        let line = FittedLine::through(&points).unwrap();
        near(line.slope, 0.6, 1e-9);
        near(line.intercept, 2.2, 1e-9);
        // The sum of squared residuals is 2.4: the variance is 0.8 with three degrees of freedom.
        near(line.variance, 0.8, 1e-9);
        let rise = line.rise(5.0).unwrap();
        near(rise.percent, 136.36, 0.01);
        // relative = 0.08 + (3/11)^2 * 0.88 + 2 * (3/11) * 0.24
        near(rise.high - rise.percent, 100.0 * 3.182 * (5.0 / 2.2) * 0.276_36_f64.sqrt(), 0.1);
        near(rise.percent - rise.low, rise.high - rise.percent, 1e-9);
    }

    #[test]
    fn a_ramp_whose_cost_nearly_trebles_rises_beyond_doubt() {
        let ramp = [(60.0, 7.16), (180.0, 9.40), (300.0, 12.66), (420.0, 15.91), (540.0, 20.90)];
        let rise = FittedLine::through(&points(ramp)).unwrap().rise(600.0).unwrap();
        near(rise.percent, 361.0, 1.0);
        assert!(rise.low > 50.0, "it rose, beyond doubt: {rise:?}");
    }

    #[test]
    fn where_no_line_can_be_laid_there_is_none() {
        assert_eq!(FittedLine::through(&points([(0.0, 1.0), (1.0, 2.0)])), None);
        assert_eq!(FittedLine::through(&points([(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)])), None);
        let line = FittedLine::through(&points([(0.0, -1.0), (1.0, 0.0), (2.0, 1.0)])).unwrap();
        assert_eq!(line.rise(2.0), None, "no rise from nothing");
    }

    #[test]
    fn students_t_falls_towards_the_normal_quantile() {
        for (freedom, t) in [(1, 12.706), (3, 3.182), (11, 2.201), (30, 2.042), (120, 1.980)] {
            near(student(freedom), t, 0.003);
        }
    }
}
