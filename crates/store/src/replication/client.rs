//! Outgoing calls to other replicas.

use std::{collections::HashMap, fmt, future::Future, sync::Arc, time::Duration};

use chancery_proto::raft::v1::{self as pb, replication_client::ReplicationClient};
use openraft::{
    AnyError, OptionalSend, RaftNetworkFactory,
    errors::{RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::{Backoff, RPCOption, v2::RaftNetworkV2},
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
        TransferLeaderResponse, VoteRequest, VoteResponse,
    },
};
use parking_lot::Mutex;
use tonic::{
    Code, Response, Status,
    transport::{Channel, Endpoint},
};

use super::{
    acknowledged::{Acknowledged, Follower, Required},
    codec, connection,
    refusal_log::Refusals,
    tls::{HANDSHAKE_TIMEOUT, Tls},
};
use crate::{
    disk::snapshot::SnapshotData,
    format::{
        identity::Identity,
        raft::{LogId, Peer, Snapshot, StoredMembership, Types, Vote},
        raft_codec::log_id_to_proto,
        record::RecordError,
    },
    metrics::Elections,
};

/// The maximum time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The time after which the client sends a keepalive ping.
///
/// After a partition, pings detect dead connections earlier than TCP does.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum time for the answer to a keepalive ping.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(2);
/// The same on a connection for snapshots, where an answer may wait behind all data in transit. `transfer`
/// detects a stalled snapshot.
const BULK_KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(600);
/// The base of the maximum duration of an append with entries. The other replica must sync its disk,
/// which may be slow.
const APPEND_TIMEOUT: Duration = Duration::from_secs(10);
/// The number of bytes that extend [`APPEND_TIMEOUT`] by a second. With a fixed timeout, an entry that takes
/// longer would be sent again forever.
const APPEND_BYTES_PER_SECOND: usize = 512 << 10;
/// The time before the next call to a replica that was unreachable.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// The connection to a replica that a call uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Lane {
    /// Heartbeats, votes and other short calls.
    Control,
    /// Entries and writes.
    Data,
    /// Snapshots.
    Bulk,
}

impl Lane {
    fn keepalive_timeout(self) -> Duration {
        match self {
            Self::Control | Self::Data => KEEPALIVE_TIMEOUT,
            Self::Bulk => BULK_KEEPALIVE_TIMEOUT,
        }
    }
}

/// The connections to other replicas, by address. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Peers(Arc<Shared>);

struct Shared {
    message_bytes_max: usize,
    /// `None`: connections are not encrypted.
    tls: Option<Tls>,
    channels: Mutex<HashMap<(String, Lane), Channel>>,
    /// The current members. openraft keeps a connection when the address of a member changes.
    members: Mutex<Members>,
    acknowledged: Acknowledged,
    refusals: Refusals,
}

/// The current members.
#[derive(Default)]
struct Members {
    /// The entry that established the membership; `None` before there is one.
    id: Option<LogId>,
    peers: HashMap<u64, Peer>,
}

/// A client of one replica.
pub(crate) type Client = ReplicationClient<Channel>;

impl Peers {
    /// Creates an instance without connections. `message_bytes_max` is the maximum length of a message in
    /// bytes.
    pub(crate) fn new(message_bytes_max: usize, tls: Option<Tls>) -> Self {
        let (channels, members) = (Mutex::default(), Mutex::default());
        let (acknowledged, refusals) = (Acknowledged::default(), Refusals::default());
        Self(Arc::new(Shared { message_bytes_max, tls, channels, members, acknowledged, refusals }))
    }

    /// Returns the certificates; `None` if connections are not encrypted.
    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.0.tls.as_ref()
    }

    /// Sets the members and their addresses, and drops the connections to all other addresses.
    pub(crate) fn update(&self, membership: &StoredMembership) {
        let mut members = self.0.members.lock();
        if members.id == *membership.log_id() {
            return;
        }
        let peers: HashMap<u64, Peer> =
            membership.nodes().map(|(id, peer)| (*id, peer.clone())).collect();
        let known = |address: &String| peers.values().any(|peer| peer.address == *address);
        self.0.channels.lock().retain(|(address, _), _| known(address));
        self.0.acknowledged.retain(membership);
        *members = Members { id: *membership.log_id(), peers };
    }

    /// Returns the log entries that other replicas acknowledged to this one.
    pub(crate) fn acknowledged(&self) -> &Acknowledged {
        &self.0.acknowledged
    }

    /// Returns the header of a call of this replica to a member.
    pub(crate) fn header(&self, identity: Identity, to: u64) -> pb::Header {
        let members = self.0.members.lock();
        pb::Header {
            to_instance: members.peers.get(&to).map_or(0, |peer| peer.instance),
            membership_id: members.id.as_ref().map(log_id_to_proto),
            ..codec::header(identity, to)
        }
    }

    /// Returns a client of the replica at `address`. The client connects on first use, and again after the
    /// connection breaks. The caller must be on the runtime of the store, here and when it uses the client.
    pub(crate) fn client(&self, address: &str, lane: Lane) -> Result<Client, Status> {
        let mut channels = self.0.channels.lock();
        let channel = match channels.get(&(address.to_owned(), lane)) {
            Some(channel) => channel.clone(),
            None => {
                let channel = self.connect(address, lane)?;
                channels.insert((address.to_owned(), lane), channel.clone());
                channel
            }
        };
        let max = self.0.message_bytes_max;
        Ok(ReplicationClient::new(channel)
            .max_decoding_message_size(max)
            .max_encoding_message_size(max))
    }

    fn connect(&self, address: &str, lane: Lane) -> Result<Channel, Status> {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| {
            Status::invalid_argument(format!(
                "{address:?} is not the address of a replica: {error}"
            ))
        })?;
        let connect_timeout = match self.0.tls {
            Some(_) => CONNECT_TIMEOUT + HANDSHAKE_TIMEOUT,
            None => CONNECT_TIMEOUT,
        };
        let endpoint = endpoint
            .connect_timeout(connect_timeout)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(lane.keepalive_timeout())
            .keep_alive_while_idle(true)
            .initial_stream_window_size(4 << 20)
            .initial_connection_window_size(8 << 20);
        Ok(match &self.0.tls {
            Some(tls) => connection::connect_lazily(&endpoint, address, tls),
            None => endpoint.connect_lazy(),
        })
    }
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers").finish_non_exhaustive()
    }
}

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
    identity: Identity,
    peers: Peers,
    elections: Elections,
    target: u64,
    /// The peer at the creation of the connection.
    peer: Peer,
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
    fn connection(&self, target: u64, peer: &Peer, lane: Lane) -> Connection {
        let Self { identity, peers, elections } = self.clone();
        Connection { identity, peers, elections, target, peer: peer.clone(), lane }
    }
}

/// Returns the maximum duration of an append with entries of `bytes` bytes.
fn append_timeout(bytes: usize) -> Duration {
    let seconds = u64::try_from(bytes / APPEND_BYTES_PER_SECOND).unwrap_or(u64::MAX);
    APPEND_TIMEOUT.saturating_add(Duration::from_secs(seconds))
}

fn unreachable(target: u64, address: &str, error: impl fmt::Display) -> Unreachable<Types> {
    Unreachable::new(&AnyError::error(format!("replica {target} at {address}: {error}")))
}

impl Connection {
    /// Creates a connection without a network.
    #[cfg(test)]
    pub(super) fn for_test(identity: Identity, peers: Peers, target: u64, address: &str) -> Self {
        let elections = crate::metrics::StoreMetrics::new().cluster.elections;
        let peer = Peer { address: address.to_owned(), ..Peer::default() };
        Self { identity, peers, elections, target, peer, lane: Lane::Data }
    }

    /// Returns the connections of this replica.
    #[cfg(test)]
    pub(super) fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Returns a client of the replica at its current address.
    pub(super) fn client(&self, lane: Lane) -> Result<Client, Status> {
        self.peers.client(&self.address(), lane)
    }

    /// Returns the ID of the callee.
    pub(super) fn target(&self) -> u64 {
        self.target
    }

    /// Returns the identity of the caller.
    pub(super) fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns the header of a call to the current member. If its instance is unknown, the header names the
    /// instance at the creation of the connection.
    pub(super) fn header(&self) -> pb::Header {
        let mut header = self.peers.header(self.identity, self.target);
        if header.to_instance == 0 {
            header.to_instance = self.peer.instance;
        }
        header
    }

    pub(super) fn unreachable(&self, error: impl fmt::Display) -> Unreachable<Types> {
        unreachable(self.target, &self.address(), error)
    }

    /// Returns the current address of the replica.
    fn address(&self) -> String {
        let members = self.peers.0.members.lock();
        members.peers.get(&self.target).unwrap_or(&self.peer).address.clone()
    }

    /// Returns the callee of a call with this header, which this replica makes as the leader with this vote.
    fn follower(&self, header: &pb::Header, vote: &Vote) -> Follower {
        let (replica_id, instance) = (self.target, header.to_instance);
        Follower { replica_id, instance, term: vote.leader_id().term }
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
        let acknowledged = &self.peers.0.acknowledged;
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
                Err(self.unreachable("it acknowledged log entries that it was not sent"))
            }
            AppendEntriesResponse::Conflict => {
                let Some(denied) = previous.map(|id| id.index) else {
                    return Err(self.unreachable("it denied the beginning of the log"));
                };
                if Some(denied) > required.last {
                    return Ok(());
                }
                acknowledged.deny(follower, denied);
                if let Some(alarm) = acknowledged.alarm() {
                    self.peers.0.refusals.tell(&alarm);
                }
                Err(self.unreachable(format!("it lost log entry {denied}, which it acknowledged")))
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
        let client = self.client(lane).map_err(|e| self.unreachable(e))?;
        match tokio::time::timeout(timeout, call(client)).await {
            Ok(Ok(response)) => read(response.into_inner()).map_err(|e| self.unreachable(e)),
            Ok(Err(status)) => {
                if status.code() == Code::FailedPrecondition {
                    let (target, address) = (self.target, self.address());
                    let refused = status.message();
                    let text = format!("replica {target} at {address} refuses calls: {refused}");
                    self.peers.0.refusals.tell(&text);
                }
                Err(self.unreachable(status.message()))
            }
            Err(_) => Err(self.unreachable(format!("no answer within {timeout:?}"))),
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
        let header = self.header();
        let follower = self.follower(&header, &request.vote);
        // Read before the call is sent: answers to concurrent calls arrive in any order.
        let required = self.peers.0.acknowledged.required(follower);
        let message = codec::append_to_proto(header, &request, required);
        let timeout = match request.entries.is_empty() {
            true => option.hard_ttl(),
            false => append_timeout(message.entries.iter().map(|entry| entry.record.len()).sum()),
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
        let message = codec::vote_request_to_proto(self.header(), &request);
        let call = async |mut client: Client| client.vote(message).await;
        Ok(self.call(Lane::Control, option.hard_ttl(), call, codec::voted_from_proto).await?)
    }

    /// Makes the call. openraft's default implementation would count a replica without an answer as a grant.
    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let message = codec::vote_request_to_proto(self.header(), &request);
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
        let (header, last) = (self.header(), snapshot.meta.last_log_id);
        let follower = self.follower(&header, &vote);
        let sent = self.send_snapshot(header, &vote, snapshot.snapshot, option.hard_ttl());
        let answer = tokio::select! {
            closed = cancel => return Err(closed.into()),
            sent = sent => sent?,
        };
        if answer.leader_id().term <= follower.term {
            self.peers.0.acknowledged.add(follower, last, last);
        }
        Ok(SnapshotResponse::new(answer))
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        let message = codec::transfer_to_proto(self.header(), &request);
        let call = async |mut client: Client| client.transfer_leader(message).await;
        let read = |message: pb::TransferLeaderResponse| Ok(message.refused);
        let refused = self.call(Lane::Control, option.hard_ttl(), call, read).await?;
        match refused.is_empty() {
            true => Ok(Ok(())),
            false => Err(self.unreachable(refused).into()),
        }
    }

    fn backoff(&self) -> Option<Backoff> {
        Some(Backoff::new(std::iter::repeat(RETRY_INTERVAL)))
    }
}
