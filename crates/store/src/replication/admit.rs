//! Admission of replicas without data: the leader's side of a join (`join` has the other side).
//!
//! The leader admits a replica as a learner. If the replica was a member before, its data is lost. The leader
//! then removes the old member first, so that no majority counts on its data. The leader also sends its own
//! vote, so that the new replica cannot vote in a term in which the old one may have voted.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use chancery_raft_proto::v1 as pb;
use openraft::{ChangeMembers, async_runtime::WatchReceiver};

use crate::{
    format::{identity::Identity, raft::Peer, raft_codec::vote_to_proto},
    replication::{
        members::{Members, change_error},
        raft_node::{Leader, RaftNode},
        raft_settings::SILENCE,
    },
};

/// The reason why a replica cannot join now.
enum JoinRefusal {
    NotLeader,
    Refused(String),
    Later(String),
}

/// Admits replicas without data, as the leader.
pub(crate) struct Admitter {
    pub(crate) node: Arc<RaftNode>,
    pub(crate) identity: Identity,
    pub(crate) members: Arc<Members>,
}

impl Admitter {
    /// Admits a replica without data, or returns the reason for the refusal.
    pub(crate) async fn answer(&self, peer: pb::Peer) -> pb::JoinResponse {
        use pb::join_response::Result;
        let (result, leader_address) = match self.admit_replica(&peer).await {
            Ok(()) => (
                Result::Joined(pb::Joined {
                    cluster_id: self.identity.cluster_id.to_vec().into(),
                    incarnation: self.identity.incarnation.0,
                    vote: Some(vote_to_proto(&self.node.raft.metrics().borrow_watched().vote)),
                }),
                String::new(),
            ),
            Err(JoinRefusal::Refused(text)) => (Result::Refused(text), String::new()),
            Err(JoinRefusal::Later(text)) => (Result::Later(text), String::new()),
            Err(JoinRefusal::NotLeader) => match self.node.leader() {
                Some(Leader::There { id, address }) => {
                    (Result::NotLeader(pb::NotLeader { leader: id }), address.to_string())
                }
                _ => (Result::NotLeader(pb::NotLeader { leader: 0 }), String::new()),
            },
        };
        pb::JoinResponse { result: Some(result), leader_address }
    }

    async fn admit_replica(&self, peer: &pb::Peer) -> Result<(), JoinRefusal> {
        if !self.node.leads() {
            return Err(JoinRefusal::NotLeader);
        }
        if let Some(refusal) = self.members.refuse_peer(peer) {
            return Err(JoinRefusal::Refused(refusal));
        }
        let id = peer.replica_id;
        let (address, learner) = (peer.address.clone(), peer.learner);
        let new = Peer { address, learner, instance: peer.instance };
        let mut change = ChangeMembers::AddNodes(BTreeMap::from([(id, new.clone())]));
        if let Some(known) = self.node.peer(id) {
            let is_new = known.address == new.address && self.node.silence(id).is_none();
            let voters: BTreeSet<u64> = self.node.membership().voter_ids().collect();
            if is_new && !voters.contains(&id) && known.instance == new.instance {
                return Ok(());
            }
            if is_new && !voters.contains(&id) && known.instance == 0 {
                // The member was added before it started, when its instance was unknown.
                let known = Peer { instance: new.instance, ..known };
                change = ChangeMembers::SetNodes(BTreeMap::from([(id, known)]));
            } else {
                self.remove_lost_member(id, &voters).await?;
            }
        }
        self.change_now(change).await?;
        tracing::info!(replica = id, address = peer.address, "a replica has joined as a learner");
        Ok(())
    }

    /// Removes a member that has lost its data.
    async fn remove_lost_member(&self, id: u64, voters: &BTreeSet<u64>) -> Result<(), JoinRefusal> {
        let leads_for = self.node.leads_for().ok_or(JoinRefusal::NotLeader)?;
        if self.node.silence(id).unwrap_or(leads_for) < SILENCE {
            return Err(JoinRefusal::Later(format!(
                "replica {id} is a member already: if it lost its data, the leader admits it again after \
                 {SILENCE:?} of silence; if it is a different replica, give this one an unused ID"
            )));
        }
        let change = if voters.contains(&id) {
            if let Some(refusal) = self.members.refuse_loss_of(id, voters) {
                return Err(JoinRefusal::Later(refusal));
            }
            ChangeMembers::RemoveVoters(BTreeSet::from([id]))
        } else {
            ChangeMembers::RemoveNodes(BTreeSet::from([id]))
        };
        tracing::warn!(replica = id, "removing a member that joins again without its data");
        self.change_now(change).await
    }

    async fn change_now(&self, change: ChangeMembers<u64, Peer>) -> Result<(), JoinRefusal> {
        let call = self.node.raft.change_membership(change, false);
        match tokio::time::timeout(self.members.change_timeout, call).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(JoinRefusal::Later(change_error(&error))),
            Err(_) => Err(JoinRefusal::Later(format!(
                "the membership change took longer than {:?}",
                self.members.change_timeout
            ))),
        }
    }
}
