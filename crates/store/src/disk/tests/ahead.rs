//! Tests of large entries that are applied early: readers do not notice, and no result changes.

use std::{slice, sync::Arc, time::Duration};

use bytes::Bytes;
use chancery_model::{ResourceDraft, Revision, State, Transaction, Upsert};
use openraft::{EntryPayload, storage::RaftLogStorage};

use proptest::prelude::*;

use crate::{
    disk::{
        database::Deleted,
        digest::digest_of,
        tests::durability::{
            Store, delete_all, form, found, key, mark, put, records, scope, transacting,
        },
        tests::persister::{expected, prepared},
    },
    failpoint::Point,
    format::{
        raft::{Entry, log_id},
        raft_codec::log_key,
        record::Family,
    },
};

const PATIENCE: Duration = Duration::from_secs(60);

/// A large change: resources whose bodies have 800 bytes of the given value.
fn put_large(index: u64, value: u8) -> Entry {
    let upsert = |n: usize| {
        let body = Bytes::from(vec![value; 800]);
        Upsert { scope: scope(), draft: ResourceDraft::new(key(&format!("r{n:05}")), body) }
    };
    let upserts = (0..800).map(upsert).collect();
    transacting(index, Transaction { upserts, ..Transaction::default() })
}

/// Returns the state after an entry that is applied early, once the result exists.
async fn state_ahead(store: &Store, index: u64) -> State {
    let ahead = store.machine.ahead();
    let applied = async {
        loop {
            match ahead.state_at(index) {
                Some(state) => return state,
                None => tokio::task::yield_now().await,
            }
        }
    };
    tokio::time::timeout(PATIENCE, applied).await.expect("the entry is not applied ahead")
}

fn is_prepared(entry: &Entry) -> bool {
    matches!(&entry.payload, EntryPayload::Normal(command) if command.is_prepared())
}

/// L13: durable, then visible.
#[tokio::test(flavor = "multi_thread")]
async fn large_entry_is_applied_while_it_is_written_and_visible_in_its_turn() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::create(dir.path());
    store.commit(&[form(0)]).await;
    let (database, published) = (Arc::clone(&store.database), store.machine.published());
    let held = database.fail_points.hold(Point::Write);
    let large = prepared(put_large(1, 1), 7);
    let flushed = store.append(slice::from_ref(&large));
    let ahead = state_ahead(&store, 1).await;
    assert_eq!(ahead.revision, Revision(1));
    drop(held);
    flushed.await.unwrap().unwrap();
    assert_eq!(published.applied(), 0, "it is visible before its turn");
    assert!(published.state().is_empty(), "it is visible before its turn");
    assert!(is_prepared(&large), "the log may drop it from memory before its turn");
    store.apply(slice::from_ref(&large)).await.unwrap();
    assert!(published.state().scopes.ptr_eq(&ahead.scopes), "it was applied again");
    assert!(!is_prepared(&large), "the log keeps it in memory");
    let (records_expected, expected) = expected(&[form(0), large]);
    let stored = published.stored_at(1).await;
    assert!(records(&stored) == records_expected, "another state is stored");
    assert_eq!(digest_of(&stored), digest_of(&expected));
    drop((published, database));
    store.close();
}

/// A message to another replica, whose length is limited, has the entries of one read.
#[tokio::test(flavor = "multi_thread")]
async fn read_from_the_database_is_limited_by_the_length_of_plain_commands() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::create(dir.path());
    store.commit(&[form(0)]).await;
    for index in 1..=3 {
        let large = prepared(put_large(index, 1), index);
        store.append(slice::from_ref(&large)).await.unwrap().unwrap();
    }
    let first = log_key(1);
    let records = store.database.scan(Family::Log, &first, None, Deleted::Skip);
    let stored: usize = records.map(|record| record.unwrap().1.len()).sum();
    assert!(stored < 600_000, "the commands are not compressed: {stored} bytes");
    let read = store.log.read_database(1, 4, 1 << 20).unwrap();
    assert_eq!(read.iter().map(|entry| entry.log_id.index).collect::<Vec<_>>(), [1]);
    store.close();
}

/// The effect of an entry depends on the entries before it.
#[tokio::test(flavor = "multi_thread")]
async fn large_entry_waits_for_the_entries_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::create(dir.path());
    store.commit(&[form(0)]).await;
    let published = store.machine.published();
    let large = prepared(put_large(2, 1), 1);
    let entries = [put(1, "before", "1"), large];
    store.append(&entries[..1]).await.unwrap().unwrap();
    store.append(&entries[1..]).await.unwrap().unwrap();
    assert!(store.machine.ahead().state_at(2).is_none(), "it was applied before entry 1");
    store.apply(&entries[..1]).await.unwrap();
    let ahead = state_ahead(&store, 2).await;
    assert_eq!((ahead.revision, published.state().revision), (Revision(2), Revision(1)));
    store.apply(&entries[1..]).await.unwrap();
    assert!(published.state().scopes.ptr_eq(&ahead.scopes), "it was applied again");
    drop(published);
    store.close();
}

/// Opening a secret publishes an image again. A result that was made of the image before lacks the opened secret.
#[tokio::test(flavor = "multi_thread")]
async fn entry_is_applied_in_its_turn_if_the_published_image_was_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::create(dir.path());
    store.commit(&[form(0)]).await;
    let published = store.machine.published();
    let large = prepared(put_large(1, 1), 1);
    store.append(slice::from_ref(&large)).await.unwrap().unwrap();
    let ahead = state_ahead(&store, 1).await;
    published.publish(published.newest());
    store.apply(slice::from_ref(&large)).await.unwrap();
    assert!(!published.state().scopes.ptr_eq(&ahead.scopes), "the result was used");
    assert!(format!("{:?}", published.state()) == format!("{ahead:?}"), "the states differ");
    drop(published);
    store.close();
}

/// A step of a log, and of applying it.
#[derive(Debug, Clone)]
struct Step {
    kind: u8,
    body: u8,
    /// The revision for which a large entry is prepared.
    guess: u64,
    /// Whether the step waits until the entry is applied early.
    waits: bool,
    action: Action,
}

#[derive(Debug, Clone)]
enum Action {
    /// Applies all entries that are not applied.
    Apply,
    /// Leaves the entry for later.
    Leave,
    /// Publishes the image again, and applies all entries.
    Publish,
    /// Replaces the entries that are not applied, as those of another leader do.
    Truncate,
}

impl Step {
    fn entry(&self, term: u64, index: u64) -> Entry {
        let entry = match self.kind {
            0 => put(index, "r00003", "small"),
            1 => delete_all(index),
            2 => put_large(index, self.body),
            _ => prepared(put_large(index, self.body), self.guess),
        };
        Entry { log_id: log_id(term, index), ..entry }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let action = prop_oneof![
        4 => Just(Action::Apply),
        2 => Just(Action::Leave),
        1 => Just(Action::Publish),
        1 => Just(Action::Truncate),
    ];
    let step = (0..6_u8, 0..3_u8, 0..40_u64, any::<bool>(), action);
    let step = step.prop_map(|(kind, body, guess, waits, action)| Step {
        kind,
        body,
        guess,
        waits,
        action,
    });
    prop::collection::vec(step, 10..20)
}

async fn run(steps: Vec<Step>) {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::create(dir.path());
    store.commit(&[form(0)]).await;
    let published = store.machine.published();
    let (mut log, mut term) = (vec![form(0)], 1);
    for step in steps {
        let (index, n_applied) = (log.len(), published.applied() + 1);
        let entry = step.entry(term, index as u64);
        store.append(slice::from_ref(&entry)).await.unwrap().unwrap();
        if step.waits && is_prepared(&entry) && n_applied == index as u64 {
            state_ahead(&store, n_applied).await;
        }
        log.push(entry);
        let n_applied = usize::try_from(n_applied).unwrap();
        match step.action {
            Action::Leave => continue,
            Action::Truncate => {
                log.truncate(n_applied);
                let last = log.last().map(|entry| entry.log_id);
                store.log.truncate_after(last).await.unwrap();
                term += 1;
            }
            Action::Publish => published.publish(published.newest()),
            Action::Apply => {}
        }
        store.apply(&log[n_applied..]).await.unwrap();
    }
    let n_applied = published.applied() + 1;
    store.apply(&log[usize::try_from(n_applied).unwrap()..]).await.unwrap();
    let (records_expected, expected) = expected(&log);
    let stored = published.stored_at(log.len() as u64 - 1).await;
    assert!(records(&stored) == records_expected, "another state is stored");
    assert_eq!(digest_of(&stored), digest_of(&expected));
    let (all, others) = (format!("{:?}", stored.state), format!("{:?}", expected.state));
    assert!(all == others, "the states differ");
    drop(published);
    store.close();
    let recovered = found(dir.path(), mark(dir.path())).unwrap();
    assert!(records(&recovered.image) == records_expected, "another state is found");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..Default::default() })]

    /// Entries that are applied early never change the result of the log.
    #[test]
    fn entries_applied_ahead_have_the_effect_of_the_log(steps in steps()) {
        tokio::runtime::Runtime::new().unwrap().block_on(run(steps));
    }
}
