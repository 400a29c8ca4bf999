//! Tests with several replicas: joining, writing to any of them, loss of the leader, return without
//! data.

use std::{
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use chancery_model::Outcome;
use chancery_store::{CaughtUp, Config, MemberChange, Replica, RequestId, Role, TransactError};
use chancery_testing::reserve_port;
use tempfile::TempDir;

use crate::support::{commit, config, memory_dir, put, render};

pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) fn member_config(dir: &Path, id: u64, join: &[&str]) -> Config {
    Config {
        replica_id: id,
        listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        join: join.iter().map(|address| (*address).to_owned()).collect(),
        ..config(&dir.join(id.to_string()))
    }
}

pub(crate) async fn open_member(dir: &Path, id: u64, join: &[&str]) -> Replica {
    let replica = Replica::open(member_config(dir, id, join)).await.unwrap();
    assert_eq!(replica.catch_up(DEADLINE).await.unwrap(), CaughtUp::Yes);
    replica
}

/// Waits until a condition holds.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Returns the ID of the leader as soon as the replica hears one.
pub(crate) async fn leader(replica: &Replica) -> u64 {
    let mut id = None;
    eventually("there is a leader", async || {
        id = replica.leader();
        id.is_some()
    })
    .await;
    id.unwrap()
}

pub(crate) async fn voters(replica: &Replica) -> Vec<u64> {
    replica.status().voters
}

/// Starts three replicas, all voters.
pub(crate) async fn three() -> (TempDir, Vec<Replica>) {
    let dir = memory_dir();
    let first = open_member(dir.path(), 1, &[]).await;
    let address = first.raft_address().to_owned();
    let second = open_member(dir.path(), 2, &[&address]).await;
    let third = open_member(dir.path(), 3, &[&address]).await;
    eventually("three voters", async || voters(&first).await == [1, 2, 3]).await;
    (dir, vec![first, second, third])
}

pub(crate) async fn equal(replicas: &[&Replica]) {
    let newest = replicas.iter().map(|r| r.state().revision).max().unwrap();
    eventually("equal states", async || {
        replicas.iter().all(|replica| replica.state().revision >= newest)
    })
    .await;
    let first = render(&replicas[0].state());
    for replica in replicas {
        assert_eq!(render(&replica.state()), first);
    }
}

/// Configurations of three replicas, whose addresses survive a restart.
struct FixedAddresses {
    dir: TempDir,
    ports: [u16; 3],
}

impl FixedAddresses {
    fn new() -> Self {
        Self { dir: memory_dir(), ports: [(); 3].map(|()| reserve_port()) }
    }

    fn config(&self, id: u64) -> Config {
        let port = |id: u64| self.ports[usize::try_from(id - 1).unwrap()];
        let first = format!("127.0.0.1:{}", port(1));
        let join: &[&str] = if id == 1 { &[] } else { &[&first] };
        let listen = Some(SocketAddr::from(([127, 0, 0, 1], port(id))));
        Config { listen, ..member_config(self.dir.path(), id, join) }
    }

    async fn open(&self, id: u64) -> Replica {
        let replica = Replica::open(self.config(id)).await.unwrap();
        assert_eq!(replica.catch_up(DEADLINE).await.unwrap(), CaughtUp::Yes);
        replica
    }

    /// Opens a replica that reserves more space than any disk has.
    async fn open_full(&self, id: u64) -> Replica {
        let full = Config { free_bytes_min: 1 << 60, ..self.config(id) };
        Replica::open(full).await.unwrap()
    }

    async fn open_all(&self) -> Vec<Replica> {
        let mut replicas = Vec::new();
        for id in 1..=3 {
            replicas.push(self.open(id).await);
        }
        eventually("three voters", async || voters(&replicas[0]).await == [1, 2, 3]).await;
        replicas
    }
}

/// A voter without disk space that wins an election yields leadership without any write. It is not
/// selected as the next leader, and its report shows the reason.
#[tokio::test(flavor = "multi_thread")]
async fn leader_without_disk_space_yields_leadership() {
    let files = FixedAddresses::new();
    let mut replicas = files.open_all().await;
    replicas.pop().unwrap().shutdown().await.unwrap();
    let third = files.open_full(3).await;
    assert_eq!(third.catch_up(DEADLINE).await.unwrap(), CaughtUp::Yes);
    eventually("the report shows the disk", async || {
        let members = replicas[0].members().await;
        let third = members.iter().find(|member| member.replica_id == 3).unwrap();
        let machine = third.report.as_ref().and_then(|report| report.machine.as_ref());
        machine
            .is_some_and(|machine| machine.free_bytes_min == 1 << 60 && machine.disk_full.is_some())
    })
    .await;
    let refused = replicas[0].change_members(MemberChange::TransferLeader(Some(3))).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("it would accept no writes: the disk is nearly full"), "{refused}");

    // Only the third replica has the last entry, so only it can win the next election.
    let second = replicas.pop().unwrap();
    second.shutdown().await.unwrap();
    drop(second);
    commit(&replicas[0], put("last", b"1")).await;
    equal(&[&replicas[0], &third]).await;
    let term = third.status().term;
    replicas.pop().unwrap().shutdown().await.unwrap();
    let second = files.open(2).await;
    eventually("the replica with space leads", async || second.leader() == Some(2)).await;
    assert!(second.status().term > term + 1, "the full replica did not lead meanwhile");
    commit(&third, put("a", b"1")).await;
    equal(&[&second, &third]).await;
    for replica in [third, second] {
        replica.shutdown().await.unwrap();
    }
}

/// A write that reached a leader without disk space before it yielded leadership failed, although another voter had
/// space.
#[tokio::test(flavor = "multi_thread")]
async fn write_waits_until_a_leader_without_disk_space_has_yielded() {
    let files = FixedAddresses::new();
    let mut replicas = files.open_all().await;
    replicas.pop().unwrap().shutdown().await.unwrap();
    let third = files.open_full(3).await;
    assert_eq!(third.catch_up(DEADLINE).await.unwrap(), CaughtUp::Yes);
    // Only the third replica has the last entry, so only it can win the next election.
    let second = replicas.pop().unwrap();
    second.shutdown().await.unwrap();
    drop(second);
    commit(&replicas[0], put("last", b"1")).await;
    equal(&[&replicas[0], &third]).await;
    replicas.pop().unwrap().shutdown().await.unwrap();
    let second = Replica::open(files.config(2)).await.unwrap();
    // The replica proposes the write as soon as it leads.
    commit(&third, put("a", b"1")).await;
    eventually("the replica with space leads", async || second.leader() == Some(2)).await;
    equal(&[&second, &third]).await;
    for replica in [third, second] {
        replica.shutdown().await.unwrap();
    }
}

/// If all voters lack disk space, leadership does not move, although writes are refused.
#[tokio::test(flavor = "multi_thread")]
async fn leader_stays_while_all_voters_lack_disk_space() {
    let files = FixedAddresses::new();
    for replica in files.open_all().await {
        replica.shutdown().await.unwrap();
    }
    let mut replicas = Vec::new();
    for id in 1..=3 {
        replicas.push(files.open_full(id).await);
    }
    let first = leader(&replicas[0]).await;
    let at = usize::try_from(first - 1).unwrap();
    let term = replicas[at].status().term;
    let since = Instant::now();
    eventually("several attempts to transfer leadership pass", async || {
        let refused = replicas[at].transact(put("a", b"1")).await;
        assert!(matches!(refused, Err(TransactError::DiskFull { .. })), "{refused:?}");
        assert_eq!(replicas[at].status().term, term, "there was an election");
        since.elapsed() > Duration::from_secs(4)
    })
    .await;
    for replica in replicas {
        replica.shutdown().await.unwrap();
    }
}

/// Replicas join by address, become voters, and accept writes.
#[tokio::test(flavor = "multi_thread")]
async fn joined_replicas_accept_writes_on_any_member() {
    let (_dir, replicas) = three().await;
    for (n, replica) in replicas.iter().enumerate() {
        let summary = commit(replica, put(&format!("r{n}"), b"1")).await;
        assert_eq!(replica.state().revision, summary.revision, "a writer sees its own write");
    }
    equal(&replicas.iter().collect::<Vec<_>>()).await;
    // On a slow machine, there may be an election, and a member may not answer in time.
    eventually("there is one leader, and all members answer", async || {
        let members = replicas[1].members().await;
        let n = |role| members.iter().filter(|member| member.role == role).count();
        let answer = members.iter().all(|member| member.report.is_some());
        answer && (n(Role::Leader), n(Role::Voter)) == (1, 2)
    })
    .await;
    for replica in &replicas {
        replica.shutdown().await.unwrap();
    }
}

/// After the loss of the leader, a new write is acknowledged, and all acknowledged writes are
/// present.
#[tokio::test(flavor = "multi_thread")]
async fn cluster_continues_after_leader_loss() {
    let (dir, mut replicas) = three().await;
    commit(&replicas[1], put("before", b"1")).await;
    let leader = leader(&replicas[1]).await;
    let at = usize::try_from(leader - 1).unwrap();
    let gone = replicas.remove(at);
    gone.shutdown().await.unwrap();
    drop(gone);
    commit(&replicas[0], put("after", b"2")).await;
    equal(&replicas.iter().collect::<Vec<_>>()).await;
    let back = open_member(dir.path(), leader, &[]).await;
    equal(&[&back, &replicas[0], &replicas[1]]).await;
    for replica in replicas.iter().chain([&back]) {
        replica.shutdown().await.unwrap();
    }
}

/// A learner hears the leader even when nothing is written. Otherwise it would report that there is
/// no leader.
#[tokio::test(flavor = "multi_thread")]
async fn idle_learner_knows_the_leader() {
    let dir = memory_dir();
    let first = open_member(dir.path(), 1, &[]).await;
    let join = [first.raft_address()];
    let learner = Config { learner: true, ..member_config(dir.path(), 2, &join) };
    let learner = Replica::open(learner).await.unwrap();
    assert_eq!(learner.catch_up(DEADLINE).await.unwrap(), CaughtUp::Yes);
    let mut since = Instant::now();
    eventually("the leader is heard for three seconds without a break", async || {
        if learner.leader() != Some(1) {
            since = Instant::now();
        }
        since.elapsed() > Duration::from_secs(3)
    })
    .await;
    first.shutdown().await.unwrap();
    eventually("no leader is heard", async || learner.leader().is_none()).await;
    learner.shutdown().await.unwrap();
}

/// A write that is sent twice takes effect once, whichever replica receives it. Another write under
/// the same request ID is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_takes_effect_once_wherever_it_is_sent() {
    let (_dir, replicas) = three().await;
    let id = RequestId::random().unwrap();
    let first = replicas[1].transact_as(id, None, put("a", b"1")).await.unwrap();
    let second = replicas[2].transact_as(id, None, put("a", b"1")).await.unwrap();
    let Outcome::Committed(summary) = &first else { panic!("{first:?}") };
    assert_eq!(first, second);
    for replica in &replicas {
        let other = replica.transact_as(id, None, put("a", b"2")).await;
        let revision = summary.revision;
        assert_eq!(
            other,
            Err(TransactError::Reused { id, revision }),
            "{}",
            replica.status().replica_id
        );
        assert_eq!(replica.state().revision, revision);
    }
    for replica in &replicas {
        replica.shutdown().await.unwrap();
    }
}

/// A replica without its data is removed, admitted again, and receives everything again.
#[tokio::test(flavor = "multi_thread")]
async fn wiped_replica_rejoins_with_all_data() {
    let (dir, mut replicas) = three().await;
    for n in 0..20 {
        commit(&replicas[0], put(&format!("r{n}"), b"1")).await;
    }
    let address = replicas[0].raft_address().to_owned();
    let third = replicas.remove(2);
    third.shutdown().await.unwrap();
    drop(third);
    std::fs::remove_dir_all(dir.path().join("3")).unwrap();
    commit(&replicas[0], put("meanwhile", b"1")).await;
    let third = open_member(dir.path(), 3, &[&address]).await;
    equal(&[&third, &replicas[0]]).await;
    eventually("three voters", async || voters(&replicas[0]).await == [1, 2, 3]).await;
    // The next change waits for the current one. Until then, most of the previous voters are needed
    // too.
    let address = "127.0.0.1:1".to_owned();
    let next = MemberChange::Add { replica_id: 9, address, learner: true };
    replicas[0].change_members(next).await.unwrap();
    // The third replica's vote and log count again: without the second replica, writes continue.
    replicas.remove(1).shutdown().await.unwrap();
    commit(&third, put("again", b"1")).await;
    for replica in [&third, &replicas[0]] {
        replica.shutdown().await.unwrap();
    }
}

/// A new replica receives a snapshot if the log no longer has the first entries.
#[tokio::test(flavor = "multi_thread")]
async fn late_replica_receives_a_snapshot() {
    let dir = memory_dir();
    let few = |mut config: Config| {
        (config.snapshot_log_entries, config.log_entries_keep) = (50, 10);
        config
    };
    let first = Replica::open(few(member_config(dir.path(), 1, &[]))).await.unwrap();
    for n in 0..300 {
        commit(&first, put(&format!("r{n}"), &[7; 3000])).await;
    }
    eventually("the log is purged", async || first.status().purged.is_some()).await;
    let address = first.raft_address().to_owned();
    let second = Replica::open(few(member_config(dir.path(), 2, &[&address]))).await.unwrap();
    assert_eq!(second.catch_up(DEADLINE).await.unwrap(), CaughtUp::Yes);
    equal(&[&first, &second]).await;
    let before = render(&second.state());
    eventually("two voters", async || voters(&second).await == [1, 2]).await;
    for replica in [&second, &first] {
        replica.shutdown().await.unwrap();
    }
    drop(second);
    // The snapshot is on the replica's disk.
    let second = Replica::open(few(member_config(dir.path(), 2, &[]))).await.unwrap();
    assert_eq!(render(&second.state()), before);
    assert_eq!(second.catch_up(Duration::from_millis(200)).await.unwrap(), CaughtUp::Alone);
    second.shutdown().await.unwrap();
}

/// Leadership moves on request; members are added, promoted and removed.
#[tokio::test(flavor = "multi_thread")]
async fn membership_changes_on_request() {
    let (_dir, replicas) = three().await;
    let change = |change| replicas[1].change_members(change);
    change(MemberChange::TransferLeader(Some(3))).await.unwrap();
    eventually("a new leader", async || replicas[0].leader() == Some(3)).await;
    let error = change(MemberChange::Remove(9)).await.unwrap_err();
    assert_eq!(error.to_string(), "replica 9 is not a member");
    let error = change(MemberChange::Promote(9)).await.unwrap_err();
    assert!(error.to_string().contains("add it first"), "{error}");
    let add = |replica_id, address: &str, learner| MemberChange::Add {
        replica_id,
        address: address.to_owned(),
        learner,
    };
    let error = change(add(4, "nonsense", false)).await.unwrap_err();
    assert!(error.to_string().contains("HOST:PORT"), "{error}");
    let taken = replicas[0].raft_address().to_owned();
    let error = change(add(4, &taken, false)).await.unwrap_err();
    assert!(error.to_string().contains("replica 1 is at"), "{error}");
    let text = change(add(4, "127.0.0.1:1", true)).await.unwrap();
    assert!(text.contains("as a learner"), "{text}");
    eventually("a learner", async || replicas[1].status().learners == [4]).await;
    change(MemberChange::Remove(4)).await.unwrap();
    // Before the leader is removed, another replica takes over.
    change(MemberChange::Remove(3)).await.unwrap();
    eventually("two voters", async || voters(&replicas[0]).await == [1, 2]).await;
    commit(&replicas[0], put("a", b"1")).await;
    for replica in &replicas {
        replica.shutdown().await.unwrap();
    }
}

/// A list of all replicas suffices: the first one forms the cluster after all of them have reported
/// that they are in none, and not earlier.
#[tokio::test(flavor = "multi_thread")]
async fn peer_list_forms_one_cluster() {
    let dir = memory_dir();
    let ports = [(); 3].map(|()| reserve_port());
    let peers: std::collections::BTreeMap<u64, String> =
        (1..).zip(&ports).map(|(id, port)| (id, format!("127.0.0.1:{port}"))).collect();
    let with_peers = |id: u64| {
        let port = ports[usize::try_from(id - 1).unwrap()];
        Config {
            listen: Some(SocketAddr::from(([127, 0, 0, 1], port))),
            peers: peers.clone(),
            ..member_config(dir.path(), id, &[])
        }
    };
    let mut first = tokio::spawn(Replica::open(with_peers(1)));
    let second = tokio::spawn(Replica::open(with_peers(2)));
    let early = tokio::time::timeout(Duration::from_millis(1500), &mut first).await;
    assert!(early.is_err(), "replica 3 has not answered: there could be a cluster already");
    let third = Replica::open(with_peers(3)).await.unwrap();
    let (first, second) = (first.await.unwrap().unwrap(), second.await.unwrap().unwrap());
    for replica in [&second, &third] {
        assert_eq!(replica.catch_up(DEADLINE).await.unwrap(), CaughtUp::Yes);
        assert_eq!(replica.status().cluster_id, first.status().cluster_id);
    }
    eventually("three voters", async || voters(&first).await == [1, 2, 3]).await;
    for replica in [&first, &second, &third] {
        replica.shutdown().await.unwrap();
    }
}

/// Reads after a barrier see every write that any replica has acknowledged. Without a majority, a
/// barrier fails, and the applied state is still readable.
#[tokio::test(flavor = "multi_thread")]
async fn a_barrier_makes_reads_linearizable() {
    let (_dir, mut replicas) = three().await;
    for n in 0..30 {
        let summary = commit(&replicas[n % 3], put("a", &[u8::try_from(n).unwrap()])).await;
        let reader = &replicas[(n + 1) % 3];
        reader.read_barrier(DEADLINE).await.unwrap();
        assert!(reader.state().revision >= summary.revision);
    }
    let left = replicas.remove(0);
    for replica in &replicas {
        replica.shutdown().await.unwrap();
    }
    let error = left.read_barrier(Duration::from_secs(10)).await.unwrap_err();
    assert!(error.to_string().contains("no leader"), "{error}");
    assert_eq!(left.state().len(), 1);
    left.shutdown().await.unwrap();
}

/// A follower that reaches no majority asks for pre-votes, and does not stand for election. Otherwise its higher
/// term would end the leader's when it reaches the others again (ADR 6).
#[tokio::test(flavor = "multi_thread")]
async fn follower_without_majority_keeps_its_term() {
    let (_dir, replicas) = three().await;
    let leader = leader(&replicas[0]).await;
    let (leaders, mut followers): (Vec<_>, Vec<_>) =
        replicas.into_iter().partition(|replica| replica.status().replica_id == leader);
    let left = followers.remove(0);
    // The leader ends last: no majority remains that could elect another one.
    for replica in followers.into_iter().chain(leaders) {
        replica.shutdown().await.unwrap();
    }
    let term = left.status().term;
    eventually("no leader is heard", async || left.leader().is_none()).await;
    // Several election timeouts pass.
    let since = Instant::now();
    eventually("four seconds pass", async || {
        assert_eq!(left.status().term, term, "the replica stood for election");
        since.elapsed() > Duration::from_secs(4)
    })
    .await;
    left.shutdown().await.unwrap();
}
