//! Tests of a shard without a runtime: events in, messages out.

use std::{sync::Arc, task::Poll};

use chancery_model::{
    Assignment, AssignmentOp, Incarnation, Node, NodeMatcher, Revision, ScopeTemplate, Transaction,
    TypeUrl,
    types::{CLUSTER, ENDPOINT, LOCALITY_ENDPOINT},
};
use chancery_protocol::{DeltaRequest, Request};

use self::harness::{Client, ShardHarness, answer, decode, text};
use super::*;
use crate::{
    Config, Delivery, End, EndCode, SecretFinder, UnacknowledgedState, messages::event::Event,
    sessions::LEFT_OVER_MAX,
};

mod access;
mod concern;
mod counting;
mod fairness;
mod harness;
mod identities;
mod lifetimes;
mod marking;
mod offload;
mod silence;
mod storm;

/// SOTW-90, SOTW-91: a change is sent to the sessions that subscribe to it, and no other session is
/// queued.
#[test]
fn change_reaches_only_subscribed_sessions() {
    let mut harness = ShardHarness::new();
    harness.put("default", ENDPOINT, &[("x", "1"), ("y", "1")]);
    let mut x = harness.subscribe("n1", ENDPOINT, &["x"]);
    let mut y = harness.subscribe("n2", ENDPOINT, &["y"]);
    for client in [&mut x, &mut y] {
        let first = harness.read(client);
        assert_eq!(first.len(), 1);
        harness.ack(client, &first[0]);
    }
    harness.settle();
    harness.put("default", ENDPOINT, &[("x", "2")]);
    assert_eq!(harness.sessions().n_queued(), 1, "only one session is affected");
    assert_eq!(text(&harness.read(&mut x)), "x=2");
    assert_eq!(text(&harness.read(&mut y)), "");
}

/// XDSTP-16, SOTW-91: a change of a member reaches the sessions that subscribe to its collection, and no
/// other session is queued. Nothing stays in the index after the streams.
#[test]
fn change_of_member_reaches_only_its_glob_subscribers() {
    let name = |rest: &str| format!("xdstp://a/envoy.config.endpoint.v3.LbEndpoint/{rest}");
    let mut harness = ShardHarness::new();
    let [x, y, z] = ["p/x", "p/y?k=v", "q/z"].map(name);
    harness.put("default", LOCALITY_ENDPOINT, &[(&x, "1"), (&y, "1"), (&z, "1")]);
    let globs = [name("p/*"), name("p/*?k=v"), name("q/*")];
    let mut clients: Vec<Client> =
        globs.iter().map(|glob| harness.subscribe("n1", LOCALITY_ENDPOINT, &[glob])).collect();
    for client in &mut clients {
        let first = harness.read(client);
        assert_eq!(first.len(), 1);
        harness.ack(client, &first[0]);
    }
    harness.settle();
    let new = name("p/new");
    harness.put("default", LOCALITY_ENDPOINT, &[(&x, "2"), (&new, "1")]);
    assert_eq!(harness.sessions().n_queued(), 1, "only one session is affected");
    assert_eq!(text(&harness.read(&mut clients[0])), format!("{new}=1 {x}=2"));
    assert_eq!(text(&harness.read(&mut clients[1])), "");
    drop(clients);
    harness.settle();
    assert!(harness.sessions().index().is_empty());
}

/// SOTW-112, OPS-10: while a stream cannot take a message, commits coalesce into one response. The
/// response is built when the stream can take it.
#[test]
fn commits_coalesce_while_client_does_not_read() {
    let mut harness = ShardHarness::new();
    harness.put("default", CLUSTER, &[("a", "1")]);
    let mut client = harness.subscribe("n1", CLUSTER, &[]);
    harness.settle();
    // The first response waits in the slot: the client has not read it.
    for version in 2..50 {
        harness.put(
            "default",
            CLUSTER,
            &[("b", &version.to_string()), ("a", &version.to_string())],
        );
        harness.ms += 6_000;
        harness.settle();
    }
    let Poll::Ready(Delivery::Message(message)) = client.poll() else {
        panic!("no first response")
    };
    assert_eq!(text(&[decode(message)]), "a=1");
    let rest = harness.read(&mut client);
    assert_eq!((rest.len(), text(&rest).as_str()), (1, "a=49 b=49"));
}

/// Requests of a client are handled while the client does not read.
#[test]
fn requests_are_handled_while_stream_cannot_be_written() {
    let mut harness = ShardHarness::new();
    harness.put("default", CLUSTER, &[("a", "1")]);
    harness.put("default", ENDPOINT, &[("x", "1")]);
    let mut client = harness.subscribe("n1", CLUSTER, &[]);
    harness.settle();
    let subscribe = DeltaRequest {
        type_url: ENDPOINT.to_owned(),
        subscribe: vec!["x".to_owned()].into(),
        ..DeltaRequest::default()
    };
    harness.send(&client, None, subscribe);
    harness.settle();
    let statuses = harness.status_page(0).items;
    assert_eq!(statuses[0].subscriptions.len(), 2, "the second type is subscribed");
    assert_eq!(text(&harness.read(&mut client)), "a=1 x=1");
}

/// A client that never acknowledges receives the newest state after the ACK timeout.
#[test]
fn silent_client_receives_newest_state_after_ack_timeout() {
    let mut harness = ShardHarness::new();
    harness.put("default", CLUSTER, &[("a", "1")]);
    let mut client = harness.subscribe("n1", CLUSTER, &[]);
    assert_eq!(text(&harness.read(&mut client)), "a=1");
    harness.put("default", CLUSTER, &[("a", "2")]);
    assert_eq!(text(&harness.read(&mut client)), "", "the first response is unacknowledged");
    harness.put("default", CLUSTER, &[("a", "3")]);
    let Flow::Wait(Some(at)) = harness.shard.turn(harness.now()) else { panic!("no timer is set") };
    assert_eq!(at, harness.ms + harness.parts().protocol.ack_timeout_ms);
    harness.ms = at;
    assert_eq!(text(&harness.read(&mut client)), "a=3");
}

/// SOTW-111: closing a stream frees everything that the shard holds for it.
#[test]
fn closed_stream_frees_all_shard_state() {
    let mut harness = ShardHarness::new();
    harness.assign("own", "*", &["node/{node.id}", "mesh"]);
    harness.put("mesh", CLUSTER, &[("a", "1")]);
    let wildcard = harness.subscribe("n1", CLUSTER, &[]);
    let named = harness.subscribe("n2", ENDPOINT, &["x", "y"]);
    harness.settle();
    assert_eq!(harness.sessions().len(), 2);
    let slot = Arc::clone(&named.slot);
    drop((wildcard, named));
    harness.settle();
    assert!(harness.sessions().is_empty() && harness.sessions().index().is_empty());
    assert_eq!(harness.shard.service.placement().n_scope_lists(), 0);
    // A request that was already in the inbox has no effect.
    let request = Request::Delta(DeltaRequest::default());
    harness.handle(Event::Request { slot, request, node: None, permit: None });
    assert!(harness.sessions().is_empty());
}

/// OPS-10: short streams leave nothing that grows, neither in queues nor in timers.
#[test]
fn short_streams_do_not_grow_queues_or_timers() {
    let session = chancery_protocol::Config {
        ack_close_after_ms: Some(3_600_000),
        ..chancery_protocol::Config::default()
    };
    let mut harness = ShardHarness::with(Config { session, ..Config::default() });
    harness.put("default", CLUSTER, &[("a", "1")]);
    for round in 0..5_000 {
        let mut client = harness.subscribe("n1", CLUSTER, &[]);
        if round % 2 == 0 {
            // The client reads, and leaves while a change and its own answer are pending.
            harness.settle();
            assert!(client.take().is_some());
            harness.put("default", CLUSTER, &[("a", &round.to_string())]);
            assert!(client.take().is_none());
            harness.settle();
        }
        drop(client);
        harness.ms += 1;
        harness.shard.on_calls(&harness.ready_list, harness.now());
        let left = [
            harness.sessions().n_queued(),
            harness.sessions().n_scheduled()[1],
            harness.sessions().n_scheduled()[2],
        ];
        assert!(left.iter().all(|n| *n <= LEFT_OVER_MAX + 10), "left: {left:?}");
    }
    harness.settle();
    assert!(harness.sessions().is_empty());
    assert!(harness.sessions().n_queued() == 0);
    let left = harness.sessions().n_scheduled()[1..].to_vec();
    assert!(left.iter().all(|n| *n > 0), "{left:?}: no timer was left to drop");
}

/// OPS-05, SOTW-71: a node without assignment receives no response. An empty view would delete all its
/// resources. The node receives a response once an assignment matches.
#[test]
fn a_node_without_assignment_receives_nothing_until_it_has_one() {
    let mut harness = ShardHarness::new();
    harness.apply(&Transaction {
        assignments: vec![AssignmentOp::Delete("default".into())],
        ..Transaction::default()
    });
    let mut client = harness.subscribe("n1", CLUSTER, &[]);
    assert_eq!(harness.read(&mut client).len(), 0);
    assert_eq!(harness.unsettled(), [], "nothing is due");
    harness.assign("late", "n*", &["empty"]);
    let answer = harness.read(&mut client);
    assert_eq!((answer.len(), text(&answer).as_str()), (1, ""));
    harness.ack(&client, &answer[0]);
    harness.put("empty", CLUSTER, &[("a", "1")]);
    assert_eq!(text(&harness.read(&mut client)), "a=1", "its subscription is in the index");
}

/// A changed assignment moves the affected nodes by the difference of their views. No node is served
/// from its old scopes afterwards.
#[test]
fn changed_assignment_sends_nodes_the_view_difference() {
    let mut harness = ShardHarness::with(Config { turn_work_max: 1, ..Config::default() });
    harness.put("default", CLUSTER, &[("a", "1"), ("b", "1")]);
    harness.put("blue", CLUSTER, &[("b", "2"), ("c", "1")]);
    let mut clients: Vec<Client> =
        (0..5).map(|n| harness.subscribe(&format!("n{n}"), CLUSTER, &[])).collect();
    for client in &mut clients {
        let first = harness.read(client);
        assert_eq!(text(&first), "a=1 b=1");
        harness.ack(client, &first[0]);
    }
    harness.settle();
    harness.assign("blue", "n3", &["blue", "default"]);
    // A commit follows before the shard has reassigned all sessions.
    harness.put("blue", CLUSTER, &[("d", "1")]);
    for (n, client) in clients.iter_mut().enumerate() {
        let expected = if n == 3 { "b=2 c=1 d=1" } else { "" };
        assert_eq!(text(&harness.read(client)), expected, "n{n}");
    }
    harness.put("blue", CLUSTER, &[("c", "2")]);
    harness.ms += 10_000;
    assert_eq!(text(&harness.read(&mut clients[3])), "c=2");
}

/// SOTW-03: the shard adopts changed metadata, which may lead to other scopes.
#[test]
fn changed_node_metadata_changes_the_assignment() {
    let mut harness = ShardHarness::new();
    let template = |text| ScopeTemplate::parse(text).unwrap();
    let assignment = Assignment {
        name: "by-mesh".into(),
        priority: 1,
        matcher: NodeMatcher::default(),
        scopes: vec![template("mesh/{metadata.mesh}")],
    };
    harness.apply(&Transaction {
        assignments: vec![AssignmentOp::Put(assignment)],
        ..Transaction::default()
    });
    harness.put("mesh/m2", CLUSTER, &[("a", "2")]);
    let mut client = harness.subscribe("n1", CLUSTER, &[]);
    let first = harness.read(&mut client);
    assert_eq!(text(&first), "");
    let mut node = Node { id: "n1".into(), ..Node::default() };
    node.metadata.insert("mesh".into(), "m2".into());
    let request = Request::Delta(answer(&first[0], None));
    let slot = Arc::clone(&client.slot);
    harness.handle(Event::Request { slot, request, node: Some(Arc::new(node)), permit: None });
    assert_eq!(text(&harness.read(&mut client)), "a=2");
}

/// A turn is bounded, whatever the number of marked sessions.
#[test]
fn turn_work_is_bounded() {
    let mut harness = ShardHarness::with(Config { turn_work_max: 2, ..Config::default() });
    let mut clients: Vec<Client> =
        (0..5).map(|n| harness.subscribe(&format!("n{n}"), CLUSTER, &[])).collect();
    let left = |harness: &mut ShardHarness, turns: usize| -> Vec<_> {
        let turn = |_| {
            let flow = harness.turn();
            (harness.sessions().n_queued(), flow == Flow::Again)
        };
        (0..turns).map(turn).collect()
    };
    let new = [(4, true), (3, true), (2, true), (1, true), (0, false)];
    assert_eq!(left(&mut harness, 5), new, "new streams have a small part of a turn");
    for client in &mut clients {
        let first = harness.read(client);
        harness.ack(client, &first[0]);
    }
    harness.settle();
    harness.put("default", CLUSTER, &[("a", "1")]);
    assert_eq!(left(&mut harness, 3), [(3, true), (1, true), (0, false)]);
}

/// The version changes only with the set of groups, so that writes can reuse their list.
#[test]
fn clients_are_grouped_by_user_agent_and_scopes() {
    let mut harness = ShardHarness::new();
    let request = |harness: &mut ShardHarness, client: &Client, id: &str, user_agent: &str| {
        let node = Node { id: id.into(), user_agent: user_agent.into(), ..Node::default() };
        let request = DeltaRequest { type_url: CLUSTER.to_owned(), ..DeltaRequest::default() };
        let (slot, request) = (Arc::clone(&client.slot), Request::Delta(request));
        harness.handle(Event::Request { slot, request, node: Some(Arc::new(node)), permit: None });
    };
    let groups = |harness: &ShardHarness| {
        let (version, groups) = harness.client_groups.list();
        assert_eq!(harness.client_groups.version(), (version, groups.len()));
        let shown =
            groups.iter().map(|(group, _)| format!("{} {}", group.scopes[0], group.user_agent));
        let mut shown: Vec<String> = shown.collect();
        shown.sort();
        (version, shown)
    };
    let mut clients: Vec<Client> = (0..5).map(|_| harness.open()).collect();
    for (n, client) in clients.iter().enumerate() {
        let user_agent = if n < 4 { "envoy/1.40.0" } else { "gRPC Go/1.82.1" };
        request(&mut harness, client, &format!("n{n}"), user_agent);
    }
    let first = groups(&harness);
    assert_eq!(first.1, ["default envoy/1.40.0", "default gRPC Go/1.82.1"]);
    let mut counts: Vec<u64> = harness.client_groups.list().1.iter().map(|(_, n)| *n).collect();
    counts.sort_unstable();
    assert_eq!(counts, [1, 4]);

    // Another client of a known group changes nothing.
    let late = harness.open();
    request(&mut harness, &late, "late", "envoy/1.40.0");
    assert_eq!(groups(&harness), first);

    // A node may change its user agent, and an assignment its scopes.
    request(&mut harness, &late, "late", "other/1.2.3");
    harness.settle();
    let changed = groups(&harness);
    assert_ne!(changed.0, first.0);
    assert_eq!(changed.1[2], "default other/1.2.3");
    harness.assign("n4-only", "n4", &["other"]);
    harness.settle();
    let moved = groups(&harness).1;
    assert_eq!((moved.len(), moved[2].as_str()), (3, "other gRPC Go/1.82.1"));

    // A group ends with its last client.
    let before = groups(&harness).0;
    drop(late);
    clients.truncate(1);
    harness.settle();
    let last = groups(&harness);
    assert_eq!(last.1, ["default envoy/1.40.0"]);
    assert_ne!(last.0, before);
}

/// SOTW-111: a half-closed stream ends with OK after the pending response.
#[test]
fn a_half_closed_stream_is_served_and_then_ended() {
    let mut harness = ShardHarness::new();
    harness.put("default", CLUSTER, &[("a", "1")]);
    let mut client = harness.subscribe("n1", CLUSTER, &[]);
    harness.handle(Event::HalfClose { slot: Arc::clone(&client.slot) });
    harness.settle();
    let Poll::Ready(Delivery::Message(message)) = client.poll() else { panic!("no response") };
    assert_eq!(text(&[decode(message)]), "a=1");
    assert!(client.poll().is_pending());
    harness.settle();
    assert_eq!(client.end(), End::ok());
    assert!(harness.sessions().is_empty());
}

/// SVC-09, SOTW-06: a request that breaks a rule ends its stream and frees it.
#[test]
fn a_refused_request_ends_its_stream() {
    let mut harness = ShardHarness::new();
    let mut client = harness.open();
    harness.send(&client, Some("n1"), DeltaRequest::default());
    let end = client.end();
    assert_eq!(end.code, EndCode::InvalidArgument);
    assert!(end.message.contains("type_url is empty"), "{}", end.message);
    assert!(harness.sessions().is_empty());
    let mut client = harness.open();
    harness.send(&client, None, DeltaRequest::default());
    assert!(client.end().message.contains("no node"));
}

/// SOTW-28: the unsettled streams are those that have not acknowledged, each with the reason.
#[test]
fn unsettled_streams_are_those_without_acknowledgment() {
    let mut harness = ShardHarness::new();
    harness.put("default", CLUSTER, &[("a", "1")]);
    let mut good = harness.subscribe("good", CLUSTER, &[]);
    let mut bad = harness.subscribe("bad", CLUSTER, &[]);
    assert_eq!(harness.unsettled().len(), 2);
    let (to_good, to_bad) = (harness.read(&mut good), harness.read(&mut bad));
    assert_eq!(harness.unsettled().len(), 2);
    harness.ack(&good, &to_good[0]);
    harness.nack(&bad, &to_bad[0], "no such thing");
    harness.settle();
    let lagging = harness.unsettled();
    assert_eq!(lagging.len(), 1, "{lagging:?}");
    assert_eq!(lagging[0].node, "bad");
    assert_eq!(lagging[0].state, UnacknowledgedState::Nacked("no such thing".into()));
    let record = &harness.status_page(0).items[1].nacks[0];
    assert_eq!((record.code, record.message.as_str()), (13, "no such thing"));
    harness.put("default", CLUSTER, &[("a", "2")]);
    let to_bad = harness.read(&mut bad);
    let to_good = harness.read(&mut good);
    harness.ack(&bad, &to_bad[0]);
    harness.ack(&good, &to_good[0]);
    harness.settle();
    assert_eq!(harness.unsettled(), []);
    harness.state = Arc::new(State { revision: Revision(99), ..State::clone(&harness.state) });
    let behind = harness.unsettled();
    assert_eq!(behind[0].state, UnacknowledgedState::Behind(Revision(2)), "{behind:?}");
}

/// L: a key that a client quotes in a rejection is neither kept nor shown.
#[test]
fn secret_in_a_rejection_is_not_kept() {
    let mut harness = ShardHarness::new();
    let find = |_: &TypeUrl, body: &[u8], found: &mut dyn FnMut(&[u8])| found(body);
    let config =
        Config { secrets: SecretFinder::new(find), ..Config::clone(&harness.parts().config) };
    harness.set_config(config);
    harness.put("default", CLUSTER, &[("cert", "qT7-key-Zz93")]);
    let mut client = harness.subscribe("bad", CLUSTER, &[]);
    let response = harness.read(&mut client);
    harness.nack(&client, &response[0], "cannot load 'qT7-key-Zz93' of cert: inline_string: \"x\"");
    harness.settle();
    let shown = "cannot load '[redacted]' of cert: [redacted]";
    assert_eq!(harness.unsettled()[0].state, UnacknowledgedState::Nacked(shown.into()));
    let page = harness.status_page(0);
    assert_eq!(page.items[0].nacks[0].message, shown);
    let kept = format!("{page:?}");
    assert!(!kept.contains("qT7-key") && !kept.contains("inline_string"), "{kept}");
    // An answer to an unknown response has no effect, and its text is not kept either.
    let mut unknown = response[0].clone();
    unknown.nonce = "77".to_owned();
    harness.nack(&client, &unknown, "qT7-key-Zz93");
    assert!(!format!("{:?}", harness.status_page(0)).contains("qT7-key"));
}

/// OPS-19: the transport truncates a text before the shard searches it, so the text may end inside a
/// secret.
#[test]
fn secret_at_the_end_of_a_truncated_rejection_is_not_kept() {
    for secret in ["hunter2", "qT7-key-Zz93"] {
        let mut harness = ShardHarness::new();
        let find = |_: &TypeUrl, body: &[u8], found: &mut dyn FnMut(&[u8])| found(body);
        let config =
            Config { secrets: SecretFinder::new(find), ..Config::clone(&harness.parts().config) };
        harness.set_config(config);
        harness.put("default", CLUSTER, &[("cert", secret)]);
        let mut client = harness.subscribe("bad", CLUSTER, &[]);
        let response = harness.read(&mut client);
        let max = harness.parts().config.session.nack_message_bytes_max;
        let start = format!("invalid certificate{}", ".".repeat(max));
        for kept in 1..secret.len() {
            let text = [&start[..max - kept], &secret[..kept]].concat();
            harness.nack(&client, &response[0], &text);
            offload::until_none_offloaded(&mut harness);
            let page = harness.status_page(0);
            let shown = &page.items[0].nacks[0].message;
            assert!(shown.starts_with("invalid certificate..."), "{shown}");
            assert!(shown.ends_with('.'), "{kept} bytes of {secret}: {shown}");
        }
    }
}

/// OPS-19: a client that rejects a response may quote an earlier unanswered response.
#[test]
fn secret_of_an_unanswered_response_is_not_kept() {
    let mut harness = ShardHarness::new();
    let find = |_: &TypeUrl, body: &[u8], found: &mut dyn FnMut(&[u8])| found(body);
    let config =
        Config { secrets: SecretFinder::new(find), ..Config::clone(&harness.parts().config) };
    harness.set_config(config);
    harness.put("default", CLUSTER, &[("cert", "qT7-key-Zz93")]);
    let mut client = harness.subscribe("bad", CLUSTER, &[]);
    let first = harness.read(&mut client);
    harness.put("default", CLUSTER, &[("cert", "rotated")]);
    // The ACK timeout of the first response has passed.
    harness.ms += 10_000;
    let second = harness.read(&mut client);
    assert_eq!((first.len(), second.len()), (1, 1));
    harness.nack(&client, &second[0], "cannot replace 'qT7-key-Zz93' by 'rotated'");
    harness.settle();
    let shown = "cannot replace '[redacted]' by '[redacted]'";
    assert_eq!(harness.unsettled()[0].state, UnacknowledgedState::Nacked(shown.into()));
}

/// A node that a commit moves is unsettled from that commit on, even before the shard has moved it.
#[test]
fn node_is_unsettled_from_commit_that_reassigns_it() {
    let mut harness = ShardHarness::new();
    harness.put("blue", CLUSTER, &[("a", "1")]);
    let mut client = harness.subscribe("n1", CLUSTER, &[]);
    let first = harness.read(&mut client);
    harness.ack(&client, &first[0]);
    harness.settle();
    assert_eq!(harness.unsettled(), []);
    harness.assign("blue", "*", &["blue"]);
    assert_eq!(harness.unsettled().len(), 1);
    assert_eq!(text(&harness.read(&mut client)), "a=1");
}

/// After a state of another history, sessions compare everything.
#[test]
fn new_incarnation_is_compared_completely() {
    let mut harness = ShardHarness::new();
    harness.put("default", CLUSTER, &[("a", "1"), ("b", "1")]);
    let mut client = harness.subscribe("n1", CLUSTER, &[]);
    let first = harness.read(&mut client);
    harness.ack(&client, &first[0]);
    harness.settle();
    harness.state = Arc::new(State::new(Incarnation(2)));
    harness.put("default", CLUSTER, &[("b", "2")]);
    harness.ms += 10_000;
    assert_eq!(text(&harness.read(&mut client)), "-a b=2");
}

/// A shard that ends for any reason ends its streams with UNAVAILABLE.
#[test]
fn ended_shard_closes_its_streams_as_unavailable() {
    let mut harness = ShardHarness::new();
    let mut client = harness.subscribe("n1", CLUSTER, &[]);
    harness.settle();
    drop(harness.shard);
    assert_eq!(client.end().code, EndCode::Unavailable);
}
