//! A stalled disk or state machine: writes or entries take seconds, while Raft must keep its timing.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::{
    pair,
    power_cut::{self, end, put, trio, until},
};
use crate::{Config, Replica, TransactError, failpoint::Point};

/// The maximum duration of any step on a busy machine.
const DEADLINE: Duration = Duration::from_secs(5);
/// The time in which an event that must not happen could happen.
const PATIENCE: Duration = Duration::from_millis(300);
/// The duration of a stall, longer than the election timeout of followers.
const STALL: Duration = Duration::from_millis(2500);
const TICK: Duration = Duration::from_millis(10);
/// More advances of the commit index than openraft's default queue to the state machine has places.
const N_ADVANCES: usize = 1100;

/// Returns whether tasks run on the runtime of the store.
async fn ticks(replica: &Replica) -> bool {
    let ticking = replica.core().calls.runtime.spawn(async {
        for _ in 0..20 {
            sleep(TICK).await;
        }
    });
    timeout(DEADLINE, ticking).await.is_ok()
}

/// Returns whether Raft itself answers.
async fn answers(replica: &Replica) -> bool {
    timeout(DEADLINE, replica.core().node.raft.with_raft_state(|_| ())).await.is_ok()
}

/// One write is being applied while another one is appended to the log. If each waited for the disk on
/// a thread of the runtime, they would occupy both of its threads.
#[tokio::test(flavor = "multi_thread")]
async fn stalled_disk_does_not_block_raft_threads() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { data_dir: dir.path().join("1"), free_bytes_min: 0, ..Config::default() };
    let replica = Replica::open(config).await.unwrap();
    let database = replica.database();
    let write = |name: &'static str| {
        let replica = replica.clone();
        tokio::spawn(async move { replica.transact(put(name)).await })
    };
    let syncing = database.fail_points.hold(Point::Sync);
    let first = write("applied");
    syncing.arrival().await;
    let writing = database.fail_points.hold(Point::Write);
    drop(syncing);
    writing.arrival().await;
    let second = write("appended");
    // The disk stalls for this time, and nothing else may.
    sleep(PATIENCE).await;
    let (ticks, answers) = (ticks(&replica).await, answers(&replica).await);
    drop(writing);
    assert!(ticks, "no task ran on the runtime of the store while the disk stalled");
    assert!(answers, "Raft did not answer while the disk stalled");
    for written in [first, second] {
        written.await.unwrap().unwrap();
    }
    drop(database);
    replica.shutdown().await.unwrap();
}

/// openraft queues a command for the state machine whenever the commit index advances. If the queue is full, Raft
/// itself waits for the state machine, and this replica does not notice how far it is behind.
#[tokio::test(flavor = "multi_thread")]
async fn stalled_state_machine_does_not_block_raft() {
    let dir = tempfile::tempdir().unwrap();
    let (leader, learner, database) = pair(dir.path(), |_| {}).await;
    let applying = database.fail_points.hold(Point::Apply);
    let metrics = learner.core().node.raft.wait(Some(power_cut::DEADLINE));
    for n in 0..N_ADVANCES {
        leader.transact(put(&format!("n{n}"))).await.unwrap();
        let committed = leader.status().applied;
        let knows = metrics.metrics(
            move |metrics| metrics.cluster_committed.map(|id| id.index) >= committed,
            format!("the learner knows that write {n} is committed"),
        );
        knows.await.unwrap();
    }
    assert!(answers(&learner).await, "Raft did not answer while the state machine stalled");
    assert_eq!(learner.state().len(), 0);
    drop(applying);
    until("the learner applies all writes", || learner.state().len() == N_ADVANCES).await;
    drop(database);
    end([&learner, &leader]).await;
}

/// The maximum number of stalls. A slow machine can also cause elections, so one stall without an election suffices.
const ATTEMPTS: usize = 3;

async fn stalls_without_an_election(stalled: usize) {
    for _ in 0..ATTEMPTS {
        if stalls_once(stalled).await {
            return;
        }
    }
    panic!("a replica stood for election during each of {ATTEMPTS} stalls of a disk");
}

/// Stalls the disk of one of three voters during writes. Returns whether all replicas keep their term.
async fn stalls_once(stalled: usize) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let replicas = trio(dir.path()).await;
    let leader = &replicas[0];
    let term = leader.status().term;
    let database = replicas[stalled].database();
    let writing = database.fail_points.hold(Point::Write);
    let writer = leader.clone();
    let written = tokio::spawn(async move {
        for name in ["a", "b", "c"] {
            writer.transact(put(name)).await?;
        }
        Ok::<_, TransactError>(())
    });
    writing.arrival().await;
    let begun = Instant::now();
    let keeps_term = || replicas.iter().all(|replica| replica.status().term == term);
    while begun.elapsed() < STALL && keeps_term() {
        assert!(answers(&replicas[stalled]).await, "Raft did not answer while the disk stalled");
        sleep(TICK).await;
    }
    drop(writing);
    let written = written.await.unwrap();
    let keeps_term = keeps_term();
    assert!(written.is_ok() || !keeps_term, "{written:?}");
    drop(database);
    end(replicas.iter().rev()).await;
    keeps_term
}

/// Heartbeats continue, so that no replica stands for election.
#[tokio::test(flavor = "multi_thread")]
async fn stalled_disk_of_the_leader_causes_no_election() {
    stalls_without_an_election(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_disk_of_a_follower_causes_no_election() {
    stalls_without_an_election(1).await;
}
