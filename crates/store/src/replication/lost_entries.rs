//! Detection of log entries that this replica has acknowledged and lacks, because its data directory is an
//! older copy.
//!
//! The replicas to which it acknowledged them know ([`crate::replication::acknowledged`]).

use std::sync::Arc;

use crate::{
    disk::{log::WeakLogStore, published::Published},
    replication::{calls::Calls, divergence::Divergence, raft_node::RaftNode},
};

/// Compares the log of this replica with what other replicas require of it.
pub(crate) struct LostEntries {
    pub(crate) log: WeakLogStore,
    pub(crate) published: Published,
    pub(crate) node: Arc<RaftNode>,
    pub(crate) calls: Calls,
    pub(crate) divergence: Divergence,
}

impl LostEntries {
    /// Returns the index of the last entry that this replica has in its log or has applied; `None`
    /// if Raft has stopped.
    pub(crate) fn last_held(&self) -> Option<Option<u64>> {
        let last = self.log.upgrade()?.last_or_purged_index();
        Some(last.max(Some(self.published.applied())))
    }

    /// Asks all members whether this replica lacks committed entries that it acknowledged, and stops this
    /// replica if so. Runs before the replica may vote, because a leader of an earlier term may be the only
    /// replica that knows.
    pub(crate) async fn ask_members(&self) {
        // When Raft answers, its metrics have the membership.
        if self.node.raft.with_raft_state(|_| ()).await.is_err() {
            return;
        }
        for hello in self.calls.hello_members(&self.node.membership()).await {
            let required = hello.acknowledged_committed;
            if self.last_held().is_some_and(|last| last < required) {
                return self.stop(required, hello.replica_id);
            }
        }
    }

    /// Stops this replica permanently, because it lacks an entry that it acknowledged to another replica.
    pub(crate) fn stop(&self, index: Option<u64>, to: u64) {
        let index = index.unwrap_or_default();
        self.divergence.stop(&format!(
            "it lacks log entry {index}, which it acknowledged to replica {to}: its data directory is an \
             older copy"
        ));
    }
}
