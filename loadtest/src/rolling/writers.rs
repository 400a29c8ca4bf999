//! Writers of resources that no client sees. They record when writes were acknowledged, and the
//! last acknowledged one.
//!
//! Each writer has its own cluster and writes one generation after the other. After a failed write
//! it continues with the next generation at the next replica, because the outcome of the failed
//! write is unknown.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{author::Author, resource};

/// The scope of the written resources, which is assigned to no node.
pub(crate) const SCOPE: &str = "loadtest/unseen";
/// The number of the first writer's cluster. The clients have no clusters with such numbers.
const FIRST: usize = 1_000_000;
/// The timeout of a write, which is longer than the server's own.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(5);

/// Running writers.
#[derive(Debug)]
pub(crate) struct Writers {
    tasks: JoinSet<Result<Written>>,
    stop: Arc<AtomicBool>,
}

/// The results of one writer.
#[derive(Debug, Default)]
pub(crate) struct Written {
    name: String,
    /// The times of the acknowledgments.
    pub(crate) acked: Vec<Instant>,
    pub(crate) latencies: Vec<Duration>,
    /// The number of refused writes and of writes with unknown outcomes, by error.
    pub(crate) failed: BTreeMap<String, u64>,
    last_acked: u64,
    last_tried: u64,
}

impl Writers {
    /// Starts the writers, spread evenly over the replicas.
    pub(crate) fn start(admin: &[SocketAddr], writers: usize, pause: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for writer in 0..writers {
            tasks.spawn(write(admin.to_vec(), writer, pause, Arc::clone(&stop)));
        }
        Self { tasks, stop }
    }

    /// Ends the writers and returns their results.
    pub(crate) async fn finish(mut self) -> Result<Vec<Written>> {
        self.stop.store(true, Ordering::SeqCst);
        let mut all = Vec::new();
        while let Some(written) = self.tasks.join_next().await {
            all.push(written??);
        }
        Ok(all)
    }
}

impl Written {
    /// Returns whether a replica has the last acknowledged write, or a later write that may have
    /// failed.
    pub(crate) fn is_kept(&self, generations: &BTreeMap<String, u64>) -> bool {
        match generations.get(&self.name) {
            Some(found) => (self.last_acked..=self.last_tried).contains(found),
            None => self.last_acked == 0,
        }
    }
}

async fn write(
    admin: Vec<SocketAddr>,
    writer: usize,
    pause: Duration,
    stop: Arc<AtomicBool>,
) -> Result<Written> {
    let mut written = Written { name: resource::name(FIRST + writer), ..Written::default() };
    let mut replicas = admin.iter().cycle().skip(writer);
    let mut author = None;
    while !stop.load(Ordering::SeqCst) {
        let mut connected = match author.take() {
            Some(author) => author,
            None => {
                let Some(address) = replicas.next() else { break };
                match Author::connect(*address).await {
                    Ok(author) => author,
                    Err(_) => {
                        sleep(PAUSE_AFTER_FAILURE).await;
                        continue;
                    }
                }
            }
        };
        written.last_tried += 1;
        let cluster = resource::cluster(FIRST + writer, written.last_tried);
        let manifest = resource::manifest(SCOPE, vec![cluster]);
        let start = Instant::now();
        match timeout(PATIENCE, connected.apply(&[manifest])).await {
            Ok(Ok(response)) => {
                ensure!(response.changed == 1, "a write changed {} resources", response.changed);
                written.last_acked = written.last_tried;
                written.acked.push(Instant::now());
                written.latencies.push(start.elapsed());
                author = Some(connected);
                sleep(pause).await;
            }
            Ok(Err(status)) => {
                let what = format!("{:?}: {}", status.code(), status.message());
                *written.failed.entry(what).or_default() += 1;
                sleep(PAUSE_AFTER_FAILURE).await;
            }
            Err(_) => {
                *written.failed.entry(format!("no answer within {PATIENCE:?}")).or_default() += 1;
            }
        }
    }
    Ok(written)
}

/// Returns the longest time between two acknowledgments that overlaps `from..=to`. `acked` must be
/// sorted.
pub(crate) fn longest_pause(acked: &[Instant], from: Instant, to: Instant) -> Duration {
    let pauses = acked.windows(2).filter_map(|pair| match pair {
        [before, after] if *after >= from && *before <= to => Some(*after - *before),
        _ => None,
    });
    pauses.max().unwrap_or(to - from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_counts_if_it_overlaps_the_interval() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let acked = [at(0), at(50), at(60), at(100), at(101), at(300)];
        let pause = |from, to| longest_pause(&acked, at(from), at(to)).as_millis();
        assert_eq!(pause(55, 99), 40);
        assert_eq!(pause(30, 99), 50);
        assert_eq!(pause(100, 200), 199);
        // Nothing was acknowledged at all.
        assert_eq!(pause(400, 450), 50);
    }

    #[test]
    fn acknowledged_write_must_persist_and_failed_write_may() {
        let written =
            Written { name: "a".into(), last_acked: 5, last_tried: 7, ..Written::default() };
        let is_kept = |n| written.is_kept(&BTreeMap::from([("a".to_owned(), n)]));
        assert_eq!([4, 5, 6, 7, 8].map(is_kept), [false, true, true, true, false]);
        assert!(!written.is_kept(&BTreeMap::new()));
    }
}
