//! Keeps the log, the memory and the disk small, and the gauges current.
//!
//! Raft itself takes a snapshot after so many entries and keeps so many of them; entries can be large,
//! so this does the same by bytes. RocksDB writes what it holds in memory to tables, and drops what was
//! deleted from them, only when further writes come; after a large one this does not wait for them.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use openraft::{async_runtime::WatchReceiver, errors::Fatal};

use crate::{
    cluster::watch::Watch,
    core::Core,
    database::{Database, WRITE_BUFFERS_BYTES},
    metrics::gauge_value,
    record::Family,
};

const INTERVAL: Duration = Duration::from_millis(200);
/// If nobody has space, the lead goes round once in this time.
const HAND_OVER_INTERVAL: Duration = Duration::from_secs(30);

/// What is looked after.
pub(crate) struct Maintenance {
    pub(crate) core: Arc<Core>,
    pub(crate) database: Arc<Database>,
    /// Bytes of the log's tables when what was deleted was last dropped from them: no less is
    /// possible.
    pub(crate) table_bytes_least: u64,
    pub(crate) watch: Watch,
    /// When this replica last let another one lead because its disk is full.
    pub(crate) handed_over: Option<Instant>,
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
            self.watch.tell(&self.core);
            self.tend_lead();
            let flow = match self.tend_log().await {
                Flow::Continue => self.tend_disk().await,
                Flow::Stop => Flow::Stop,
            };
            if let Some(error) = self.core.raft_stopped(INTERVAL).await {
                self.core.raft_ended.store(true, Ordering::Relaxed);
                if !matches!(error, Fatal::Stopped) {
                    self.core.failure.set(format!("Raft has stopped: {error}"));
                    self.core.metrics.failed.set(1.0);
                }
                return;
            }
            if flow == Flow::Stop {
                return;
            }
        }
    }

    /// A leader without space refuses every write, wherever it came in: one that has some is better.
    fn tend_lead(&mut self) {
        if !self.core.refused_full.swap(false, Ordering::Relaxed)
            || self.handed_over.is_some_and(|when| when.elapsed() < HAND_OVER_INTERVAL)
        {
            return;
        }
        self.handed_over = Some(Instant::now());
        let core = Arc::clone(&self.core);
        tokio::spawn(async move { core.step_down().await });
    }

    async fn tend_log(&self) -> Flow {
        let (bytes, since_snapshot) = {
            let snapshot = self.core.raft.metrics().borrow_watched().snapshot.map(|id| id.index);
            let size = self.core.size.lock();
            (size.bytes(), snapshot.map_or(size.bytes(), |index| size.bytes_after(index)))
        };
        self.core.metrics.log_bytes.set(gauge_value(bytes));
        self.core.metrics.failed.set(if self.core.failure.get().is_some() { 1.0 } else { 0.0 });
        if let Some(free) = self.core.space.free() {
            self.core.metrics.free_bytes.set(gauge_value(free));
        }
        let asked = if since_snapshot >= self.core.config.snapshot_log_bytes {
            self.core.raft.trigger().snapshot().await
        } else if bytes > self.core.config.snapshot_log_bytes {
            // The snapshot is there, but the entries that Raft keeps by number are too large.
            let applied = self.core.published.applied();
            let cut = self.core.size.lock().cut(self.core.config.log_bytes_keep);
            match cut {
                Some(cut) => self.core.raft.trigger().purge_log(cut.min(applied)).await,
                None => Ok(()),
            }
        } else {
            Ok(())
        };
        if asked.is_ok() { Flow::Continue } else { Flow::Stop }
    }

    /// Both need space for a while: not where there is none to spare.
    async fn tend_disk(&mut self) -> Flow {
        let (database, config) = (Arc::clone(&self.database), &self.core.config);
        let buffered = database.buffered_bytes();
        let tables = database.table_bytes(Family::Log);
        let dead = tables.saturating_sub(self.core.size.lock().bytes().max(self.table_bytes_least));
        let flush = buffered > WRITE_BUFFERS_BYTES as u64;
        let compact = !flush && dead > config.snapshot_log_bytes;
        let has_space =
            self.core.space.free().is_none_or(|free| {
                free > config.free_bytes_min.saturating_add(tables.max(buffered))
            });
        if !(flush || compact) || !has_space || self.core.failure.get().is_some() {
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
