//! Tests of `State::apply`.

mod freezes;
mod quotas;
mod sealed;

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use chancery_model::{
    Applied, AssignmentOp, ChangeKind, Expectation, Incarnation, Outcome, Precondition, Refusal,
    ResourceDraft, ResourceKey, ResourceName, Revision, ScopeName, State, Summary, Transaction,
    TransactionMeta, TypeUrl, Upsert, default_assignment, types,
};

fn scope(name: &str) -> ScopeName {
    ScopeName::new(name).unwrap()
}

fn key(name: &str) -> ResourceKey {
    ResourceKey {
        type_url: TypeUrl::from_static(types::CLUSTER),
        name: ResourceName::new(name).unwrap(),
    }
}

fn upsert(scope_name: &str, name: &str, body: &str) -> Upsert {
    let body = Bytes::copy_from_slice(body.as_bytes());
    Upsert { scope: scope(scope_name), draft: ResourceDraft::new(key(name), body) }
}

fn put(upserts: Vec<Upsert>) -> Transaction {
    Transaction { upserts, ..Transaction::default() }
}

fn summary(applied: &Applied) -> Summary {
    match &applied.outcome {
        Outcome::Committed(summary) => *summary,
        Outcome::Refused(refusal) => panic!("refused: {refusal}"),
    }
}

fn refusal(applied: Applied) -> Refusal {
    match applied.outcome {
        Outcome::Refused(refusal) => refusal,
        Outcome::Committed(summary) => panic!("committed: {summary:?}"),
    }
}

fn version(state: &State, scope_name: &str, name: &str) -> String {
    state.get(&scope(scope_name), &key(name)).unwrap().version().to_string()
}

fn new() -> State {
    State::new(Incarnation(1))
}

#[test]
fn transaction_over_many_scopes_creates_one_revision() {
    let applied = new().apply(&put(vec![upsert("a", "x", "1"), upsert("b", "x", "2")]));
    let expected = Summary { revision: Revision(1), changed: 2, ..Summary::default() };
    assert_eq!(summary(&applied), expected);
    assert!(version(&applied.state, "a", "x").starts_with("1-"));
    assert!(version(&applied.state, "b", "x").starts_with("1-"));
    assert_eq!(applied.state.revision, Revision(1));
}

/// XDSTP-10: one name and version has one content. Nodes with other scopes may see another content of the
/// name, and then with another version.
#[test]
fn different_contents_of_a_name_have_different_versions() {
    let name = "xdstp://a/envoy.config.cluster.v3.Cluster/x";
    let contents = ["1", "2", "1"];
    let scopes = ["a", "b", "c"];
    let all = scopes.iter().zip(contents).map(|(scope, body)| upsert(scope, name, body));
    let state = new().apply(&put(all.collect())).state;
    let [a, b, c] = scopes.map(|scope| version(&state, scope, name));
    assert_eq!(a, c);
    assert_ne!(a, b);
}

#[test]
fn identical_upsert_changes_nothing() {
    let first = new().apply(&put(vec![upsert("a", "x", "1")])).state;
    let repeated = first.apply(&put(vec![upsert("a", "x", "1")]));
    let expected = Summary { revision: Revision(1), unchanged: 1, ..Summary::default() };
    assert_eq!(summary(&repeated), expected);
    assert!(repeated.changes.is_empty());
    let (before, after) = (&first.scopes[&scope("a")], &repeated.state.scopes[&scope("a")]);
    assert!(Arc::ptr_eq(before, after), "nothing is copied");
}

#[test]
fn recreated_resource_gets_new_version() {
    let first = new().apply(&put(vec![upsert("a", "x", "1")])).state;
    let delete = Transaction { deletes: vec![(scope("a"), key("x"))], ..Transaction::default() };
    let deleted = first.apply(&delete);
    let expected = Summary { revision: Revision(2), removed: 1, ..Summary::default() };
    assert_eq!(summary(&deleted), expected);
    let recreated = deleted.state.apply(&put(vec![upsert("a", "x", "1")])).state;
    assert_ne!(version(&first, "a", "x"), version(&recreated, "a", "x"));
}

#[test]
fn deleting_absent_resource_changes_nothing() {
    let delete = Transaction { deletes: vec![(scope("a"), key("x"))], ..Transaction::default() };
    assert_eq!(summary(&new().apply(&delete)), Summary::default());
}

#[test]
fn prune_keeps_only_upserted_resources_of_the_scope() {
    let state = new()
        .apply(&put(vec![upsert("a", "x", "1"), upsert("a", "y", "1"), upsert("b", "y", "1")]))
        .state;
    let prune = Transaction {
        prune: vec![scope("a"), scope("unknown")],
        upserts: vec![upsert("a", "x", "1"), upsert("a", "z", "1")],
        ..Transaction::default()
    };
    let applied = state.apply(&prune);
    let expected = Summary {
        revision: Revision(2),
        changed: 1,
        removed: 1,
        unchanged: 1,
        assignments: 0,
        access: 0,
    };
    assert_eq!(summary(&applied), expected);
    assert!(applied.state.get(&scope("a"), &key("y")).is_none());
    assert!(applied.state.get(&scope("b"), &key("y")).is_some());
    let kinds: Vec<_> = applied.changes.iter().map(|c| (c.key.name.as_str(), c.kind)).collect();
    assert_eq!(kinds, [("y", ChangeKind::Removed), ("z", ChangeKind::Added)]);
}

#[test]
fn label_change_keeps_version_and_type_version() {
    let state = new().apply(&put(vec![upsert("a", "x", "1")])).state;
    let mut labeled = upsert("a", "x", "1");
    labeled.draft.labels = BTreeMap::from([("team".to_owned(), "shop".to_owned())]);
    let applied = state.apply(&put(vec![labeled]));
    let expected = Summary { revision: Revision(2), changed: 1, ..Summary::default() };
    assert_eq!(summary(&applied), expected);
    assert_eq!(applied.changes[0].kind, ChangeKind::Relabeled);
    assert_eq!(version(&state, "a", "x"), version(&applied.state, "a", "x"));
    let collection = applied.state.collection(&scope("a"), &key("x").type_url).unwrap();
    assert_eq!(collection.changed, Revision(1));
    assert_eq!(applied.state.scopes[&scope("a")].changed, Revision(2));
}

#[test]
fn emptied_collection_keeps_revision_of_last_change() {
    let state = new().apply(&put(vec![upsert("a", "x", "1")])).state;
    let delete = Transaction { deletes: vec![(scope("a"), key("x"))], ..Transaction::default() };
    let state = state.apply(&delete).state;
    let collection = state.collection(&scope("a"), &key("x").type_url).unwrap();
    assert!(collection.resources.is_empty());
    assert_eq!(collection.changed, Revision(2));
    assert!(state.is_empty());
}

#[test]
fn next_transaction_clears_label_of_previous_one() {
    let mut labeled = put(vec![upsert("a", "x", "1")]);
    labeled.meta = TransactionMeta { label: Some("4fe1".into()), ..TransactionMeta::default() };
    let state = new().apply(&labeled).state;
    let label = |state: &State| {
        state
            .collection(&scope("a"), &key("x").type_url)
            .unwrap()
            .label
            .as_deref()
            .map(str::to_owned)
    };
    assert_eq!(label(&state).as_deref(), Some("4fe1"));
    let state = state.apply(&put(vec![upsert("a", "x", "2")])).state;
    assert_eq!(label(&state), None);
}

#[test]
fn alias_refers_to_last_published_resource_until_deletion() {
    let mut first = upsert("a", "x", "1");
    first.draft.aliases = vec![ResourceName::new("also").unwrap()];
    let state = new().apply(&put(vec![first])).state;
    let find = |state: &State, name: &str| {
        let collection = state.collection(&scope("a"), &key("x").type_url).unwrap();
        collection.find(name).map(|resource| resource.name().to_string())
    };
    assert_eq!(find(&state, "also").as_deref(), Some("x"));
    let mut second = upsert("a", "y", "1");
    second.draft.aliases = vec![ResourceName::new("also").unwrap()];
    let state = state.apply(&put(vec![second, upsert("a", "x", "1")])).state;
    assert_eq!(find(&state, "also").as_deref(), Some("y"), "the last publication wins");
    let delete = Transaction { deletes: vec![(scope("a"), key("y"))], ..Transaction::default() };
    assert_eq!(find(&state.apply(&delete).state, "also"), None);
}

#[test]
fn revision_precondition_checks_affected_scopes_only() {
    let state = new().apply(&put(vec![upsert("a", "x", "1")])).state;
    let state = state.apply(&put(vec![upsert("b", "x", "1")])).state;
    let at = |revision: u64, upserts: Vec<Upsert>| Transaction {
        preconditions: vec![Precondition::Revision(Revision(revision))],
        ..put(upserts)
    };
    assert_eq!(summary(&state.apply(&at(1, vec![upsert("a", "x", "2")]))).revision, Revision(3));
    let behind = refusal(state.apply(&at(1, vec![upsert("b", "x", "2")])));
    assert_eq!(
        behind.to_string(),
        "scope \"b\" has changed at revision 2, after the expected revision 1"
    );
    let ahead = refusal(state.apply(&at(9, vec![upsert("a", "x", "2")])));
    assert_eq!(ahead.to_string(), "revision 9 was expected, but the store is only at revision 2");
}

#[test]
fn resource_precondition_checks_absence_presence_or_version() {
    let state = new().apply(&put(vec![upsert("a", "x", "1")])).state;
    let found = state.get(&scope("a"), &key("x")).unwrap().version();
    let with = |name: &str, expectation| Transaction {
        preconditions: vec![Precondition::Resource {
            scope: scope("a"),
            key: key(name),
            expectation,
        }],
        ..put(vec![upsert("a", "new", "1")])
    };
    for (name, expectation) in [
        ("x", Expectation::Present),
        ("x", Expectation::Version(found)),
        ("y", Expectation::Absent),
    ] {
        assert_eq!(summary(&state.apply(&with(name, expectation))).changed, 1);
    }
    let other = chancery_model::Version { tag: found.tag ^ 1, ..found };
    for (name, expectation, text) in [
        ("y", Expectation::Present, "does not exist"),
        ("y", Expectation::Version(found), "does not exist"),
        ("x", Expectation::Absent, "exists already"),
        ("x", Expectation::Version(other), "not the expected"),
    ] {
        let applied = state.apply(&with(name, expectation));
        assert_eq!(applied.state.revision, state.revision);
        let refusal = refusal(applied).to_string();
        assert!(refusal.contains(text), "{refusal}");
    }
}

#[test]
fn assignments_are_sorted_by_descending_priority_then_by_name() {
    let put = |name: &str, priority| {
        let mut assignment = default_assignment();
        (assignment.name, assignment.priority) = (name.into(), priority);
        AssignmentOp::Put(assignment)
    };
    let transaction = Transaction {
        assignments: vec![put("b", 1), put("a", 1), put("c", 2)],
        ..Transaction::default()
    };
    let state = new().apply(&transaction).state;
    let order: Vec<_> = state.assignments.rules.iter().map(|rule| rule.name.to_string()).collect();
    assert_eq!(order, ["c", "a", "b", "default"]);
    assert_eq!((state.revision, state.assignments.changed), (Revision(1), Revision(1)));

    let repeated = state.apply(&transaction);
    assert_eq!(summary(&repeated), Summary { revision: Revision(1), ..Summary::default() });

    let delete = Transaction {
        assignments: vec![AssignmentOp::Delete("default".into()), AssignmentOp::Delete("x".into())],
        ..Transaction::default()
    };
    assert_eq!(summary(&state.apply(&delete)).assignments, 1);
}
