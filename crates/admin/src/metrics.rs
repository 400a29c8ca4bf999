//! The metrics of the admin API. Handles are created once, and the outcomes are a closed set.

use chancery_metrics::{Metric, MetricKind};
use metrics::{Counter, Histogram, counter, histogram};

use crate::AdminError;

/// All metrics of the admin API.
pub const METRICS: &[Metric] = &[
    Metric::new(
        "chancery_admin_writes_total",
        MetricKind::Counter,
        "Writes of authors, by outcome: done (including dry runs), refused_input, refused_precondition, refused_access \
         (also quotas), failed",
    ),
    Metric::new(
        "chancery_admin_write_seconds",
        MetricKind::Histogram,
        "Duration of a write, without the wait for clients",
    ),
    Metric::new(
        "chancery_xds_nodes",
        MetricKind::Gauge,
        "Nodes with a stream to this replica, by the worst state of their streams: synced, waiting, pending, silent, \
         rejected, unassigned, as `chancery nodes` shows it. Counted every 5 s, with more than about 100,000 nodes less \
         often",
    ),
];

/// The handles of the metrics.
#[derive(Clone)]
pub(crate) struct Metrics {
    done: Counter,
    refused_input: Counter,
    refused_precondition: Counter,
    refused_access: Counter,
    failed: Counter,
    pub(crate) write_seconds: Histogram,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        chancery_metrics::describe(METRICS);
        let outcome =
            |outcome: &'static str| counter!("chancery_admin_writes_total", "outcome" => outcome);
        Self {
            done: outcome("done"),
            refused_input: outcome("refused_input"),
            refused_precondition: outcome("refused_precondition"),
            refused_access: outcome("refused_access"),
            failed: outcome("failed"),
            write_seconds: histogram!("chancery_admin_write_seconds"),
        }
    }

    /// Counts a write.
    pub(crate) fn on_write<T>(&self, result: &Result<T, AdminError>) {
        let counter = match result {
            Ok(_) => &self.done,
            Err(AdminError::Precondition(_) | AdminError::NotFound(_)) => {
                &self.refused_precondition
            }
            Err(AdminError::Input(_) | AdminError::Parameter(_) | AdminError::TooLarge(_)) => {
                &self.refused_input
            }
            Err(
                AdminError::Unauthenticated(_)
                | AdminError::Forbidden(_)
                | AdminError::Quota(_)
                | AdminError::Busy { .. },
            ) => &self.refused_access,
            Err(_) => &self.failed,
        };
        counter.increment(1);
    }
}

/// Counts a request that was refused for a reason from a closed set.
pub(crate) fn refused(reason: &'static str) {
    counter!("chancery_access_refused_total", "port" => "admin", "reason" => reason).increment(1);
}
