//! Tests of backup and restore: the same state in another cluster, or an error and nothing created.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use chancery_model::{Outcome, Revision, TransactionMeta, Version};
use chancery_store::{
    Backup, BackupCheck, BackupSource, CaughtUp, Config, OpenError, Replica, RequestId,
    RestoreError, RestoreOptions, TransactError, restore,
};
use prost::Message;
use tempfile::TempDir;

use crate::{
    cluster::{DEADLINE, equal, eventually, leader, open_member, three, voters},
    full_disk::SmallDisk,
    support::{commit, config, key, memory_dir, open, put, render, scope, state_files},
};

fn bytes(backup: &Backup) -> Vec<u8> {
    backup.pieces().flatten().collect()
}

fn save(backup: &Backup, path: &Path) {
    fs::write(path, bytes(backup)).unwrap();
}

fn options(data_dir: &Path) -> RestoreOptions {
    let meta = TransactionMeta { author: "tester".into(), ..TransactionMeta::default() };
    RestoreOptions { data_dir: data_dir.to_owned(), replica_id: 1, after: Revision(0), meta }
}

/// Renders a state as a client sees it, without the parts that a restore changes.
fn content(replica: &Replica) -> Vec<String> {
    render(&replica.state()).split_off(1)
}

/// Returns a directory with a replica that has a few resources, and the path of its backup.
async fn small() -> (TempDir, PathBuf) {
    let dir = memory_dir();
    let replica = open(&dir.path().join("old")).await;
    for n in 0..3 {
        commit(&replica, put(&format!("r{n}"), b"body")).await;
    }
    let file = dir.path().join("backup");
    save(&replica.backup(DEADLINE).await.unwrap(), &file);
    replica.shutdown().await.unwrap();
    (dir, file)
}

/// SOTW-15: a restored cluster has the state and the resource versions of the backup, under another cluster
/// and incarnation. Its revision was never used before. It continues from there, and survives a restart.
#[tokio::test(flavor = "multi_thread")]
async fn restored_state_is_equal_under_a_new_incarnation() {
    let dir = memory_dir();
    let old = open(&dir.path().join("old")).await;
    let id = RequestId::random().unwrap();
    let first = old.transact_as(id, None, put("a", b"1")).await.unwrap();
    commit(&old, put("b", b"2")).await;
    let backup = old.backup(DEADLINE).await.unwrap();
    let (info, file) = (backup.info().clone(), dir.path().join("backup"));
    save(&backup, &file);
    assert_eq!((info.revision, info.n_resources), (Revision(2), 2));
    assert_eq!(info.source, BackupSource::Current);
    let before = content(&old);
    // This write will be lost.
    let lost = commit(&old, put("a", b"3")).await.revision;

    let to = dir.path().join("new");
    let restored = restore(&file, &options(&to)).unwrap();
    assert_eq!(restored.backup, info);
    assert_eq!(restored.revision, Revision(1 << 32));
    let new = open(&to).await;
    let status = new.status();
    assert_eq!((status.revision, status.cluster_id), (restored.revision, restored.cluster_id));
    assert_ne!(status.cluster_id, old.status().cluster_id);
    assert_ne!(status.incarnation, old.status().incarnation);
    assert_eq!(content(&new), before);
    let version = |replica: &Replica| -> Version {
        replica.state().get(&scope("default"), &key("a")).unwrap().version()
    };
    assert!(version(&old).revision == lost && lost < restored.revision);
    assert!(version(&new).revision <= info.revision);

    // A request from before the backup is known; a new write has a later revision than all earlier
    // ones.
    assert_eq!(new.transact_as(id, None, put("a", b"1")).await.unwrap(), first);
    let next = commit(&new, put("a", b"3")).await.revision;
    assert_eq!(next, Revision((1 << 32) + 1));
    assert_ne!(version(&new), version(&old), "the same content, and still another version");
    let history = new.history(10);
    let revisions: Vec<u64> = history.iter().map(|entry| entry.revision.0).collect();
    assert_eq!(revisions, [next.0, 1 << 32, 2, 1]);
    assert_eq!(history[1].restored_from, Some(Revision(2)));
    assert_eq!(history[1].meta.author, "tester");
    let expected = format!("restored from a backup of cluster {}", info.cluster_id);
    assert_eq!(history[1].meta.reason, expected);

    let before = render(&new.state());
    new.shutdown().await.unwrap();
    drop(new);
    let new = open(&to).await;
    assert_eq!(render(&new.state()), before);
    assert_eq!(new.history(10), history);
    // A backup of a restored cluster can be restored.
    let again = dir.path().join("again");
    save(&new.backup(DEADLINE).await.unwrap(), &again);
    let third = dir.path().join("third");
    let restored = restore(&again, &options(&third)).unwrap();
    assert_eq!(restored.revision, Revision(2 << 32));
    let third = open(&third).await;
    assert_eq!(third.history(10).len(), 5);
    for replica in [&old, &new, &third] {
        replica.shutdown().await.unwrap();
    }
}

/// Other replicas join a restored cluster with empty directories.
#[tokio::test(flavor = "multi_thread")]
async fn restored_replica_starts_a_new_cluster() {
    let (dir, file) = small().await;
    let options = RestoreOptions { replica_id: 7, ..options(&dir.path().join("7")) };
    restore(&file, &options).unwrap();
    let first = open_member(dir.path(), 7, &[]).await;
    let address = first.raft_address().to_owned();
    let second = open_member(dir.path(), 2, &[&address]).await;
    let third = open_member(dir.path(), 3, &[&address]).await;
    eventually("three voters", async || voters(&first).await == [2, 3, 7]).await;
    commit(&third, put("new", b"1")).await;
    equal(&[&first, &second, &third]).await;
    let incarnation = first.status().incarnation;
    assert!([&second, &third].iter().all(|r| r.status().incarnation == incarnation));
    for replica in [&first, &second, &third] {
        replica.shutdown().await.unwrap();
    }
}

/// Every replica returns a backup with all acknowledged writes. Without a majority, it can only
/// return a backup that is marked as stale.
#[tokio::test(flavor = "multi_thread")]
async fn any_replica_gives_a_current_backup() {
    let (_dir, mut replicas) = three().await;
    for n in 0..12 {
        let summary = commit(&replicas[n % 3], put(&format!("r{n}"), b"1")).await;
        let backup = replicas[(n + 1) % 3].backup(DEADLINE).await.unwrap();
        assert!(backup.info().revision >= summary.revision);
    }
    let left = replicas.remove(1);
    for replica in &replicas {
        replica.shutdown().await.unwrap();
    }
    let error = left.backup(Duration::from_secs(10)).await.unwrap_err();
    assert!(error.to_string().contains("no leader"), "{error}");
    let backup = left.backup_stale().unwrap();
    assert_eq!(backup.info().source, BackupSource::Stale);
    assert_eq!(backup.info().n_resources, 12);
    left.shutdown().await.unwrap();
}

/// A backup is of one point in time, whatever is written while it is read.
#[tokio::test(flavor = "multi_thread")]
async fn writes_go_on_while_a_backup_is_read() {
    let dir = memory_dir();
    let replica = open(&dir.path().join("old")).await;
    for n in 0..200 {
        commit(&replica, put(&format!("r{n}"), &[1; 4000])).await;
    }
    let backup = replica.backup(DEADLINE).await.unwrap();
    let before = content(&replica);
    let mut read = Vec::new();
    for (n, piece) in backup.pieces().enumerate() {
        read.extend_from_slice(&piece);
        commit(&replica, put(&format!("r{n}"), b"later")).await;
    }
    let file = dir.path().join("backup");
    fs::write(&file, read).unwrap();
    let to = dir.path().join("new");
    restore(&file, &options(&to)).unwrap();
    let new = open(&to).await;
    assert_eq!(content(&new), before);
    for replica in [&replica, &new] {
        replica.shutdown().await.unwrap();
    }
}

/// L1: the backup of a stopped replica includes log entries that were not applied. A leader that is
/// gone may have acknowledged them. The directory stays unchanged.
#[tokio::test(flavor = "multi_thread")]
async fn directory_backup_includes_unapplied_log_entries() {
    let (dir, mut replicas) = three().await;
    commit(&replicas[0], put("before", b"1")).await;
    equal(&replicas.iter().collect::<Vec<_>>()).await;
    let leader = leader(&replicas[0]).await;
    let left = replicas.remove(usize::try_from(leader - 1).unwrap());
    for replica in &replicas {
        replica.shutdown().await.unwrap();
    }
    let error = left.transact(put("after", b"2")).await.unwrap_err();
    assert!(matches!(error, TransactError::Timeout(_) | TransactError::NoLeader), "{error}");
    assert_eq!(left.state().len(), 1, "it was not applied");
    let path = dir.path().join(leader.to_string());
    let error = Backup::of_directory(&path).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    let last = left.status().last_log_index.unwrap();
    left.shutdown().await.unwrap();
    drop(left);

    let before = state_files(&path);
    let backup = Backup::of_directory(&path).unwrap();
    assert!(before == state_files(&path), "the directory was changed");
    let info = backup.info();
    assert_eq!((info.n_resources, info.position.1), (2, last));
    assert_eq!((info.source, info.replica_id), (BackupSource::Directory, leader));
    let file = dir.path().join("backup");
    save(&backup, &file);
    let to = dir.path().join("new");
    restore(&file, &options(&to)).unwrap();
    let new = open(&to).await;
    assert!(new.state().get(&scope("default"), &key("after")).is_some());
    new.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn backup_of_incomplete_directory_fails() {
    let (dir, _) = small().await;
    let error = |path: &Path| Backup::of_directory(path).unwrap_err();
    assert!(matches!(error(&dir.path().join("none")), OpenError::NotADirectory { .. }));
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert!(matches!(error(&empty), OpenError::NoReplica { .. }));
    assert_eq!(fs::read_dir(&empty).unwrap().count(), 0, "not even a lock file was made");
    let old = dir.path().join("old");
    fs::remove_file(old.join("HIGHWATER")).unwrap();
    assert!(matches!(error(&old), OpenError::Damaged { .. }));
}

/// T16: a damaged file is refused as a whole, and nothing is created from it.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_or_shortened_backup_is_refused() {
    let (dir, file) = small().await;
    let whole = fs::read(&file).unwrap();
    let check = |bytes: &[u8]| {
        let mut check = BackupCheck::default();
        check.push(bytes)?;
        check.finish()
    };
    assert!(check(&whole).is_ok());
    let to = dir.path().join("new");
    let refused = |bytes: &[u8]| {
        fs::write(&file, bytes).unwrap();
        let error = restore(&file, &options(&to)).unwrap_err();
        assert!(matches!(error, RestoreError::Backup { .. }), "{error}");
        assert!(error.to_string().contains(&file.display().to_string()), "{error}");
        assert!(!to.exists(), "a directory was created");
        error.to_string()
    };
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << bit;
            assert!(check(&damaged).is_err(), "byte {at}, bit {bit}");
            if bit == at % 8 {
                refused(&damaged);
            }
        }
        assert!(check(&whole[..at]).is_err(), "length {at}");
        refused(&whole[..at]);
    }
    let longer = [&whole[..], &[0]].concat();
    assert!(check(&longer).is_err());
    let expected = format!("it continues after its trailer, at byte {}", whole.len());
    assert!(refused(&longer).contains(&expected));
    assert!(refused(&whole[..whole.len() - 1]).contains("its trailer is missing"));
    assert!(refused(b"apiVersion: v1").contains("it is not a backup"));
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let text = refused(&damaged);
    assert!(text.contains("at byte ") && text.contains("its checksum does not match"), "{text}");
    fs::remove_file(&file).unwrap();
    let error = restore(&file, &options(&to)).unwrap_err();
    assert!(error.to_string().contains("No such file"), "{error}");
}

/// The error for a backup of a later release names that release.
#[tokio::test(flavor = "multi_thread")]
async fn backup_of_another_format_is_refused_with_its_version() {
    let (dir, file) = small().await;
    // Built by hand, as the format guarantees: magic, frame and the first two fields are the same
    // in every version.
    let header = chancery_raft_proto::v1::BackupHeader {
        format: 2,
        program: "9.1.0".into(),
        ..Default::default()
    };
    let message = header.encode_to_vec();
    let len = u32::try_from(message.len()).unwrap();
    let sum = xxhash_rust::xxh3::xxh3_64(&[&[4], &message[..]].concat());
    let parts = [b"CHYBACK1".as_slice(), &[4], &len.to_le_bytes(), &sum.to_le_bytes(), &message];
    fs::write(&file, [&parts.concat()[..], b"whatever follows"].concat()).unwrap();
    let error = restore(&file, &options(&dir.path().join("new"))).unwrap_err().to_string();
    assert!(error.contains("format version 2, made by chancery 9.1.0, but this program supports"));
}

#[tokio::test(flavor = "multi_thread")]
async fn restore_requires_an_empty_directory() {
    let (dir, file) = small().await;
    let old = dir.path().join("old");
    let before = state_files(&old);
    let error = restore(&file, &options(&old)).unwrap_err();
    assert!(matches!(error, RestoreError::NotEmpty { replica_id: 1, .. }), "{error}");
    assert!(before == state_files(&old));
    let foreign = dir.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("letter.txt"), "mine").unwrap();
    let error = restore(&file, &options(&foreign)).unwrap_err();
    assert!(error.to_string().contains("letter.txt"), "{error}");
    assert_eq!(fs::read_dir(&foreign).unwrap().count(), 1);
    let nobody = RestoreOptions { replica_id: 0, ..options(&dir.path().join("new")) };
    assert!(matches!(restore(&file, &nobody).unwrap_err(), RestoreError::ReplicaId));
    // Revisions stay below 2^53 (ADR 5).
    for after in [u64::MAX, 1 << 53, (1 << 53) - 1, (1 << 53) - (1 << 32)] {
        let last = RestoreOptions { after: Revision(after), ..options(&dir.path().join("new")) };
        assert!(matches!(restore(&file, &last).unwrap_err(), RestoreError::Revision(_)), "{after}");
    }
    assert!(!dir.path().join("new").exists());
    // An existing empty directory is accepted, and `after` keeps revisions above those of another
    // restore.
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let after = RestoreOptions { after: Revision(1 << 32), ..options(&empty) };
    assert_eq!(restore(&file, &after).unwrap().revision, Revision(2 << 32));
    let last = (1 << 53) - (1 << 32);
    let after = RestoreOptions { after: Revision(last - 1), ..options(&dir.path().join("last")) };
    assert_eq!(restore(&file, &after).unwrap().revision, Revision(last));
}

/// If the outer replica's directory is emptied, the inner replica would be lost. Both may also fill
/// the same disk.
#[tokio::test(flavor = "multi_thread")]
async fn restore_inside_a_replica_directory_is_rejected() {
    let (dir, file) = small().await;
    let old = dir.path().join("old");
    let before = state_files(&old);
    std::os::unix::fs::symlink(&old, dir.path().join("link")).unwrap();
    for inside in ["old/sub", "old/db", "old/db/a/b", "old/no/../sub", "link/sub"] {
        let error = restore(&file, &options(&dir.path().join(inside))).unwrap_err();
        let RestoreError::Inside { data_dir, .. } = &error else { panic!("{inside}: {error}") };
        assert_eq!(data_dir, &old.canonicalize().unwrap(), "{inside}");
    }
    let entries = fs::read_dir(&old).unwrap().count();
    assert!(before == state_files(&old) && entries == 4, "{entries}");
    // A file of the same name without the right content does not count.
    fs::write(dir.path().join("IDENTITY"), "of something else").unwrap();
    restore(&file, &options(&dir.path().join("new/sub"))).unwrap();
}

/// A directory with an interrupted restore is never treated as empty: a replica would serve nothing
/// to a fleet from it. The restore can be repeated.
#[tokio::test(flavor = "multi_thread")]
async fn replica_does_not_start_from_interrupted_restore() {
    let (dir, file) = small().await;
    let to = dir.path().join("new");
    restore(&file, &options(&to)).unwrap();
    for torn in [false, true] {
        fs::rename(to.join("IDENTITY"), to.join("IDENTITY.part")).unwrap();
        if torn {
            fs::write(to.join("IDENTITY.part"), "chancery da").unwrap();
            fs::remove_dir_all(to.join("db")).unwrap();
            fs::remove_file(to.join("HIGHWATER")).unwrap();
        }
        let error = Replica::open(config(&to)).await.unwrap_err();
        assert!(matches!(error, OpenError::Unrestored { .. }), "{error}");
        let error = Backup::of_directory(&to).unwrap_err();
        assert!(matches!(error, OpenError::Unrestored { .. }), "{error}");
        restore(&file, &options(&to)).unwrap();
    }
    let new = open(&to).await;
    assert_eq!(new.state().len(), 3);
    new.shutdown().await.unwrap();
}

/// A failed restore on a disk that is too small leaves an empty directory, or none.
#[tokio::test(flavor = "multi_thread")]
async fn failed_restore_leaves_no_files() {
    let (_dir, file) = small().await;
    let Some(disk) = SmallDisk::mount("16k") else { return };
    let to = disk.path().join("new");
    for to in [&to, disk.path()] {
        let error = restore(&file, &options(to)).unwrap_err();
        let RestoreError::Directory(OpenError::Io { .. }) = &error else { panic!("{error}") };
    }
    let left: Vec<_> = fs::read_dir(disk.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.is_empty() || left == ["LOCK"], "{left:?}");
}

/// The format of the first release is readable forever.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_the_first_release_is_restored() {
    let dir = memory_dir();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/format1/backup.chancery");
    let to = dir.path().join("new");
    let restored = restore(&file, &options(&to)).unwrap();
    assert_eq!(restored.backup.program, "0.1.0");
    let replica = Replica::open(Config { data_dir: to, ..config(dir.path()) }).await.unwrap();
    assert_eq!(replica.catch_up(DEADLINE).await.unwrap(), CaughtUp::Yes);
    assert_eq!(crate::golden::describe(&replica.state()), crate::golden::content());
    let outcome = replica.transact(put("new", b"1")).await.unwrap();
    assert!(matches!(outcome, Outcome::Committed(_)));
    replica.shutdown().await.unwrap();
}
