//! openraft's storage test suite for this storage, and tests that the suite lacks.

use std::{
    io,
    pin::Pin,
    sync::{Arc, mpsc},
    task::Context,
    thread,
    time::Duration,
};

use bytes::Bytes;
use futures::Stream;
use openraft::{
    EntryPayload, OptionalSend, RaftLogReader, StorageError,
    alias::OneshotOf,
    async_runtime::Oneshot,
    storage::{EntryResponder, IOFlushed, RaftLogStorage, RaftStateMachine},
    testing::log::{StoreBuilder, Suite},
};
use parking_lot::Mutex;
use prost::Message;
use tempfile::TempDir;

use crate::{
    disk::{
        database::{Access, Database},
        flusher::Flusher,
        high_water::HighWater,
        image::Image,
        log::{Ends, LogStore},
        log_size::LogSize,
        machine::Machine,
        snapshot::{Contents, Decoder, Snapshot, SnapshotData},
    },
    failpoint::Point,
    failure::Failure,
    format::{
        codec::{Command, command_to_proto},
        raft::{EncodedCommand, Entry, LogId, SnapshotMeta, StoredMembership, Types, Vote, log_id},
    },
    metrics::StoreMetrics,
};

fn command(bytes: &'static [u8]) -> Entry {
    let command = EncodedCommand::new(Bytes::from_static(bytes));
    Entry { log_id: log_id(1, 1), payload: EntryPayload::Normal(command) }
}

/// If replicas skipped the entry, their states could differ.
#[tokio::test(flavor = "multi_thread")]
async fn committed_entry_that_cannot_be_decoded_stops_the_replica() {
    // The first is a tag that protobuf does not define, the second a command of a kind of a later
    // release.
    for bytes in [&b"\xff"[..], &b"\x7a\x00"[..]] {
        let (_guard, _log, mut machine) = build();
        let entries = futures::stream::iter([Ok((command(bytes), None))]);
        let error = machine.apply(entries).await.unwrap_err();
        assert!(error.to_string().starts_with("log entry 1 cannot be applied: "), "{error}");
        assert_eq!(machine.applied_state().await.unwrap().0, None, "the entry was skipped");
    }
}

/// After a failed sync the store acknowledges nothing again.
#[tokio::test(flavor = "multi_thread")]
async fn failed_flush_stops_all_acknowledgments() {
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("mark");
    drop(HighWater::create(&mark, [1; 16]).unwrap());
    // A mark that cannot be written takes the same path as a sync that fails.
    let high_water = HighWater::open_read_only(&mark, [1; 16]).unwrap();
    let (guard, mut log, _machine) = build_in(dir, high_water);
    let vote = Vote::new(1, 1);
    for attempt in 0..3 {
        assert!(log.save_vote(&vote).await.is_err(), "attempt {attempt}");
        assert_eq!(log.read_vote().await.unwrap(), None);
        let (sender, flushed) = OneshotOf::<Types>::channel();
        log.append([command(b"")], IOFlushed::signal(sender)).await.unwrap();
        assert!(flushed.await.unwrap().is_err(), "attempt {attempt}");
    }
    let failure = guard.failure.get().unwrap();
    assert!(failure.contains("cannot be synced"), "{failure}");
}

/// Polls a future once while database writes are blocked. Returns whether the poll returned before the future completed.
/// The writes resume when the poll returns, or after 5 s if the poll itself waits for a write.
fn works_elsewhere(database: &Database, future: Pin<&mut impl Future>) -> bool {
    let held = database.fail_points.hold(Point::Write);
    let (returned, wait) = mpsc::sync_channel::<()>(1);
    thread::scope(|scope| {
        scope.spawn(move || {
            let _returned = wait.recv_timeout(Duration::from_secs(5));
            drop(held);
        });
        let mut context = Context::from_waker(futures::task::noop_waker_ref());
        let is_pending = future.poll(&mut context).is_pending();
        drop(returned);
        is_pending
    })
}

/// Installing a large snapshot takes seconds. The thread that waits for it is free meanwhile,
/// because it must answer heartbeats.
#[tokio::test]
async fn snapshot_installation_does_not_block_runtime_threads() {
    let (_guard, _log, mut machine) = build();
    let data = SnapshotData::without_content(Image { applied: Some(log_id(1, 1)), ..Image::new() });
    let meta = data.meta();
    let database = machine.database();
    let mut install = Box::pin(machine.install_snapshot(&meta, data));
    let is_pending = works_elsewhere(&database, install.as_mut());
    assert!(is_pending, "the snapshot was installed on the calling thread");
    install.await.unwrap();
    assert_eq!(machine.applied_state().await.unwrap().0, Some(log_id(1, 1)));
}

/// Applying a large transaction takes long. The thread that waits for it is free meanwhile, because
/// it must answer heartbeats.
#[tokio::test]
async fn applying_entries_does_not_block_runtime_threads() {
    let (_guard, _log, mut machine) = build();
    let form = Command::Form { cluster_id: [1; 16], incarnation: chancery_model::Incarnation(1) };
    let command = EncodedCommand::new(command_to_proto(&form).encode_to_vec().into());
    let entry = Entry { log_id: log_id(1, 0), payload: EntryPayload::Normal(command) };
    let database = machine.database();
    let mut apply = Box::pin(machine.apply(futures::stream::iter([Ok((entry, None))])));
    let is_pending = works_elsewhere(&database, apply.as_mut());
    assert!(is_pending, "the entry was applied on the calling thread");
    apply.await.unwrap();
    assert_eq!(machine.applied_state().await.unwrap().0, Some(log_id(1, 0)));
}

/// Keeps the resources of a store alive for as long as the store.
struct Guard {
    _dir: TempDir,
    flusher: Option<Flusher>,
    failure: Failure,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.flusher.take().map(Flusher::join);
    }
}

fn build() -> (Guard, LogStore, Machine) {
    let dir = tempfile::tempdir().unwrap();
    let high_water = HighWater::create(&dir.path().join("mark"), [1; 16]).unwrap();
    build_in(dir, high_water)
}

fn build_in(dir: TempDir, high_water: HighWater) -> (Guard, LogStore, Machine) {
    let database = Database::open(&dir.path().join("db"), Access::Create).unwrap();
    let database = Arc::new(database);
    let (failure, metrics) = (Failure::default(), StoreMetrics::new());
    let (flusher, jobs) =
        Flusher::spawn(Arc::clone(&database), high_water, failure.clone(), metrics.clone())
            .unwrap();
    let size = Arc::new(Mutex::new(LogSize::default()));
    let machine = Machine::new(
        Arc::clone(&database),
        Image::new(),
        0,
        failure.clone(),
        metrics.clone(),
        chancery_secrets::Secrets::default(),
    );
    let (ends, ahead) = (Ends::default(), machine.ahead());
    let log = LogStore::new(database, jobs, ends, size, ahead, failure.clone(), metrics);
    (Guard { _dir: dir, flusher: Some(flusher), failure }, log, machine)
}

struct Direct;

impl StoreBuilder<Types, LogStore, Machine, Guard> for Direct {
    async fn build(&self) -> Result<(Guard, LogStore, Machine), StorageError<Types>> {
        Ok(build())
    }
}

/// Log, vote, state machine and snapshot satisfy openraft's contract.
#[tokio::test(flavor = "multi_thread")]
async fn storage_passes_the_openraft_suite() {
    Suite::test_all(Direct).await.unwrap();
}

/// A state machine that receives each snapshot encoded, as another replica would send it.
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
        let database = Arc::downgrade(&self.0.database());
        let mut decoder = Decoder::default().writing_to(database);
        for frame in data.encode(Contents::Include) {
            // Pieces that do not align with frames.
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

/// A snapshot that was encoded and decoded equals the original.
#[tokio::test(flavor = "multi_thread")]
async fn storage_passes_the_openraft_suite_with_encoded_snapshots() {
    Suite::test_all(OverTheWire).await.unwrap();
}
