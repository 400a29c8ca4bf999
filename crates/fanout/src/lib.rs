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

mod budget;
mod commits;
mod config;
mod entry;
mod event;
mod fanout;
mod index;
mod line;
mod marking;
mod metrics;
mod queue;
mod report;
mod serve;
mod shard;
mod silence;
mod status;
mod timers;
mod views;

pub use config::{Config, ConfigError};
pub use fanout::{Fanout, OpenError};
pub use line::{Delivery, Ender, Intake, Outlet, Stopped, StreamInfo};
pub use metrics::{METRICS, Metric, MetricKind, limit_hit, type_label};
pub use status::{End, EndCode, NackRecord, StreamStatus, Unsettled, UnsettledState};
