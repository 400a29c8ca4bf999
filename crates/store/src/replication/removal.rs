//! Detection that this replica is no longer a member. Such a replica stops.

use std::sync::Arc;

use chancery_raft_proto::v1 as pb;
use tokio::sync::watch;

use crate::{
    failure::Failure,
    format::raft::StoredMembership,
    replication::{
        calls::Calls,
        instance::{Removal, is_added_again, is_newer},
        raft_node::RaftNode,
        raft_settings::SILENCE,
    },
};

/// The detection that this replica is no longer a member, or that another process has a copy of its directory.
pub(crate) struct RemovalDetector {
    node: Arc<RaftNode>,
    calls: Calls,
    /// The address at which other replicas reach this one; empty if it has none.
    address: String,
    /// See [`crate::replication::core::Core::process`].
    process: u64,
    failure: Failure,
    removed: watch::Sender<Option<Removal>>,
}

impl RemovalDetector {
    /// Creates the detector of a replica that is not known to be removed.
    pub(crate) fn new(
        node: Arc<RaftNode>,
        calls: Calls,
        address: String,
        process: u64,
        failure: Failure,
    ) -> Self {
        Self { node, calls, address, process, failure, removed: watch::Sender::new(None) }
    }

    /// Returns whether this replica is known to be no longer a member.
    pub(crate) fn is_removed(&self) -> bool {
        self.removed.borrow().is_some()
    }

    /// Waits until this replica is known to be no longer a member.
    pub(crate) async fn until_removed(&self) -> Removal {
        let mut removed = self.removed.subscribe();
        let removal = match removed.wait_for(Option::is_some).await {
            Ok(removal) => *removal,
            Err(_) => None,
        };
        match removal {
            Some(removal) => removal,
            // The replica has ended in another way.
            None => std::future::pending().await,
        }
    }

    /// Stops this replica if it is no longer a member. The caller runs this when the replica hears no
    /// leader, or when the membership has another address for it. A removed replica receives no calls, so
    /// it must ask the others, who know a later membership.
    pub(crate) async fn detect_removal(&self) {
        let membership = self.node.membership();
        if membership.log_id().is_none() || self.is_removed() {
            return;
        }
        let answers = self.calls.hello_members(&membership).await;
        let mut found = answers.iter().filter_map(|hello| self.removal_in(hello, &membership));
        let Some(first) = found.next() else { return };
        let removal = if first == Removal::Replaced || found.any(|it| it == Removal::Replaced) {
            Removal::Replaced
        } else {
            Removal::Removed
        };
        self.end_for(removal);
    }

    /// Stops this replica.
    fn end_for(&self, removal: Removal) {
        // First, so that a replica that reports its removal refuses writes.
        self.failure.set(format!("it {removal}"));
        self.removed.send_replace(Some(removal));
    }

    /// Stops this replica if another process with a copy of its data directory answers at `address`.
    /// Otherwise the two would repeatedly take the place in the membership from each other.
    pub(crate) async fn detect_copy(&self, address: &str) {
        let Some(hello) = self.calls.hello(address, SILENCE).await else { return };
        if hello.cluster_id[..] == self.calls.identity.cluster_id
            && (hello.replica_id, hello.instance) == (self.node.id(), self.calls.identity.instance)
            && hello.process > 0
            && hello.process != self.process
        {
            tracing::error!(
                address,
                "another process has a copy of the data directory of this replica"
            );
            self.end_for(Removal::Copied);
        }
    }

    /// Returns the removal that an answer proves; `None` if it does not prove one.
    fn removal_in(
        &self,
        hello: &pb::HelloResponse,
        membership: &StoredMembership,
    ) -> Option<Removal> {
        // A replica that has just joined first reads old entries, from a time when it was not a member or an
        // earlier instance was. Only the leader knows all later entries. A replica without an instance joined
        // before instances existed.
        let own = self.calls.identity.instance;
        let is_certain = match membership.get_node(&self.node.id()).map(|listed| listed.instance) {
            _ if own == 0 => true,
            Some(instance) if instance == own => true,
            Some(instance) if instance > 0 => false,
            Some(_) | None => hello.leader == hello.replica_id,
        };
        if !is_certain || !self.is_disowned_by(hello, membership) {
            return None;
        }
        Some(if hello.replaced_caller { Removal::Replaced } else { Removal::Removed })
    }

    /// Returns whether an answer has a newer membership that does not include this replica.
    pub(crate) fn is_disowned_by(
        &self,
        hello: &pb::HelloResponse,
        membership: &StoredMembership,
    ) -> bool {
        let listed = membership.get_node(&self.node.id());
        let is_another = |entry| is_added_again(self.calls.identity, &self.address, listed, entry);
        is_newer(hello.membership_id.as_ref(), membership)
            && (!hello.knows_caller || hello.caller.as_ref().is_some_and(is_another))
    }
}
