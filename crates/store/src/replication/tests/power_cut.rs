//! Simulated power cuts in one process: a data directory loses everything that was not synced.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use bytes::Bytes;
use chancery_model::{
    ResourceDraft, ResourceKey, ResourceName, ScopeName, Transaction, TypeUrl, Upsert,
};
use chancery_raft_proto::v1::{self as pb, replication_client::ReplicationClient};
use chancery_testing::{copy_directory, reserve_address};
use openraft::async_runtime::WatchReceiver;

use crate::replication::codec::header;
use crate::{Config, Member, MemberChange, Replica, failpoint::Point};

pub(super) const DEADLINE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

pub(super) fn put(name: &str) -> Transaction {
    let type_url = TypeUrl::from_static("type.googleapis.com/a.B");
    let key = ResourceKey { type_url, name: ResourceName::new(name).unwrap() };
    let draft = ResourceDraft::new(key, Bytes::copy_from_slice(name.as_bytes()));
    let upserts = vec![Upsert { scope: ScopeName::new("default").unwrap(), draft }];
    Transaction { upserts, ..Transaction::default() }
}

pub(super) fn config(dir: &Path, replica_id: u64, join: &[String]) -> Config {
    Config {
        data_dir: dir.join(replica_id.to_string()),
        replica_id,
        listen: Some(reserve_address()),
        join: join.to_vec(),
        free_bytes_min: 0,
        ..Config::default()
    }
}

/// Waits until a condition holds.
pub(super) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Starts a replica again with its data, at its old address, which is the only one that the others know.
pub(super) async fn start(dir: &Path, replica_id: u64, address: &str) -> Replica {
    let listen = Some(address.parse().unwrap());
    Replica::open(Config { listen, ..config(dir, replica_id, &[]) }).await.unwrap()
}

/// Stops replicas, in the given order.
pub(super) async fn end<'a>(replicas: impl IntoIterator<Item = &'a Replica>) {
    for replica in replicas {
        replica.shutdown().await.unwrap();
    }
}

/// Forms a cluster of three voters, of which the first leads.
pub(super) async fn trio(dir: &Path) -> Vec<Replica> {
    let first = Replica::open(config(dir, 1, &[])).await.unwrap();
    let join = [first.raft_address().to_owned()];
    let mut replicas = vec![first];
    for id in 2..=3 {
        replicas.push(Replica::open(config(dir, id, &join)).await.unwrap());
    }
    for replica in &replicas {
        replica.catch_up(DEADLINE).await.unwrap();
    }
    until("three voters", || replicas.iter().all(|one| one.status().voters.len() == 3)).await;
    replicas[0].transact(put("first")).await.unwrap();
    until("the first write everywhere", || replicas.iter().all(|one| one.state().len() == 1)).await;
    lead(&replicas[0]).await;
    replicas
}

/// Makes a replica the leader. Does nothing if the replica leads, which is the case unless a slow machine caused an
/// election.
pub(super) async fn lead(replica: &Replica) {
    let (id, deadline) = (replica.core().id(), Instant::now() + DEADLINE);
    while replica.leader() != Some(id) {
        assert!(Instant::now() < deadline, "replica {id} does not lead");
        // The transfer fails while there is no leader.
        drop(replica.change_members(MemberChange::TransferLeader(Some(id))).await);
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Returns the members when all of them have answered. On a slow machine, some do not answer in time at first.
pub(super) async fn reporting_members(replica: &Replica) -> Vec<Member> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let members = replica.members().await;
        if members.iter().all(|member| member.report.is_some()) {
            return members;
        }
        assert!(Instant::now() < deadline, "a member does not answer: {members:?}");
    }
}

/// L1, L2, L8: the leader loses an unsynced tail of its log, which its followers hold and have committed.
/// After its restart it must not lead in its old term. It would give the log IDs of the lost entries to
/// new entries, which its followers would skip.
#[tokio::test(flavor = "multi_thread")]
async fn leader_that_lost_its_unsynced_tail_does_not_lead_in_its_old_term() {
    let dir = tempfile::tempdir().unwrap();
    let replicas = trio(dir.path()).await;
    let term = replicas[0].status().term;
    let (synced, lost) = (dir.path().join("synced"), dir.path().join("1"));
    let database = replicas[0].database();
    database.sync().unwrap();
    let held = database.fail_points.hold(Point::Sync);
    copy_directory(&lost, &synced).unwrap();
    let leader = replicas[0].clone();
    let write = tokio::spawn(async move { leader.transact(put("second")).await });
    until("the second write at a majority", || {
        replicas[1..].iter().all(|one| one.state().len() == 2)
    })
    .await;
    drop(held);
    drop(database);
    // The answer does not matter: the write is committed.
    drop(write.await.unwrap());
    let addresses: Vec<String> = replicas.iter().map(|one| one.raft_address().to_owned()).collect();
    end(&replicas).await;
    drop(replicas);
    fs::remove_dir_all(&lost).unwrap();
    fs::rename(&synced, &lost).unwrap();

    let mut replicas = vec![start(dir.path(), 1, &addresses[0]).await];
    let raft = replicas[0].core().node.raft.metrics().borrow_watched().clone();
    assert_ne!(
        (raft.current_leader, raft.current_term),
        (Some(1), term),
        "the restarted leader leads without an election"
    );
    replicas.push(start(dir.path(), 2, &addresses[1]).await);
    replicas.push(start(dir.path(), 3, &addresses[2]).await);
    until("a leader", || replicas.iter().any(|one| one.leader().is_some())).await;
    for (at, replica) in replicas.iter().enumerate() {
        replica.transact(put(&format!("after-{at}"))).await.unwrap();
    }
    until("five resources everywhere", || replicas.iter().all(|one| one.state().len() == 5)).await;
    let contents = replicas.iter().map(|one| one.core().storage.published.stored().computed.tally);
    let contents: Vec<_> = contents.collect();
    assert!(contents.iter().all(|one| *one == contents[0]), "replicas differ: {contents:?}");
    assert!(replicas.iter().all(|one| one.status().term > term));
    end(&replicas).await;
}

/// A replica whose Raft panicked reports the failure even without a write. Raft's own metrics never
/// report it.
#[tokio::test(flavor = "multi_thread")]
async fn replica_whose_raft_panicked_fails_without_a_write() {
    let dir = tempfile::tempdir().unwrap();
    let replica = Replica::open(config(dir.path(), 1, &[])).await.unwrap();
    assert_eq!(replica.failure(), None);
    replica.core().node.raft.external_request(|_| panic!("planted")).await.unwrap();
    until("a failure", || replica.failure().is_some()).await;
    let failure = replica.failure().unwrap();
    assert!(failure.contains("Raft has stopped: panicked"), "{failure}");
    // Raft itself is not called again. It would log an error for each call, and other replicas call many
    // times a second.
    let url = format!("http://{}", replica.raft_address());
    let mut client = ReplicationClient::connect(url).await.unwrap();
    let header = Some(header(replica.core().identity, 1));
    let refused = client.read_index(pb::ReadIndexRequest { header }).await.unwrap_err();
    assert!(refused.message().starts_with("replica 1 has failed: Raft has stopped"), "{refused}");
    drop(replica.shutdown().await);
}
