//! Opening, writing, reading and closing a replica.

use chancery_model::Revision;

use crate::support::{commit, config, open, put, render, revision};

#[tokio::test(flavor = "multi_thread")]
async fn restart_keeps_all_data() {
    let dir = tempfile::tempdir().unwrap();
    let replica = open(dir.path()).await;
    for n in 1..=20 {
        let summary =
            commit(&replica, put(&format!("c{}", n % 7), format!("{n}").as_bytes())).await;
        assert_eq!(summary.revision, Revision(n));
        assert_eq!(revision(&replica), Revision(n), "a caller sees what it wrote");
    }
    let (before, status, history) =
        (render(&replica.state()), replica.status(), replica.history(100));
    replica.shutdown().await.unwrap();
    drop(replica);
    let replica = open(dir.path()).await;
    assert_eq!(render(&replica.state()), before);
    assert_eq!(replica.history(100), history);
    let after = replica.status();
    assert_eq!((after.cluster_id, after.incarnation), (status.cluster_id, status.incarnation));
    assert_eq!(after.voters, [config(dir.path()).replica_id]);
    assert_eq!(after.failure, None);
    assert_eq!(commit(&replica, put("new", b"x")).await.revision, Revision(21));
    replica.shutdown().await.unwrap();
}
