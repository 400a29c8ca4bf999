//! Tests that need the internals of a replica, to delay its work or to forge calls.

mod acknowledged;
mod digest;
mod power_cut;
mod stall;

use std::{
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use chancery_model::{
    Incarnation, Outcome, ResourceDraft, ResourceKey, ResourceName, Revision, ScopeName,
    Transaction, TypeUrl, Upsert,
};
use chancery_raft_proto::v1::{self as pb, replication_client::ReplicationClient};
use openraft::async_runtime::WatchReceiver;
use tonic::{Code, Status};

use self::power_cut::{end, until};
use super::codec;
use crate::{
    CaughtUp, Config, HISTORY_MAX, MemberChange, Removal, Replica, TransactError,
    disk::database::Database, failpoint::Point, format::identity::Identity,
};

const DEADLINE: Duration = Duration::from_secs(120);
/// The time in which an event that must not happen could happen.
const PATIENCE: Duration = Duration::from_millis(300);

fn put(name: &str, body: &'static [u8]) -> Transaction {
    let type_url = TypeUrl::from_static("type.googleapis.com/a.B");
    let key = ResourceKey { type_url, name: ResourceName::new(name).unwrap() };
    let draft = ResourceDraft::new(key, Bytes::from_static(body));
    let upserts = vec![Upsert { scope: ScopeName::new("default").unwrap(), draft }];
    Transaction { upserts, ..Transaction::default() }
}

fn config(dir: &Path, replica_id: u64, join: &[&str]) -> Config {
    Config {
        data_dir: dir.join(replica_id.to_string()),
        replica_id,
        listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        join: join.iter().map(|address| (*address).to_owned()).collect(),
        learner: !join.is_empty(),
        free_bytes_min: 0,
        ..Config::default()
    }
}

async fn open(config: Config) -> Replica {
    let replica = Replica::open(config).await.unwrap();
    assert_eq!(replica.catch_up(DEADLINE).await.unwrap(), CaughtUp::Yes);
    replica
}

/// Returns a leader that is the only voter, a learner that has caught up, and the learner's database.
async fn pair(dir: &Path, change: impl Fn(&mut Config)) -> (Replica, Replica, Arc<Database>) {
    let mut first = config(dir, 1, &[]);
    change(&mut first);
    let leader = open(first).await;
    let mut second = config(dir, 2, &[leader.raft_address()]);
    change(&mut second);
    let learner = open(second).await;
    learner.read_barrier(DEADLINE).await.unwrap();
    let database = learner.database();
    (leader, learner, database)
}

/// A read after a barrier sees all writes that were acknowledged before, also on a replica that is behind.
#[tokio::test(flavor = "multi_thread")]
async fn barrier_waits_until_committed_writes_are_applied_locally() {
    let dir = tempfile::tempdir().unwrap();
    let (leader, learner, database) = pair(dir.path(), |_| {}).await;
    let held = database.fail_points.hold(Point::Apply);
    leader.transact(put("a", b"1")).await.unwrap();
    let revision = leader.state().revision;
    let reader = learner.clone();
    let mut read = tokio::spawn(async move {
        reader.read_barrier(DEADLINE).await.unwrap();
        reader.state().revision
    });
    if let Ok(read) = tokio::time::timeout(PATIENCE, &mut read).await {
        panic!("a read at revision {} after a write at {revision}", read.unwrap());
    }
    drop(held);
    assert_eq!(read.await.unwrap(), revision);
    drop(database);
    end([&learner, &leader]).await;
}

/// A writer that uses a replica which is behind sees the write there when it gets the answer.
#[tokio::test(flavor = "multi_thread")]
async fn forwarded_write_is_answered_after_local_apply() {
    let dir = tempfile::tempdir().unwrap();
    let (leader, learner, database) = pair(dir.path(), |_| {}).await;
    let held = database.fail_points.hold(Point::Apply);
    let writer = learner.clone();
    let mut written = tokio::spawn(async move {
        let outcome = writer.transact(put("a", b"1")).await.unwrap();
        (outcome, writer.state().revision)
    });
    if let Ok(written) = tokio::time::timeout(PATIENCE, &mut written).await {
        panic!("the write was answered too early: {:?}", written.unwrap());
    }
    drop(held);
    let (outcome, seen) = written.await.unwrap();
    let Outcome::Committed(summary) = outcome else { panic!("{outcome:?}") };
    assert_eq!(seen, summary.revision);
    drop(database);
    end([&learner, &leader]).await;
}

/// A write with an unknown outcome is never reported as not written.
#[tokio::test(flavor = "multi_thread")]
async fn write_with_unknown_outcome_may_have_taken_effect() {
    let dir = tempfile::tempdir().unwrap();
    let soon = |config: &mut Config| {
        if config.replica_id == 2 {
            config.transact_timeout = Duration::from_secs(2);
        }
    };
    let (leader, learner, database) = pair(dir.path(), soon).await;
    let held = database.fail_points.hold(Point::Apply);
    let begun = Instant::now();
    let error = loop {
        let error = learner.transact(put("a", b"1")).await.unwrap_err();
        // On a slow machine, the learner may hear no leader for a moment.
        if error != TransactError::NoLeader || begun.elapsed() > DEADLINE {
            break error;
        }
        assert_eq!(leader.state().len(), 0, "a write that took effect was reported as not written");
    };
    assert!(matches!(error, TransactError::Timeout(_)), "{error}");
    drop(held);
    until("the write takes effect", || leader.state().len() == 1).await;
    assert_eq!(leader.state().revision, Revision(1));
    drop(database);
    end([&learner, &leader]).await;
}

/// A write that gets no memory in time was never sent, and is reported as not written.
#[tokio::test(flavor = "multi_thread")]
async fn write_without_memory_is_reported_as_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let timeout = Duration::from_millis(100);
    let replica = open(Config { transact_timeout: timeout, ..config(dir.path(), 1, &[]) }).await;
    let core = replica.core();
    let deadline = Instant::now() + DEADLINE;
    let in_flight = core.forwarder.reserve(core.config.in_flight_bytes_max, deadline).await;
    assert!(in_flight.is_some());
    let error = replica.transact(put("a", b"1")).await.unwrap_err();
    assert_eq!(error, TransactError::Busy(timeout));
    assert_eq!(replica.state().len(), 0);
    drop(in_flight);
    until_ok(async || replica.transact(put("a", b"1")).await).await;
    end([&replica]).await;
}

/// A write through a replica that is far behind is retried, because its first attempt gets no answer. The
/// first attempt was never written, and the leader must not refuse the retry as older than its history.
#[tokio::test(flavor = "multi_thread")]
async fn retry_through_lagging_replica_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let patient = |config: &mut Config| config.transact_timeout = DEADLINE;
    let (leader, learner, database) = pair(dir.path(), patient).await;
    let held = database.fail_points.hold(Point::Apply);
    let mut writers = tokio::task::JoinSet::new();
    for n in 0..=HISTORY_MAX {
        let leader = leader.clone();
        writers.spawn(async move { leader.transact(put(&format!("n{n}"), b"1")).await.unwrap() });
        if writers.len() >= 500 {
            writers.join_next().await.unwrap().unwrap();
        }
    }
    writers.join_all().await;
    let committed = leader.status().applied.unwrap();
    let known = || learner.core().node.raft.metrics().borrow_watched().cluster_committed;
    until("the learner knows the commit index", || known().is_some_and(|id| id.index >= committed))
        .await;
    let address = leader.raft_address().parse().unwrap();
    leader.shutdown().await.unwrap();
    let writer = learner.clone();
    let written = tokio::spawn(async move { writer.transact(put("late", b"1")).await });
    // Without a leader, the write must not end.
    tokio::time::sleep(PATIENCE).await;
    assert!(!written.is_finished(), "the write must wait for a leader");
    let leader = open(Config { listen: Some(address), ..config(dir.path(), 1, &[]) }).await;
    drop(held);
    let outcome = written.await.unwrap().unwrap();
    assert!(matches!(outcome, Outcome::Committed(_)), "{outcome:?}");
    drop(database);
    end([&learner, &leader]).await;
}

/// A replica that does not catch up reports for certain that nothing was written.
#[tokio::test(flavor = "multi_thread")]
async fn write_through_lagging_replica_is_rejected_before_sending() {
    let dir = tempfile::tempdir().unwrap();
    // The leader has more time, for its many writes.
    let soon = |config: &mut Config| {
        config.transact_timeout =
            if config.replica_id == 2 { Duration::from_secs(2) } else { DEADLINE };
    };
    let (leader, learner, database) = pair(dir.path(), soon).await;
    let held = database.fail_points.hold(Point::Apply);
    let mut writers = tokio::task::JoinSet::new();
    for n in 0..HISTORY_MAX / 10 + 10 {
        let leader = leader.clone();
        writers.spawn(async move { leader.transact(put(&format!("n{n}"), b"1")).await.unwrap() });
    }
    writers.join_all().await;
    let committed = leader.status().applied.unwrap();
    let known = || learner.core().node.raft.metrics().borrow_watched().cluster_committed;
    until("the learner knows the commit index", || known().is_some_and(|id| id.index >= committed))
        .await;
    let revision = leader.state().revision;
    let error = learner.transact(put("late", b"1")).await.unwrap_err();
    assert!(matches!(error, TransactError::Behind(_)), "{error}");
    assert_eq!(leader.state().revision, revision, "{error}");
    drop(held);
    until_ok(async || learner.read_barrier(DEADLINE).await).await;
    until_ok(async || learner.transact(put("late", b"1")).await).await;
    drop(database);
    end([&learner, &leader]).await;
}

/// Calls until a call succeeds. On a slow machine, a call with a short time limit may fail.
async fn until_ok<T, E: std::fmt::Display>(mut call: impl AsyncFnMut() -> Result<T, E>) -> T {
    let begun = Instant::now();
    loop {
        match call().await {
            Ok(done) => return done,
            Err(error) => assert!(begun.elapsed() < DEADLINE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A voter that lacks many entries would delay every write.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_has_not_caught_up_is_not_promoted() {
    let dir = tempfile::tempdir().unwrap();
    let soon = |config: &mut Config| config.change_timeout = Duration::from_secs(1);
    let (leader, learner, database) = pair(dir.path(), soon).await;
    let held = database.fail_points.hold(Point::Write);
    let mut writers = tokio::task::JoinSet::new();
    for n in 0..400 {
        let leader = leader.clone();
        writers.spawn(async move { leader.transact(put(&format!("n{n}"), b"1")).await.unwrap() });
    }
    writers.join_all().await;
    let error = leader.change_members(MemberChange::Promote(2)).await.unwrap_err();
    assert!(error.to_string().contains("has not caught up"), "{error}");
    drop(held);
    until_ok(async || learner.read_barrier(DEADLINE).await).await;
    let promoted = until_ok(async || leader.change_members(MemberChange::Promote(2)).await).await;
    // A promotion may complete after its time limit. The next call then returns "is a voter already".
    let texts = ["is a voter now", "is a voter already"];
    assert!(texts.iter().any(|text| promoted.contains(text)), "{promoted}");
    drop(database);
    end([&learner, &leader]).await;
}

type Client = ReplicationClient<tonic::transport::Channel>;

/// Makes every kind of call of a member with a header. Each call would change or reveal something.
async fn calls(
    client: &mut Client,
    header: &pb::Header,
) -> Vec<(&'static str, Result<(), Status>)> {
    fn done<T>(result: Result<tonic::Response<T>, Status>) -> Result<(), Status> {
        result.map(drop)
    }
    let header = || Some(header.clone());
    let vote = Some(pb::Vote { term: 99, replica_id: 2, committed: true });
    let asks = pb::VoteRequest { header: header(), vote, ..pb::VoteRequest::default() };
    let append = pb::AppendRequest { header: header(), vote, ..pb::AppendRequest::default() };
    let piece = pb::InstallRequest { header: header(), vote, ..pb::InstallRequest::default() };
    let transfer = pb::TransferLeaderRequest {
        header: header(),
        from_leader: vote,
        ..pb::TransferLeaderRequest::default()
    };
    let write = pb::WriteRequest { header: header(), ..pb::WriteRequest::default() };
    let change = pb::ChangeRequest {
        header: header(),
        change: Some(pb::change_request::Change::TransferLeader(0)),
    };
    vec![
        ("vote", done(client.vote(asks.clone()).await)),
        ("pre_vote", done(client.pre_vote(asks).await)),
        ("append", done(client.append(append).await)),
        ("install", done(client.install(futures::stream::iter([piece])).await)),
        ("transfer_leader", done(client.transfer_leader(transfer).await)),
        ("write", done(client.write(write).await)),
        ("read_index", done(client.read_index(pb::ReadIndexRequest { header: header() }).await)),
        ("change", done(client.change(change).await)),
        (
            "digests",
            done(
                client.digests(pb::DigestsRequest { header: header(), ..Default::default() }).await,
            ),
        ),
    ]
}

/// A replica refuses calls from another cluster, from another incarnation, and for another replica.
#[tokio::test(flavor = "multi_thread")]
async fn replication_port_rejects_calls_for_other_replicas() {
    let dir = tempfile::tempdir().unwrap();
    let replica = open(config(dir.path(), 1, &[])).await;
    let status = replica.status();
    let own = replica.core().identity;
    let caller = Identity { replica_id: 2, ..own };
    let mut client = Client::connect(format!("http://{}", replica.raft_address())).await.unwrap();
    let other_cluster = Identity { cluster_id: [8; 16], ..caller };
    let other_life = Identity { incarnation: Incarnation(own.incarnation.0 ^ 1), ..caller };
    let other_instance = pb::Header { to_instance: own.instance ^ 1, ..codec::header(caller, 1) };
    let headers = [
        codec::header(other_cluster, 1),
        codec::header(other_life, 1),
        codec::header(caller, 3),
        other_instance,
    ];
    for header in headers {
        for (call, result) in calls(&mut client, &header).await {
            let refused = result.expect_err(call);
            assert_eq!(refused.code(), Code::FailedPrecondition, "{call}: {refused}");
        }
    }
    replica.transact(put("a", b"1")).await.unwrap();
    let after = replica.status();
    assert_eq!((after.term, after.leader), (status.term, Some(1)));
    replica.shutdown().await.unwrap();
}

/// After a replica was replaced, its old disk returns, with or without an instance. The old replica neither
/// grants nor gets a vote, and all its calls fail. The cluster keeps the address of the replacement, and the
/// old replica detects that it was replaced.
#[tokio::test(flavor = "multi_thread")]
async fn replaced_replica_has_no_vote_and_no_effect() {
    let dir = tempfile::tempdir().unwrap();
    let (leader, learner, database) = pair(dir.path(), |_| {}).await;
    drop(database);
    learner.shutdown().await.unwrap();
    drop(learner);
    let path = |name: &str| dir.path().join(name).join("2");
    std::fs::create_dir(dir.path().join("old")).unwrap();
    std::fs::rename(dir.path().join("2"), path("old")).unwrap();
    let replacement = open(config(dir.path(), 2, &[leader.raft_address()])).await;
    let identity = replacement.core().identity;
    let known = leader.core().node.peer(2).unwrap();
    assert_eq!((known.instance, &*known.address), (identity.instance, replacement.raft_address()));
    for has_instance in [true, false] {
        if !has_instance {
            let file = path("old").join("IDENTITY");
            let identity = Identity::parse(&std::fs::read(&file).unwrap()).unwrap();
            assert!(![0, known.instance].contains(&identity.instance), "{identity:?}");
            std::fs::write(file, Identity { instance: 0, ..identity }.to_text()).unwrap();
        }
        let before = leader.status().term;
        let old = Replica::open(config(&dir.path().join("old"), 2, &[])).await.unwrap();
        let (asks, asked) = (leader.core(), old.core());
        let pairs = [
            (asks.calls.peers.header(asks.identity, 2), &old),
            (asked.calls.peers.header(asked.identity, 1), &leader),
        ];
        for (header, to) in pairs {
            let mut client =
                Client::connect(format!("http://{}", to.raft_address())).await.unwrap();
            for (call, result) in calls(&mut client, &header).await {
                let refused = result.expect_err(call);
                assert_eq!(refused.code(), Code::FailedPrecondition, "{call}: {refused}");
                assert!(refused.message().contains("replaced"), "{call}: {refused}");
            }
        }
        let removal = tokio::time::timeout(DEADLINE, old.removed()).await.unwrap();
        assert_eq!(removal, Removal::Replaced);
        assert_eq!(leader.status().term, before);
        assert_eq!(leader.core().node.peer(2).as_ref(), Some(&known));
        old.shutdown().await.unwrap();
    }
    replacement.transact(put("a", b"1")).await.unwrap();
    end([&replacement, &leader]).await;
}
