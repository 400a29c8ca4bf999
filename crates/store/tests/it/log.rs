//! Tests of group commit, snapshots and purging.

use std::time::Duration;

use chancery_model::Transaction;
use chancery_store::{Config, Replica, TransactError};
use tokio::task::JoinSet;

use crate::{
    cluster::eventually,
    support::{commit, config, memory_dir, open, put, render, upsert},
};

/// Commits 1024 transactions of `n_writers` concurrent writers. Returns the number of commits per sync, rounded down.
async fn commits_per_sync(replica: &Replica, n_writers: u64) -> u64 {
    let (before, per_writer) = (replica.status().fsyncs, 1024 / n_writers);
    let mut writers = JoinSet::new();
    for writer in 0..n_writers {
        let replica = replica.clone();
        writers.spawn(async move {
            for n in 0..per_writer {
                let name = format!("{n_writers}-{writer}-{n}");
                commit(&replica, put(&name, before.to_string().as_bytes())).await;
            }
        });
    }
    writers.join_all().await;
    1024 / (replica.status().fsyncs - before).max(1)
}

/// Throughput grows with concurrent writers, because one sync serves all writers that wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_writers_share_syncs() {
    // On a disk a sync takes time; `/tmp` may be in memory.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let replica = open(dir.path()).await;
    let alone = commits_per_sync(&replica, 1).await;
    assert!(alone <= 1, "one writer alone needs a sync for each commit: {alone}");
    for (n_writers, least) in [(16, 2), (256, 8)] {
        let mut ratios = Vec::new();
        // Writers that get no processor time do not wait for the same sync, so there are several attempts.
        while ratios.last().is_none_or(|ratio| *ratio < least) {
            assert!(ratios.len() < 5, "commits per sync of {n_writers} writers: {ratios:?}");
            ratios.push(commits_per_sync(&replica, n_writers).await);
        }
    }
    assert_eq!(replica.state().len(), 3 * 1024);
    replica.shutdown().await.unwrap();
}

/// The log is purged after `snapshot_log_entries`, and a replica restarts from the rest.
#[tokio::test(flavor = "multi_thread")]
async fn replica_restarts_from_purged_log() {
    let dir = memory_dir();
    let config = Config { snapshot_log_entries: 50, log_entries_keep: 10, ..config(dir.path()) };
    for round in 0..3 {
        let replica = Replica::open(config.clone()).await.unwrap();
        for n in 0..120 {
            commit(&replica, put(&format!("c{}", n % 30), format!("{round}-{n}").as_bytes())).await;
        }
        let last = replica.status().last_log_index.unwrap();
        eventually("purged", async || replica.status().purged >= Some(last - 65)).await;
        let before = render(&replica.state());
        replica.shutdown().await.unwrap();
        let replica = Replica::open(config.clone()).await.unwrap();
        assert_eq!(render(&replica.state()), before);
        assert!(replica.status().snapshot >= Some(last), "{:?}", replica.status());
        replica.shutdown().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_few_large_entries_is_purged_by_bytes() {
    let dir = memory_dir();
    let config =
        Config { snapshot_log_bytes: 4 << 20, log_bytes_keep: 1 << 20, ..config(dir.path()) };
    let replica = Replica::open(config.clone()).await.unwrap();
    for n in 0_u8..40 {
        let body = vec![n; 256 << 10];
        commit(&replica, put("large", &body)).await;
    }
    // Sizes are exact to one stride of entries, which here is the whole log.
    eventually("purged by bytes", async || replica.status().purged.is_some()).await;
    let before = render(&replica.state());
    replica.shutdown().await.unwrap();
    let replica = Replica::open(config).await.unwrap();
    assert_eq!(render(&replica.state()), before);
    replica.shutdown().await.unwrap();
}

/// After one large transaction, the log is purged even if no transaction follows. Its bytes stay
/// neither in memory, nor in the WAL, nor in tables.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_last_transaction_does_not_stay_in_the_log() {
    let dir = memory_dir();
    let config = Config {
        snapshot_log_bytes: 4 << 20,
        log_bytes_keep: 1 << 20,
        // A debug build takes 8 s for 40 MB on a slow machine, even if it is idle.
        transact_timeout: Duration::from_secs(60),
        ..config(dir.path())
    };
    let replica = Replica::open(config.clone()).await.unwrap();
    let body = vec![7; 4000];
    let upserts = (0..10_000).map(|n| upsert(&format!("c{n}"), &body)).collect();
    commit(&replica, Transaction { upserts, ..Transaction::default() }).await;
    let last = replica.status().last_log_index;
    eventually("purged", async || replica.status().purged == last).await;
    // The state compresses well; the log, 40 MB, would not.
    eventually("the directory is small again", async || replica.status().disk_bytes < 10 << 20)
        .await;
    let before = render(&replica.state());
    commit(&replica, put("another", b"x")).await;
    replica.shutdown().await.unwrap();
    let replica = Replica::open(config).await.unwrap();
    assert_eq!(replica.state().len(), 10_001);
    assert_eq!(replica.status().n_resources, 10_001);
    assert!(render(&replica.state()).len() > before.len());
    replica.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_is_too_large_is_refused_before_the_log() {
    let dir = memory_dir();
    let config = Config { transaction_bytes_max: 10_000, ..config(dir.path()) };
    let replica = Replica::open(config).await.unwrap();
    let before = replica.status().last_log_index;
    let error = replica.transact(put("a", &[0; 10_000])).await.unwrap_err();
    assert!(matches!(error, TransactError::TooLarge { len, max: 10_000 } if len > 10_000));
    assert_eq!(replica.status().last_log_index, before);
    commit(&replica, put("a", &[0; 9_000])).await;
    replica.shutdown().await.unwrap();
    let error = replica.transact(Transaction::default()).await.unwrap_err();
    assert_eq!(error, TransactError::ShutDown);
}

/// One transaction with many resources is one revision, also after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_transaction_is_one_revision() {
    let dir = memory_dir();
    let replica = open(dir.path()).await;
    let body = vec![7; 1000];
    let upserts = (0..20_000).map(|n| upsert(&format!("cluster-{n:06}"), &body)).collect();
    let summary = commit(&replica, Transaction { upserts, ..Transaction::default() }).await;
    assert_eq!((summary.revision.0, summary.changed), (1, 20_000));
    let before = render(&replica.state());
    replica.shutdown().await.unwrap();
    let replica = open(dir.path()).await;
    assert!(render(&replica.state()) == before, "the state differs");
    assert_eq!(replica.status().n_resources, 20_000);
    replica.shutdown().await.unwrap();
}
