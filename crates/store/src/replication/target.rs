//! The callee of a connection of Raft.

use std::fmt;

use chancery_raft_proto::v1 as pb;
use openraft::{AnyError, errors::Unreachable};
use tonic::Status;

use crate::{
    format::{
        identity::Identity,
        raft::{Peer, Types, Vote},
    },
    replication::{
        acknowledged::Follower,
        peers::{Client, Lane, Peers},
    },
};

/// Another replica, and how this one calls it. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    identity: Identity,
    peers: Peers,
    id: u64,
    /// The peer at the creation of the connection.
    peer: Peer,
}

impl Target {
    /// Creates the target with an ID; `peer` describes it at present.
    pub(crate) fn new(identity: Identity, peers: Peers, id: u64, peer: Peer) -> Self {
        Self { identity, peers, id, peer }
    }

    /// Returns the connections of this replica.
    pub(crate) fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Returns the ID of the callee.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the identity of the caller.
    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns a client of the replica at its current address.
    pub(crate) fn client(&self, lane: Lane) -> Result<Client, Status> {
        self.peers.client(&self.address(), lane)
    }

    /// Returns the header of a call to the current member. If its instance is unknown, the header names the
    /// instance at the creation of the connection.
    pub(crate) fn header(&self) -> pb::Header {
        let mut header = self.peers.header(self.identity, self.id);
        if header.to_instance == 0 {
            header.to_instance = self.peer.instance;
        }
        header
    }

    /// Returns the current address of the replica.
    pub(crate) fn address(&self) -> String {
        self.peers.member(self.id).unwrap_or_else(|| self.peer.clone()).address
    }

    /// Returns the error for a call that failed.
    pub(crate) fn unreachable(&self, error: impl fmt::Display) -> Unreachable<Types> {
        let (id, address) = (self.id, self.address());
        Unreachable::new(&AnyError::error(format!("replica {id} at {address}: {error}")))
    }

    /// Returns the callee of a call with this header, which this replica makes as the leader with this vote.
    pub(crate) fn follower(&self, header: &pb::Header, vote: &Vote) -> Follower {
        let (replica_id, instance) = (self.id, header.to_instance);
        Follower { replica_id, instance, term: vote.leader_id().term }
    }
}
