//! The Raft log and the vote, in RocksDB.
//!
//! Invariants:
//! - Entries are readable from memory when `append` returns. [`crate::disk::flusher`] writes them, and
//!   acknowledges them when they are durable. The state machine receives entries only after they are
//!   written, so that the database never has a state that is ahead of the log. [`crate::disk::ahead`]
//!   applies large entries earlier, but to a copy that is neither published nor stored.
//! - No thread of Raft waits for the disk: entries that are not in memory are read on a thread for
//!   blocking work.
//! - Truncated entries are deleted one by one, purged entries by range. Damage may undo a range
//!   deletion, but can then only restore entries before the purge point, which nobody reads.
//! - The committed position is not stored. The applied position is stored with the records of the state,
//!   in the same WAL, and a restarted replica catches up before it serves.

use std::{
    fmt::Debug,
    io,
    ops::{Bound, RangeBounds},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use futures::{Stream, stream};
use openraft::{
    LogState, OptionalSend, RaftLogReader,
    storage::{IOFlushed, RaftLogStorage},
};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use crate::{
    disk::{
        ahead::Ahead,
        database::{Database, Deleted},
        flusher::{self, Job, Sender},
        log_size::LogSize,
        persister::LARGE_BYTES,
        recent::Recent,
    },
    failure::Failure,
    format::{
        raft::{Entry, LogId, Types, Vote},
        raft_codec::{entry_from_stored, entry_record_len, log_key},
        record::Family,
    },
    metrics::{StoreMetrics, gauge_value},
};

/// The size of entries that are read at once, to be sent or applied, in bytes. One entry may exceed
/// it.
const READ_BYTES: usize = 2 << 20;

/// The first and last position of the log, and the vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Ends {
    /// The last purged entry.
    pub(crate) purged: Option<LogId>,
    /// The last entry in the log; `None` if the log is empty.
    pub(crate) last: Option<LogId>,
    /// The stored vote; `None` before the first one.
    pub(crate) vote: Option<Vote>,
}

impl Ends {
    /// Returns the last entry, even if it has been purged.
    pub(crate) fn last_or_purged(&self) -> Option<LogId> {
        self.last.or(self.purged)
    }
}

/// The log. Cheap to clone.
#[derive(Clone)]
pub(crate) struct LogStore(Arc<Inner>);

/// A weak handle to the log: the thread that writes the log ends with the last [`LogStore`].
#[derive(Clone)]
pub(crate) struct WeakLogStore(Weak<Inner>);

impl WeakLogStore {
    pub(crate) fn upgrade(&self) -> Option<LogStore> {
        self.0.upgrade().map(LogStore)
    }
}

struct Inner {
    database: Arc<Database>,
    jobs: Sender,
    ends: Mutex<Ends>,
    /// Whether a purge has removed all entries that an interrupted start may have left before the
    /// start of the log.
    swept: AtomicBool,
    size: Arc<Mutex<LogSize>>,
    ahead: Ahead,
    failure: Failure,
    metrics: StoreMetrics,
}

impl LogStore {
    /// Creates a log over a database in which recovery found `ends`. The thread behind `jobs` ends
    /// when the last clone of the log is dropped.
    pub(crate) fn new(
        database: Arc<Database>,
        jobs: Sender,
        ends: Ends,
        size: Arc<Mutex<LogSize>>,
        ahead: Ahead,
        failure: Failure,
        metrics: StoreMetrics,
    ) -> Self {
        metrics.last_log_index.set(gauge_value(ends.last_or_purged().map_or(0, |id| id.index)));
        jobs.shared().set_written(ends.last_or_purged().map_or(0, |id| id.index + 1));
        let (ends, swept) = (Mutex::new(ends), AtomicBool::new(false));
        Self(Arc::new(Inner { database, jobs, ends, swept, size, ahead, failure, metrics }))
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.0.jobs.shared().recent.lock()
    }

    /// Returns the number of units that waiting jobs do not take.
    #[cfg(test)]
    pub(super) fn free_units(&self) -> usize {
        self.0.jobs.free_units()
    }

    pub(crate) fn downgrade(&self) -> WeakLogStore {
        WeakLogStore(Arc::downgrade(&self.0))
    }

    /// Returns the index of the last entry in the log, or `None` if the log is empty.
    pub(crate) fn last_index(&self) -> Option<u64> {
        self.0.ends.lock().last.map(|id| id.index)
    }

    /// Returns the index of the last entry that the log had, even if it has been purged. Returns
    /// `None` if it never had one.
    pub(crate) fn last_or_purged_index(&self) -> Option<u64> {
        self.0.ends.lock().last_or_purged().map(|id| id.index)
    }

    /// Returns entries from `from` up to, not including, `to`, at most `bytes` bytes but at least
    /// one entry. Waits for the disk if the first entry is not in memory.
    pub(crate) fn read(&self, from: u64, to: u64, bytes: usize) -> io::Result<Vec<Entry>> {
        let mut next = self.first_to_read(from);
        let mut entries = Vec::new();
        while next < to {
            let first = {
                let recent = self.recent();
                if let Some(found) = recent.read(next, to, bytes) {
                    entries.extend(found);
                    break;
                }
                recent.first()
            };
            // Entries in memory may not be in the database yet.
            let end = first.filter(|first| *first > next).map_or(to, |first| first.min(to));
            let found = self.read_database(next, end, bytes)?;
            next = found.last().map_or(end, |last| last.log_id.index + 1);
            entries.extend(found);
            if bytes < usize::MAX && !entries.is_empty() {
                break;
            }
        }
        Ok(entries)
    }

    /// Reads like `read`, but as a task that occupies no thread while it waits for the disk.
    async fn fetch(&self, from: u64, to: u64, bytes: usize) -> io::Result<Vec<Entry>> {
        let next = self.first_to_read(from);
        if next >= to {
            return Ok(Vec::new());
        }
        if let Some(entries) = self.recent().read(next, to, bytes) {
            return Ok(entries);
        }
        let log = self.clone();
        let read = tokio::task::spawn_blocking(move || log.read(from, to, bytes));
        read.await.map_err(io::Error::other)?
    }

    fn first_to_read(&self, from: u64) -> u64 {
        from.max(self.0.ends.lock().purged.map_or(0, |id| id.index + 1))
    }

    pub(super) fn read_database(&self, from: u64, to: u64, bytes: usize) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        let mut len = 0;
        let (start, end) = (log_key(from), log_key(to));
        for item in self.0.database.scan(Family::Log, &start, Some(&end), Deleted::Skip) {
            let (key, record) = item.inspect_err(|error| {
                self.0.failure.set_io("the log cannot be read", error);
            })?;
            let index = <[u8; 8]>::try_from(&key[..]).map_or(0, u64::from_be_bytes);
            let entry = entry_from_stored(index, record).map_err(|error| {
                let reason = format!("log entry {index} is damaged: {error}");
                self.0.failure.set(&reason);
                io::Error::new(io::ErrorKind::InvalidData, reason)
            })?;
            // A message to another replica has this length, not that of the compressed command.
            len += entry_record_len(&entry);
            if len > bytes && !entries.is_empty() {
                break;
            }
            entries.push(entry);
        }
        Ok(entries)
    }

    /// Returns the next entries to apply, once they are written.
    async fn read_written(&self, from: u64, to: u64) -> io::Result<Vec<Entry>> {
        let entries = self.fetch(from, to, READ_BYTES).await?;
        if let Some(last) = entries.last() {
            self.0.jobs.shared().wait_written(last.log_id.index).await?;
        }
        Ok(entries)
    }
}

async fn answer(done: oneshot::Receiver<io::Result<()>>) -> io::Result<()> {
    done.await.map_err(|_| flusher::gone())?
}

fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let from = match range.start_bound() {
        Bound::Included(index) => *index,
        Bound::Excluded(index) => index.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let to = match range.end_bound() {
        Bound::Included(index) => index.saturating_add(1),
        Bound::Excluded(index) => *index,
        Bound::Unbounded => u64::MAX,
    };
    (from, to)
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> io::Result<Vec<Entry>> {
        let (from, to) = bounds(&range);
        self.fetch(from, to, usize::MAX).await
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        self.fetch(start, end, READ_BYTES).await
    }

    /// Reads entries page by page, so that a long log never has to fit into memory.
    async fn entries_stream<R>(
        &mut self,
        range: R,
    ) -> impl Stream<Item = io::Result<Entry>> + OptionalSend
    where
        R: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = bounds(&range);
        let log = self.clone();
        let pages = stream::unfold(Some(from), move |next| {
            let log = log.clone();
            async move {
                match log.read_written(next?, to).await {
                    Ok(entries) => {
                        let next = entries.last()?.log_id.index + 1;
                        Some((entries.into_iter().map(Ok).collect::<Vec<_>>(), Some(next)))
                    }
                    Err(error) => Some((vec![Err(error)], None)),
                }
            }
        });
        Box::pin(futures::StreamExt::flat_map(pages, stream::iter))
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.0.ends.lock().vote)
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        let ends = *self.0.ends.lock();
        Ok(LogState { last_purged_log_id: ends.purged, last_log_id: ends.last_or_purged() })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let (done, durable) = oneshot::channel();
        let permit = self.0.jobs.reserve(1).await?;
        self.0.jobs.send(Job::Vote { vote: *vote, done, permit })?;
        answer(durable).await?;
        self.0.ends.lock().vote = Some(*vote);
        Ok(())
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let since = Instant::now();
        let entries: Vec<Entry> = entries.into_iter().collect();
        let lens: Vec<usize> = entries.iter().map(entry_record_len).collect();
        let permit = self.0.jobs.reserve(lens.iter().sum()).await?;
        {
            let (mut size, mut recent) = (self.0.size.lock(), self.recent());
            for (entry, &len) in entries.iter().zip(&lens) {
                size.append(entry.log_id.index, len);
                recent.append(entry.clone(), len);
            }
        }
        if let Some(last) = entries.last().map(|entry| entry.log_id) {
            self.0.ends.lock().last = Some(last);
            self.0.metrics.last_log_index.set(gauge_value(last.index));
        }
        for (entry, _) in entries.iter().zip(lens).filter(|(_, len)| *len >= LARGE_BYTES) {
            // The task has only a weak handle, so it keeps neither the log nor the entry in memory.
            let (log, index) = (self.downgrade(), entry.log_id.index);
            let recent = move || log.upgrade()?.recent().read(index, index + 1, usize::MAX)?.pop();
            self.0.ahead.begin(entry, recent);
        }
        self.0.jobs.send(Job::Append { entries, callback, since, permit })
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let permit = self.0.jobs.reserve(1).await?;
        let ends = *self.0.ends.lock();
        let from = last.map_or(0, |id| id.index + 1);
        let from = from.max(ends.purged.map_or(0, |id| id.index + 1));
        let indices = from..ends.last.map_or(from, |id| id.index + 1);
        let (done, truncated) = oneshot::channel();
        self.0.jobs.send(Job::Truncate { last, indices, done, permit })?;
        answer(truncated).await?;
        self.0.size.lock().truncate(from);
        self.recent().truncate(from);
        self.0.ahead.drop_from(from);
        let mut ends = self.0.ends.lock();
        if ends.last.is_some_and(|end| end.index >= from) {
            // A purged entry is no longer in the log.
            ends.last = last.filter(|id| ends.purged.is_none_or(|purged| purged.index < id.index));
        }
        Ok(())
    }

    /// When this returns, readers no longer see the purged entries. The flusher deletes them later. A
    /// restart before the deletion finds a valid log.
    async fn purge(&mut self, id: LogId) -> io::Result<()> {
        let permit = self.0.jobs.reserve(1).await?;
        let purged = self.0.ends.lock().purged.map_or(0, |id| id.index + 1);
        let from = if self.0.swept.swap(true, Ordering::Relaxed) { purged } else { 0 };
        self.0.jobs.send(Job::Purge { from, id, permit })?;
        let mut ends = self.0.ends.lock();
        ends.purged = Some(id);
        ends.last = ends.last.filter(|last| last.index > id.index);
        let mut size = self.0.size.lock();
        size.purge(id.index);
        self.recent().purge(id.index);
        self.0.metrics.log_bytes.set(gauge_value(size.bytes()));
        Ok(())
    }
}
