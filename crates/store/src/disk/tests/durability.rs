//! Tests of durability: what is on disk when the store acknowledges or publishes it, and what a
//! restart finds.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use chancery_model::{
    Incarnation, ResourceDraft, ResourceKey, ResourceName, Revision, ScopeName, Transaction,
    TypeUrl, Upsert,
};
use futures::StreamExt;
use openraft::{
    EntryPayload, RaftLogReader,
    alias::{OneshotOf, OneshotReceiverOf},
    async_runtime::Oneshot,
    storage::{IOFlushed, RaftLogStorage, RaftSnapshotBuilder, RaftStateMachine},
};
use parking_lot::Mutex;
use prost::Message;

use crate::{
    OpenError, OpenProgress, OpenStage,
    disk::{
        database::{Access, Batch, Database},
        digest::digest_of,
        directory::{Directory, DirectoryPurpose},
        flusher::Flusher,
        high_water::{HighWater, Mark},
        image::Image,
        log::{Ends, LogStore},
        log_size::LogSize,
        machine::Machine,
        parts::{Bootstrap, Parts},
        records::Record,
        recovery::{self, Recovered},
    },
    failpoint::Point,
    failure::Failure,
    format::{
        codec::{Command, command_to_proto},
        identity::Identity,
        keys::state_key,
        raft::{EncodedCommand, Entry, Types, Vote, log_id},
        record::Family,
    },
    metrics::StoreMetrics,
};

/// The time during which an event that must not happen is given the chance to happen.
const PATIENCE: Duration = Duration::from_millis(300);
/// The maximum time until the threads of a store end.
const DEADLINE: Duration = Duration::from_secs(60);

const IDENTITY: Identity =
    Identity { cluster_id: [9; 16], replica_id: 1, incarnation: Incarnation(77), instance: 5 };

/// The layers below Raft, in a directory that can be opened again.
pub(super) struct Store {
    directory: Directory,
    pub(super) database: Arc<Database>,
    pub(super) log: LogStore,
    pub(super) machine: Machine,
    flusher: Flusher,
    pub(super) failure: Failure,
}

impl Store {
    pub(super) fn create(path: &Path) -> Self {
        let (directory, _) = Directory::open(path, None).unwrap();
        directory.begin(IDENTITY, DirectoryPurpose::Replica).unwrap();
        let high_water = HighWater::create(&directory.high_water(), IDENTITY.cluster_id).unwrap();
        let database = Arc::new(Database::open(&directory.database(), Access::Create).unwrap());
        directory.finish(DirectoryPurpose::Replica).unwrap();
        let (failure, metrics) = (Failure::default(), StoreMetrics::new());
        let shared = Arc::clone(&database);
        let (flusher, jobs) =
            Flusher::spawn(shared, high_water, failure.clone(), metrics.clone()).unwrap();
        let size = Arc::new(Mutex::new(LogSize::default()));
        let shared = Arc::clone(&database);
        let secrets = chancery_secrets::Secrets::default();
        let machine =
            Machine::new(shared, Image::new(), 0, failure.clone(), metrics.clone(), secrets);
        let (shared, ends, ahead) = (Arc::clone(&database), Ends::default(), machine.ahead());
        let log = LogStore::new(shared, jobs, ends, size, ahead, failure.clone(), metrics);
        Self { directory, database, log, machine, flusher, failure }
    }

    /// Ends like a killed process: writes nothing more.
    pub(super) fn close(self) {
        let Self { directory, database, log, machine, flusher, .. } = self;
        drop(log);
        flusher.join().unwrap();
        drop(machine);
        close(database);
        drop(directory);
    }

    fn mark(&self) -> Mark {
        mark(self.directory.path())
    }

    pub(super) fn append(
        &mut self,
        entries: &[Entry],
    ) -> OneshotReceiverOf<Types, std::io::Result<()>> {
        let (sender, flushed) = OneshotOf::<Types>::channel();
        let appended = self.log.append(entries.to_vec(), IOFlushed::signal(sender));
        futures::FutureExt::now_or_never(appended).expect("an append does not wait").unwrap();
        flushed
    }

    pub(super) async fn apply(&mut self, entries: &[Entry]) -> std::io::Result<()> {
        let entries = entries.iter().cloned().map(|entry| Ok((entry, None)));
        self.machine.apply(futures::stream::iter(entries.collect::<Vec<_>>())).await
    }

    pub(super) async fn commit(&mut self, entries: &[Entry]) {
        self.append(entries).await.unwrap().unwrap();
        self.apply(entries).await.unwrap();
    }

    pub(super) fn image(&self) -> Image {
        self.machine.published().stored()
    }
}

pub(super) fn mark(path: &Path) -> Mark {
    HighWater::open_read_only(&path.join("HIGHWATER"), IDENTITY.cluster_id).unwrap().mark()
}

/// Closes a database, once the thread that writes the records of the state has ended.
pub(super) fn close(database: Arc<Database>) {
    let start = Instant::now();
    while Arc::strong_count(&database) > 1 {
        assert!(start.elapsed() < DEADLINE, "the database is still in use");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns what a start finds in a directory.
pub(super) fn found(path: &Path, mark: Mark) -> Result<Recovered, OpenError> {
    let (directory, identity) = Directory::open_existing(path).unwrap();
    recovery::read(&directory, identity, mark).map(|(_, recovered)| recovered)
}

pub(super) fn blank(term: u64, index: u64) -> Entry {
    Entry { log_id: log_id(term, index), payload: EntryPayload::Blank }
}

fn asking(index: u64, ask: &Command) -> Entry {
    let command = EncodedCommand::new(command_to_proto(ask).encode_to_vec().into());
    Entry { log_id: log_id(1, index), payload: EntryPayload::Normal(command) }
}

pub(super) fn form(index: u64) -> Entry {
    let Identity { cluster_id, incarnation, .. } = IDENTITY;
    asking(index, &Command::Form { cluster_id, incarnation })
}

pub(super) fn scope() -> ScopeName {
    ScopeName::new("default").unwrap()
}

pub(super) fn key(name: &str) -> ResourceKey {
    let type_url = TypeUrl::from_static("type.googleapis.com/a.B");
    ResourceKey { type_url, name: ResourceName::new(name).unwrap() }
}

pub(super) fn transacting(index: u64, transaction: Transaction) -> Entry {
    asking(
        index,
        &Command::Transact {
            transaction: Box::new(transaction),
            request: None,
            retention: crate::Retention::default(),
        },
    )
}

pub(super) fn put(index: u64, name: &str, body: &'static str) -> Entry {
    let draft = ResourceDraft::new(key(name), Bytes::from_static(body.as_bytes()));
    let upserts = vec![Upsert { scope: scope(), draft }];
    transacting(index, Transaction { upserts, ..Transaction::default() })
}

fn delete(index: u64, name: &str) -> Entry {
    let deletes = vec![(scope(), key(name))];
    transacting(index, Transaction { deletes, ..Transaction::default() })
}

/// A change that removes all resources of the scope: a short command with many records.
pub(super) fn delete_all(index: u64) -> Entry {
    let prune = vec![scope()];
    transacting(index, Transaction { prune, ..Transaction::default() })
}

pub(super) type Records = BTreeMap<(Family, Vec<u8>), Vec<u8>>;

pub(super) fn records(image: &Image) -> Records {
    image.records().map(|Record { family, key, record }| ((family, key), record)).collect()
}

/// A start counts every record of the log and the state, and knows their number before it reads them.
#[tokio::test]
async fn start_reports_every_record_that_it_reads() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::create(dir.path());
    store.commit(&[form(0), put(1, "a", "x"), put(2, "b", "y"), blank(1, 3)]).await;
    let mark = store.mark();
    store.close();
    let progress = OpenProgress::default();
    let (directory, identity) = Directory::open_existing(dir.path()).unwrap();
    assert_eq!(progress.stage(), OpenStage::Opening);
    let (_, recovered) = recovery::read_reporting(&directory, identity, mark, &progress).unwrap();
    let records = recovered.image.computed.tally.records;
    assert!(records > 4, "resources, index and history");
    let total = records + 4;
    assert_eq!(progress.stage(), OpenStage::Reading { read: total, total });
}

/// Entries are acknowledged when they are on disk and the high-water mark includes them. The mark
/// does not include them earlier.
#[tokio::test]
async fn entries_are_acknowledged_when_they_are_synced() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::create(dir.path());
    let database = Arc::clone(&store.database);
    let held = database.fail_points.hold(Point::Sync);
    let mut flushed = store.append(&[blank(1, 0), blank(1, 1)]);
    tokio::select! {
        biased;
        _ = &mut flushed => panic!("acknowledged before it was synced"),
        () = held.arrival() => {}
    }
    assert!(futures::FutureExt::now_or_never(&mut flushed).is_none(), "acknowledged too early");
    assert_eq!(store.mark().last, None, "the mark is ahead of the disk");
    drop(held);
    flushed.await.unwrap().unwrap();
    assert_eq!(store.mark().last, Some(log_id(1, 1)));
    drop(database);
    store.close();
}

/// Raft does not wait for the disk when it appends. Replication reads appended entries immediately.
/// They are applied when they are written, so that a power cut leaves no state ahead of the log.
#[tokio::test]
async fn entries_are_readable_at_once_and_applied_when_they_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::create(dir.path());
    // Too large to stay in memory.
    let command = EncodedCommand::new(Bytes::from(vec![7; 5 << 20]));
    let large = Entry { log_id: log_id(1, 0), payload: EntryPayload::Normal(command) };
    store.append(&[large]).await.unwrap().unwrap();
    let (database, mut log) = (Arc::clone(&store.database), store.log.clone());
    let held = database.fail_points.hold(Point::Write);
    let flushed = store.append(&[blank(1, 1), blank(1, 2)]);
    held.arrival().await;
    assert_eq!(log.limited_get_log_entries(0, 3).await.unwrap().len(), 1, "from the database");
    assert_eq!(log.limited_get_log_entries(1, 3).await.unwrap().len(), 2, "from memory");
    assert_eq!(log.try_get_log_entries(0..3).await.unwrap().len(), 3, "from both");
    let mut to_apply = Box::pin(log.entries_stream(1..3).await);
    let next = tokio::time::timeout(PATIENCE, to_apply.next()).await;
    assert!(next.is_err(), "an entry is applied before it is written");
    drop(held);
    assert_eq!(to_apply.next().await.unwrap().unwrap(), blank(1, 1));
    flushed.await.unwrap().unwrap();
    drop((to_apply, database));
    drop(log);
    store.close();
}

/// A vote is granted when it is on disk, and the next start finds it.
#[tokio::test]
async fn vote_is_granted_after_sync() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::create(dir.path());
    let (database, mut log) = (Arc::clone(&store.database), store.log.clone());
    let vote = Vote::new(3, 2);
    let held = database.fail_points.hold(Point::Sync);
    let mut saved = Box::pin(log.save_vote(&vote));
    tokio::select! {
        biased;
        _ = &mut saved => panic!("the vote was granted before it was synced"),
        () = held.arrival() => {}
    }
    assert_eq!((store.mark().vote, store.log.read_vote().await.unwrap()), (None, None));
    drop(held);
    saved.await.unwrap();
    assert_eq!(store.mark().vote, Some(vote));
    store.commit(&[form(0)]).await;
    drop((database, log));
    store.close();
    assert_eq!(found(dir.path(), mark(dir.path())).unwrap().ends.vote, Some(vote));
}

/// The queue is bounded even if callers stop waiting for their votes and truncations.
#[tokio::test]
async fn queued_votes_and_truncations_take_places_of_the_queue() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path());
    let (database, mut log) = (Arc::clone(&store.database), store.log.clone());
    let all = log.free_units();
    let held = database.fail_points.hold(Point::Sync);
    let vote = Vote::new(3, 2);
    let mut saved = Box::pin(log.save_vote(&vote));
    tokio::select! {
        biased;
        _ = &mut saved => panic!("the vote was granted before it was synced"),
        () = held.arrival() => {}
    }
    drop(saved);
    for _ in 0..3 {
        tokio::select! {
            biased;
            _ = log.save_vote(&vote) => panic!("the vote waits"),
            () = std::future::ready(()) => {}
        }
        tokio::select! {
            biased;
            _ = log.truncate_after(None) => panic!("the truncation waits"),
            () = std::future::ready(()) => {}
        }
    }
    assert_eq!(log.free_units(), all - 7);
    drop(held);
    // The answer to the last job follows the end of all others.
    log.truncate_after(None).await.unwrap();
    assert_eq!(log.free_units(), all);
    drop((database, log));
    store.close();
}

/// A successful sync after a failed one does not prove that the lost data is on disk.
#[tokio::test]
async fn failed_sync_stops_all_acknowledgments() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::create(dir.path());
    store.append(&[blank(1, 0)]).await.unwrap().unwrap();
    let database = Arc::clone(&store.database);
    let broken = database.fail_points.fail(Point::Sync);
    assert!(store.append(&[blank(1, 1)]).await.unwrap().is_err());
    drop(broken);
    assert!(store.append(&[blank(1, 2)]).await.unwrap().is_err(), "the disk works again");
    assert!(store.log.save_vote(&Vote::new(9, 1)).await.is_err());
    assert_eq!(store.mark(), Mark { last: Some(log_id(1, 0)), vote: None });
    assert!(store.failure.get().unwrap().contains("cannot be synced"));
    drop(database);
    store.close();
}

/// Truncated entries, which another leader did not have, are gone for readers, for the next start,
/// and for the high-water mark. The mark is lowered first.
#[tokio::test(flavor = "multi_thread")]
async fn truncated_entries_do_not_return() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::create(dir.path());
    store.commit(&[form(0)]).await;
    let entries: Vec<Entry> = (1..=5).map(|index| blank(1, index)).collect();
    store.append(&entries).await.unwrap().unwrap();
    let (database, mut log) = (Arc::clone(&store.database), store.log.clone());
    let held = database.fail_points.hold(Point::Write);
    let truncated = tokio::spawn(async move { log.truncate_after(Some(log_id(1, 3))).await });
    held.arrival().await;
    assert_eq!(
        store.mark().last,
        Some(log_id(1, 3)),
        "the mark includes entries that the log will lack"
    );
    drop(held);
    truncated.await.unwrap().unwrap();
    assert!(store.log.try_get_log_entries(4..6).await.unwrap().is_empty());
    assert_eq!(store.log.try_get_log_entries(..).await.unwrap().len(), 4);
    store.append(&[blank(2, 4)]).await.unwrap().unwrap();
    let read = store.log.try_get_log_entries(3..).await.unwrap();
    assert_eq!(read, [blank(1, 3), blank(2, 4)]);
    drop(database);
    store.close();
    let ends = found(dir.path(), mark(dir.path())).unwrap().ends;
    assert_eq!(ends.last, Some(log_id(2, 4)));
}

/// Committed entries take effect in log order, each once.
#[tokio::test]
async fn entries_are_applied_in_the_order_of_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::create(dir.path());
    let entries =
        [form(0), put(1, "a", "old"), put(2, "a", "new"), delete(3, "b"), put(4, "b", "x")];
    store.commit(&entries).await;
    let image = store.image();
    assert_eq!((image.applied, image.state.revision), (Some(log_id(1, 4)), Revision(3)));
    let resource = image.state.get(&scope(), &key("a")).unwrap();
    assert_eq!(
        (resource.body().unwrap(), resource.version().revision),
        ("new".into(), Revision(2))
    );
    assert!(image.state.get(&scope(), &key("b")).is_some());
    store.close();
}

/// Durable before visible.
#[tokio::test]
async fn state_that_cannot_be_stored_is_not_published() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::create(dir.path());
    store.commit(&[form(0), put(1, "a", "1")]).await;
    store.append(&[put(2, "a", "2")]).await.unwrap().unwrap();
    let (database, states) = (Arc::clone(&store.database), store.machine.published().watch());
    let broken = database.fail_points.fail(Point::Write);
    assert!(store.apply(&[put(2, "a", "2")]).await.is_err());
    drop(broken);
    assert_eq!(states.borrow().revision, Revision(1));
    assert_eq!(store.image().applied, Some(log_id(1, 1)));
    drop(database);
    store.close();
}

/// A power cut may leave any part of the write-ahead log. A restarted replica then loads a state that
/// existed at one index of the Raft log, and applies the later entries to it.
#[tokio::test]
async fn power_cut_leaves_an_earlier_state() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::create(dir.path());
    let mut states = vec![Records::new()];
    let entries = [
        form(0),
        put(1, "a", "1"),
        put(2, "b", "2"),
        put(3, "a", "3"),
        delete(4, "b"),
        blank(1, 5),
    ];
    for entry in entries {
        store.commit(&[entry]).await;
        states.push(records(&store.image()));
    }
    store.close();
    let at = |id: Option<crate::format::raft::LogId>| -> &Records {
        &states[id.map_or(0, |id| usize::try_from(id.index).unwrap() + 1)]
    };
    let wal = fs::read_dir(dir.path().join("db")).unwrap().map(|entry| entry.unwrap().path());
    let wal = wal.filter(|path| path.extension().is_some_and(|end| end == "log")).max().unwrap();
    let content = fs::read(&wal).unwrap();
    let mut n_states = 0;
    for cut in record_ends(&content) {
        fs::write(&wal, &content[..cut]).unwrap();
        // The mark may be an earlier one, too: it is synced less often.
        let (directory, identity) = Directory::open_existing(dir.path()).unwrap();
        let (database, recovered) = match recovery::read(&directory, identity, Mark::default()) {
            Ok(read) => read,
            Err(error) => {
                assert_eq!(n_states, 0, "cut to {cut} of {} bytes: {error}", content.len());
                continue;
            }
        };
        n_states += 1;
        let Recovered { mut image, ends, .. } = recovered;
        assert!(records(&image) == *at(image.applied), "cut to {cut} bytes: another state");
        recovery::apply_rest(dir.path(), &database, &mut image).unwrap();
        assert_eq!(image.applied, ends.last);
        assert!(records(&image) == *at(ends.last), "cut to {cut} bytes: another state, later");
    }
    assert!(n_states > 10, "{n_states}");
}

/// Returns the ends of the records in a log file of RocksDB: checksum (4), length (2), type (1),
/// content.
fn record_ends(content: &[u8]) -> Vec<usize> {
    let mut ends = vec![0];
    while let Some(header) = content.get(ends[ends.len() - 1]..).and_then(|rest| rest.get(..7)) {
        let len = usize::from(u16::from_le_bytes([header[4], header[5]]));
        ends.push(ends[ends.len() - 1] + 7 + len);
    }
    assert!(content.len() < 32 << 10, "the file is one block");
    assert_eq!(ends.last(), Some(&content.len()));
    ends
}

/// A start that finds another vote than the acknowledged one is refused.
#[tokio::test]
async fn lost_vote_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::create(dir.path());
    store.commit(&[form(0)]).await;
    store.log.save_vote(&Vote::new(5, 2)).await.unwrap();
    store.close();
    let acknowledged = mark(dir.path());
    assert!(found(dir.path(), acknowledged).is_ok());
    for later in [Vote::new(6, 2), Vote::new(5, 3), Vote::new_committed(5, 2)] {
        let error = found(dir.path(), Mark { vote: Some(later), ..acknowledged }).unwrap_err();
        assert!(error.to_string().contains("the vote"), "{error}");
    }
}

/// A snapshot replaces all earlier records, including those of an interrupted attempt, and is on
/// disk when it is acknowledged.
#[tokio::test]
async fn installed_snapshot_replaces_all_records() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut leader = Store::create(from.path());
    leader.commit(&[form(0), put(1, "a", "1"), put(2, "b", "2"), delete(3, "a")]).await;
    let snapshot = leader.machine.build_snapshot().await.unwrap();
    let (expected, digest) = (records(&leader.image()), digest_of(&leader.image()));
    assert_eq!(snapshot.meta.last_log_id, Some(log_id(1, 3)));
    leader.close();

    let mut store = Store::create(to.path());
    store.commit(&[form(0), put(1, "a", "1")]).await;
    let database = Arc::clone(&store.database);
    let mut batch = Batch::default();
    for (family, key) in expected.keys() {
        database.put(&mut batch, *family, &state_key(1, &[&key[..], b"x"].concat()), b"left over");
    }
    database.write(batch).unwrap();
    let held = database.fail_points.hold(Point::Sync);
    let mut machine = store.machine.clone();
    let meta = snapshot.meta.clone();
    let mut installed = Box::pin(machine.install_snapshot(&meta, snapshot.snapshot));
    tokio::select! {
        biased;
        _ = &mut installed => panic!("acknowledged before it was synced"),
        () = held.arrival() => {}
    }
    drop(held);
    installed.await.unwrap();
    assert!(records(&store.image()) == expected, "another state is published");
    assert_eq!(store.machine.digests().at(3), digest, "L13: the digest is that of the leader");
    store.log.purge(log_id(1, 3)).await.unwrap();
    // Later entries apply to the installed state.
    store.commit(&[put(4, "c", "4")]).await;
    let later = records(&store.image());
    drop((machine, database));
    store.close();
    let recovered = found(to.path(), mark(to.path())).unwrap();
    assert!(records(&recovered.image) == later, "another state is found");
    assert_eq!(recovered.image.n_resources, 2);
}

/// A replica that joins without data stores the leader's vote before it can be asked for a vote: it
/// may have voted in that term before.
#[test]
fn joining_replica_stores_the_vote_of_the_leader() {
    let dir = tempfile::tempdir().unwrap();
    let vote = Vote::new_committed(7, 2);
    let (directory, _) = Directory::open(dir.path(), None).unwrap();
    let beginning = Bootstrap::Joined { identity: IDENTITY, vote };
    let parts = Parts::begin(directory, beginning, IDENTITY.replica_id).unwrap();
    assert_eq!(parts.recovered.ends.vote, Some(vote));
    let key = crate::format::keys::VOTE_KEY;
    let stored = parts.database.get(Family::Meta, key).unwrap().expect("the vote is stored");
    let stored = crate::format::record::open(Family::Meta, key, stored).unwrap();
    assert_eq!(crate::format::raft_codec::vote_from_proto(&stored), vote);
}
