//! What the fan-out counts. Handles are made once; labels come from closed sets only.

use chancery_model::{TypeUrl, types::KNOWN};
use chancery_protocol::{Protocol, StreamKind};
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use crate::status::EndCode;

/// A metric: for registration, documentation and dashboards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// What kind it is.
    pub kind: MetricKind,
    /// What it says.
    pub help: &'static str,
}

/// The kinds of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by size.
    Histogram,
}

impl Metric {
    /// A metric.
    #[must_use]
    pub const fn new(name: &'static str, kind: MetricKind, help: &'static str) -> Self {
        Self { name, kind, help }
    }

    /// Tells the installed recorder the help text.
    pub fn describe(&self) {
        match self.kind {
            MetricKind::Counter => metrics::describe_counter!(self.name, self.help),
            MetricKind::Gauge => metrics::describe_gauge!(self.name, self.help),
            MetricKind::Histogram => metrics::describe_histogram!(self.name, self.help),
        }
    }
}

const STREAMS: &str = "chancery_xds_streams";
const STREAM_ENDS: &str = "chancery_xds_stream_ends_total";
const REQUESTS: &str = "chancery_xds_requests_total";
const PUSHES: &str = "chancery_xds_pushes_total";
const PUSHED_RESOURCES: &str = "chancery_xds_pushed_resources_total";
const PUSHED_BYTES: &str = "chancery_xds_pushed_bytes_total";
const ACKS: &str = "chancery_xds_acks_total";
const NACKS: &str = "chancery_xds_nacks_total";
const ACK_SECONDS: &str = "chancery_xds_ack_seconds";
const CONVERGENCE: &str = "chancery_xds_convergence_seconds";
const PENDING: &str = "chancery_xds_pending_sessions";
const TURN_SECONDS: &str = "chancery_xds_shard_turn_seconds";
const LIMITS_HIT: &str = "chancery_xds_limits_hit_total";

/// Every metric of this crate.
pub const METRICS: &[Metric] = &[
    Metric::new(
        STREAMS,
        MetricKind::Gauge,
        "Streams that have sent a request, by protocol (sotw, delta) and type (aggregated, or the \
         type's alias, or other).",
    ),
    Metric::new(
        STREAM_ENDS,
        MetricKind::Counter,
        "Streams that ended, by reason: client (it reset the stream, or its connection was lost), \
         half_close, refused (it broke a rule or exceeded a limit), moved (asked to connect anew).",
    ),
    Metric::new(REQUESTS, MetricKind::Counter, "Discovery requests, by type."),
    Metric::new(PUSHES, MetricKind::Counter, "Discovery responses sent, by type."),
    Metric::new(
        PUSHED_RESOURCES,
        MetricKind::Counter,
        "Resources in discovery responses, removed ones included, by type.",
    ),
    Metric::new(PUSHED_BYTES, MetricKind::Counter, "Bytes of discovery responses, by type."),
    Metric::new(ACKS, MetricKind::Counter, "Responses that clients accepted, by type."),
    Metric::new(NACKS, MetricKind::Counter, "Responses that clients rejected, by type."),
    Metric::new(
        ACK_SECONDS,
        MetricKind::Histogram,
        "Time from sending a response to its acknowledgment.",
    ),
    Metric::new(
        CONVERGENCE,
        MetricKind::Histogram,
        "Time from a revision's arrival at the shard to its acknowledgment by a stream that was \
         open at the time.",
    ),
    Metric::new(
        PENDING,
        MetricKind::Gauge,
        "Streams that wait for their turn to be looked at, by shard.",
    ),
    Metric::new(
        TURN_SECONDS,
        MetricKind::Histogram,
        "Time that a shard was busy without a break; its sum is the shards' busy time.",
    ),
    Metric::new(
        LIMITS_HIT,
        MetricKind::Counter,
        "Streams and requests that were refused because they exceed a limit, by limit.",
    ),
];

/// The alias of a type, or `other`: a closed set.
#[must_use]
pub fn type_label(type_url: &TypeUrl) -> &'static str {
    LABELS.get(type_place(type_url)).copied().unwrap_or("other")
}

const N_LABELS: usize = KNOWN.len() + 1;

/// Aliases by place in [`KNOWN`], and `other`.
const LABELS: [&str; N_LABELS] = {
    let mut labels = ["other"; N_LABELS];
    let mut place = 0;
    while place < KNOWN.len() {
        labels[place] = KNOWN[place].aliases[0];
        place += 1;
    }
    labels
};

fn type_place(type_url: &TypeUrl) -> usize {
    KNOWN.iter().position(|known| known.url == type_url.as_str()).unwrap_or(KNOWN.len())
}

/// Counts a refusal because of a limit.
pub fn limit_hit(limit: &'static str) {
    counter!(LIMITS_HIT, "limit" => limit).increment(1);
}

pub(crate) struct ShardMetrics {
    types: [TypeMetrics; N_LABELS],
    /// By protocol, then by type, the aggregated ones last.
    streams: [[Gauge; N_LABELS + 1]; 2],
    ends_client: Counter,
    ends_half_close: Counter,
    ends_refused: Counter,
    ends_moved: Counter,
    pub(crate) ack_seconds: Histogram,
    pub(crate) convergence_seconds: Histogram,
    pub(crate) turn_seconds: Histogram,
    pub(crate) pending: Gauge,
}

pub(crate) struct TypeMetrics {
    pub(crate) requests: Counter,
    pub(crate) pushes: Counter,
    pub(crate) pushed_resources: Counter,
    pub(crate) pushed_bytes: Counter,
    pub(crate) acks: Counter,
    pub(crate) nacks: Counter,
}

impl ShardMetrics {
    pub(crate) fn new(shard: usize) -> Self {
        let streams = |protocol: &'static str| {
            std::array::from_fn(|place| {
                let label = LABELS.get(place).copied().unwrap_or("aggregated");
                gauge!(STREAMS, "protocol" => protocol, "type" => label)
            })
        };
        let ends = |reason: &'static str| counter!(STREAM_ENDS, "reason" => reason);
        Self {
            types: std::array::from_fn(|place| TypeMetrics::new(LABELS[place])),
            streams: [streams("sotw"), streams("delta")],
            ends_client: ends("client"),
            ends_half_close: ends("half_close"),
            ends_refused: ends("refused"),
            ends_moved: ends("moved"),
            ack_seconds: histogram!(ACK_SECONDS),
            convergence_seconds: histogram!(CONVERGENCE),
            turn_seconds: histogram!(TURN_SECONDS),
            pending: gauge!(PENDING, "shard" => shard.to_string()),
        }
    }

    /// Counts the end of a stream: with the code that the replica ended it with, if it did.
    pub(crate) fn on_end(&self, code: Option<EndCode>) {
        let counter = match code {
            None => &self.ends_client,
            Some(EndCode::Ok) => &self.ends_half_close,
            Some(EndCode::Unavailable) => &self.ends_moved,
            Some(
                EndCode::InvalidArgument
                | EndCode::ResourceExhausted
                | EndCode::Unimplemented
                | EndCode::Internal,
            ) => &self.ends_refused,
        };
        counter.increment(1);
    }

    pub(crate) fn of(&self, type_url: &TypeUrl) -> &TypeMetrics {
        &self.types[type_place(type_url)]
    }

    pub(crate) fn streams(&self, kind: &StreamKind) -> &Gauge {
        let of_protocol = match kind.protocol {
            Protocol::Sotw => &self.streams[0],
            Protocol::Delta => &self.streams[1],
        };
        &of_protocol[kind.type_url.as_ref().map_or(N_LABELS, type_place)]
    }
}

impl std::fmt::Debug for ShardMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardMetrics").finish_non_exhaustive()
    }
}

impl TypeMetrics {
    fn new(label: &'static str) -> Self {
        let of = |name: &'static str| counter!(name, "type" => label);
        Self {
            requests: of(REQUESTS),
            pushes: of(PUSHES),
            pushed_resources: of(PUSHED_RESOURCES),
            pushed_bytes: of(PUSHED_BYTES),
            acks: of(ACKS),
            nacks: of(NACKS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_come_from_a_closed_set() {
        assert_eq!(type_label(&TypeUrl::from_static(chancery_model::types::CLUSTER)), "cluster");
        assert_eq!(type_label(&TypeUrl::new("example.com/anything").unwrap()), "other");
    }

    #[test]
    fn names_follow_the_rules() {
        for metric in METRICS {
            assert!(metric.name.starts_with("chancery_xds_"), "{}", metric.name);
            assert_eq!(
                metric.name.ends_with("_total"),
                metric.kind == MetricKind::Counter,
                "{}",
                metric.name
            );
        }
    }
}
