//! Communication between replicas.
//!
//! Replication has its own port, connections, runtime and threads. The fan-out therefore cannot delay a
//! heartbeat. The protocol is gRPC, `chancery.raft.v1.Replication`.
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
//! | `core` | the parts of a running replica |
//! | `raft_node`, `raft_settings` | Raft, the leader and the members; its settings |
//! | `peers`, `calls` | connections to other replicas, and calls in the name of this one |
//! | `network`, `target`, `transfer` | the calls that Raft makes, with the sending of snapshots |
//! | `server`, `hello` | incoming calls, and the answer that describes this replica |
//! | `codec`, `protocol` | conversion of the messages, and the check of protocol versions |
//! | `accept` | incoming connections, and their limit |
//! | `connection`, `tls` | one connection, and its TLS |
//! | `join`, `admit` | the two sides of joining a cluster |
//! | `members`, `reconcile`, `address` | membership changes, requested and automatic; the addresses of replicas |
//! | `instance`, `removal` | replica instances; detection that this replica was removed or replaced |
//! | `forward`, `outbox` | forwarding of writes to the leader, in batches |
//! | `read_index` | linearizable reads through the leader's commit index |
//! | `question`, `ask`, `answer` | questions to other replicas about what only they know, and the answers to theirs |
//! | `acknowledged`, `lost_entries` | the entries that replicas have acknowledged, and detection of those that are lost |
//! | `digests`, `divergence` | comparison of states, and the stop of a replica that differs |
//! | `machine` | the report of a replica about its disk space, clock and ports |
//! | `hand_over` | transfers of leadership for lack of disk space |
//! | `maintenance`, `cluster_metrics` | log and disk usage, and the metrics |
//! | `refusal_log` | rate-limited logging of refused calls |

pub(crate) mod accept;
pub(crate) mod acknowledged;
pub(crate) mod address;
pub(crate) mod admit;
pub(crate) mod answer;
pub(crate) mod ask;
pub(crate) mod calls;
pub(crate) mod cluster_metrics;
pub(crate) mod codec;
pub(crate) mod command;
pub(crate) mod connection;
pub(crate) mod core;
pub(crate) mod digests;
pub(crate) mod divergence;
pub(crate) mod forward;
pub(crate) mod hand_over;
pub(crate) mod hello;
pub(crate) mod instance;
pub(crate) mod join;
pub(crate) mod lost_entries;
pub(crate) mod machine;
pub(crate) mod maintenance;
pub(crate) mod members;
pub(crate) mod network;
pub(crate) mod outbox;
pub(crate) mod peers;
pub(crate) mod protocol;
pub(crate) mod question;
pub(crate) mod raft_node;
pub(crate) mod raft_settings;
pub(crate) mod read_index;
pub(crate) mod reconcile;
pub(crate) mod refusal_log;
pub(crate) mod removal;
pub(crate) mod server;
pub(crate) mod target;
#[cfg(test)]
mod tests;
pub(crate) mod tls;
pub(crate) mod transfer;
