//! The calls that Raft makes.

use std::{future::Future, time::Duration};

use chancery_raft_proto::v1 as pb;
use openraft::{
    OptionalSend, RaftNetworkFactory,
    errors::{RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::{Backoff, RPCOption, v2::RaftNetworkV2},
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
        TransferLeaderResponse, VoteRequest, VoteResponse,
    },
};
use tonic::{Code, Response, Status};

use crate::{
    disk::snapshot::{Snapshot, SnapshotData},
    format::{
        identity::Identity,
        raft::{Peer, Types, Vote},
        record::RecordError,
    },
    metrics::Elections,
    replication::{
        acknowledged::{Acknowledged, Follower, Required},
        codec,
        peers::{Client, Lane, Peers},
        target::Target,
        transfer,
    },
};

/// The base of the maximum duration of an append with entries. The other replica must sync its disk,
/// which may be slow.
const APPEND_TIMEOUT: Duration = Duration::from_secs(10);
/// The number of bytes that extend [`APPEND_TIMEOUT`] by a second. With a fixed timeout, an entry that takes
/// longer would be sent again forever.
const APPEND_BYTES_PER_SECOND: usize = 512 << 10;
/// The time before the next call to a replica that was unreachable.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Creates connections for openraft.
#[derive(Debug, Clone)]
pub(crate) struct Network {
    pub(crate) identity: Identity,
    pub(crate) peers: Peers,
    pub(crate) elections: Elections,
}

/// A connection that openraft uses.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    target: Target,
    elections: Elections,
    lane: Lane,
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Connection;

    async fn new_client(&mut self, target: u64, peer: &Peer) -> Connection {
        self.connection(target, peer, Lane::Data)
    }

    async fn new_heartbeat_client(&mut self, target: u64, peer: &Peer) -> Connection {
        self.connection(target, peer, Lane::Control)
    }
}

impl Network {
    fn connection(&self, id: u64, peer: &Peer, lane: Lane) -> Connection {
        let Self { identity, peers, elections } = self.clone();
        Connection { target: Target::new(identity, peers, id, peer.clone()), elections, lane }
    }
}

/// Returns the maximum duration of an append with entries of `bytes` bytes.
fn append_timeout(bytes: usize) -> Duration {
    let seconds = u64::try_from(bytes / APPEND_BYTES_PER_SECOND).unwrap_or(u64::MAX);
    APPEND_TIMEOUT.saturating_add(Duration::from_secs(seconds))
}

impl Connection {
    /// Creates a connection without a network.
    #[cfg(test)]
    pub(super) fn for_test(identity: Identity, peers: Peers, target: u64, address: &str) -> Self {
        let elections = crate::metrics::StoreMetrics::new().cluster.elections;
        let peer = Peer { address: address.to_owned(), ..Peer::default() };
        Self { target: Target::new(identity, peers, target, peer), elections, lane: Lane::Data }
    }

    fn acknowledged(&self) -> &Acknowledged {
        self.target.peers().acknowledged()
    }

    /// Records what the answer to an append acknowledges. Fails if Raft must not see the answer, because
    /// it is invalid or denies an entry that the replica must have.
    pub(super) fn note_answer(
        &self,
        follower: Follower,
        required: Required,
        request: &AppendEntriesRequest<Types>,
        answer: &AppendEntriesResponse<Types>,
    ) -> Result<(), Unreachable<Types>> {
        let acknowledged = self.acknowledged();
        let previous = request.prev_log_id;
        let last = request.entries.last().map_or(previous, |entry| Some(entry.log_id));
        match answer {
            AppendEntriesResponse::Success => {
                acknowledged.add(follower, last, request.leader_commit);
                Ok(())
            }
            AppendEntriesResponse::PartialSuccess(upto) if previous <= *upto && *upto <= last => {
                acknowledged.add(follower, *upto, request.leader_commit);
                Ok(())
            }
            AppendEntriesResponse::PartialSuccess(_) => {
                Err(self.target.unreachable("it acknowledged log entries that it was not sent"))
            }
            AppendEntriesResponse::Conflict => {
                let Some(denied) = previous.map(|id| id.index) else {
                    return Err(self.target.unreachable("it denied the beginning of the log"));
                };
                if Some(denied) > required.last {
                    return Ok(());
                }
                acknowledged.deny(follower, denied);
                if let Some(alarm) = acknowledged.alarm() {
                    self.target.peers().refusals().log(&alarm);
                }
                Err(self
                    .target
                    .unreachable(format!("it lost log entry {denied}, which it acknowledged")))
            }
            AppendEntriesResponse::HigherVote(_) => Ok(()),
        }
    }

    /// Makes a call and decodes its answer.
    async fn call<T, R>(
        &self,
        lane: Lane,
        timeout: Duration,
        call: impl AsyncFnOnce(Client) -> Result<Response<T>, Status>,
        read: impl FnOnce(T) -> Result<R, RecordError>,
    ) -> Result<R, Unreachable<Types>> {
        let client = self.target.client(lane).map_err(|e| self.target.unreachable(e))?;
        match tokio::time::timeout(timeout, call(client)).await {
            Ok(Ok(response)) => read(response.into_inner()).map_err(|e| self.target.unreachable(e)),
            Ok(Err(status)) => {
                if status.code() == Code::FailedPrecondition {
                    let (target, address) = (self.target.id(), self.target.address());
                    let refused = status.message();
                    let text = format!("replica {target} at {address} refuses calls: {refused}");
                    self.target.peers().refusals().log(&text);
                }
                Err(self.target.unreachable(status.message()))
            }
            Err(_) => Err(self.target.unreachable(format!("no answer within {timeout:?}"))),
        }
    }
}

impl RaftNetworkV2<Types> for Connection {
    type SnapshotData = SnapshotData;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        let header = self.target.header();
        let follower = self.target.follower(&header, &request.vote);
        // Read before the call is sent: answers to concurrent calls arrive in any order.
        let required = self.acknowledged().required(follower);
        let message = codec::append_to_proto(header, &request, required);
        let timeout = if request.entries.is_empty() {
            option.hard_ttl()
        } else {
            append_timeout(message.entries.iter().map(|entry| entry.record.len()).sum())
        };
        let call = async |mut client: Client| client.append(message).await;
        let answer = self.call(self.lane, timeout, call, codec::appended_from_proto).await?;
        self.note_answer(follower, required, &request, &answer)?;
        Ok(answer)
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        self.elections.stands_in(request.vote.leader_id().term);
        let message = codec::vote_request_to_proto(self.target.header(), &request);
        let call = async |mut client: Client| client.vote(message).await;
        Ok(self.call(Lane::Control, option.hard_ttl(), call, codec::voted_from_proto).await?)
    }

    /// Makes the call. openraft's default implementation would count a replica without an answer as a grant.
    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let message = codec::vote_request_to_proto(self.target.header(), &request);
        let call = async |mut client: Client| client.pre_vote(message).await;
        Ok(self.call(Lane::Control, option.hard_ttl(), call, codec::voted_from_proto).await?)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let (header, last) = (self.target.header(), snapshot.meta.last_log_id);
        let follower = self.target.follower(&header, &vote);
        let sent =
            transfer::send(&self.target, header, &vote, snapshot.snapshot, option.hard_ttl());
        let answer = tokio::select! {
            closed = cancel => return Err(closed.into()),
            sent = sent => sent?,
        };
        if answer.leader_id().term <= follower.term {
            self.acknowledged().add(follower, last, last);
        }
        Ok(SnapshotResponse::new(answer))
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        let message = codec::transfer_to_proto(self.target.header(), &request);
        let call = async |mut client: Client| client.transfer_leader(message).await;
        let read = |message: pb::TransferLeaderResponse| Ok(message.refused);
        let refused = self.call(Lane::Control, option.hard_ttl(), call, read).await?;
        if refused.is_empty() { Ok(Ok(())) } else { Err(self.target.unreachable(refused).into()) }
    }

    fn backoff(&self) -> Option<Backoff> {
        Some(Backoff::new(std::iter::repeat(RETRY_INTERVAL)))
    }
}
