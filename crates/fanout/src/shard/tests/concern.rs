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
    desk::{Client, ShardHarness, key_of, scope},
    offload::{n_away, until_back},
};
use crate::{Change, Config, UnacknowledgedState, concern::Cursor, status::Unacknowledged};

/// Creates a change of resources of one scope and type at the newest revision.
fn change(desk: &ShardHarness, in_scope: &str, type_url: &str, names: &[&str]) -> Change {
    let keys: Vec<_> = names.iter().map(|name| key_of(type_url, name)).collect();
    let place = (scope(in_scope), keys[0].type_url.clone());
    let names = keys.into_iter().map(|key| key.name).collect();
    Change::new(desk.state.revision, BTreeMap::from([(place, names)]), false)
}

fn nodes(desk: &mut ShardHarness, change: &Change) -> BTreeSet<String> {
    desk.concerned(change).1
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Reads and acknowledges all responses for the client.
fn take(desk: &mut ShardHarness, client: &mut Client) {
    for response in desk.read(client) {
        desk.ack(client, &response);
    }
    desk.settle();
}

#[test]
fn change_concerns_sessions_that_subscribe_to_it_and_see_it() {
    let mut desk = ShardHarness::new();
    desk.assign("over", "over*", &["blue", "default"]);
    desk.assign("only", "only*", &["blue"]);
    desk.put("blue", CLUSTER, &[("a", "blue")]);
    let _all = [
        desk.subscribe("wildcard", CLUSTER, &[]),
        desk.subscribe("named", CLUSTER, &["a", "x"]),
        desk.subscribe("absent", CLUSTER, &["x"]),
        desk.subscribe("listeners", LISTENER, &[]),
        desk.subscribe("over-wildcard", CLUSTER, &[]),
        desk.subscribe("over-named", CLUSTER, &["a", "b"]),
        desk.subscribe("only", CLUSTER, &[]),
    ];
    desk.settle();
    desk.put("default", CLUSTER, &[("a", "1")]);
    desk.settle();
    let a = change(&desk, "default", CLUSTER, &["a"]);
    assert_eq!(nodes(&mut desk, &a), set(&["wildcard", "named"]));
    let a_and_b = change(&desk, "default", CLUSTER, &["a", "b"]);
    let expected = set(&["wildcard", "named", "over-wildcard", "over-named"]);
    assert_eq!(nodes(&mut desk, &a_and_b), expected, "no upper scope has `b`");
    let blue = change(&desk, "blue", CLUSTER, &["a"]);
    assert_eq!(nodes(&mut desk, &blue), set(&["over-wildcard", "over-named", "only"]));
    // A removed resource was visible before.
    let deletes = vec![(scope("default"), key_of(CLUSTER, "a"))];
    desk.apply(&Transaction { deletes, ..Transaction::default() });
    desk.settle();
    let gone = change(&desk, "default", CLUSTER, &["a"]);
    assert_eq!(nodes(&mut desk, &gone), set(&["wildcard", "named"]));
}

#[test]
fn unanswered_response_of_other_type_does_not_delay_acknowledgment() {
    let mut desk = ShardHarness::new();
    desk.put("default", CLUSTER, &[("a", "1")]);
    let mut client = desk.subscribe("n1", CLUSTER, &[]);
    take(&mut desk, &mut client);
    desk.put("default", LISTENER, &[("l", "1")]);
    let request = chancery_protocol::DeltaRequest {
        type_url: LISTENER.to_owned(),
        ..chancery_protocol::DeltaRequest::default()
    };
    desk.send(&client, None, request);
    assert_eq!(desk.read(&mut client).len(), 1, "the listener, which stays unacknowledged");
    desk.put("default", CLUSTER, &[("a", "2")]);
    let clusters = desk.read(&mut client);
    let changed = change(&desk, "default", CLUSTER, &["a"]);
    let open = unsettled(&mut desk, &changed);
    assert_eq!(open.len(), 1, "{open:?}");
    assert_eq!(open[0].state, UnacknowledgedState::Pending);
    assert_eq!(open[0].type_url.as_ref().unwrap().as_str(), CLUSTER);
    desk.ack(&client, &clusters[0]);
    desk.settle();
    assert_eq!(unsettled(&mut desk, &changed), []);
    assert_eq!(nodes(&mut desk, &changed), set(&["n1"]));
}

#[test]
fn changed_assignments_concern_the_sessions_that_they_move() {
    let mut desk = ShardHarness::new();
    let mut clients = [desk.subscribe("n1", CLUSTER, &[]), desk.subscribe("n2", CLUSTER, &[])];
    clients.iter_mut().for_each(|client| take(&mut desk, client));
    desk.assign("blue", "n1", &["blue"]);
    desk.settle();
    let moved = |desk: &ShardHarness| Change::new(desk.state.revision, BTreeMap::new(), true);
    let first = moved(&desk);
    assert_eq!(nodes(&mut desk, &first), set(&["n1"]));
    desk.assign("green", "n2", &["green"]);
    desk.settle();
    let second = moved(&desk);
    assert_eq!(nodes(&mut desk, &second), set(&["n2"]));
    // The index has the moved sessions under their new scopes.
    desk.put("blue", CLUSTER, &[("a", "1")]);
    let put = change(&desk, "blue", CLUSTER, &["a"]);
    assert_eq!(put.revision, Revision(3));
    desk.settle();
    assert_eq!(nodes(&mut desk, &put), set(&["n1"]));
}

/// A query costs O(change + concerned sessions), in bounded pages.
#[test]
fn only_concerned_sessions_are_visited_page_by_page() {
    let mut desk = ShardHarness::with(Config { turn_work_max: 4, ..Config::default() });
    let other: Vec<_> =
        (0..100).map(|n| desk.subscribe(&format!("o{n}"), CLUSTER, &["o"])).collect();
    desk.put("default", CLUSTER, &[("a", "1"), ("b", "1"), ("o", "1")]);
    desk.settle();
    let b = change(&desk, "default", CLUSTER, &["b"]);
    assert_eq!(desk.concerned(&b).0.len(), 1, "no session is concerned");
    let _wildcards: Vec<_> =
        (0..9).map(|n| desk.subscribe(&format!("w{n}"), CLUSTER, &[])).collect();
    let _named: Vec<_> =
        (0..9).map(|n| desk.subscribe(&format!("n{n}"), CLUSTER, &["a", "b"])).collect();
    desk.settle();
    let both = change(&desk, "default", CLUSTER, &["a", "b"]);
    let (pages, nodes) = desk.concerned(&both);
    assert!(nodes.len() == 18 && !nodes.contains("o0"), "{nodes:?}");
    assert!(pages.iter().all(|page| page.items.len() <= 4));
    assert!(pages.len() <= 12, "{} pages", pages.len());
    drop(other);
}

/// Returns the concerned types that are not acknowledged.
fn unsettled(desk: &mut ShardHarness, change: &Change) -> Vec<Unacknowledged> {
    let (pages, _) = desk.concerned(change);
    pages.into_iter().flat_map(|page| page.items).flat_map(|one| one.unsettled).collect()
}

/// Returns the states of the concerned types that are not acknowledged.
fn states(desk: &mut ShardHarness, change: &Change) -> Vec<UnacknowledgedState> {
    unsettled(desk, change).into_iter().map(|one| one.state).collect()
}

fn rejected(text: &str) -> Vec<UnacknowledgedState> {
    vec![UnacknowledgedState::Nacked(text.to_owned())]
}

/// SOTW-28: a rejection remains known to those who wait for the rejected revision.
#[test]
fn rejection_is_reported_after_a_later_write_has_repaired_it() {
    let mut desk = ShardHarness::new();
    desk.put("default", CLUSTER, &[("a", "1")]);
    let mut client = desk.subscribe("n1", CLUSTER, &[]);
    take(&mut desk, &mut client);
    desk.put("default", CLUSTER, &[("a", "bad")]);
    let bad = change(&desk, "default", CLUSTER, &["a"]);
    let response = desk.read(&mut client);
    desk.nack(&client, &response[0], "no");
    assert_eq!(states(&mut desk, &bad), rejected("no"));
    desk.put("default", CLUSTER, &[("a", "3")]);
    let repair = change(&desk, "default", CLUSTER, &["a"]);
    assert_eq!(states(&mut desk, &repair), [UnacknowledgedState::Pending]);
    take(&mut desk, &mut client);
    assert_eq!(states(&mut desk, &repair), []);
    assert_eq!(states(&mut desk, &bad), rejected("no"));
}

/// DELTA-19: a delta client that rejects one resource can still acknowledge others.
#[test]
fn rejection_does_not_concern_writes_of_other_resources() {
    let mut desk = ShardHarness::new();
    desk.put("default", CLUSTER, &[("a", "1"), ("b", "1")]);
    let mut client = desk.subscribe("n1", CLUSTER, &[]);
    take(&mut desk, &mut client);
    desk.put("default", CLUSTER, &[("a", "bad")]);
    let response = desk.read(&mut client);
    desk.nack(&client, &response[0], "no");
    desk.put("default", CLUSTER, &[("b", "2")]);
    let of_b = change(&desk, "default", CLUSTER, &["b"]);
    assert_eq!(states(&mut desk, &of_b), [UnacknowledgedState::Pending]);
    take(&mut desk, &mut client);
    assert_eq!(states(&mut desk, &of_b), []);
    // The same revision stands for a write that changes nothing: the client still rejects `a`.
    let of_a = change(&desk, "default", CLUSTER, &["a"]);
    assert_eq!(states(&mut desk, &of_a), rejected("no"));
    desk.put("default", CLUSTER, &[("a", "bad again")]);
    let of_a = change(&desk, "default", CLUSTER, &["a"]);
    let response = desk.read(&mut client);
    desk.nack(&client, &response[0], "no, again");
    assert_eq!(states(&mut desk, &of_a), rejected("no, again"));
    assert_eq!(states(&mut desk, &of_b), []);
}

/// A name that the client adds after its type was acknowledged is part of the same write.
#[test]
fn acknowledgment_of_name_added_later_settles_the_write() {
    let mut desk = ShardHarness::new();
    desk.put("default", CLUSTER, &[("a", "1"), ("b", "1")]);
    let both = change(&desk, "default", CLUSTER, &["a", "b"]);
    let mut client = desk.subscribe("n1", CLUSTER, &["b"]);
    take(&mut desk, &mut client);
    assert_eq!(states(&mut desk, &both), []);
    let request = chancery_protocol::DeltaRequest {
        type_url: CLUSTER.to_owned(),
        subscribe: vec!["a".to_owned()].into(),
        ..chancery_protocol::DeltaRequest::default()
    };
    desk.send(&client, None, request);
    assert_eq!(states(&mut desk, &both)[0], UnacknowledgedState::Pending);
    let response = desk.read(&mut client);
    assert_eq!(states(&mut desk, &both)[0], UnacknowledgedState::Pending);
    desk.nack(&client, &response[0], "no");
    assert_eq!(states(&mut desk, &both)[0], UnacknowledgedState::Nacked("no".to_owned()));
}

/// DELTA-19: a client that skips a response and rejects the next one has not accepted the first.
#[test]
fn skipped_response_is_not_acknowledged_by_a_rejection() {
    let mut desk = ShardHarness::new();
    desk.put("default", CLUSTER, &[("a", "1"), ("b", "1")]);
    let mut client = desk.subscribe("n1", CLUSTER, &[]);
    take(&mut desk, &mut client);
    desk.put("default", CLUSTER, &[("a", "2")]);
    let skipped = change(&desk, "default", CLUSTER, &["a"]);
    assert_eq!(desk.read(&mut client).len(), 1);
    desk.put("default", CLUSTER, &[("b", "2")]);
    desk.ms += desk.shard.protocol.ack_timeout_ms;
    let second = desk.read(&mut client);
    desk.nack(&client, &second[0], "no");
    desk.settle();
    assert_eq!(states(&mut desk, &skipped), [UnacknowledgedState::Pending]);
}

/// OPS-05: a session that a write moves has to acknowledge what it receives. A session that the write
/// leaves without an assignment receives nothing, so it cannot acknowledge the write.
#[test]
fn session_without_an_assignment_is_concerned_by_the_write_that_removed_it() {
    let mut desk = ShardHarness::new();
    desk.put("default", CLUSTER, &[("a", "1")]);
    let mut client = desk.subscribe("n1", CLUSTER, &[]);
    take(&mut desk, &mut client);
    let moved = |desk: &ShardHarness| Change::new(desk.state.revision, BTreeMap::new(), true);
    desk.assign("empty", "n1", &["empty"]);
    desk.settle();
    let to_empty = moved(&desk);
    assert_eq!(states(&mut desk, &to_empty), [UnacknowledgedState::Pending]);
    // The removal of a cluster waits for the listeners and routes that a new client may hold.
    desk.ms += 2 * desk.shard.protocol.resume_hold_ms;
    take(&mut desk, &mut client);
    assert_eq!(states(&mut desk, &to_empty), []);
    let assignments = ["default", "empty"].map(|name| AssignmentOp::Delete(name.into())).to_vec();
    desk.apply(&Transaction { assignments, ..Transaction::default() });
    desk.settle();
    let _stranger = desk.subscribe("n2", CLUSTER, &[]);
    let to_none = moved(&desk);
    assert_eq!(nodes(&mut desk, &to_none), set(&["n1"]), "n2 had no assignment before");
    assert_eq!(states(&mut desk, &to_none), [UnacknowledgedState::Unassigned]);
}

/// A session that is not reassigned yet is not in the index under its new scopes.
#[test]
fn shard_is_behind_until_all_sessions_are_reassigned() {
    let mut desk = ShardHarness::with(Config { turn_work_max: 2, ..Config::default() });
    let clients: Vec<_> = (0..9).map(|n| desk.subscribe(&format!("n{n}"), CLUSTER, &[])).collect();
    desk.settle();
    desk.assign("blue", "n*", &["blue"]);
    while desk.shard.marked_revision() < desk.state.revision {
        desk.turn();
    }
    desk.put("blue", CLUSTER, &[("a", "1")]);
    while desk.shard.marked_revision() < desk.state.revision {
        desk.turn();
    }
    let of_a = change(&desk, "blue", CLUSTER, &["a"]);
    let (pages, nodes) = desk.concerned(&of_a);
    assert!(pages[0].behind.is_some() && nodes.is_empty(), "{nodes:?}");
    desk.settle();
    assert_eq!(desk.concerned(&of_a).1.len(), clients.len());
}

/// A session with many names is not in the index under its new scopes until the move ends. The same
/// holds for a session that handles a large request when the assignments change.
#[test]
fn shard_is_behind_until_large_sessions_have_moved() {
    let mut desk = ShardHarness::new();
    let names: Vec<String> = (0..5_000).map(|n| format!("x{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let _moving = desk.subscribe("moving", ENDPOINT, &names);
    until_back(&mut desk);
    let _asking = desk.subscribe("asking", ENDPOINT, &names);
    desk.assign("blue", "*", &["blue"]);
    // These turns take no session back.
    turns(&mut desk, 10);
    assert_eq!(n_away(&desk), 2);
    desk.put("blue", ENDPOINT, &[("x7", "1")]);
    turns(&mut desk, 10);
    let of_x = change(&desk, "blue", ENDPOINT, &["x7"]);
    let mut before = of_x.clone();
    before.revision = Revision(desk.state.assignments.changed.0 - 1);
    assert!(desk.concerned(&before).0[0].behind.is_none());
    let (blue, x7) = (scope("blue"), key_of(ENDPOINT, "x7"));
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let is_behind = desk.concerned(&of_x).0[0].behind.is_some();
        let n_registered = desk.shard.index.named(&blue, &x7.type_url, &x7.name).len();
        assert!(is_behind || n_registered == 2, "{n_registered} sessions are in the index");
        if !is_behind {
            break;
        }
        assert!(Instant::now() < deadline, "the sessions do not move");
        std::thread::sleep(Duration::from_millis(1));
        for back in desk.ready_list.take_back(1) {
            desk.shard.come_back(back, desk.now());
        }
        turns(&mut desk, 1);
    }
    until_back(&mut desk);
    assert_eq!(desk.shard.reached_revision(), desk.state.revision);
    assert_eq!(nodes(&mut desk, &of_x), set(&["asking", "moving"]));
}

/// A stream that ends while its session moves no longer holds the shard back.
#[test]
fn ended_stream_does_not_keep_the_shard_behind() {
    let mut desk = ShardHarness::new();
    let names: Vec<String> = (0..5_000).map(|n| format!("x{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let client = desk.subscribe("n1", ENDPOINT, &names);
    until_back(&mut desk);
    desk.assign("blue", "*", &["blue"]);
    turns(&mut desk, 10);
    assert!(desk.shard.reached_revision() < desk.state.revision);
    drop(client);
    desk.shard.on_calls(&desk.ready_list, desk.now());
    assert_eq!(desk.shard.reached_revision(), desk.state.revision);
    until_back(&mut desk);
    assert!(desk.shard.sessions.is_empty());
    assert_eq!(desk.shard.reached_revision(), desk.state.revision);
}

#[test]
fn page_has_at_least_one_session_with_the_smallest_budget() {
    let mut desk = ShardHarness::with(Config { turn_work_max: 1, ..Config::default() });
    let _clients: Vec<_> =
        (0..3).map(|n| desk.subscribe(&format!("n{n}"), CLUSTER, &["a"])).collect();
    desk.put("default", CLUSTER, &[("a", "1")]);
    desk.settle();
    let of_a = change(&desk, "default", CLUSTER, &["a"]);
    let (mut found, mut next) = (BTreeSet::new(), Some(Cursor::default()));
    for _ in 0..20 {
        let Some(from) = next else { break };
        let page = desk.shard.concerned_page(&of_a, from);
        found.extend(page.items.iter().map(|one| one.node.id.clone()));
        next = page.next;
    }
    assert_eq!((next.is_none(), found), (true, set(&["n0", "n1", "n2"])));
}

/// Takes turns that take no session back.
fn turns(desk: &mut ShardHarness, n: usize) {
    for _ in 0..n {
        let now = desk.now();
        desk.shard.on_state(&desk.state, now);
        desk.shard.turn(now);
    }
}
