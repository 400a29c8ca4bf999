//! The cluster: how replicas talk to each other.
//!
//! Replication has its own port, its own connections, its own runtime and threads: what the fan-out does
//! can not delay a heartbeat (design 4.9). The protocol is gRPC, `chancery.raft.v1.Replication`.
//!
//! Invariants:
//! - Every call of a member names cluster, incarnation, caller and callee, and which of the replicas that
//!   have had their numbers these are; one that names others is refused before anything else of it is
//!   looked at.
//! - What keeps the cluster alive (heartbeats, votes) has a connection of its own, so that it never
//!   waits behind entries or a snapshot.
//! - Whoever has no data asks to join; whoever has some never does. A replica that has lost its data is
//!   removed before it comes back, so that nobody counts on what it has forgotten.
//! - Nothing that is received can make a replica panic.
//!
//! # Map
//! `client` is the way out, `server` the way in, `codec` the messages of both; `join` is how a replica
//! becomes a member, `lives` tells it from others of its number, `members` is how the membership changes, `forward` how a write gets to the leader, by `outbox`;
//! `digests` compares states; `acknowledged` knows which entries the others must have; `transfer` is how a snapshot is sent, `barrier` how a replica learns what has been committed, `watch` what it tells of all that, `refusals` what it logs of calls that are refused; `protocol`
//! says who understands whom, `accept` and `places` let connections in, `wire` is one, `tls` keeps others out.

pub(crate) mod accept;
pub(crate) mod acknowledged;
#[cfg(test)]
mod acknowledged_tests;
pub(crate) mod barrier;
pub(crate) mod client;
pub(crate) mod codec;
#[cfg(test)]
mod digest_tests;
pub(crate) mod digests;
pub(crate) mod forward;
pub(crate) mod handle;
pub(crate) mod join;
pub(crate) mod lives;
pub(crate) mod members;
pub(crate) mod outbox;
pub(crate) mod places;
#[cfg(test)]
mod power_cut_tests;
pub(crate) mod protocol;
pub(crate) mod refusals;
pub(crate) mod server;
#[cfg(test)]
mod stall_tests;
#[cfg(test)]
mod tests;
pub(crate) mod tls;
pub(crate) mod transfer;
pub(crate) mod watch;
pub(crate) mod wire;
