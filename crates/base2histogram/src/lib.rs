//! The histograms of openraft's statistics, over [`hdrhistogram`].
//!
//! openraft records batch sizes and latencies, even if nobody reads them. The crate of this name in the
//! registry then builds tables for 16 scales, of which openraft uses one. The tables take 25.6 MB in every
//! replica. This crate has the part of the interface that openraft uses, and takes a few KB
//! ([ADR 9](../../../docs/adr/0009-histograms-of-openraft.md)).
//!
//! API boundary: only openraft uses this crate. If a new version of openraft uses more of the interface,
//! it does not compile.

use std::{
    fmt::{self, Debug, Display, Formatter},
    marker::PhantomData,
};

/// The relative error of a percentile is at most 10^-DIGITS.
const DIGITS: u8 = 1;

/// A histogram of integers. Its percentiles have a relative error of at most 10 %.
///
/// `T` is the type of labels of slots in the registry's crate. openraft uses `()`.
pub struct Histogram<T = ()> {
    counts: hdrhistogram::Histogram<u64>,
    label: PhantomData<T>,
}

impl<T> Histogram<T> {
    /// Returns an empty histogram.
    ///
    /// # Panics
    ///
    /// Never: the bounds and the precision are valid.
    #[must_use]
    pub fn new() -> Self {
        let counts = hdrhistogram::Histogram::new_with_bounds(1, u64::MAX, DIGITS);
        let counts = counts.expect("the bounds and the precision are valid");
        Self { counts, label: PhantomData }
    }

    /// Adds `value`.
    pub fn record(&mut self, value: u64) {
        self.record_n(value, 1);
    }

    /// Adds `value` `count` times.
    pub fn record_n(&mut self, value: u64, count: u64) {
        self.counts.saturating_record_n(value, count);
    }

    /// Returns the number of values and some percentiles. Without values, all are 0.
    #[must_use]
    pub fn percentile_stats(&self) -> PercentileStats {
        let at = |quantile| self.counts.value_at_quantile(quantile);
        PercentileStats {
            samples: self.counts.len(),
            p0_1: at(0.001),
            p1: at(0.01),
            p5: at(0.05),
            p10: at(0.1),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
        }
    }
}

impl<T> Default for Histogram<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Clone for Histogram<T> {
    fn clone(&self) -> Self {
        Self { counts: self.counts.clone(), label: PhantomData }
    }
}

impl<T> PartialEq for Histogram<T> {
    fn eq(&self, other: &Self) -> bool {
        self.counts == other.counts
    }
}

impl<T> Eq for Histogram<T> {}

impl<T> Debug for Histogram<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Debug::fmt(&self.percentile_stats(), f)
    }
}

/// The number of values of a [`Histogram`], and their percentiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PercentileStats {
    /// The number of values.
    pub samples: u64,
    /// The value that 0.1 % of the values do not exceed.
    pub p0_1: u64,
    /// The value that 1 % of the values do not exceed.
    pub p1: u64,
    /// The value that 5 % of the values do not exceed.
    pub p5: u64,
    /// The value that 10 % of the values do not exceed.
    pub p10: u64,
    /// The median.
    pub p50: u64,
    /// The value that 90 % of the values do not exceed.
    pub p90: u64,
    /// The value that 99 % of the values do not exceed.
    pub p99: u64,
    /// The value that 99.9 % of the values do not exceed.
    pub p99_9: u64,
}

impl Display for PercentileStats {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { samples, p50, p90, p99, p99_9, .. } = self;
        write!(f, "{samples} values, p50 {p50}, p90 {p90}, p99 {p99}, p99.9 {p99_9}")
    }
}

/// Several named histograms, which are shown one per line.
#[derive(Debug, Default)]
pub struct AsciiChart {
    series: Vec<(String, Histogram)>,
}

impl AsciiChart {
    /// Returns a chart without histograms.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a histogram.
    #[must_use]
    pub fn add(mut self, name: &str, histogram: Histogram) -> Self {
        self.series.push((name.to_owned(), histogram));
        self
    }
}

impl Display for AsciiChart {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (name, histogram) in &self.series {
            writeln!(f, "{name}: {}", histogram.percentile_stats())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_tenth_of_the_values() {
        let mut histogram: Histogram = Histogram::new();
        for value in 1..=1000 {
            histogram.record(value);
        }
        let stats = histogram.percentile_stats();
        assert_eq!(stats.samples, 1000);
        for (found, exact) in [
            (stats.p0_1, 1),
            (stats.p1, 10),
            (stats.p5, 50),
            (stats.p10, 100),
            (stats.p50, 500),
            (stats.p90, 900),
            (stats.p99, 990),
            (stats.p99_9, 999),
        ] {
            assert!(found >= exact && found * 10 <= exact * 11, "{found} for {exact}: {stats:?}");
        }
    }

    #[test]
    fn no_value_is_too_large_and_no_count_is_lost() {
        let mut histogram: Histogram = Histogram::new();
        histogram.record_n(u64::MAX, 3);
        histogram.record_n(0, 5);
        let stats = histogram.percentile_stats();
        assert_eq!((stats.samples, stats.p0_1, stats.p50), (8, 0, 0));
        assert!(stats.p99 > u64::MAX / 4, "{stats:?}");
    }

    #[test]
    fn an_empty_histogram_has_zeros() {
        let stats = Histogram::<()>::new().percentile_stats();
        assert_eq!((stats.samples, stats.p0_1, stats.p99_9), (0, 0, 0));
    }

    #[test]
    fn a_chart_has_a_line_per_histogram() {
        let mut histogram = Histogram::new();
        histogram.record_n(4, 2);
        let chart = AsciiChart::new().add("apply", histogram).add("append", Histogram::new());
        assert_eq!(
            chart.to_string(),
            "apply: 2 values, p50 4, p90 4, p99 4, p99.9 4\n\
             append: 0 values, p50 0, p90 0, p99 0, p99.9 0\n"
        );
    }
}
