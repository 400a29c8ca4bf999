//! The metrics of the admin API. Handles are created once, and the outcomes are a closed set.

use metrics::{Counter, Histogram, counter, describe_counter, describe_histogram, histogram};

use crate::AdminError;

/// All metrics of the admin API: name, kind, help.
pub const METRICS: &[(&str, &str, &str)] = &[
    (
        WRITES,
        "counter",
        "Writes of authors, by outcome: done (including dry runs), refused_input, refused_precondition, failed",
    ),
    (WRITE_SECONDS, "histogram", "Duration of a write, without the wait for clients"),
];

const WRITES: &str = "chancery_admin_writes_total";
const WRITE_SECONDS: &str = "chancery_admin_write_seconds";

/// The handles of the metrics.
#[derive(Clone)]
pub(crate) struct Metrics {
    done: Counter,
    refused_input: Counter,
    refused_precondition: Counter,
    failed: Counter,
    pub(crate) write_seconds: Histogram,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        for (name, kind, help) in METRICS {
            match *kind {
                "counter" => describe_counter!(*name, *help),
                _ => describe_histogram!(*name, *help),
            }
        }
        let outcome = |outcome: &'static str| counter!(WRITES, "outcome" => outcome);
        Self {
            done: outcome("done"),
            refused_input: outcome("refused_input"),
            refused_precondition: outcome("refused_precondition"),
            failed: outcome("failed"),
            write_seconds: histogram!(WRITE_SECONDS),
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
            Err(_) => &self.failed,
        };
        counter.increment(1);
    }
}
