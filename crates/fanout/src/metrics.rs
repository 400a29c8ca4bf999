//! The metrics of the fan-out. Handles are created once. Labels come from closed sets only.

use chancery_metrics::{Metric, MetricKind};
use chancery_model::{TypeUrl, types::KNOWN};
use metrics::{Gauge, counter, gauge};

mod handles;

pub(crate) use handles::{ShardMetrics, Suppressed, gauge_value};

/// Every metric of this crate.
pub const METRICS: &[Metric] = &[
    Metric::new(
        "chancery_xds_streams",
        MetricKind::Gauge,
        "Streams that have sent a request, by protocol (sotw, delta, mcp) and type (aggregated, the type's \
         alias, or other).",
    ),
    Metric::new(
        "chancery_xds_stream_ends_total",
        MetricKind::Counter,
        "Streams that ended, by reason. client: the client reset the stream, half-closed \
         it (half_close), or lost its connection. refused: the client broke a rule or \
         exceeded a limit. silent: it left a response unanswered for longer than \
         ack_close_after. moved: it was asked to reconnect. access: its rights or its credential \
         changed or ended. deadline: its own grpc-timeout expired.",
    ),
    Metric::new(
        "chancery_access_refused_total",
        MetricKind::Counter,
        "Streams, polls and calls that access rules, quotas or missing credentials refused, by port and \
         reason. quota: a write would exceed a quota. streams, requests_per_second, \
         writes_per_second: the quota of an access rule. too_many_failures: auth.failures_max.",
    ),
    Metric::new("chancery_xds_requests_total", MetricKind::Counter, "Discovery requests, by type."),
    Metric::new(
        "chancery_xds_requests_by_kind_total",
        MetricKind::Counter,
        "Discovery requests, by kind. ack and nack answer a response. subscribe changes \
         the subscription. stale names a response other than the last one. repeat \
         contains nothing new.",
    ),
    Metric::new(
        "chancery_xds_pushes_total",
        MetricKind::Counter,
        "Discovery responses sent, by type.",
    ),
    Metric::new(
        "chancery_xds_renewed_resources_total",
        MetricKind::Counter,
        "Resources in discovery responses that renew a lifetime (`ttl`), by type.",
    ),
    Metric::new(
        "chancery_xds_renewals_paused",
        MetricKind::Gauge,
        "1 while the replica renews no lifetimes, because it has had no contact to the majority of \
         the replicas for longer than renewals_stop_after; otherwise 0.",
    ),
    Metric::new(
        "chancery_xds_pushed_resources_total",
        MetricKind::Counter,
        "Resources in discovery responses, removed ones included, by type.",
    ),
    Metric::new(
        "chancery_xds_pushed_bytes_total",
        MetricKind::Counter,
        "Bytes of discovery responses, by type.",
    ),
    Metric::new(
        "chancery_xds_response_bytes",
        MetricKind::Histogram,
        "Size of discovery responses, by protocol.",
    ),
    Metric::new(
        "chancery_xds_suppressed_resends_total",
        MetricKind::Counter,
        "Responses that were unnecessary, by reason. folded: one response has an earlier \
         and a later change of the type. unchanged: a commit left the resources that the \
         stream sees unchanged. rejected: the client has already rejected these \
         resources.",
    ),
    Metric::new(
        "chancery_xds_acks_total",
        MetricKind::Counter,
        "Responses that clients accepted, by type.",
    ),
    Metric::new(
        "chancery_xds_nacks_total",
        MetricKind::Counter,
        "Responses that clients rejected, by type.",
    ),
    Metric::new(
        "chancery_xds_rejecting_streams",
        MetricKind::Gauge,
        "Streams on which a rejection stands: the client has not accepted a newer response since.",
    ),
    Metric::new(
        "chancery_xds_ack_seconds",
        MetricKind::Histogram,
        "Time from sending a response to its acknowledgment.",
    ),
    Metric::new(
        "chancery_xds_oldest_unanswered_seconds",
        MetricKind::Gauge,
        "The longest time for which a client has owed an answer, in whole seconds, by shard; 0 if no \
         client owes one.",
    ),
    Metric::new(
        "chancery_xds_first_sync_seconds",
        MetricKind::Histogram,
        "Time from a stream's first request until the client had accepted all resources that it first \
         requested.",
    ),
    Metric::new(
        "chancery_xds_convergence_seconds",
        MetricKind::Histogram,
        "Time from a change's arrival at the replica (applied there) to its \
         acknowledgment by a stream that it concerns. It counts from the earliest change \
         in the response. Resources that a client receives because it requests them, or \
         because it moves to other scopes, do not count.",
    ),
    Metric::new(
        "chancery_xds_commit_seconds",
        MetricKind::Histogram,
        "Time from a change's arrival at the replica until a shard has marked all \
         affected streams, once per shard and step. It counts from the earliest change in \
         the step.",
    ),
    Metric::new(
        "chancery_xds_inbox_wait_seconds",
        MetricKind::Histogram,
        "Time that a request waited for its shard, including the wait for space in the \
         inbox: the longest wait in each turn. Lane updates is for established streams, \
         bulk for new streams and large requests. Queries of the admin API do not count.",
    ),
    Metric::new(
        "chancery_xds_queue_wait_seconds",
        MetricKind::Histogram,
        "Time from the mark that a stream has something to send until it is polled: the \
         longest wait in each turn. Lane bulk is for streams that are loading a state, \
         updates for all others.",
    ),
    Metric::new(
        "chancery_xds_transport_wait_seconds",
        MetricKind::Histogram,
        "Time that a response waited until the stream's transport could take it, counted once it could, \
         and only if it had to wait.",
    ),
    Metric::new(
        "chancery_xds_blocked_streams",
        MetricKind::Gauge,
        "Streams that have something to send and whose transport does not take it: the client reads \
         slowly, or not at all.",
    ),
    Metric::new(
        "chancery_xds_pending_sessions",
        MetricKind::Gauge,
        "Streams that wait to be polled, by shard.",
    ),
    Metric::new(
        "chancery_xds_index_names",
        MetricKind::Gauge,
        "Names that streams subscribe to, counted for each stream, name and scope, by shard.",
    ),
    Metric::new(
        "chancery_xds_index_wildcards",
        MetricKind::Gauge,
        "Wildcard subscriptions of streams, counted for each stream, type and scope, by shard.",
    ),
    Metric::new(
        "chancery_xds_subscription_bytes",
        MetricKind::Gauge,
        "Bytes that the subscriptions of all streams hold, as `subscriptions_bytes_max` counts them.",
    ),
    Metric::new(
        "chancery_xds_large_work_sessions",
        MetricKind::Gauge,
        "Streams with a request or response of many names that the thread for large work handles or \
         has queued.",
    ),
    Metric::new(
        "chancery_xds_shard_turn_seconds",
        MetricKind::Histogram,
        "Time that a shard was busy without a break, by shard. The rate of its sum is the part of one \
         core that the shard uses.",
    ),
    Metric::new(
        "chancery_xds_drained",
        MetricKind::Gauge,
        "1 while an operator drains the replica (`chancery drain`): it accepts no streams.",
    ),
    Metric::new(
        "chancery_xds_held_polls",
        MetricKind::Gauge,
        "REST polls that wait for a change (`poll_hold`).",
    ),
    Metric::new(
        "chancery_xds_limits_hit_total",
        MetricKind::Counter,
        "Requests, streams and connections that were rejected, truncated, delayed or closed because \
         they exceed a limit, by limit.",
    ),
];

/// All limits: the values of the label.
const LIMITS: &[&str] = &[
    "ack_close_after",
    "connections",
    "connections_per_peer",
    "control_frames",
    "header_list_bytes",
    "http2_flood",
    "large_request_timeout",
    "large_requests_bytes",
    "nack_message_bytes",
    "name_bytes",
    "names",
    "names_per_request",
    "node_bytes",
    "node_metadata",
    "poll_bytes",
    "report_bytes",
    "report_parts",
    "reports_per_second",
    "request_bytes",
    "requests_per_second",
    "streams",
    "streams_per_connection",
    "streams_per_identity",
    "subscriptions_bytes",
    "types",
];

/// Returns the alias of a type, or `other`. The results are a closed set.
#[must_use]
pub fn type_label(type_url: &TypeUrl) -> &'static str {
    LABELS.get(type_index(type_url)).copied().unwrap_or("other")
}

pub(crate) const N_LABELS: usize = KNOWN.len() + 1;

/// The aliases by index in [`KNOWN`], and `other`.
pub(crate) const LABELS: [&str; N_LABELS] = {
    let mut labels = ["other"; N_LABELS];
    let mut index = 0;
    while index < KNOWN.len() {
        labels[index] = KNOWN[index].aliases[0];
        index += 1;
    }
    labels
};

pub(crate) fn type_index(type_url: &TypeUrl) -> usize {
    KNOWN.iter().position(|known| known.url == type_url.as_str()).unwrap_or(KNOWN.len())
}

/// Registers all metrics with the installed recorder, so that counters without events show 0.
pub(crate) fn register() {
    chancery_metrics::describe(METRICS);
    set_subscription_bytes(0);
    large_work().set(0.0);
    set_renewals_paused(false);
    set_drained(false);
    for limit in LIMITS {
        counter!("chancery_xds_limits_hit_total", "limit" => *limit).increment(0);
    }
    for port in ["admin", "xds"] {
        for reason in ["no_credential", "requests_per_second", "too_many_failures"] {
            let labels = [("port", port), ("reason", reason)];
            counter!("chancery_access_refused_total", &labels).increment(0);
        }
    }
}

/// Counts a refused stream or poll of a client. The reason must be from a closed set.
pub fn access_refused(reason: &'static str) {
    counter!("chancery_access_refused_total", "port" => "xds", "reason" => reason).increment(1);
}

/// Sets the number of bytes that subscriptions hold.
pub(crate) fn set_subscription_bytes(bytes: usize) {
    gauge!("chancery_xds_subscription_bytes").set(gauge_value(bytes));
}

/// Sets whether lifetimes are not renewed.
pub(crate) fn set_renewals_paused(is_paused: bool) {
    gauge!("chancery_xds_renewals_paused").set(f64::from(u8::from(is_paused)));
}

/// Sets whether an operator drains the replica.
pub(crate) fn set_drained(is_drained: bool) {
    gauge!("chancery_xds_drained").set(f64::from(u8::from(is_drained)));
}

/// Returns the gauge of the streams that the thread for large work handles.
pub(crate) fn large_work() -> Gauge {
    gauge!("chancery_xds_large_work_sessions")
}

/// Counts a request, stream or connection that exceeds a limit. The limit must be in `LIMITS`.
pub fn limit_hit(limit: &'static str) {
    debug_assert!(LIMITS.contains(&limit), "{limit} is not in LIMITS");
    counter!("chancery_xds_limits_hit_total", "limit" => limit).increment(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_labels_form_a_closed_set() {
        assert_eq!(type_label(&TypeUrl::from_static(chancery_model::types::CLUSTER)), "cluster");
        assert_eq!(type_label(&TypeUrl::new("example.com/anything").unwrap()), "other");
    }

    #[test]
    fn metric_names_follow_the_naming_rules() {
        for metric in METRICS {
            let is_ours = ["chancery_xds_", "chancery_access_"];
            assert!(is_ours.iter().any(|start| metric.name.starts_with(start)), "{}", metric.name);
            assert_eq!(
                metric.name.ends_with("_total"),
                metric.kind == MetricKind::Counter,
                "{}",
                metric.name
            );
        }
    }
}
