//! Fan-out: finds the sessions that a commit affects, and sends each its update when its transport can
//! take it.
//!
//! Each core has one shard, a task that owns a disjoint set of sessions. The transport opens a stream
//! with [`Fanout::open`] and gets two handles. The [`RequestSink`] accepts the client's requests. The
//! [`ResponseSource`] returns the next message when the transport can write one.
//!
//! Invariants:
//! - Each session belongs to one shard, and only that shard accesses it. There is no lock around
//!   protocol state.
//! - Work per commit is O(changes + affected sessions). A wildcard stream stores nothing per
//!   resource.
//! - A shard never waits for a stream. A slow stream delays only itself: the shard builds no message
//!   before the transport can write it (SOTW-112, OPS-10).
//! - The transport reads requests even while it cannot write responses.
//! - Nobody waits for a shard that does not end its turn (`turn/turns.rs`).
//! - A turn of a shard is bounded. Marking after a commit, requests, ready transports, polls and status
//!   queries continue in the next turn. New streams, ended streams, large requests and large responses
//!   are bulk work. Each turn does one kind of bulk work, within a small budget of its own.
//!
//! # Queues
//!
//! Every queue has a bound, whatever clients and authors do. If a queue to a client is full, the shard
//! keeps only a mark, and later sends the newest state.
//!
//! | queue | bound | when full | metric |
//! |---|---|---|---|
//! | newest state, one per replica | 1 | a newer state replaces it; a shard compares the newest state with its own | `chancery_xds_commit_seconds` |
//! | inboxes, two per shard: small requests of established streams and queries; requests of new streams and large requests | [`Config::inbox_events`] each | the readers of its streams wait, and flow control holds their clients back; the shard and other shards do not wait | `chancery_xds_inbox_wait_seconds`, by lane |
//! | events taken from the inboxes | [`Config::turn_work_max`] each | the shard takes no more | as above |
//! | marking, one per shard | 1, a cursor over the changes | states that arrive meanwhile form the next state change | `chancery_xds_commit_seconds` |
//! | marks, in each session | one per type, and one per subscribed name | changes coalesce into the existing mark | `chancery_xds_suppressed_resends_total` |
//! | sessions to poll, two lanes per shard | one per stream | cannot fill: a session is queued at most once | `chancery_xds_pending_sessions`, `chancery_xds_queue_wait_seconds` |
//! | ready list: transports that can take a message or have closed, one per shard | one per stream | cannot fill: a stream is listed at most once | `chancery_xds_shard_turn_seconds` |
//! | large work, one per replica | one per stream | cannot fill: a session is queued at most once | `chancery_xds_large_work_sessions` |
//! | requests for an offloaded session | the requests of its stream that were in the inbox when it was offloaded, and one more | the reader of the stream waits until the session is back | `chancery_xds_large_work_sessions` |
//! | ended streams to be freed | one per stream | cannot fill | `chancery_xds_shard_turn_seconds` |
//! | outbox, one per stream | 1 message | the shard builds no message: the session stays marked until the transport asks | `chancery_xds_blocked_streams`, `chancery_xds_transport_wait_seconds` |
//! | timers, two heaps per shard | each 2 × streams + 1024 at the end of a turn | the shard drops outdated timers and those of ended streams | |
//! | unanswered responses, in each session | 256 per type, with the contents of 32 | the session forgets the oldest; a later answer to it counts as stale | `chancery_xds_oldest_unanswered_seconds` |
//! | recorded rejections, per stream | the last one of each type, with a truncated text | the new one replaces it | `chancery_xds_rejecting_streams` |
//! | rejections that REST clients report, per replica | 256 | the oldest is dropped | `chancery_xds_poll_nacks_total` |
//! | polls that wait for a change, per replica | one per running poll, with up to 16 names | cannot fill: `streams_max` limits running polls | `chancery_xds_held_polls` |
//! | arrival times of revisions, per replica | 1024 | the oldest is dropped, so a shard that is further behind measures a shorter delay | |
//! | times of changes, in each session | two per known type | the earliest stays | `chancery_xds_convergence_seconds` |
//! | resume data of ended streams | 16,384 per replica, 16 per node, 30 s | the oldest is dropped; a SotW client that reconnects later may lose a cluster before it receives the routes that no longer refer to it | |
//! | recent states, for SotW clients of other replicas | 1024 per replica, 200,000 changed resources, 256 MiB of old bodies, 60 s | the oldest is dropped; a SotW client that moves with an older version may lose a cluster as above | |
//! | cached differences ([`chancery_view::Differ`]) | 64 | the least recently used is dropped, and computed again on demand | |
//!
//! One thread handles requests and responses with many names for all shards (`large.rs`). The shard
//! registers their names in bounded steps (`offload.rs`). Two kinds of work are never split: one full SotW
//! state, and one difference of two states. Their size depends on the author, within the view and
//! `transaction_bytes_max`. After such work, the shard yields.

mod config;
mod drain_order;
mod fanout;
#[doc(hidden)]
pub mod fuzz;
mod log_limit;
mod messages;
mod metrics;
mod offload;
mod placement;
mod poll;
mod queries;
mod rejection;
mod replica;
mod sessions;
mod shard;
mod stream;
mod turn;

pub use config::{Config, ConfigError};
pub use drain_order::{DrainOrder, DrainOrders};
pub use fanout::{Fanout, OpenError, RefusalPlaces, StreamPlace};
pub use log_limit::RateLimitedLog;
pub use messages::{
    change::{Change, TouchedNames},
    client_events::{ClientEvent, ClientEventKind, ClientObserver},
    client_log::{LoggedEvent, LoggedEvents, LoggedKind},
    status::{
        ConcernedSession, End, EndCode, NackRecord, Progress, SessionId, StalledShard,
        Unacknowledged, UnacknowledgedState,
    },
    stream_status::{LiveStream, SelectStream, StreamContents, StreamRef, StreamStatus},
};
pub use metrics::{METRICS, access_refused, limit_hit, type_label};
pub use placement::{access::AccessControl, client_groups::ClientGroup};
pub use poll::{HeldPoll, Poll, PollView, rejections::PollRejection};
pub use rejection::SecretFinder;
pub use replica::freshness::{Behind, Fresh};
pub use sessions::entry::UNOPENED;
pub use stream::{
    handles::{RequestSink, ResponseSource, Stopped, StreamCloser},
    slot::{Delivery, StreamInfo},
};
