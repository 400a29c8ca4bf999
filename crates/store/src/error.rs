//! What can go wrong, by what the caller does next.

use std::{io, path::PathBuf, time::Duration};

use chancery_model::Revision;

use crate::{ConfigError, RequestId, TlsError, failure::way_back};

/// Why a replica can not be opened. Nothing in the directory has been changed by then, other than a
/// lock file.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The settings make no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is a file where the directory should be.
    #[error("{} is not a directory", path.display())]
    NotADirectory {
        /// The data directory.
        path: PathBuf,
    },
    /// The directory holds something that this program did not write.
    #[error(
        "{} is not empty and not a data directory: it holds {found:?} but no IDENTITY; give an empty \
         directory, or restore IDENTITY if this was a data directory",
        path.display()
    )]
    Foreign {
        /// The data directory.
        path: PathBuf,
        /// A file that is in it.
        found: String,
    },
    /// A restore was interrupted there.
    #[error(
        "{} holds a part of what is in a backup: restoring it was interrupted; do that again, or remove the \
         directory",
        path.display()
    )]
    Unrestored {
        /// The data directory.
        path: PathBuf,
    },
    /// There is nothing to read.
    #[error("{} holds no replica's data", path.display())]
    NoReplica {
        /// The data directory.
        path: PathBuf,
    },
    /// The state or the log of the replica differs from that of its cluster.
    #[error(
        "the replica in {} does not start, because its state or log differs from that of its cluster: {reason}; if \
         its data is known to be right after all, remove the file `DIVERGED`",
        path.display()
    )]
    Diverged {
        /// The data directory.
        path: PathBuf,
        /// The reason for which the replica stopped.
        reason: String,
    },
    /// A later release wrote it.
    #[error(
        "{} has format version {found}, this program knows only {supported}: run the release that \
         wrote it, or a newer one",
        path.display()
    )]
    NewerFormat {
        /// The data directory.
        path: PathBuf,
        /// Its format version.
        found: u32,
        /// The newest that is known.
        supported: u32,
    },
    /// It belongs to another replica.
    #[error(
        "{} belongs to replica {found}, but this is configured as replica {configured}",
        path.display()
    )]
    ReplicaId {
        /// The data directory.
        path: PathBuf,
        /// Whose it is.
        found: u64,
        /// Who asks.
        configured: u64,
    },
    /// Another process has it.
    #[error("{} is in use by {holder}", path.display())]
    InUse {
        /// The data directory.
        path: PathBuf,
        /// The process, as far as it is known.
        holder: String,
    },
    /// Something that was acknowledged is damaged or gone.
    #[error(
        "{} is damaged: {what}: {detail}. Nothing has been changed. A replica of a larger cluster \
         can rejoin it (--join) with an empty directory; a cluster of one has to be restored from a backup \
         (chancery restore)",
        path.display()
    )]
    Damaged {
        /// The data directory.
        path: PathBuf,
        /// Which part of it.
        what: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The file system refused.
    #[error("cannot {what} {}: {source}{}", path.display(), way_back(source))]
    Io {
        /// What was to be done.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// What the cluster says, or what is said of it, does not go together.
    #[error("the replica can not join the cluster: {0}")]
    Cluster(String),
    /// The replication port can not be listened on.
    #[error("cannot listen for other replicas on {address}: {source}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The certificates for other replicas can not be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// There is no room for a new cluster and what has to stay free.
    #[error(
        "the replica can not start: a cluster is not formed on a disk that is nearly full: {free} bytes are free \
         for {}, {needed} are needed, with those that stay free (store.free_bytes_min); make room, then start it \
         again",
        path.display()
    )]
    DiskFull {
        /// The data directory.
        path: PathBuf,
        /// Bytes free.
        free: u64,
        /// Bytes that have to be free.
        needed: u64,
    },
    /// Raft could not start, or stopped at once.
    #[error("the replica can not start: {0}")]
    Failed(String),
    /// The replica has not caught up in time.
    #[error("the replica has not caught up with the log within {0:?}")]
    Timeout(Duration),
}

/// Why a transaction has not been committed, or may not have been.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransactError {
    /// It is too large; it never reached the log.
    #[error("the transaction has {len} bytes, at most {max} are allowed")]
    TooLarge {
        /// Its encoded length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The disk is nearly full; it never reached the log. Reads go on, and so do writes once there is
    /// space again.
    #[error(
        "the disk of {} is nearly full: {free} bytes are free, {needed} are needed; writes are \
         refused until space is free again, which needs no restart; reads go on",
        path.display()
    )]
    DiskFull {
        /// The data directory.
        path: PathBuf,
        /// Bytes free.
        free: u64,
        /// Bytes that have to be free.
        needed: u64,
    },
    /// The disk of the leader is nearly full; it never reached the log.
    #[error("replica {leader}, which leads, refuses it: {reason}")]
    LeaderDiskFull {
        /// The leader.
        leader: u64,
        /// Its words.
        reason: String,
    },
    /// Nobody leads, or nobody that can be reached; it never reached the log.
    #[error(
        "the cluster has no leader that can be reached, perhaps because most of its voters can not; \
         nothing has been written"
    )]
    NoLeader,
    /// It was not committed in time. It may be later.
    #[error("the transaction was not committed within {0:?}; it may still be")]
    Timeout(Duration),
    /// The name of its request is that of another write.
    #[error(
        "the request id {id} is that of another write, which became revision {revision}; nothing has been \
         written: every write needs an id of its own, and keeps it when it is sent again"
    )]
    Reused {
        /// The name.
        id: RequestId,
        /// Of the other write.
        revision: Revision,
    },
    /// An earlier attempt may have been written, but so many revisions have come since that the history no longer
    /// shows it. This attempt was not written.
    #[error(
        "the outcome of the write is unknown: an attempt was not answered, and more than {} revisions have come since \
         then, so that the history no longer shows whether it was written; this retry was not written; read the \
         resources, and if they lack the change, send it again with a new request id",
        crate::HISTORY_MAX
    )]
    Forgotten,
    /// This replica is so far behind the leader that a retry could not be told from a new write. It was not sent.
    #[error(
        "this replica is catching up with the leader and was not ready within {0:?}; nothing has been written; send \
         the write to another replica, or retry it later"
    )]
    Behind(Duration),
    /// The replica has stopped writing. If the transaction was on its way, its outcome is unknown.
    #[error("the replica has failed and takes no writes: {0}")]
    Failed(String),
    /// The replica has been shut down.
    #[error("the replica has been shut down")]
    ShutDown,
}

/// Why a read can not be answered with what has been committed by now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Nobody leads, or the leader does not reach most voters.
    #[error(
        "the cluster has no leader that most of its voters follow, so that it can not be known whether \
         what this replica has is current"
    )]
    NoLeader,
    /// The state or the log of this replica differs from that of the cluster.
    #[error("the replica has failed and serves no reads: {0}")]
    Diverged(String),
    /// This replica is behind, and has not caught up in time.
    #[error("this replica has not caught up with the leader within {0:?}")]
    Behind(Duration),
}

/// Why the membership has not been changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// It can not be.
    #[error("{0}")]
    Refused(String),
    /// Nobody leads, or nobody that can be reached.
    #[error("the cluster has no leader that can be reached: the membership can not be changed")]
    NoLeader,
    /// It was not done in time; it may still be.
    #[error("the membership was not changed within {0:?}; it may still be")]
    Timeout(Duration),
}

/// Why a shutdown was not clean. What was acknowledged is durable all the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the replica did not shut down cleanly: {0}")]
pub struct ShutdownError(pub(crate) String);
