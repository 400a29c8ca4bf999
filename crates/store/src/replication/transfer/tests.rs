//! Transfers of snapshots to slow and to stalled receivers.

use std::sync::Arc;

use chancery_model::Incarnation;
use openraft::storage::RaftStateMachine;
use pb::replication_server::{Replication, ReplicationServer};
use tokio::{net::TcpListener, time::sleep};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Response, Status, Streaming};

use super::*;
use crate::{
    disk::{
        database::{Access, Database},
        image::Image,
        machine::Machine,
    },
    failure::Failure,
    format::{codec::Command, identity::Identity, raft::Peer},
    metrics::StoreMetrics,
    replication::peers::Peers,
};

/// The stall timeout. A busy machine may delay a receiver for a second.
const STALL: Duration = Duration::from_secs(3);
/// The pause of a slow receiver between two steps.
const PAUSE: Duration = Duration::from_millis(200);
/// The duration of a slow transfer, much longer than [`STALL`].
const LONG: Duration = Duration::from_secs(8);
/// The size of the snapshot, larger than the HTTP/2 windows of a connection.
const SNAPSHOT_BYTES: usize = 24 << 20;

/// The behavior of a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behavior {
    /// It takes all pieces, and then writes for [`LONG`].
    WritesSlowly,
    /// It takes all pieces, and then makes no progress.
    WritesNothing,
    /// It takes one piece after the other, for [`LONG`].
    ReadsSlowly,
    /// It takes no piece.
    ReadsNothing,
}

#[derive(Clone)]
struct Receiver {
    habit: Behavior,
    progress: Progress,
}

type Answer<T> = Result<Response<T>, Status>;

fn unexpected_call<T>() -> Answer<T> {
    Err(Status::unimplemented("the sender of a snapshot makes no other calls"))
}

#[tonic::async_trait]
impl Replication for Receiver {
    async fn install(
        &self,
        request: Request<Streaming<pb::InstallRequest>>,
    ) -> Answer<pb::InstallResponse> {
        let mut pieces = request.into_inner();
        let first = pieces.next().await.unwrap()?;
        assert!(first.header.is_some() && first.vote.is_some());
        let start = Instant::now();
        let mut bytes = first.data.len();
        if self.habit == Behavior::ReadsNothing {
            std::future::pending::<()>().await;
        }
        while let Some(piece) = pieces.next().await {
            bytes += piece?.data.len();
            if self.habit == Behavior::ReadsSlowly && start.elapsed() < LONG {
                // The receiver does not count these bytes: taking pieces is progress enough.
                sleep(PAUSE).await;
            }
        }
        assert!(bytes >= SNAPSHOT_BYTES, "{bytes}");
        match self.habit {
            Behavior::WritesNothing => std::future::pending::<()>().await,
            Behavior::WritesSlowly => {
                while start.elapsed() < LONG {
                    self.progress.add(1);
                    sleep(PAUSE).await;
                }
            }
            Behavior::ReadsSlowly | Behavior::ReadsNothing => {}
        }
        Ok(Response::new(pb::InstallResponse { vote: first.vote }))
    }

    async fn hello(&self, _: Request<pb::HelloRequest>) -> Answer<pb::HelloResponse> {
        let snapshot_progress = self.progress.bytes();
        Ok(Response::new(pb::HelloResponse { snapshot_progress, ..pb::HelloResponse::default() }))
    }

    async fn append(&self, _: Request<pb::AppendRequest>) -> Answer<pb::AppendResponse> {
        unexpected_call()
    }

    async fn vote(&self, _: Request<pb::VoteRequest>) -> Answer<pb::VoteResponse> {
        unexpected_call()
    }

    async fn pre_vote(&self, _: Request<pb::VoteRequest>) -> Answer<pb::VoteResponse> {
        unexpected_call()
    }

    async fn transfer_leader(
        &self,
        _: Request<pb::TransferLeaderRequest>,
    ) -> Answer<pb::TransferLeaderResponse> {
        unexpected_call()
    }

    async fn write(&self, _: Request<pb::WriteRequest>) -> Answer<pb::WriteResponse> {
        unexpected_call()
    }

    async fn read_index(&self, _: Request<pb::ReadIndexRequest>) -> Answer<pb::ReadIndexResponse> {
        unexpected_call()
    }

    async fn change(&self, _: Request<pb::ChangeRequest>) -> Answer<pb::ChangeResponse> {
        unexpected_call()
    }

    async fn digests(&self, _: Request<pb::DigestsRequest>) -> Answer<pb::DigestsResponse> {
        unexpected_call()
    }

    async fn ask(&self, _: Request<pb::AskRequest>) -> Answer<pb::AskResponse> {
        unexpected_call()
    }

    async fn join(&self, _: Request<pb::JoinRequest>) -> Answer<pb::JoinResponse> {
        unexpected_call()
    }
}

/// Returns a snapshot of [`SNAPSHOT_BYTES`].
fn snapshot() -> SnapshotData {
    use chancery_model::{
        ResourceDraft, ResourceKey, ResourceName, ScopeName, Transaction, TypeUrl, Upsert, types,
    };
    let upsert = |n: usize| {
        let key = ResourceKey {
            type_url: TypeUrl::from_static(types::CLUSTER),
            name: ResourceName::new(&format!("r{n}")).unwrap(),
        };
        let body = Bytes::from(vec![7; 1 << 20]);
        Upsert { scope: ScopeName::new("default").unwrap(), draft: ResourceDraft::new(key, body) }
    };
    let upserts = (0..SNAPSHOT_BYTES >> 20).map(upsert).collect();
    let transaction = Box::new(Transaction { upserts, ..Transaction::default() });
    let (mut image, mut edits) = (Image::new(), Vec::new());
    image.apply(Command::Form { cluster_id: [9; 16], incarnation: Incarnation(1) }, &mut edits);
    image.apply(
        Command::Transact { transaction, request: None, retention: crate::Retention::default() },
        &mut edits,
    );
    SnapshotData::without_content(image)
}

/// Sends a snapshot to a receiver, and returns the result and the duration.
async fn send_to(habit: Behavior) -> (Result<Vote, Unreachable<Types>>, Duration) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let receiver = Receiver { habit, progress: Progress::default() };
    let server = tonic::transport::Server::builder()
        .add_service(ReplicationServer::new(receiver))
        .serve_with_incoming(TcpListenerStream::new(listener));
    let server = tokio::spawn(server);
    let (cluster_id, incarnation) = ([9; 16], Incarnation(1));
    let own = Identity { cluster_id, replica_id: 1, incarnation, instance: 1 };
    let peer = Peer { address, ..Peer::default() };
    let target = Target::new(own, Peers::new(4 << 20, None), 2, peer);
    let start = Instant::now();
    let (header, vote) = (target.header(), Vote::new_committed(3, 1));
    let sent = send(&target, header, &vote, snapshot(), STALL).await;
    let took = start.elapsed();
    server.abort();
    (sent, took)
}

/// Raft retries to send snapshots to a replica that is down. This test has no Tokio runtime, so `spawn_blocking` would
/// panic if encoding began before the first piece is requested.
#[test]
fn snapshot_is_not_encoded_before_the_first_piece_is_requested() {
    drop(pieces_of(SnapshotData::without_content(Image::new()), Contents::Include));
}

/// A snapshot arrives even if it takes many times the stall timeout, with a slow network and with a slow
/// disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_receiver_gets_the_whole_snapshot() {
    let (reads, writes) =
        tokio::join!(send_to(Behavior::ReadsSlowly), send_to(Behavior::WritesSlowly));
    for (sent, took) in [reads, writes] {
        assert_eq!(sent.unwrap(), Vote::new_committed(3, 1));
        assert!(took >= LONG, "{took:?}");
    }
}

/// Written bytes count as progress. After the last piece, the sender sees no other progress.
#[tokio::test(flavor = "multi_thread")]
async fn snapshot_writes_count_as_progress() {
    let dir = tempfile::tempdir().unwrap();
    let database = Arc::new(Database::open(dir.path(), Access::Create).unwrap());
    let (failure, metrics) = (Failure::default(), StoreMetrics::new());
    let secrets = chancery_secrets::Secrets::default();
    let mut machine = Machine::new(database, Image::new(), 0, failure, metrics, secrets);
    let progress = machine.progress();
    let snapshot = snapshot();
    assert_eq!(progress.bytes(), 0);
    machine.install_snapshot(&snapshot.meta(), snapshot.clone()).await.unwrap();
    assert!(progress.bytes() >= SNAPSHOT_BYTES as u64, "{progress:?}");
}

/// The sender gives up a stalled transfer, so that it can start again.
#[tokio::test(flavor = "multi_thread")]
async fn stalled_receiver_aborts_the_transfer() {
    let (reads, writes) =
        tokio::join!(send_to(Behavior::ReadsNothing), send_to(Behavior::WritesNothing));
    for (sent, took) in [reads, writes] {
        let error = sent.unwrap_err().to_string();
        let reason = format!("it took or wrote nothing of the snapshot for {STALL:?}");
        assert!(error.contains(&reason), "{error}");
        assert!(took >= STALL, "{took:?}");
    }
}
