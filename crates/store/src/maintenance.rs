//! Keeps the log short, and the gauges current.
//!
//! Raft itself takes a snapshot after so many entries and keeps so many of them; entries can be large,
//! so this does the same by bytes.

use std::{sync::Arc, time::Duration};

use openraft::{async_runtime::WatchReceiver, errors::Fatal};
use parking_lot::Mutex;

use crate::{
    Config,
    failure::Failure,
    log_size::LogSize,
    machine::Published,
    metrics::{StoreMetrics, gauge_value},
    raft::Raft,
    space::Space,
};

const INTERVAL: Duration = Duration::from_millis(200);

/// Runs until Raft has stopped.
pub(crate) async fn run(
    raft: Raft,
    published: Published,
    size: Arc<Mutex<LogSize>>,
    config: Config,
    space: Arc<Space>,
    failure: Failure,
    metrics: StoreMetrics,
) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (bytes, since_snapshot) = {
            let snapshot = raft.metrics().borrow_watched().snapshot.map(|id| id.index);
            let size = size.lock();
            (size.bytes(), snapshot.map_or(size.bytes(), |index| size.bytes_after(index)))
        };
        metrics.log_bytes.set(gauge_value(bytes));
        metrics.failed.set(if failure.get().is_some() { 1.0 } else { 0.0 });
        if let Some(free) = space.free() {
            metrics.free_bytes.set(gauge_value(free));
        }
        if since_snapshot >= config.snapshot_log_bytes {
            if raft.trigger().snapshot().await.is_err() {
                return;
            }
        } else if bytes > config.snapshot_log_bytes {
            // The snapshot is there, but the entries that Raft keeps by number are too large.
            let applied = published.image().applied.map_or(0, |id| id.index);
            let cut = size.lock().cut(config.log_bytes_keep);
            if let Some(cut) = cut
                && raft.trigger().purge_log(cut.min(applied)).await.is_err()
            {
                return;
            }
        }
        let stopped = raft.metrics().borrow_watched().running_state.clone();
        if let Err(error) = stopped {
            if !matches!(error, Fatal::Stopped) {
                failure.set(format!("Raft has stopped: {error}"));
                metrics.failed.set(1.0);
            }
            return;
        }
    }
}
