//! Tests of a shard without a runtime: events in, messages out.

use std::{sync::Arc, task::Poll};

use chancery_model::{
    Assignment, AssignmentOp, Incarnation, Node, NodeMatcher, ScopeTemplate, Transaction, TypeUrl,
    types::{CLUSTER, ENDPOINT},
};
use chancery_protocol::{DeltaRequest, Request};

use self::desk::{Client, ShardHarness, answer, decode, text};
use super::*;
use crate::{Delivery, End, EndCode, SecretFinder, UnacknowledgedState};

mod concern;
mod counting;
mod desk;
mod fairness;
mod marking;
mod offload;
mod silence;
mod storm;

/// SOTW-90, SOTW-91: a change is sent to the sessions that subscribe to it, and no other session is
/// queued.
#[test]
fn change_reaches_only_subscribed_sessions() {
    let mut desk = ShardHarness::new();
    desk.put("default", ENDPOINT, &[("x", "1"), ("y", "1")]);
    let mut x = desk.subscribe("n1", ENDPOINT, &["x"]);
    let mut y = desk.subscribe("n2", ENDPOINT, &["y"]);
    for client in [&mut x, &mut y] {
        let first = desk.read(client);
        assert_eq!(first.len(), 1);
        desk.ack(client, &first[0]);
    }
    desk.settle();
    desk.put("default", ENDPOINT, &[("x", "2")]);
    assert_eq!(desk.shard.queue.len(), 1, "only one session is affected");
    assert_eq!(text(&desk.read(&mut x)), "x=2");
    assert_eq!(text(&desk.read(&mut y)), "");
}

/// SOTW-112, OPS-10: while a stream cannot take a message, commits coalesce into one response. The
/// response is built when the stream can take it.
#[test]
fn commits_coalesce_while_client_does_not_read() {
    let mut desk = ShardHarness::new();
    desk.put("default", CLUSTER, &[("a", "1")]);
    let mut client = desk.subscribe("n1", CLUSTER, &[]);
    desk.settle();
    // The first response waits in the slot: the client has not read it.
    for version in 2..50 {
        desk.put("default", CLUSTER, &[("b", &version.to_string()), ("a", &version.to_string())]);
        desk.ms += 6_000;
        desk.settle();
    }
    let Poll::Ready(Delivery::Message(message)) = client.poll() else {
        panic!("no first response")
    };
    assert_eq!(text(&[decode(message)]), "a=1");
    let rest = desk.read(&mut client);
    assert_eq!((rest.len(), text(&rest).as_str()), (1, "a=49 b=49"));
}

/// Requests of a client are handled while the client does not read.
#[test]
fn requests_are_handled_while_stream_cannot_be_written() {
    let mut desk = ShardHarness::new();
    desk.put("default", CLUSTER, &[("a", "1")]);
    desk.put("default", ENDPOINT, &[("x", "1")]);
    let mut client = desk.subscribe("n1", CLUSTER, &[]);
    desk.settle();
    let subscribe = DeltaRequest {
        type_url: ENDPOINT.to_owned(),
        subscribe: vec!["x".to_owned()].into(),
        ..DeltaRequest::default()
    };
    desk.send(&client, None, subscribe);
    desk.settle();
    let statuses = desk.shard.status_page(0).items;
    assert_eq!(statuses[0].subscriptions.len(), 2, "the second type is subscribed");
    assert_eq!(text(&desk.read(&mut client)), "a=1 x=1");
}

/// A client that never acknowledges receives the newest state after the ACK timeout.
#[test]
fn silent_client_receives_newest_state_after_ack_timeout() {
    let mut desk = ShardHarness::new();
    desk.put("default", CLUSTER, &[("a", "1")]);
    let mut client = desk.subscribe("n1", CLUSTER, &[]);
    assert_eq!(text(&desk.read(&mut client)), "a=1");
    desk.put("default", CLUSTER, &[("a", "2")]);
    assert_eq!(text(&desk.read(&mut client)), "", "the first response is unacknowledged");
    desk.put("default", CLUSTER, &[("a", "3")]);
    let Flow::Wait(Some(at)) = desk.shard.turn(desk.now()) else { panic!("no timer is set") };
    assert_eq!(at, desk.ms + desk.shard.protocol.ack_timeout_ms);
    desk.ms = at;
    assert_eq!(text(&desk.read(&mut client)), "a=3");
}

/// SOTW-111: closing a stream frees everything that the shard holds for it.
#[test]
fn closed_stream_frees_all_shard_state() {
    let mut desk = ShardHarness::new();
    desk.assign("own", "*", &["node/{node.id}", "mesh"]);
    desk.put("mesh", CLUSTER, &[("a", "1")]);
    let wildcard = desk.subscribe("n1", CLUSTER, &[]);
    let named = desk.subscribe("n2", ENDPOINT, &["x", "y"]);
    desk.settle();
    assert_eq!(desk.shard.sessions.len(), 2);
    let slot = Arc::clone(&named.slot);
    drop((wildcard, named));
    desk.settle();
    assert!(desk.shard.sessions.is_empty() && desk.shard.index.is_empty());
    assert_eq!(desk.shard.views.n_lists(), 0);
    // A request that was already in the inbox has no effect.
    let request = Request::Delta(DeltaRequest::default());
    desk.shard.handle(Event::Request { slot, request, node: None, permit: None }, desk.now());
    assert!(desk.shard.sessions.is_empty());
}

/// OPS-10: short streams leave nothing that grows, neither in queues nor in timers.
#[test]
fn short_streams_do_not_grow_queues_or_timers() {
    let session = chancery_protocol::Config {
        ack_close_after_ms: Some(3_600_000),
        ..chancery_protocol::Config::default()
    };
    let mut desk = ShardHarness::with(Config { session, ..Config::default() });
    desk.put("default", CLUSTER, &[("a", "1")]);
    for round in 0..5_000 {
        let mut client = desk.subscribe("n1", CLUSTER, &[]);
        if round % 2 == 0 {
            // The client reads, and leaves while a change and its own answer are pending.
            desk.settle();
            assert!(client.take().is_some());
            desk.put("default", CLUSTER, &[("a", &round.to_string())]);
            assert!(client.take().is_none());
            desk.settle();
        }
        drop(client);
        desk.ms += 1;
        desk.shard.on_calls(&desk.ready_list, desk.now());
        let left = [desk.shard.queue.len(), desk.shard.timers.len(), desk.shard.closing.len()];
        assert!(left.iter().all(|n| *n <= LEFT_OVER_MAX + 10), "left: {left:?}");
    }
    desk.settle();
    assert!(desk.shard.sessions.is_empty());
    assert!(desk.shard.queue.is_empty());
    let left = [desk.shard.timers.len(), desk.shard.closing.len()];
    assert!(left.iter().all(|n| *n > 0), "{left:?}: no timer was left to drop");
}

/// OPS-05, SOTW-71: a node without assignment receives no response. An empty view would delete all its
/// resources. The node receives a response once an assignment matches.
#[test]
fn a_node_without_assignment_receives_nothing_until_it_has_one() {
    let mut desk = ShardHarness::new();
    desk.apply(&Transaction {
        assignments: vec![AssignmentOp::Delete("default".into())],
        ..Transaction::default()
    });
    let mut client = desk.subscribe("n1", CLUSTER, &[]);
    assert_eq!(desk.read(&mut client).len(), 0);
    assert_eq!(desk.unsettled(), [], "nothing is due");
    desk.assign("late", "n*", &["empty"]);
    let answer = desk.read(&mut client);
    assert_eq!((answer.len(), text(&answer).as_str()), (1, ""));
    desk.ack(&client, &answer[0]);
    desk.put("empty", CLUSTER, &[("a", "1")]);
    assert_eq!(text(&desk.read(&mut client)), "a=1", "its subscription is in the index");
}

/// A changed assignment moves the affected nodes by the difference of their views. No node is served
/// from its old scopes afterwards.
#[test]
fn changed_assignment_sends_nodes_the_view_difference() {
    let mut desk = ShardHarness::with(Config { turn_work_max: 1, ..Config::default() });
    desk.put("default", CLUSTER, &[("a", "1"), ("b", "1")]);
    desk.put("blue", CLUSTER, &[("b", "2"), ("c", "1")]);
    let mut clients: Vec<Client> =
        (0..5).map(|n| desk.subscribe(&format!("n{n}"), CLUSTER, &[])).collect();
    for client in &mut clients {
        let first = desk.read(client);
        assert_eq!(text(&first), "a=1 b=1");
        desk.ack(client, &first[0]);
    }
    desk.settle();
    desk.assign("blue", "n3", &["blue", "default"]);
    // A commit follows before the shard has reassigned all sessions.
    desk.put("blue", CLUSTER, &[("d", "1")]);
    for (n, client) in clients.iter_mut().enumerate() {
        let expected = if n == 3 { "b=2 c=1 d=1" } else { "" };
        assert_eq!(text(&desk.read(client)), expected, "n{n}");
    }
    desk.put("blue", CLUSTER, &[("c", "2")]);
    desk.ms += 10_000;
    assert_eq!(text(&desk.read(&mut clients[3])), "c=2");
}

/// SOTW-03: the shard adopts changed metadata, which may lead to other scopes.
#[test]
fn changed_node_metadata_changes_the_assignment() {
    let mut desk = ShardHarness::new();
    let template = |text| ScopeTemplate::parse(text).unwrap();
    let assignment = Assignment {
        name: "by-mesh".into(),
        priority: 1,
        matcher: NodeMatcher::default(),
        scopes: vec![template("mesh/{metadata.mesh}")],
    };
    desk.apply(&Transaction {
        assignments: vec![AssignmentOp::Put(assignment)],
        ..Transaction::default()
    });
    desk.put("mesh/m2", CLUSTER, &[("a", "2")]);
    let mut client = desk.subscribe("n1", CLUSTER, &[]);
    let first = desk.read(&mut client);
    assert_eq!(text(&first), "");
    let mut node = Node { id: "n1".into(), ..Node::default() };
    node.metadata.insert("mesh".into(), "m2".into());
    let request = Request::Delta(answer(&first[0], None));
    let slot = Arc::clone(&client.slot);
    desk.shard.handle(
        Event::Request { slot, request, node: Some(Arc::new(node)), permit: None },
        desk.now(),
    );
    assert_eq!(text(&desk.read(&mut client)), "a=2");
}

/// A turn is bounded, whatever the number of marked sessions.
#[test]
fn turn_work_is_bounded() {
    let mut desk = ShardHarness::with(Config { turn_work_max: 2, ..Config::default() });
    let mut clients: Vec<Client> =
        (0..5).map(|n| desk.subscribe(&format!("n{n}"), CLUSTER, &[])).collect();
    let left = |desk: &mut ShardHarness, turns: usize| -> Vec<_> {
        let turn = |_| {
            let flow = desk.turn();
            (desk.shard.queue.len(), flow == Flow::Again)
        };
        (0..turns).map(turn).collect()
    };
    let new = [(4, true), (3, true), (2, true), (1, true), (0, false)];
    assert_eq!(left(&mut desk, 5), new, "new streams have a small part of a turn");
    for client in &mut clients {
        let first = desk.read(client);
        desk.ack(client, &first[0]);
    }
    desk.settle();
    desk.put("default", CLUSTER, &[("a", "1")]);
    assert_eq!(left(&mut desk, 3), [(3, true), (1, true), (0, false)]);
}

/// SOTW-111: a half-closed stream ends with OK after the pending response.
#[test]
fn a_half_closed_stream_is_served_and_then_ended() {
    let mut desk = ShardHarness::new();
    desk.put("default", CLUSTER, &[("a", "1")]);
    let mut client = desk.subscribe("n1", CLUSTER, &[]);
    desk.shard.handle(Event::HalfClose { slot: Arc::clone(&client.slot) }, desk.now());
    desk.settle();
    let Poll::Ready(Delivery::Message(message)) = client.poll() else { panic!("no response") };
    assert_eq!(text(&[decode(message)]), "a=1");
    assert!(client.poll().is_pending());
    desk.settle();
    assert_eq!(client.end(), End::ok());
    assert!(desk.shard.sessions.is_empty());
}

/// SVC-09, SOTW-06: a request that breaks a rule ends its stream and frees it.
#[test]
fn a_refused_request_ends_its_stream() {
    let mut desk = ShardHarness::new();
    let mut client = desk.open();
    desk.send(&client, Some("n1"), DeltaRequest::default());
    let end = client.end();
    assert_eq!(end.code, EndCode::InvalidArgument);
    assert!(end.message.contains("type_url is empty"), "{}", end.message);
    assert!(desk.shard.sessions.is_empty());
    let mut client = desk.open();
    desk.send(&client, None, DeltaRequest::default());
    assert!(client.end().message.contains("no node"));
}

/// SOTW-28: the unsettled streams are those that have not acknowledged, each with the reason.
#[test]
fn unsettled_streams_are_those_without_acknowledgment() {
    let mut desk = ShardHarness::new();
    desk.put("default", CLUSTER, &[("a", "1")]);
    let mut good = desk.subscribe("good", CLUSTER, &[]);
    let mut bad = desk.subscribe("bad", CLUSTER, &[]);
    assert_eq!(desk.unsettled().len(), 2);
    let (to_good, to_bad) = (desk.read(&mut good), desk.read(&mut bad));
    assert_eq!(desk.unsettled().len(), 2);
    desk.ack(&good, &to_good[0]);
    desk.nack(&bad, &to_bad[0], "no such thing");
    desk.settle();
    let lagging = desk.unsettled();
    assert_eq!(lagging.len(), 1, "{lagging:?}");
    assert_eq!(lagging[0].node, "bad");
    assert_eq!(lagging[0].state, UnacknowledgedState::Nacked("no such thing".into()));
    let record = &desk.shard.status_page(0).items[1].nacks[0];
    assert_eq!((record.code, record.message.as_str()), (13, "no such thing"));
    desk.put("default", CLUSTER, &[("a", "2")]);
    let to_bad = desk.read(&mut bad);
    let to_good = desk.read(&mut good);
    desk.ack(&bad, &to_bad[0]);
    desk.ack(&good, &to_good[0]);
    desk.settle();
    assert_eq!(desk.unsettled(), []);
    desk.state = Arc::new(State { revision: Revision(99), ..State::clone(&desk.state) });
    let behind = desk.unsettled();
    assert_eq!(behind[0].state, UnacknowledgedState::Behind(Revision(2)), "{behind:?}");
}

/// L: a key that a client quotes in a rejection is neither kept nor shown.
#[test]
fn secret_in_a_rejection_is_not_kept() {
    let mut desk = ShardHarness::new();
    let find = |_: &TypeUrl, body: &[u8], found: &mut dyn FnMut(&[u8])| found(body);
    let config = Config { secrets: SecretFinder::new(find), ..Config::clone(&desk.shard.config) };
    desk.shard.config = Arc::new(config);
    desk.put("default", CLUSTER, &[("cert", "qT7-key-Zz93")]);
    let mut client = desk.subscribe("bad", CLUSTER, &[]);
    let response = desk.read(&mut client);
    desk.nack(&client, &response[0], "cannot load 'qT7-key-Zz93' of cert: inline_string: \"x\"");
    desk.settle();
    let shown = "cannot load '[redacted]' of cert: [redacted]";
    assert_eq!(desk.unsettled()[0].state, UnacknowledgedState::Nacked(shown.into()));
    let page = desk.shard.status_page(0);
    assert_eq!(page.items[0].nacks[0].message, shown);
    let kept = format!("{page:?}");
    assert!(!kept.contains("qT7-key") && !kept.contains("inline_string"), "{kept}");
    // An answer to an unknown response has no effect, and its text is not kept either.
    let mut unknown = response[0].clone();
    unknown.nonce = "77".to_owned();
    desk.nack(&client, &unknown, "qT7-key-Zz93");
    assert!(!format!("{:?}", desk.shard.status_page(0)).contains("qT7-key"));
}

/// OPS-19: the transport truncates a text before the shard searches it, so the text may end inside a
/// secret.
#[test]
fn secret_at_the_end_of_a_truncated_rejection_is_not_kept() {
    for secret in ["hunter2", "qT7-key-Zz93"] {
        let mut desk = ShardHarness::new();
        let find = |_: &TypeUrl, body: &[u8], found: &mut dyn FnMut(&[u8])| found(body);
        let config =
            Config { secrets: SecretFinder::new(find), ..Config::clone(&desk.shard.config) };
        desk.shard.config = Arc::new(config);
        desk.put("default", CLUSTER, &[("cert", secret)]);
        let mut client = desk.subscribe("bad", CLUSTER, &[]);
        let response = desk.read(&mut client);
        let max = desk.shard.config.session.nack_message_bytes_max;
        let start = format!("invalid certificate{}", ".".repeat(max));
        for kept in 1..secret.len() {
            let text = [&start[..max - kept], &secret[..kept]].concat();
            desk.nack(&client, &response[0], &text);
            let page = desk.shard.status_page(0);
            let shown = &page.items[0].nacks[0].message;
            assert!(shown.starts_with("invalid certificate..."), "{shown}");
            assert!(shown.ends_with('.'), "{kept} bytes of {secret}: {shown}");
        }
    }
}

/// OPS-19: a client that rejects a response may quote an earlier unanswered response.
#[test]
fn secret_of_an_unanswered_response_is_not_kept() {
    let mut desk = ShardHarness::new();
    let find = |_: &TypeUrl, body: &[u8], found: &mut dyn FnMut(&[u8])| found(body);
    let config = Config { secrets: SecretFinder::new(find), ..Config::clone(&desk.shard.config) };
    desk.shard.config = Arc::new(config);
    desk.put("default", CLUSTER, &[("cert", "qT7-key-Zz93")]);
    let mut client = desk.subscribe("bad", CLUSTER, &[]);
    let first = desk.read(&mut client);
    desk.put("default", CLUSTER, &[("cert", "rotated")]);
    // The ACK timeout of the first response has passed.
    desk.ms += 10_000;
    let second = desk.read(&mut client);
    assert_eq!((first.len(), second.len()), (1, 1));
    desk.nack(&client, &second[0], "cannot replace 'qT7-key-Zz93' by 'rotated'");
    desk.settle();
    let shown = "cannot replace '[redacted]' by '[redacted]'";
    assert_eq!(desk.unsettled()[0].state, UnacknowledgedState::Nacked(shown.into()));
}

/// A node that a commit moves is unsettled from that commit on, even before the shard has moved it.
#[test]
fn node_is_unsettled_from_commit_that_reassigns_it() {
    let mut desk = ShardHarness::new();
    desk.put("blue", CLUSTER, &[("a", "1")]);
    let mut client = desk.subscribe("n1", CLUSTER, &[]);
    let first = desk.read(&mut client);
    desk.ack(&client, &first[0]);
    desk.settle();
    assert_eq!(desk.unsettled(), []);
    desk.assign("blue", "*", &["blue"]);
    assert_eq!(desk.unsettled().len(), 1);
    assert_eq!(text(&desk.read(&mut client)), "a=1");
}

/// After a state of another history, sessions compare everything.
#[test]
fn new_incarnation_is_compared_completely() {
    let mut desk = ShardHarness::new();
    desk.put("default", CLUSTER, &[("a", "1"), ("b", "1")]);
    let mut client = desk.subscribe("n1", CLUSTER, &[]);
    let first = desk.read(&mut client);
    desk.ack(&client, &first[0]);
    desk.settle();
    desk.state = Arc::new(State::new(Incarnation(2)));
    desk.put("default", CLUSTER, &[("b", "2")]);
    desk.ms += 10_000;
    assert_eq!(text(&desk.read(&mut client)), "-a b=2");
}

/// A shard that ends for any reason ends its streams with UNAVAILABLE.
#[test]
fn ended_shard_closes_its_streams_as_unavailable() {
    let mut desk = ShardHarness::new();
    let mut client = desk.subscribe("n1", CLUSTER, &[]);
    desk.settle();
    drop(desk.shard);
    assert_eq!(client.end().code, EndCode::Unavailable);
}
