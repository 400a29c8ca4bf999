//! Replicas whose states or logs differ: detection, alarm and stop.

use std::{fs, path::Path, process};

use chancery_raft_proto::v1::{self as pb, replication_client::ReplicationClient};
use openraft::{EntryPayload, async_runtime::WatchReceiver};
use tonic::Code;

use super::power_cut::{DEADLINE, config, end, put, reporting_members, start, trio, until};
use crate::{
    Backup, BackupCheck, ChangeError, MemberChange, OpenError, OpenProgress, ReadError, Replica,
    TransactError,
    disk::{
        database::Batch,
        directory::Directory,
        effect::{OwnedEdit, Place},
        high_water::HighWater,
        recovery::{self, Recovered},
    },
    format::{
        codec::Command,
        keys::{APPLIED_KEY, state_key},
        raft::Entry,
        raft_codec::{entry_to_record, log_id_to_proto, vote_to_proto},
        record::{self, Family},
    },
};

/// Gives a stopped replica a different state at the same position of the log. The replica alone cannot detect
/// this.
fn tamper(dir: &Path, replica_id: u64, name: &str) {
    let (directory, identity) =
        Directory::open_existing(&dir.join(replica_id.to_string())).unwrap();
    let mark = HighWater::open(&directory.high_water(), identity.cluster_id).unwrap().mark();
    let (database, recovered) =
        recovery::recover(&directory, identity, mark, &OpenProgress::default()).unwrap();
    let Recovered { mut image, generation, .. } = recovered;
    let (mut edits, mut batch) = (Vec::new(), Batch::default());
    let transaction = Box::new(put(name));
    image.apply(
        Command::Transact { transaction, request: None, retention: crate::Retention::default() },
        &mut edits,
    );
    for OwnedEdit { place, family, key, record } in edits {
        if place == Place::Content {
            continue;
        }
        let record = record.expect("nothing is removed");
        database.put(&mut batch, family, &state_key(generation, &key), &record);
    }
    let applied = image.applied_to_proto(generation);
    let record = record::seal(Family::Meta, APPLIED_KEY, &applied);
    database.put(&mut batch, Family::Meta, APPLIED_KEY, &record);
    database.write(batch).unwrap();
    database.sync().unwrap();
}

async fn diverged(replica: &Replica) -> String {
    let reason = tokio::time::timeout(DEADLINE, replica.until_diverged()).await;
    reason.expect("the replica detects the difference").to_string()
}

/// L13: a replica whose state differs from that of most voters serves nothing, even after a restart, until it
/// has joined again without its data. The others continue, and name it.
#[tokio::test(flavor = "multi_thread")]
async fn replica_outvoted_by_the_others_stops_serving_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let mut replicas = trio(dir.path()).await;
    let address = replicas[2].raft_address().to_owned();
    replicas.pop().unwrap().shutdown().await.unwrap();
    tamper(dir.path(), 3, "wrong");
    let wrong = start(dir.path(), 3, &address).await;
    let reason = diverged(&wrong).await;
    assert!(reason.contains("differs from that of most voters"), "{reason}");
    assert!(reason.contains("empty its data directory"), "{reason}");
    assert_eq!(wrong.failure().as_deref(), Some(&*reason));
    let read = wrong.read_barrier(DEADLINE).await.unwrap_err();
    assert_eq!(read, ReadError::Diverged(reason.clone()));
    assert!(wrong.backup_stale().is_err());
    let written = wrong.transact(put("refused")).await.unwrap_err();
    assert_eq!(written, TransactError::NotSent(reason.clone()), "it surely has no effect");
    assert_eq!(wrong.leader(), None, "it no longer follows the leader");

    let members = reporting_members(&replicas[0]).await;
    let reports = members.iter().filter_map(|it| Some((it.replica_id, it.report.as_ref()?)));
    let reported: Vec<_> = reports.map(|(id, report)| (id, report.diverged.clone())).collect();
    assert_eq!(reported, [(1, None), (2, None), (3, Some(reason.clone()))]);
    let change = replicas[1].change_members(MemberChange::TransferLeader(Some(3))).await;
    let refused = format!("cannot transfer leadership to replica 3: it has diverged: {reason}");
    assert_eq!(change, Err(ChangeError::Refused(refused)));
    let core = replicas[0].core();
    core.comparison.compare().await;
    let alarm = core.comparison.alarm().unwrap();
    assert!(alarm.contains("differs from that of replica 3:"), "{alarm}");
    assert!(replicas.iter().all(|replica| replica.diverged().is_none()));
    replicas[1].transact(put("second")).await.unwrap();
    let file = dir.path().join("3/DIVERGED");
    until("the mark in its directory", || file.exists()).await;
    until("Raft has stopped", || {
        wrong.core().node.raft.metrics().borrow_watched().running_state.is_err()
    })
    .await;
    wrong.shutdown().await.unwrap();
    drop(wrong);
    let error = Replica::open(config(dir.path(), 3, &[])).await.unwrap_err();
    assert!(matches!(error, OpenError::Diverged { .. }), "{error}");
    let backup = Backup::of_directory(&dir.path().join("3")).unwrap();
    let mut check = BackupCheck::default();
    backup.pieces().for_each(|piece| check.push(&piece).unwrap());
    assert_eq!(check.finish().unwrap().diverged, Some(reason), "a backup warns of the state");

    fs::remove_dir_all(dir.path().join("3")).unwrap();
    let join = [replicas[0].raft_address().to_owned()];
    replicas.push(Replica::open(config(dir.path(), 3, &join)).await.unwrap());
    replicas[2].catch_up(DEADLINE).await.unwrap();
    until("the third voter", || replicas[0].status().voters.len() == 3).await;
    assert!(replicas[2].diverged().is_none());
    let core = replicas[0].core();
    core.comparison.compare().await;
    assert_eq!(core.comparison.alarm(), None, "it has the same state again");
    end(&replicas).await;
}

/// L13: if no majority agrees, the right state is unknown. Every replica raises the alarm and continues.
#[tokio::test(flavor = "multi_thread")]
async fn three_different_states_raise_alarm_and_stop_no_replica() {
    let dir = tempfile::tempdir().unwrap();
    let mut replicas = trio(dir.path()).await;
    let addresses: Vec<String> =
        replicas[1..].iter().map(|one| one.raft_address().to_owned()).collect();
    end(&replicas[1..]).await;
    replicas.truncate(1);
    tamper(dir.path(), 2, "wrong");
    tamper(dir.path(), 3, "wrong as well");
    for (id, address) in (2..).zip(&addresses) {
        replicas.push(start(dir.path(), id, address).await);
    }
    for replica in &replicas {
        replica.catch_up(DEADLINE).await.unwrap();
        replica.core().comparison.compare().await;
    }
    for replica in &replicas {
        let id = replica.core().id();
        let alarm = replica.core().comparison.alarm().expect("an alarm");
        assert!(!alarm.contains(&format!("replica {id}")), "{alarm}");
        assert!(alarm.contains("replica 2") || alarm.contains("replica 3"), "{alarm}");
        assert_eq!(replica.diverged(), None);
    }
    end(&replicas).await;
}

/// L13: two entries with the same log ID and different content mean that a replica has reused a log ID.
/// Raft would skip the second entry.
#[tokio::test(flavor = "multi_thread")]
async fn different_entry_with_same_log_id_stops_the_replica() {
    let dir = tempfile::tempdir().unwrap();
    let replicas = trio(dir.path()).await;
    let (leader, follower) = (replicas[0].core(), replicas[1].core());
    let log = follower.storage.log.upgrade().unwrap();
    let last = log.last_index().unwrap();
    let held = log.read(last - 1, last + 1, usize::MAX).unwrap();
    drop(log);
    let [before, entry] = &held[..] else { panic!("{held:?}") };
    let url = format!("http://{}", replicas[1].raft_address());
    let mut client = ReplicationClient::connect(url).await.unwrap();
    let append = |entry: &Entry| pb::AppendRequest {
        header: Some(leader.calls.peers.header(leader.identity, 2)),
        vote: Some(vote_to_proto(&leader.node.raft.metrics().borrow_watched().vote)),
        previous: Some(log_id_to_proto(&before.log_id)),
        entries: vec![pb::EntryRecord { index: last, record: entry_to_record(entry).into() }],
        ..pb::AppendRequest::default()
    };
    client.append(append(entry)).await.expect("the same entry is accepted again");
    assert_eq!(follower.divergence.reason(), None);
    let other = Entry { log_id: entry.log_id, payload: EntryPayload::Blank };
    let refused = client.append(append(&other)).await.unwrap_err();
    assert_eq!(refused.code(), Code::DataLoss, "{refused}");
    let reason = diverged(&replicas[1]).await;
    assert!(reason.contains(&format!("different entry {last}")), "{reason}");
    end(&replicas).await;
}

/// L13: a replica with a wrong log must not win an election. It stops Raft although its disk does not yet
/// store the mark that keeps it from starting again.
#[tokio::test(flavor = "multi_thread")]
async fn diverged_replica_stops_raft_while_its_disk_stalls() {
    let dir = tempfile::tempdir().unwrap();
    let replica = Replica::open(config(dir.path(), 1, &[])).await.unwrap();
    // Opening a FIFO for writing blocks until a reader opens it.
    let mark = dir.path().join("1/DIVERGED");
    assert!(process::Command::new("mkfifo").arg(&mark).status().unwrap().success());
    replica.core().divergence.stop("its log differs");
    let stopped = until("Raft has stopped", || {
        replica.core().node.raft.metrics().borrow_watched().running_state.is_err()
    });
    let stopped = tokio::time::timeout(DEADLINE / 4, stopped).await;
    let marked = fs::read_to_string(&mark).unwrap();
    assert!(stopped.is_ok(), "Raft runs although the replica has diverged");
    assert!(marked.starts_with("its log differs; "), "{marked}");
    replica.shutdown().await.unwrap();
}
