//! Sealed resources: what a replica without keys makes of a transaction is what a replica with keys makes of it.

use bytes::Bytes;
use chancery_model::{
    ChangeKind, DataKey, DataKeyId, Incarnation, KeyOp, KeysRefusal, Outcome, Refusal, Reseal,
    ResourceDraft, ResourceKey, ResourceName, ScopeName, Sealed, SealingId, State, Transaction,
    TypeUrl, Upsert, WrappedKey,
};
use proptest::prelude::*;

fn scope() -> ScopeName {
    ScopeName::new("mesh").unwrap()
}

fn key(name: &str) -> ResourceKey {
    let type_url = TypeUrl::from_static("type.googleapis.com/x.Secret");
    ResourceKey { type_url, name: ResourceName::new(name).unwrap() }
}

/// A sealed form of a body. `salt` stands for what differs between two forms of one body.
fn sealed(id: u32, body: &[u8], salt: u8) -> Sealed {
    let mut mac = [0; 32];
    mac[..body.len()].copy_from_slice(body);
    mac[31] = u8::try_from(body.len()).unwrap();
    let bytes = Bytes::from([&[salt], body].concat());
    Sealed { key: DataKeyId(id), mac, body_len: u32::try_from(body.len()).unwrap(), bytes }
}

fn draft(name: &str, id: u32, body: &[u8], salt: u8) -> ResourceDraft {
    // As it comes from the log: without the plain body.
    let sealed = Some(sealed(id, body, salt));
    ResourceDraft { sealed, ..ResourceDraft::new(key(name), Bytes::new()) }
}

fn data_key(id: u32) -> DataKey {
    DataKey { id: DataKeyId(id), wrapped: wrapped("kek"), created_ms: 0 }
}

fn wrapped(kek: &str) -> WrappedKey {
    WrappedKey { kek: kek.into(), bytes: Bytes::from_static(b"w") }
}

fn create() -> KeyOp {
    KeyOp::Create { sealing_id: SealingId([1; 16]), mac: wrapped("kek"), data: data_key(1) }
}

/// A state, and the same state with opened resources.
struct Both {
    closed: State,
    opened: State,
}

impl Both {
    fn new() -> Self {
        let state = State::new(Incarnation(1));
        let mut both = Self { closed: state.clone(), opened: state };
        both.apply(&Transaction { keys: vec![create()], ..Transaction::default() });
        both.apply(&Transaction { keys: vec![KeyOp::Add(data_key(2))], ..Transaction::default() });
        both
    }

    /// Applies a transaction to both, compares the results, and opens what is sealed in one of them.
    fn apply(&mut self, transaction: &Transaction) -> (Outcome, Vec<(String, ChangeKind)>) {
        let (closed, opened) = (self.closed.apply(transaction), self.opened.apply(transaction));
        assert_eq!(closed.outcome, opened.outcome);
        let shown = |changes: &[chancery_model::Change]| -> Vec<_> {
            changes.iter().map(|one| (one.key.name.to_string(), one.kind)).collect()
        };
        assert_eq!(shown(&closed.changes), shown(&opened.changes));
        let changes = shown(&closed.changes);
        (self.closed, self.opened) = (closed.state, opened.state);
        for name in ["a", "b"] {
            let found = |state: &State| state.get(&scope(), &key(name)).cloned();
            let (closed, opened) = (found(&self.closed), found(&self.opened));
            assert_eq!(closed.is_some(), opened.is_some());
            let (Some(closed), Some(opened)) = (closed, opened) else { continue };
            assert_eq!(closed.version(), opened.version());
            assert_eq!(closed.sotw_len(), opened.sotw_len());
            assert_eq!(closed.sealed(), opened.sealed());
            if let Some(sealed) = opened.sealed().filter(|_| !opened.is_opened()) {
                let form = opened.opened(&key(name).type_url, sealed.bytes.slice(1..));
                self.opened.replace_form(&scope(), &key(name), form);
            }
        }
        let changed = |state: &State| {
            state.collection(&scope(), &key("a").type_url).map(|all| (all.changed, all.sotw_bytes))
        };
        assert_eq!(changed(&self.closed), changed(&self.opened));
        assert_eq!(self.closed.n_sealed().0, self.opened.n_sealed().0);
        assert_eq!(self.opened.n_sealed().1, 0);
        (closed.outcome, changes)
    }

    fn put(&mut self, draft: ResourceDraft) -> Vec<(String, ChangeKind)> {
        let upserts = vec![Upsert { scope: scope(), draft }];
        self.apply(&Transaction { upserts, ..Transaction::default() }).1
    }
}

#[derive(Debug, Clone)]
enum Step {
    Put { name: &'static str, id: Option<u32>, body: Vec<u8>, salt: u8, labeled: bool },
    Delete(&'static str),
    Reseal { name: &'static str, id: u32, salt: u8, stale: bool },
}

fn steps() -> impl Strategy<Value = Step> {
    let name = || prop_oneof![Just("a"), Just("b")];
    let body = prop::collection::vec(0..2_u8, 0..2);
    prop_oneof![
        (name(), prop::option::weighted(0.8, 1..3_u32), body, any::<u8>(), any::<bool>()).prop_map(
            |(name, id, body, salt, labeled)| Step::Put { name, id, body, salt, labeled }
        ),
        name().prop_map(Step::Delete),
        (name(), 1..3_u32, any::<u8>(), any::<bool>())
            .prop_map(|(name, id, salt, stale)| Step::Reseal { name, id, salt, stale }),
    ]
}

proptest! {
    /// Whether a replica has opened resources never shows in what it applies.
    #[test]
    fn opened_and_unopened_states_apply_alike(steps in prop::collection::vec(steps(), 1..30)) {
        let mut both = Both::new();
        for step in steps {
            match step {
                Step::Put { name, id, body, salt, labeled } => {
                    let mut one = match id {
                        Some(id) => draft(name, id, &body, salt),
                        None => ResourceDraft::new(key(name), body.into()),
                    };
                    if labeled {
                        one.labels.insert("l".into(), "v".into());
                    }
                    both.put(one);
                }
                Step::Delete(name) => {
                    let deletes = vec![(scope(), key(name))];
                    both.apply(&Transaction { deletes, ..Transaction::default() });
                }
                Step::Reseal { name, id, salt, stale } => {
                    let Some(current) = both.opened.get(&scope(), &key(name)) else { continue };
                    let mut version = current.version();
                    version.revision.0 += u64::from(stale);
                    let sealed = sealed(id, &current.body().unwrap(), salt);
                    let before = both.opened.revision;
                    let reseal = Reseal { scope: scope(), key: key(name), version, sealed };
                    let reseals = vec![reseal];
                    both.apply(&Transaction { reseals, ..Transaction::default() });
                    prop_assert_eq!(both.opened.revision, before);
                }
            }
        }
    }
}

/// The same secret under another salt or another key is the same resource.
#[test]
fn identical_sealed_body_changes_nothing() {
    let mut both = Both::new();
    assert_eq!(both.put(draft("a", 1, b"x", 1)), [("a".to_owned(), ChangeKind::Added)]);
    let version = both.closed.get(&scope(), &key("a")).unwrap().version();
    assert_eq!(both.put(draft("a", 1, b"x", 2)), []);
    assert_eq!(both.put(draft("a", 2, b"x", 3)), []);
    assert_eq!(both.closed.get(&scope(), &key("a")).unwrap().version(), version);
    assert_eq!(both.put(draft("a", 2, b"y", 4)), [("a".to_owned(), ChangeKind::Updated)]);
}

#[test]
fn reseal_of_another_body_or_version_does_nothing() {
    let mut both = Both::new();
    both.put(draft("a", 1, b"x", 1));
    let version = both.closed.get(&scope(), &key("a")).unwrap().version();
    let mut reseal = |version, sealed| {
        let reseals = vec![Reseal { scope: scope(), key: key("a"), version, sealed }];
        both.apply(&Transaction { reseals, ..Transaction::default() }).1
    };
    assert_eq!(reseal(version, sealed(2, b"y", 2)), []);
    let other = chancery_model::Version { tag: version.tag ^ 1, ..version };
    assert_eq!(reseal(other, sealed(2, b"x", 2)), []);
    assert_eq!(reseal(version, sealed(2, b"x", 2)), [("a".to_owned(), ChangeKind::Resealed)]);
    assert_eq!(reseal(version, sealed(2, b"x", 2)), [], "it has this form already");
    assert_eq!(
        (both.closed.n_sealed_by(DataKeyId(1)), both.closed.n_sealed_by(DataKeyId(2))),
        (0, 1)
    );
}

/// The store replaces the record of a resource once for each change.
#[test]
fn resource_that_is_resealed_twice_or_also_relabeled_has_one_change() {
    let mut both = Both::new();
    both.put(draft("a", 1, b"x", 1));
    both.put(draft("b", 1, b"x", 1));
    let reseal = |name: &str, salt| {
        let version = both.closed.get(&scope(), &key(name)).unwrap().version();
        Reseal { scope: scope(), key: key(name), version, sealed: sealed(2, b"x", salt) }
    };
    let reseals = vec![reseal("b", 2), reseal("a", 3), reseal("b", 4)];
    let mut labeled = draft("a", 1, b"x", 5);
    labeled.labels.insert("l".into(), "v".into());
    let upserts = vec![Upsert { scope: scope(), draft: labeled }];
    let (_, changes) = both.apply(&Transaction { upserts, reseals, ..Transaction::default() });
    let expected = [("a", ChangeKind::Relabeled), ("b", ChangeKind::Resealed)];
    assert_eq!(changes, expected.map(|(name, kind)| (name.to_owned(), kind)));
    let form = |name: &str| both.closed.get(&scope(), &key(name)).unwrap().sealed().cloned();
    assert_eq!((form("a"), form("b")), (Some(sealed(1, b"x", 5)), Some(sealed(2, b"x", 4))));
}

#[test]
fn keys_in_use_or_for_new_secrets_are_not_retired() {
    let mut both = Both::new();
    both.put(draft("a", 1, b"x", 1));
    let mut change =
        |op: KeyOp| match both.apply(&Transaction { keys: vec![op], ..Transaction::default() }).0 {
            Outcome::Committed(_) => None,
            Outcome::Refused(Refusal::Keys(refusal)) => Some(refusal),
            Outcome::Refused(other) => panic!("{other}"),
        };
    let one = DataKeyId(1);
    assert_eq!(change(KeyOp::Retire(one)), Some(KeysRefusal::InUse { key: one, resources: 1 }));
    assert_eq!(change(KeyOp::Retire(DataKeyId(2))), Some(KeysRefusal::Newest(DataKeyId(2))));
    assert_eq!(change(KeyOp::Retire(DataKeyId(9))), Some(KeysRefusal::Unknown(DataKeyId(9))));
    assert_eq!(change(KeyOp::Add(data_key(2))), Some(KeysRefusal::NotNext(DataKeyId(2))));
    assert_eq!(change(KeyOp::Add(data_key(3))), None);
    assert_eq!(change(create()), None, "the keys exist already");
    both.put(draft("a", 3, b"y", 1));
    let retire = Transaction { keys: vec![KeyOp::Retire(one)], ..Transaction::default() };
    let upserts = vec![Upsert { scope: scope(), draft: draft("b", 1, b"x", 1) }];
    let with_use = Transaction { upserts, ..retire.clone() };
    let expected = Refusal::Keys(KeysRefusal::InUse { key: one, resources: 1 });
    assert_eq!(
        both.apply(&with_use).0,
        Outcome::Refused(expected),
        "the transaction uses it itself"
    );
    assert!(matches!(both.apply(&retire).0, Outcome::Committed(_)));
    let upserts = vec![Upsert { scope: scope(), draft: draft("b", 1, b"x", 1) }];
    let late = Transaction { upserts, ..Transaction::default() };
    let expected = Refusal::Keys(KeysRefusal::Unknown(one));
    assert_eq!(both.apply(&late).0, Outcome::Refused(expected), "its key was retired meanwhile");
    assert_eq!(both.closed.keys.data.len(), 2, "the number of a retired key is not used again");
    assert_eq!(both.closed.keys.next, 4);
}

/// Clients see tags. A tag of a secret derives from its keyed digest, so that nobody can guess secrets by tags.
#[test]
fn tag_of_a_sealed_resource_does_not_derive_from_its_body() {
    let mut both = Both::new();
    both.put(draft("a", 1, b"x", 1));
    let tag = |both: &Both| both.opened.get(&scope(), &key("a")).unwrap().version().tag;
    let by_mac = tag(&both);
    let other_mac = Sealed { mac: [7; 32], ..sealed(1, b"x", 1) };
    let plain = ResourceDraft::new(key("a"), Bytes::new());
    both.put(ResourceDraft { sealed: Some(other_mac), ..plain });
    assert_ne!(tag(&both), by_mac, "equal bodies, other key of digests");
}
