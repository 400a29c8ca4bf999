//! Joining: how a replica becomes a member of a cluster.
//!
//! A replica with an empty directory either forms a cluster or joins one. Its configuration decides:
//! - Without any address, it forms a cluster of one, which others can join.
//! - With addresses to join (`join`), it asks there until a leader admits it. A name may resolve to several replicas, such
//!   as the name of a headless service. The replica then asks each of them.
//! - With a list of all replicas (`peers`, for a StatefulSet), the first replica forms the cluster if all
//!   others report that they are in none. All others join. A first replica that has lost its data finds that
//!   the others are in a cluster, and joins it.
//!
//! [`crate::replication::admit`] is the leader's side.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    net::SocketAddr,
    time::{Duration, Instant},
};

use chancery_raft_proto::v1 as pb;
use tonic::{Code, Status};

use crate::{
    Config, OpenError,
    disk::parts::Bootstrap,
    format::{
        codec::cluster_id_from_proto, identity::Identity, raft::StoredMembership,
        raft_codec::vote_from_proto,
    },
    replication::{
        peers::{Lane, Peers},
        protocol,
    },
};

/// The time between two rounds of calls.
const ROUND_INTERVAL: Duration = Duration::from_millis(500);
/// The maximum time to resolve a name.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum duration of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// The time after which the same progress message is logged again.
const REPEAT_INTERVAL: Duration = Duration::from_secs(10);

/// A place at which a replica may answer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    address: String,
    /// One of several sockets to which the name in `address` resolves.
    at: Option<SocketAddr>,
}

impl Place {
    /// Returns the places of an address that resolves to these sockets.
    fn of(address: &str, sockets: &[SocketAddr]) -> Vec<Self> {
        let place = |at| Self { address: address.to_owned(), at };
        match sockets {
            [] | [_] => vec![place(None)],
            several => several.iter().map(|at| place(Some(*at))).collect(),
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.at {
            Some(at) => write!(f, "{} ({at})", self.address),
            None => f.write_str(&self.address),
        }
    }
}

/// Returns the sockets to which an address resolves. If it does not, the connection reports the reason.
async fn resolve(address: &str) -> Vec<SocketAddr> {
    let resolved = tokio::time::timeout(RESOLVE_TIMEOUT, tokio::net::lookup_host(address)).await;
    resolved.ok().and_then(Result::ok).into_iter().flatten().collect()
}

/// A replica without data that forms or joins a cluster.
pub(crate) struct Joiner<'a> {
    pub(crate) config: &'a Config,
    /// The address at which other replicas reach this one.
    pub(crate) address: &'a str,
    /// The instance of this replica.
    pub(crate) instance: u64,
    pub(crate) peers: &'a Peers,
}

/// Logs why the replica waits, without repeating the same message all the time.
struct Progress {
    last: Option<(Instant, String)>,
}

impl Progress {
    fn log(&mut self, text: String) {
        let is_due =
            |(when, last): &(Instant, String)| *last != text || when.elapsed() > REPEAT_INTERVAL;
        if self.last.as_ref().is_none_or(is_due) {
            tracing::info!("{text}");
            self.last = Some((Instant::now(), text));
        }
    }
}

impl Joiner<'_> {
    /// Determines how to start. Asks the other replicas until there is an answer.
    pub(crate) async fn begin(&self) -> Result<Bootstrap, OpenError> {
        let id = self.config.replica_id;
        let mut progress = Progress { last: None };
        if !self.config.join.is_empty() {
            loop {
                if let Some(joined) = self.join_any(&self.config.join, &mut progress).await? {
                    return Ok(joined);
                }
                tokio::time::sleep(ROUND_INTERVAL).await;
            }
        }
        let others: BTreeMap<u64, String> =
            self.config.peers.iter().filter(|(peer, _)| **peer != id).map(own).collect();
        if others.is_empty() {
            return Ok(Bootstrap::Form);
        }
        let forms = others.keys().all(|other| *other > id);
        loop {
            let (members, fresh) = self.probe_peers(&others).await?;
            if !members.is_empty() {
                if let Some(joined) = self.join_any(&members, &mut progress).await? {
                    return Ok(joined);
                }
            } else if forms && fresh.len() == others.len() {
                return Ok(Bootstrap::Form);
            } else if forms {
                let silent: Vec<&u64> = others.keys().filter(|id| !fresh.contains(id)).collect();
                progress.log(format!(
                    "waiting for replicas {silent:?}: a new cluster forms only after all of them have \
                     reported that they are in none"
                ));
            } else {
                let first = self.config.peers.keys().next().copied().unwrap_or_default();
                progress.log(format!("waiting for replica {first} to form the cluster"));
            }
            tokio::time::sleep(ROUND_INTERVAL).await;
        }
    }

    /// Returns the addresses of the replicas that are in a cluster, and the IDs of those that are in none.
    async fn probe_peers(
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
                    "`raft.peers` has replica {id} at {address}, but replica {} answers there",
                    hello.replica_id
                )));
            }
            if hello.cluster_id.is_empty() {
                fresh.insert(id);
            } else {
                members.push(address);
            }
        }
        Ok((members, fresh))
    }

    /// Asks for admission at each address, and at the leader that an answer names.
    async fn join_any(
        &self,
        addresses: &[String],
        progress: &mut Progress,
    ) -> Result<Option<Bootstrap>, OpenError> {
        let mut places = Vec::new();
        for address in addresses {
            places.extend(Place::of(address, &resolve(address).await));
        }
        let mut tried = BTreeSet::new();
        let mut reasons = BTreeMap::new();
        while let Some(place) = places.pop() {
            if !tried.insert(place.clone()) {
                continue;
            }
            let address = place.to_string();
            if place.address == self.address {
                reasons.insert(address, "this replica itself".to_owned());
                continue;
            }
            use pb::join_response::Result;
            match self.request_join(&place).await {
                Ok(answer) => match answer.result {
                    Some(Result::Joined(joined)) => return self.joined(&joined).map(Some),
                    Some(Result::Refused(refused)) => {
                        return Err(OpenError::Cluster(format!("{address} refused: {refused}")));
                    }
                    Some(Result::Later(later)) => drop(reasons.insert(address, later)),
                    Some(Result::NotLeader(_)) if !answer.leader_address.is_empty() => {
                        let reason = format!("the leader is at {}", answer.leader_address);
                        reasons.insert(address, reason);
                        places.push(Place { address: answer.leader_address, at: None });
                    }
                    Some(Result::NotLeader(_)) | None => {
                        let reason = "the cluster has no leader at present".to_owned();
                        reasons.insert(address, reason);
                    }
                },
                Err(error) => drop(reasons.insert(address, error)),
            }
        }
        let reasons: Vec<String> =
            reasons.iter().map(|(address, reason)| format!("{address}: {reason}")).collect();
        progress.log(format!("waiting to join the cluster: {}", reasons.join("; ")));
        Ok(None)
    }

    async fn request_join(&self, place: &Place) -> Result<pb::JoinResponse, String> {
        let peer = pb::Peer {
            replica_id: self.config.replica_id,
            address: self.address.to_owned(),
            learner: self.config.learner,
            instance: self.instance,
        };
        let client = match place.at {
            Some(at) => self.peers.client_at(&place.address, at),
            None => self.peers.client(&place.address, Lane::Control),
        };
        let mut client = client.map_err(|status| status.message().to_owned())?;
        let call =
            client.join(pb::JoinRequest { peer: Some(peer), protocol: Some(protocol::own()) });
        match tokio::time::timeout(CALL_TIMEOUT, call).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(cause(&status)),
            Err(_) => Err(format!("no answer within {CALL_TIMEOUT:?}")),
        }
    }

    fn joined(&self, joined: &pb::Joined) -> Result<Bootstrap, OpenError> {
        let wrong = |error: crate::format::record::RecordError| {
            OpenError::Cluster(format!("the answer of the cluster is invalid: {error}"))
        };
        let identity = Identity {
            cluster_id: cluster_id_from_proto(&joined.cluster_id).map_err(wrong)?,
            replica_id: self.config.replica_id,
            incarnation: chancery_model::Incarnation(joined.incarnation),
            instance: self.instance,
        };
        match joined.vote.as_ref().map(vote_from_proto) {
            Some(vote) => Ok(Bootstrap::Joined { identity, vote }),
            None => Err(OpenError::Cluster("the answer of the cluster has no vote".to_owned())),
        }
    }
}

/// Returns the reason why a call failed. The callee may not be a replica.
fn cause(status: &Status) -> String {
    let mut text = status.message().to_owned();
    if text.is_empty() {
        let code = status.code();
        text = match code {
            Code::Unimplemented => "that address is not a replication port".to_owned(),
            code => code.description().to_owned(),
        };
    }
    // The outermost source only says that the transport failed.
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

/// Returns a warning if `raft.join` has no effect, because the directory belongs to a cluster that has none
/// of these addresses.
pub(crate) fn no_effect(
    config: &Config,
    identity: Identity,
    membership: &StoredMembership,
) -> Option<String> {
    let members: Vec<(u64, &str)> =
        membership.nodes().map(|(id, peer)| (*id, peer.address.as_str())).collect();
    // The name of a headless service is the end of the names of its replicas.
    let is_at = |known: &str, address: &str| {
        known.strip_suffix(address).is_some_and(|host| host.is_empty() || host.ends_with('.'))
    };
    let is_member = |address: &String| members.iter().any(|(_, known)| is_at(known, address));
    if config.join.is_empty() || members.is_empty() || config.join.iter().any(is_member) {
        return None;
    }
    let members = members.iter().map(|(id, address)| format!("{id} at {address:?}"));
    Some(format!(
        "`raft.join` has no effect: {} belongs to cluster {} with replicas {}, none of which is in {:?}; \
         empty the directory to join another cluster",
        config.data_dir.display(),
        hex::encode(identity.cluster_id),
        members.collect::<Vec<_>>().join(", "),
        config.join,
    ))
}

fn own((id, address): (&u64, &String)) -> (u64, String) {
    (*id, address.clone())
}

#[cfg(test)]
mod tests {
    use chancery_model::Incarnation;

    use super::*;
    use crate::format::raft::{Membership, Peer, log_id};

    fn membership(addresses: &[&str]) -> StoredMembership {
        let peer = |address: &&str| Peer { address: (*address).to_owned(), ..Peer::default() };
        let peers: BTreeMap<u64, Peer> = (1..).zip(addresses.iter().map(peer)).collect();
        let membership = Membership::new(vec![peers.keys().copied().collect()], peers).unwrap();
        StoredMembership::new(Some(log_id(3, 30)), membership)
    }

    #[test]
    fn join_addresses_without_a_member_are_reported() {
        let identity = Identity {
            cluster_id: [7; 16],
            replica_id: 1,
            incarnation: Incarnation(5),
            instance: 1,
        };
        let warning = |join: &[&str], members: &[&str]| {
            let join = join.iter().map(|address| (*address).to_owned()).collect();
            let config = Config { join, data_dir: "/data".into(), ..Config::default() };
            no_effect(&config, identity, &membership(members))
        };
        let config = Config { join: vec!["x:1".to_owned()], ..Config::default() };
        let unknown = no_effect(&config, identity, &StoredMembership::default());
        assert_eq!(unknown, None, "the members are not known yet");
        assert_eq!(warning(&[], &["a:1"]), None);
        assert_eq!(warning(&["x:1", "b:1"], &["a:1", "b:1"]), None);
        assert_eq!(warning(&["raft.svc:1"], &["a-1.raft.svc:1"]), None, "a headless service");
        assert!(warning(&["raft.svc:1"], &["draft.svc:1"]).is_some());
        assert_eq!(
            warning(&["x:1"], &["a:1", ""]).unwrap(),
            "`raft.join` has no effect: /data belongs to cluster 07070707070707070707070707070707 with replicas 1 \
             at \"a:1\", 2 at \"\", none of which is in [\"x:1\"]; empty the directory to join another cluster"
        );
    }

    #[test]
    fn name_of_several_replicas_is_one_place_for_each() {
        let sockets: Vec<SocketAddr> =
            ["10.0.0.1:1", "[fd00::1]:1"].map(|socket| socket.parse().unwrap()).to_vec();
        let shown = |sockets: &[SocketAddr]| {
            Place::of("raft.example:1", sockets).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(shown(&[]), ["raft.example:1"]);
        assert_eq!(shown(&sockets[..1]), ["raft.example:1"], "the name is resolved again later");
        assert_eq!(
            shown(&sockets),
            ["raft.example:1 (10.0.0.1:1)", "raft.example:1 ([fd00::1]:1)"]
        );
    }

    #[test]
    fn failed_call_error_contains_its_cause() {
        let refused = std::io::Error::other("connection refused");
        let status = Status::from_error(Box::new(refused));
        assert!(cause(&status).contains("connection refused"), "{status}");
        let nowhere = Status::new(Code::Unimplemented, "");
        assert_eq!(cause(&nowhere), "that address is not a replication port");
        assert!(!cause(&Status::new(Code::Internal, "")).is_empty());
    }
}
