//! The errors of the store, by what the caller does next.

use std::{io, path::PathBuf, time::Duration};

use chancery_model::Revision;
use chancery_tls::TlsError;

use crate::{ConfigError, RequestId, failure::way_back};

/// The reason why a replica cannot be opened. Nothing in the directory has changed, except the lock
/// file.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The settings are invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The path of the data directory is a file.
    #[error("{} is not a directory", path.display())]
    NotADirectory {
        /// The data directory.
        path: PathBuf,
    },
    /// The directory contains a file that this program did not write.
    #[error(
        "{} is not empty and not a data directory: it contains {found:?} but no IDENTITY; use an \
         empty directory, or restore IDENTITY if this was a data directory",
        path.display()
    )]
    Foreign {
        /// The data directory.
        path: PathBuf,
        /// A file in the directory.
        found: String,
    },
    /// A restore into the directory was interrupted.
    #[error(
        "{} contains an incomplete restore of a backup: the restore was interrupted; repeat it, or \
         remove the directory",
        path.display()
    )]
    Unrestored {
        /// The data directory.
        path: PathBuf,
    },
    /// The directory contains no replica.
    #[error("{} contains no data of a replica", path.display())]
    NoReplica {
        /// The data directory.
        path: PathBuf,
    },
    /// The state or the log of the replica differs from that of its cluster.
    #[error(
        "cannot start the replica in {}: its state or log differs from that of its cluster: \
         {reason}; empty the directory and let the replica join again, or remove the file \
         `DIVERGED` if the data is known to be right",
        path.display()
    )]
    Diverged {
        /// The data directory.
        path: PathBuf,
        /// The reason why the replica stopped.
        reason: String,
    },
    /// A later release wrote the directory.
    #[error(
        "{} has format version {found}, but this program supports at most version {supported}; run \
         the release that wrote it, or a newer one",
        path.display()
    )]
    NewerFormat {
        /// The data directory.
        path: PathBuf,
        /// The format version of the directory.
        found: u32,
        /// The newest format version that this program supports.
        supported: u32,
    },
    /// The directory belongs to another replica.
    #[error(
        "{} belongs to replica {found}, but this replica is configured as {configured}; correct \
         the replica ID or the data directory",
        path.display()
    )]
    ReplicaId {
        /// The data directory.
        path: PathBuf,
        /// The ID of the replica that owns the directory.
        found: u64,
        /// The configured replica ID.
        configured: u64,
    },
    /// Another process uses the directory.
    #[error("{} is in use by {holder}; stop that process, or use another directory", path.display())]
    InUse {
        /// The data directory.
        path: PathBuf,
        /// The process, if its ID is known.
        holder: String,
    },
    /// Acknowledged data is damaged or missing.
    #[error(
        "{} is damaged: {what}: {detail}; nothing was changed; a replica of a larger cluster can \
         rejoin it with an empty directory (--join), a cluster of one must be restored from a \
         backup (chancery restore)",
        path.display()
    )]
    Damaged {
        /// The data directory.
        path: PathBuf,
        /// The damaged part.
        what: String,
        /// The kind of damage.
        detail: String,
    },
    /// The file system refused an operation.
    #[error("cannot {what} {}: {source}{}", path.display(), way_back(source))]
    Io {
        /// The operation, as an infinitive.
        what: &'static str,
        /// The path that the operation concerns.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The cluster refused the replica, or its answers contradict the configuration.
    #[error("cannot join the cluster: {0}")]
    Cluster(String),
    /// The replica cannot listen on the replication port.
    #[error("cannot listen for other replicas on {address}: {source}")]
    Listen {
        /// The configured address of the port.
        address: std::net::SocketAddr,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The certificates for other replicas cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The disk has no space for a new cluster and the reserve.
    #[error(
        "cannot start the replica: the disk of {} is too full for a new cluster: {free} bytes are \
         free, {needed} are needed, including the reserve (store.free_bytes_min); free disk space, \
         then start the replica again",
        path.display()
    )]
    DiskFull {
        /// The data directory.
        path: PathBuf,
        /// The number of free bytes.
        free: u64,
        /// The number of bytes that must be free.
        needed: u64,
    },
    /// Raft did not start, or stopped immediately.
    #[error("cannot start the replica: {0}")]
    Failed(String),
    /// The replica did not catch up in time.
    #[error("the replica has not caught up with the log within {0:?}")]
    Timeout(Duration),
}

/// The reason why a transaction was not committed, or why its outcome is unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransactError {
    /// The transaction is too large. It did not reach the log.
    #[error("the transaction has {len} bytes, at most {max} are allowed")]
    TooLarge {
        /// The encoded length of the transaction, in bytes.
        len: usize,
        /// The maximum, in bytes.
        max: usize,
    },
    /// The disk is nearly full. The transaction did not reach the log. Reads continue; writes
    /// resume when there is space again.
    #[error(
        "the disk of {} is nearly full: {free} bytes are free, {needed} are needed; the replica \
         refuses writes until there is space, which needs no restart; reads continue",
        path.display()
    )]
    DiskFull {
        /// The data directory.
        path: PathBuf,
        /// The number of free bytes.
        free: u64,
        /// The number of bytes that must be free.
        needed: u64,
    },
    /// The disk of the leader is nearly full. The transaction did not reach the log.
    #[error("the leader, replica {leader}, refused the write: {reason}")]
    LeaderDiskFull {
        /// The ID of the leader.
        leader: u64,
        /// The error text of the leader.
        reason: String,
    },
    /// No leader can be reached. The transaction did not reach the log.
    #[error(
        "the cluster has no leader that this replica can reach, perhaps because most voters are \
         unreachable; nothing has been written"
    )]
    NoLeader,
    /// The transaction has secrets that cannot be sealed. It did not reach the log.
    #[error("{0}; nothing has been written")]
    Secrets(String),
    /// The transaction was not committed in time. It may be committed later.
    #[error("the transaction was not committed within {0:?}; it may still be committed later")]
    Timeout(Duration),
    /// The request ID belongs to another write.
    #[error(
        "the request ID {id} belongs to another write, which became revision {revision}; nothing \
         has been written; use a new ID for each write, and the same ID only to retry that write"
    )]
    Reused {
        /// The request ID.
        id: RequestId,
        /// The revision of the other write.
        revision: Revision,
    },
    /// An earlier attempt may have been written, but the history no longer reaches back to it. This
    /// attempt was not written.
    #[error(
        "the outcome of the write is unknown: an earlier attempt was not answered, and the history \
         of {} revisions no longer shows whether it was written; this retry was not written; read \
         the resources, and if they lack the change, send it again with a new request ID",
        crate::HISTORY_MAX
    )]
    Forgotten,
    /// This replica is far behind the leader and cannot distinguish a retry from a new write. It
    /// did not send the write.
    #[error(
        "this replica is catching up with the leader and was not ready within {0:?}; nothing has \
         been written; send the write to another replica, or retry it later"
    )]
    Behind(Duration),
    /// The writes in flight left no memory for this write in time ([`Config::in_flight_bytes_max`](crate::Config)). It
    /// was not sent.
    #[error(
        "this replica has too many writes in flight, and had no memory for this one within {0:?}; nothing has been \
         written; retry it later"
    )]
    Busy(Duration),
    /// The replica had stopped writing before it sent the transaction to a log.
    #[error("nothing has been written: the replica has failed and accepts no writes: {0}")]
    NotSent(String),
    /// The replica has stopped writing while the transaction was in flight. Its outcome is unknown.
    #[error("the replica has failed and accepts no writes: {0}")]
    Failed(String),
    /// The replica has been shut down. It did not send the write.
    #[error("nothing has been written: the replica has been shut down")]
    ShutDown,
}

/// The reason why a linearizable read cannot be answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The cluster has no leader, or the leader does not reach most voters.
    #[error(
        "the cluster has no leader that most of its voters follow, so this replica cannot know \
         whether its state is current"
    )]
    NoLeader,
    /// The state or the log of this replica differs from that of the cluster.
    #[error("the replica has failed and serves no reads: {0}")]
    Diverged(String),
    /// This replica is behind the leader and did not catch up in time.
    #[error("this replica has not caught up with the leader within {0:?}")]
    Behind(Duration),
}

/// The reason why the membership was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The change is not possible.
    #[error("{0}")]
    Refused(String),
    /// No leader can be reached.
    #[error("cannot change the membership: the cluster has no leader that this replica can reach")]
    NoLeader,
    /// The change did not finish in time. It may still finish.
    #[error("the membership was not changed within {0:?}; it may still be changed later")]
    Timeout(Duration),
}

/// The reason why a shutdown was not clean. Acknowledged writes are durable anyway.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the replica did not shut down cleanly: {0}")]
pub struct ShutdownError(pub(crate) String);
