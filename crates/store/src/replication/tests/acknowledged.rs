//! Replicas whose data directories were replaced by older copies.

use std::{fs, path::Path, time::Duration};

use chancery_testing::copy_directory;
use openraft::{
    AnyError,
    raft::{AppendEntriesRequest, AppendEntriesResponse},
};

use super::power_cut::{DEADLINE, config, end, lead, put, reporting_members, start, trio, until};
use crate::{
    CaughtUp, Config, MemberChange, OpenError, Replica,
    format::{
        identity::Identity,
        raft::{LogId, Types, Vote, log_id},
    },
    replication::{
        acknowledged::{Follower, Required},
        instance::Removal,
        network::Connection,
        peers::Peers,
    },
};

/// The time in which the leader would fail if the fault reached Raft.
const PATIENCE: Duration = Duration::from_secs(2);

/// Stops a replica, and replaces its directory by an older copy. After the copy, the replica acknowledges
/// further entries, all of them committed.
async fn roll_back(dir: &Path, replicas: &mut Vec<Replica>, id: u64, through: usize) -> String {
    let at = replicas.iter().position(|one| one.core().id() == id).unwrap();
    let address = replicas[at].raft_address().to_owned();
    let (present, old) = (dir.join(id.to_string()), dir.join("old"));
    let stopped = replicas.remove(at);
    stopped.shutdown().await.unwrap();
    drop(stopped);
    copy_directory(&present, &old).unwrap();
    let again = start(dir, id, &address).await;
    again.catch_up(DEADLINE).await.unwrap();
    for n in 0..20 {
        replicas[through].transact(put(&format!("after-copy-{n}"))).await.unwrap();
    }
    let revision = replicas[through].state().revision;
    until("all entries at the replica", || again.state().revision == revision).await;
    again.shutdown().await.unwrap();
    drop(again);
    fs::remove_dir_all(&present).unwrap();
    fs::rename(&old, &present).unwrap();
    address
}

/// Starts a replica that does not ask the others what it must have. Only the calls of the leader inform it.
async fn start_unasked(dir: &Path, id: u64, address: &str) -> Replica {
    let listen = Some(address.parse().unwrap());
    Replica::open_unasked(Config { listen, ..config(dir, id, &[]) }).await.unwrap()
}

async fn diverged(replica: &Replica) -> String {
    let reason = tokio::time::timeout(DEADLINE, replica.until_diverged()).await;
    reason.expect("the replica detects the fault").to_string()
}

/// L1, L11: a follower whose directory was replaced by an older copy stops. The leader continues, names
/// it, and accepts writes. With an empty directory, the follower joins again.
#[tokio::test(flavor = "multi_thread")]
async fn rolled_back_follower_stops_and_leader_continues() {
    let dir = tempfile::tempdir().unwrap();
    let mut replicas = trio(dir.path()).await;
    let address = roll_back(dir.path(), &mut replicas, 3, 0).await;
    lead(&replicas[0]).await;
    let old = start_unasked(dir.path(), 3, &address).await;
    let reason = diverged(&old).await;
    assert!(reason.contains("it lacks log entry"), "{reason}");
    assert!(reason.contains("empty its data directory"), "{reason}");
    old.catch_up(DEADLINE).await.expect("it keeps running to report the reason");
    // The old copy must not stand for election.
    tokio::time::sleep(PATIENCE).await;
    assert_eq!(replicas[0].failure(), None);
    assert!(old.status().term <= replicas[0].status().term, "the old copy stood for election");
    replicas[1].transact(put("goes on")).await.unwrap();
    let members = reporting_members(&replicas[0]).await;
    let report = members[2].report.as_ref().expect("the replica answers");
    assert!(report.failure.as_ref().unwrap().contains("an older copy"), "{report:?}");
    let file = dir.path().join("3/DIVERGED");
    until("the mark in its directory", || file.exists()).await;
    old.shutdown().await.unwrap();
    drop(old);
    let error = Replica::open(config(dir.path(), 3, &[])).await.unwrap_err();
    assert!(matches!(error, OpenError::Diverged { .. }), "{error}");

    fs::remove_dir_all(dir.path().join("3")).unwrap();
    let join = [replicas[0].raft_address().to_owned()];
    replicas.push(Replica::open(config(dir.path(), 3, &join)).await.unwrap());
    replicas[2].catch_up(DEADLINE).await.unwrap();
    until("the third voter", || replicas[0].status().voters.len() == 3).await;
    assert_eq!(replicas[0].core().comparison.alarm(), None);
    end(&replicas).await;
}

/// L1: the leader of an earlier term remembers what a replica acknowledged. The current leader does not.
#[tokio::test(flavor = "multi_thread")]
async fn rolled_back_replica_is_detected_by_an_earlier_leader() {
    let dir = tempfile::tempdir().unwrap();
    let mut replicas = trio(dir.path()).await;
    let address = roll_back(dir.path(), &mut replicas, 3, 0).await;
    replicas[0].change_members(MemberChange::TransferLeader(Some(2))).await.unwrap();
    until("another leader", || replicas.iter().all(|one| one.leader() == Some(2))).await;
    let instance = replicas[0].core().node.peer(3).unwrap().instance;
    assert_eq!(replicas[1].core().calls.peers.acknowledged().committed(3, instance), None);
    let old = start(dir.path(), 3, &address).await;
    let reason = diverged(&old).await;
    assert!(reason.contains("acknowledged to replica 1"), "{reason}");
    assert_eq!(old.catch_up(DEADLINE).await.unwrap(), CaughtUp::Alone);
    replicas[0].transact(put("goes on")).await.unwrap();
    end(&replicas).await;
    old.shutdown().await.unwrap();
}

/// L1: a leader that led before knows what a replica lacks, even if Raft starts to send from an entry
/// that the replica has.
#[tokio::test(flavor = "multi_thread")]
async fn leader_remembers_what_was_acknowledged_in_an_earlier_term() {
    let dir = tempfile::tempdir().unwrap();
    let mut replicas = trio(dir.path()).await;
    let address = roll_back(dir.path(), &mut replicas, 3, 0).await;
    for leader in [2, 1] {
        replicas[0].change_members(MemberChange::TransferLeader(Some(leader))).await.unwrap();
        until("a leader", || replicas.iter().all(|one| one.leader() == Some(leader))).await;
    }
    let old = start_unasked(dir.path(), 3, &address).await;
    let reason = diverged(&old).await;
    assert!(reason.contains("acknowledged to replica 1"), "{reason}");
    assert_eq!(replicas[0].failure(), None);
    end(&replicas).await;
    old.shutdown().await.unwrap();
}

/// L1: a copy of the directory of a running replica does not take its place in the membership.
#[tokio::test(flavor = "multi_thread")]
async fn copy_of_running_replica_does_not_replace_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut replicas = trio(dir.path()).await;
    let third = replicas.pop().unwrap();
    let address = third.raft_address().to_owned();
    third.shutdown().await.unwrap();
    drop(third);
    let elsewhere = dir.path().join("elsewhere");
    copy_directory(&dir.path().join("3"), &elsewhere.join("3")).unwrap();
    replicas.push(start(dir.path(), 3, &address).await);
    replicas[2].catch_up(DEADLINE).await.unwrap();
    let clone = Replica::open(config(&elsewhere, 3, &[])).await.unwrap();
    let removal =
        tokio::time::timeout(DEADLINE, clone.removed()).await.expect("it detects the copy");
    assert_eq!(removal, Removal::Copied);
    let failure = clone.failure().unwrap();
    // The copy also lacks what the replica has acknowledged since, and may find that first.
    let reasons = ["a copy of the data directory", "its data directory is an older copy"];
    assert!(reasons.iter().any(|reason| failure.contains(reason)), "{failure}");
    let addresses = replicas[0].core().node.peer(3).unwrap().address;
    assert_eq!(addresses, address);
    replicas[2].transact(put("goes on")).await.unwrap();
    assert_eq!(replicas[2].failure(), None);
    end(&replicas).await;
    clone.shutdown().await.unwrap();
}

fn request(previous: Option<u64>, last: Option<u64>) -> AppendEntriesRequest<Types> {
    let id = |index: u64| log_id(3, index);
    let first = previous.map_or(0, |index| index + 1);
    let entries = last.map_or(0..0, |last| first..last + 1);
    let entry =
        |index| openraft::Entry { log_id: id(index), payload: openraft::EntryPayload::Blank };
    AppendEntriesRequest {
        vote: Vote::new_committed(3, 1),
        prev_log_id: previous.map(id),
        entries: entries.map(entry).collect(),
        leader_commit: None,
    }
}

/// L11: no answer of a follower makes Raft panic. Raft sees neither the denial of an acknowledged entry
/// nor the acknowledgment of an entry that was not sent.
#[test]
fn answer_that_revokes_acknowledgment_does_not_reach_raft() {
    let identity = Identity {
        cluster_id: [7; 16],
        replica_id: 1,
        incarnation: chancery_model::Incarnation(1),
        instance: 1,
    };
    let peers = Peers::new(1 << 20, None);
    let connection = Connection::for_test(identity, peers.clone(), 2, "127.0.0.1:1");
    let follower = Follower { replica_id: 2, instance: 5, term: 3 };
    let acknowledged = peers.acknowledged();
    let answer = |required, previous, last, answer| {
        let request = request(previous, last);
        connection.note_answer(follower, required, &request, &answer).map_err(AnyError::error)
    };
    let partly = |upto: Option<u64>| {
        AppendEntriesResponse::PartialSuccess(upto.map(|index| -> LogId { log_id(3, index) }))
    };
    let none = Required::default();
    answer(none, Some(9), None, AppendEntriesResponse::Conflict).expect("it is behind");
    answer(none, None, None, AppendEntriesResponse::Conflict).expect_err("the beginning");
    answer(none, Some(4), Some(9), AppendEntriesResponse::Success).expect("entries");
    let required = acknowledged.required(follower);
    assert_eq!(required, Required { last: Some(9), committed: None });
    for denied in [4, 9] {
        answer(required, Some(denied), None, AppendEntriesResponse::Conflict).expect_err("denied");
    }
    assert!(acknowledged.alarm().unwrap().starts_with("replica 2 (log entry 9) lost"));
    answer(required, Some(10), None, AppendEntriesResponse::Conflict).expect("it is behind");
    answer(none, Some(9), None, AppendEntriesResponse::Conflict)
        .expect("it was sent before the acknowledgement");
    for wrong in [None, Some(8), Some(13)] {
        answer(required, Some(9), Some(12), partly(wrong)).expect_err("outside of what was sent");
    }
    answer(required, Some(9), Some(12), partly(Some(11))).expect("a part");
    assert_eq!(acknowledged.required(follower).last, Some(11));
    assert_eq!(acknowledged.alarm(), None, "it has the entry again");
}
