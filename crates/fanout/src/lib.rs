//! Which sessions care about a commit, and when can they take it.
//!
//! One shard, a task, per core owns a disjoint set of sessions. A front door opens a stream with
//! [`Fanout::open`] and gets two ends: an [`Intake`] for the client's requests and an [`Outlet`] that
//! is asked for the next message when the transport can write one.
//!
//! Invariants:
//! - A session is touched by its shard only; there is no lock around protocol state.
//! - Work per commit is O(changes + sessions that care); a wildcard stream holds nothing per resource
//!   (design 4.3).
//! - A shard never waits for a stream. A slow stream costs its own staleness and nothing else: no
//!   message is built for it before it can be written (SOTW-112, OPS-10).
//! - Requests are read whatever the state of writing.
//! - A turn of a shard is bounded: telling sessions of a commit, requests, calls of transports, polls and
//!   answers about all streams go on in the next one. New streams, streams that have ended, large requests
//!   and large responses have a small part of each turn, after those of the others.
//!
//! # Queues
//!
//! Nothing here grows without bound, whatever clients and authors do. Towards clients everything that is
//! full coalesces: there is a mark, and the newest state.
//!
//! | queue | bound | when full | metric |
//! |---|---|---|---|
//! | newest state, one per replica | 1 | it is replaced; a shard compares the newest with the one it knew | `chancery_xds_commit_seconds` |
//! | inboxes, two per shard: small requests of established streams and questions; requests of new streams and large ones | [`Config::inbox_events`] each | the readers of its streams wait, and by flow control their clients; the shard and other shards do not | `chancery_xds_inbox_wait_seconds`, by lane |
//! | events taken from them | [`Config::turn_work_max`] each | no more are taken | the same |
//! | step of marking, one per shard | 1, a cursor over what has changed | states that come meanwhile are one next step | `chancery_xds_commit_seconds` |
//! | marks, in each session | one per type, and one per name it asks for | a mark that is there stays: the changes fold | `chancery_xds_suppressed_resends_total` |
//! | sessions to be polled, two lanes per shard | one per stream | can not be: a session is in it once | `chancery_xds_pending_sessions`, `chancery_xds_queue_wait_seconds` |
//! | ready list: calls of transports, one per shard | one per stream | can not be: a line is in it once | `chancery_xds_shard_turn_seconds` |
//! | large work, one per replica | one per stream | cannot be: a session is in it once | `chancery_xds_large_work_sessions` |
//! | requests for a session that is away | what the inbox had when it left | readers wait until it is back | `chancery_xds_large_work_sessions` |
//! | streams that have ended, to be freed | one per stream | cannot be | `chancery_xds_shard_turn_seconds` |
//! | outbox, one per stream | 1 message | none is built: the session stays marked until the transport asks | `chancery_xds_blocked_streams`, `chancery_xds_transport_wait_seconds` |
//! | timers, two heaps per shard | a few per stream, and 1024 | what is left of streams that are gone is dropped | |
//! | unanswered responses, in each session | 256 per type, the contents of 32 | the oldest is forgotten: an answer to it is a stale one | `chancery_xds_oldest_unanswered_seconds` |
//! | rejections that are kept, per stream | the last of each type, its text cut | the new one takes its place | `chancery_xds_rejecting_streams` |
//! | arrivals of revisions, per replica | 1024 | the oldest is forgotten: what is so late counts as a little less late | |
//! | times of changes, in each session | two per known type | the first one stays | `chancery_xds_convergence_seconds` |
//! | what clients of ended streams were left with | 16,384 per replica, 16 per node, 30 s | the oldest is forgotten: a SotW client that comes back then may lose a cluster before its routes have moved | |
//! | differences that are kept ([`chancery_view::Differ`]) | 64 | the one not used for longest is found anew when it is asked for | |
//!
//! A request or a response with many names is worked on beside the shards, by one thread for all of them
//! (`large.rs`), and its names are registered in bounded steps (`away.rs`). What is in one step and not cut: one
//! full state of SotW, one difference of two states. Each is as large as its author makes it, within the
//! view and `transaction_bytes_max`, and ends its turn.

mod arrivals;
mod away;
mod budget;
mod changes;
mod concern;
mod config;
mod departed;
mod entry;
mod event;
mod fanout;
mod fresh;
mod index;
mod large;
mod line;
mod marking;
mod memory;
mod metrics;
mod queue;
mod rejection;
mod report;
mod said;
mod serve;
mod shard;
mod silence;
mod status;
mod timers;
mod views;

pub use concern::{Change, TouchedNames};
pub use config::{Config, ConfigError};
pub use fanout::{Fanout, OpenError};
pub use fresh::Fresh;
pub use line::{Delivery, Ender, Intake, Outlet, Stopped, StreamInfo};
pub use metrics::{METRICS, Metric, MetricKind, limit_hit, type_label};
pub use rejection::SecretFinder;
pub use status::{
    Asked, End, EndCode, NackRecord, SessionId, Settlement, StreamStatus, Unsettled, UnsettledState,
};
