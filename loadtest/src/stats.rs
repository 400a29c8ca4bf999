//! Statistics of measurements.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

/// Repeated measurements of one quantity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    /// The number of measurements.
    pub(crate) n: usize,
}

impl Spread {
    /// Returns `None` if there are no measurements.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            0 => f64::midpoint(*sorted.get(middle - 1)?, *sorted.get(middle)?),
            _ => *sorted.get(middle)?,
        };
        Some(Self { median, min, max, n: sorted.len() })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = f.precision().unwrap_or(2);
        let Self { median, min, max, n } = self;
        write!(f, "{median:.places$} ({min:.places$} to {max:.places$}, n={n})")
    }
}

/// The percentiles of durations, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latencies {
    pub(crate) p50_ms: f64,
    pub(crate) p90_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
    pub(crate) n: usize,
}

impl Latencies {
    /// Returns `None` if there are no durations.
    pub(crate) fn of(mut times: Vec<Duration>) -> Option<Self> {
        times.sort_unstable();
        // The nearest rank: the smallest value that is not less than this share of all values.
        let at = |percent: usize| {
            let rank = (times.len() * percent).div_ceil(100).max(1);
            times.get(rank - 1).map(|time| time.as_secs_f64() * 1e3)
        };
        Some(Self {
            p50_ms: at(50)?,
            p90_ms: at(90)?,
            p99_ms: at(99)?,
            max_ms: at(100)?,
            n: times.len(),
        })
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { p50_ms, p90_ms, p99_ms, max_ms, n } = self;
        write!(
            f,
            "p50 {p50_ms:.2} ms, p90 {p90_ms:.2} ms, p99 {p99_ms:.2} ms, max {max_ms:.2} ms (n={n})"
        )
    }
}

/// Returns the slope of the line through the points, by least squares. Returns `None` for fewer
/// than two points, or if all points have the same first coordinate.
pub(crate) fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let n = float(count(points.len()));
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let covariance: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let variance: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    (points.len() > 1 && variance > 0.0).then(|| covariance / variance)
}

/// Converts a count to a float, exactly up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53, and rounded after that")]
pub(crate) fn float(n: u64) -> f64 {
    n as f64
}

/// Converts a length to a count.
pub(crate) fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_has_median_and_extremes() {
        assert_eq!(Spread::of(&[]), None);
        let odd = Spread::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max, odd.n), (2.0, 1.0, 3.0, 3));
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(format!("{odd:.1}"), "2.0 (1.0 to 3.0, n=3)");
    }

    #[test]
    fn slope_is_that_of_the_fitted_line() {
        assert_eq!(slope(&[]), None);
        assert_eq!(slope(&[(1.0, 2.0)]), None);
        assert_eq!(slope(&[(1.0, 2.0), (1.0, 3.0)]), None);
        assert_eq!(slope(&[(0.0, 1.0), (2.0, 5.0)]), Some(2.0));
        // An outlier in the middle does not change the slope.
        assert_eq!(slope(&[(0.0, 0.0), (1.0, 9.0), (2.0, 2.0)]), Some(1.0));
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        assert_eq!(Latencies::of(vec![]), None);
        let of = Latencies::of((1..=200).rev().map(Duration::from_millis).collect()).unwrap();
        assert_eq!((of.p50_ms, of.p90_ms, of.p99_ms, of.max_ms), (100.0, 180.0, 198.0, 200.0));
        let one = Latencies::of(vec![Duration::from_millis(7)]).unwrap();
        assert_eq!((one.p50_ms, one.max_ms), (7.0, 7.0));
    }
}
