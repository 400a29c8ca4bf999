//! Tests of views and differences against a naive model: one merged map per node.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use chancery_model::{
    Incarnation, ResourceDraft, ResourceKey, ResourceName, ScopeName, State, Transaction, TypeUrl,
    Upsert, types,
};
use chancery_view::{Differ, TypeView, View, changed_collections, difference};
use proptest::prelude::*;

mod nodes;
mod secrets;
mod variants;

const SCOPES: [&str; 4] = ["a", "b", "c", "node/1"];

fn scope(index: usize) -> ScopeName {
    ScopeName::new(SCOPES[index]).unwrap()
}

fn cluster() -> TypeUrl {
    TypeUrl::from_static(types::CLUSTER)
}

fn key(name: u8) -> ResourceKey {
    ResourceKey { type_url: cluster(), name: ResourceName::new(&format!("n{name:02}")).unwrap() }
}

#[derive(Debug, Clone)]
enum Op {
    Put(usize, u8, u8),
    Delete(usize, u8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..4_usize, 0..40_u8, 0..3_u8).prop_map(|(s, n, body)| Op::Put(s, n, body)),
        1 => (0..4_usize, 0..40_u8).prop_map(|(s, n)| Op::Delete(s, n)),
    ]
}

fn transaction(ops: &[Op]) -> Transaction {
    let mut transaction = Transaction::default();
    for op in ops {
        match *op {
            Op::Put(at, name, body) => transaction.upserts.push(Upsert {
                scope: scope(at),
                draft: ResourceDraft::new(key(name), Bytes::copy_from_slice(&[body])),
            }),
            Op::Delete(at, name) => transaction.deletes.push((scope(at), key(name))),
        }
    }
    transaction
}

type Shown = BTreeMap<String, String>;

/// The resources that a node sees, computed by merging its scopes.
fn naive(state: &State, scopes: &[ScopeName]) -> Shown {
    // A later insertion overwrites an earlier one, so the first scope comes last.
    let collections = scopes.iter().rev().filter_map(|scope| state.collection(scope, &cluster()));
    let all = collections.flat_map(|collection| collection.resources.values());
    all.map(|r| (r.name().to_string(), r.version().to_string())).collect()
}

fn shown(view: &TypeView) -> Shown {
    let mut out = Shown::new();
    for resource in view.iter() {
        let previous = out.insert(resource.name().to_string(), resource.version().to_string());
        assert_eq!(previous, None, "{} is shown twice", resource.name());
    }
    out
}

/// Applies the difference to the resources of `from`, and checks that every change is necessary.
fn patched(differ: &Differ, from: &TypeView, to: &TypeView) -> Shown {
    let mut out = shown(from);
    let difference = difference(differ, from, to);
    let mut names = BTreeSet::new();
    for resource in difference.changed.iter() {
        assert!(names.insert(resource.name().clone()), "{} occurs twice", resource.name());
        let version = resource.version().to_string();
        let old = out.insert(resource.name().to_string(), version.clone());
        assert_ne!(old, Some(version), "{} did not change", resource.name());
    }
    for resource in &difference.removed {
        assert!(names.insert(resource.name().clone()), "{} occurs twice", resource.name());
        let old = out.remove(&resource.name().to_string());
        assert_eq!(
            old,
            Some(resource.version().to_string()),
            "the removed version was visible before"
        );
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn views_and_differences_match_merged_scopes(
        commits in prop::collection::vec(prop::collection::vec(op(), 1..40), 1..8),
        lists in prop::collection::vec(prop::sample::subsequence((0..4).collect::<Vec<_>>(), 0..=4)
            .prop_shuffle(), 1..6),
    ) {
        let differ = Differ::new();
        let mut states = vec![State::new(Incarnation(1))];
        for ops in &commits {
            let next = states.last().unwrap().apply(&transaction(ops)).state;
            states.push(next);
        }
        let lists: Vec<Vec<ScopeName>> =
            lists.iter().map(|list| list.iter().map(|at| scope(*at)).collect()).collect();
        let mut views = Vec::new();
        for state in &states {
            for list in &lists {
                let view = View::resolve(state, list).of_type(&cluster());
                prop_assert_eq!(shown(&view), naive(state, list));
                for (name, version) in naive(state, list) {
                    prop_assert_eq!(view.get(&name).unwrap().version().to_string(), version);
                }
                views.push(view);
            }
        }
        // Pairs of views cover commits, changes of the list of scopes, and older states.
        for from in &views {
            for to in &views {
                prop_assert_eq!(patched(&differ, from, to), shown(to));
            }
        }
    }

    #[test]
    fn changed_collections_names_exactly_the_changed_resources(
        commits in prop::collection::vec(prop::collection::vec(op(), 1..20), 2..6),
    ) {
        let differ = Differ::new();
        let mut state = State::new(Incarnation(1));
        for ops in &commits {
            let next = state.apply(&transaction(ops)).state;
            let mut expected = BTreeSet::new();
            for name in SCOPES {
                let list = [ScopeName::new(name).unwrap()];
                let (old, new) = (naive(&state, &list), naive(&next, &list));
                let all: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
                expected.extend(all.into_iter().filter(|n| old.get(*n) != new.get(*n))
                    .map(|n| (name.to_owned(), n.clone())));
            }
            let found: BTreeSet<(String, String)> = changed_collections(&differ, &state, &next)
                .iter()
                .flat_map(|delta| {
                    let scope = delta.scope().to_string();
                    delta.names().map(move |n| (scope.clone(), n.to_string())).collect::<Vec<_>>()
                })
                .collect();
            prop_assert_eq!(found, expected);
            state = next;
        }
    }
}

/// SOTW-14, DELTA-54: the type version is the revision of the last visible change, and it never
/// decreases.
#[test]
fn type_version_follows_newest_layer_and_assignments() {
    let one = State::new(Incarnation(5)).apply(&transaction(&[Op::Put(0, 1, 1)])).state;
    let two = one.apply(&transaction(&[Op::Put(1, 1, 1)])).state;
    let version = |state: &State, list: &[usize]| {
        let list: Vec<ScopeName> = list.iter().map(|at| scope(*at)).collect();
        View::resolve(state, &list).of_type(&cluster()).version().to_string()
    };
    assert_eq!(version(&two, &[0]), "1-5");
    assert_eq!(version(&two, &[0, 1]), "2-5");
    assert_eq!(version(&two, &[3]), "0-5", "a type without resources has a version");
    let moved = Transaction {
        assignments: vec![chancery_model::AssignmentOp::Delete("default".into())],
        ..Transaction::default()
    };
    let three = two.apply(&moved).state;
    assert_eq!(version(&three, &[0]), "3-5");
}

/// Scopes are layers, and an earlier scope shadows a later one.
#[test]
fn earlier_scope_shadows_later_one() {
    let state =
        State::new(Incarnation(1)).apply(&transaction(&[Op::Put(0, 1, 1), Op::Put(3, 1, 2)])).state;
    let body = |list: &[usize]| {
        let list: Vec<ScopeName> = list.iter().map(|at| scope(*at)).collect();
        View::resolve(&state, &list).of_type(&cluster()).get("n01").unwrap().body().unwrap()
    };
    assert_eq!(body(&[3, 0])[..], [2]);
    assert_eq!(body(&[0, 3])[..], [1]);
}

/// The differ compares a commit to a shared scope once, whatever the other layers are.
#[test]
fn views_over_one_scope_share_its_difference() {
    let state = State::new(Incarnation(1))
        .apply(&transaction(&[Op::Put(0, 1, 1), Op::Put(3, 2, 1), Op::Put(1, 3, 1)]))
        .state;
    let next = state.apply(&transaction(&[Op::Put(0, 1, 2)])).state;
    let differ = Differ::new();
    let change = |list: &[usize]| {
        let list: Vec<ScopeName> = list.iter().map(|at| scope(*at)).collect();
        let of = |state| View::resolve(state, &list).of_type(&cluster());
        difference(&differ, &of(&state), &of(&next))
    };
    let (one, two) = (change(&[0, 3]), change(&[1, 0]));
    let body = |change: &chancery_view::Difference| {
        change.changed.iter().map(|r| r.delta_field().as_ptr()).collect::<Vec<_>>()
    };
    assert_eq!(body(&one), body(&two), "both differences share the bytes");
    assert_eq!(one.changed.len(), 1);
}

/// Differences do not keep old states alive.
#[test]
fn differ_releases_old_states() {
    let differ = Differ::new();
    let body = |n: u8| transaction(&(0..40).map(|name| Op::Put(0, name, n)).collect::<Vec<_>>());
    let mut state = State::new(Incarnation(1)).apply(&body(0)).state;
    let mut old = Vec::new();
    for n in 1..10 {
        let next = state.apply(&body(n)).state;
        assert_eq!(changed_collections(&differ, &state, &next).len(), 1);
        let resources = &state.collection(&scope(0), &cluster()).unwrap().resources;
        old.extend(resources.values().map(std::sync::Arc::downgrade));
        state = next;
    }
    // The cache may keep the last step until a caller requests the next one.
    let alive = old.iter().filter(|resource| resource.strong_count() > 0).count();
    assert_eq!(alive, 0, "of {}", old.len());
}
