//! Keeps the log, the memory and the disk small, and the gauges current.
//!
//! Raft itself takes a snapshot after so many entries and keeps so many of them; entries can be large,
//! so this does the same by bytes. RocksDB writes what it holds in memory to tables, and drops what was
//! deleted from them, only when further writes come; after a large one this does not wait for them.

use std::{sync::Arc, time::Duration};

use openraft::{async_runtime::WatchReceiver, errors::Fatal};
use parking_lot::Mutex;

use crate::{
    Config,
    database::{Database, WRITE_BUFFERS_BYTES},
    failure::Failure,
    log_size::LogSize,
    machine::Published,
    metrics::{StoreMetrics, gauge_value},
    raft::Raft,
    record::Family,
    space::Space,
};

const INTERVAL: Duration = Duration::from_millis(200);

/// What is looked after.
pub(crate) struct Maintenance {
    pub(crate) raft: Raft,
    pub(crate) published: Published,
    pub(crate) database: Arc<Database>,
    pub(crate) size: Arc<Mutex<LogSize>>,
    pub(crate) config: Config,
    pub(crate) space: Arc<Space>,
    pub(crate) failure: Failure,
    pub(crate) metrics: StoreMetrics,
    /// Bytes of the log's tables when what was deleted was last dropped from them: no less is
    /// possible.
    pub(crate) table_bytes_least: u64,
}

/// Whether there is more to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Continue,
    Stop,
}

impl Maintenance {
    /// Runs until Raft has stopped.
    pub(crate) async fn run(mut self) {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if self.tend_log().await == Flow::Stop || self.tend_disk().await == Flow::Stop {
                return;
            }
            let stopped = self.raft.metrics().borrow_watched().running_state.clone();
            if let Err(error) = stopped {
                if !matches!(error, Fatal::Stopped) {
                    self.failure.set(format!("Raft has stopped: {error}"));
                    self.metrics.failed.set(1.0);
                }
                return;
            }
        }
    }

    async fn tend_log(&self) -> Flow {
        let (bytes, since_snapshot) = {
            let snapshot = self.raft.metrics().borrow_watched().snapshot.map(|id| id.index);
            let size = self.size.lock();
            (size.bytes(), snapshot.map_or(size.bytes(), |index| size.bytes_after(index)))
        };
        self.metrics.log_bytes.set(gauge_value(bytes));
        self.metrics.failed.set(if self.failure.get().is_some() { 1.0 } else { 0.0 });
        if let Some(free) = self.space.free() {
            self.metrics.free_bytes.set(gauge_value(free));
        }
        let asked = if since_snapshot >= self.config.snapshot_log_bytes {
            self.raft.trigger().snapshot().await
        } else if bytes > self.config.snapshot_log_bytes {
            // The snapshot is there, but the entries that Raft keeps by number are too large.
            let applied = self.published.image().applied.map_or(0, |id| id.index);
            let cut = self.size.lock().cut(self.config.log_bytes_keep);
            match cut {
                Some(cut) => self.raft.trigger().purge_log(cut.min(applied)).await,
                None => Ok(()),
            }
        } else {
            Ok(())
        };
        if asked.is_ok() { Flow::Continue } else { Flow::Stop }
    }

    /// Both need space for a while: not where there is none to spare.
    async fn tend_disk(&mut self) -> Flow {
        let (database, config) = (Arc::clone(&self.database), &self.config);
        let buffered = database.buffered_bytes();
        let tables = database.table_bytes(Family::Log);
        let dead = tables.saturating_sub(self.size.lock().bytes().max(self.table_bytes_least));
        let flush = buffered > WRITE_BUFFERS_BYTES as u64;
        let compact = !flush && dead > config.snapshot_log_bytes;
        let has_space = self
            .space
            .free()
            .is_none_or(|free| free > config.free_bytes_min.saturating_add(tables.max(buffered)));
        if !(flush || compact) || !has_space || self.failure.get().is_some() {
            return Flow::Continue;
        }
        let work = tokio::task::spawn_blocking(move || {
            if flush {
                return database.flush().map(|()| None);
            }
            database.compact(Family::Log);
            Ok(Some(database.table_bytes(Family::Log)))
        });
        match work.await {
            Ok(Ok(Some(least))) => self.table_bytes_least = least,
            Ok(Ok(None)) => {}
            // The next write says whether it is for good.
            Ok(Err(error)) => tracing::warn!(%error, "what is in memory was not written to tables"),
            Err(_) => return Flow::Stop,
        }
        Flow::Continue
    }
}
