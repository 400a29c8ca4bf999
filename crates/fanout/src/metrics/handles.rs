//! The metric handles of a shard, created once so that counting needs no lookup.

use chancery_model::TypeUrl;
use chancery_protocol::{Message, Protocol, RequestKind, Response, StreamKind};
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use super::{LABELS, N_LABELS, type_index};
use crate::messages::{
    session::{Lane, Size},
    status::EndCode,
};

pub(crate) struct ShardMetrics {
    types: [TypeMetrics; N_LABELS],
    /// By protocol, then by type. The aggregated streams are last.
    streams: [[Gauge; N_LABELS + 1]; 3],
    /// By protocol.
    response_bytes: [Histogram; 3],
    ends_client: Counter,
    ends_half_close: Counter,
    ends_refused: Counter,
    ends_silent: Counter,
    ends_moved: Counter,
    ends_access: Counter,
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
    pub(crate) renewed_resources: Counter,
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
        let streams = |protocol: Protocol| {
            std::array::from_fn(|index| {
                let label = LABELS.get(index).copied().unwrap_or("aggregated");
                gauge!("chancery_xds_streams", "protocol" => protocol.as_str(), "type" => label)
            })
        };
        let ends =
            |reason: &'static str| counter!("chancery_xds_stream_ends_total", "reason" => reason);
        let kind =
            |kind: &'static str| counter!("chancery_xds_requests_by_kind_total", "kind" => kind);
        let suppressed = |reason: &'static str| counter!("chancery_xds_suppressed_resends_total", "reason" => reason);
        let by_shard = |name: &'static str| gauge!(name, "shard" => shard.to_string());
        let wait = |name: &'static str, lane: &'static str| histogram!(name, "lane" => lane);
        let bytes = |protocol: Protocol| histogram!("chancery_xds_response_bytes", "protocol" => protocol.as_str());
        Self {
            types: std::array::from_fn(|index| TypeMetrics::new(LABELS[index])),
            streams: PROTOCOLS.map(streams),
            response_bytes: PROTOCOLS.map(bytes),
            ends_client: ends("client"),
            ends_half_close: ends("half_close"),
            ends_refused: ends("refused"),
            ends_silent: ends("silent"),
            ends_moved: ends("moved"),
            ends_access: ends("access"),
            ends_deadline: ends("deadline"),
            kinds: [kind("ack"), kind("nack"), kind("subscribe"), kind("stale"), kind("repeat")],
            suppressed: [suppressed("folded"), suppressed("unchanged"), suppressed("rejected")],
            rejecting: gauge!("chancery_xds_rejecting_streams"),
            ack_seconds: histogram!("chancery_xds_ack_seconds"),
            first_sync_seconds: histogram!("chancery_xds_first_sync_seconds"),
            convergence_seconds: histogram!("chancery_xds_convergence_seconds"),
            commit_seconds: histogram!("chancery_xds_commit_seconds"),
            inbox_wait_updates: wait("chancery_xds_inbox_wait_seconds", "updates"),
            inbox_wait_bulk: wait("chancery_xds_inbox_wait_seconds", "bulk"),
            queue_wait_updates: wait("chancery_xds_queue_wait_seconds", "updates"),
            queue_wait_bulk: wait("chancery_xds_queue_wait_seconds", "bulk"),
            transport_wait_seconds: histogram!("chancery_xds_transport_wait_seconds"),
            blocked: gauge!("chancery_xds_blocked_streams"),
            turn_seconds: histogram!("chancery_xds_shard_turn_seconds", "shard" => shard.to_string()),
            unanswered: by_shard("chancery_xds_oldest_unanswered_seconds"),
            pending: by_shard("chancery_xds_pending_sessions"),
            index_names: by_shard("chancery_xds_index_names"),
            index_wildcards: by_shard("chancery_xds_index_wildcards"),
        }
    }

    /// Counts the end of a stream. `code` is the code with which the replica ended it, if it did.
    pub(crate) fn on_end(&self, code: Option<EndCode>) {
        let counter = match code {
            None => &self.ends_client,
            Some(EndCode::Ok) => &self.ends_half_close,
            Some(EndCode::Silent) => &self.ends_silent,
            Some(EndCode::Unavailable | EndCode::Aged) => &self.ends_moved,
            Some(EndCode::AccessChanged) => &self.ends_access,
            Some(EndCode::DeadlineExceeded) => &self.ends_deadline,
            Some(
                EndCode::InvalidArgument
                | EndCode::ResourceExhausted
                | EndCode::Unimplemented
                | EndCode::Unauthenticated
                | EndCode::PermissionDenied
                | EndCode::Internal,
            ) => &self.ends_refused,
        };
        counter.increment(1);
    }

    pub(crate) fn on_request(&self, type_url: &TypeUrl, kind: RequestKind) {
        self.of(type_index(type_url)).requests.increment(1);
        let index = match kind {
            RequestKind::Ack => 0,
            RequestKind::Nack => 1,
            RequestKind::Subscribe => 2,
            RequestKind::Stale => 3,
            RequestKind::Repeat => 4,
        };
        self.kinds[index].increment(1);
    }

    /// Counts a response and encodes it.
    pub(crate) fn encode(
        &self,
        type_index: usize,
        response: Response,
        control_plane: &str,
    ) -> Message {
        let of_type = self.of(type_index);
        let of_protocol = &self.response_bytes[protocol_index(response.protocol())];
        of_type.pushes.increment(1);
        let n_resources = response.n_resources() + response.n_removed();
        of_type.pushed_resources.increment(n_resources as u64);
        if response.is_renewal() {
            let with_ttl = response.resources().filter(|resource| resource.ttl().is_some());
            let n_renewed = with_ttl.count() + response.heartbeats().count();
            of_type.renewed_resources.increment(n_renewed as u64);
        }
        let message = response.into_message(control_plane);
        of_type.pushed_bytes.increment(message.len() as u64);
        of_protocol.record(gauge_value(message.len()));
        message
    }

    pub(crate) fn on_suppressed(&self, reason: Suppressed) {
        self.suppressed[reason as usize].increment(1);
    }

    /// Returns the metrics of the type at an index from [`type_index`].
    pub(crate) fn of(&self, type_index: usize) -> &TypeMetrics {
        &self.types[type_index]
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
        let of_protocol = &self.streams[protocol_index(kind.protocol)];
        &of_protocol[kind.type_url.as_ref().map_or(N_LABELS, type_index)]
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
            requests: of("chancery_xds_requests_total"),
            pushes: of("chancery_xds_pushes_total"),
            renewed_resources: of("chancery_xds_renewed_resources_total"),
            pushed_resources: of("chancery_xds_pushed_resources_total"),
            pushed_bytes: of("chancery_xds_pushed_bytes_total"),
            acks: of("chancery_xds_acks_total"),
            nacks: of("chancery_xds_nacks_total"),
        }
    }
}

/// All protocols, each at its index in the handles.
const PROTOCOLS: [Protocol; 3] = [Protocol::Sotw, Protocol::Delta, Protocol::Mcp];

fn protocol_index(protocol: Protocol) -> usize {
    match protocol {
        Protocol::Sotw => 0,
        Protocol::Delta => 1,
        Protocol::Mcp => 2,
    }
}

/// Converts a count to a gauge value.
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53, and no count is larger")]
pub(crate) fn gauge_value(n: usize) -> f64 {
    n as f64
}
