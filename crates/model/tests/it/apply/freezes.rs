//! Freezes: clients keep the content of frozen scopes, whatever is written.

use std::collections::{BTreeMap, BTreeSet};

use chancery_model::{AccessOp, Assignment, FreezeTarget, TypeUrl};
use proptest::prelude::*;

use super::*;

fn freeze(target: FreezeTarget) -> Transaction {
    let op = AccessOp::Freeze { target, until_ms: None };
    Transaction { access: vec![op], ..Transaction::default() }
}

fn thaw(target: FreezeTarget) -> Transaction {
    let op = AccessOp::Thaw { target, until_ms: None };
    Transaction { access: vec![op], ..Transaction::default() }
}

fn of(name: &str) -> FreezeTarget {
    FreezeTarget::Scope(scope(name))
}

#[test]
fn freeze_of_all_scopes_holds_new_scopes_and_assignments() {
    let state = new().apply(&put(vec![upsert("a", "x", "1")])).state;
    let frozen = state.apply(&freeze(FreezeTarget::All)).state;
    let assign = AssignmentOp::Delete("default".into());
    let write = Transaction { assignments: vec![assign], ..put(vec![upsert("b", "y", "1")]) };
    let written = frozen.apply(&write).state;
    assert!(written.assignments.rules.is_empty() && written.scopes.contains_key(&scope("b")));
    let served = written.served();
    assert_eq!(served.assignments.rules, [default_assignment()]);
    assert!(!served.scopes.contains_key(&scope("b")));
    assert_eq!(served.revision, written.revision);
    let pass = Transaction { access: vec![AccessOp::OverrideFreezes], ..write.clone() };
    assert!(frozen.apply(&pass).state.served().assignments.rules.is_empty());
    // An urgent change of one assignment releases no other one.
    let named = |name: &str| Assignment { name: name.into(), ..default_assignment() };
    let put = |name: &str, access: Vec<AccessOp>| Transaction {
        assignments: vec![AssignmentOp::Put(named(name))],
        access,
        ..Transaction::default()
    };
    let both = frozen.apply(&put("held", vec![])).state;
    let both = both.apply(&put("urgent", vec![AccessOp::OverrideFreezes])).state;
    let names: Vec<String> =
        both.served().assignments.rules.iter().map(|rule| rule.name.to_string()).collect();
    assert_eq!(names, ["default", "urgent"]);
    let missing = Transaction {
        assignments: vec![AssignmentOp::Delete("none".into())],
        access: vec![AccessOp::OverrideFreezes],
        ..Transaction::default()
    };
    assert_eq!(both.apply(&missing).state.revision, both.revision, "nothing changes");
    assert!(written.apply(&pass).state.served().scopes.contains_key(&scope("b")), "written again");
    // A scope is not thawed alone.
    assert_eq!(
        summary(&written.apply(&thaw(of("b")))),
        Summary { revision: written.revision, ..Summary::default() }
    );
    let thawed = written.apply(&thaw(FreezeTarget::All)).state.served();
    assert!(thawed.assignments.rules.is_empty() && thawed.scopes.contains_key(&scope("b")));
}

#[test]
fn second_freeze_keeps_the_content_and_changes_the_end() {
    let state = new().apply(&put(vec![upsert("a", "x", "1")])).state;
    let state = state.apply(&freeze(of("a"))).state;
    let state = state.apply(&put(vec![upsert("a", "x", "2")])).state;
    let longer = AccessOp::Freeze { target: of("a"), until_ms: Some(99) };
    let state = state.apply(&Transaction { access: vec![longer], ..Transaction::default() }).state;
    let freeze = state.freezes.get(&of("a")).unwrap().parts();
    assert_eq!((freeze.meta.revision, freeze.meta.until_ms), (Revision(2), Some(99)));
    assert!(version(&state.served(), "a", "x").starts_with("1-"));
    let expired = AccessOp::Thaw { target: of("a"), until_ms: Some(98) };
    let applied = state.apply(&Transaction { access: vec![expired], ..Transaction::default() });
    assert_eq!(summary(&applied).access, 0, "the freeze has another end");
}

#[test]
fn aliases_of_frozen_resources_survive_a_load() {
    let aliased = |name: &str, body: &str| {
        let mut upsert = upsert("a", name, body);
        upsert.draft.aliases = vec![ResourceName::new("alias").unwrap()];
        upsert
    };
    let mut state = new().apply(&put(vec![aliased("y", "1")])).state;
    state = state.apply(&put(vec![aliased("x", "1")])).state;
    state = state.apply(&freeze(of("a"))).state;
    state = state.apply(&put(vec![aliased("y", "2"), upsert("a", "x", "2")])).state;
    let named = |state: &State| {
        let served = state.served();
        let collection = served.collection(&scope("a"), &key("x").type_url).unwrap();
        collection.find("alias").unwrap().name().to_string()
    };
    assert_eq!(named(&state), "x");
    assert_eq!(named(&loaded(&state)), "x");
    assert_eq!(named(&state.apply(&thaw(of("a"))).state), "y");
    // An alias that lost its resource does not come back by a load.
    let mut state = new().apply(&put(vec![aliased("p", "1")])).state;
    state = state.apply(&put(vec![aliased("q", "1")])).state;
    let delete = Transaction { deletes: vec![(scope("a"), key("q"))], ..Transaction::default() };
    state = state.apply(&delete).state.apply(&freeze(of("a"))).state;
    state = state.apply(&put(vec![upsert("a", "r", "2")])).state;
    let finds = |state: &State| {
        let served = state.served();
        served.collection(&scope("a"), &key("x").type_url).unwrap().find("alias").is_some()
    };
    assert_eq!((finds(&state), finds(&loaded(&state))), (false, false));
}

/// Returns the state as a start of a replica builds it.
fn loaded(state: &State) -> State {
    let mut loaded = state.clone();
    loaded.load_freezes(state.freezes.iter().map(|freeze| freeze.parts().clone()).collect());
    loaded
}

#[derive(Debug, Clone)]
enum Step {
    Write {
        puts: Vec<(u8, u8, u8)>,
        deletes: Vec<(u8, u8)>,
        prune: Option<u8>,
        pass: bool,
        assign: Option<i64>,
    },
    Freeze(u8),
    Thaw(u8),
}

const SCOPES: [&str; 2] = ["a", "b"];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let puts = prop::collection::vec((0..2u8, 0..6u8, 0..3u8), 0..4);
    let deletes = prop::collection::vec((0..2u8, 0..6u8), 0..2);
    let prune = prop::option::weighted(0.1, 0..2u8);
    let assign = prop::option::weighted(0.2, 0..9i64);
    let write = (puts, deletes, prune, prop::bool::weighted(0.3), assign);
    let write = write.prop_map(|(puts, deletes, prune, pass, assign)| Step::Write {
        puts,
        deletes,
        prune,
        pass,
        assign,
    });
    let step = prop_oneof![6 => write, 1 => (0..3u8).prop_map(Step::Freeze), 1 => (0..3u8).prop_map(Step::Thaw)];
    prop::collection::vec(step, 1..30)
}

fn target(n: u8) -> FreezeTarget {
    SCOPES.get(usize::from(n)).map_or(FreezeTarget::All, |name| of(name))
}

fn resource_key(n: u8) -> ResourceKey {
    let type_url = TypeUrl::from_static([types::CLUSTER, types::LISTENER][usize::from(n % 2)]);
    ResourceKey { type_url, name: ResourceName::new(&n.to_string()).unwrap() }
}

fn transaction(step: &Step) -> Transaction {
    match step {
        Step::Freeze(n) => freeze(target(*n)),
        Step::Thaw(n) => thaw(target(*n)),
        Step::Write { puts, deletes, prune, pass, assign } => {
            let scope = |n: &u8| scope(SCOPES[usize::from(*n)]);
            // The last upsert of a resource counts.
            let puts: BTreeMap<(u8, u8), u8> =
                puts.iter().map(|(s, n, b)| ((*s, *n), *b)).collect();
            let upsert = |((s, n), body): (&(u8, u8), &u8)| Upsert {
                scope: scope(s),
                draft: ResourceDraft::new(resource_key(*n), Bytes::from(vec![*body; 4])),
            };
            Transaction {
                upserts: puts.iter().map(upsert).collect(),
                deletes: deletes.iter().map(|(s, n)| (scope(s), resource_key(*n))).collect(),
                prune: prune.iter().map(scope).collect(),
                assignments: assign
                    .iter()
                    .map(|priority| {
                        AssignmentOp::Put(Assignment {
                            priority: *priority,
                            ..default_assignment()
                        })
                    })
                    .collect(),
                access: pass.then_some(AccessOp::OverrideFreezes).into_iter().collect(),
                ..Transaction::default()
            }
        }
    }
}

type Content = BTreeMap<(String, ResourceKey), String>;

fn content(state: &State) -> Content {
    let mut content = Content::new();
    for (name, scope) in &state.scopes {
        for (type_url, collection) in &scope.types {
            for (resource_name, resource) in &collection.resources {
                let key = ResourceKey { type_url: type_url.clone(), name: resource_name.clone() };
                content.insert((name.to_string(), key), resource.version().to_string());
            }
        }
    }
    content
}

/// The revisions and labels of all collections with content.
fn stamps(state: &State) -> Vec<(String, TypeUrl, Revision, usize)> {
    let collections = state.scopes.values().flat_map(|scope| scope.types.values());
    let stamp = |of: &Arc<chancery_model::Collection>| {
        (of.scope.to_string(), of.type_url.clone(), of.changed, of.resources.len())
    };
    collections.map(stamp).collect()
}

/// The expected content of the clients.
#[derive(Default)]
struct Expected {
    frozen: BTreeSet<FreezeTarget>,
    content: Content,
}

impl Expected {
    fn is_frozen(&self, name: &str) -> bool {
        self.frozen.contains(&FreezeTarget::All) || self.frozen.contains(&of(name))
    }

    fn take(&mut self, transaction: &Transaction, newest: &Content) {
        let passes = transaction.access.contains(&AccessOp::OverrideFreezes);
        let mut passed: BTreeSet<(String, ResourceKey)> = BTreeSet::new();
        if passes {
            passed.extend(
                transaction
                    .upserts
                    .iter()
                    .map(|one| (one.scope.to_string(), one.draft.key.clone())),
            );
            passed.extend(
                transaction.deletes.iter().map(|(scope, key)| (scope.to_string(), key.clone())),
            );
            let pruned =
                |(name, _): &&(String, ResourceKey)| transaction.prune.contains(&scope(name));
            passed.extend(self.content.keys().chain(newest.keys()).filter(pruned).cloned());
        }
        for op in &transaction.access {
            let all = self.frozen.contains(&FreezeTarget::All);
            match op {
                AccessOp::Freeze { target, .. } if !all || *target == FreezeTarget::All => {
                    self.frozen.insert(target.clone());
                }
                AccessOp::Thaw { target, .. } if !all || *target == FreezeTarget::All => {
                    self.frozen.remove(target);
                }
                _ => {}
            }
        }
        let keys: BTreeSet<_> = self.content.keys().chain(newest.keys()).cloned().collect();
        for key in keys {
            if self.is_frozen(&key.0) && !passed.contains(&key) {
                continue;
            }
            match newest.get(&key) {
                Some(version) => drop(self.content.insert(key, version.clone())),
                None => drop(self.content.remove(&key)),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..Default::default() })]

    /// Clients keep frozen content, except for writes that pass the freeze. A start finds the same content. No version
    /// repeats with different content (SOTW-15), and a scope whose content changes has another revision.
    #[test]
    fn served_content_changes_only_where_nothing_is_frozen(steps in steps()) {
        let mut state = new();
        let mut expected = Expected::default();
        let mut versions: BTreeMap<(String, TypeUrl, Revision), Content> = BTreeMap::new();
        let mut newest: BTreeMap<(String, TypeUrl), Revision> = BTreeMap::new();
        for step in &steps {
            let transaction = transaction(step);
            let before = state.served();
            state = state.apply(&transaction).state;
            expected.take(&transaction, &content(&state));
            let served = state.served();
            let found = content(&served);
            prop_assert_eq!(&found, &expected.content, "after {:?}", step);
            let loaded = loaded(&state).served();
            prop_assert_eq!(&content(&loaded), &found);
            prop_assert_eq!(stamps(&loaded), stamps(&served));
            let same_rules = before.assignments.rules == served.assignments.rules;
            prop_assert!(same_rules || before.placement_changed() < served.placement_changed());
            for (name, type_url, changed, _) in stamps(&served) {
                let version = changed.max(served.assignments.changed);
                let last = newest.entry((name, type_url)).or_default();
                prop_assert!(version >= *last, "a version goes back from {} to {}", last, version);
                *last = version;
            }
            for (name, type_url, changed, _) in stamps(&served) {
                let of: Content = found.iter().filter(|((scope, key), _)| *scope == name && key.type_url == type_url)
                    .map(|(key, version)| (key.clone(), version.clone())).collect();
                // The version that clients see (SOTW-15).
                let changed = changed.max(served.assignments.changed);
                let known = versions.entry((name, type_url, changed)).or_insert_with(|| of.clone());
                prop_assert_eq!(known, &of);
            }
            for (name, scope) in &served.scopes {
                let of = |content: &Content| -> Content {
                    content.iter().filter(|((scope, _), _)| scope == name.as_str())
                        .map(|(key, version)| (key.clone(), version.clone())).collect()
                };
                let same = before.scopes.get(name) == Some(scope);
                prop_assert!(!same || of(&content(&before)) == of(&found), "{} has the same revision", name);
            }
        }
        for target in [FreezeTarget::All, of("a"), of("b")] {
            state = state.apply(&thaw(target)).state;
        }
        prop_assert_eq!(content(&state.served()), content(&state));
    }
}
