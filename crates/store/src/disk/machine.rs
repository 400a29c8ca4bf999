//! The state machine: applies committed entries to the [`Image`], stores the image, and publishes
//! the state.
//!
//! Invariants:
//! - The state is published in log order, and only after RocksDB has taken it in the same batch as
//!   the position in the log. An entry whose effect a client has seen is therefore never applied
//!   twice.
//! - Applying is total. An entry that cannot be decoded stops the replica, and the reason names its
//!   index. Skipping the entry would let replicas differ.
//! - Applying an entry does not sync. In the WAL, a purge of the log follows the state that
//!   includes the purged entries, so no crash keeps only the purge.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use chancery_model::{Outcome, State};
use futures::{Stream, TryStreamExt};
use openraft::{
    OptionalSend, RaftSnapshotBuilder,
    storage::{ApplyResponder, EntryResponder, RaftStateMachine},
};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use crate::{
    disk::{
        database::{Batch, Database},
        digest::Digests,
        image::{Edit, Image, Record},
        progress::Progress,
        snapshot::{Snapshot, SnapshotData},
    },
    failure::Failure,
    format::{
        keys::{APPLIED_KEY, purged_record, state_key},
        raft::{Entry, LogId, Response, SnapshotMeta, StoredMembership, Types},
        raft_codec::entry_record_len,
        record::{self, Family},
    },
    metrics::{StoreMetrics, gauge_value},
};

/// The size of a batch of applied records above which it is written, in bytes. One entry may exceed
/// it.
pub(crate) const BATCH_BYTES: usize = 4 << 20;

/// The state machine. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Machine(Arc<Inner>);

/// Raft with this state machine.
pub(crate) type Raft = openraft::Raft<Types, Machine>;

struct Inner {
    database: Arc<Database>,
    published: Published,
    digests: Arc<Digests>,
    /// The progress of installing snapshots.
    progress: Progress,
    /// The generation: the key prefix of the records of the current state.
    generation: AtomicU64,
    /// Whether a snapshot exists, from Raft's view.
    has_snapshot: AtomicBool,
    failure: Failure,
    metrics: StoreMetrics,
}

/// The applied and stored state. Stays readable after the state machine has ended. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Published(Arc<Shared>);

struct Shared {
    /// Only the state machine's task changes the image, while it holds the lock of `state`. Anyone
    /// reads it.
    image: Mutex<Image>,
    state: watch::Sender<Arc<State>>,
    /// The tasks that wait for an entry to be applied, by its index. Each is woken once.
    waiting: Mutex<BTreeMap<u64, Vec<oneshot::Sender<()>>>>,
}

impl Published {
    fn new(image: Image) -> Self {
        let (state, _) = watch::channel(Arc::new(image.state.clone()));
        let (image, waiting) = (Mutex::new(image), Mutex::default());
        Self(Arc::new(Shared { image, state, waiting }))
    }

    /// Returns the current image.
    pub(crate) fn image(&self) -> Image {
        self.0.image.lock().clone()
    }

    /// Returns the index of the last applied entry, or 0.
    pub(crate) fn applied(&self) -> u64 {
        self.0.image.lock().applied.map_or(0, |id| id.index)
    }

    /// Returns whether the cluster has been formed.
    pub(crate) fn is_formed(&self) -> bool {
        self.0.image.lock().cluster_id.is_some()
    }

    /// Returns when the entry at an index has been applied.
    pub(crate) async fn wait_applied(&self, index: u64) {
        let applied = {
            // Held across the check so that no wake-up is lost.
            let mut waiting = self.0.waiting.lock();
            if self.applied() >= index {
                return;
            }
            let (sender, applied) = oneshot::channel();
            waiting.entry(index).or_default().push(sender);
            applied
        };
        if applied.await.is_err() {
            // The state machine has ended; the caller has a deadline.
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the entry at an index has been applied. Returns whether that happened within `timeout`.
    pub(crate) async fn applied_within(&self, index: u64, timeout: Duration) -> bool {
        tokio::time::timeout(timeout, self.wait_applied(index)).await.is_ok()
    }

    /// Returns a receiver of the newest state and of later ones.
    pub(crate) fn watch(&self) -> watch::Receiver<Arc<State>> {
        self.0.state.subscribe()
    }

    /// Returns the newest state.
    pub(crate) fn state(&self) -> Arc<State> {
        self.0.state.borrow().clone()
    }

    /// Publishes an image: to readers of the image and of the state in one step, then to the
    /// waiters.
    fn publish(&self, image: Image) {
        let state = image.state.clone();
        let applied = image.applied.map_or(0, |id| id.index);
        let mut replaced = image;
        // The image is replaced under the lock of the watched state. A reader that sees one of them
        // in its new form, and then reads the other, sees the new form of both. No code takes the
        // locks in the other order.
        self.0.state.send_if_modified(|published| {
            std::mem::swap(&mut *self.0.image.lock(), &mut replaced);
            let new =
                published.revision != state.revision || published.incarnation != state.incarnation;
            if new {
                *published = Arc::new(state);
            }
            new
        });
        let mut waiting = self.0.waiting.lock();
        let later = waiting.split_off(&applied.saturating_add(1));
        for sender in std::mem::replace(&mut *waiting, later).into_values().flatten() {
            // Some no longer wait.
            sender.send(()).unwrap_or_default();
        }
    }
}

/// Entries that have been applied to a copy of the image and are not stored yet.
struct Pending {
    image: Image,
    batch: Batch,
    bytes: usize,
    responses: Vec<(Option<ApplyResponder<Types>>, Response)>,
    n_commits: u64,
}

impl Machine {
    /// Creates a state machine over a database in which recovery found `image`, as the records of
    /// `generation`.
    pub(crate) fn new(
        database: Arc<Database>,
        image: Image,
        generation: u32,
        failure: Failure,
        metrics: StoreMetrics,
    ) -> Self {
        let digests = Arc::new(Digests::default());
        digests.note(&image);
        let machine = Self(Arc::new(Inner {
            database,
            digests,
            has_snapshot: AtomicBool::new(image.applied.is_some()),
            published: Published::new(image),
            progress: Progress::default(),
            generation: AtomicU64::new(generation.into()),
            failure,
            metrics,
        }));
        machine.show(&machine.image());
        machine
    }

    #[cfg(test)]
    pub(crate) fn database(&self) -> Arc<Database> {
        Arc::clone(&self.0.database)
    }

    /// Returns the published state.
    pub(crate) fn published(&self) -> Published {
        self.0.published.clone()
    }

    /// Returns the digests of the applied positions.
    pub(crate) fn digests(&self) -> Arc<Digests> {
        Arc::clone(&self.0.digests)
    }

    /// Returns the progress of installing snapshots.
    pub(crate) fn progress(&self) -> Progress {
        self.0.progress.clone()
    }

    fn image(&self) -> Image {
        self.0.published.image()
    }

    fn generation(&self) -> u32 {
        u32::try_from(self.0.generation.load(Ordering::Acquire)).unwrap_or(u32::MAX)
    }

    fn show(&self, image: &Image) {
        let metrics = &self.0.metrics;
        metrics.applied_index.set(gauge_value(image.applied.map_or(0, |id| id.index)));
        metrics.revision.set(gauge_value(image.state.revision.0));
        metrics.resources.set(gauge_value(image.n_resources));
    }

    fn pending(&self) -> Pending {
        Pending {
            image: self.image(),
            batch: Batch::default(),
            bytes: 0,
            responses: Vec::new(),
            n_commits: 0,
        }
    }

    /// Applies an entry to the pending image.
    fn apply_entry(&self, pending: &mut Pending, entry: Entry) -> io::Result<Response> {
        let index = entry.log_id.index;
        let mut edits = Vec::new();
        let response = pending.image.apply_entry(entry, &mut edits).map_err(|error| {
            let reason = format!("log entry {index} cannot be applied: {error}");
            self.0.failure.set(&reason);
            io::Error::new(io::ErrorKind::InvalidData, reason)
        })?;
        self.0.digests.note(&pending.image);
        pending.bytes += self.stage(&mut pending.batch, edits);
        if matches!(response, Response::Outcome(Outcome::Committed(_))) {
            pending.n_commits += 1;
        }
        Ok(response)
    }

    /// Applies entries on a thread for blocking work. A large transaction or a stalled disk takes
    /// long, and the threads of the runtime must answer heartbeats.
    async fn apply_elsewhere(&self, entries: Vec<EntryResponder<Types>>) -> io::Result<()> {
        let machine = self.clone();
        let applied = tokio::task::spawn_blocking(move || machine.apply_all(entries));
        applied.await.map_err(|error| {
            self.0.failure.set(format!("committed entries cannot be applied: {error}"));
            io::Error::other(error)
        })?
    }

    fn apply_all(&self, entries: Vec<EntryResponder<Types>>) -> io::Result<()> {
        let mut pending = self.pending();
        for (entry, responder) in entries {
            let response = self.apply_entry(&mut pending, entry)?;
            pending.responses.push((responder, response));
            if pending.bytes >= BATCH_BYTES {
                self.commit(pending)?;
                pending = self.pending();
            }
        }
        if pending.responses.is_empty() { Ok(()) } else { self.commit(pending) }
    }

    fn stage(&self, batch: &mut Batch, edits: Vec<Edit>) -> usize {
        let generation = self.generation();
        let mut bytes = 0;
        for Edit { family, key, record } in edits {
            let key = state_key(generation, &key);
            bytes += key.len() + record.as_ref().map_or(0, Vec::len);
            match record {
                Some(record) => self.0.database.put(batch, family, &key, &record),
                None => self.0.database.delete(batch, family, &key),
            }
        }
        bytes
    }

    /// Stores the pending image, publishes it, and sends the responses.
    fn commit(&self, pending: Pending) -> io::Result<()> {
        let Pending { image, mut batch, responses, n_commits, .. } = pending;
        let applied = image.applied_to_proto(self.generation());
        let record = record::seal(Family::Meta, APPLIED_KEY, &applied);
        self.0.database.put(&mut batch, Family::Meta, APPLIED_KEY, &record);
        self.0.database.write(batch).inspect_err(|error| {
            self.0.failure.set_io("the state cannot be written", error);
        })?;
        self.publish(image);
        self.0.metrics.commits_total.increment(n_commits);
        for (responder, response) in responses {
            if let Some(responder) = responder {
                responder.send(response);
            }
        }
        Ok(())
    }

    fn publish(&self, image: Image) {
        self.show(&image);
        self.0.published.publish(image);
    }

    fn snapshot(&self) -> Snapshot {
        let data = SnapshotData(Arc::new(self.image()));
        Snapshot { meta: data.meta(), snapshot: data }
    }

    /// Writes the records of another image beside the current ones, then replaces the current ones.
    fn install(&self, image: &Image) -> io::Result<()> {
        let (old, new) = (self.generation(), self.generation().wrapping_add(1));
        let database = &self.0.database;
        let mut batch = Batch::default();
        let mut bytes = 0;
        // An interrupted attempt may have left records of the new generation.
        self.clear(&mut batch, new);
        for Record { family, key, record } in image.records() {
            bytes += key.len() + record.len();
            database.put(&mut batch, family, &state_key(new, &key), &record);
            if bytes > BATCH_BYTES {
                database.write(std::mem::take(&mut batch))?;
                self.0.progress.add(std::mem::take(&mut bytes));
            }
        }
        let record = record::seal(Family::Meta, APPLIED_KEY, &image.applied_to_proto(new));
        database.put(&mut batch, Family::Meta, APPLIED_KEY, &record);
        let _purging = database.purging.lock();
        if let Some(id) = &image.applied {
            // Raft purges the log up to here later. A replica that restarts before that purge must
            // not look for these entries.
            let (key, record) = purged_record(id);
            database.put(&mut batch, Family::Meta, key, &record);
        }
        self.clear(&mut batch, old);
        database.write(batch)?;
        self.0.progress.add(bytes);
        database.sync()?;
        self.0.generation.store(new.into(), Ordering::Release);
        Ok(())
    }

    fn clear(&self, batch: &mut Batch, generation: u32) {
        let from = generation.to_be_bytes().to_vec();
        // The last generation has no successor, so the range ends after its keys.
        let to = match generation.checked_add(1) {
            Some(next) => next.to_be_bytes().to_vec(),
            None => vec![u8::MAX; 5],
        };
        for family in [Family::Resources, Family::Index, Family::History] {
            self.0.database.delete_range(batch, family, &from, &to);
        }
    }
}

impl RaftSnapshotBuilder<Types> for Machine {
    type SnapshotData = SnapshotData;

    /// The image is the snapshot, and is already stored.
    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        self.0.has_snapshot.store(true, Ordering::Release);
        Ok(self.snapshot())
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let image = self.image();
        Ok((image.applied, image.membership))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        #[cfg(test)]
        self.0.database.fail_points.pass_in_task(crate::failpoint::Point::Apply).await?;
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while let Some((entry, responder)) = entries.try_next().await? {
            bytes += entry_record_len(&entry);
            taken.push((entry, responder));
            if bytes >= BATCH_BYTES {
                bytes = 0;
                self.apply_elsewhere(std::mem::take(&mut taken)).await?;
            }
        }
        if taken.is_empty() { Ok(()) } else { self.apply_elsewhere(taken).await }
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: SnapshotData,
    ) -> io::Result<()> {
        let mut image = Image::clone(&snapshot.0);
        image.applied = meta.last_log_id;
        image.membership = meta.last_membership.clone();
        // Installing a large image takes seconds, and the threads of the runtime must answer
        // heartbeats.
        let machine = self.clone();
        let installed = tokio::task::spawn_blocking(move || {
            machine.install(&image).inspect_err(|error| {
                machine.0.failure.set_io("a snapshot cannot be written", error);
            })?;
            machine.0.has_snapshot.store(true, Ordering::Release);
            machine.0.digests.note(&image);
            // Publishing drops the previous image, still on this thread.
            machine.publish(image);
            Ok(())
        });
        installed.await.map_err(io::Error::other)?
    }

    /// Returns the newest state, which is never older than the last snapshot. A kept snapshot would
    /// hold all replaced data in memory.
    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        Ok(self.0.has_snapshot.load(Ordering::Acquire).then(|| self.snapshot()))
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use chancery_model::Revision;

    use super::*;
    use crate::format::raft::log_id;

    /// The time within which a reader could see a state that it must not see.
    const PATIENCE: Duration = Duration::from_millis(300);

    fn image(n: u64) -> Image {
        let mut image = Image { applied: Some(log_id(1, n)), ..Image::new() };
        image.state.revision = Revision(n);
        image
    }

    /// L2: a linearizable read waits for an index, and then reads the watched state. The test holds
    /// the watched state in its old form, so that `publish` stops just before it replaces it.
    #[tokio::test]
    async fn index_is_shown_as_applied_only_with_its_state() {
        let published = Published::new(image(0));
        let watching = published.watch();
        let old = watching.borrow();
        let publisher = published.clone();
        let publish = thread::spawn(move || publisher.publish(image(1)));
        let wait = tokio::time::timeout(PATIENCE, published.wait_applied(1));
        assert!(wait.await.is_err(), "a waiter was released at revision {}", old.revision);
        assert_eq!(published.applied(), 0, "entry 1 is shown at revision {}", old.revision);
        drop(old);
        published.wait_applied(1).await;
        assert_eq!(published.state().revision, Revision(1));
        publish.join().unwrap();
    }

    /// Readers of both values see the same state, in whichever order they read.
    #[test]
    fn image_and_state_change_together() {
        const LAST: u64 = 20_000;
        let published = Published::new(image(0));
        let publisher = published.clone();
        let publish = thread::spawn(move || (1..=LAST).for_each(|n| publisher.publish(image(n))));
        loop {
            let state = published.state().revision.0;
            let applied = published.applied();
            let later = published.state().revision.0;
            assert!(state <= applied && applied <= later, "{state}, {applied}, {later}");
            if state == LAST {
                break;
            }
        }
        publish.join().unwrap();
    }
}
