//! The Raft log and the vote, in RocksDB.
//!
//! Invariants:
//! - Entries are readable when `append` returns and acknowledged only when they are durable, which
//!   [`crate::flusher`] sees to.
//! - Entries that are truncated are deleted one by one, purged ones by range: a range deletion that
//!   damage makes ineffective can only bring back entries before the purge point, which nobody reads.
//! - The committed position is not stored: the state is stored with every batch of applied entries, in
//!   the same WAL, and a restart waits until it has caught up before it serves.

use std::{
    fmt::Debug,
    io,
    ops::{Bound, RangeBounds},
    sync::{Arc, Weak},
    time::Instant,
};

use futures::{Stream, stream};
use openraft::{
    LogState, OptionalSend, RaftLogReader,
    storage::{IOFlushed, RaftLogStorage},
};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::{
    database::{Batch, Database, Deleted},
    failure::Failure,
    flusher::{Job, Sender},
    log_size::LogSize,
    metrics::{StoreMetrics, gauge_value},
    raft::{Entry, LogId, Types, Vote},
    raft_codec::{entry_from_record, entry_to_record, log_id_to_proto, log_key, vote_to_proto},
    recent::Recent,
    record::{self, Family},
};
use chancery_proto::raft::v1 as pb;

pub(crate) const VOTE_KEY: &[u8] = b"vote";
pub(crate) const PURGED_KEY: &[u8] = b"purged";
/// Bytes of entries that are read at once, to be sent or applied; one entry may be larger.
const READ_BYTES: usize = 2 << 20;

/// Where the log begins and ends, and the vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Ends {
    /// The last entry that was purged.
    pub(crate) purged: Option<LogId>,
    /// The last entry in the log; `None` if there is none.
    pub(crate) last: Option<LogId>,
    /// The vote.
    pub(crate) vote: Option<Vote>,
}

impl Ends {
    /// The last entry, even if it has been purged.
    pub(crate) fn last_or_purged(&self) -> Option<LogId> {
        self.last.or(self.purged)
    }
}

/// The log. Cheap to clone.
#[derive(Clone)]
pub(crate) struct LogStore(Arc<Inner>);

/// The log, for as long as somebody else uses it: the thread that syncs it ends with its last [`LogStore`].
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
    size: Arc<Mutex<LogSize>>,
    recent: Mutex<Recent>,
    failure: Failure,
    metrics: StoreMetrics,
}

impl LogStore {
    /// A log over a database in which `ends` was found. The thread behind `jobs` ends when the last
    /// clone of the log is dropped.
    pub(crate) fn new(
        database: Arc<Database>,
        jobs: Sender,
        ends: Ends,
        size: Arc<Mutex<LogSize>>,
        failure: Failure,
        metrics: StoreMetrics,
    ) -> Self {
        metrics.last_log_index.set(gauge_value(ends.last_or_purged().map_or(0, |id| id.index)));
        let (ends, recent) = (Mutex::new(ends), Mutex::default());
        Self(Arc::new(Inner { database, jobs, ends, size, recent, failure, metrics }))
    }

    pub(crate) fn downgrade(&self) -> WeakLogStore {
        WeakLogStore(Arc::downgrade(&self.0))
    }

    /// The index of the last entry in the log; `None` if there is none.
    pub(crate) fn last_index(&self) -> Option<u64> {
        self.0.ends.lock().last.map(|id| id.index)
    }

    /// Entries from `from` up to, not including, `to`, until they have `bytes` bytes; one at least.
    pub(crate) fn read(&self, from: u64, to: u64, bytes: usize) -> io::Result<Vec<Entry>> {
        let from = from.max(self.0.ends.lock().purged.map_or(0, |id| id.index + 1));
        if from >= to {
            return Ok(Vec::new());
        }
        if let Some(entries) = self.0.recent.lock().read(from, to, bytes) {
            return Ok(entries);
        }
        let mut entries = Vec::new();
        let mut len = 0;
        let (start, end) = (log_key(from), log_key(to));
        for item in self.0.database.scan(Family::Log, &start, Some(&end), Deleted::Skip) {
            let (key, record) = item.inspect_err(|error| self.0.failure.set(error))?;
            len += record.len();
            if len > bytes && !entries.is_empty() {
                break;
            }
            let index = <[u8; 8]>::try_from(&key[..]).map_or(0, u64::from_be_bytes);
            let entry = entry_from_record(index, record).map_err(|error| {
                let reason = format!("log entry {index} is damaged: {error}");
                self.0.failure.set(&reason);
                io::Error::new(io::ErrorKind::InvalidData, reason)
            })?;
            entries.push(entry);
        }
        Ok(entries)
    }

    fn write(&self, batch: Batch) -> io::Result<()> {
        self.0.database.write(batch).inspect_err(|error| {
            self.0.failure.set_io("the log can not be written", error);
        })
    }

    /// Hands a job to the thread that syncs. Waits while it has too many.
    fn send(&self, job: Job) -> io::Result<()> {
        self.0.jobs.send(job).map_err(|_| io::Error::other("the thread that syncs the log is gone"))
    }
}

/// The record of the last entry that is purged, and its key.
pub(crate) fn purged_record(id: &LogId) -> (&'static [u8], Vec<u8>) {
    let message = pb::PurgedRecord { id: Some(log_id_to_proto(id)) };
    (PURGED_KEY, record::seal(Family::Meta, PURGED_KEY, &message))
}

async fn answer(done: oneshot::Receiver<io::Result<()>>) -> io::Result<()> {
    done.await.map_err(|_| io::Error::other("the thread that syncs the log is gone"))?
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
        self.read(from, to, usize::MAX)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        self.read(start, end, READ_BYTES)
    }

    /// What is applied is read by and by: a long log never has to fit into memory.
    async fn entries_stream<R>(
        &mut self,
        range: R,
    ) -> impl Stream<Item = io::Result<Entry>> + OptionalSend
    where
        R: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = bounds(&range);
        let pages = stream::unfold(Some(from), move |next| {
            let page = next.map(|from| self.read(from, to, READ_BYTES));
            async move {
                match page? {
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
        let mut batch = Batch::default();
        let record = record::seal(Family::Meta, VOTE_KEY, &vote_to_proto(vote));
        self.0.database.put(&mut batch, Family::Meta, VOTE_KEY, &record);
        self.write(batch)?;
        let (done, durable) = oneshot::channel();
        self.send(Job::Voted { vote: *vote, done })?;
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
        let mut batch = Batch::default();
        let mut last = None;
        let mut appended = Vec::new();
        for entry in entries {
            let record = entry_to_record(&entry);
            let index = entry.log_id.index;
            self.0.database.put(&mut batch, Family::Log, &log_key(index), &record);
            last = Some(entry.log_id);
            appended.push((entry, record.len()));
        }
        self.write(batch)?;
        {
            let (mut size, mut recent) = (self.0.size.lock(), self.0.recent.lock());
            for (entry, len) in appended {
                size.append(entry.log_id.index, len);
                recent.append(entry, len);
            }
        }
        if let Some(last) = last {
            self.0.ends.lock().last = Some(last);
            self.0.metrics.last_log_index.set(gauge_value(last.index));
        }
        self.send(Job::Appended { callback, last, since })
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let (done, durable) = oneshot::channel();
        self.send(Job::Truncate { last, done })?;
        answer(durable).await?;
        let ends = *self.0.ends.lock();
        let from = last.map_or(0, |id| id.index + 1);
        let from = from.max(ends.purged.map_or(0, |id| id.index + 1));
        let mut batch = Batch::default();
        for index in from..ends.last.map_or(from, |id| id.index + 1) {
            self.0.database.delete(&mut batch, Family::Log, &log_key(index));
        }
        self.write(batch)?;
        self.0.size.lock().truncate(from);
        self.0.recent.lock().truncate(from);
        let mut ends = self.0.ends.lock();
        if ends.last.is_some_and(|end| end.index >= from) {
            // What is purged is no entry any more.
            ends.last = last.filter(|id| ends.purged.is_none_or(|purged| purged.index < id.index));
        }
        Ok(())
    }

    async fn purge(&mut self, id: LogId) -> io::Result<()> {
        let from = self.0.ends.lock().purged.map_or(0, |id| id.index + 1);
        let mut batch = Batch::default();
        let (key, record) = purged_record(&id);
        self.0.database.put(&mut batch, Family::Meta, key, &record);
        let (from, to) = (log_key(from), log_key(id.index + 1));
        if from < to {
            self.0.database.delete_range(&mut batch, Family::Log, &from, &to);
        }
        self.write(batch)?;
        let mut ends = self.0.ends.lock();
        ends.purged = Some(id);
        ends.last = ends.last.filter(|last| last.index > id.index);
        let mut size = self.0.size.lock();
        size.purge(id.index);
        self.0.recent.lock().purge(id.index);
        self.0.metrics.log_bytes.set(gauge_value(size.bytes()));
        Ok(())
    }
}
