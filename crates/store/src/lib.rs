//! The replicated store: openraft over RocksDB. No other crate names either.
//!
//! A [`Replica`] accepts transactions, appends them to a replicated log, applies them in log order,
//! and publishes each new state. A single replica is a cluster of one and uses the same code.
//!
//! # Invariants
//! - When [`Replica::transact`] returns, the transaction is durable: its log entry is synced
//!   (design 4.1). One sync serves all transactions that arrived during the previous sync.
//! - The published state never moves backwards. A caller whose transaction has returned sees it in
//!   [`Replica::state`].
//! - The replica refuses a damaged directory and does not change it. An unsynced tail of the
//!   write-ahead log was never acknowledged, so its loss is not damage.
//! - After a failed write, the replica accepts no more writes and reports the reason. Reads and
//!   streams continue.
//!
//! # Map
//! - `replica` is the handle, `core` the data that it shares with the other modules. `open` starts
//!   a replica from `parts`.
//! - `cluster` connects to other replicas.
//! - `log` is the Raft log; `flusher` is the thread that writes and syncs the log.
//! - `machine` applies entries to the `image` and stores the image. `recovery` and `loader` read
//!   log and image back.
//! - `backup` writes a state to a file, `restore` makes a directory from the file. Both, and
//!   `snapshot`, consist of `frames`.
//! - `digest` and `held` detect replicas that differ.
//! - `directory`, `identity` and `high_water` are the files beside the database.
//! - `record`, `codec` and `raft_codec` are the formats. Their messages are in
//!   `/proto/chancery/raft/v1`.
//!
//! `docs/adr/0002-durability.md` explains durability and the rejected alternatives.

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
mod entry_check;
mod error;
#[cfg(test)]
mod failpoint;
mod failure;
mod flusher;
mod frames;
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
mod wal;

pub use backup::{Backup, BackupCheck, BackupError, BackupInfo, BackupSource};
pub use cluster::{
    handle::{Member, MemberChange, Report, Role},
    instance::Removal,
    members::{REPLICA_ID_MAX, check_address},
    tls::{TlsConfig, TlsError, TlsFile},
};
pub use config::{Config, ConfigError};
pub use error::{ChangeError, OpenError, ReadError, ShutdownError, TransactError};
pub use history::{HISTORY_MAX, HistoryEntry, RequestId, RequestIdError};
pub use metrics::METRICS;
pub use replica::{CaughtUp, Replica};
pub use restore::{RestoreError, RestoreOptions, Restored, restore};
pub use status::{ClusterId, StateDigest, Status};
