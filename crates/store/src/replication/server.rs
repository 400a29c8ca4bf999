//! Incoming calls on the replication port.
//!
//! The port listens before the replica runs, so that others can learn its identity. Until then every call
//! except Hello fails with UNAVAILABLE. A replica with data reports its cluster from the beginning. If it
//! reported none, another replica could form a second cluster.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use chancery_raft_proto::v1::{
    self as pb,
    replication_server::{Replication, ReplicationServer},
};
use futures::{StreamExt, future::join_all};
use openraft::EntryPayload;
use tokio::net::TcpListener;
use tonic::{Request, Response, Status, Streaming};

use super::{
    accept, answer, codec, core::Core, hello, instance, protocol, refusal_log::Refusals, tls::Tls,
};
use crate::{
    disk::{
        entry_check,
        preparer::Preparer,
        snapshot::{Decoder, Snapshot},
    },
    format::{
        identity::Identity,
        prepared::{PREPARED_BYTES_MIN, Preparation},
        raft::{EncodedCommand, Entry},
        raft_codec::{vote_from_proto, vote_to_proto},
        record::RecordError,
    },
};

/// The gRPC service that answers other replicas. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Service {
    replica_id: u64,
    /// The identity in the data directory; `None` if the directory is empty.
    identity: Option<Identity>,
    /// See [`Core::process`].
    process: u64,
    core: Arc<OnceLock<Arc<Core>>>,
    refusals: Arc<Refusals>,
}

type Answer<T> = Result<Response<T>, Status>;

impl Service {
    /// Creates the service of a replica that does not run yet. A replica without an identity is in no
    /// cluster.
    pub(crate) fn new(replica_id: u64, identity: Option<Identity>, process: u64) -> Self {
        Self { replica_id, identity, process, core: Arc::default(), refusals: Arc::default() }
    }

    /// Connects the service to the replica, which runs as a member from now on.
    pub(crate) fn join(&self, core: Arc<Core>) {
        // Only the start of the replica calls this, once.
        drop(self.core.set(core));
    }

    /// Serves a port.
    pub(crate) async fn serve(
        self,
        listener: TcpListener,
        message_bytes_max: usize,
        connections_max: usize,
        tls: Option<Tls>,
    ) {
        let service = ReplicationServer::new(self)
            .max_decoding_message_size(message_bytes_max)
            .max_encoding_message_size(message_bytes_max);
        accept::serve(listener, service, tls, connections_max).await;
    }

    fn core(&self) -> Result<&Arc<Core>, Status> {
        self.core.get().ok_or_else(|| {
            let state =
                if self.identity.is_some() { "is starting" } else { "is in no cluster yet" };
            Status::unavailable(format!("replica {} {state}", self.replica_id))
        })
    }

    /// Returns the replica if the call is for it, its state is not known to be wrong, and Raft runs.
    fn checked(&self, header: Option<&pb::Header>) -> Result<&Arc<Core>, Status> {
        let core = self.checked_header(header)?;
        if let Some(reason) = core.divergence.reason() {
            return Err(Status::failed_precondition(&*reason));
        }
        if core.node.has_ended() {
            let reason = core.failure.get().unwrap_or("Raft has stopped");
            return Err(Status::unavailable(format!("replica {} has failed: {reason}", core.id())));
        }
        Ok(core)
    }

    /// Returns the replica if the call is for it.
    fn checked_header(&self, header: Option<&pb::Header>) -> Result<&Arc<Core>, Status> {
        let core = self.core()?;
        let header = header.ok_or_else(|| Status::invalid_argument("the header is missing"))?;
        check_header(core.identity, header)
            .inspect_err(|error| self.refusals.log(&format!("a call was refused: {error}")))
            .and_then(|()| instance::check_callee(core.identity, header))
            .and_then(|()| instance::check_caller(&core.node.membership(), header))
            .map_err(Status::failed_precondition)?;
        Ok(core)
    }
}

/// Checks that a call comes from the same cluster and incarnation, and is for the ID of this replica.
fn check_header(own: Identity, header: &pb::Header) -> Result<(), String> {
    let from = header.from;
    protocol::check(header.protocol.as_ref())
        .map_err(|error| format!("replica {from} is refused: {error}"))?;
    if header.cluster_id[..] != own.cluster_id {
        return Err(format!(
            "replica {from} is in cluster {}, this replica in cluster {}",
            hex::encode(&header.cluster_id),
            hex::encode(own.cluster_id)
        ));
    }
    if header.incarnation != own.incarnation.0 {
        return Err(format!(
            "replica {from} has incarnation {}, this replica {}: one of them was restored from a backup",
            header.incarnation, own.incarnation.0
        ));
    }
    if header.to != own.replica_id {
        return Err(format!(
            "the call of replica {from} is for replica {}, but this is replica {}: the membership has a \
             wrong address",
            header.to, own.replica_id
        ));
    }
    Ok(())
}

/// Begins to prepare a large command of an entry, which is applied later.
fn prepare(entry: &mut Entry, preparer: &Preparer) {
    let EntryPayload::Normal(command) = &mut entry.payload else { return };
    if command.bytes.len() < PREPARED_BYTES_MIN {
        return;
    }
    let preparation = Arc::new(Preparation::in_progress());
    let (bytes, begun) = (command.bytes.clone(), Begun(Arc::clone(&preparation)));
    let preparer = preparer.clone();
    *command = EncodedCommand::with(command.bytes.clone(), preparation);
    tokio::task::spawn_blocking(move || begun.0.finish(preparer.prepare(&bytes)));
}

/// Ends a preparation even if its thread panics or never starts.
struct Begun(Arc<Preparation>);

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

fn invalid(error: RecordError) -> Status {
    Status::invalid_argument(error.to_string())
}

fn stopped(error: impl std::fmt::Display) -> Status {
    Status::unavailable(format!("Raft has stopped: {error}"))
}

#[tonic::async_trait]
impl Replication for Service {
    async fn append(&self, request: Request<pb::AppendRequest>) -> Answer<pb::AppendResponse> {
        let message = request.into_inner();
        let core = self.checked(message.header.as_ref())?;
        let from = message.header.as_ref().map_or(0, |header| header.from);
        let (acknowledged, committed) = (message.acknowledged, message.acknowledged_committed);
        let mut request = codec::append_from_proto(message).map_err(invalid)?;
        let preparer = &core.storage.preparer;
        request.entries.iter_mut().for_each(|entry| prepare(entry, preparer));
        let previous = request.prev_log_id.map(|id| id.index);
        // Raft skips entries whose log ids it has.
        if let Err(other) = entry_check::check(&core.storage.log, &request.entries, from).await {
            core.divergence.stop(&other.to_string());
            return Err(Status::data_loss(other.to_string()));
        }
        core.node.note_leader(request.vote.leader_id().term);
        let last = core.lost_entries.last_held();
        let response = core.node.raft.append_entries(request).await.map_err(stopped)?;
        if response.is_conflict() && previous.is_some() && previous <= acknowledged {
            // Raft has verified that the caller leads, and that this replica lacks the entry.
            core.lost_entries.stop(previous, from);
        } else if last.is_some_and(|last| last < committed) {
            core.lost_entries.stop(committed, from);
            return Err(Status::failed_precondition("it lost log entries that it acknowledged"));
        }
        Ok(Response::new(codec::appended_to_proto(&response)))
    }

    async fn vote(&self, request: Request<pb::VoteRequest>) -> Answer<pb::VoteResponse> {
        let message = request.into_inner();
        let core = self.checked(message.header.as_ref())?;
        let request = codec::vote_request_from_proto(message).map_err(invalid)?;
        let response = core.node.raft.vote(request).await.map_err(stopped)?;
        Ok(Response::new(codec::voted_to_proto(&response)))
    }

    async fn pre_vote(&self, request: Request<pb::VoteRequest>) -> Answer<pb::VoteResponse> {
        let message = request.into_inner();
        let core = self.checked(message.header.as_ref())?;
        let request = codec::vote_request_from_proto(message).map_err(invalid)?;
        let response = core.node.raft.pre_vote(request).await.map_err(stopped)?;
        Ok(Response::new(codec::voted_to_proto(&response)))
    }

    async fn install(
        &self,
        request: Request<Streaming<pb::InstallRequest>>,
    ) -> Answer<pb::InstallResponse> {
        let mut pieces = request.into_inner();
        let mut first = pieces
            .next()
            .await
            .ok_or_else(|| Status::invalid_argument("the snapshot is empty"))??;
        let core = Arc::clone(self.checked(first.header.as_ref())?);
        let vote = first.vote.as_ref().map(vote_from_proto);
        let vote = vote.ok_or_else(|| Status::invalid_argument("the vote is missing"))?;
        let mut decoder = Decoder::default().writing_to(core.storage.database.clone());
        let damaged = |error| Status::data_loss(format!("the snapshot is damaged: {error}"));
        let mut data: Bytes = std::mem::take(&mut first.data);
        loop {
            decoder.push(&data).map_err(damaged)?;
            core.storage.snapshot_progress.add(data.len());
            match pieces.next().await {
                Some(piece) => data = piece?.data,
                None => break,
            }
        }
        // A large snapshot takes long to decode, and the threads of the runtime must answer heartbeats.
        let snapshot = tokio::task::spawn_blocking(|| decoder.finish()).await.map_err(stopped)?;
        let snapshot = snapshot.map_err(damaged)?;
        let expected = core.identity.cluster_id;
        if snapshot.image.cluster_id.is_some_and(|found| found != expected) {
            return Err(Status::failed_precondition("the snapshot is from another cluster"));
        }
        let snapshot = Snapshot { meta: snapshot.meta(), snapshot };
        let response =
            core.node.raft.install_full_snapshot(vote, snapshot).await.map_err(stopped)?;
        core.metrics.snapshots_installed.increment(1);
        Ok(Response::new(pb::InstallResponse { vote: Some(vote_to_proto(&response.vote)) }))
    }

    async fn transfer_leader(
        &self,
        request: Request<pb::TransferLeaderRequest>,
    ) -> Answer<pb::TransferLeaderResponse> {
        let message = request.into_inner();
        let core = self.checked(message.header.as_ref())?;
        let request = codec::transfer_from_proto(message).map_err(invalid)?;
        let answer = core.node.raft.handle_transfer_leader(request).await.map_err(stopped)?;
        let refused = answer.err().map(|error| error.to_string()).unwrap_or_default();
        Ok(Response::new(pb::TransferLeaderResponse { refused }))
    }

    async fn write(&self, request: Request<pb::WriteRequest>) -> Answer<pb::WriteResponse> {
        let message = request.into_inner();
        let core = self.checked(message.header.as_ref())?;
        let results =
            join_all(message.commands.into_iter().map(|command| core.forwarder.answer(command)));
        Ok(Response::new(pb::WriteResponse { results: results.await }))
    }

    async fn read_index(
        &self,
        request: Request<pb::ReadIndexRequest>,
    ) -> Answer<pb::ReadIndexResponse> {
        let core = self.checked(request.get_ref().header.as_ref())?;
        Ok(Response::new(core.read_index.answer().await))
    }

    async fn change(&self, request: Request<pb::ChangeRequest>) -> Answer<pb::ChangeResponse> {
        let message = request.into_inner();
        let core = self.checked(message.header.as_ref())?;
        let change =
            message.change.ok_or_else(|| Status::invalid_argument("the change is missing"))?;
        Ok(Response::new(core.members.answer(change).await))
    }

    async fn digests(&self, request: Request<pb::DigestsRequest>) -> Answer<pb::DigestsResponse> {
        let message = request.into_inner();
        // Answered even if the state is wrong: this is how the other replicas find out.
        let core = self.checked_header(message.header.as_ref())?;
        Ok(Response::new(core.comparison.answer(&message.indexes)))
    }

    async fn ask(&self, request: Request<pb::AskRequest>) -> Answer<pb::AskResponse> {
        let message = request.into_inner();
        let core = self.checked_header(message.header.as_ref())?;
        // A replica whose Raft has stopped still serves clients, and can answer.
        if let Some(reason) = core.divergence.reason() {
            return Ok(Response::new(answer::diverged(&reason)));
        }
        let states = core.storage.published.watch();
        Ok(Response::new(core.answering.answer(message, states).await))
    }

    async fn hello(&self, request: Request<pb::HelloRequest>) -> Answer<pb::HelloResponse> {
        let identity = self.identity.as_ref();
        let idle = || pb::HelloResponse {
            replica_id: self.replica_id,
            cluster_id: identity.map(|own| own.cluster_id.to_vec().into()).unwrap_or_default(),
            incarnation: identity.map_or(0, |own| own.incarnation.0),
            instance: identity.map_or(0, |own| own.instance),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: Some(protocol::own()),
            process: self.process,
            ..pb::HelloResponse::default()
        };
        let hello = self.core.get().map(|core| hello::answer(core, request.get_ref()));
        Ok(Response::new(hello.unwrap_or_else(idle)))
    }

    async fn join(&self, request: Request<pb::JoinRequest>) -> Answer<pb::JoinResponse> {
        let pb::JoinRequest { peer, protocol } = request.into_inner();
        let core = self.core()?;
        if let Err(error) = protocol::check(protocol.as_ref()) {
            let result = Some(pb::join_response::Result::Refused(error));
            return Ok(Response::new(pb::JoinResponse { result, ..pb::JoinResponse::default() }));
        }
        Ok(Response::new(core.admitter.answer(peer.unwrap_or_default()).await))
    }
}

#[cfg(test)]
mod tests {
    use chancery_model::Incarnation;

    use super::*;

    /// Calls from another cluster or incarnation, for another replica, or with an unsupported protocol.
    #[test]
    fn call_header_for_another_replica_is_rejected() {
        let (cluster_id, incarnation) = ([7; 16], Incarnation(5));
        let own = Identity { cluster_id, replica_id: 2, incarnation, instance: 9 };
        let caller = Identity { replica_id: 1, ..own };
        let error = |caller, to| check_header(own, &codec::header(caller, to)).unwrap_err();
        assert_eq!(check_header(own, &codec::header(caller, 2)), Ok(()));
        assert!(error(caller, 3).contains("is for replica 3, but this is replica 2"));
        let mut newer = codec::header(caller, 2);
        newer.protocol = Some(pb::Protocol { oldest: 7, newest: 8 });
        let refused = check_header(own, &newer).unwrap_err();
        assert!(refused.contains("replica 1 is refused: it supports version 7 to 8"), "{refused}");
        let other = Identity { cluster_id: [8; 16], ..caller };
        assert!(error(other, 2).starts_with("replica 1 is in cluster 0808"));
        let other = Identity { incarnation: Incarnation(6), ..caller };
        assert!(error(other, 2).contains("has incarnation 6, this replica 5"));
    }
}
