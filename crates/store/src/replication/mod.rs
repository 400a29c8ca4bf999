//! Communication between replicas.
//!
//! Replication has its own port, connections, runtime and threads. The fan-out therefore cannot delay a
//! heartbeat (design 4.9). The protocol is gRPC, `chancery.raft.v1.Replication`.
//!
//! Invariants:
//! - Every call of a member names the cluster, the incarnation, the caller and the callee, with their
//!   instances. The callee checks this header before it reads anything else, and refuses a mismatch.
//! - Heartbeats, votes and other short calls have a separate connection. They never wait behind entries or
//!   a snapshot.
//! - A replica without data asks to join; a replica with data never does. The leader removes a replica that
//!   has lost its data before it admits the replica again, so that no majority counts on the lost data.
//! - No received message can make a replica panic.
//!
//! # Modules
//!
//! | module | content |
//! |---|---|
//! | `client`, `server` | outgoing and incoming calls |
//! | `codec` | conversion of their messages |
//! | `protocol` | the check of protocol versions |
//! | `accept`, `slots` | accepting connections, and their limit |
//! | `connection`, `tls` | one connection, and its TLS |
//! | `join` | how a replica becomes a member |
//! | `members` | membership changes |
//! | `instance` | replica instances: detection of removed and replaced replicas |
//! | `forward`, `outbox` | forwarding of writes to the leader, in batches |
//! | `barrier` | linearizable reads through the leader's commit index |
//! | `transfer` | sending of snapshots |
//! | `acknowledged` | the entries that other replicas have acknowledged |
//! | `digests` | comparison of states |
//! | `handle` | the cluster part of the `Replica` handle |
//! | `cluster_metrics` | metrics of the cluster |
//! | `maintenance` | snapshots and purges of the log by bytes; RocksDB flushes |
//! | `raft_settings` | the settings of Raft |
//! | `core` | the data that the modules share |
//! | `refusal_log` | rate-limited logging of refused calls |

pub(crate) mod accept;
pub(crate) mod acknowledged;
#[cfg(test)]
mod acknowledged_tests;
pub(crate) mod barrier;
pub(crate) mod client;
pub(crate) mod cluster_metrics;
pub(crate) mod codec;
pub(crate) mod connection;
pub(crate) mod core;
#[cfg(test)]
mod digest_tests;
pub(crate) mod digests;
pub(crate) mod forward;
pub(crate) mod handle;
pub(crate) mod instance;
pub(crate) mod join;
pub(crate) mod maintenance;
pub(crate) mod members;
pub(crate) mod outbox;
#[cfg(test)]
mod power_cut_tests;
pub(crate) mod protocol;
pub(crate) mod raft_settings;
pub(crate) mod refusal_log;
pub(crate) mod server;
pub(crate) mod slots;
#[cfg(test)]
mod stall_tests;
#[cfg(test)]
mod tests;
pub(crate) mod tls;
pub(crate) mod transfer;
