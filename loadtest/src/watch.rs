//! Clients that stay connected and receive steady updates, and the times of these updates in parts of a run.
//!
//! Times are measured from when an update was due: to its answer (writes), and to its arrival at each client (pushes).

use std::{sync::Arc, time::Duration, time::Instant};

use anyhow::{Context as _, Result, ensure};
use chancery_fleet_load::stream::Target;
use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::time::sleep;

use crate::{
    author::Author,
    hostile::{arrivals::Arrivals, clients::Clients, updates::Updates},
    random::Random,
    stats::float,
};

const PATIENCE: Duration = Duration::from_secs(120);
/// The pause after a part, so that writes in progress belong to it.
const SETTLE: Duration = Duration::from_millis(1500);

/// The clients, and the author that changes one cluster at each tick.
#[derive(Debug)]
pub(crate) struct Watch {
    arrivals: Arc<Arrivals>,
    clients: Clients,
    updates: Updates,
}

/// The times of one part.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Times {
    /// The duration of the part.
    pub(crate) seconds: f64,
    pub(crate) push_p50_ms: f64,
    pub(crate) push_p99_ms: f64,
    pub(crate) push_max_ms: f64,
    pub(crate) pushes: u64,
    pub(crate) write_p50_ms: f64,
    pub(crate) write_p99_ms: f64,
    pub(crate) write_max_ms: f64,
    pub(crate) writes: u64,
}

impl Watch {
    /// Connects `clients` clients, which see `resources` clusters, and starts the updates.
    pub(crate) async fn start(
        target: impl Into<Target>,
        mut author: Author,
        clients: usize,
        resources: usize,
        per_second: u32,
    ) -> Result<Self> {
        let revision = author.cluster().await.context("read the revision")?.revision;
        let arrivals = Arc::new(Arrivals::new(revision));
        let clients = Clients::healthy(target, &arrivals, clients, resources).await?;
        clients.synced(PATIENCE).await?;
        let random = Random::new(1);
        let updates = Updates::start(author, Arc::clone(&arrivals), per_second, resources, random);
        Ok(Self { arrivals, clients, updates })
    }

    /// Runs `work` as a part. Returns its output and the times of the updates during it.
    pub(crate) async fn during<T>(
        &self,
        work: impl Future<Output = Result<T>>,
    ) -> Result<(T, Times)> {
        let (part, start) = (self.arrivals.begin(), Instant::now());
        let output = work.await?;
        self.arrivals.end();
        let seconds = start.elapsed().as_secs_f64();
        sleep(SETTLE).await;
        let (pushes, writes) = (self.arrivals.times(part), self.updates.times(part));
        let times = Times {
            seconds,
            push_p50_ms: ms(&pushes, 0.5),
            push_p99_ms: ms(&pushes, 0.99),
            push_max_ms: ms(&pushes, 1.0),
            pushes: pushes.len(),
            write_p50_ms: ms(&writes, 0.5),
            write_p99_ms: ms(&writes, 0.99),
            write_max_ms: ms(&writes, 1.0),
            writes: writes.len(),
        };
        Ok((output, times))
    }

    /// Stops the updates. Fails if a write or a client failed.
    pub(crate) async fn end(self) -> Result<()> {
        let written = self.updates.stop().await?;
        ensure!(written.failed == 0, "{} writes failed: {:?}", written.failed, written.error);
        let complaints = self.clients.complaints();
        ensure!(complaints.is_empty(), "a connected client failed: {}", complaints.join("; "));
        Ok(())
    }
}

/// Returns a quantile of times in microseconds, converted to milliseconds.
fn ms(times: &Histogram<u64>, quantile: f64) -> f64 {
    float(times.value_at_quantile(quantile)) / 1e3
}
