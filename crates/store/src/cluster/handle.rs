//! What the handle of a replica can do about its cluster.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use chancery_model::Revision;
use chancery_proto::raft::v1 as pb;
use openraft::async_runtime::WatchReceiver;
use pb::change_request::Change;

use super::{client::Lane, codec, lives::Removal};
use crate::{
    ChangeError, Replica,
    core::{Core, Leader},
    high_water::hex,
    raft::Peer,
};

/// A replica that does not answer in this time is shown as silent.
const HELLO_TIMEOUT: Duration = Duration::from_millis(800);
/// A leader that ends waits so long for another one to take over.
const STEP_DOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// A change of the membership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberChange {
    /// A new member, as a learner.
    Add {
        /// Its number.
        replica_id: u64,
        /// Where its replication port is, as `HOST:PORT`.
        address: String,
        /// It stays a learner; otherwise it becomes a voter once it has caught up.
        learner: bool,
    },
    /// A learner becomes a voter; waits until it has caught up.
    Promote(u64),
    /// A member is one no more.
    Remove(u64),
    /// Another voter leads; `None` for the one that is most advanced.
    TransferLeader(Option<u64>),
}

/// What part a member has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It votes, and leads.
    Leader,
    /// It votes.
    Voter,
    /// It becomes a voter once it has caught up.
    Joining,
    /// It holds a copy and serves streams.
    Learner,
}

/// A member, and what it says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub replica_id: u64,
    /// Where its replication port is.
    pub address: String,
    /// Its part.
    pub role: Role,
    /// Its own report; `None` if it does not answer.
    pub report: Option<Report>,
    /// Who answers at its address instead of it, for people.
    pub stranger: Option<String>,
}

/// What a replica says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Its Raft term.
    pub term: u64,
    /// Whom it follows, if it hears anybody.
    pub leader: Option<u64>,
    /// The last entry in its log.
    pub last_log_index: u64,
    /// The last entry that it has applied.
    pub applied: u64,
    /// The revision of its state.
    pub revision: Revision,
    /// The version of its program.
    pub version: String,
    /// Why it takes no writes; `None` if it does.
    pub failure: Option<String>,
    /// Names the voters whose state differs; `None` if no difference is known.
    pub state_alarm: Option<String>,
    /// It has a newer membership than the one that asks, who is not in it: that one was removed.
    pub disowns: bool,
}

impl From<pb::HelloResponse> for Report {
    fn from(hello: pb::HelloResponse) -> Self {
        Self {
            term: hello.term,
            leader: Some(hello.leader).filter(|leader| *leader > 0),
            last_log_index: hello.last_log_index,
            applied: hello.applied,
            revision: Revision(hello.revision),
            version: hello.version,
            failure: Some(hello.failure).filter(|failure| !failure.is_empty()),
            state_alarm: Some(hello.state_alarm).filter(|alarm| !alarm.is_empty()),
            disowns: false,
        }
    }
}

impl Replica {
    /// Where other replicas reach this one; empty if they can not.
    #[must_use]
    pub fn raft_address(&self) -> &str {
        &self.core().address
    }

    /// How many members the cluster has, this replica included.
    #[must_use]
    pub fn n_members(&self) -> usize {
        self.core().membership().nodes().count()
    }

    /// The number of the replica that leads, if it is heard; this one's own, if most voters answer it.
    #[must_use]
    pub fn leader(&self) -> Option<u64> {
        self.core().present_leader()
    }

    /// Changes the membership, wherever the leader is. Says what was done, for people.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub async fn change_members(&self, change: MemberChange) -> Result<String, ChangeError> {
        let change = match change {
            MemberChange::Add { replica_id, address, learner } => {
                Change::Add(pb::Peer { replica_id, address, learner, instance: 0 })
            }
            MemberChange::Promote(id) => Change::Promote(id),
            MemberChange::Remove(id) => Change::Remove(id),
            MemberChange::TransferLeader(to) => Change::TransferLeader(to.unwrap_or_default()),
        };
        self.core().change(change, self.core().config.change_timeout).await
    }

    /// All members, with what each says of itself at this moment.
    pub async fn members(&self) -> Vec<Member> {
        let core = self.core();
        let membership = core.membership();
        let voters: Vec<u64> = membership.voter_ids().collect();
        let leader = self.leader();
        let reports = membership.nodes().map(|(id, peer)| {
            let role = match voters.contains(id) {
                true if leader == Some(*id) => Role::Leader,
                true => Role::Voter,
                false if peer.learner => Role::Learner,
                false => Role::Joining,
            };
            let (replica_id, address) = (*id, peer.address.clone());
            async move {
                let (report, stranger) = match self.report(replica_id, &address).await {
                    Ok(report) => (Some(report), None),
                    Err(stranger) => (None, stranger),
                };
                Member { replica_id, address, role, report, stranger }
            }
        });
        futures::future::join_all(reports).await
    }

    /// What a member says of itself, or else who answers at its address, if anybody does.
    async fn report(&self, id: u64, address: &str) -> Result<Report, Option<String>> {
        let core = self.core();
        if id == core.id() {
            return Ok(core.hello(&codec::hello(core.identity)).into());
        }
        let hello = core.ask_at(address, HELLO_TIMEOUT).await.ok_or(None)?;
        if let Some(stranger) = core.stranger(&hello) {
            return Err(Some(stranger));
        }
        if hello.replica_id != id {
            return Err(Some(format!("replica {} of this cluster", hello.replica_id)));
        }
        let membership = core.membership();
        // Somebody else may be where it was.
        let own = |peer: &Peer| [0, hello.instance].contains(&peer.instance) || hello.instance == 0;
        if !membership.get_node(&id).is_some_and(own) {
            return Err(Some(format!(
                "another replica {id}, which that one has replaced, or which replaces it"
            )));
        }
        let disowns = core.is_disowned_by(&hello, &membership);
        Ok(Report { disowns, ..hello.into() })
    }

    /// Returns when it is known that this replica is no member of its cluster any more: it is told nothing,
    /// and what it has gets old.
    pub async fn removed(&self) -> Removal {
        let mut removed = self.core().removed.subscribe();
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

    /// The reason why the state or the log of this replica differs from that of the cluster; `None` if no
    /// difference is known. A replica with a reason must serve nothing.
    #[must_use]
    pub fn diverged(&self) -> Option<Arc<str>> {
        self.core().diverged()
    }

    /// Returns the reason when [`Replica::diverged`] has one.
    pub async fn until_diverged(&self) -> Arc<str> {
        let mut diverged = self.core().diverged.subscribe();
        let reason = diverged.wait_for(Option::is_some).await.ok().and_then(|it| it.clone());
        match reason {
            Some(reason) => reason,
            // The replica has ended in another way.
            None => std::future::pending().await,
        }
    }

    /// If this replica leads, lets another one lead: before it ends, so that writes do not have to wait for
    /// an election. Does nothing if there is no other.
    pub async fn step_down(&self) {
        self.core().step_down().await;
    }

    /// Takes a snapshot: the log up to here can be purged. Returns when there is one.
    ///
    /// # Errors
    /// If Raft has stopped, or it takes too long.
    pub async fn snapshot(&self, timeout: Duration) -> Result<u64, ChangeError> {
        let core = self.core();
        let stopped = |error: &dyn std::fmt::Display| ChangeError::Refused(error.to_string());
        let applied = core.published.applied();
        let deadline = Instant::now() + timeout;
        core.raft.trigger().snapshot().await.map_err(|error| stopped(&error))?;
        loop {
            let snapshot = core.raft.metrics().borrow_watched().snapshot.map(|id| id.index);
            match snapshot {
                Some(index) if index >= applied => return Ok(index),
                _ if Instant::now() >= deadline => return Err(ChangeError::Timeout(timeout)),
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }
}

impl Core {
    /// What a replica says of itself that is at an address.
    pub(super) async fn ask_at(
        &self,
        address: &str,
        timeout: Duration,
    ) -> Option<pb::HelloResponse> {
        let mut client = self.peers.client(address, Lane::Control).ok()?;
        let request = codec::hello(self.identity);
        let call = async move { client.hello(request).await };
        let call = tokio::time::timeout(timeout, self.runtime.spawn(call));
        Some(call.await.ok()?.ok()?.ok()?.into_inner())
    }

    /// Who somebody is that is not of this cluster, for people; `None` if it is.
    pub(super) fn stranger(&self, hello: &pb::HelloResponse) -> Option<String> {
        let id = hello.replica_id;
        match &hello.cluster_id[..] {
            [] => Some(format!("a replica {id} that is in no cluster yet")),
            own if own == self.identity.cluster_id => None,
            other => Some(format!("replica {id} of another cluster, {}", hex(other))),
        }
    }

    /// If this replica leads, lets another one lead. Does nothing if there is no other.
    pub(crate) async fn step_down(&self) {
        if self.leader() != Some(Leader::Here) || self.is_sole_voter() {
            return;
        }
        match self.change(Change::TransferLeader(0), STEP_DOWN_TIMEOUT).await {
            Ok(text) => tracing::info!("{text}"),
            Err(error) => tracing::warn!(%error, "nobody has taken over the lead"),
        }
    }
}
