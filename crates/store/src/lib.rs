//! The replicated store: openraft over RocksDB. No other crate names either.
//!
//! A [`Replica`] accepts transactions, appends them to a replicated log, applies them in log order,
//! and publishes each new state. A single replica is a cluster of one and uses the same code.
//!
//! # Invariants
//! - When [`Replica::transact`] returns, the transaction is durable: its log entry is synced. One
//!   sync serves all transactions that arrived during the previous sync.
//! - The published state never moves backwards. A caller whose transaction has returned sees it in
//!   [`Replica::state`].
//! - The replica refuses a damaged directory and does not change it. An unsynced tail of the
//!   write-ahead log was never acknowledged, so its loss is not damage.
//! - After a failed write, the replica accepts no more writes and reports the reason. Reads and
//!   streams continue.
//!
//! # Map
//! The crate has three layers. A lower layer never uses an upper one; `cargo xtask verify` checks this.
//! - `format`: the bytes of records, entries and files, and their conversions. No I/O.
//! - `disk`: the Raft log, the state machine, snapshots, recovery, backups.
//! - `replication`: the calls between replicas, membership, forwarded writes, linearizable reads.
//!
//! Above them, `replica` is the handle, and `open` starts a replica. Below them, `config`, `error`,
//! `failure`, `metrics` and `status` are types that all layers share.
//!
//! `docs/adr/0002-durability.md` explains durability and the rejected alternatives.

mod config;
mod disk;
mod error;
#[cfg(test)]
mod failpoint;
mod failure;
mod format;
mod metrics;
mod open;
mod open_progress;
mod replica;
mod replication;
mod status;

pub use chancery_tls::{TlsError, TlsFile};
pub use config::{Config, ConfigError, REPLICA_ID_MAX, TlsConfig};
pub use disk::{
    apply_times::ApplyTime,
    backup::{Backup, BackupCheck, BackupError, BackupInfo, BackupSource},
    database::table_files_max,
    part::{Differing, Part, PartChange, PartKey},
    past::{Past, PastError, ResourceChange, Selection},
    recent_changes::ScopeChange,
    restore::{RestoreError, RestoreOptions, Restored, restore},
};
pub use error::{ChangeError, OpenError, ReadError, ShutdownError, TransactError};
pub use format::{
    content::Retention,
    history::{HISTORY_MAX, HistoryEntry},
    history_chain::HistoryHash,
    request_id::{RequestId, RequestIdError},
    rules_codec::{rules_from_proto, rules_to_proto},
};
pub use metrics::METRICS;
pub use open_progress::{OpenProgress, OpenStage};
pub use replica::{
    CaughtUp, Replica,
    cluster::{MachineReport, Member, MemberChange, PortReport, Report, Role},
};
pub use replication::{
    address::check_address,
    instance::Removal,
    question::{AnswerPage, Answerer, Answers, AskLimits, Asked, NoAnswer, Question, Unanswered},
};
pub use status::{ClusterId, OwnPort, StateDigest, Status};
