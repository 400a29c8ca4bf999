//! What a snapshot's sender does with receivers that are slow, and with those that are stuck.

use chancery_model::Incarnation;
use openraft::storage::RaftStateMachine;
use pb::replication_server::{Replication, ReplicationServer};
use tokio::{net::TcpListener, time::sleep};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Response, Status, Streaming};

use super::*;
use crate::{
    cluster::client::Peers,
    codec::Ask,
    database::{Access, Database},
    failure::Failure,
    identity::Identity,
    image::Image,
    machine::Machine,
    metrics::StoreMetrics,
};

/// Nothing may stand still for longer.
const STALL: Duration = Duration::from_secs(1);
/// Much longer than that.
const LONG: Duration = Duration::from_secs(4);
/// More than the windows of a connection hold.
const SNAPSHOT_BYTES: usize = 24 << 20;

/// What a receiver does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Habit {
    /// It takes all pieces, and then writes for a long time.
    WritesSlowly,
    /// It takes all pieces, and is never heard of again.
    WritesNothing,
    /// It takes one piece after the other, for a long time.
    ReadsSlowly,
    /// It takes no piece.
    ReadsNothing,
}

#[derive(Clone)]
struct Receiver {
    habit: Habit,
    progress: Progress,
}

type Answer<T> = Result<Response<T>, Status>;

fn nobody_asks<T>() -> Answer<T> {
    Err(Status::unimplemented("a sender of snapshots asks for nothing else"))
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
        if self.habit == Habit::ReadsNothing {
            std::future::pending::<()>().await;
        }
        while let Some(piece) = pieces.next().await {
            bytes += piece?.data.len();
            if self.habit == Habit::ReadsSlowly && start.elapsed() < LONG {
                // Not counted: that pieces are taken is enough.
                sleep(STALL / 5).await;
            }
        }
        assert!(bytes >= SNAPSHOT_BYTES, "{bytes}");
        match self.habit {
            Habit::WritesNothing => std::future::pending::<()>().await,
            Habit::WritesSlowly => {
                while start.elapsed() < LONG {
                    self.progress.add(1);
                    sleep(STALL / 5).await;
                }
            }
            Habit::ReadsSlowly | Habit::ReadsNothing => {}
        }
        Ok(Response::new(pb::InstallResponse { vote: first.vote }))
    }

    async fn hello(&self, _: Request<pb::HelloRequest>) -> Answer<pb::HelloResponse> {
        let snapshot_progress = self.progress.bytes();
        Ok(Response::new(pb::HelloResponse { snapshot_progress, ..pb::HelloResponse::default() }))
    }

    async fn append(&self, _: Request<pb::AppendRequest>) -> Answer<pb::AppendResponse> {
        nobody_asks()
    }

    async fn vote(&self, _: Request<pb::VoteRequest>) -> Answer<pb::VoteResponse> {
        nobody_asks()
    }

    async fn pre_vote(&self, _: Request<pb::VoteRequest>) -> Answer<pb::VoteResponse> {
        nobody_asks()
    }

    async fn transfer_leader(
        &self,
        _: Request<pb::TransferLeaderRequest>,
    ) -> Answer<pb::TransferLeaderResponse> {
        nobody_asks()
    }

    async fn write(&self, _: Request<pb::WriteRequest>) -> Answer<pb::WriteResponse> {
        nobody_asks()
    }

    async fn read_index(&self, _: Request<pb::ReadIndexRequest>) -> Answer<pb::ReadIndexResponse> {
        nobody_asks()
    }

    async fn change(&self, _: Request<pb::ChangeRequest>) -> Answer<pb::ChangeResponse> {
        nobody_asks()
    }

    async fn digests(&self, _: Request<pb::DigestsRequest>) -> Answer<pb::DigestsResponse> {
        nobody_asks()
    }

    async fn join(&self, _: Request<pb::JoinRequest>) -> Answer<pb::JoinResponse> {
        nobody_asks()
    }
}

/// A snapshot of many bytes.
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
    image.apply(Ask::Form { cluster_id: [9; 16], incarnation: Incarnation(1) }, &mut edits);
    image.apply(Ask::Transact { transaction, request: None }, &mut edits);
    SnapshotData(Arc::new(image))
}

/// Sends a snapshot to a receiver of such a habit. What came of it, and how long it took.
async fn send_to(habit: Habit) -> (Result<Vote, Unreachable<Types>>, Duration) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let receiver = Receiver { habit, progress: Progress::default() };
    let server = tonic::transport::Server::builder()
        .add_service(ReplicationServer::new(receiver))
        .serve_with_incoming(TcpListenerStream::new(listener));
    let server = tokio::spawn(server);
    let (cluster_id, incarnation) = ([9; 16], Incarnation(1));
    let own = Identity { cluster_id, replica_id: 1, incarnation, instance: 1 };
    let connection = Connection::for_test(own, Peers::new(4 << 20, None), 2, &address);
    let start = Instant::now();
    let (header, vote) = (connection.header(), Vote::new_committed(3, 1));
    let sent = connection.send_snapshot(header, &vote, snapshot(), STALL).await;
    let took = start.elapsed();
    server.abort();
    (sent, took)
}

/// Issue 4: a snapshot that takes many times as long as nothing may happen arrives, whether it is the network
/// that is slow or the disk behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_receiver_gets_the_whole_snapshot() {
    let (reads, writes) = tokio::join!(send_to(Habit::ReadsSlowly), send_to(Habit::WritesSlowly));
    for (sent, took) in [reads, writes] {
        assert_eq!(sent.unwrap(), Vote::new_committed(3, 1));
        assert!(took >= LONG, "{took:?}");
    }
}

/// What is written of a snapshot is counted: the sender hears of nothing else by then.
#[tokio::test(flavor = "multi_thread")]
async fn writing_a_snapshot_is_progress() {
    let dir = tempfile::tempdir().unwrap();
    let database = Arc::new(Database::open(dir.path(), Access::Create).unwrap());
    let (failure, metrics) = (Failure::default(), StoreMetrics::new());
    let mut machine = Machine::new(database, Image::new(), 0, failure, metrics);
    let progress = machine.progress();
    let snapshot = snapshot();
    assert_eq!(progress.bytes(), 0);
    machine.install_snapshot(&snapshot.meta(), snapshot.clone()).await.unwrap();
    assert!(progress.bytes() >= SNAPSHOT_BYTES as u64, "{progress:?}");
}

/// One that is stuck is given up, so that it can be begun anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_stuck_is_given_up() {
    let (reads, writes) = tokio::join!(send_to(Habit::ReadsNothing), send_to(Habit::WritesNothing));
    for (sent, took) in [reads, writes] {
        let error = sent.unwrap_err().to_string();
        assert!(error.contains("nothing of the snapshot was taken or written for 1s"), "{error}");
        assert!(took >= STALL, "{took:?}");
    }
}
