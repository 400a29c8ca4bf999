//! Tests of directories that cannot be used: each is refused with a reason and stays unchanged.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use chancery_store::{Config, OpenError, Replica};
use chancery_testing::{Lack, skip};

use crate::support::{commit, config, files, open, put, render, state_files};

async fn refusal(config: Config) -> OpenError {
    let before = config.data_dir.is_dir().then(|| state_files(&config.data_dir));
    let path = config.data_dir.clone();
    let error = match Replica::open(config).await {
        Ok(_) => panic!("{} was opened", path.display()),
        Err(error) => error,
    };
    let after = path.is_dir().then(|| state_files(&path));
    assert!(before == after, "a refused directory was changed: {error}");
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    error
}

async fn replica_in(path: &Path) {
    let replica = open(path).await;
    commit(&replica, put("a", b"1")).await;
    replica.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn new_directory_is_private_and_contains_its_identity() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b");
    replica_in(&path).await;
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    for name in ["IDENTITY", "HIGHWATER", "LOCK"] {
        let mode = fs::metadata(path.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{name}");
    }
    let identity = fs::read_to_string(path.join("IDENTITY")).unwrap();
    assert!(identity.starts_with("chancery data directory, format 1\ncluster "), "{identity}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_in_place_of_the_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "mine").unwrap();
    assert!(matches!(refusal(config(&path)).await, OpenError::NotADirectory { .. }));
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    let below = path.join("data");
    assert!(matches!(refusal(config(&below)).await, OpenError::NotADirectory { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn directory_with_foreign_files_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("thesis.tex"), "mine").unwrap();
    let error = refusal(config(dir.path())).await;
    assert!(matches!(&error, OpenError::Foreign { found, .. } if found == "thesis.tex"), "{error}");
    assert_eq!(files(dir.path()).len(), 1, "not even a lock file was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn data_directory_without_identity_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    replica_in(dir.path()).await;
    fs::remove_file(dir.path().join("IDENTITY")).unwrap();
    assert!(matches!(refusal(config(dir.path())).await, OpenError::Foreign { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn directory_with_missing_part_is_damaged() {
    for part in ["HIGHWATER", "db"] {
        let dir = tempfile::tempdir().unwrap();
        replica_in(dir.path()).await;
        let path = dir.path().join(part);
        fs::rename(&path, dir.path().with_extension(part)).unwrap();
        let error = refusal(config(dir.path())).await;
        assert!(matches!(&error, OpenError::Damaged { detail, .. } if detail == part), "{error}");
        let aside = dir.path().with_extension(part);
        if aside.is_dir() { fs::remove_dir_all(aside) } else { fs::remove_file(aside) }.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_a_later_release_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    // Built by hand, as the format guarantees: first line and checksum are the same in every
    // version.
    let text = "chancery data directory, format 7\nwhatever\n";
    let checksum = xxhash_rust::xxh3::xxh3_64(text.as_bytes());
    let text = format!("{text}checksum {checksum:016x}\n");
    fs::write(dir.path().join("IDENTITY"), text).unwrap();
    let error = refusal(config(dir.path())).await;
    assert!(matches!(error, OpenError::NewerFormat { found: 7, supported: 1, .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_another_replica_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    replica_in(dir.path()).await;
    let error = refusal(Config { replica_id: 2, ..config(dir.path()) }).await;
    assert!(matches!(error, OpenError::ReplicaId { found: 1, configured: 2, .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn second_process_is_rejected_with_the_holder_of_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let replica = open(dir.path()).await;
    // The first replica continues to write to its files meanwhile.
    let error = Replica::open(config(dir.path())).await.unwrap_err();
    let expected = format!("process {}", std::process::id());
    assert!(matches!(&error, OpenError::InUse { holder, .. } if *holder == expected), "{error}");
    commit(&replica, put("a", b"1")).await;
    replica.shutdown().await.unwrap();
    replica_in(dir.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    replica_in(dir.path()).await;
    // Root may write regardless of the mode, so the file system itself must be read-only.
    let mount = |args: &[&str]| {
        Command::new("mount")
            .args(args)
            .arg(dir.path())
            .status()
            .is_ok_and(|status| status.success())
    };
    let path = dir.path().display().to_string();
    if !mount(&["--bind", &path]) {
        skip(Lack::Mount, "mounting is not permitted");
        return;
    }
    assert!(mount(&["-o", "remount,ro,bind"]), "a bind mount can be made read-only");
    let error = Replica::open(config(dir.path())).await.unwrap_err();
    let unmounted = Command::new("umount").arg(dir.path()).status().unwrap();
    assert!(unmounted.success());
    let OpenError::Io { source, .. } = &error else { panic!("{error}") };
    assert_eq!(source.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{error}");
    replica_in(dir.path()).await;
}

/// A start that is interrupted before the replica is formed leaves nothing that anyone relies on.
#[tokio::test(flavor = "multi_thread")]
async fn interrupted_first_start_is_repeated() {
    let dir = tempfile::tempdir().unwrap();
    replica_in(dir.path()).await;
    fs::rename(dir.path().join("IDENTITY"), dir.path().join("IDENTITY.new")).unwrap();
    let replica = open(dir.path()).await;
    assert!(replica.state().is_empty());
    commit(&replica, put("b", b"2")).await;
    let before = render(&replica.state());
    replica.shutdown().await.unwrap();
    let replica = open(dir.path()).await;
    assert_eq!(render(&replica.state()), before);
    replica.shutdown().await.unwrap();
}

/// A power cut while the first file is being written leaves a part of it, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn torn_first_file_does_not_prevent_start() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("IDENTITY.new"), "chancery da").unwrap();
    replica_in(dir.path()).await;
}
