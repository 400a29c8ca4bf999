//! The metrics of keys. The store has those of sealed resources.

use chancery_metrics::{Metric, MetricKind};
use chancery_model::Keys;
use metrics::gauge;

/// All metrics of this crate.
pub const METRICS: &[Metric] = &[Metric::new(
    "chancery_keys_age_seconds",
    MetricKind::Gauge,
    "Seconds since a key was created, by kind. newest: the data key for new secrets. oldest: the oldest data key that \
     is not retired. 0 if the cluster has no keys",
)];

/// Describes the metrics, and shows them as zero.
pub fn register_metrics() {
    chancery_metrics::describe(METRICS);
    on_keys(&Keys::default(), 0);
}

/// Shows the ages of the data keys.
pub(crate) fn on_keys(keys: &Keys, now_ms: u64) {
    let age = |created_ms: Option<u64>| {
        created_ms.map_or(0.0, |created| (now_ms.saturating_sub(created) / 1000) as f64)
    };
    let created = keys.data.iter().map(|key| key.created_ms);
    let newest = age(keys.newest().map(|key| key.created_ms));
    gauge!("chancery_keys_age_seconds", "kind" => "newest").set(newest);
    gauge!("chancery_keys_age_seconds", "kind" => "oldest").set(age(created.min()));
}
