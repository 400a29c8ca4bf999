//! The metric handles of a shard, created once so that counting needs no lookup.

use chancery_model::TypeUrl;
use chancery_protocol::{Message, Protocol, RequestKind, Response, StreamKind};
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use super::{
    ACK_SECONDS, ACKS, BLOCKED, COMMIT_SECONDS, CONVERGENCE, FIRST_SYNC, INBOX_WAIT, INDEX_NAMES,
    INDEX_WILDCARDS, LABELS, N_LABELS, NACKS, PENDING, PUSHED_BYTES, PUSHED_RESOURCES, PUSHES,
    QUEUE_WAIT, REJECTING, REQUEST_KINDS, REQUESTS, RESPONSE_BYTES, STREAM_ENDS, STREAMS,
    SUPPRESSED, TRANSPORT_WAIT, TURN_SECONDS, UNANSWERED, type_place,
};
use crate::{index::Size, queue::Lane, status::EndCode};

pub(crate) struct ShardMetrics {
    types: [TypeMetrics; N_LABELS],
    /// By protocol, then by type. The aggregated streams are last.
    streams: [[Gauge; N_LABELS + 1]; 2],
    /// By protocol.
    response_bytes: [Histogram; 2],
    ends_client: Counter,
    ends_half_close: Counter,
    ends_refused: Counter,
    ends_silent: Counter,
    ends_moved: Counter,
    ends_deadline: Counter,
    /// In the order of [`RequestKind`].
    kinds: [Counter; 5],
    /// In the order of [`Suppressed`].
    suppressed: [Counter; 3],
    pub(crate) rejecting: Gauge,
    pub(crate) ack_seconds: Histogram,
    pub(crate) first_sync_seconds: Histogram,
    pub(crate) convergence_seconds: Histogram,
    pub(crate) commit_seconds: Histogram,
    inbox_wait_updates: Histogram,
    inbox_wait_bulk: Histogram,
    queue_wait_updates: Histogram,
    queue_wait_bulk: Histogram,
    pub(crate) transport_wait_seconds: Histogram,
    pub(crate) blocked: Gauge,
    pub(crate) turn_seconds: Histogram,
    pub(crate) unanswered: Gauge,
    pub(crate) pending: Gauge,
    index_names: Gauge,
    index_wildcards: Gauge,
}

pub(crate) struct TypeMetrics {
    pub(crate) requests: Counter,
    pub(crate) pushes: Counter,
    pub(crate) pushed_resources: Counter,
    pub(crate) pushed_bytes: Counter,
    pub(crate) acks: Counter,
    pub(crate) nacks: Counter,
}

/// The reason why a response was unnecessary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Suppressed {
    Folded,
    Unchanged,
    Rejected,
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
        let kind = |kind: &'static str| counter!(REQUEST_KINDS, "kind" => kind);
        let suppressed = |reason: &'static str| counter!(SUPPRESSED, "reason" => reason);
        let by_shard = |name: &'static str| gauge!(name, "shard" => shard.to_string());
        let wait = |name: &'static str, lane: &'static str| histogram!(name, "lane" => lane);
        let bytes = |protocol: &'static str| histogram!(RESPONSE_BYTES, "protocol" => protocol);
        Self {
            types: std::array::from_fn(|place| TypeMetrics::new(LABELS[place])),
            streams: [streams("sotw"), streams("delta")],
            response_bytes: [bytes("sotw"), bytes("delta")],
            ends_client: ends("client"),
            ends_half_close: ends("half_close"),
            ends_refused: ends("refused"),
            ends_silent: ends("silent"),
            ends_moved: ends("moved"),
            ends_deadline: ends("deadline"),
            kinds: [kind("ack"), kind("nack"), kind("subscribe"), kind("stale"), kind("repeat")],
            suppressed: [suppressed("folded"), suppressed("unchanged"), suppressed("rejected")],
            rejecting: gauge!(REJECTING),
            ack_seconds: histogram!(ACK_SECONDS),
            first_sync_seconds: histogram!(FIRST_SYNC),
            convergence_seconds: histogram!(CONVERGENCE),
            commit_seconds: histogram!(COMMIT_SECONDS),
            inbox_wait_updates: wait(INBOX_WAIT, "updates"),
            inbox_wait_bulk: wait(INBOX_WAIT, "bulk"),
            queue_wait_updates: wait(QUEUE_WAIT, "updates"),
            queue_wait_bulk: wait(QUEUE_WAIT, "bulk"),
            transport_wait_seconds: histogram!(TRANSPORT_WAIT),
            blocked: gauge!(BLOCKED),
            turn_seconds: histogram!(TURN_SECONDS, "shard" => shard.to_string()),
            unanswered: by_shard(UNANSWERED),
            pending: by_shard(PENDING),
            index_names: by_shard(INDEX_NAMES),
            index_wildcards: by_shard(INDEX_WILDCARDS),
        }
    }

    /// Counts the end of a stream. `code` is the code with which the replica ended it, if it did.
    pub(crate) fn on_end(&self, code: Option<EndCode>) {
        let counter = match code {
            None => &self.ends_client,
            Some(EndCode::Ok) => &self.ends_half_close,
            Some(EndCode::Silent) => &self.ends_silent,
            Some(EndCode::Unavailable | EndCode::Aged) => &self.ends_moved,
            Some(EndCode::DeadlineExceeded) => &self.ends_deadline,
            Some(
                EndCode::InvalidArgument
                | EndCode::ResourceExhausted
                | EndCode::Unimplemented
                | EndCode::Internal,
            ) => &self.ends_refused,
        };
        counter.increment(1);
    }

    pub(crate) fn on_request(&self, type_url: &TypeUrl, kind: RequestKind) {
        self.of(type_place(type_url)).requests.increment(1);
        let place = match kind {
            RequestKind::Ack => 0,
            RequestKind::Nack => 1,
            RequestKind::Subscribe => 2,
            RequestKind::Stale => 3,
            RequestKind::Repeat => 4,
        };
        self.kinds[place].increment(1);
    }

    /// Counts a response and encodes it.
    pub(crate) fn on_push(
        &self,
        type_place: usize,
        response: Response,
        control_plane: &str,
    ) -> Message {
        let of_type = self.of(type_place);
        let of_protocol = &self.response_bytes[place_of(response.protocol())];
        of_type.pushes.increment(1);
        let n_resources = response.n_resources() + response.removed().len();
        of_type.pushed_resources.increment(n_resources as u64);
        let message = response.into_message(control_plane);
        of_type.pushed_bytes.increment(message.len() as u64);
        of_protocol.record(gauge_value(message.len()));
        message
    }

    pub(crate) fn on_suppressed(&self, reason: Suppressed) {
        self.suppressed[reason as usize].increment(1);
    }

    /// Returns the metrics of the type at a place from [`type_place`].
    pub(crate) fn of(&self, type_place: usize) -> &TypeMetrics {
        &self.types[type_place]
    }

    pub(crate) fn inbox_wait_seconds(&self, lane: Lane) -> &Histogram {
        match lane {
            Lane::Updates => &self.inbox_wait_updates,
            Lane::Bulk => &self.inbox_wait_bulk,
        }
    }

    pub(crate) fn queue_wait_seconds(&self, lane: Lane) -> &Histogram {
        match lane {
            Lane::Updates => &self.queue_wait_updates,
            Lane::Bulk => &self.queue_wait_bulk,
        }
    }

    pub(crate) fn streams(&self, kind: &StreamKind) -> &Gauge {
        let of_protocol = &self.streams[place_of(kind.protocol)];
        &of_protocol[kind.type_url.as_ref().map_or(N_LABELS, type_place)]
    }

    pub(crate) fn set_index(&self, size: Size) {
        self.index_names.set(gauge_value(size.names));
        self.index_wildcards.set(gauge_value(size.wildcards));
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

fn place_of(protocol: Protocol) -> usize {
    match protocol {
        Protocol::Sotw => 0,
        Protocol::Delta => 1,
    }
}

/// Converts a count to a gauge value.
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53, and no count is larger")]
pub(crate) fn gauge_value(n: usize) -> f64 {
    n as f64
}
