//! Tests of a disk without space.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

use chancery_store::{Config, OpenError, Replica, TransactError};
use chancery_testing::{Lack, skip};
use tempfile::TempDir;

use crate::support::{Random, commit, config, put, render};

/// A separate file system of a few MiB, in memory.
pub(crate) struct SmallDisk {
    dir: TempDir,
}

impl SmallDisk {
    /// Mounts the file system. Returns `None` if mounting is not permitted.
    pub(crate) fn mount(size: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(dir.path())
            .stderr(std::process::Stdio::null())
            .status();
        if status.is_ok_and(|status| status.success()) {
            return Some(Self { dir });
        }
        skip(Lack::Mount, "mounting a tmpfs is not permitted");
        None
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Makes the file system larger.
    fn grow(&self, size: &str) {
        let mut mount = Command::new("mount");
        mount.args(["-o", &format!("remount,size={size}")]).arg(self.path());
        assert!(mount.status().unwrap().success());
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }

    /// Uses up all free space.
    fn fill(&self) {
        let mut file = fs::File::create(self.filler()).unwrap();
        while file.write_all(&[0; 64 << 10]).is_ok() {}
        while file.write_all(&[0; 16]).is_ok() {}
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        Command::new("umount").arg(self.dir.path()).status().unwrap();
    }
}

/// On a nearly full disk, writes are refused before they reach the log, and reads continue. When
/// there is space again, writes resume without a restart.
#[tokio::test(flavor = "multi_thread")]
async fn a_nearly_full_disk_refuses_writes_until_there_is_space() {
    let Some(disk) = SmallDisk::mount("128m") else { return };
    let config =
        Config { free_bytes_min: Config::FREE_BYTES_LEAST, ..config(&disk.path().join("data")) };
    let replica = Replica::open(config.clone()).await.unwrap();
    commit(&replica, put("a", b"1")).await;
    disk.fill();
    // The replica reuses a measurement for a moment.
    let error = loop {
        match replica.transact(put("b", b"2")).await {
            Ok(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
            Err(error) => break error,
        }
    };
    let TransactError::DiskFull { free, needed, .. } = &error else { panic!("{error}") };
    assert!(free < needed && *needed >= Config::FREE_BYTES_LEAST, "{error}");
    assert!(error.to_string().contains("nearly full"), "{error}");
    let (before, status) = (render(&replica.state()), replica.status());
    assert_eq!(status.failure, None, "a refused write is not a failure");
    let full = status.full.unwrap();
    assert!(full.starts_with("the disk is nearly full: "), "{full}");
    let members = replica.members().await;
    assert_eq!(members[0].report.as_ref().unwrap().failure.as_ref(), Some(&full));
    fs::remove_file(disk.filler()).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while replica.transact(put("c", b"3")).await.is_err() {
        assert!(std::time::Instant::now() < deadline, "writes are still refused");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let report = replica.members().await.remove(0).report.unwrap();
    assert_eq!((replica.status().full, report.failure), (None, None));
    assert!(render(&replica.state()).len() > before.len());
    let before = render(&replica.state());
    replica.shutdown().await.unwrap();
    let replica = Replica::open(config).await.unwrap();
    assert_eq!(render(&replica.state()), before);
    replica.shutdown().await.unwrap();
}

/// The advice for a refused write does not apply to a start.
#[tokio::test(flavor = "multi_thread")]
async fn cluster_formation_without_disk_space_fails() {
    let Some(disk) = SmallDisk::mount("70m") else { return };
    let config = Config { free_bytes_min: 128 << 20, ..config(&disk.path().join("data")) };
    let error = Replica::open(config.clone()).await.unwrap_err();
    assert!(matches!(error, OpenError::DiskFull { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("(store.free_bytes_min); free disk space, then start the replica again"),
        "{text}"
    );
    disk.grow("256m");
    Replica::open(config).await.unwrap().shutdown().await.unwrap();
}

/// Returns a body that the log cannot compress.
fn noise(seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    (0..200_000).map(|_| random.byte()).collect()
}

async fn write_until_refused(replica: &Replica, round: u64) -> (u64, TransactError) {
    let body = noise(round);
    for n in 0.. {
        if let Err(error) = replica.transact(put(&format!("{round}-{n}"), &body)).await {
            return (n, error);
        }
    }
    unreachable!("a disk fills up")
}

/// The smallest permitted reserve suffices for the data in memory, also after restarts. A merge of
/// tables may need more. The replica then stops writing, reports the reason, and has lost nothing.
#[tokio::test(flavor = "multi_thread")]
async fn nearly_full_disk_loses_no_data() {
    let Some(disk) = SmallDisk::mount("256m") else { return };
    let config =
        Config { free_bytes_min: Config::FREE_BYTES_LEAST, ..config(&disk.path().join("data")) };
    let mut n_acked = 0;
    for round in 0..4 {
        let replica = Replica::open(config.clone()).await.unwrap();
        assert_eq!(replica.state().len() as u64, n_acked);
        let (n, error) = write_until_refused(&replica, round).await;
        n_acked += n;
        if let TransactError::Failed(reason) = &error {
            assert!(reason.contains("free space on the disk"), "{reason}");
            // The shutdown may fail; acknowledged writes do not depend on it.
            drop(replica.shutdown().await);
            disk.grow("512m");
            break;
        }
        assert!(matches!(error, TransactError::DiskFull { .. }), "{error}");
        assert!(error.to_string().contains("needs no restart"), "{error}");
        replica.shutdown().await.unwrap();
    }
    assert!(n_acked >= 100, "{n_acked}");
    let replica = Replica::open(config).await.unwrap();
    // The failed write may have been written anyway.
    let held = replica.state().len() as u64;
    assert!((n_acked..=n_acked + 1).contains(&held), "{held} of {n_acked}");
    replica.shutdown().await.unwrap();
}

/// A disk that is full to the last byte: when there is space again, all acknowledged writes are
/// present.
#[tokio::test(flavor = "multi_thread")]
async fn full_disk_loses_no_acknowledged_write() {
    let Some(disk) = SmallDisk::mount("48m") else { return };
    let config = Config { free_bytes_min: 0, ..config(&disk.path().join("data")) };
    let replica = Replica::open(config.clone()).await.unwrap();
    let body = noise(7);
    let mut acked = Vec::new();
    let error = loop {
        let name = format!("n{}", acked.len());
        match replica.transact(put(&name, &body)).await {
            Ok(_) => acked.push(name),
            Err(error) => break error,
        }
        assert!(acked.len() < 1000, "48 MiB must be full after 1000 writes");
    };
    assert!(matches!(error, TransactError::DiskFull { .. } | TransactError::Failed(_)), "{error}");
    if let TransactError::Failed(reason) = &error {
        assert!(
            reason.contains("free space on the disk") && reason.contains("start the replica"),
            "{reason}"
        );
    }
    assert_eq!(replica.state().len(), acked.len(), "the readable state is the acknowledged one");
    drop(replica.shutdown().await);
    // The file system grows, so space appears from outside.
    disk.grow("256m");
    let replica = Replica::open(config).await.unwrap();
    // The failed write may have been written anyway.
    let held = replica.state().len();
    assert!((acked.len()..=acked.len() + 1).contains(&held), "{held} of {}", acked.len());
    let lines = render(&replica.state());
    for name in &acked {
        let start = format!("{name:?} ");
        assert!(lines.iter().any(|line| line.starts_with(&start)), "{name} is lost");
    }
    commit(&replica, put("more", &body)).await;
    replica.shutdown().await.unwrap();
}
