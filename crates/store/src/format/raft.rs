//! The types that parameterize openraft. Only this crate uses them.
//!
//! None of them is stored or sent in openraft's layout. [`crate::format::codec`] converts each to a message
//! of `chancery.raft.v1`, so that a new openraft cannot change the data on disk.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use chancery_model::{Outcome, Revision};
use chancery_raft_proto::v1 as pb;
use openraft::alias::{
    CommittedLeaderIdOf, EntryOf, LogIdOf, SnapshotMetaOf, StoredMembershipOf, VoteOf,
};

use crate::format::prepared::{Preparation, Prepared};

openraft::declare_raft_types!(
    /// Standard Raft: one leader per term.
    pub(crate) Types:
        D = EncodedCommand,
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

/// An encoded `chancery.raft.v1.Command`. The log treats it as opaque bytes; only preparing or applying an entry
/// decodes it.
#[derive(Clone)]
pub(crate) struct EncodedCommand {
    pub(crate) bytes: Bytes,
    /// The form in which the log stores the command, if it is compressed.
    pub(crate) packed: Option<Arc<pb::PackedCommand>>,
    /// The work that was done before the command is applied, in memory only.
    preparation: Option<Arc<Preparation>>,
}

impl EncodedCommand {
    /// Creates a command that is not prepared.
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self { bytes, packed: None, preparation: None }
    }

    /// Creates a command that is prepared.
    pub(crate) fn with(bytes: Bytes, preparation: Arc<Preparation>) -> Self {
        Self { bytes, packed: None, preparation: Some(preparation) }
    }

    /// Adds the form in which the log stores the command.
    pub(crate) fn packed_as(self, packed: Option<pb::PackedCommand>) -> Self {
        Self { packed: packed.map(Arc::new), ..self }
    }

    /// Takes what was prepared. Waits while the preparation is in progress, so it must be called on a thread that
    /// may block.
    pub(crate) fn take_prepared(&self) -> Option<Prepared> {
        self.preparation.as_ref()?.take()
    }

    /// Takes what was prepared, to apply the command early. Waits like [`EncodedCommand::take_prepared`]. The command
    /// counts as prepared until `take_prepared` is called.
    pub(crate) fn lend_prepared(&self) -> Option<Prepared> {
        self.preparation.as_ref()?.lend()
    }

    /// Returns whether the command is prepared or in preparation, and [`EncodedCommand::take_prepared`] has not taken
    /// the result.
    pub(crate) fn is_prepared(&self) -> bool {
        self.preparation.as_ref().is_some_and(|preparation| preparation.is_held())
    }
}

impl PartialEq for EncodedCommand {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}
impl Eq for EncodedCommand {}

impl fmt::Debug for EncodedCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EncodedCommand({} bytes)", self.bytes.len())
    }
}

impl fmt::Display for EncodedCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The result of applying an entry, for the proposer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Response {
    /// The entry was not a transaction.
    Done,
    /// The outcome of the transaction.
    Outcome(Outcome),
    /// Another transaction, of this revision, has the same request ID. Nothing was changed.
    Reused(Revision),
    /// The transaction may repeat a forgotten one, whose outcome is unknown. Nothing was changed.
    Forgotten,
}

impl fmt::Display for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Another replica, as the membership describes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Peer {
    /// The address of its replication port; empty in a cluster of one.
    pub(crate) address: String,
    /// Whether the replica stays a learner. Otherwise it becomes a voter once it has caught up.
    pub(crate) learner: bool,
    /// The instance of the replica, see [`crate::format::identity::Identity::instance`]; 0 if unknown.
    pub(crate) instance: u64,
}

/// Builds a log ID from its parts.
pub(crate) fn log_id(term: u64, index: u64) -> LogId {
    LogId { leader_id: CommittedLeaderIdOf::<Types>::from(term), index }
}

/// Returns the term of a log ID.
pub(crate) fn term_of(id: &LogId) -> u64 {
    *id.leader_id
}
