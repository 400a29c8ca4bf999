//! Tests with killed processes and failing disks.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

use crate::{
    child::{self, Ack},
    support::{Random, commit, memory_dir, open, put, render},
};

const KILLS: u64 = 12;

/// An acknowledged write survives `kill -9`, with its revision, version and bytes.
#[tokio::test(flavor = "multi_thread")]
async fn no_acknowledged_write_is_lost_by_a_kill() {
    let dir = memory_dir();
    let mut random = Random(2026);
    let mut acked: BTreeMap<String, Ack> = BTreeMap::new();
    for round in 0..KILLS {
        let (mut process, lines) = child::spawn(dir.path(), round, &[]);
        let mut acks = child::acks(lines);
        let patience = random.below(400);
        for ack in acks.by_ref().take(1 + patience) {
            acked.insert(ack.name.clone(), ack);
        }
        std::thread::sleep(Duration::from_micros(random.next() % 3000));
        process.kill().unwrap();
        process.wait().unwrap();
        acked.extend(acks.map(|ack| (ack.name.clone(), ack)));
        let replica = open(dir.path()).await;
        acked.values().for_each(|ack| ack.check(&replica));
        let before = render(&replica.state());
        replica.shutdown().await.unwrap();
        if round % 4 == 0 {
            let replica = open(dir.path()).await;
            assert_eq!(render(&replica.state()), before);
            replica.shutdown().await.unwrap();
        }
    }
    assert!(acked.len() > 100, "only {} writes were acknowledged", acked.len());
}

/// When the log can no longer be written, the replica refuses writes with the reason. No
/// acknowledged write is lost, and the replica works again once the limit is gone.
#[tokio::test(flavor = "multi_thread")]
async fn log_that_cannot_be_written_loses_no_acknowledged_write() {
    let dir = memory_dir();
    // No file may grow beyond 2 MiB. The child inherits the ignored signal, so its writes return an
    // error.
    let shell = ["bash", "-c", "trap '' XFSZ; ulimit -f 2048; exec \"$@\"", "bash"];
    let (mut process, lines) = child::spawn(dir.path(), 0, &shell);
    let mut failure = None;
    let lines = lines.inspect(|line| {
        if let Some(reason) = line.strip_prefix("failed ") {
            failure = Some(reason.to_owned());
        }
    });
    let acks: Vec<Ack> = child::acks(lines).collect();
    assert!(process.wait().unwrap().success(), "the child checks what a failed replica does");
    let failure = failure.unwrap();
    assert!(failure.contains("cannot be written"), "{failure}");
    assert!(acks.len() > 100, "only {} writes were acknowledged", acks.len());
    let replica = open(dir.path()).await;
    acks.iter().for_each(|ack| ack.check(&replica));
    assert_eq!(replica.status().failure, None);
    replica.shutdown().await.unwrap();
}

/// Returns the files of the write-ahead log that have content.
fn write_ahead_logs(data: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(data.join("db")).unwrap().map(|entry| entry.unwrap());
    let logs = entries.filter(|entry| entry.metadata().unwrap().len() > 0);
    let names = logs.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.ends_with(".log")).collect()
}

/// After a sync that failed, the kernel may show data of the write-ahead log that are not on the disk. A start
/// therefore writes what it recovers to new files, and needs none of the earlier log.
#[tokio::test(flavor = "multi_thread")]
async fn start_needs_no_earlier_write_ahead_log() {
    let dir = memory_dir();
    let replica = open(dir.path()).await;
    commit(&replica, put("a", &[7; 1000])).await;
    let before = render(&replica.state());
    replica.shutdown().await.unwrap();
    let earlier = write_ahead_logs(dir.path());
    assert!(!earlier.is_empty());
    let replica = open(dir.path()).await;
    let later = write_ahead_logs(dir.path());
    assert!(earlier.is_disjoint(&later), "{earlier:?} {later:?}");
    assert_eq!(render(&replica.state()), before);
    replica.shutdown().await.unwrap();
}
