//! Automatic membership changes: a learner that has caught up becomes a voter, and a replica that moved
//! announces its address. A replica that hears no leader finds out whether it was removed.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use chancery_raft_proto::v1 as pb;
use pb::change_request::Change;

use crate::{
    format::{raft::Peer, raft_codec::peer_to_proto},
    replication::{
        calls::Calls,
        members::{Attempt, Members},
        raft_node::{Leader, RaftNode},
        raft_settings::SILENCE,
        removal::RemovalDetector,
    },
};

/// The interval between checks of the membership.
const INTERVAL: Duration = Duration::from_millis(500);

/// The task that keeps the membership up to date.
pub(crate) struct Reconciler {
    pub(crate) node: Arc<RaftNode>,
    pub(crate) calls: Calls,
    pub(crate) members: Arc<Members>,
    pub(crate) removal: Arc<RemovalDetector>,
    /// The address at which other replicas reach this one; empty if it has none.
    pub(crate) address: String,
}

impl Reconciler {
    /// Checks the membership every [`INTERVAL`], until the runtime ends.
    pub(crate) async fn run(self) {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.reconcile().await;
        }
    }

    /// Makes automatic membership changes.
    async fn reconcile(&self) {
        self.reconcile_address().await;
        if !self.node.leads() {
            if self.node.leader_silence() > SILENCE {
                self.removal.detect_removal().await;
            }
            return;
        }
        if self.node.present_leader().is_none() {
            // It has lost its followers, perhaps because another replica has its ID now.
            return self.removal.detect_removal().await;
        }
        let membership = self.node.membership();
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        let waiting = membership.nodes().find(|(id, peer)| {
            !peer.learner
                && !voters.contains(id)
                && self.node.is_alive(**id)
                && self.node.has_caught_up(**id)
        });
        if let Some((id, _)) = waiting {
            let deadline = Instant::now() + self.members.change_timeout;
            if let Attempt::Done(Err(error)) = self.members.promote(*id, deadline).await {
                tracing::warn!(replica = id, %error, "cannot promote a replica that has caught up");
            }
        }
    }

    /// Announces this replica's address to the leader if the membership has another one, because the replica
    /// moved. The others cannot reach it at its new address, so it asks them for the leader.
    async fn reconcile_address(&self) {
        let own = self.node.peer(self.node.id());
        let Some(known) =
            own.filter(|known| !self.address.is_empty() && known.address != self.address)
        else {
            return;
        };
        // If another instance has this ID now, its address must not change.
        self.removal.detect_removal().await;
        if !self.removal.is_removed() {
            self.removal.detect_copy(&known.address).await;
        }
        if self.removal.is_removed() {
            return;
        }
        let (address, instance) = (self.address.clone(), self.calls.identity.instance);
        let peer = peer_to_proto(self.node.id(), &Peer { address, instance, ..known });
        let deadline = Instant::now() + self.members.change_timeout;
        let announce = Change::Announce(peer);
        let attempt = match self.node.leader() {
            Some(Leader::Here) => self.members.change_here(&announce, deadline).await,
            Some(Leader::There { id, address }) => {
                self.members.change_there(id, &address, &announce, deadline).await
            }
            None => match self.find_leader().await {
                Some((id, address)) => {
                    self.members.change_there(id, &address, &announce, deadline).await
                }
                None => return,
            },
        };
        if let Attempt::Done(Err(error)) = attempt {
            tracing::warn!(%error, "cannot change the address of this replica in the membership");
        }
    }

    /// Asks all other members for the leader, and returns the one with the highest term.
    async fn find_leader(&self) -> Option<(u64, String)> {
        let answers = self.calls.hello_members(&self.node.membership()).await.into_iter();
        let leaders = answers.filter(|hello| hello.leader > 0 && !hello.leader_address.is_empty());
        let newest = leaders.max_by_key(|hello| hello.term)?;
        Some((newest.leader, newest.leader_address))
    }
}
