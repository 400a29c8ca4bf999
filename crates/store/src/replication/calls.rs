//! Calls to other replicas, in the name of this one.

use std::{error::Error, time::Duration};

use chancery_raft_proto::v1 as pb;
use tokio::runtime::Handle;
use tonic::Status;

use crate::{
    format::{
        identity::Identity,
        raft::{Peer, StoredMembership},
    },
    replication::{
        codec,
        peers::{Client, Lane, Peers},
        raft_settings::SILENCE,
    },
};

/// The identity and the connections of this replica. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Calls {
    pub(crate) identity: Identity,
    pub(crate) peers: Peers,
    /// The runtime of the store, on which all calls run.
    pub(crate) runtime: Handle,
}

/// Returns the first cause of an error. tonic describes every error of a connection as "transport error".
fn reason(status: &Status) -> String {
    let Some(mut cause) = status.source() else { return status.message().to_owned() };
    while let Some(source) = cause.source() {
        cause = source;
    }
    let text = cause.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

impl Calls {
    /// Returns the header of a call to a member.
    pub(crate) fn header(&self, to: u64) -> pb::Header {
        self.peers.header(self.identity, to)
    }

    /// Returns a client of the replica at `address`, see [`Peers::client`].
    pub(crate) fn client(&self, address: &str, lane: Lane) -> Result<Client, Status> {
        self.peers.client(address, lane)
    }

    /// Returns the Hello answer of the replica at `address`; `None` if none answers within `timeout`.
    pub(crate) async fn hello(
        &self,
        address: &str,
        timeout: Duration,
    ) -> Option<pb::HelloResponse> {
        self.hello_or_reason(address, timeout).await.ok()
    }

    /// Returns the Hello answer of the replica at `address`, or the reason why it did not arrive within `timeout`.
    pub(crate) async fn hello_or_reason(
        &self,
        address: &str,
        timeout: Duration,
    ) -> Result<pb::HelloResponse, String> {
        let mut client = self.client(address, Lane::Control).map_err(|status| reason(&status))?;
        let request = codec::hello(self.identity);
        let call = async move { client.hello(request).await };
        match tokio::time::timeout(timeout, self.runtime.spawn(call)).await {
            Ok(Ok(Ok(answer))) => Ok(answer.into_inner()),
            Ok(Ok(Err(status))) => Err(reason(&status)),
            Ok(Err(_)) => Err("this replica is shutting down".to_owned()),
            Err(_) => Err(format!("no answer within {timeout:?}")),
        }
    }

    /// Returns the Hello answers of all other members that are reachable. Must be called on the runtime of
    /// the store.
    pub(crate) async fn hello_members(
        &self,
        membership: &StoredMembership,
    ) -> Vec<pb::HelloResponse> {
        let identity = self.identity;
        let hello = |(id, peer): (&u64, &Peer)| {
            let client =
                (*id != identity.replica_id).then(|| self.client(&peer.address, Lane::Control));
            async move {
                let mut client = client?.ok()?;
                let call = client.hello(codec::hello(identity));
                let hello = tokio::time::timeout(SILENCE, call).await.ok()?.ok()?.into_inner();
                (hello.cluster_id[..] == identity.cluster_id).then_some(hello)
            }
        };
        let answers = futures::future::join_all(membership.nodes().map(hello)).await;
        answers.into_iter().flatten().collect()
    }

    /// Describes a replica that is not in this cluster, for people; `None` if it is.
    pub(crate) fn stranger(&self, hello: &pb::HelloResponse) -> Option<String> {
        let id = hello.replica_id;
        match &hello.cluster_id[..] {
            [] => Some(format!("replica {id}, which is in no cluster yet")),
            own if own == self.identity.cluster_id => None,
            other => Some(format!("replica {id} of another cluster, {}", hex::encode(other))),
        }
    }
}
