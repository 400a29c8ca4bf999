//! The replicated store: openraft over RocksDB. The only crate that names either.
//!
//! A [`Replica`] takes transactions, puts them into a replicated log, applies them in its order, and
//! publishes each new state. One replica alone is a cluster of one: the same code path.
//!
//! # Invariants
//! - A transaction is durable when [`Replica::transact`] returns: its log entry has been synced (design
//!   4.1). One sync serves all the transactions that came while the one before it ran.
//! - The published state only ever moves forward, and a caller whose transaction has returned sees it in
//!   [`Replica::state`].
//! - A damaged directory is refused, and left as it is. A tail of the write-ahead log that was never
//!   synced, and so never acknowledged, is no damage.
//! - When a write fails, the replica takes no more of them and says why; reads and serving go on.
//!
//! # Map
//! `replica` is the handle, `core` what it shares with the rest; `open` starts it, `parts` is what it
//! opens; `cluster` is the way to other replicas; `log` and `flusher` are the Raft log and the thread that writes and syncs it;
//! `machine` applies entries to the `image` and stores it; `recovery` and `loader` read all of it back;
//! `backup` keeps a state in a file, `restore` makes a directory of one; both and `snapshot` are made of
//! `frames`; `digest` and `held` find replicas that differ;
//! `directory`, `identity` and `high_water` are the files beside the database; `record`, `codec` and
//! `raft_codec` are the formats, whose messages are in `/proto/chancery/raft/v1`.
//!
//! Durability, and what was rejected: `docs/adr/0002-durability.md`.

mod backup;
mod cluster;
mod codec;
mod config;
#[cfg(test)]
mod conformance;
mod core;
mod database;
mod digest;
mod directory;
#[cfg(test)]
mod durability;
mod error;
mod failure;
mod flusher;
mod frames;
mod held;
mod high_water;
mod history;
mod identity;
mod image;
#[cfg(test)]
mod joining;
mod loader;
mod log;
mod log_size;
mod machine;
mod maintenance;
mod metrics;
mod open;
mod parts;
mod raft;
mod raft_codec;
mod recent;
mod record;
mod recovery;
mod replica;
mod restore;
mod snapshot;
mod space;
mod status;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod valve;
mod wal;

pub use backup::{Backup, BackupCheck, BackupError, BackupInfo, BackupSource};
pub use cluster::{
    handle::{Member, MemberChange, Report, Role},
    lives::Removal,
    members::{REPLICA_ID_MAX, check_address},
    tls::{TlsConfig, TlsError},
};
pub use config::{Config, ConfigError};
pub use error::{ChangeError, OpenError, ReadError, ShutdownError, TransactError};
pub use history::{HISTORY_MAX, HistoryEntry, RequestId, RequestIdError};
pub use metrics::METRICS;
pub use replica::{CaughtUp, Replica};
pub use restore::{RestoreError, RestoreOptions, Restored, restore};
pub use status::{ClusterId, StateDigest, Status};
