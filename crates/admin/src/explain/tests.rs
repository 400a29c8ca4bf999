use bytes::Bytes;
use chancery_model::{
    AssignmentOp, Glob, Incarnation, NodeMatcher, ResourceDraft, ScopeTemplate, Transaction,
    Upsert, types,
};

use super::*;

/// A release without structured names stored them as plain text. `get` and `describe` find such a resource, too.
#[test]
fn structured_name_of_an_earlier_release_is_explained_under_its_stored_spelling() {
    let stored = "xdstp:///envoy.config.cluster.v3.Cluster/web?b=2&a=1";
    let type_url = TypeUrl::from_static(types::CLUSTER);
    let key = ResourceKey { type_url, name: ResourceName::new(stored).unwrap() };
    let (scope, draft) =
        (ScopeName::new("default").unwrap(), ResourceDraft::new(key, Bytes::new()));
    let upserts = vec![Upsert { scope, draft }];
    let transaction = Transaction { upserts, ..Transaction::default() };
    let state = State::new(Incarnation(1)).apply(&transaction).state;
    let explained = |name: &str| {
        let (r#type, name) = ("cds".to_owned(), name.to_owned());
        let request = pb::ExplainRequest { r#type, name, ..pb::ExplainRequest::default() };
        let about = About::parse(&request).unwrap().stored_as(&state, &request.name).unwrap();
        let about =
            Question { about: &about, parameters: DynamicParameters::default(), newest: &state };
        let subject = Subject { id: "n", replica_id: 1, streams: &[], unasked: unasked(0) };
        explain(&state, &subject, about, None).conclusions.join(" ")
    };
    let found = explained(stored);
    assert!(found.contains("web?b=2&a=1\" of scope default only with a wildcard"), "{found}");
    let canonical = explained("xdstp:///envoy.config.cluster.v3.Cluster/web?a=1&b=2");
    assert!(canonical.contains("does not exist in any scope"), "{canonical}");
}

fn unasked(n_replicas: u64) -> Unasked {
    let extent = format!("; {n_replicas} other replicas were not asked");
    Unasked { extent, n_replicas }
}

/// Explains a node that is not connected, in a cluster of three replicas.
fn explain_unconnected(assignments: &[(&str, i64, NodeMatcher, &str)]) -> pb::ExplainResponse {
    let assignment = |(name, priority, matcher, scopes): &(&str, i64, NodeMatcher, &str)| {
        let scopes = scopes.split(' ').map(|scope| ScopeTemplate::parse(scope).unwrap());
        AssignmentOp::Put(Assignment {
            name: (*name).into(),
            priority: *priority,
            matcher: matcher.clone(),
            scopes: scopes.collect(),
        })
    };
    let assignments = assignments.iter().map(assignment).collect();
    let transaction = Transaction { assignments, ..Transaction::default() };
    let state = State::new(Incarnation(1)).apply(&transaction).state;
    let subject = Subject { id: "edge-1", replica_id: 1, streams: &[], unasked: unasked(2) };
    let parameters = DynamicParameters::default();
    let about = Question { about: &About::Everything, parameters, newest: &state };
    explain(&state, &subject, about, None)
}

fn with_id(id: &str) -> NodeMatcher {
    NodeMatcher { id: Some(Glob::new(id)), ..NodeMatcher::default() }
}

fn in_cluster(cluster: &str) -> NodeMatcher {
    NodeMatcher { cluster: Some(Glob::new(cluster)), ..NodeMatcher::default() }
}

/// An assignment for a cluster may match a node of another replica. A later assignment must not be shown as the one
/// that matches.
#[test]
fn assignment_of_unconnected_node_is_unknown_if_an_earlier_one_may_match() {
    let explained = explain_unconnected(&[
        ("canary", 20, in_cluster("canary"), "canary"),
        ("web", 15, with_id("web-*"), "web"),
        ("edge", 10, with_id("edge-*"), "edge"),
    ]);
    let trials: Vec<(&str, bool, bool)> = explained
        .trials
        .iter()
        .map(|trial| (trial.name.as_str(), trial.matched, trial.unknown))
        .collect();
    assert_eq!(trials, [("canary", false, true), ("web", false, false), ("edge", false, true)]);
    assert!(explained.scopes.is_empty(), "{explained:?}");
    let text = explained.conclusions.join(" ");
    assert!(text.contains("2 other replicas were not asked"), "{text}");
    assert!(text.contains("\"canary\", \"edge\"."), "{text}");
    assert!(!text.contains("gives the node the scopes"), "{text}");
    assert_eq!((explained.connected, explained.replicas_not_asked), (false, 2));
    assert!(explained.unknown.contains(&"cluster".to_owned()));
}

/// The ID alone may determine the assignment and all of its scopes.
#[test]
fn assignment_of_unconnected_node_is_known_if_its_id_determines_it() {
    let explained = explain_unconnected(&[
        ("web", 15, NodeMatcher { id: Some(Glob::new("web-*")), ..in_cluster("x") }, "web"),
        ("edge", 10, with_id("edge-*"), "node/{node.id} edge"),
        ("all", 5, NodeMatcher::default(), "all"),
    ]);
    let text = explained.conclusions.join(" ");
    assert!(
        text.contains("Assignment \"edge\" gives the node the scopes node/edge-1, edge"),
        "{text}"
    );
    assert!(explained.trials[1].matched && explained.trials.len() == 2, "{explained:?}");
    let none = explain_unconnected(&[("default", i64::MIN, with_id("web-*"), "web")]);
    assert!(none.conclusions.join(" ").contains("No assignment matches the node"), "{none:?}");
}

/// A scope template with another variable is unknown, and so is what shadows what.
#[test]
fn scope_of_unconnected_node_is_unknown_if_it_depends_on_more_than_the_id() {
    let explained =
        explain_unconnected(&[("edge", 10, with_id("edge-*"), "zone/{locality.zone} edge")]);
    let text = explained.conclusions.join(" ");
    assert!(text.contains("zone/{locality.zone} depend on values that are unknown"), "{text}");
    let unknown: Vec<bool> = explained.scopes.iter().map(|scope| scope.unknown).collect();
    assert_eq!(unknown, [true, false]);
    assert_eq!(explained.scopes[1].scope, "edge");
}
