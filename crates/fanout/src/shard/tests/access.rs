//! Changes of access rules: which sessions are placed again, and which sessions a change does not concern.

use chancery_model::{AccessOp, Identity, Principal, Revision};

use super::{
    harness::{access_change, access_rule, scope},
    *,
};
use crate::AccessControl;

fn rule(name: &str, uid: u32, refuse: bool) -> AccessOp {
    let rule = access_rule(name, &format!("unix:{uid}"), "default");
    AccessOp::PutRule(Box::new(chancery_model::AccessRule { refuse, ..rule }))
}

/// Opens a stream of each identity `unix:0`, `unix:1` and so on.
fn streams(n: u32) -> (ShardHarness, Vec<Client>) {
    let config = Config { access: AccessControl::Enforced, ..Config::default() };
    let mut harness = ShardHarness::with(config);
    harness.put("default", CLUSTER, &[("a", "1")]);
    harness.apply(&access_change((0..n).map(|uid| rule(&format!("r{uid}"), uid, false)).collect()));
    harness.settle();
    let clients = (0..n).map(|uid| {
        let identity = Identity { principal: Principal::unix(uid), token: None };
        let mut client = harness.open_as(Some(Arc::new(identity)));
        let request = DeltaRequest { type_url: CLUSTER.to_owned(), ..DeltaRequest::default() };
        harness.send(&client, Some(&format!("n{uid}")), request);
        assert_eq!(harness.read(&mut client).len(), 1);
        client
    });
    let clients = clients.collect();
    (harness, clients)
}

fn is_open(client: &mut Client) -> bool {
    !matches!(client.poll(), Poll::Ready(Delivery::End(_)))
}

/// Attack 46: the second change arrives before the sessions were compared with the first one.
#[test]
fn earlier_change_of_rules_is_not_forgotten_when_another_follows() {
    let (mut harness, mut clients) = streams(3);
    harness.apply(&access_change(vec![rule("refusal", 1, true)]));
    assert!(harness.is_placing(), "the sessions are not compared yet");
    harness.apply(&access_change(vec![rule("other", 2, true)]));
    harness.settle();
    let open: Vec<bool> = clients.iter_mut().map(is_open).collect();
    assert_eq!(open, [true, false, false]);
}

/// Attack 46: nobody else loses a stream when a rule is deleted.
#[test]
fn deleted_rule_ends_only_the_streams_that_it_permitted() {
    let (mut harness, mut clients) = streams(3);
    harness.apply(&access_change(vec![AccessOp::DeleteRule("r1".into())]));
    harness.settle();
    let open: Vec<bool> = clients.iter_mut().map(is_open).collect();
    assert_eq!(open, [true, false, true]);
}

/// The rights of other identities are not computed again, but their sessions count as placed.
#[test]
fn change_of_one_rule_places_only_the_sessions_that_it_names() {
    let (mut harness, mut clients) = streams(3);
    let before: Vec<Revision> =
        harness.sessions().iter().map(|entry| entry.placed().placed_at()).collect();
    // A change that would end every session shows which ones are placed again.
    for (_, entry) in harness.sessions_mut().iter_mut() {
        entry.placed_mut().clear_rights();
    }
    harness.apply(&access_change(vec![rule("more", 2, false)]));
    harness.settle();
    let open: Vec<bool> = clients.iter_mut().map(is_open).collect();
    assert_eq!(open, [true, true, false]);
    let newest = harness.state.placement_changed();
    assert!(before.iter().all(|revision| *revision < newest));
    assert!(harness.sessions().iter().all(|entry| entry.placed().placed_at() == newest));
    assert_eq!(harness.shard.service.reached_revision(), harness.state.revision);
}

/// A change of the assignments places all sessions again, also if the access rules change in the same transaction.
#[test]
fn change_of_assignments_and_rules_moves_sessions_that_no_rule_concerns() {
    let (mut harness, mut clients) = streams(1);
    let op = rule("other", 77, false);
    harness.assign("none", "*", &["elsewhere"]);
    harness.apply(&access_change(vec![op]));
    harness.settle();
    assert!(!is_open(&mut clients[0]), "no rule permits the new scope");
}

/// A node that changes within its stream gets the scopes of the new node, also after a change of rules that does not
/// concern it.
#[test]
fn changed_node_is_placed_after_a_change_of_rules_that_leaves_it_alone() {
    let mut harness = ShardHarness::new();
    harness.assign("first", "n1", &["one"]);
    harness.assign("second", "n2", &["two"]);
    let client = harness.subscribe("n1", CLUSTER, &[]);
    harness.settle();
    harness.apply(&access_change(vec![rule("other", 77, false)]));
    harness.settle();
    let request = DeltaRequest { type_url: CLUSTER.to_owned(), ..DeltaRequest::default() };
    harness.send(&client, Some("n2"), request);
    let entry = harness.sessions().iter().next().unwrap();
    assert_eq!(entry.placed().scopes(), [scope("two")]);
}

/// The answer to a wait for a write does not omit a session that an earlier change has not moved yet.
#[test]
fn revision_is_not_reached_before_all_earlier_moves() {
    let mut harness = ShardHarness::new();
    let _clients: Vec<Client> =
        (0..3).map(|n| harness.subscribe(&format!("n{n}"), CLUSTER, &[])).collect();
    harness.settle();
    let before = harness.state.revision;
    harness.assign("moved", "*", &["other"]);
    harness.put("other", CLUSTER, &[("a", "1")]);
    harness.apply(&access_change(vec![rule("r", 77, false)]));
    assert_eq!(harness.shard.service.reached_revision(), before);
    harness.settle();
    assert_eq!(harness.shard.service.reached_revision(), harness.state.revision);
}

#[test]
fn changes_of_scopes_without_sessions_are_not_compared() {
    let mut harness = ShardHarness::new();
    let mut client = harness.subscribe("n1", ENDPOINT, &["x"]);
    harness.put("default", ENDPOINT, &[("x", "1")]);
    let mut received = |harness: &mut ShardHarness| {
        let responses = harness.read(&mut client);
        responses.iter().for_each(|response| harness.ack(&client, response));
        text(&responses)
    };
    assert_eq!(received(&mut harness), "x=1");
    let sees = |harness: &ShardHarness| {
        ["default", "other"].map(|name| harness.shard.service.placement().sees(&scope(name)))
    };
    assert_eq!(sees(&harness), [true, false]);
    // The stream moves to a scope whose changes were not compared, and receives its present content.
    harness.put("other", ENDPOINT, &[("x", "2")]);
    harness.assign("moved", "*", &["other"]);
    assert_eq!(received(&mut harness), "x=2");
    assert_eq!(sees(&harness), [false, true]);
    harness.put("other", ENDPOINT, &[("x", "3")]);
    assert_eq!(received(&mut harness), "x=3");
    drop(client);
    harness.settle();
    assert_eq!(sees(&harness), [false, false]);
}
