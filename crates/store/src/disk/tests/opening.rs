//! Tests of the opening of sealed resources: records do not depend on the keys of a replica, and a key that arrives late
//! opens everything.

use std::{fs, fs::Permissions, os::unix::fs::PermissionsExt, path::Path, sync::Arc};

use bytes::Bytes;
use chancery_model::{Incarnation, ResourceDraft, Revision, State, Transaction, Upsert};
use chancery_secrets::{KekSource, Secrets};
use openraft::{EntryPayload, storage::RaftStateMachine};

use crate::{
    disk::{
        database::{Access, Database},
        digest::digest_of,
        image::Image,
        machine::Machine,
        preparer::Preparer,
        tests::durability::{form, key, records, scope, transacting},
        tests::persister::prepared,
    },
    failure::Failure,
    format::raft::Entry,
    metrics::StoreMetrics,
};

const KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
/// The number of secrets, which make a large entry.
const N_SECRETS: u64 = 3000;

fn write_key(path: &Path) {
    fs::write(path, KEY).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

fn secrets(path: &Path) -> Secrets {
    Secrets::new(vec![KekSource::File(path.to_owned())], false, |_, _| true)
}

fn machine(dir: &Path, secrets: Secrets) -> Machine {
    let database = Arc::new(Database::open(dir, Access::Create).unwrap());
    let (failure, metrics) = (Failure::default(), StoreMetrics::new());
    Machine::new(database, Image::new(), 0, failure, metrics, secrets)
}

async fn apply(machine: &Machine, entries: Vec<Entry>) {
    let entries = entries.into_iter().map(|entry| Ok((entry, None)));
    let entries = futures::stream::iter(entries.collect::<Vec<_>>());
    RaftStateMachine::apply(&mut machine.clone(), entries).await.unwrap();
    machine.published().stored_at(2).await;
}

/// Returns entries that form a cluster, create its keys, and write secrets.
async fn entries(author: &Secrets) -> [Entry; 3] {
    let keys = vec![author.create().await.unwrap()];
    let creates = Transaction { keys, ..Transaction::default() };
    let state = State::new(Incarnation(77)).apply(&creates).state;
    author.refresh(&state.keys).await;
    let upsert = |n: u64| {
        let body = Bytes::from(format!("secret {n}: {}", "x".repeat(200)));
        Upsert { scope: scope(), draft: ResourceDraft::new(key(&format!("s{n:04}")), body) }
    };
    let mut upserts: Vec<Upsert> = (0..N_SECRETS).map(upsert).collect();
    author.seal_all(&state.keys, &mut upserts).unwrap();
    let writes = Transaction { upserts, ..Transaction::default() };
    [form(0), transacting(1, creates), transacting(2, writes)]
}

fn frames(machine: &Machine) -> Vec<Bytes> {
    let state = machine.published().state();
    let collection = state.collection(&scope(), &key("s").type_url).unwrap();
    collection.resources.values().map(|resource| resource.delta_field()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn late_key_opens_what_was_applied_without_it() {
    let dir = tempfile::tempdir().unwrap();
    let (key, late_key) = (dir.path().join("key"), dir.path().join("late"));
    write_key(&key);
    let [form, creates, writes] = entries(&secrets(&key)).await;
    let with = machine(&dir.path().join("with"), secrets(&key));
    // The guess of the revision is wrong.
    apply(&with, vec![form.clone(), creates.clone(), prepared(writes.clone(), 7)]).await;
    let late = secrets(&late_key);
    let without = machine(&dir.path().join("without"), late.clone());
    apply(&without, vec![form, creates, writes]).await;
    let counts = |machine: &Machine| machine.published().state().n_sealed();
    assert_eq!(counts(&with), (N_SECRETS, 0));
    assert_eq!(counts(&without), (N_SECRETS, N_SECRETS));
    let (stored, other) = (with.published().stored(), without.published().stored());
    assert!(records(&stored) == records(&other), "the records depend on the keys of a replica");
    assert_eq!(
        (stored.computed.tally, digest_of(&stored)),
        (other.computed.tally, digest_of(&other))
    );
    let mut states = without.published().watch();
    states.mark_unchanged();
    without.open_sealed();
    assert!(!states.has_changed().unwrap(), "opened without a key");
    write_key(&late_key);
    late.refresh(&without.published().state().keys).await;
    without.open_sealed();
    assert!(states.has_changed().unwrap(), "nobody learns of the opened resources");
    assert_eq!(counts(&without), (N_SECRETS, 0));
    assert_eq!(without.published().state().revision, Revision(2));
    assert_eq!(frames(&without), frames(&with));
}

/// Decrypting many secrets takes long, so it must not delay later entries.
#[tokio::test(flavor = "multi_thread")]
async fn sealed_resources_of_a_large_entry_are_opened_before_its_turn() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    write_key(&key);
    let [form, creates, writes] = entries(&secrets(&key)).await;
    let keys = secrets(&key);
    let machine = machine(&dir.path().join("with"), keys.clone());
    let before = [form, creates].map(|entry| Ok((entry, None)));
    RaftStateMachine::apply(&mut machine.clone(), futures::stream::iter(before)).await.unwrap();
    let published = machine.published();
    let prepare = |secrets| {
        let EntryPayload::Normal(command) = &writes.payload else { panic!("{writes}") };
        Preparer::new(machine.published(), secrets).prepare(&command.bytes).unwrap()
    };
    let applied = published.state().apply_prepared(&mut prepare(keys).transaction);
    assert_eq!(applied.state.n_sealed(), (N_SECRETS, 0));
    assert_eq!(published.state().n_sealed(), (0, 0));
    apply(&machine, vec![writes.clone()]).await;
    let all = |state: &State| format!("{:?}", state.scopes);
    assert!(all(&applied.state) == all(&published.state()), "the states differ");
    // The state has the bodies now, so they need no key.
    let again = prepare(secrets(&dir.path().join("none")));
    let upserts = &again.transaction.transaction().upserts;
    assert!(upserts.iter().all(|upsert| !upsert.draft.body.is_empty()), "a body is missing");
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_resource_is_not_counted_as_unopened() {
    let dir = tempfile::tempdir().unwrap();
    let key_file = dir.path().join("key");
    write_key(&key_file);
    let entries = entries(&secrets(&key_file)).await;
    let without = machine(&dir.path().join("without"), secrets(&dir.path().join("none")));
    apply(&without, entries.into()).await;
    assert_eq!(without.published().newest().unopened.len() as u64, N_SECRETS);
    let deletes = vec![(scope(), key("s0000"))];
    let remove = transacting(3, Transaction { deletes, ..Transaction::default() });
    apply(&without, vec![remove]).await;
    let image = without.published().newest();
    assert_eq!(image.unopened.len() as u64, N_SECRETS - 1);
    assert_eq!(image.state.n_sealed(), (N_SECRETS - 1, N_SECRETS - 1));
}
