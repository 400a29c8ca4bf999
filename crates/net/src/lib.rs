//! The connection layer of all ports: xDS, admin, replication and MCP sources.
//!
//! [`accept`] is the accept loop. [`Slots`] limits the connections of a port. [`Activity`] records the
//! progress of one connection. [`GuardedIo`] wraps its stream. What a port does with a connection is its
//! own matter. The crate `chancery-tls` adds TLS. [`Backoff`] delays the attempts of connections that the
//! server opens.
//!
//! Invariants:
//! - The accept loop never waits for a client, and survives all errors of `accept`.
//! - The number of open connections never exceeds the number of slots. The number of open sockets exceeds it by a few
//!   ([`sockets_max`]).
//! - A client that accepts no data, or makes no request, is disconnected within a configured time.

mod accept;
mod activity;
mod backoff;
mod bucket;
mod first_bytes;
mod guarded_io;
mod http2;
mod slots;

pub use accept::{Listener, Port, accept};
pub use activity::{Activity, RequestGuard, Timeouts, Unused};
pub use backoff::Backoff;
pub use bucket::Bucket;
pub use first_bytes::FirstBytes;
pub use guarded_io::{Disconnect, GuardedIo, Guards};
pub use http2::{FrameRate, refusal, refusal_of_requests};
pub use slots::{
    Eviction, Limits, OpenSocket, Slot, SlotLimit, Slots, connections_for, sockets_max,
};
