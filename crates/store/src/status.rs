//! The status of a replica.

use std::{fmt, net::SocketAddr};

use chancery_model::{Incarnation, Revision};
use chancery_tls::PortTls;

/// The ID of a cluster: 16 random bytes, chosen when the cluster was formed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClusterId(pub [u8; 16]);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The digest of the state after a position in the log. Equal on all replicas that have applied that position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StateDigest {
    /// The index of the last applied entry.
    pub index: u64,
    /// The digest of the state at that entry.
    pub digest: u64,
}

/// A port of a replica, other than the replication port.
#[derive(Debug, Clone)]
pub struct OwnPort {
    /// The name of its section in the configuration, such as `xds`.
    pub name: &'static str,
    /// The address on which it listens.
    pub address: SocketAddr,
    /// Its certificates; `None` without TLS.
    pub tls: Option<PortTls>,
}

/// The status of a replica. Positions in the log are indexes of entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The ID of this replica.
    pub replica_id: u64,
    /// The ID of its cluster.
    pub cluster_id: ClusterId,
    /// The incarnation of the cluster, which versions carry.
    pub incarnation: Incarnation,
    /// The newest revision that is applied on this replica.
    pub revision: Revision,
    /// The number of resources in the state.
    pub n_resources: u64,
    /// The Raft term.
    pub term: u64,
    /// The ID of the leader, while this replica receives its messages. If this replica leads, its
    /// own ID while most voters answer.
    pub leader: Option<u64>,
    /// The last entry in the log.
    pub last_log_index: Option<u64>,
    /// The last entry that this replica knows to be committed.
    pub committed: Option<u64>,
    /// The last entry that is applied on this replica.
    pub applied: Option<u64>,
    /// The last entry in the newest snapshot.
    pub snapshot: Option<u64>,
    /// The last entry that was purged from the log.
    pub purged: Option<u64>,
    /// The IDs of the voters, in order.
    pub voters: Vec<u64>,
    /// The IDs of the learners, in order.
    pub learners: Vec<u64>,
    /// The size of the entries in the log, in bytes.
    pub log_bytes: u64,
    /// The size of the data directory, in bytes.
    pub disk_bytes: u64,
    /// The free space of its file system in bytes, if known.
    pub free_bytes: Option<u64>,
    /// An error text if the free space is too small for any write. The replica then refuses writes
    /// when it leads.
    pub full: Option<String>,
    /// The digests of the newest applied positions, ordered by index.
    pub digests: Vec<StateDigest>,
    /// The number of syncs of the write-ahead log since the replica was opened.
    pub fsyncs: u64,
    /// The reason why the replica no longer accepts writes; `None` if it does.
    pub failure: Option<String>,
}
