//! Tests of replicas that were away, were removed, or lost their data: their votes and data no
//! longer count.

use std::time::Duration;

use chancery_model::Transaction;
use chancery_store::{CaughtUp, Config, MemberChange, Removal, Replica};
use chancery_testing::reserve_address;

use crate::{
    cluster::{DEADLINE, equal, eventually, member_config, open_member, three, voters},
    support::{commit, key, memory_dir, put, scope},
};

/// Resources that were removed while a replica was away are gone after a snapshot has updated the
/// replica, and after its next start.
#[tokio::test(flavor = "multi_thread")]
async fn snapshot_replaces_earlier_replica_state() {
    let dir = memory_dir();
    let few = |mut config: Config| {
        (config.snapshot_log_entries, config.log_entries_keep) = (50, 10);
        config.learner = config.replica_id == 2;
        config
    };
    let leader = Replica::open(few(member_config(dir.path(), 1, &[]))).await.unwrap();
    let address = leader.raft_address().to_owned();
    let learner = Replica::open(few(member_config(dir.path(), 2, &[&address]))).await.unwrap();
    for name in ["gone", "changed", "same"] {
        commit(&leader, put(name, b"before")).await;
    }
    equal(&[&leader, &learner]).await;
    learner.shutdown().await.unwrap();
    drop(learner);
    let deletes = vec![(scope("default"), key("gone"))];
    commit(&leader, Transaction { deletes, ..Transaction::default() }).await;
    let seen = leader.status().last_log_index;
    for n in 0..200 {
        commit(&leader, put("changed", format!("{n}").as_bytes())).await;
    }
    eventually("the log is purged", async || leader.status().purged > seen).await;
    for _ in 0..2 {
        let learner = Replica::open(few(member_config(dir.path(), 2, &[]))).await.unwrap();
        assert_eq!(learner.catch_up(DEADLINE).await.unwrap(), CaughtUp::Yes);
        equal(&[&leader, &learner]).await;
        assert_eq!(learner.status().n_resources, 2);
        learner.shutdown().await.unwrap();
    }
    leader.shutdown().await.unwrap();
}

/// A replica that lost its data may have forgotten a vote and acknowledged entries. It is not a
/// voter until it becomes one again.
#[tokio::test(flavor = "multi_thread")]
async fn a_wiped_replica_does_not_vote() {
    let (dir, mut replicas) = three().await;
    commit(&replicas[0], put("a", b"1")).await;
    let address = replicas[0].raft_address().to_owned();
    let third = replicas.remove(2);
    third.shutdown().await.unwrap();
    drop(third);
    std::fs::remove_dir_all(dir.path().join("3")).unwrap();
    // The configuration as a learner shows the role in which it is admitted.
    let config = Config { learner: true, ..member_config(dir.path(), 3, &[&address]) };
    let third = Replica::open(config).await.unwrap();
    let admit_replica = replicas[0].status();
    assert_eq!((admit_replica.voters, admit_replica.learners), (vec![1, 2], vec![3]));
    assert_eq!(third.catch_up(DEADLINE).await.unwrap(), CaughtUp::Yes);
    equal(&[&third, &replicas[0]]).await;
    assert_eq!(voters(&replicas[0]).await, [1, 2]);
    for replica in [&third, &replicas[0], &replicas[1]] {
        replica.shutdown().await.unwrap();
    }
}

/// A replica that was removed while it was away detects that, accepts no writes, and does not
/// disturb the leader: it does not even stand for election.
#[tokio::test(flavor = "multi_thread")]
async fn removed_replica_does_not_disturb_the_cluster() {
    let (dir, mut replicas) = three().await;
    let third = replicas.remove(2);
    third.shutdown().await.unwrap();
    drop(third);
    replicas[0].change_members(MemberChange::Remove(3)).await.unwrap();
    let members = replicas[0].members().await;
    let members: Vec<u64> = members.iter().map(|member| member.replica_id).collect();
    assert_eq!(members, [1, 2]);
    let before = replicas[0].status();
    let third = Replica::open(member_config(dir.path(), 3, &[])).await.unwrap();
    let found_out = tokio::time::timeout(DEADLINE, third.removed()).await;
    found_out.expect("the replica must detect its removal");
    assert!(third.failure().unwrap().contains("was removed from its cluster"));
    let error = third.transact(put("a", b"1")).await.unwrap_err();
    assert!(error.to_string().contains("was removed"), "{error}");
    let after = commit(&replicas[0], put("b", b"2")).await;
    assert!(replicas[0].state().revision >= after.revision);
    // The others may hold elections on a slow machine. The removed replica holds none, so it knows no later term.
    let term = third.status().term;
    assert!(
        term <= before.term,
        "the removed replica is in term {term}, but was removed in term {}",
        before.term
    );
    for replica in [&third, &replicas[0], &replicas[1]] {
        replica.shutdown().await.unwrap();
    }
}

/// The ID of a removed replica is added again for a replica elsewhere. The old replica still runs,
/// and detects that it is not a member. It detects the same at its next start, at any address.
#[tokio::test(flavor = "multi_thread")]
async fn replica_whose_id_was_reassigned_stops() {
    let (dir, mut replicas) = three().await;
    replicas[0].change_members(MemberChange::TransferLeader(Some(1))).await.unwrap();
    // Nothing listens there.
    let free = reserve_address();
    let mut third = replicas.remove(2);
    replicas[0].change_members(MemberChange::Remove(3)).await.unwrap();
    let add = MemberChange::Add { replica_id: 3, address: free.to_string(), learner: false };
    replicas[0].change_members(add).await.unwrap();
    let before = third.raft_address().parse().unwrap();
    for next in [Some(before), member_config(dir.path(), 3, &[]).listen] {
        let removal = tokio::time::timeout(DEADLINE, third.removed()).await;
        assert_eq!(removal.expect("the replica must detect its removal"), Removal::Removed);
        assert!(third.failure().unwrap().contains("was removed from its cluster"));
        third.shutdown().await.unwrap();
        drop(third);
        let config = Config { listen: next, ..member_config(dir.path(), 3, &[]) };
        third = Replica::open(config).await.unwrap();
    }
    let removal = tokio::time::timeout(DEADLINE, third.removed()).await;
    assert_eq!(removal.expect("the replica must detect its removal"), Removal::Removed);
    third.shutdown().await.unwrap();
    drop(third);
    // The intended replica joins.
    std::fs::remove_dir_all(dir.path().join("3")).unwrap();
    let join = replicas[0].raft_address().to_owned();
    let config = Config { listen: Some(free), ..member_config(dir.path(), 3, &[&join]) };
    replicas.push(Replica::open(config).await.unwrap());
    eventually("three voters", async || voters(&replicas[0]).await == [1, 2, 3]).await;
    commit(&replicas[2], put("a", b"1")).await;
    equal(&replicas.iter().collect::<Vec<_>>()).await;
    for replica in &replicas {
        replica.shutdown().await.unwrap();
    }
}

/// A replica was replaced, and then its old machine returns with its old disk, at another address.
/// The cluster does not confuse it with its successor, which has the same ID, and the old replica
/// stops.
#[tokio::test(flavor = "multi_thread")]
async fn returning_replaced_replica_changes_nothing() {
    let (dir, mut replicas) = three().await;
    commit(&replicas[0], put("a", b"1")).await;
    let join = replicas[0].raft_address().to_owned();
    let second = replicas.remove(1);
    second.shutdown().await.unwrap();
    drop(second);
    let elsewhere = dir.path().join("old");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::rename(dir.path().join("2"), elsewhere.join("2")).unwrap();
    replicas.push(open_member(dir.path(), 2, &[&join]).await);
    eventually("three voters", async || voters(&replicas[0]).await == [1, 2, 3]).await;
    let addresses = async |replica: &Replica| -> Vec<String> {
        replica.members().await.into_iter().map(|member| member.address).collect()
    };
    let before = addresses(&replicas[0]).await;
    let term = replicas[0].status().term;
    for _ in 0..2 {
        let old = Replica::open(member_config(&elsewhere, 2, &[])).await.unwrap();
        let mut n = 0_u8;
        let removal = tokio::time::timeout(DEADLINE, old.removed());
        tokio::pin!(removal);
        let removal = loop {
            tokio::select! {
                removal = &mut removal => break removal.expect("the replica must detect its replacement"),
                _ = commit(&replicas[usize::from(n) % 3], put("b", &[n])) => n = n.wrapping_add(1),
            }
            assert_eq!(addresses(&replicas[0]).await, before);
        };
        assert_eq!(removal, Removal::Replaced);
        assert!(old.failure().unwrap().contains("was replaced by another replica"));
        let error = old.transact(put("c", b"1")).await.unwrap_err();
        assert!(error.to_string().contains("was replaced"), "{error}");
        assert!(old.status().term <= term, "the replaced replica stood for election");
        old.shutdown().await.unwrap();
    }
    assert_eq!(addresses(&replicas[0]).await, before);
    // The successor's vote and log count: without replica 3, which leads, writes continue.
    replicas[0].change_members(MemberChange::TransferLeader(Some(3))).await.unwrap();
    replicas.remove(1).shutdown().await.unwrap();
    commit(&replicas[1], put("d", b"1")).await;
    equal(&[&replicas[0], &replicas[1]]).await;
    for replica in &replicas {
        replica.shutdown().await.unwrap();
    }
}

/// A replica that was added before its first start becomes that member when it joins.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_was_added_before_it_was_started_joins() {
    let dir = memory_dir();
    let first = open_member(dir.path(), 1, &[]).await;
    let free = reserve_address();
    let add = MemberChange::Add { replica_id: 2, address: free.to_string(), learner: false };
    first.change_members(add).await.unwrap();
    let join = first.raft_address();
    let config = Config { listen: Some(free), ..member_config(dir.path(), 2, &[join]) };
    let second = Replica::open(config).await.unwrap();
    assert_eq!(second.catch_up(DEADLINE).await.unwrap(), CaughtUp::Yes);
    eventually("two voters", async || voters(&first).await == [1, 2]).await;
    commit(&second, put("a", b"1")).await;
    for replica in [&second, &first] {
        replica.shutdown().await.unwrap();
    }
}

/// A running replica's ID is not given to another replica, which would take over its vote.
#[tokio::test(flavor = "multi_thread")]
async fn id_of_running_replica_is_not_reassigned() {
    let (_dir, replicas) = three().await;
    let address = replicas[0].raft_address().to_owned();
    let elsewhere = memory_dir();
    let other = Replica::open(member_config(elsewhere.path(), 3, &[&address]));
    let joined = tokio::time::timeout(Duration::from_secs(3), other).await;
    assert!(joined.is_err(), "it was admitted: {joined:?}");
    commit(&replicas[2], put("a", b"1")).await;
    equal(&replicas.iter().collect::<Vec<_>>()).await;
    assert_eq!(voters(&replicas[0]).await, [1, 2, 3]);
    for replica in &replicas {
        replica.shutdown().await.unwrap();
    }
}

/// A replica that lost its directory and has no address to join forms a separate cluster. The
/// others report that it belongs to another cluster, and do not make it a member.
#[tokio::test(flavor = "multi_thread")]
async fn replica_of_another_cluster_at_the_address_of_a_member_is_reported() {
    let (dir, mut replicas) = three().await;
    let add = |replica_id, address| MemberChange::Add { replica_id, address, learner: true };
    // When this change is done, the previous one is too: the others no longer need the first
    // replica.
    replicas[0].change_members(add(4, "127.0.0.1:4".to_owned())).await.unwrap();
    let first = replicas.remove(0);
    let listen: std::net::SocketAddr = first.raft_address().parse().unwrap();
    first.shutdown().await.unwrap();
    drop(first);
    std::fs::remove_dir_all(dir.path().join("1")).unwrap();
    let config = Config { listen: Some(listen), ..member_config(dir.path(), 1, &[]) };
    let first = Replica::open(config).await.unwrap();
    let expected = format!("replica 1 of another cluster, {}", first.status().cluster_id);
    for replica in &replicas {
        let mut members = Vec::new();
        eventually("replica 1 of the other cluster answers", async || {
            members = replica.members().await;
            members[0].stranger.is_some()
        })
        .await;
        assert!(members[0].report.is_none());
        assert_eq!(members[0].stranger.as_ref(), Some(&expected));
        assert!(members[1..].iter().all(|member| member.stranger.is_none()));
    }
    let others = || replicas.iter().map(Replica::leader);
    eventually("one of the others leads", async || others().all(|id| id > Some(1))).await;
    eventually("the first one is removed", async || {
        replicas[0].change_members(MemberChange::Remove(1)).await.is_ok()
    })
    .await;
    let refused = replicas[0].change_members(add(1, listen.to_string())).await.unwrap_err();
    assert!(refused.to_string().contains(&format!("is {expected}; to be")), "{refused}");
    for replica in replicas.iter().chain([&first]) {
        replica.shutdown().await.unwrap();
    }
}

/// After a change of the membership through the leader, the leader's status shows the change.
#[tokio::test(flavor = "multi_thread")]
async fn completed_membership_change_is_shown() {
    let dir = memory_dir();
    let leader = open_member(dir.path(), 1, &[]).await;
    for n in 0..200 {
        let address = "127.0.0.1:1".to_owned();
        let add = MemberChange::Add { replica_id: 2, address, learner: true };
        leader.change_members(add).await.unwrap();
        assert_eq!(leader.status().learners, [2], "change {n}");
        leader.change_members(MemberChange::Remove(2)).await.unwrap();
        assert!(leader.status().learners.is_empty(), "change {n}");
    }
    leader.shutdown().await.unwrap();
}

/// Concurrent changes of the membership are made one after the other. None is refused because of
/// another one, which its caller may not know.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_membership_changes_are_serialized() {
    let (_dir, replicas) = three().await;
    let add = |replica_id: u64| {
        let address = format!("127.0.0.1:{replica_id}");
        replicas[0].change_members(MemberChange::Add { replica_id, address, learner: true })
    };
    for added in futures::future::join_all((4..10).map(add)).await {
        added.unwrap();
    }
    eventually("learners", async || replicas[0].status().learners == [4, 5, 6, 7, 8, 9]).await;
    for replica in &replicas {
        replica.shutdown().await.unwrap();
    }
}
