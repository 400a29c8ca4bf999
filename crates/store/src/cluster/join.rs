//! How a replica becomes a member of a cluster.
//!
//! A replica with an empty directory either forms a cluster or joins one, by what it was told:
//! - nothing: it forms a cluster of one, which others can join;
//! - addresses to join at: it asks there until it is let in;
//! - a list of all replicas (for a StatefulSet): the first of them forms the cluster if all others say
//!   that they are in none; all others join. A first replica that has lost its data finds that the others
//!   are in one, and joins it.
//!
//! The leader lets a replica in as a learner. If it knows the replica from before, that one's data is gone:
//! it is removed first, so that no majority counts on it, and it is told the vote of the leader, so that
//! it can not vote in a term in which it may have voted already.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    time::{Duration, Instant},
};

use chancery_proto::raft::v1 as pb;
use openraft::{ChangeMembers, async_runtime::WatchReceiver};
use tonic::{Code, Status};

use super::{
    client::{Lane, Peers},
    members::SILENCE,
    protocol,
};
use crate::{
    Config, OpenError,
    codec::cluster_id_from_proto,
    core::{Core, Leader},
    high_water::hex,
    identity::Identity,
    raft::{Peer, StoredMembership, Vote},
    raft_codec::{vote_from_proto, vote_to_proto},
};

/// Between two rounds of asking.
const ROUND_INTERVAL: Duration = Duration::from_millis(500);
/// One call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// What keeps a replica from starting is said again after this time.
const SAY_AGAIN: Duration = Duration::from_secs(10);

/// How a replica without data begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// With a cluster of its own.
    Form,
    /// In a cluster that has let it in.
    Joined {
        /// Who it is there.
        identity: Identity,
        /// The vote of the leader.
        vote: Vote,
    },
}

/// Who asks, and whom.
pub(crate) struct Joiner<'a> {
    pub(crate) config: &'a Config,
    /// Where other replicas reach this one.
    pub(crate) address: &'a str,
    /// Which of the replicas that have had its number it will be.
    pub(crate) instance: u64,
    pub(crate) peers: &'a Peers,
}

/// Says things that are true for a while, but not all the time.
struct Progress {
    last: Option<(Instant, String)>,
}

impl Progress {
    fn say(&mut self, text: String) {
        let again = |(when, last): &(Instant, String)| *last != text || when.elapsed() > SAY_AGAIN;
        if self.last.as_ref().is_none_or(again) {
            tracing::info!("{text}");
            self.last = Some((Instant::now(), text));
        }
    }
}

impl Joiner<'_> {
    /// Finds out how to begin; asks until there is an answer.
    pub(crate) async fn begin(&self) -> Result<Beginning, OpenError> {
        let id = self.config.replica_id;
        let mut progress = Progress { last: None };
        if !self.config.join.is_empty() {
            loop {
                if let Some(joined) = self.ask_all(&self.config.join, &mut progress).await? {
                    return Ok(joined);
                }
                tokio::time::sleep(ROUND_INTERVAL).await;
            }
        }
        let others: BTreeMap<u64, String> =
            self.config.peers.iter().filter(|(peer, _)| **peer != id).map(own).collect();
        if others.is_empty() {
            return Ok(Beginning::Form);
        }
        let forms = others.keys().all(|other| *other > id);
        loop {
            let (members, fresh) = self.look_around(&others).await?;
            if !members.is_empty() {
                if let Some(joined) = self.ask_all(&members, &mut progress).await? {
                    return Ok(joined);
                }
            } else if forms && fresh.len() == others.len() {
                return Ok(Beginning::Form);
            } else if forms {
                let silent: Vec<&u64> = others.keys().filter(|id| !fresh.contains(id)).collect();
                progress.say(format!(
                    "waiting for replicas {silent:?}: a new cluster is formed only when all of them say \
                     that they are in none"
                ));
            } else {
                let first = self.config.peers.keys().next().copied().unwrap_or_default();
                progress.say(format!("waiting for replica {first} to form the cluster"));
            }
            tokio::time::sleep(ROUND_INTERVAL).await;
        }
    }

    /// The addresses of those that are in a cluster, and who is in none.
    async fn look_around(
        &self,
        others: &BTreeMap<u64, String>,
    ) -> Result<(Vec<String>, BTreeSet<u64>), OpenError> {
        let hello = |(id, address): (&u64, &String)| {
            let (id, address) = (*id, address.clone());
            async move {
                let mut client = self.peers.client(&address, Lane::Control).ok()?;
                let call = client
                    .hello(pb::HelloRequest { from: self.config.replica_id, from_instance: None });
                let hello = tokio::time::timeout(CALL_TIMEOUT, call).await.ok()?.ok()?;
                Some((id, address, hello.into_inner()))
            }
        };
        let answers = futures::future::join_all(others.iter().map(hello)).await;
        let (mut members, mut fresh) = (Vec::new(), BTreeSet::new());
        for (id, address, hello) in answers.into_iter().flatten() {
            if hello.replica_id != id {
                return Err(OpenError::Cluster(format!(
                    "at {address} is replica {}, but the list of peers says {id}",
                    hello.replica_id
                )));
            }
            match hello.cluster_id.is_empty() {
                true => drop(fresh.insert(id)),
                false => members.push(address),
            }
        }
        Ok((members, fresh))
    }

    /// Asks to be let in, at each address, and at the leader that it names.
    async fn ask_all(
        &self,
        addresses: &[String],
        progress: &mut Progress,
    ) -> Result<Option<Beginning>, OpenError> {
        let mut addresses = addresses.to_vec();
        let mut asked = BTreeSet::new();
        let mut reasons = BTreeMap::new();
        while let Some(address) = addresses.pop() {
            if !asked.insert(address.clone()) {
                continue;
            }
            if address == self.address {
                reasons.insert(address, "this replica itself".to_owned());
                continue;
            }
            use pb::join_response::Result;
            match self.ask(&address).await {
                Ok(answer) => match answer.result {
                    Some(Result::Joined(joined)) => return self.joined(&joined).map(Some),
                    Some(Result::Refused(refused)) => {
                        return Err(OpenError::Cluster(format!("{address} refused: {refused}")));
                    }
                    Some(Result::Later(later)) => drop(reasons.insert(address, later)),
                    Some(Result::NotLeader(_)) if !answer.leader_address.is_empty() => {
                        let reason = format!("the leader is at {}", answer.leader_address);
                        reasons.insert(address, reason);
                        addresses.push(answer.leader_address);
                    }
                    Some(Result::NotLeader(_)) | None => {
                        let reason = "the cluster has no leader at the moment".to_owned();
                        reasons.insert(address, reason);
                    }
                },
                Err(error) => drop(reasons.insert(address, error)),
            }
        }
        let reasons: Vec<String> =
            reasons.iter().map(|(address, reason)| format!("{address}: {reason}")).collect();
        progress.say(format!("waiting to join the cluster: {}", reasons.join("; ")));
        Ok(None)
    }

    async fn ask(&self, address: &str) -> Result<pb::JoinResponse, String> {
        let peer = pb::Peer {
            replica_id: self.config.replica_id,
            address: self.address.to_owned(),
            learner: self.config.learner,
            instance: self.instance,
        };
        let client = self.peers.client(address, Lane::Control);
        let mut client = client.map_err(|status| status.message().to_owned())?;
        let call =
            client.join(pb::JoinRequest { peer: Some(peer), protocol: Some(protocol::own()) });
        match tokio::time::timeout(CALL_TIMEOUT, call).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(cause(&status)),
            Err(_) => Err(format!("no answer within {CALL_TIMEOUT:?}")),
        }
    }

    fn joined(&self, joined: &pb::Joined) -> Result<Beginning, OpenError> {
        let wrong = |error: crate::record::RecordError| {
            OpenError::Cluster(format!("the answer of the cluster makes no sense: {error}"))
        };
        let identity = Identity {
            cluster_id: cluster_id_from_proto(&joined.cluster_id).map_err(wrong)?,
            replica_id: self.config.replica_id,
            incarnation: chancery_model::Incarnation(joined.incarnation),
            instance: self.instance,
        };
        match joined.vote.as_ref().map(vote_from_proto) {
            Some(vote) => Ok(Beginning::Joined { identity, vote }),
            None => Err(OpenError::Cluster("the answer of the cluster has no vote".to_owned())),
        }
    }
}

/// Why a call to somebody who may be no replica has failed.
fn cause(status: &Status) -> String {
    let mut text = status.message().to_owned();
    if text.is_empty() {
        let code = status.code();
        text = match code {
            Code::Unimplemented => "who answers there is no replica's replication port".to_owned(),
            code => code.description().to_owned(),
        };
    }
    // The first is that a transport failed, which is not the reason.
    let mut source = status.source();
    while let Some(error) = source {
        let reason = error.to_string();
        if !text.contains(&reason) && reason != "transport error" {
            text = format!("{text}: {reason}");
        }
        source = error.source();
    }
    text
}

/// What is to be told of addresses to join at that are of no use, because the directory belongs to a cluster already, of
/// which none of them is.
pub(crate) fn no_effect(
    config: &Config,
    identity: Identity,
    membership: &StoredMembership,
) -> Option<String> {
    let members: Vec<(u64, &str)> =
        membership.nodes().map(|(id, peer)| (*id, peer.address.as_str())).collect();
    let is_member = |address: &String| members.iter().any(|(_, known)| known == address);
    if config.join.is_empty() || members.is_empty() || config.join.iter().any(is_member) {
        return None;
    }
    let members = members.iter().map(|(id, address)| format!("{id} at {address:?}"));
    Some(format!(
        "{} belongs to cluster {} with replicas {}; none of them is in the list to join, {:?}, which has no \
         effect: empty the directory to join another cluster",
        config.data_dir.display(),
        hex(&identity.cluster_id),
        members.collect::<Vec<_>>().join(", "),
        config.join,
    ))
}

fn own((id, address): (&u64, &String)) -> (u64, String) {
    (*id, address.clone())
}

/// What is wrong with somebody who wants to join.
enum NotYet {
    NotLeader,
    Refused(String),
    Later(String),
}

impl Core {
    /// Lets a replica without data in, or says why not.
    pub(crate) async fn take_join(&self, peer: pb::Peer) -> pb::JoinResponse {
        use pb::join_response::Result;
        let (result, leader_address) = match self.let_in(&peer).await {
            Ok(()) => (
                Result::Joined(pb::Joined {
                    cluster_id: self.identity.cluster_id.to_vec().into(),
                    incarnation: self.identity.incarnation.0,
                    vote: Some(vote_to_proto(&self.raft.metrics().borrow_watched().vote)),
                }),
                String::new(),
            ),
            Err(NotYet::Refused(text)) => (Result::Refused(text), String::new()),
            Err(NotYet::Later(text)) => (Result::Later(text), String::new()),
            Err(NotYet::NotLeader) => match self.leader() {
                Some(Leader::There { id, address }) => {
                    (Result::NotLeader(pb::NotLeader { leader: id }), address.to_string())
                }
                _ => (Result::NotLeader(pb::NotLeader { leader: 0 }), String::new()),
            },
        };
        pb::JoinResponse { result: Some(result), leader_address }
    }

    async fn let_in(&self, peer: &pb::Peer) -> Result<(), NotYet> {
        if self.leader() != Some(Leader::Here) {
            return Err(NotYet::NotLeader);
        }
        if let Some(refusal) = self.refuse_peer(peer) {
            return Err(NotYet::Refused(refusal));
        }
        let id = peer.replica_id;
        let (address, learner) = (peer.address.clone(), peer.learner);
        let new = Peer { address, learner, instance: peer.instance };
        let mut change = ChangeMembers::AddNodes(BTreeMap::from([(id, new.clone())]));
        if let Some(known) = self.peer(id) {
            let is_new = known.address == new.address && self.silence(id).is_none();
            let voters: BTreeSet<u64> = self.membership().voter_ids().collect();
            if is_new && !voters.contains(&id) && known.instance == new.instance {
                return Ok(());
            }
            if is_new && !voters.contains(&id) && known.instance == 0 {
                // It was added before it was started, when nobody could know which one it would be.
                let known = Peer { instance: new.instance, ..known };
                change = ChangeMembers::SetNodes(BTreeMap::from([(id, known)]));
            } else {
                self.forget_member(id, &voters).await?;
            }
        }
        self.change_now(change).await?;
        tracing::info!(replica = id, address = peer.address, "a replica has joined as a learner");
        Ok(())
    }

    /// Removes a member whose data is gone.
    async fn forget_member(&self, id: u64, voters: &BTreeSet<u64>) -> Result<(), NotYet> {
        let leads_for = self.leads_for().ok_or(NotYet::NotLeader)?;
        if self.silence(id).unwrap_or(leads_for) < SILENCE {
            return Err(NotYet::Later(format!(
                "replica {id} is a member already; if its data is gone it is let in when it has been \
                 silent for {SILENCE:?}; if it is another replica, this one needs a number of its own"
            )));
        }
        let change = match voters.contains(&id) {
            true => {
                if let Some(refusal) = self.refuse_loss_of(id, voters) {
                    return Err(NotYet::Later(refusal));
                }
                ChangeMembers::RemoveVoters(BTreeSet::from([id]))
            }
            false => ChangeMembers::RemoveNodes(BTreeSet::from([id])),
        };
        tracing::warn!(replica = id, "a member comes back without its data; it is removed first");
        self.change_now(change).await
    }

    async fn change_now(&self, change: ChangeMembers<u64, Peer>) -> Result<(), NotYet> {
        let call = self.raft.change_membership(change, false);
        match tokio::time::timeout(self.config.change_timeout, call).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(NotYet::Later(error.to_string())),
            Err(_) => Err(NotYet::Later("the membership could not be changed in time".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use chancery_model::Incarnation;

    use super::*;
    use crate::raft::{Membership, log_id};

    fn membership(addresses: &[&str]) -> StoredMembership {
        let peer = |address: &&str| Peer { address: (*address).to_owned(), ..Peer::default() };
        let peers: BTreeMap<u64, Peer> = (1..).zip(addresses.iter().map(peer)).collect();
        let membership = Membership::new(vec![peers.keys().copied().collect()], peers).unwrap();
        StoredMembership::new(Some(log_id(3, 30)), membership)
    }

    #[test]
    fn addresses_to_join_at_that_are_of_no_member_are_told() {
        let identity = Identity {
            cluster_id: [7; 16],
            replica_id: 1,
            incarnation: Incarnation(5),
            instance: 1,
        };
        let told = |join: &[&str], members: &[&str]| {
            let join = join.iter().map(|address| (*address).to_owned()).collect();
            let config = Config { join, data_dir: "/data".into(), ..Config::default() };
            no_effect(&config, identity, &membership(members))
        };
        let config = Config { join: vec!["x:1".to_owned()], ..Config::default() };
        let unknown = no_effect(&config, identity, &StoredMembership::default());
        assert_eq!(unknown, None, "it does not know yet who they are");
        assert_eq!(told(&[], &["a:1"]), None);
        assert_eq!(told(&["x:1", "b:1"], &["a:1", "b:1"]), None);
        assert_eq!(
            told(&["x:1"], &["a:1", ""]).unwrap(),
            "/data belongs to cluster 07070707070707070707070707070707 with replicas 1 at \"a:1\", 2 at \"\"; \
             none of them is in the list to join, [\"x:1\"], which has no effect: empty the directory to join \
             another cluster"
        );
    }

    #[test]
    fn what_a_failed_call_says_has_its_cause() {
        let refused = std::io::Error::other("connection refused");
        let status = Status::from_error(Box::new(refused));
        assert!(cause(&status).contains("connection refused"), "{status}");
        let nowhere = Status::new(Code::Unimplemented, "");
        assert_eq!(cause(&nowhere), "who answers there is no replica's replication port");
        assert!(!cause(&Status::new(Code::Internal, "")).is_empty());
    }
}
