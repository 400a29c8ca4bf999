//! openraft's own storage suite, on our storage.

use std::{io, sync::Arc};

use futures::Stream;
use openraft::{
    OptionalSend, StorageError,
    storage::{EntryResponder, RaftStateMachine},
    testing::log::{StoreBuilder, Suite},
};
use parking_lot::Mutex;
use tempfile::TempDir;

use crate::{
    database::{Access, Database},
    failure::Failure,
    flusher::Flusher,
    high_water::HighWater,
    image::Image,
    log::{Ends, LogStore},
    log_size::LogSize,
    machine::Machine,
    metrics::StoreMetrics,
    raft::{LogId, Snapshot, SnapshotMeta, StoredMembership, Types},
    snapshot::{Decoder, SnapshotData},
};

/// Keeps what a store needs until the store is gone.
struct Guard {
    _dir: TempDir,
    flusher: Option<Flusher>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.flusher.take().map(Flusher::join);
    }
}

fn build() -> (Guard, LogStore, Machine) {
    let dir = tempfile::tempdir().unwrap();
    let database = Database::open(&dir.path().join("db"), Access::Create).unwrap();
    let database = Arc::new(database);
    let high_water = HighWater::create(&dir.path().join("mark"), [1; 16]).unwrap();
    let (failure, metrics) = (Failure::default(), StoreMetrics::new());
    let (flusher, jobs) =
        Flusher::spawn(Arc::clone(&database), high_water, failure.clone(), metrics.clone())
            .unwrap();
    let size = Arc::new(Mutex::new(LogSize::default()));
    let log = LogStore::new(
        Arc::clone(&database),
        jobs,
        Ends::default(),
        size,
        failure.clone(),
        metrics.clone(),
    );
    let machine = Machine::new(database, Image::new(), 0, failure, metrics);
    (Guard { _dir: dir, flusher: Some(flusher) }, log, machine)
}

struct Direct;

impl StoreBuilder<Types, LogStore, Machine, Guard> for Direct {
    async fn build(&self) -> Result<(Guard, LogStore, Machine), StorageError<Types>> {
        Ok(build())
    }
}

/// Design 4.1: log, vote, state machine and snapshot do what openraft relies on.
#[tokio::test(flavor = "multi_thread")]
async fn the_storage_passes_the_suite_of_openraft() {
    Suite::test_all(Direct).await.unwrap();
}

/// A state machine that gets each snapshot as it would come from another replica.
struct Remote(Machine);

impl RaftStateMachine<Types> for Remote {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = Machine;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        self.0.applied_state().await
    }

    async fn apply<S>(&mut self, entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        self.0.apply(entries).await
    }

    async fn get_snapshot_builder(&mut self) -> Machine {
        self.0.get_snapshot_builder().await
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        data: SnapshotData,
    ) -> io::Result<()> {
        let mut decoder = Decoder::default();
        for frame in data.encode() {
            // In pieces that fit no frame.
            for piece in frame.chunks(7) {
                decoder.push(piece).map_err(io::Error::other)?;
            }
        }
        self.0.install_snapshot(meta, decoder.finish().map_err(io::Error::other)?).await
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        self.0.get_current_snapshot().await
    }
}

struct OverTheWire;

impl StoreBuilder<Types, LogStore, Remote, Guard> for OverTheWire {
    async fn build(&self) -> Result<(Guard, LogStore, Remote), StorageError<Types>> {
        let (guard, log, machine) = build();
        Ok((guard, log, Remote(machine)))
    }
}

/// Design 4.1: a snapshot that has travelled is the snapshot that was sent.
#[tokio::test(flavor = "multi_thread")]
async fn the_storage_passes_the_suite_with_snapshots_over_the_wire() {
    Suite::test_all(OverTheWire).await.unwrap();
}
