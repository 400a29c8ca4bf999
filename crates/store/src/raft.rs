//! The types that openraft works with here. Only this crate knows them.
//!
//! None of them is ever stored or sent as openraft lays it out: [`crate::codec`] turns each into a
//! message of `chancery.raft.v1`, so that a new openraft can not change what is on disk.

use std::fmt;

use bytes::Bytes;
use chancery_model::{Outcome, Revision};
use openraft::alias::{
    CommittedLeaderIdOf, EntryOf, LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf, VoteOf,
};

use crate::snapshot::SnapshotData;

openraft::declare_raft_types!(
    /// Standard Raft: one leader per term.
    pub(crate) Types:
        D = Command,
        R = Response,
        Node = Peer,
        LeaderId = openraft::impls::leader_id_std::LeaderId<Self::Term, Self::NodeId>,
);

pub(crate) type Entry = EntryOf<Types>;
pub(crate) type LogId = LogIdOf<Types>;
pub(crate) type Vote = VoteOf<Types>;
pub(crate) type StoredMembership = StoredMembershipOf<Types>;
pub(crate) type Membership = openraft::Membership<u64, Peer>;
pub(crate) type SnapshotMeta = SnapshotMetaOf<Types>;
pub(crate) type Snapshot = SnapshotOf<Types, SnapshotData>;
pub(crate) type Raft = openraft::Raft<Types, crate::machine::Machine>;

/// An encoded `chancery.raft.v1.Command`. The log never looks inside; only applying it does.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Command(pub(crate) Bytes);

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Command({} bytes)", self.0.len())
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What applying an entry gives to who proposed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Response {
    /// The entry was no transaction.
    Done,
    /// The transaction's outcome.
    Outcome(Outcome),
    /// Another transaction has the name of its request, that of this revision: nothing was changed.
    Reused(Revision),
    /// It may repeat a transaction that is forgotten: nothing was changed, and whether it took effect
    /// before is not known.
    Forgotten,
}

impl fmt::Display for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Another replica, as the membership knows it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Peer {
    /// Where its replication port is; empty in a cluster of one.
    pub(crate) address: String,
    /// It is to stay a learner; otherwise it becomes a voter once it has caught up.
    pub(crate) learner: bool,
    /// Which of the replicas that have had its number, see [`crate::identity::Identity::instance`]; 0 if
    /// not known.
    pub(crate) instance: u64,
}

/// A log id by its parts.
pub(crate) fn log_id(term: u64, index: u64) -> LogId {
    LogId { leader_id: CommittedLeaderIdOf::<Types>::from(term), index }
}

/// The term of a log id.
pub(crate) fn term_of(id: &LogId) -> u64 {
    *id.leader_id
}
