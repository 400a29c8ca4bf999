//! What a replica says of itself.

use std::fmt;

use chancery_model::{Incarnation, Revision};

use crate::high_water::hex;

/// Names a cluster: 16 random bytes, chosen when it was formed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClusterId(pub [u8; 16]);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
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

/// How a replica is doing. Positions in the log are indexes of entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// This replica.
    pub replica_id: u64,
    /// Its cluster.
    pub cluster_id: ClusterId,
    /// The life of the cluster that versions carry.
    pub incarnation: Incarnation,
    /// The newest revision that has been applied here.
    pub revision: Revision,
    /// Resources in the state.
    pub n_resources: u64,
    /// The Raft term.
    pub term: u64,
    /// The replica that leads, if it is heard; this one, if most voters answer it.
    pub leader: Option<u64>,
    /// The last entry in the log.
    pub last_log_index: Option<u64>,
    /// The last entry that is known here to be committed.
    pub committed: Option<u64>,
    /// The last entry that has been applied here.
    pub applied: Option<u64>,
    /// The last entry in the newest snapshot.
    pub snapshot: Option<u64>,
    /// The last entry that has been purged from the log.
    pub purged: Option<u64>,
    /// Replicas that vote, ordered.
    pub voters: Vec<u64>,
    /// Replicas that do not, ordered.
    pub learners: Vec<u64>,
    /// Bytes of entries in the log.
    pub log_bytes: u64,
    /// Bytes of the data directory.
    pub disk_bytes: u64,
    /// Bytes free on its file system, if that is known.
    pub free_bytes: Option<u64>,
    /// That those are too few for any write, in words: this replica refuses them when it leads.
    pub full: Option<String>,
    /// The digests of the newest applied positions, ordered by index.
    pub digests: Vec<StateDigest>,
    /// Syncs of the write-ahead log since the replica was opened.
    pub fsyncs: u64,
    /// Why the replica takes no writes any more; `None` if it does.
    pub failure: Option<String>,
}
