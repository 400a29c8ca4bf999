//! The state machine: applies committed entries to the [`Image`], stores the image, and publishes
//! the state.
//!
//! Invariants:
//! - The state is published in log order, and only after its entries are committed and in the log of this replica.
//! - The state is stored in log order, too, together with the applied position. Small changes are stored before they
//!   are published. A large change, and changes that are queued behind it, are stored later
//!   ([`crate::disk::persister`]).
//! - Applying a decoded entry cannot fail. An entry that cannot be decoded stops the replica, and the
//!   reason names its index. Skipping the entry would let replicas differ.
//! - Applying an entry does not sync. The WAL contains the records of a state before the purge of the log
//!   entries that the state includes. A crash therefore never keeps the purge without the records.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use chancery_model::{Keys, Outcome, Revision};
use chancery_secrets::Secrets;
use futures::{Stream, TryStreamExt};
use openraft::{
    OptionalSend, RaftSnapshotBuilder,
    storage::{ApplyResponder, EntryResponder, RaftStateMachine},
};
use parking_lot::Mutex;

use crate::{
    disk::{
        ahead::{Ahead, AppliedAhead},
        content_reader::ContentReader,
        database::Database,
        digest::Digests,
        image::Image,
        persister::{Job, LARGE_BYTES, Parts, Persister},
        progress::Progress,
        published::{ImageNumber, Published},
        snapshot::{Snapshot, SnapshotData},
        state_writer::{BATCH_BYTES, Step},
    },
    failure::Failure,
    format::{
        raft::{Entry, LogId, Response, SnapshotMeta, StoredMembership, Types},
        raft_codec::entry_record_len,
    },
    metrics::{StoreMetrics, gauge_value},
};

/// The state machine. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Machine(Arc<Inner>);

/// Raft with this state machine.
pub(crate) type Raft = openraft::Raft<Types, Machine>;

struct Inner {
    #[cfg(test)]
    database: Arc<Database>,
    published: Published,
    content: ContentReader,
    ahead: Ahead,
    digests: Arc<Digests>,
    /// The progress of installing snapshots.
    progress: Progress,
    persister: Persister,
    /// Whether a snapshot exists, from Raft's view.
    has_snapshot: AtomicBool,
    failure: Failure,
    metrics: StoreMetrics,
    secrets: Secrets,
    /// The generation of the keys with which resources were last opened. Locked while the image changes, so that no
    /// change opens resources with other keys.
    opened_with: Mutex<u64>,
}

/// Entries that have been applied to a copy of the image.
struct Pending {
    /// The number of the published image to which the entries are applied.
    base: ImageNumber,
    image: Image,
    steps: Vec<Step>,
    bytes: usize,
    /// Whether one of the entries makes a large change.
    is_large: bool,
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
        secrets: Secrets,
    ) -> Self {
        let mut image = image;
        secrets.refresh_now(&image.state.keys);
        image.open_sealed(&secrets);
        let opened_with = Mutex::new(secrets.generation());
        let digests = Arc::new(Digests::default());
        digests.note(&image);
        let has_snapshot = AtomicBool::new(image.applied.is_some());
        let published = Published::new(image);
        let content = ContentReader::new(&database, published.clone());
        let parts = Parts {
            published: published.clone(),
            digests: Arc::clone(&digests),
            failure: failure.clone(),
        };
        let persister = Persister::new(Arc::clone(&database), generation, parts);
        let progress = Progress::default();
        let inner = Inner {
            #[cfg(test)]
            database,
            content,
            digests,
            has_snapshot,
            ahead: Ahead::new(published.clone(), secrets.clone()),
            published,
            persister,
            progress,
            failure,
            metrics,
            secrets,
            opened_with,
        };
        let machine = Self(Arc::new(inner));
        machine.show(&machine.0.published.newest());
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

    /// Returns a reader of the content of earlier revisions.
    pub(crate) fn content(&self) -> ContentReader {
        self.0.content.clone()
    }

    /// Returns the value that applies large entries early.
    pub(crate) fn ahead(&self) -> Ahead {
        self.0.ahead.clone()
    }

    /// Returns the digests of the applied positions.
    pub(crate) fn digests(&self) -> Arc<Digests> {
        Arc::clone(&self.0.digests)
    }

    /// Returns the progress of installing snapshots.
    pub(crate) fn progress(&self) -> Progress {
        self.0.progress.clone()
    }

    fn show(&self, image: &Image) {
        let metrics = &self.0.metrics;
        metrics.applied_index.set(gauge_value(image.applied.map_or(0, |id| id.index)));
        metrics.revision.set(gauge_value(image.state.revision.0));
        metrics.resources.set(gauge_value(image.n_resources));
        let freezes = &image.state.freezes;
        metrics.freezes.set(gauge_value(freezes.iter().count() as u64));
        metrics.held.set(gauge_value(freezes.n_held() as u64));
        metrics.sealed.set(gauge_value(image.n_sealed));
        metrics.unopened.set(gauge_value(image.unopened.len() as u64));
    }

    fn pending(&self) -> Pending {
        let (base, image) = self.0.published.newest_numbered();
        Pending {
            base,
            image,
            steps: Vec::new(),
            bytes: 0,
            is_large: false,
            responses: Vec::new(),
            n_commits: 0,
        }
    }

    /// Applies an entry to the pending image.
    fn apply_entry(&self, pending: &mut Pending, entry: Entry) -> io::Result<Response> {
        let applied = entry.log_id;
        let len = entry_record_len(&entry);
        let ahead = if len >= LARGE_BYTES && pending.steps.is_empty() {
            self.0.ahead.take(&entry, pending.base)
        } else {
            None
        };
        let keys = Arc::clone(&pending.image.state.keys);
        let mut unopened = std::mem::take(&mut pending.image.unopened);
        let (response, effect) = match ahead {
            Some(AppliedAhead { image, response, effect, .. }) => {
                pending.image = image;
                (response, effect)
            }
            None => pending.image.advance(entry).map_err(|error| {
                let reason = format!("log entry {} cannot be applied: {error}", applied.index);
                self.0.failure.set(&reason);
                io::Error::new(io::ErrorKind::InvalidData, reason)
            })?,
        };
        self.open_new(&mut pending.image, &keys);
        if !unopened.is_empty() {
            for change in effect.changes() {
                unopened.remove(&(change.scope.clone(), change.key.clone()));
            }
        }
        pending.image.unopened = unopened.union(std::mem::take(&mut pending.image.unopened));
        let state = &pending.image.state;
        let (incarnation, revision) = (state.incarnation, state.revision);
        let len = len + effect.len_estimate();
        pending.bytes += len;
        pending.is_large |= len >= LARGE_BYTES;
        pending.steps.push(Step { applied, incarnation, revision, effect });
        if matches!(response, Response::Outcome(Outcome::Committed(_))) {
            pending.n_commits += 1;
        }
        Ok(response)
    }

    /// Opens the sealed resources of an entry. `keys` are the keys of the state before the entry. When other keys
    /// arrive, [`Machine::open_sealed`] opens the rest.
    fn open_new(&self, image: &mut Image, keys: &Arc<Keys>) {
        if !Arc::ptr_eq(keys, &image.state.keys) {
            self.0.secrets.refresh_now(&image.state.keys);
        }
        image.open_newest(&self.0.secrets);
    }

    /// Applies entries on a thread for blocking work. A large transaction or a stalled disk takes
    /// long, and the threads of the runtime must answer heartbeats.
    async fn apply_elsewhere(&self, entries: Vec<EntryResponder<Types>>) -> io::Result<()> {
        let machine = self.clone();
        let committed = self.0.published.times().now();
        let applied = tokio::task::spawn_blocking(move || machine.apply_all(entries, committed));
        applied.await.map_err(|error| {
            self.0.failure.set(format!("committed entries cannot be applied: {error}"));
            io::Error::other(error)
        })?
    }

    /// Applies entries. `committed` is the time at which the entries arrived as committed, if times are recorded.
    fn apply_all(
        &self,
        entries: Vec<EntryResponder<Types>>,
        committed: Option<SystemTime>,
    ) -> io::Result<()> {
        let _opened_with = self.0.opened_with.lock();
        let mut pending = self.pending();
        for (entry, responder) in entries {
            if entry_record_len(&entry) >= LARGE_BYTES && !pending.steps.is_empty() {
                // Earlier entries do not wait for a large entry.
                self.commit(pending, committed)?;
                pending = self.pending();
            }
            let response = self.apply_entry(&mut pending, entry)?;
            pending.responses.push((responder, response));
            if pending.bytes >= BATCH_BYTES {
                self.commit(pending, committed)?;
                pending = self.pending();
            }
        }
        if pending.responses.is_empty() { Ok(()) } else { self.commit(pending, committed) }
    }

    /// Stores the pending image, publishes it, and sends the responses. A large change, and a change that would be
    /// queued behind another, is published first, and stored later.
    fn commit(&self, pending: Pending, committed: Option<SystemTime>) -> io::Result<()> {
        let Pending { image, steps, bytes, is_large, responses, n_commits, .. } = pending;
        let revisions = steps.first().zip(steps.last()).map(|(a, b)| (a.revision, b.revision));
        for Step { revision, effect, .. } in &steps {
            // An entry without changed resources, such as one that changes assignments, has no changes to count.
            if !effect.changes().is_empty() {
                self.0.published.changes().record(*revision, effect.changes());
            }
        }
        let job = Job { image: image.clone(), steps, bytes, is_large };
        let waiting = self.0.persister.persist(job)?;
        self.remember(committed, revisions);
        self.publish(image);
        self.0.metrics.commits_total.increment(n_commits);
        for (responder, response) in responses {
            if let Some(responder) = responder {
                responder.send(response);
            }
        }
        if let Some(job) = waiting {
            self.0.persister.persist_later(job);
        }
        Ok(())
    }

    /// Records when revisions are applied, if `committed` is known. Must be called before the state is published,
    /// because the trace of a write then reads the time.
    fn remember(&self, committed: Option<SystemTime>, revisions: Option<(Revision, Revision)>) {
        if let (Some(committed), Some((first, last))) = (committed, revisions) {
            self.0.published.times().record(first, last, committed);
        }
    }

    fn publish(&self, image: Image) {
        self.show(&image);
        self.0.published.publish(image);
    }

    /// Opens the sealed resources that could not be opened before, if there are more keys now. Blocks while entries
    /// are applied.
    pub(crate) fn open_sealed(&self) {
        let mut opened_with = self.0.opened_with.lock();
        let generation = self.0.secrets.generation();
        if std::mem::replace(&mut *opened_with, generation) == generation {
            return;
        }
        let mut image = self.0.published.newest();
        if image.open_sealed(&self.0.secrets) {
            self.publish(image);
        }
    }

    fn snapshot(&self) -> Snapshot {
        let image = Arc::new(self.0.published.stored());
        let data = SnapshotData { image, content: Some(self.content()) };
        Snapshot { meta: data.meta(), snapshot: data }
    }
}

impl RaftSnapshotBuilder<Types> for Machine {
    type SnapshotData = SnapshotData;

    /// The snapshot is the stored image and never newer: Raft may purge the entries that the snapshot includes.
    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        self.0.has_snapshot.store(true, Ordering::Release);
        Ok(self.snapshot())
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let image = self.0.published.newest();
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
        let mut image = Image::clone(&snapshot.image);
        image.applied = meta.last_log_id;
        image.membership = meta.last_membership.clone();
        // Installing a large image takes seconds, and the threads of the runtime must answer
        // heartbeats.
        let machine = self.clone();
        let installed = tokio::task::spawn_blocking(move || {
            let _opened_with = machine.0.opened_with.lock();
            machine.0.secrets.refresh_now(&image.state.keys);
            image.open_sealed(&machine.0.secrets);
            machine.0.persister.install(&image, &machine.0.progress).inspect_err(|error| {
                machine.0.failure.set_io("a snapshot cannot be written", error);
            })?;
            machine.0.has_snapshot.store(true, Ordering::Release);
            machine.0.ahead.drop_from(0);
            // Publishing drops the previous image, still on this thread.
            machine.publish(image);
            Ok(())
        });
        installed.await.map_err(io::Error::other)?
    }

    /// Returns the newest stored state, which is never older than the last snapshot. Keeping the last
    /// snapshot instead would keep all replaced data in memory.
    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        Ok(self.0.has_snapshot.load(Ordering::Acquire).then(|| self.snapshot()))
    }
}
