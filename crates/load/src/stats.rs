//! The sums of the reports: counters since the start, and the present values of open streams.

use std::sync::Arc;

use tokio::time::Instant;

use crate::node_share::{Budget, Bytes, Limited};

/// The maximum value of one number in a report. Sums of smaller numbers do not overflow.
const VALUE_MAX: u64 = 1 << 40;

/// The key of a cluster (LRS-10).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClusterKey {
    pub(crate) name: Box<str>,
    pub(crate) service: Box<str>,
}

/// The key of a locality in a cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LocalityKey {
    pub(crate) priority: u32,
    pub(crate) region: Box<str>,
    pub(crate) zone: Box<str>,
    pub(crate) sub_zone: Box<str>,
}

/// Numbers that grow with each report (LRS-12).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) issued: u64,
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
    pub(crate) new_connections: u64,
    pub(crate) failed_connections: u64,
}

/// The newest numbers of a stream, which end with it (LRS-13). Rates are in thousandths per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Gauges {
    pub(crate) in_progress: u64,
    pub(crate) active_connections: u64,
    pub(crate) issued_rate: u64,
    pub(crate) succeeded_rate: u64,
    pub(crate) failed_rate: u64,
    pub(crate) dropped_rate: u64,
}

/// The sum of a custom metric (LRS-14).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Metric {
    pub(crate) requests: u64,
    pub(crate) total: f64,
}

#[derive(Debug, Default)]
pub(crate) struct Cluster {
    pub(crate) counts: Counts,
    pub(crate) dropped: u64,
    pub(crate) categories: Limited<Box<str>, Count>,
    pub(crate) localities: Limited<Arc<LocalityKey>, Locality>,
    pub(crate) gauges: Gauges,
    pub(crate) n_reports: u64,
    /// The number of streams whose gauges are in the sums.
    pub(crate) n_streams: usize,
    pub(crate) reported: Option<Instant>,
}

#[derive(Debug, Default)]
pub(crate) struct Locality {
    pub(crate) counts: Counts,
    /// The utilization of CPU, of memory, and as the application defines it.
    pub(crate) utilization: [Metric; 3],
    pub(crate) metrics: Limited<Box<str>, Metric>,
    pub(crate) endpoints: Limited<Box<str>, Endpoint>,
    pub(crate) gauges: Gauges,
    pub(crate) n_streams: usize,
    pub(crate) reported: Option<Instant>,
}

#[derive(Debug, Default)]
pub(crate) struct Endpoint {
    pub(crate) counts: Counts,
    pub(crate) metrics: Limited<Box<str>, Metric>,
    pub(crate) reported: Option<Instant>,
}

/// The sums over all clusters. The counts include clusters that are not kept; the gauges do not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) counts: Counts,
    pub(crate) dropped: u64,
    pub(crate) gauges: Gauges,
    pub(crate) n_reports: u64,
}

/// A single number.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Count(pub(crate) u64);

impl Counts {
    pub(crate) fn add(&mut self, more: Self) {
        for (sum, more) in [
            (&mut self.issued, more.issued),
            (&mut self.succeeded, more.succeeded),
            (&mut self.failed, more.failed),
            (&mut self.new_connections, more.new_connections),
            (&mut self.failed_connections, more.failed_connections),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

impl Gauges {
    /// Returns the gauges of one report for one locality.
    pub(crate) fn new(counts: Counts, in_progress: u64, connections: u64, period_ms: u64) -> Self {
        Self {
            in_progress: bounded(in_progress),
            active_connections: bounded(connections),
            issued_rate: rate(counts.issued, period_ms),
            succeeded_rate: rate(counts.succeeded, period_ms),
            failed_rate: rate(counts.failed, period_ms),
            dropped_rate: 0,
        }
    }

    /// Returns the numbers without the rates: a cluster that is missing in a report had no requests
    /// in the period, but perhaps requests in progress (LRS-13).
    pub(crate) fn without_rates(self) -> Self {
        let Self { in_progress, active_connections, .. } = self;
        Self { in_progress, active_connections, ..Self::default() }
    }

    /// Replaces the part of one stream in a sum.
    pub(crate) fn replace(&mut self, old: Self, new: Self) {
        let replaced = |sum: u64, old: u64, new: u64| sum.saturating_sub(old).saturating_add(new);
        self.in_progress = replaced(self.in_progress, old.in_progress, new.in_progress);
        self.active_connections =
            replaced(self.active_connections, old.active_connections, new.active_connections);
        self.issued_rate = replaced(self.issued_rate, old.issued_rate, new.issued_rate);
        self.succeeded_rate = replaced(self.succeeded_rate, old.succeeded_rate, new.succeeded_rate);
        self.failed_rate = replaced(self.failed_rate, old.failed_rate, new.failed_rate);
        self.dropped_rate = replaced(self.dropped_rate, old.dropped_rate, new.dropped_rate);
    }

    pub(crate) fn add(&mut self, more: Self) {
        self.replace(Self::default(), more);
    }
}

impl Metric {
    /// Adds a value. Returns `false` if it is not a number.
    pub(crate) fn add(&mut self, requests: u64, total: f64) -> bool {
        let sum = self.total + total;
        if !total.is_finite() || !sum.is_finite() {
            return false;
        }
        self.requests = self.requests.saturating_add(bounded(requests));
        self.total = sum;
        true
    }
}

/// Limits a number of a report.
pub(crate) fn bounded(value: u64) -> u64 {
    value.min(VALUE_MAX)
}

/// Returns a rate in thousandths per second; 0 if the period is unknown.
pub(crate) fn rate(count: u64, period_ms: u64) -> u64 {
    let thousandths = u128::from(count) * 1_000_000;
    let rate = thousandths.checked_div(u128::from(period_ms)).unwrap_or_default();
    bounded(u64::try_from(rate).unwrap_or(u64::MAX))
}

impl Bytes for ClusterKey {
    fn n_bytes(&self) -> usize {
        self.name.n_bytes() + self.service.n_bytes()
    }
}

impl Bytes for LocalityKey {
    fn n_bytes(&self) -> usize {
        size_of::<u32>() + self.region.n_bytes() + self.zone.n_bytes() + self.sub_zone.n_bytes()
    }
}

impl Bytes for Cluster {
    fn n_bytes(&self) -> usize {
        size_of::<Self>() + self.categories.n_bytes() + self.localities.n_bytes()
    }

    fn give_back_entries(&self, budget: &mut Budget) {
        self.categories.give_back_entries(budget);
        self.localities.give_back_entries(budget);
    }
}

impl Bytes for Locality {
    fn n_bytes(&self) -> usize {
        size_of::<Self>() + self.metrics.n_bytes() + self.endpoints.n_bytes()
    }

    fn give_back_entries(&self, budget: &mut Budget) {
        self.metrics.give_back_entries(budget);
        self.endpoints.give_back_entries(budget);
    }
}

impl Bytes for Endpoint {
    fn n_bytes(&self) -> usize {
        size_of::<Self>() + self.metrics.n_bytes()
    }

    fn give_back_entries(&self, budget: &mut Budget) {
        self.metrics.give_back_entries(budget);
    }
}

impl Bytes for Metric {
    fn n_bytes(&self) -> usize {
        size_of::<Self>()
    }
}

impl Bytes for Count {
    fn n_bytes(&self) -> usize {
        size_of::<Self>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LRS-12: a rate is computed with the real length of the period.
    #[test]
    fn rate_uses_the_reported_period() {
        assert_eq!(rate(10, 2000), 5000);
        assert_eq!(rate(10, 2500), 4000);
        assert_eq!(rate(10, 0), 0);
        assert_eq!(rate(u64::MAX, 1), VALUE_MAX);
    }

    #[test]
    fn value_that_is_not_a_number_is_not_added() {
        let mut metric = Metric::default();
        assert!(metric.add(2, 1.5) && metric.add(1, -0.5));
        assert!(!metric.add(1, f64::NAN) && !metric.add(1, f64::INFINITY));
        assert!(metric.add(0, f64::MAX) && !metric.add(1, f64::MAX));
        assert_eq!(metric.requests, 3);
    }
}
