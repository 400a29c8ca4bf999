//! The thread that writes and syncs the Raft log: group commit.
//!
//! Jobs that arrive during a sync are written together and become durable with one further sync.
//! The thread acknowledges them in the order of arrival. Only votes and truncations wait for the
//! thread, and they wait as tasks: a stalled disk does not block a thread of Raft.
//!
//! Invariants:
//! - Nothing is acknowledged before it is synced and the high-water mark includes it.
//! - Jobs take effect in the order in which they were sent.
//! - Entries count as written when they are in the database. The resulting state is written to the
//!   database later, so that a power cut never leaves a state that is ahead of the log.
//! - After a failed write or sync, nothing is acknowledged again. The kernel may have dropped the
//!   data, and a later sync that succeeds does not prove otherwise.

use std::{
    io,
    ops::Range,
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use openraft::storage::IOFlushed;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

use crate::{
    disk::{
        database::{Batch, Database},
        high_water::{HighWater, Mark},
        persister::LARGE_BYTES,
        recent::Recent,
    },
    failure::Failure,
    format::{
        keys::{PURGED_KEY, VOTE_KEY, purged_record},
        raft::{Entry, LogId, Types, Vote},
        raft_codec::{
            entry_record_len, entry_to_stored, log_id_from_proto, log_key, vote_to_proto,
        },
        record::{self, Family},
    },
    metrics::StoreMetrics,
};
use chancery_raft_proto::v1 as pb;

/// The maximum number of jobs that are handled together.
const JOBS_MAX: usize = 1024;
/// The maximum size of waiting entries, in bytes. An append beyond it waits; a larger append waits
/// for an empty queue. A vote, a truncation and a purge count as one unit each.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// Waiting bytes are counted in units of this many bytes.
const UNIT_BYTES: usize = 1024;
/// The size of a batch above which it is written to the database, in bytes. One job may exceed it.
const WRITE_BYTES: usize = 4 << 20;
/// The maximum time between writing a high-water mark and syncing it.
const MARK_SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// The duration of a sync from which the log warns: writes wait for the sync, and may time out.
const SLOW_SYNC: Duration = Duration::from_secs(1);

type Done = oneshot::Sender<io::Result<()>>;

/// A change of the log.
pub(crate) enum Job {
    /// Writes entries. `callback` acknowledges them when they are durable.
    Append {
        entries: Vec<Entry>,
        callback: IOFlushed<Types>,
        since: Instant,
        /// The job's share of the waiting bytes.
        permit: OwnedSemaphorePermit,
    },
    /// Writes a vote, durably. As for the following jobs, `permit` bounds the number of jobs.
    Vote { vote: Vote, done: Done, permit: OwnedSemaphorePermit },
    /// Removes `indices`, all entries after `last`. Lowers the high-water mark first, durably.
    Truncate { last: Option<LogId>, indices: Range<u64>, done: Done, permit: OwnedSemaphorePermit },
    /// Removes the entries from `from` up to `id`. The removal becomes durable with the next synced
    /// job.
    Purge { from: u64, id: LogId, permit: OwnedSemaphorePermit },
}

/// The handle that sends jobs to the thread. Cheap to clone; the thread ends when the last clone is
/// dropped.
#[derive(Clone)]
pub(crate) struct Sender {
    jobs: mpsc::Sender<Job>,
    permits: Arc<Semaphore>,
    shared: Arc<Shared>,
}

/// The state that the log and the thread share.
pub(crate) struct Shared {
    /// The newest entries: at least all entries that are not yet written.
    pub(crate) recent: Mutex<Recent>,
    /// The index up to which, exclusively, all entries are written. `None` after the thread has
    /// stopped writing.
    written: watch::Sender<Option<u64>>,
}

/// The thread, which must be joined before the process ends.
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
    shared: Arc<Shared>,
}

/// Jobs that become durable together.
#[derive(Default)]
struct Group {
    batch: Batch,
    /// The size of the batch, in bytes.
    bytes: usize,
    /// The last entry in the batch or written before it.
    last: Option<LogId>,
    vote: Option<Vote>,
    appended: Vec<(IOFlushed<Types>, Instant)>,
    voted: Vec<Done>,
    permits: Vec<OwnedSemaphorePermit>,
    error: Option<io::Error>,
}

// === impl Sender ===

impl Sender {
    /// Sends a job. Never waits.
    pub(crate) fn send(&self, job: Job) -> io::Result<()> {
        self.jobs.send(job).map_err(|_| gone())
    }

    /// Returns a share of the waiting bytes. Waits until enough bytes are free.
    pub(crate) async fn reserve(&self, bytes: usize) -> io::Result<OwnedSemaphorePermit> {
        let units = bytes.div_ceil(UNIT_BYTES).clamp(1, WAITING_BYTES_MAX / UNIT_BYTES);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        Arc::clone(&self.permits).acquire_many_owned(units).await.map_err(io::Error::other)
    }

    /// Returns the number of units that waiting jobs do not take.
    #[cfg(test)]
    pub(super) fn free_units(&self) -> usize {
        self.permits.available_permits()
    }

    /// Returns the state that the thread and the log share.
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }
}

/// Returns the error for a thread that has ended.
pub(crate) fn gone() -> io::Error {
    io::Error::other("the thread that writes the log has ended")
}

// === impl Shared ===

impl Shared {
    /// Records that all entries before an index are in the database, and none from that index on.
    pub(crate) fn set_written(&self, next: u64) {
        self.recent.lock().set_written(next);
        self.written.send_replace(Some(next));
    }

    /// Returns when an entry is written.
    pub(crate) async fn wait_written(&self, index: u64) -> io::Result<()> {
        let mut written = self.written.subscribe();
        let written = written.wait_for(|next| next.is_none_or(|next| next > index)).await;
        match written.map(|next| *next) {
            Ok(Some(_)) => Ok(()),
            Ok(None) | Err(_) => Err(gone()),
        }
    }
}

// === impl Flusher ===

impl Flusher {
    /// Starts the thread.
    pub(crate) fn spawn(
        database: Arc<Database>,
        high_water: HighWater,
        failure: Failure,
        metrics: StoreMetrics,
    ) -> io::Result<(Self, Sender)> {
        #[expect(
            clippy::disallowed_methods,
            reason = "bounded by the permits: each job has at least one of WAITING_BYTES_MAX / UNIT_BYTES"
        )]
        let (sender, jobs) = mpsc::channel();
        let mark_synced = Instant::now();
        let recent = Mutex::default();
        let shared = Arc::new(Shared { recent, written: watch::Sender::new(Some(0)) });
        let permits = Arc::new(Semaphore::new(WAITING_BYTES_MAX / UNIT_BYTES));
        let sender = Sender { jobs: sender, permits, shared: Arc::clone(&shared) };
        let state = State { database, high_water, failure, metrics, mark_synced, shared };
        let thread = thread::Builder::new()
            .name("chancery-log".to_owned())
            .spawn(move || state.run(&jobs))?;
        Ok((Self { thread }, sender))
    }

    /// Waits until the thread has ended.
    pub(crate) fn join(self) -> Result<(), String> {
        self.thread.join().map_err(|_| "the thread that writes the log has panicked".to_owned())
    }
}

// === impl State ===

impl State {
    fn run(mut self, jobs: &Receiver<Job>) {
        loop {
            let first = if self.high_water.is_unsynced() {
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
            self.failure.set_io("the high-water mark cannot be synced", &error);
        }
        self.mark_synced = Instant::now();
    }

    fn handle(&mut self, jobs: Vec<Job>) {
        let mut group = Group::default();
        for job in jobs {
            match job {
                Job::Append { entries, callback, since, permit } => {
                    if entries.iter().any(|entry| entry_record_len(entry) >= LARGE_BYTES) {
                        // The entries before a large one do not wait for it.
                        self.finish(std::mem::take(&mut group));
                    }
                    for entry in entries {
                        self.append(&mut group, &entry);
                    }
                    group.appended.push((callback, since));
                    group.permits.push(permit);
                }
                Job::Vote { vote, done, permit } => {
                    let record = record::seal(Family::Meta, VOTE_KEY, &vote_to_proto(&vote));
                    self.database.put(&mut group.batch, Family::Meta, VOTE_KEY, &record);
                    group.vote = Some(vote);
                    group.voted.push(done);
                    group.permits.push(permit);
                }
                // Jobs after a truncation or a purge are written only after it.
                Job::Truncate { last, indices, done, permit } => {
                    self.finish(std::mem::take(&mut group));
                    drop(permit);
                    // If the caller is gone, nobody needs the answer.
                    drop(done.send(self.truncate(last, indices)));
                }
                Job::Purge { from, id, permit } => {
                    self.finish(std::mem::take(&mut group));
                    drop(permit);
                    if let Err(error) = self.purge(from, id) {
                        tracing::debug!(%error, "cannot purge the log");
                    }
                }
            }
        }
        self.finish(group);
        if self.high_water.is_unsynced() && self.mark_synced.elapsed() >= MARK_SYNC_INTERVAL {
            self.sync_mark();
        }
    }

    fn append(&self, group: &mut Group, entry: &Entry) {
        let record = entry_to_stored(entry);
        let key = log_key(entry.log_id.index);
        self.database.put(&mut group.batch, Family::Log, &key, &record);
        group.bytes += record.len();
        group.last = Some(entry.log_id);
        if group.bytes >= WRITE_BYTES {
            self.write(group);
        }
    }

    /// Writes the batch of the group, unless a write of the group has failed.
    fn write(&self, group: &mut Group) {
        let batch = std::mem::take(&mut group.batch);
        group.bytes = 0;
        if group.error.is_some() {
            return;
        }
        match self.write_batch(batch) {
            Ok(()) => {
                if let Some(last) = group.last {
                    self.shared.set_written(last.index + 1);
                }
            }
            Err(error) => group.error = Some(error),
        }
    }

    fn write_batch(&self, batch: Batch) -> io::Result<()> {
        self.check()?;
        self.database.write(batch).inspect_err(|error| {
            self.failure.set_io("the log cannot be written", error);
            self.shared.written.send_replace(None);
        })
    }

    /// Returns an error after a failure, so that nothing more is written or acknowledged.
    fn check(&self) -> io::Result<()> {
        match self.failure.get() {
            Some(reason) => {
                self.shared.written.send_replace(None);
                Err(io::Error::other(reason.to_owned()))
            }
            None => Ok(()),
        }
    }

    /// Writes the rest of a group, makes it durable, and acknowledges it.
    fn finish(&mut self, mut group: Group) {
        if group.appended.is_empty() && group.voted.is_empty() {
            return;
        }
        self.write(&mut group);
        let result = match group.error.take() {
            None => self.make_durable(group.last, group.vote),
            Some(error) => Err(error),
        };
        let outcome = || match &result {
            Ok(()) => Ok(()),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        };
        // The newest entry first: Raft ignores later acknowledgments of older entries, so it wakes once per group.
        for (callback, since) in group.appended.into_iter().rev() {
            self.metrics.append_seconds.record(since.elapsed());
            callback.io_completed(outcome());
        }
        for done in group.voted {
            drop(done.send(outcome()));
        }
    }

    fn make_durable(&mut self, last: Option<LogId>, vote: Option<Vote>) -> io::Result<()> {
        self.check()?;
        self.sync(last, vote).inspect_err(|error| {
            self.failure.set_io("the log cannot be synced", error);
        })
    }

    fn sync(&mut self, last: Option<LogId>, vote: Option<Vote>) -> io::Result<()> {
        let before = Instant::now();
        self.database.sync()?;
        let took = before.elapsed();
        if took >= SLOW_SYNC {
            tracing::warn!(?took, "a sync of the log was slow; writes waited for it");
        }
        self.metrics.fsync_seconds.record(took);
        self.metrics.count_fsync();
        let mark = self.high_water.mark();
        self.high_water.write(Mark { last: last.or(mark.last), vote: vote.or(mark.vote) })
    }

    fn truncate(&mut self, last: Option<LogId>, indices: Range<u64>) -> io::Result<()> {
        self.check()?;
        let mark = self.high_water.mark();
        let keeps = mark.last.is_none_or(|mark| last.is_some_and(|last| mark.index <= last.index));
        if !keeps {
            let lowered = Mark { last, ..mark };
            let lower = self.high_water.write(lowered).and_then(|()| self.high_water.sync());
            lower.inspect_err(|error| {
                self.failure.set_io("the high-water mark cannot be synced", error);
            })?;
            self.mark_synced = Instant::now();
        }
        let from = indices.start;
        let mut batch = Batch::default();
        for index in indices {
            self.database.delete(&mut batch, Family::Log, &log_key(index));
        }
        self.write_batch(batch)?;
        self.shared.set_written(from);
        Ok(())
    }

    fn purge(&self, from: u64, id: LogId) -> io::Result<()> {
        let mut batch = Batch::default();
        // A snapshot that is being installed may have stored a later purge position, see
        // `Machine::install`.
        let _purging = self.database.purging.lock();
        let stored = self.database.get(Family::Meta, PURGED_KEY)?;
        let stored = stored.and_then(|record| {
            let record: pb::PurgedRecord = record::open(Family::Meta, PURGED_KEY, record).ok()?;
            record.id.as_ref().map(log_id_from_proto)
        });
        if stored.is_none_or(|stored| stored.index < id.index) {
            let (key, record) = purged_record(&id);
            self.database.put(&mut batch, Family::Meta, key, &record);
        }
        let (from, to) = (log_key(from), log_key(id.index + 1));
        if from < to {
            self.database.delete_range(&mut batch, Family::Log, &from, &to);
        }
        self.write_batch(batch)
    }
}

impl Drop for State {
    /// Wakes the waiters: an ended thread writes nothing.
    fn drop(&mut self) {
        self.shared.written.send_replace(None);
    }
}
