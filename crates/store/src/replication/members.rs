//! Membership changes. Only the leader makes them; any replica forwards a request to the leader.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use chancery_raft_proto::v1 as pb;
use openraft::{
    ChangeMembers,
    errors::{ChangeMembershipError, ClientWriteError, RaftError},
};
use pb::change_request::Change;

use crate::{
    ChangeError,
    config::REPLICA_ID_MAX,
    format::raft::{Peer, Types},
    replication::{
        address::check_address,
        calls::Calls,
        instance,
        peers::Lane,
        raft_node::{Leader, RaftNode},
        raft_settings::SILENCE,
    },
};

const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The maximum time for the report of a member.
pub(crate) const HELLO_TIMEOUT: Duration = Duration::from_millis(800);
/// The maximum number of members, including learners. Anyone who reaches an unprotected replication port can
/// join.
const MEMBERS_MAX: usize = 64;
/// The maximum time that a stopping leader waits for another voter to take over.
const STEP_DOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// The outcome of an attempt to change the membership.
pub(super) enum Attempt {
    Done(Result<String, ChangeError>),
    /// This replica or the callee does not lead.
    NotLeader,
}

impl From<ChangeError> for Attempt {
    fn from(error: ChangeError) -> Self {
        Self::Done(Err(error))
    }
}

fn refused(text: impl Into<String>) -> Attempt {
    Attempt::Done(Err(ChangeError::Refused(text.into())))
}

/// Describes why Raft refused a membership change, for people.
pub(super) fn change_error(error: &RaftError<Types, ClientWriteError<Types>>) -> String {
    use ChangeMembershipError as Change;
    match error {
        RaftError::Fatal(error) => format!("Raft has stopped on the leader: {error}"),
        RaftError::APIError(
            ClientWriteError::ForwardToLeader(_) | ClientWriteError::LogEntryDiscarded(_),
        ) => "the leader has changed meanwhile".to_owned(),
        RaftError::APIError(ClientWriteError::ChangeMembershipError(error)) => match error {
            Change::InProgress(_) => {
                "another change of the membership is in progress; try again when it has ended"
                    .to_owned()
            }
            Change::UncommittedLeaderLog(_) => {
                "the new leader has not committed an entry yet; check that most voters answer, and try again"
                    .to_owned()
            }
            Change::EmptyMembership(_) => "the cluster would have no voters".to_owned(),
            Change::LearnerNotFound(missing) => {
                format!("replica {} is not a member", missing.node_id)
            }
            other => format!("Raft refused the change of the membership: {other}"),
        },
        RaftError::APIError(other) => format!("Raft refused the change of the membership: {other}"),
    }
}

/// The disk space that the next leader needs. A voter whose release does not report its space counts as
/// one that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Space {
    /// A voter without space leads only if no other voter can.
    Preferred,
    /// Enough for the smallest write.
    Required,
    /// More than this number of free bytes above the minimum.
    MoreThan(u64),
}

impl Space {
    /// Returns why a voter must not lead; `None` if it may.
    fn refuses(self, machine: &pb::Machine) -> Option<String> {
        if !machine.disk_full.is_empty() {
            return Some(format!("it would accept no writes: {}", machine.disk_full));
        }
        let (Self::MoreThan(least), Some(free)) = (self, machine.free_bytes) else { return None };
        let headroom = free.saturating_sub(machine.free_bytes_min);
        (headroom <= least).then(|| "it has no more free disk space than this replica".to_owned())
    }
}

/// Membership changes, and transfers of leadership.
pub(crate) struct Members {
    pub(crate) node: Arc<RaftNode>,
    pub(crate) calls: Calls,
    /// The time after which an unfinished change fails.
    pub(crate) change_timeout: Duration,
}

impl Members {
    /// Makes a membership change at the leader. Returns the outcome as a text for people.
    pub(crate) async fn change(
        &self,
        change: Change,
        timeout: Duration,
    ) -> Result<String, ChangeError> {
        let deadline = Instant::now() + timeout;
        loop {
            let leader = self.node.leader();
            let attempt = match &leader {
                Some(Leader::Here) => self.change_here(&change, deadline).await,
                Some(Leader::There { id, address }) => {
                    self.change_there(*id, address, &change, deadline).await
                }
                None => Attempt::NotLeader,
            };
            match attempt {
                Attempt::Done(result) => return result,
                Attempt::NotLeader if Instant::now() + POLL_INTERVAL >= deadline => {
                    return Err(ChangeError::NoLeader);
                }
                Attempt::NotLeader => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// Asks the leader, another replica, for a change.
    pub(super) async fn change_there(
        &self,
        id: u64,
        address: &str,
        change: &Change,
        deadline: Instant,
    ) -> Attempt {
        let header = Some(self.calls.header(id));
        let message = pb::ChangeRequest { header, change: Some(change.clone()) };
        let Ok(mut client) = self.calls.client(address, Lane::Control) else {
            return Attempt::NotLeader;
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let call = async move { client.change(message).await };
        let call = tokio::time::timeout(left, self.calls.runtime.spawn(call));
        let Ok(answer) = call.await else {
            return ChangeError::Timeout(left).into();
        };
        use pb::change_response::Result;
        match answer.ok().and_then(std::result::Result::ok).and_then(|a| a.into_inner().result) {
            Some(Result::Changed(changed)) => Attempt::Done(Ok(changed.text)),
            Some(Result::Refused(text)) => refused(text),
            Some(Result::NotLeader(_)) | None => Attempt::NotLeader,
        }
    }

    /// Answers a Change call of another replica.
    pub(crate) async fn answer(&self, change: Change) -> pb::ChangeResponse {
        use pb::change_response::Result;
        let deadline = Instant::now() + self.change_timeout;
        let result = match self.change_here(&change, deadline).await {
            Attempt::Done(Ok(text)) => Result::Changed(pb::Changed { text }),
            Attempt::Done(Err(error)) => Result::Refused(error.to_string()),
            Attempt::NotLeader => Result::NotLeader(pb::NotLeader { leader: 0 }),
        };
        pb::ChangeResponse { result: Some(result) }
    }

    /// Makes a change as the leader.
    pub(super) async fn change_here(&self, change: &Change, deadline: Instant) -> Attempt {
        if !self.node.leads() {
            return Attempt::NotLeader;
        }
        match change {
            Change::Add(peer) => self.add(peer, deadline).await,
            Change::Promote(id) => self.promote(*id, deadline).await,
            Change::Remove(id) => self.remove(*id, deadline).await,
            Change::TransferLeader(id) => self.transfer(*id, Space::Required, deadline).await,
            Change::Announce(peer) => self.announce(peer, deadline).await,
        }
    }

    async fn add(&self, peer: &pb::Peer, deadline: Instant) -> Attempt {
        if let Some(refusal) = self.refuse_peer(peer) {
            return refused(refusal);
        }
        let id = peer.replica_id;
        match self.node.peer(id) {
            Some(known) if known.address == peer.address => {
                return Attempt::Done(Ok(format!("replica {id} is a member already")));
            }
            Some(known) => {
                return refused(format!(
                    "replica {id} is a member already, at {}; remove it first, or give the new replica \
                     another ID",
                    known.address
                ));
            }
            None => {}
        }
        // A replica that is in no cluster yet is the expected one.
        let there = self.calls.hello(&peer.address, SILENCE).await;
        let other = there.filter(|hello| !hello.cluster_id.is_empty());
        if let Some(other) = other.and_then(|hello| self.calls.stranger(&hello)) {
            return refused(format!(
                "cannot add replica {id}: at {} is {other}; to be added, it must start with an empty \
                 data directory",
                peer.address
            ));
        }
        let (address, learner) = (peer.address.clone(), peer.learner);
        let nodes = BTreeMap::from([(id, Peer { address: address.clone(), learner, instance: 0 })]);
        let then =
            if learner { "stays a learner" } else { "becomes a voter when it has caught up" };
        let text = format!("replica {id} at {address} was added as a learner; it {then}");
        self.apply_change(ChangeMembers::AddNodes(nodes), deadline, text).await
    }

    /// Returns why a replica with this ID and address cannot become a member; `None` if it can.
    pub(crate) fn refuse_peer(&self, peer: &pb::Peer) -> Option<String> {
        let id = peer.replica_id;
        if !(1..=REPLICA_ID_MAX).contains(&id) {
            return Some(format!("the ID of a replica is from 1 to {REPLICA_ID_MAX}, not {id}"));
        }
        let n_members = self.node.membership().nodes().count();
        if n_members >= MEMBERS_MAX && self.node.peer(id).is_none() {
            return Some(format!(
                "the cluster has {n_members} members, at most {MEMBERS_MAX} are allowed"
            ));
        }
        if id == self.node.id() {
            return Some(format!(
                "replica {id} is the leader itself; give each replica its own ID (`raft.replica_id`)"
            ));
        }
        if let Err(error) = check_address(&peer.address) {
            return Some(error);
        }
        let membership = self.node.membership();
        let mut others = membership.nodes().filter(|(other, _)| **other != id);
        others.find(|(_, other)| other.address == peer.address).map(|(other, _)| {
            format!(
                "replica {other} is at {} already; give replica {id} another address",
                peer.address
            )
        })
    }

    /// Makes a learner a voter, once it has caught up.
    pub(super) async fn promote(&self, id: u64, deadline: Instant) -> Attempt {
        let membership = self.node.membership();
        let Some(peer) = membership.get_node(&id).cloned() else {
            return refused(format!("replica {id} is not a member; add it first"));
        };
        if membership.voter_ids().any(|voter| voter == id) {
            return Attempt::Done(Ok(format!("replica {id} is a voter already")));
        }
        while !self.node.has_caught_up(id) {
            if Instant::now() + POLL_INTERVAL >= deadline {
                return refused(format!(
                    "replica {id} has not caught up: it has {} of {} log entries, and as a voter it would \
                     delay writes; try again later",
                    self.node.matched(id).map_or(0, |index| index + 1),
                    self.node.last_index().map_or(0, |index| index + 1),
                ));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let make = || {
            let now = self.node.peer(id).filter(|now| now.instance == peer.instance);
            let now =
                now.ok_or_else(|| format!("replica {id} was replaced by another one meanwhile"))?;
            let nodes = BTreeMap::from([(id, Peer { learner: false, ..now })]);
            Ok(ChangeMembers::Batch(vec![
                ChangeMembers::SetNodes(nodes),
                ChangeMembers::AddVoterIds(BTreeSet::from([id])),
            ]))
        };
        self.apply_made(make, deadline, format!("replica {id} is a voter now")).await
    }

    async fn remove(&self, id: u64, deadline: Instant) -> Attempt {
        let membership = self.node.membership();
        if membership.get_node(&id).is_none() {
            return refused(format!("replica {id} is not a member"));
        }
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        if voters.contains(&id) {
            if voters.len() == 1 {
                return refused(format!("cannot remove replica {id}: it is the only voter"));
            }
            if let Some(refusal) = self.refuse_loss_of(id, &voters) {
                return refused(refusal);
            }
        }
        if id == self.node.id() {
            // The next leader removes this replica.
            return match self.transfer(0, Space::Preferred, deadline).await {
                Attempt::Done(Ok(_)) => Attempt::NotLeader,
                other => other,
            };
        }
        let change = if voters.contains(&id) {
            ChangeMembers::RemoveVoters(BTreeSet::from([id]))
        } else {
            ChangeMembers::RemoveNodes(BTreeSet::from([id]))
        };
        self.apply_change(change, deadline, format!("replica {id} was removed")).await
    }

    /// Returns why the cluster cannot lose a voter; `None` if it can.
    pub(crate) fn refuse_loss_of(&self, id: u64, voters: &BTreeSet<u64>) -> Option<String> {
        let rest = || voters.iter().copied().filter(|voter| *voter != id);
        let silent: Vec<u64> = rest().filter(|voter| !self.node.is_alive(*voter)).collect();
        let (n_rest, n_alive) = (rest().count(), rest().count() - silent.len());
        (n_alive <= n_rest / 2).then(|| {
            format!(
                "cannot remove replica {id}: without it, only {n_alive} of {n_rest} voters would answer (not \
                 replicas {silent:?}), and no writes would be possible"
            )
        })
    }

    /// Transfers leadership to the voter `to`; 0 selects the most up-to-date one that can lead.
    async fn transfer(&self, to: u64, space: Space, deadline: Instant) -> Attempt {
        let membership = self.node.membership();
        let others = || membership.voter_ids().filter(|voter| *voter != self.node.id());
        let mut candidates: Vec<u64> = match to {
            0 => others().filter(|voter| self.node.is_alive(*voter)).collect(),
            to if to == self.node.id() => {
                return Attempt::Done(Ok(format!("replica {to} leads already")));
            }
            to if others().any(|voter| voter == to) => vec![to],
            to => return refused(format!("replica {to} is not a voter")),
        };
        candidates.sort_by_key(|voter| Reverse(self.node.matched(*voter)));
        let next = match self.first_able(candidates, space).await {
            Ok(next) => next,
            Err(refusal) => return refused(refusal),
        };
        if self.node.raft.trigger().transfer_leader(next).await.is_err() {
            return Attempt::NotLeader;
        }
        loop {
            match self.node.leader() {
                Some(Leader::There { id, .. }) if id == to || to == 0 => {
                    return Attempt::Done(Ok(format!("replica {id} leads now")));
                }
                // Another voter was elected instead of `to`. `NotLeader` repeats the request at the new leader.
                Some(Leader::There { .. }) => return Attempt::NotLeader,
                _ if Instant::now() + POLL_INTERVAL >= deadline => {
                    return refused(format!("replica {next} has not taken over in time"));
                }
                _ => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// Returns the first candidate that can lead, according to its report, or does not answer.
    async fn first_able(&self, candidates: Vec<u64>, space: Space) -> Result<u64, String> {
        let mut refusal = None;
        let mut full = None;
        for voter in candidates {
            let report = self.report_of(voter).await.unwrap_or_default();
            let why = match (report.failure.as_str(), report.diverged.is_empty()) {
                ("", _) => match report.machine.and_then(|machine| space.refuses(&machine)) {
                    None => return Ok(voter),
                    Some(why) => {
                        full = full.or(Some(voter));
                        why
                    }
                },
                (failure, true) => format!("it accepts no writes: {failure}"),
                (failure, false) => format!("it has diverged: {failure}"),
            };
            refusal = Some(format!("cannot transfer leadership to replica {voter}: {why}"));
        }
        let allowed = full.filter(|_| space == Space::Preferred);
        allowed.ok_or_else(|| refusal.unwrap_or_else(|| "no other voter answers".to_owned()))
    }

    async fn report_of(&self, id: u64) -> Option<pb::HelloResponse> {
        let address = self.node.peer(id)?.address;
        self.calls.hello(&address, HELLO_TIMEOUT).await.filter(|it| it.replica_id == id)
    }

    async fn announce(&self, peer: &pb::Peer, deadline: Instant) -> Attempt {
        let id = peer.replica_id;
        if let Err(error) = check_address(&peer.address) {
            return refused(error);
        }
        let text = format!("replica {id} is at {} now", peer.address);
        let known = || match self.node.peer(id) {
            None => Err(format!("replica {id} is not a member")),
            Some(known) if instance::is_another(&known, Some(peer.instance)) => {
                Err(instance::replaced(id))
            }
            Some(known) => Ok(known),
        };
        match known() {
            Err(refusal) => return refused(refusal),
            Ok(known) if known.address == peer.address => return Attempt::Done(Ok(text)),
            Ok(_) => {}
        }
        let make = || {
            let new = Peer { address: peer.address.clone(), ..known()? };
            Ok(ChangeMembers::SetNodes(BTreeMap::from([(id, new)])))
        };
        self.apply_made(make, deadline, text).await
    }

    async fn apply_change(
        &self,
        change: ChangeMembers<u64, Peer>,
        deadline: Instant,
        text: String,
    ) -> Attempt {
        self.apply_made(|| Ok(change.clone()), deadline, text).await
    }

    /// Applies a change. Each attempt makes the change again from the current membership, because other
    /// changes may come first.
    async fn apply_made(
        &self,
        make: impl Fn() -> Result<ChangeMembers<u64, Peer>, String>,
        deadline: Instant,
        text: String,
    ) -> Attempt {
        loop {
            let change = match make() {
                Ok(change) => change,
                Err(refusal) => return refused(refusal),
            };
            let call = self.node.raft.change_membership(change, false);
            let Ok(result) = tokio::time::timeout_at(deadline.into(), call).await else {
                return ChangeError::Timeout(self.change_timeout).into();
            };
            let error = match result {
                Ok(written) => {
                    // The change is committed, even if this wait times out.
                    let shown = self.node.membership_shown(written.log_id);
                    drop(tokio::time::timeout_at(deadline.into(), shown).await);
                    tracing::info!("{text}");
                    return Attempt::Done(Ok(text));
                }
                Err(RaftError::APIError(
                    ClientWriteError::ForwardToLeader(_) | ClientWriteError::LogEntryDiscarded(_),
                )) => return Attempt::NotLeader,
                Err(error) => error,
            };
            // Either another change is in progress, perhaps an automatic one, or this replica was just elected and has
            // not yet committed an entry of its term. Both conditions end soon.
            let is_busy = matches!(
                error,
                RaftError::APIError(ClientWriteError::ChangeMembershipError(
                    ChangeMembershipError::InProgress(_)
                        | ChangeMembershipError::UncommittedLeaderLog(_)
                ))
            );
            if !is_busy || Instant::now() + POLL_INTERVAL >= deadline {
                return refused(change_error(&error));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Transfers leadership to another voter, if this replica leads and there is one. Voters with disk
    /// space come first.
    pub(crate) async fn step_down(&self) {
        if !self.node.leads() || self.node.is_sole_voter() {
            return;
        }
        match self.transfer_soon(Space::Preferred).await {
            Ok(text) => tracing::info!("{text}"),
            Err(error) => tracing::warn!(%error, "no other voter has taken over leadership"),
        }
    }

    /// Transfers leadership from this leader to a voter with more than `headroom` free bytes above its
    /// minimum.
    pub(crate) async fn hand_over(&self, headroom: u64) -> Result<String, ChangeError> {
        self.transfer_soon(Space::MoreThan(headroom)).await
    }

    async fn transfer_soon(&self, space: Space) -> Result<String, ChangeError> {
        match self.transfer(0, space, Instant::now() + STEP_DOWN_TIMEOUT).await {
            Attempt::Done(result) => result,
            Attempt::NotLeader => Err(ChangeError::NoLeader),
        }
    }
}

#[cfg(test)]
mod tests {
    use openraft::errors::InProgress;

    use super::*;
    use crate::format::raft::log_id;

    /// The replica that joins logs this text, and `chancery cluster add` shows it.
    #[test]
    fn membership_change_in_progress_is_reported_readably() {
        let in_progress = InProgress { committed: None, membership_log_id: Some(log_id(3, 7)) };
        let error = ChangeMembershipError::InProgress(in_progress);
        let text = change_error(&RaftError::APIError(error.into()));
        assert_eq!(
            text,
            "another change of the membership is in progress; try again when it has ended"
        );
    }

    /// Two leaders without space must not transfer leadership to each other in turn.
    #[test]
    fn full_leader_yields_only_to_a_voter_with_more_space() {
        let machine = |free, disk_full: &str| pb::Machine {
            free_bytes: Some(free),
            free_bytes_min: 100,
            disk_full: disk_full.to_owned(),
            ..pb::Machine::default()
        };
        let refuses = |space: Space, free, full| space.refuses(&machine(free, full)).is_some();
        for space in [Space::Preferred, Space::Required, Space::MoreThan(0)] {
            assert!(!refuses(space, 150, ""));
            assert!(refuses(space, 100, "the disk is nearly full"));
        }
        assert!(!refuses(Space::MoreThan(49), 150, ""));
        assert!(refuses(Space::MoreThan(50), 150, ""));
        assert_eq!(Space::MoreThan(50).refuses(&pb::Machine::default()), None);
    }
}
