//! Tests of large changes: they are visible before they are stored, and prepared before their turn. Neither may
//! change the result.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use chancery_model::{ResourceDraft, Revision, Transaction, Upsert};
use openraft::{EntryPayload, storage::RaftSnapshotBuilder};
use tokio::time::timeout;

use crate::{
    disk::{
        database::{Access, Database},
        digest::digest_of,
        directory::Directory,
        image::Image,
        machine::Machine,
        persister::{Job, Parts, Persister},
        published::Published,
        recovery::{self, Recovered},
        state_writer::{self, staged},
        tests::durability::{
            Records, Store, close, delete_all, form, found, key, mark, put, records, scope,
            transacting,
        },
        tests::joining::Copies,
    },
    failpoint::{self, Point, Step},
    failure::Failure,
    format::{
        packed::pack,
        prepared::{Preparation, Prepared},
        raft::{EncodedCommand, Entry, log_id},
    },
    metrics::StoreMetrics,
};

const PATIENCE: Duration = Duration::from_secs(60);
/// The number of resources of a large change, whose records take several pieces.
const N_RESOURCES: usize = 6000;

/// A large change: resources whose bodies have 400 bytes of the given value.
fn put_many(index: u64, value: u8) -> Entry {
    put_named(index, "r", N_RESOURCES, value)
}

/// A change of `n` resources whose names begin with `prefix`, and whose bodies have 400 bytes of the given value.
fn put_named(index: u64, prefix: &str, n: usize, value: u8) -> Entry {
    let upsert = |n: usize| {
        let body = Bytes::from(vec![value; 400]);
        Upsert { scope: scope(), draft: ResourceDraft::new(key(&format!("{prefix}{n:05}")), body) }
    };
    let upserts = (0..n).map(upsert).collect();
    transacting(index, Transaction { upserts, ..Transaction::default() })
}

/// Returns the entry as a leader appends it: prepared and compressed.
pub(super) fn prepared(entry: Entry, revision: u64) -> Entry {
    let EntryPayload::Normal(command) = entry.payload else { return entry };
    let prepared = Prepared::new(&command.bytes, Revision(revision), |_| ()).unwrap();
    let preparation = Arc::new(Preparation::done(prepared));
    let packed = pack(&command.bytes);
    let command = EncodedCommand::with(command.bytes, preparation).packed_as(packed);
    let payload = EntryPayload::Normal(command);
    Entry { log_id: entry.log_id, payload }
}

/// Returns the records of the state after entries that are applied one by one, in memory.
pub(super) fn expected(entries: &[Entry]) -> (Records, Image) {
    let mut image = Image::new();
    for entry in entries {
        image.apply_entry(entry.clone(), &mut |_| {}).unwrap();
    }
    (records(&image), image)
}

/// The entries behind a large change do not wait for its records. Raft purges the log up to a snapshot, so a
/// snapshot includes stored entries only.
#[tokio::test(flavor = "multi_thread")]
async fn large_change_is_visible_before_it_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::create(dir.path());
    store.commit(&[form(0)]).await;
    let entries = [put_many(1, 1), put(2, "small", "2")];
    store.append(&entries).await.unwrap().unwrap();
    let (database, published) = (Arc::clone(&store.database), store.machine.published());
    let held = database.fail_points.hold(Point::Write);
    store.apply(&[prepared(entries[0].clone(), 1)]).await.unwrap();
    held.arrival().await;
    store.apply(&entries[1..]).await.unwrap();
    assert_eq!((published.applied(), published.stored_index()), (2, 0));
    assert_eq!(published.state().revision, Revision(2));
    assert_eq!(published.state().len(), N_RESOURCES + 1);
    let snapshot = store.machine.build_snapshot().await.unwrap();
    assert_eq!(snapshot.meta.last_log_id, Some(log_id(1, 0)));
    assert_eq!(store.machine.digests().at(2), None, "the digest follows from the records");
    drop(held);
    let stored = published.stored_at(2).await;
    let (records_expected, expected) = expected(&[form(0), entries[0].clone(), entries[1].clone()]);
    assert!(records(&stored) == records_expected, "another state is stored");
    assert_eq!(
        (stored.computed.tally, digest_of(&stored)),
        (expected.computed.tally, digest_of(&expected))
    );
    assert_eq!(store.machine.digests().at(2), digest_of(&expected));
    let snapshot = store.machine.build_snapshot().await.unwrap();
    assert_eq!(snapshot.meta.last_log_id, Some(log_id(1, 2)));
    drop((published, database));
    store.close();
    let recovered = found(dir.path(), mark(dir.path())).unwrap();
    assert!(records(&recovered.image) == records_expected, "another state is found");
}

/// The limit of the queue does not count the change that is being written. Later changes wait only for space.
#[tokio::test(flavor = "multi_thread")]
async fn queue_is_limited_without_the_change_that_is_being_written() {
    const EXCESSIVE: usize = 65 << 20;
    let dir = tempfile::tempdir().unwrap();
    let database = Arc::new(Database::open(dir.path(), Access::Create).unwrap());
    let mut image = Image::new();
    let published = Published::new(image.clone());
    let (digests, failure) = (Arc::default(), Failure::default());
    let parts = Parts { published: published.clone(), digests, failure };
    let persister = Persister::new(Arc::clone(&database), 0, parts);
    let mut job = |entry: Entry, bytes| {
        let applied = entry.log_id;
        let (_, effect) = image.advance(entry).unwrap();
        let (incarnation, revision) = (image.state.incarnation, image.state.revision);
        let steps = vec![state_writer::Step { applied, incarnation, revision, effect }];
        Job { image: image.clone(), steps, bytes, is_large: bytes == EXCESSIVE }
    };
    let add = |job| {
        let persister = persister.clone();
        tokio::task::spawn_blocking(move || {
            let later = persister.persist(job).unwrap().expect("the change was written at once");
            persister.persist_later(later);
        })
    };
    let held = database.fail_points.hold(Point::Write);
    add(job(form(0), EXCESSIVE)).await.unwrap();
    held.arrival().await;
    for (index, bytes) in [(1, 10), (2, 10)] {
        let added = add(job(put(index, "a", "1"), bytes));
        timeout(PATIENCE, added).await.expect("a later change waits for the large one").unwrap();
    }
    let mut waits = add(job(put(3, "a", "2"), EXCESSIVE));
    assert!(
        timeout(Duration::from_millis(200), &mut waits).await.is_err(),
        "the queue exceeds its limit"
    );
    drop(held);
    timeout(PATIENCE, waits).await.expect("the change waits, although the queue is empty").unwrap();
    assert_eq!(published.stored_at(3).await.applied, Some(log_id(1, 3)));
}

/// Nothing is stored after a change that cannot be stored. The change itself stays visible: it is committed, and a
/// restart applies it again.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_stored_after_a_large_change_that_cannot_be_stored() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::create(dir.path());
    store.commit(&[form(0)]).await;
    let entries = [put_many(1, 1), put(2, "small", "2"), put(3, "small", "3")];
    store.append(&entries).await.unwrap().unwrap();
    let (database, published) = (Arc::clone(&store.database), store.machine.published());
    let held = database.fail_points.hold(Point::Write);
    store.apply(&entries[..1]).await.unwrap();
    store.apply(&entries[1..2]).await.unwrap();
    let broken = database.fail_points.fail(Point::Write);
    while store.failure.get().is_none() {
        tokio::task::yield_now().await;
    }
    drop((broken, held));
    assert!(store.apply(&entries[2..]).await.is_err(), "the disk works again");
    assert_eq!((published.applied(), published.stored_index()), (2, 0));
    drop((published, database));
    store.close();
    let (database, mut recovered) = {
        let (directory, identity) = Directory::open_existing(dir.path()).unwrap();
        recovery::read(&directory, identity, mark(dir.path())).unwrap()
    };
    assert_eq!(recovered.image.applied, Some(log_id(1, 0)));
    recovery::apply_rest(dir.path(), &database, &mut recovered.image).unwrap();
    assert_eq!(recovered.image.applied, Some(log_id(1, 3)));
}

/// A process may end before any write of a large change, and a power cut may discard unsynced data. Whatever is
/// left, a restart finds the state at one entry, and continues from it to the same state.
#[tokio::test(flavor = "multi_thread")]
async fn crash_at_any_write_of_a_large_change_leaves_a_state_of_one_entry() {
    let (dir, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut store = Store::create(dir.path());
    let (first, second) = (prepared(put_many(1, 1), 1), prepared(put_many(2, 2), 1));
    let all = [form(0), first, second, delete_all(3), put(4, "r00001", "4")];
    store.commit(&all[..2]).await;
    store.machine.published().stored_at(1).await;
    store.append(&all[2..]).await.unwrap().unwrap();
    let (copies, watched) = Copies::watch(dir.path(), to.path());
    // From here on, the copies know what is synced.
    store.database.sync().unwrap();
    let n_before = copies.all().len();
    for index in 2..=4 {
        store.apply(&all[index..=index]).await.unwrap();
        store.machine.published().stored_at(index as u64).await;
    }
    drop(watched);
    store.close();
    let states: Vec<Records> = (1..=all.len()).map(|n| expected(&all[..n]).0).collect();
    let mut found_at = [0; 5];
    for copy in copies.all().split_off(n_before) {
        let (directory, identity) = Directory::open_existing(&copy).unwrap();
        let shown = copy.display();
        let (database, recovered) = recovery::read(&directory, identity, mark(&copy))
            .unwrap_or_else(|error| panic!("{shown}: {error}"));
        let Recovered { mut image, generation, .. } = recovered;
        let applied = usize::try_from(image.applied.unwrap().index).unwrap();
        found_at[applied] += 1;
        assert!(records(&image) == states[applied], "{shown}: another state at entry {applied}");
        recovery::apply_rest(&copy, &database, &mut image).unwrap();
        assert!(records(&image) == states[4], "{shown}: another state at the end");
        drop((database, directory));
        continue_from(&copy, generation, &all[applied + 1..], 4).await;
        let image = found(&copy, mark(&copy)).unwrap().image;
        assert!(records(&image) == states[4], "{shown}: another state is stored at the end");
    }
    assert!(found_at[1] >= 4 && found_at[2] >= 4 && found_at[3] >= 1, "{found_at:?}");
}

/// Continues to apply entries in a directory, as a restarted replica does, until the entry `last` is stored.
async fn continue_from(path: &Path, generation: u32, entries: &[Entry], last: u64) {
    let image = found(path, mark(path)).unwrap().image;
    let database = Arc::new(Database::open(&path.join("db"), Access::ReadWrite).unwrap());
    let (failure, metrics) = (Failure::default(), StoreMetrics::new());
    let secrets = chancery_secrets::Secrets::default();
    let mut machine =
        Machine::new(Arc::clone(&database), image, generation, failure, metrics, secrets);
    let entries: Vec<_> = entries.iter().cloned().map(|entry| Ok((entry, None))).collect();
    openraft::storage::RaftStateMachine::apply(&mut machine, futures::stream::iter(entries))
        .await
        .unwrap();
    machine.published().stored_at(last).await;
    drop(machine);
    close(database);
}

/// Several entries are written together, and a crash interrupts the write after a piece. A restarted replica may write
/// only the first of these entries. If the staged records of the other entries remained, recovery would add them to a
/// state that precedes these entries.
#[tokio::test(flavor = "multi_thread")]
async fn large_change_stores_no_staged_record_of_an_interrupted_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::create(dir.path());
    // The first piece has all records of the first change, and some of the second one.
    let all = [form(0), put_named(1, "first", 1300, 1), put_named(2, "second", 1000, 1)];
    store.commit(&all[..1]).await;
    store.append(&all[1..]).await.unwrap().unwrap();
    let n_changes = AtomicUsize::new(0);
    let crash = failpoint::watch(dir.path(), move |step| {
        // A piece is written and synced. The next batch would make it valid.
        if step == Step::Change && n_changes.fetch_add(1, Ordering::SeqCst) >= 2 {
            Err(io::Error::other("killed"))
        } else {
            Ok(())
        }
    });
    store.apply(&all[1..]).await.unwrap();
    while store.failure.get().is_none() {
        tokio::task::yield_now().await;
    }
    drop(crash);
    let is_of = |name: &[u8], key: &[u8]| key.windows(name.len()).any(|part| part == name);
    let left: Vec<Bytes> = staged(&store.database).map(|item| item.unwrap().1).collect();
    for name in [&b"first"[..], b"second"] {
        assert!(left.iter().any(|key| is_of(name, key)), "the crash has left too little");
    }
    store.close();

    continue_from(dir.path(), 0, &all[1..2], 1).await;
    let image = found(dir.path(), mark(dir.path())).unwrap().image;
    assert_eq!(image.applied, Some(log_id(1, 1)));
    assert!(records(&image) == expected(&all[..2]).0, "a record of the interrupted write is found");
    continue_from(dir.path(), 0, &all[2..], 2).await;
    let image = found(dir.path(), mark(dir.path())).unwrap().image;
    assert!(records(&image) == expected(&all).0, "another state is stored at the end");
}

/// L13: preparing a command before its turn changes neither its outcome, nor a record, nor the digest.
#[test]
fn prepared_entries_have_the_same_effect_as_others() {
    let entries = [
        form(0),
        put_many(1, 1),
        put(2, "r00007", "2"),
        put_many(3, 2),
        delete_all(4),
        put_many(5, 1),
    ];
    let (mut direct, mut ahead) = (Image::new(), Image::new());
    for (entry, guess) in entries.into_iter().zip([0, 1, 1, 3, 40, 5]) {
        let expected = direct.apply_entry(entry.clone(), &mut |_| {}).unwrap();
        let entry = if guess == 0 { entry } else { prepared(entry, guess) };
        assert_eq!(ahead.apply_entry(entry, &mut |_| {}).unwrap(), expected);
        assert_eq!(
            (ahead.computed.tally, digest_of(&ahead)),
            (direct.computed.tally, digest_of(&direct))
        );
        assert!(records(&ahead) == records(&direct), "the records differ");
        let (all, others) = (format!("{:?}", direct.state), format!("{:?}", ahead.state));
        assert!(all == others, "the states differ");
    }
}
