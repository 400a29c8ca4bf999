//! Advice about policies that clients accept, but use with other values than the configured ones.

use serde_json::Value;

use crate::{duration, names, proto::Cluster};

/// The maximum ring size of clients by default.
const RING_SIZE_CAP: u64 = 4096;
/// The maximum choice count of clients.
const CHOICE_COUNT_CAP: u64 = 10;
/// The minimum of `weightUpdatePeriod` in nanoseconds.
const UPDATE_PERIOD_MIN: i32 = 100_000_000;
/// The metrics that clients know, and the prefixes of named metrics.
const METRICS: &[&str] = &["application_utilization", "cpu_utilization", "mem_utilization"];
const METRIC_PREFIXES: &[&str] = &["named_metrics.", "utilization."];

/// Returns a note for each configured value of a policy and its children that clients replace or ignore.
pub(crate) fn policy_notes(name: &str, config: &Value) -> Vec<String> {
    let mut notes = Vec::new();
    let number = |key: &str| config.get(key).and_then(Value::as_u64);
    if name == names::RING_HASH {
        for key in ["minRingSize", "maxRingSize"] {
            if let Some(size) = number(key).filter(|size| *size > RING_SIZE_CAP) {
                notes.push(format!(
                    "{name}.{key}: by default, clients use {RING_SIZE_CAP} instead of {size}"
                ));
            }
        }
    }
    if name == names::LEAST_REQUEST
        && let Some(count) = number("choiceCount").filter(|count| *count > CHOICE_COUNT_CAP)
    {
        let text = format!("{name}.choiceCount: clients use {CHOICE_COUNT_CAP} instead of {count}");
        notes.push(text);
    }
    if name == names::WEIGHTED_ROUND_ROBIN {
        add_weight_notes(name, config, &mut notes);
    }
    let child = config.get("childPolicy").and_then(Value::as_array);
    let child = child.and_then(|list| list.first()?.as_object()?.iter().next());
    if let Some((name, config)) = child {
        notes.extend(policy_notes(name, config));
    }
    notes
}

fn add_weight_notes(name: &str, config: &Value, notes: &mut Vec<String>) {
    let period = config.get("weightUpdatePeriod").and_then(Value::as_str);
    if let Some(period) = period
        && let Ok(duration) = duration::parse(period)
        && (duration.seconds < 0 || duration.seconds == 0 && duration.nanos < UPDATE_PERIOD_MIN)
    {
        notes.push(format!("{name}.weightUpdatePeriod: clients use 0.1s instead of {period}"));
    }
    let metrics = config.get("metricNamesForComputingUtilization");
    let metrics = metrics.and_then(Value::as_array).into_iter().flatten();
    for metric in metrics.filter_map(Value::as_str).filter(|metric| !is_known_metric(metric)) {
        notes.push(format!(
            "{name}.metricNamesForComputingUtilization: clients ignore the metric {metric:?}, \
             and C-core rejects the cluster"
        ));
    }
}

/// Returns whether clients know a metric.
pub(crate) fn is_known_metric(metric: &str) -> bool {
    let has_prefix =
        |prefix: &&str| metric.strip_prefix(*prefix).is_some_and(|rest| !rest.is_empty());
    METRICS.contains(&metric) || METRIC_PREFIXES.iter().any(has_prefix)
}

/// Returns the fields of a cluster that some clients reject although `load_balancing_policy` overrides
/// them: grpc-go validates the legacy policy first.
pub fn cluster_notes(cluster: &Cluster) -> Vec<String> {
    if cluster.load_balancing_policy.is_none() {
        return Vec::new();
    }
    let ring_hash = cluster.ring_hash_lb_config.unwrap_or_default();
    let choice_count = cluster.least_request_lb_config.unwrap_or_default().choice_count;
    let problem = match cluster.lb_policy {
        Cluster::ROUND_ROBIN => return Vec::new(),
        Cluster::RING_HASH if ring_hash.hash_function == 0 => return Vec::new(),
        Cluster::RING_HASH => "a hash function other than XX_HASH".to_owned(),
        Cluster::LEAST_REQUEST if choice_count.is_none_or(|count| count >= 2) => return Vec::new(),
        Cluster::LEAST_REQUEST => "a choice count below 2".to_owned(),
        _ => cluster.lb_policy_name(),
    };
    vec![format!(
        "lb_policy: grpc-go rejects {problem} even if `load_balancing_policy` is set; remove `lb_policy`"
    )]
}
