//! Membership changes. Only the leader makes them; any replica forwards a request to the leader.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant},
};

use chancery_proto::raft::v1 as pb;
use openraft::{
    ChangeMembers, Instant as _,
    async_runtime::WatchReceiver,
    errors::{ChangeMembershipError, ClientWriteError, RaftError},
};
use pb::change_request::Change;

use super::{client::Lane, codec, instance};
use crate::{
    ChangeError,
    format::{
        raft::{LogId, Peer, Types},
        raft_codec::peer_to_proto,
    },
    replication::core::{Core, Leader},
    replication::raft_settings::ELECTION_TIMEOUT_MAX,
};

/// The maximum number of log entries that a learner lacks when it counts as caught up.
const LAG_MAX: u64 = 256;
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The maximum time for the report of a member.
pub(super) const HELLO_TIMEOUT: Duration = Duration::from_millis(800);
/// The maximum number of members, including learners. Anyone who reaches an unprotected replication port can
/// join.
const MEMBERS_MAX: usize = 64;
/// The time without any answer after which a replica counts as dead.
pub(crate) const SILENCE: Duration = Duration::from_millis(2 * ELECTION_TIMEOUT_MAX);

/// The outcome of an attempt to change the membership.
enum Attempt {
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
                "the leader was elected just now; try again in a second".to_owned()
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

/// The maximum ID of a replica, which is the maximum integer in a configuration file.
pub const REPLICA_ID_MAX: u64 = (1 << 63) - 1;
/// The maximum length of an address in bytes: the longest host name, a colon, and a port.
const ADDRESS_BYTES_MAX: usize = 255 + 6;

/// Checks that an address can be that of a replica: a host and a port.
///
/// # Errors
/// Returns the problem as text.
pub fn check_address(address: &str) -> Result<(), String> {
    let len = address.len();
    if len > ADDRESS_BYTES_MAX {
        return Err(format!(
            "the address of a replica has {len} bytes, at most {ADDRESS_BYTES_MAX} are allowed"
        ));
    }
    let host = address.rsplit_once(':').map_or("", |(host, _)| host);
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    if ip.is_ok_and(|ip| ip.is_unspecified()) {
        return Err(format!(
            "{address:?} is not the address of a replica: other replicas cannot reach it at {host}, which \
             means all addresses of a machine"
        ));
    }
    let valid = address.parse::<http::uri::Authority>().is_ok_and(|authority| {
        !authority.host().is_empty() && authority.port_u16().is_some_and(|port| port > 0)
    });
    match valid {
        true => Ok(()),
        false => Err(format!("{address:?} is not the address of a replica: expected HOST:PORT")),
    }
}

impl Core {
    /// Makes a membership change at the leader. Returns the outcome as a text for people.
    pub(crate) async fn change(
        &self,
        change: Change,
        timeout: Duration,
    ) -> Result<String, ChangeError> {
        let deadline = Instant::now() + timeout;
        loop {
            let leader = self.leader();
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

    async fn change_there(
        &self,
        id: u64,
        address: &str,
        change: &Change,
        deadline: Instant,
    ) -> Attempt {
        let header = Some(self.peers.header(self.identity, id));
        let message = pb::ChangeRequest { header, change: Some(change.clone()) };
        let Ok(mut client) = self.peers.client(address, Lane::Control) else {
            return Attempt::NotLeader;
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let call = async move { client.change(message).await };
        let call = tokio::time::timeout(left, self.runtime.spawn(call));
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
    pub(crate) async fn take_change(&self, change: Change) -> pb::ChangeResponse {
        use pb::change_response::Result;
        let deadline = Instant::now() + self.config.change_timeout;
        let result = match self.change_here(&change, deadline).await {
            Attempt::Done(Ok(text)) => Result::Changed(pb::Changed { text }),
            Attempt::Done(Err(error)) => Result::Refused(error.to_string()),
            Attempt::NotLeader => Result::NotLeader(pb::NotLeader { leader: 0 }),
        };
        pb::ChangeResponse { result: Some(result) }
    }

    async fn change_here(&self, change: &Change, deadline: Instant) -> Attempt {
        if self.leader() != Some(Leader::Here) {
            return Attempt::NotLeader;
        }
        match change {
            Change::Add(peer) => self.add(peer, deadline).await,
            Change::Promote(id) => self.promote(*id, deadline).await,
            Change::Remove(id) => self.remove(*id, deadline).await,
            Change::TransferLeader(id) => self.transfer(*id, deadline).await,
            Change::Announce(peer) => self.announce(peer, deadline).await,
        }
    }

    async fn add(&self, peer: &pb::Peer, deadline: Instant) -> Attempt {
        if let Some(refusal) = self.refuse_peer(peer) {
            return refused(refusal);
        }
        let id = peer.replica_id;
        match self.peer(id) {
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
        let there = self.ask_at(&peer.address, SILENCE).await;
        let other = there.filter(|hello| !hello.cluster_id.is_empty());
        if let Some(other) = other.and_then(|hello| self.stranger(&hello)) {
            return refused(format!(
                "cannot add replica {id}: at {} is {other}; to be added, it must start with an empty \
                 data directory",
                peer.address
            ));
        }
        let (address, learner) = (peer.address.clone(), peer.learner);
        let nodes = BTreeMap::from([(id, Peer { address: address.clone(), learner, instance: 0 })]);
        let then = match learner {
            true => "stays a learner",
            false => "becomes a voter when it has caught up",
        };
        let text = format!("replica {id} at {address} was added as a learner; it {then}");
        self.apply_change(ChangeMembers::AddNodes(nodes), deadline, text).await
    }

    /// Returns why a replica with this ID and address cannot become a member; `None` if it can.
    pub(crate) fn refuse_peer(&self, peer: &pb::Peer) -> Option<String> {
        let id = peer.replica_id;
        if !(1..=REPLICA_ID_MAX).contains(&id) {
            return Some(format!("the ID of a replica is from 1 to {REPLICA_ID_MAX}, not {id}"));
        }
        let n_members = self.membership().nodes().count();
        if n_members >= MEMBERS_MAX && self.peer(id).is_none() {
            return Some(format!(
                "the cluster has {n_members} members, at most {MEMBERS_MAX} are allowed"
            ));
        }
        if id == self.id() {
            return Some(format!(
                "replica {id} is the leader itself; give each replica its own ID (`raft.replica_id`)"
            ));
        }
        if let Err(error) = check_address(&peer.address) {
            return Some(error);
        }
        let membership = self.membership();
        let mut others = membership.nodes().filter(|(other, _)| **other != id);
        others.find(|(_, other)| other.address == peer.address).map(|(other, _)| {
            format!(
                "replica {other} is at {} already; give replica {id} another address",
                peer.address
            )
        })
    }

    async fn promote(&self, id: u64, deadline: Instant) -> Attempt {
        let membership = self.membership();
        let Some(peer) = membership.get_node(&id).cloned() else {
            return refused(format!("replica {id} is not a member; add it first"));
        };
        if membership.voter_ids().any(|voter| voter == id) {
            return Attempt::Done(Ok(format!("replica {id} is a voter already")));
        }
        while !self.has_caught_up(id) {
            if Instant::now() + POLL_INTERVAL >= deadline {
                return refused(format!(
                    "replica {id} has not caught up: it has {} of {} log entries, and as a voter it would \
                     delay writes; try again later",
                    self.matched(id).map_or(0, |index| index + 1),
                    self.last_index().map_or(0, |index| index + 1),
                ));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let make = || {
            let now = self.peer(id).filter(|now| now.instance == peer.instance);
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
        let membership = self.membership();
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
        if id == self.id() {
            // The next leader removes this replica.
            return match self.transfer(0, deadline).await {
                Attempt::Done(Ok(_)) => Attempt::NotLeader,
                other => other,
            };
        }
        let change = match voters.contains(&id) {
            true => ChangeMembers::RemoveVoters(BTreeSet::from([id])),
            false => ChangeMembers::RemoveNodes(BTreeSet::from([id])),
        };
        self.apply_change(change, deadline, format!("replica {id} was removed")).await
    }

    /// Returns why the cluster cannot lose a voter; `None` if it can.
    pub(crate) fn refuse_loss_of(&self, id: u64, voters: &BTreeSet<u64>) -> Option<String> {
        let rest = || voters.iter().copied().filter(|voter| *voter != id);
        let silent: Vec<u64> = rest().filter(|voter| !self.is_alive(*voter)).collect();
        let (n_rest, n_alive) = (rest().count(), rest().count() - silent.len());
        (n_alive <= n_rest / 2).then(|| {
            format!(
                "cannot remove replica {id}: without it, only {n_alive} of {n_rest} voters would answer (not \
                 replicas {silent:?}), and no writes would be possible"
            )
        })
    }

    async fn transfer(&self, to: u64, deadline: Instant) -> Attempt {
        let membership = self.membership();
        let others = || membership.voter_ids().filter(|voter| *voter != self.id());
        let mut candidates: Vec<u64> = match to {
            0 => others().filter(|voter| self.is_alive(*voter)).collect(),
            to if to == self.id() => {
                return Attempt::Done(Ok(format!("replica {to} leads already")));
            }
            to if others().any(|voter| voter == to) => vec![to],
            to => return refused(format!("replica {to} is not a voter")),
        };
        candidates.sort_by_key(|voter| Reverse(self.matched(*voter)));
        let mut refusal = None;
        let mut able = None;
        for voter in candidates {
            refusal = self.refuse_to_lead(voter).await;
            if refusal.is_none() {
                able = Some(voter);
                break;
            }
        }
        let Some(to) = able else {
            return refused(refusal.unwrap_or_else(|| "no other voter answers".to_owned()));
        };
        if self.raft.trigger().transfer_leader(to).await.is_err() {
            return Attempt::NotLeader;
        }
        loop {
            match self.leader() {
                Some(Leader::There { id, .. }) if id == to => {
                    return Attempt::Done(Ok(format!("replica {to} leads now")));
                }
                _ if Instant::now() + POLL_INTERVAL >= deadline => {
                    return refused(format!("replica {to} has not taken over in time"));
                }
                _ => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// Returns why a voter cannot lead, according to its report; `None` if it can, or does not answer.
    async fn refuse_to_lead(&self, id: u64) -> Option<String> {
        let address = self.peer(id)?.address;
        let hello = self.ask_at(&address, HELLO_TIMEOUT).await.filter(|it| it.replica_id == id)?;
        let why = match (hello.failure.is_empty(), hello.diverged.is_empty()) {
            (true, _) => return None,
            (false, true) => "it accepts no writes",
            (false, false) => "it has diverged",
        };
        Some(format!("cannot transfer leadership to replica {id}: {why}: {}", hello.failure))
    }

    async fn announce(&self, peer: &pb::Peer, deadline: Instant) -> Attempt {
        let id = peer.replica_id;
        if let Err(error) = check_address(&peer.address) {
            return refused(error);
        }
        let text = format!("replica {id} is at {} now", peer.address);
        let known = || match self.peer(id) {
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
            let call = self.raft.change_membership(change, false);
            let Ok(result) = tokio::time::timeout_at(deadline.into(), call).await else {
                return ChangeError::Timeout(self.config.change_timeout).into();
            };
            let error = match result {
                Ok(written) => {
                    // The change is committed, even if this wait times out.
                    let shown = self.membership_shown(written.log_id);
                    drop(tokio::time::timeout_at(deadline.into(), shown).await);
                    tracing::info!("{text}");
                    return Attempt::Done(Ok(text));
                }
                Err(RaftError::APIError(
                    ClientWriteError::ForwardToLeader(_) | ClientWriteError::LogEntryDiscarded(_),
                )) => return Attempt::NotLeader,
                Err(error) => error,
            };
            // Another change is in progress, perhaps an automatic one, and ends soon.
            let is_busy = matches!(
                error,
                RaftError::APIError(ClientWriteError::ChangeMembershipError(
                    ChangeMembershipError::InProgress(_)
                ))
            );
            if !is_busy || Instant::now() + POLL_INTERVAL >= deadline {
                return refused(change_error(&error));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until the metrics of Raft show the membership of a log entry. Raft answers a change before its
    /// metrics show it.
    async fn membership_shown(&self, id: LogId) {
        let mut metrics = self.raft.metrics();
        while *metrics.borrow_watched().membership_config.log_id() < Some(id) {
            if metrics.changed().await.is_err() {
                return;
            }
        }
    }

    /// Makes automatic membership changes. The caller runs this periodically.
    pub(crate) async fn reconcile_members(&self) {
        self.reconcile_address().await;
        if self.leader() != Some(Leader::Here) {
            if self.heard_at.lock().elapsed() > SILENCE {
                self.detect_removal().await;
            }
            return;
        }
        if self.present_leader().is_none() {
            // It has lost its followers, perhaps because another replica has its ID now.
            return self.detect_removal().await;
        }
        let membership = self.membership();
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        let waiting = membership.nodes().find(|(id, peer)| {
            !peer.learner && !voters.contains(id) && self.is_alive(**id) && self.has_caught_up(**id)
        });
        if let Some((id, _)) = waiting {
            let deadline = Instant::now() + self.config.change_timeout;
            if let Attempt::Done(Err(error)) = self.promote(*id, deadline).await {
                tracing::warn!(replica = id, %error, "cannot promote a replica that has caught up");
            }
        }
    }

    /// Announces this replica's address to the leader if the membership has another one, because the replica
    /// moved. The others cannot reach it at its new address, so it asks them for the leader.
    async fn reconcile_address(&self) {
        let own = self.peer(self.id());
        let Some(known) =
            own.filter(|known| !self.address.is_empty() && known.address != self.address)
        else {
            return;
        };
        // If another instance has this ID now, its address must not change.
        self.detect_removal().await;
        if self.removed.borrow().is_none() {
            self.detect_copy(&known.address).await;
        }
        if self.removed.borrow().is_some() {
            return;
        }
        let (address, instance) = (self.address.clone(), self.identity.instance);
        let peer = peer_to_proto(self.id(), &Peer { address, instance, ..known });
        let deadline = Instant::now() + self.config.change_timeout;
        let announce = Change::Announce(peer);
        let attempt = match self.leader() {
            Some(Leader::Here) => self.change_here(&announce, deadline).await,
            Some(Leader::There { id, address }) => {
                self.change_there(id, &address, &announce, deadline).await
            }
            None => match self.find_leader().await {
                Some((id, address)) => self.change_there(id, &address, &announce, deadline).await,
                None => return,
            },
        };
        if let Attempt::Done(Err(error)) = attempt {
            tracing::warn!(%error, "cannot change the address of this replica in the membership");
        }
    }

    /// Asks all other members for the leader, and returns the one with the highest term.
    async fn find_leader(&self) -> Option<(u64, String)> {
        let answers = self.ask_members().await.into_iter();
        let leaders = answers.filter(|hello| hello.leader > 0 && !hello.leader_address.is_empty());
        let newest = leaders.max_by_key(|hello| hello.term)?;
        Some((newest.leader, newest.leader_address))
    }

    /// Returns the Hello answers of all other members that are reachable.
    pub(super) async fn ask_members(&self) -> Vec<pb::HelloResponse> {
        let membership = self.membership();
        let hello = |(id, peer): (&u64, &Peer)| {
            let client =
                (*id != self.id()).then(|| self.peers.client(&peer.address, Lane::Control));
            async move {
                let mut client = client?.ok()?;
                let call = client.hello(codec::hello(self.identity));
                let hello = tokio::time::timeout(SILENCE, call).await.ok()?.ok()?.into_inner();
                (hello.cluster_id[..] == self.identity.cluster_id).then_some(hello)
            }
        };
        let answers = futures::future::join_all(membership.nodes().map(hello)).await;
        answers.into_iter().flatten().collect()
    }

    /// Returns whether a replica has answered within [`SILENCE`]. Only the leader knows this.
    pub(crate) fn is_alive(&self, id: u64) -> bool {
        id == self.id() || self.silence(id).is_some_and(|silence| silence < SILENCE)
    }

    /// Returns the time since the last answer of a replica; `None` if it never answered this leader.
    pub(crate) fn silence(&self, id: u64) -> Option<Duration> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let heard = metrics.heartbeat.as_ref()?.get(&id)?.as_ref()?;
        Some(heard.elapsed())
    }

    fn has_caught_up(&self, id: u64) -> bool {
        let (matched, last) = (self.matched(id), self.last_index());
        matched
            .is_some_and(|matched| last.is_none_or(|last| last.saturating_sub(matched) <= LAG_MAX))
    }

    /// Returns the index of the last entry that a replica is known to have. Only the leader knows this.
    pub(crate) fn matched(&self, id: u64) -> Option<u64> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.replication.as_ref()?.get(&id)?.map(|id| id.index)
    }

    fn last_index(&self) -> Option<u64> {
        self.raft.metrics().borrow_watched().last_log_index
    }
}

#[cfg(test)]
mod tests {
    use openraft::errors::InProgress;

    use super::*;
    use crate::raft::log_id;

    /// The replica that joins logs this text, and `chancery cluster add` shows it.
    #[test]
    fn membership_change_in_progress_is_reported_in_plain_words() {
        let in_progress = InProgress { committed: None, membership_log_id: Some(log_id(3, 7)) };
        let error = ChangeMembershipError::InProgress(in_progress);
        let text = change_error(&RaftError::APIError(error.into()));
        assert_eq!(
            text,
            "another change of the membership is in progress; try again when it has ended"
        );
    }
}
