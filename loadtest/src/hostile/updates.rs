//! Updates at a steady rate, independent of their results.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use tokio::{sync::Semaphore, task::JoinHandle};

use super::arrivals::{Arrivals, Part, histogram};
use crate::{author::Author, random::Random, resource, stats::count};

/// The maximum number of concurrent writes. Beyond it, the next write waits and is late.
const WRITES_MAX: usize = 256;

/// An author that changes one cluster at each tick. The time of a write counts from its tick, even
/// if the write starts late.
#[derive(Debug)]
pub(crate) struct Updates {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    arrivals: Arc<Arrivals>,
    stopped: AtomicBool,
    failed: AtomicU64,
    error: Mutex<Option<String>>,
    places: Arc<Semaphore>,
    /// Microseconds from when a write was due until its answer.
    times: Mutex<Histogram<u64>>,
    /// The same times, by the part in which the write was due.
    of_parts: Mutex<Vec<(Part, Histogram<u64>)>>,
}

/// The results of the updates.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) failed: u64,
    /// The first error.
    pub(crate) error: Option<String>,
    /// Microseconds from when a write was due until its answer.
    pub(crate) times: Histogram<u64>,
}

impl Updates {
    /// Starts with the next tick.
    pub(crate) fn start(
        author: Author,
        arrivals: Arc<Arrivals>,
        per_second: u32,
        resources: usize,
        mut random: Random,
    ) -> Self {
        let shared = Arc::new(Shared {
            arrivals,
            stopped: AtomicBool::new(false),
            failed: AtomicU64::new(0),
            error: Mutex::default(),
            places: Arc::new(Semaphore::new(WRITES_MAX)),
            times: Mutex::new(histogram()),
            of_parts: Mutex::default(),
        });
        let of_task = Arc::clone(&shared);
        let start = Instant::now();
        let task = tokio::spawn(async move {
            for n in 1..=u32::MAX {
                let due = start + Duration::from_secs(1) * n / per_second.max(1);
                tokio::time::sleep_until(due.into()).await;
                let Ok(place) = Arc::clone(&of_task.places).acquire_owned().await else { return };
                if of_task.stopped.load(Ordering::Relaxed) {
                    return;
                }
                let at = random.below(count(resources));
                let cluster = resource::cluster(usize::try_from(at).unwrap_or(0), n.into());
                let part = of_task.arrivals.current();
                let (shared, mut author) = (Arc::clone(&of_task), author.clone());
                tokio::spawn(async move {
                    let _place = place;
                    let manifest = resource::manifest(resource::SCOPE, vec![cluster]);
                    match author.apply(&[manifest]).await {
                        Ok(written) => {
                            shared.arrivals.on_written(written.revision, due, part);
                            shared.record(part, due);
                        }
                        Err(error) => {
                            shared.failed.fetch_add(1, Ordering::Relaxed);
                            shared.error.lock().get_or_insert(error.to_string());
                        }
                    }
                });
            }
        });
        Self { shared, task }
    }

    /// Returns the times of the answered writes of a part, in microseconds from when a write was
    /// due.
    pub(crate) fn times(&self, part: Part) -> Histogram<u64> {
        let of_parts = self.shared.of_parts.lock();
        let found = of_parts.iter().find(|(known, _)| *known == part);
        found.map_or_else(histogram, |(_, times)| times.clone())
    }

    /// Stops the updates and waits for concurrent writes.
    pub(crate) async fn stop(self) -> Result<Written> {
        self.shared.stopped.store(true, Ordering::Relaxed);
        self.task.await.context("wait for the author's task")?;
        let all = u32::try_from(WRITES_MAX).unwrap_or(u32::MAX);
        drop(self.shared.places.acquire_many(all).await?);
        let error = self.shared.error.lock().clone();
        let times = self.shared.times.lock().clone();
        Ok(Written { failed: self.shared.failed.load(Ordering::Relaxed), error, times })
    }
}

impl Shared {
    /// Records the answer of a write.
    fn record(&self, part: Part, due: Instant) {
        let micros = u64::try_from(due.elapsed().as_micros()).unwrap_or(u64::MAX).max(1);
        self.times.lock().saturating_record(micros);
        let mut of_parts = self.of_parts.lock();
        if of_parts.iter().all(|(known, _)| *known != part) {
            of_parts.push((part, histogram()));
        }
        if let Some((_, times)) = of_parts.iter_mut().rfind(|(known, _)| *known == part) {
            times.saturating_record(micros);
        }
    }
}
