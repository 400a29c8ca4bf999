//! The way to other replicas. A cluster of one has none: everybody is unreachable.

use std::future::Future;

use openraft::{
    AnyError, OptionalSend, RaftNetworkFactory,
    alias::VoteOf,
    errors::{RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::{RPCOption, v2::RaftNetworkV2},
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
        TransferLeaderResponse, VoteRequest, VoteResponse,
    },
};

use crate::{
    raft::{Peer, Snapshot, Types},
    snapshot::SnapshotData,
};

/// Makes connections to nobody.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NoNetwork;

/// A connection to a replica that can not be reached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NoConnection {
    target: u64,
}

impl NoConnection {
    fn unreachable(self) -> Unreachable<Types> {
        let target = self.target;
        Unreachable::new(&AnyError::error(format!(
            "this replica is a cluster of one and has no way to replica {target}"
        )))
    }
}

impl RaftNetworkFactory<Types> for NoNetwork {
    type Network = NoConnection;

    async fn new_client(&mut self, target: u64, _peer: &Peer) -> NoConnection {
        NoConnection { target }
    }
}

impl RaftNetworkV2<Types> for NoConnection {
    type SnapshotData = SnapshotData;

    async fn append_entries(
        &mut self,
        _request: AppendEntriesRequest<Types>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        Err(self.unreachable().into())
    }

    async fn vote(
        &mut self,
        _request: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Err(self.unreachable().into())
    }

    /// Not answering is no grant: openraft's default would count as one.
    async fn pre_vote(
        &mut self,
        _request: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Err(self.unreachable().into())
    }

    async fn full_snapshot(
        &mut self,
        _vote: VoteOf<Types>,
        _snapshot: Snapshot,
        _cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        Err(StreamingError::Unreachable(self.unreachable()))
    }

    async fn transfer_leader(
        &mut self,
        _request: TransferLeaderRequest<Types>,
        _option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        Err(self.unreachable().into())
    }
}
