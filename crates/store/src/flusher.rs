//! The one thread that syncs the write-ahead log: group commit.
//!
//! Whatever has been written while one sync ran is made durable by the next, in one system call, and
//! then acknowledged in the order in which it came.
//!
//! Invariants:
//! - Nothing is acknowledged before it is synced and the high-water mark says so.
//! - After a sync has failed nothing is ever acknowledged again: the kernel may have dropped what it
//!   could not write, and a later sync that succeeds says nothing about it.

use std::{
    io,
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender},
    },
    thread,
    time::{Duration, Instant},
};

use openraft::storage::IOFlushed;
use tokio::sync::oneshot;

use crate::{
    database::Database,
    failure::Failure,
    high_water::{HighWater, Mark},
    metrics::StoreMetrics,
    raft::{LogId, Types, Vote},
};

/// Jobs that may wait; the log waits when there are more.
const JOBS_MAX: usize = 1024;
/// A high-water mark that was written is synced after this time.
const MARK_SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// A sync that takes this long is told: writes wait for it, and may run out of time.
const SLOW_SYNC: Duration = Duration::from_secs(1);

/// Something written that is to be made durable.
pub(crate) enum Job {
    /// Entries; `callback` acknowledges them.
    Appended { callback: IOFlushed<Types>, last: Option<LogId>, since: Instant },
    /// A vote.
    Voted { vote: Vote, done: oneshot::Sender<io::Result<()>> },
    /// The log is about to be truncated after `last`: lowers the high-water mark, durably.
    Truncate { last: Option<LogId>, done: oneshot::Sender<io::Result<()>> },
}

/// The way to the thread. The thread ends when the last sender is gone.
pub(crate) type Sender = SyncSender<Job>;

/// The thread, to be joined before the process ends.
#[derive(Debug)]
pub(crate) struct Flusher {
    thread: thread::JoinHandle<()>,
}

struct State {
    database: Arc<Database>,
    high_water: HighWater,
    failure: Failure,
    metrics: StoreMetrics,
    mark_synced: Instant,
}

impl Flusher {
    /// Starts the thread.
    pub(crate) fn spawn(
        database: Arc<Database>,
        high_water: HighWater,
        failure: Failure,
        metrics: StoreMetrics,
    ) -> io::Result<(Self, Sender)> {
        let (sender, jobs) = mpsc::sync_channel(JOBS_MAX);
        let mark_synced = Instant::now();
        let state = State { database, high_water, failure, metrics, mark_synced };
        let thread = thread::Builder::new()
            .name("chancery-fsync".to_owned())
            .spawn(move || state.run(&jobs))?;
        Ok((Self { thread }, sender))
    }

    /// Waits until the thread has ended.
    pub(crate) fn join(self) -> Result<(), String> {
        self.thread.join().map_err(|_| "the thread that syncs the log has panicked".to_owned())
    }
}

impl State {
    fn run(mut self, jobs: &Receiver<Job>) {
        loop {
            let first = if self.high_water.is_dirty() {
                let wait = MARK_SYNC_INTERVAL.saturating_sub(self.mark_synced.elapsed());
                match jobs.recv_timeout(wait) {
                    Ok(job) => job,
                    Err(RecvTimeoutError::Timeout) => {
                        self.sync_mark();
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            } else {
                match jobs.recv() {
                    Ok(job) => job,
                    Err(_) => break,
                }
            };
            let mut batch = vec![first];
            batch.extend(jobs.try_iter().take(JOBS_MAX));
            self.handle(batch);
        }
        if self.failure.get().is_none() {
            self.sync_mark();
        }
    }

    fn sync_mark(&mut self) {
        if let Err(error) = self.high_water.sync() {
            self.failure.set_io("the high-water mark can not be synced", &error);
        }
        self.mark_synced = Instant::now();
    }

    fn handle(&mut self, batch: Vec<Job>) {
        let result = self.make_durable(&batch);
        if let Err(error) = &result {
            self.failure.set_io("the log can not be synced", error);
        }
        let outcome = || match &result {
            Ok(()) => Ok(()),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        };
        for job in batch {
            match job {
                Job::Appended { callback, since, .. } => {
                    self.metrics.append_seconds.record(since.elapsed());
                    callback.io_completed(outcome());
                }
                // Who asked may have gone; then nobody needs the answer.
                Job::Voted { done, .. } | Job::Truncate { done, .. } => {
                    drop(done.send(outcome()));
                }
            }
        }
        if self.high_water.is_dirty() && self.mark_synced.elapsed() >= MARK_SYNC_INTERVAL {
            self.sync_mark();
        }
    }

    fn make_durable(&mut self, batch: &[Job]) -> io::Result<()> {
        if let Some(reason) = self.failure.get() {
            return Err(io::Error::other(reason.to_owned()));
        }
        let before = Instant::now();
        self.database.sync()?;
        let took = before.elapsed();
        if took >= SLOW_SYNC {
            tracing::warn!(?took, "the disk was slow to sync the log; writes waited for it");
        }
        self.metrics.fsync_seconds.record(took);
        self.metrics.count_fsync();
        let mut mark = self.high_water.mark();
        let mut lowered = false;
        for job in batch {
            match job {
                Job::Appended { last, .. } => mark.last = last.or(mark.last),
                Job::Voted { vote, .. } => mark.vote = Some(*vote),
                Job::Truncate { last, .. } => {
                    let keeps = mark
                        .last
                        .is_none_or(|mark| last.is_some_and(|last| mark.index <= last.index));
                    if !keeps {
                        mark = Mark { last: *last, ..mark };
                        lowered = true;
                    }
                }
            }
        }
        self.high_water.write(mark)?;
        if lowered {
            self.high_water.sync()?;
            self.mark_synced = Instant::now();
        }
        Ok(())
    }
}
