//! A transaction that was prepared before its turn has the effect that it has when it is applied directly, and
//! both have the effect that a simple map has.

mod sealed;

use std::collections::BTreeMap;

use bytes::Bytes;
use chancery_model::{
    Applied, ChangeKind, Incarnation, Outcome, PreparedTransaction, ResourceDraft, ResourceKey,
    ResourceName, Revision, ScopeName, State, Transaction, TypeUrl, Upsert, types,
};
use proptest::prelude::*;

const SCOPES: [&str; 2] = ["edge", "mesh"];
const TYPES: [&str; 2] = [types::CLUSTER, types::ENDPOINT];

type Key = (usize, usize, u16);
type Contents = BTreeMap<Key, u8>;

fn scope(n: usize) -> ScopeName {
    ScopeName::new(SCOPES[n]).unwrap()
}

fn resource_key((_, type_url, name): Key) -> ResourceKey {
    ResourceKey {
        type_url: TypeUrl::from_static(TYPES[type_url]),
        name: ResourceName::new(&format!("name-{name}")).unwrap(),
    }
}

fn upsert((key, body): (Key, u8)) -> Upsert {
    let mut draft = ResourceDraft::new(resource_key(key), Bytes::from(vec![body]));
    // Neighbors share an alias.
    draft.aliases = vec![ResourceName::new(&format!("alias-{}", key.2 / 3)).unwrap()];
    Upsert { scope: scope(key.0), draft }
}

/// One transaction: deletes, pruned scopes, and the bodies of upserts.
#[derive(Debug, Clone)]
struct Change {
    deletes: Vec<Key>,
    prune: Vec<usize>,
    upserts: Vec<(Key, u8)>,
}

impl Change {
    fn transaction(&self) -> Transaction {
        Transaction {
            deletes: self.deletes.iter().map(|key| (scope(key.0), resource_key(*key))).collect(),
            prune: self.prune.iter().map(|n| scope(*n)).collect(),
            upserts: self.upserts.iter().copied().map(upsert).collect(),
            ..Transaction::default()
        }
    }

    fn apply(&self, contents: &mut Contents) {
        for key in &self.deletes {
            contents.remove(key);
        }
        contents.retain(|(scope, ..), _| !self.prune.contains(scope));
        contents.extend(self.upserts.iter().copied());
    }
}

fn changes() -> impl Strategy<Value = Change> {
    let keys = || (0..2_usize, 0..2_usize, 0..200_u16);
    (
        prop::collection::vec(keys(), 0..40),
        prop::collection::vec(0..2_usize, 0..2),
        prop::collection::vec((keys(), 0..3_u8), 0..400),
    )
        .prop_map(|(deletes, prune, upserts)| Change { deletes, prune, upserts })
}

fn contents(state: &State) -> Contents {
    let mut contents = Contents::new();
    for (n_scope, n_type) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let collection = state.collection(&scope(n_scope), &TypeUrl::from_static(TYPES[n_type]));
        for (name, resource) in collection.into_iter().flat_map(|of| of.resources.iter()) {
            assert_eq!(name, resource.name());
            let n_name = name.as_str().strip_prefix("name-").unwrap().parse().unwrap();
            contents.insert((n_scope, n_type, n_name), resource.body().unwrap()[0]);
        }
    }
    contents
}

fn resources(state: &State) -> Vec<Bytes> {
    let collections = state.scopes.values().flat_map(|scope| scope.types.values());
    collections
        .flat_map(|collection| {
            let bytes: Vec<Bytes> =
                collection.resources.values().map(|resource| resource.delta_field()).collect();
            let sotw: u64 = collection.resources.values().map(|r| r.sotw_len() as u64).sum();
            assert_eq!(collection.sotw_bytes, sotw);
            bytes
        })
        .collect()
}

fn check_equal(direct: &Applied, prepared: &Applied) {
    assert_eq!(resources(&direct.state), resources(&prepared.state));
    check_outcome(direct, prepared);
}

fn check_outcome(direct: &Applied, prepared: &Applied) {
    assert_eq!(direct.outcome, prepared.outcome);
    // Names, versions, aliases and the other indexes.
    assert_eq!(format!("{:?}", direct.state), format!("{:?}", prepared.state));
    let change = |applied: &Applied| format!("{:?}", applied.changes);
    assert_eq!(change(direct), change(prepared));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..Default::default() })]

    #[test]
    fn prepared_transaction_has_the_same_effect_as_a_direct_one(
        steps in prop::collection::vec((changes(), 0..80_u64), 1..6),
    ) {
        let mut state = State::new(Incarnation(1));
        let mut expected = Contents::new();
        for (change, guess) in steps {
            let transaction = change.transaction();
            let direct = state.apply(&transaction);
            let mut prepared = PreparedTransaction::new(transaction, Revision(guess));
            check_equal(&direct, &state.apply_prepared(&mut prepared));
            let before = expected.clone();
            change.apply(&mut expected);
            prop_assert_eq!(&contents(&direct.state), &expected);
            let Outcome::Committed(summary) = direct.outcome else { panic!("refused") };
            let differs = |key: &Key| before.get(key) != expected.get(key);
            let changed = expected.keys().filter(|key| differs(key)).count() as u64;
            prop_assert_eq!(summary.changed, changed);
            let removed = before.keys().filter(|key| !expected.contains_key(key)).count() as u64;
            prop_assert_eq!(summary.removed, removed);
            state = direct.state;
        }
    }
}

/// A collection in which little changes shares its nodes with the one before, so that comparing the two is cheap.
#[test]
fn repeated_large_transaction_keeps_the_resources_that_it_does_not_change() {
    let all = |body: u8| -> Vec<(Key, u8)> { (0..200).map(|n| ((0, 0, n), body)).collect() };
    let change = |upserts| Change { deletes: vec![], prune: vec![0], upserts };
    let state = State::new(Incarnation(1)).apply(&change(all(1)).transaction()).state;
    let mut upserts = all(1);
    upserts[7].1 = 2;
    let mut prepared = PreparedTransaction::new(change(upserts).transaction(), Revision(2));
    let applied = state.apply_prepared(&mut prepared);
    let kinds: Vec<ChangeKind> = applied.changes.iter().map(|change| change.kind).collect();
    assert_eq!(kinds, [ChangeKind::Updated]);
    let of = |state: &State| {
        state
            .collection(&scope(0), &TypeUrl::from_static(types::CLUSTER))
            .unwrap()
            .resources
            .clone()
    };
    assert_eq!(of(&state).diff(&of(&applied.state)).count(), 1);
}
