//! Keeps log, memory and disk usage small, and the gauges current.
//!
//! Raft takes snapshots and purges the log by numbers of entries. Entries can be large, so this
//! module does the same by bytes. RocksDB flushes memory to tables, and drops deleted records from
//! tables, only when further writes arrive. After a large write, this module does both without
//! waiting for further writes.

use std::{sync::Arc, time::Duration};

use openraft::{async_runtime::WatchReceiver, errors::Fatal};

use crate::{
    disk::database::{Database, WRITE_BUFFERS_BYTES},
    format::record::Family,
    metrics::gauge_value,
    replication::{cluster_metrics::Previous, core::Core},
};

const INTERVAL: Duration = Duration::from_millis(200);

/// The maintenance task and its state.
pub(crate) struct Maintenance {
    pub(crate) core: Arc<Core>,
    pub(crate) database: Arc<Database>,
    /// The size of the log's tables in bytes, after deleted records were last dropped from them.
    /// The minimum that a further compaction can reach.
    pub(crate) table_bytes_least: u64,
    /// The previous update of the metrics of the cluster.
    pub(crate) previous: Previous,
}

/// Whether the task continues.
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
            self.previous.update(&self.core);
            let flow = match self.reconcile_log().await {
                Flow::Continue => self.reconcile_disk().await,
                Flow::Stop => Flow::Stop,
            };
            if let Some(error) = self.core.node.stopped(INTERVAL).await {
                self.core.node.set_ended();
                self.previous.update(&self.core);
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

    async fn reconcile_log(&self) -> Flow {
        let (bytes, since_snapshot) = {
            let snapshot =
                self.core.node.raft.metrics().borrow_watched().snapshot.map(|id| id.index);
            let size = self.core.storage.log_size.lock();
            (size.bytes(), snapshot.map_or(size.bytes(), |index| size.bytes_after(index)))
        };
        self.core.metrics.log_bytes.set(gauge_value(bytes));
        self.core.metrics.failed.set(if self.core.failure.get().is_some() { 1.0 } else { 0.0 });
        if let Some(free) = self.core.storage.space.free() {
            self.core.metrics.free_bytes.set(gauge_value(free));
        }
        let asked = if since_snapshot >= self.core.config.snapshot_log_bytes {
            self.core.node.raft.trigger().snapshot().await
        } else if bytes > self.core.config.snapshot_log_bytes {
            // A snapshot exists, but the entries that Raft keeps by number are too large.
            let stored = self.core.storage.published.stored_index();
            let cut = self.core.storage.log_size.lock().cut(self.core.config.log_bytes_keep);
            match cut {
                Some(cut) => self.core.node.raft.trigger().purge_log(cut.min(stored)).await,
                None => Ok(()),
            }
        } else {
            Ok(())
        };
        if asked.is_ok() { Flow::Continue } else { Flow::Stop }
    }

    /// Flushes memory or compacts the tables of the log. Both need temporary space, so neither runs
    /// without it.
    async fn reconcile_disk(&mut self) -> Flow {
        let (database, config) = (Arc::clone(&self.database), &self.core.config);
        let buffered = database.buffered_bytes();
        let tables = database.table_bytes(Family::Log);
        let dead = tables
            .saturating_sub(self.core.storage.log_size.lock().bytes().max(self.table_bytes_least));
        let flush = buffered > WRITE_BUFFERS_BYTES as u64;
        let compact = !flush && dead > config.snapshot_log_bytes;
        let has_space =
            self.core.storage.space.free().is_none_or(|free| {
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
            // The next write shows whether the failure is permanent.
            Ok(Err(error)) => tracing::warn!(%error, "cannot flush memory to tables"),
            Err(_) => return Flow::Stop,
        }
        Flow::Continue
    }
}
