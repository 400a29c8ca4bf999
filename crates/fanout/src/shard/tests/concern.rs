//! The sessions that a change concerns.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use chancery_model::{
    AssignmentOp, Revision, Transaction,
    types::{CLUSTER, ENDPOINT, LISTENER},
};

use super::{
    harness::{Client, ShardHarness, key_of, scope},
    offload::{n_offloaded, until_none_offloaded},
};
use crate::{
    Change, Config, UnacknowledgedState,
    messages::{change::QueryPosition, status::Unacknowledged},
};

/// Creates a change of resources of one scope and type at the newest revision.
fn change(harness: &ShardHarness, in_scope: &str, type_url: &str, names: &[&str]) -> Change {
    let keys: Vec<_> = names.iter().map(|name| key_of(type_url, name)).collect();
    let place = (scope(in_scope), keys[0].type_url.clone());
    let names = keys.into_iter().map(|key| key.name).collect();
    Change::new(harness.state.revision, BTreeMap::from([(place, names)]), false)
}

fn nodes(harness: &mut ShardHarness, change: &Change) -> BTreeSet<String> {
    harness.concerned(change).1
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Reads and acknowledges all responses for the client.
fn take(harness: &mut ShardHarness, client: &mut Client) {
    for response in harness.read(client) {
        harness.ack(client, &response);
    }
    harness.settle();
}

#[test]
fn change_concerns_sessions_that_subscribe_to_it_and_see_it() {
    let mut harness = ShardHarness::new();
    harness.assign("over", "over*", &["blue", "default"]);
    harness.assign("only", "only*", &["blue"]);
    harness.put("blue", CLUSTER, &[("a", "blue")]);
    let _all = [
        harness.subscribe("wildcard", CLUSTER, &[]),
        harness.subscribe("named", CLUSTER, &["a", "x"]),
        harness.subscribe("absent", CLUSTER, &["x"]),
        harness.subscribe("listeners", LISTENER, &[]),
        harness.subscribe("over-wildcard", CLUSTER, &[]),
        harness.subscribe("over-named", CLUSTER, &["a", "b"]),
        harness.subscribe("only", CLUSTER, &[]),
    ];
    harness.settle();
    harness.put("default", CLUSTER, &[("a", "1")]);
    harness.settle();
    let a = change(&harness, "default", CLUSTER, &["a"]);
    assert_eq!(nodes(&mut harness, &a), set(&["wildcard", "named"]));
    let a_and_b = change(&harness, "default", CLUSTER, &["a", "b"]);
    let expected = set(&["wildcard", "named", "over-wildcard", "over-named"]);
    assert_eq!(nodes(&mut harness, &a_and_b), expected, "no upper scope has `b`");
    let blue = change(&harness, "blue", CLUSTER, &["a"]);
    assert_eq!(nodes(&mut harness, &blue), set(&["over-wildcard", "over-named", "only"]));
    // A removed resource was visible before.
    let deletes = vec![(scope("default"), key_of(CLUSTER, "a"))];
    harness.apply(&Transaction { deletes, ..Transaction::default() });
    harness.settle();
    let gone = change(&harness, "default", CLUSTER, &["a"]);
    assert_eq!(nodes(&mut harness, &gone), set(&["wildcard", "named"]));
}

#[test]
fn unanswered_response_of_other_type_does_not_delay_acknowledgment() {
    let mut harness = ShardHarness::new();
    harness.put("default", CLUSTER, &[("a", "1")]);
    let mut client = harness.subscribe("n1", CLUSTER, &[]);
    take(&mut harness, &mut client);
    harness.put("default", LISTENER, &[("l", "1")]);
    let request = chancery_protocol::DeltaRequest {
        type_url: LISTENER.to_owned(),
        ..chancery_protocol::DeltaRequest::default()
    };
    harness.send(&client, None, request);
    assert_eq!(harness.read(&mut client).len(), 1, "the listener, which stays unacknowledged");
    harness.put("default", CLUSTER, &[("a", "2")]);
    let clusters = harness.read(&mut client);
    let changed = change(&harness, "default", CLUSTER, &["a"]);
    let open = unsettled(&mut harness, &changed);
    assert_eq!(open.len(), 1, "{open:?}");
    assert_eq!(open[0].state, UnacknowledgedState::Pending);
    assert_eq!(open[0].type_url.as_ref().unwrap().as_str(), CLUSTER);
    harness.ack(&client, &clusters[0]);
    harness.settle();
    assert_eq!(unsettled(&mut harness, &changed), []);
    assert_eq!(nodes(&mut harness, &changed), set(&["n1"]));
}

#[test]
fn changed_assignments_concern_the_sessions_that_they_move() {
    let mut harness = ShardHarness::new();
    let mut clients =
        [harness.subscribe("n1", CLUSTER, &[]), harness.subscribe("n2", CLUSTER, &[])];
    clients.iter_mut().for_each(|client| take(&mut harness, client));
    harness.assign("blue", "n1", &["blue"]);
    harness.settle();
    let moved = |harness: &ShardHarness| Change::new(harness.state.revision, BTreeMap::new(), true);
    let first = moved(&harness);
    assert_eq!(nodes(&mut harness, &first), set(&["n1"]));
    harness.assign("green", "n2", &["green"]);
    harness.settle();
    let second = moved(&harness);
    assert_eq!(nodes(&mut harness, &second), set(&["n2"]));
    // The index has the moved sessions under their new scopes.
    harness.put("blue", CLUSTER, &[("a", "1")]);
    let put = change(&harness, "blue", CLUSTER, &["a"]);
    assert_eq!(put.revision, Revision(3));
    harness.settle();
    assert_eq!(nodes(&mut harness, &put), set(&["n1"]));
}

/// A query costs O(change + concerned sessions), in bounded pages.
#[test]
fn only_concerned_sessions_are_visited_page_by_page() {
    let mut harness = ShardHarness::with(Config { turn_work_max: 4, ..Config::default() });
    let other: Vec<_> =
        (0..100).map(|n| harness.subscribe(&format!("o{n}"), CLUSTER, &["o"])).collect();
    harness.put("default", CLUSTER, &[("a", "1"), ("b", "1"), ("o", "1")]);
    harness.settle();
    let b = change(&harness, "default", CLUSTER, &["b"]);
    assert_eq!(harness.concerned(&b).0.len(), 1, "no session is concerned");
    let _wildcards: Vec<_> =
        (0..9).map(|n| harness.subscribe(&format!("w{n}"), CLUSTER, &[])).collect();
    let _named: Vec<_> =
        (0..9).map(|n| harness.subscribe(&format!("n{n}"), CLUSTER, &["a", "b"])).collect();
    harness.settle();
    let both = change(&harness, "default", CLUSTER, &["a", "b"]);
    let (pages, nodes) = harness.concerned(&both);
    assert!(nodes.len() == 18 && !nodes.contains("o0"), "{nodes:?}");
    assert!(pages.iter().all(|page| page.items.len() <= 4));
    assert!(pages.len() <= 12, "{} pages", pages.len());
    drop(other);
}

/// Returns the concerned types that are not acknowledged.
fn unsettled(harness: &mut ShardHarness, change: &Change) -> Vec<Unacknowledged> {
    let (pages, _) = harness.concerned(change);
    pages.into_iter().flat_map(|page| page.items).flat_map(|one| one.unsettled).collect()
}

/// Returns the states of the concerned types that are not acknowledged.
fn states(harness: &mut ShardHarness, change: &Change) -> Vec<UnacknowledgedState> {
    unsettled(harness, change).into_iter().map(|one| one.state).collect()
}

fn rejected(text: &str) -> Vec<UnacknowledgedState> {
    vec![UnacknowledgedState::Nacked(text.to_owned())]
}

/// SOTW-28: a rejection remains known to those who wait for the rejected revision.
#[test]
fn rejection_is_reported_after_a_later_write_has_repaired_it() {
    let mut harness = ShardHarness::new();
    harness.put("default", CLUSTER, &[("a", "1")]);
    let mut client = harness.subscribe("n1", CLUSTER, &[]);
    take(&mut harness, &mut client);
    harness.put("default", CLUSTER, &[("a", "bad")]);
    let bad = change(&harness, "default", CLUSTER, &["a"]);
    let response = harness.read(&mut client);
    harness.nack(&client, &response[0], "no");
    assert_eq!(states(&mut harness, &bad), rejected("no"));
    harness.put("default", CLUSTER, &[("a", "3")]);
    let repair = change(&harness, "default", CLUSTER, &["a"]);
    assert_eq!(states(&mut harness, &repair), [UnacknowledgedState::Pending]);
    take(&mut harness, &mut client);
    assert_eq!(states(&mut harness, &repair), []);
    assert_eq!(states(&mut harness, &bad), rejected("no"));
}

/// DELTA-19: a delta client that rejects one resource can still acknowledge others.
#[test]
fn rejection_does_not_concern_writes_of_other_resources() {
    let mut harness = ShardHarness::new();
    harness.put("default", CLUSTER, &[("a", "1"), ("b", "1")]);
    let mut client = harness.subscribe("n1", CLUSTER, &[]);
    take(&mut harness, &mut client);
    harness.put("default", CLUSTER, &[("a", "bad")]);
    let response = harness.read(&mut client);
    harness.nack(&client, &response[0], "no");
    harness.put("default", CLUSTER, &[("b", "2")]);
    let of_b = change(&harness, "default", CLUSTER, &["b"]);
    assert_eq!(states(&mut harness, &of_b), [UnacknowledgedState::Pending]);
    take(&mut harness, &mut client);
    assert_eq!(states(&mut harness, &of_b), []);
    // The same revision stands for a write that changes nothing: the client still rejects `a`.
    let of_a = change(&harness, "default", CLUSTER, &["a"]);
    assert_eq!(states(&mut harness, &of_a), rejected("no"));
    harness.put("default", CLUSTER, &[("a", "bad again")]);
    let of_a = change(&harness, "default", CLUSTER, &["a"]);
    let response = harness.read(&mut client);
    harness.nack(&client, &response[0], "no, again");
    assert_eq!(states(&mut harness, &of_a), rejected("no, again"));
    assert_eq!(states(&mut harness, &of_b), []);
}

/// A wait for everything up to a revision does not end well while the client rejects an earlier one.
#[test]
fn standing_rejection_concerns_everything_after_it() {
    let mut harness = ShardHarness::new();
    harness.put("default", CLUSTER, &[("a", "1"), ("b", "1")]);
    let mut client = harness.subscribe("n1", CLUSTER, &[]);
    take(&mut harness, &mut client);
    let before = harness.state.revision;
    harness.put("default", CLUSTER, &[("a", "bad")]);
    let response = harness.read(&mut client);
    harness.nack(&client, &response[0], "no");
    harness.put("default", CLUSTER, &[("b", "2")]);
    take(&mut harness, &mut client);
    let later = harness.state.revision;
    assert_eq!(states(&mut harness, &Change::anything(later)), []);
    assert_eq!(states(&mut harness, &Change::everything(later)), rejected("no"));
    assert_eq!(states(&mut harness, &Change::everything(before)), []);
    harness.put("default", CLUSTER, &[("a", "3")]);
    take(&mut harness, &mut client);
    assert_eq!(states(&mut harness, &Change::everything(later)), []);
}

/// A name that the client adds after its type was acknowledged is part of the same write.
#[test]
fn acknowledgment_of_name_added_later_settles_the_write() {
    let mut harness = ShardHarness::new();
    harness.put("default", CLUSTER, &[("a", "1"), ("b", "1")]);
    let both = change(&harness, "default", CLUSTER, &["a", "b"]);
    let mut client = harness.subscribe("n1", CLUSTER, &["b"]);
    take(&mut harness, &mut client);
    assert_eq!(states(&mut harness, &both), []);
    let request = chancery_protocol::DeltaRequest {
        type_url: CLUSTER.to_owned(),
        subscribe: vec!["a".to_owned()].into(),
        ..chancery_protocol::DeltaRequest::default()
    };
    harness.send(&client, None, request);
    assert_eq!(states(&mut harness, &both)[0], UnacknowledgedState::Pending);
    let response = harness.read(&mut client);
    assert_eq!(states(&mut harness, &both)[0], UnacknowledgedState::Pending);
    harness.nack(&client, &response[0], "no");
    assert_eq!(states(&mut harness, &both)[0], UnacknowledgedState::Nacked("no".to_owned()));
}

/// DELTA-19: a client that skips a response and rejects the next one has not accepted the first.
#[test]
fn skipped_response_is_not_acknowledged_by_a_rejection() {
    let mut harness = ShardHarness::new();
    harness.put("default", CLUSTER, &[("a", "1"), ("b", "1")]);
    let mut client = harness.subscribe("n1", CLUSTER, &[]);
    take(&mut harness, &mut client);
    harness.put("default", CLUSTER, &[("a", "2")]);
    let skipped = change(&harness, "default", CLUSTER, &["a"]);
    assert_eq!(harness.read(&mut client).len(), 1);
    harness.put("default", CLUSTER, &[("b", "2")]);
    harness.ms += harness.parts().protocol.ack_timeout_ms;
    let second = harness.read(&mut client);
    harness.nack(&client, &second[0], "no");
    harness.settle();
    assert_eq!(states(&mut harness, &skipped), [UnacknowledgedState::Pending]);
}

/// OPS-05: a session that a write moves has to acknowledge what it receives. A session that the write
/// leaves without an assignment receives nothing, so it cannot acknowledge the write.
#[test]
fn session_without_an_assignment_is_concerned_by_the_write_that_removed_it() {
    let mut harness = ShardHarness::new();
    harness.put("default", CLUSTER, &[("a", "1")]);
    let mut client = harness.subscribe("n1", CLUSTER, &[]);
    take(&mut harness, &mut client);
    let moved = |harness: &ShardHarness| Change::new(harness.state.revision, BTreeMap::new(), true);
    harness.assign("empty", "n1", &["empty"]);
    harness.settle();
    let to_empty = moved(&harness);
    assert_eq!(states(&mut harness, &to_empty), [UnacknowledgedState::Pending]);
    // The removal of a cluster waits for the listeners and routes that a new client may hold.
    harness.ms += 2 * harness.parts().protocol.resume_hold_ms;
    take(&mut harness, &mut client);
    assert_eq!(states(&mut harness, &to_empty), []);
    let assignments = ["default", "empty"].map(|name| AssignmentOp::Delete(name.into())).to_vec();
    harness.apply(&Transaction { assignments, ..Transaction::default() });
    harness.settle();
    let _stranger = harness.subscribe("n2", CLUSTER, &[]);
    let to_none = moved(&harness);
    assert_eq!(nodes(&mut harness, &to_none), set(&["n1"]), "n2 had no assignment before");
    assert_eq!(states(&mut harness, &to_none), [UnacknowledgedState::Unassigned]);
}

/// A session that is not reassigned yet is not in the index under its new scopes.
#[test]
fn shard_is_behind_until_all_sessions_are_reassigned() {
    let mut harness = ShardHarness::with(Config { turn_work_max: 2, ..Config::default() });
    let clients: Vec<_> =
        (0..9).map(|n| harness.subscribe(&format!("n{n}"), CLUSTER, &[])).collect();
    harness.settle();
    harness.assign("blue", "n*", &["blue"]);
    while harness.shard.service.marked_revision() < harness.state.revision {
        harness.turn();
    }
    harness.put("blue", CLUSTER, &[("a", "1")]);
    while harness.shard.service.marked_revision() < harness.state.revision {
        harness.turn();
    }
    let of_a = change(&harness, "blue", CLUSTER, &["a"]);
    let (pages, nodes) = harness.concerned(&of_a);
    assert!(pages[0].behind.is_some() && nodes.is_empty(), "{nodes:?}");
    harness.settle();
    assert_eq!(harness.concerned(&of_a).1.len(), clients.len());
}

/// A session with many names is not in the index under its new scopes until the move ends. The same
/// holds for a session that handles a large request when the assignments change.
#[test]
fn shard_is_behind_until_large_sessions_have_moved() {
    let mut harness = ShardHarness::new();
    let names: Vec<String> = (0..5_000).map(|n| format!("x{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let _moving = harness.subscribe("moving", ENDPOINT, &names);
    until_none_offloaded(&mut harness);
    let _asking = harness.subscribe("asking", ENDPOINT, &names);
    harness.assign("blue", "*", &["blue"]);
    // These turns take no session back.
    turns(&mut harness, 10);
    assert_eq!(n_offloaded(&harness), 2);
    harness.put("blue", ENDPOINT, &[("x7", "1")]);
    turns(&mut harness, 10);
    let of_x = change(&harness, "blue", ENDPOINT, &["x7"]);
    let mut before = of_x.clone();
    before.revision = Revision(harness.state.assignments.changed.0 - 1);
    assert!(harness.concerned(&before).0[0].behind.is_none());
    let (blue, x7) = (scope("blue"), key_of(ENDPOINT, "x7"));
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let is_behind = harness.concerned(&of_x).0[0].behind.is_some();
        let n_registered = harness.sessions().index().named(&blue, &x7.type_url, &x7.name).len();
        assert!(is_behind || n_registered == 2, "{n_registered} sessions are in the index");
        if !is_behind {
            break;
        }
        assert!(Instant::now() < deadline, "the sessions do not move");
        std::thread::sleep(Duration::from_millis(1));
        for back in harness.ready_list.take_back(1) {
            harness.shard.service.on_returned(back, harness.now());
        }
        turns(&mut harness, 1);
    }
    until_none_offloaded(&mut harness);
    assert_eq!(harness.shard.service.reached_revision(), harness.state.revision);
    assert_eq!(nodes(&mut harness, &of_x), set(&["asking", "moving"]));
}

/// A stream that ends while its session moves no longer holds the shard back.
#[test]
fn ended_stream_does_not_keep_the_shard_behind() {
    let mut harness = ShardHarness::new();
    let names: Vec<String> = (0..5_000).map(|n| format!("x{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let client = harness.subscribe("n1", ENDPOINT, &names);
    until_none_offloaded(&mut harness);
    harness.assign("blue", "*", &["blue"]);
    turns(&mut harness, 10);
    assert!(harness.shard.service.reached_revision() < harness.state.revision);
    drop(client);
    harness.shard.on_calls(&harness.ready_list, harness.now());
    assert_eq!(harness.shard.service.reached_revision(), harness.state.revision);
    until_none_offloaded(&mut harness);
    assert!(harness.sessions().is_empty());
    assert_eq!(harness.shard.service.reached_revision(), harness.state.revision);
}

#[test]
fn page_has_at_least_one_session_with_the_smallest_budget() {
    let mut harness = ShardHarness::with(Config { turn_work_max: 1, ..Config::default() });
    let _clients: Vec<_> =
        (0..3).map(|n| harness.subscribe(&format!("n{n}"), CLUSTER, &["a"])).collect();
    harness.put("default", CLUSTER, &[("a", "1")]);
    harness.settle();
    let of_a = change(&harness, "default", CLUSTER, &["a"]);
    let (mut found, mut next) = (BTreeSet::new(), Some(QueryPosition::default()));
    for _ in 0..20 {
        let Some(from) = next else { break };
        let page = harness.shard.service.concerned_page(&of_a, from);
        found.extend(page.items.iter().map(|one| one.node.id.clone()));
        next = page.next;
    }
    assert_eq!((next.is_none(), found), (true, set(&["n0", "n1", "n2"])));
}

/// Takes turns that take no session back.
fn turns(harness: &mut ShardHarness, n: usize) {
    for _ in 0..n {
        let now = harness.now();
        harness.shard.on_state(&harness.state, now);
        harness.shard.turn(now);
    }
}
