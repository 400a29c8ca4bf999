//! Tests with killed processes and failing disks.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    child::{self, Ack},
    support::{Random, memory_dir, open, render},
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
