//! Thousands of clients connect or reconnect at once: the delay for established clients and the admin
//! API, counted in turns.

use std::sync::Arc;

use chancery_model::types::{CLUSTER, ENDPOINT};
use chancery_protocol::DeltaRequest;

use super::harness::{Client, ShardHarness, answer, text};
use crate::{
    Config,
    messages::event::{Event, SelectStreams},
};

/// The streams of a storm, and the names that each of them subscribes to.
const STREAMS: usize = 1000;
const NAMES: usize = 200;

/// Connects a client that has acknowledged its only resource, an endpoint.
fn settled(harness: &mut ShardHarness) -> Client {
    harness.put("default", ENDPOINT, &[("x", "1")]);
    let mut client = harness.subscribe("small", ENDPOINT, &["x"]);
    let first = harness.read(&mut client);
    assert_eq!(text(&first), "x=1");
    harness.ack(&client, &first[0]);
    harness.settle();
    client
}

/// Opens streams whose first requests wait in the shard's inbox.
fn storm(harness: &mut ShardHarness) -> Vec<Client> {
    let names: Vec<String> = (0..NAMES).map(|n| format!("c{n}")).collect();
    let open = |n: usize| {
        let client = harness.open();
        let type_url = CLUSTER.to_owned();
        let subscribe = names.clone().into();
        let first = DeltaRequest { type_url, subscribe, ..DeltaRequest::default() };
        harness.post(ShardHarness::request(&client, Some(&format!("n{n}")), first));
        client
    };
    (0..STREAMS).map(open).collect()
}

/// Takes turns until the client receives a message. Returns their number.
fn turns_until_sent(harness: &mut ShardHarness, client: &mut Client) -> usize {
    for turns in 1..=100 {
        harness.turn();
        if let Some(response) = client.take() {
            // The answer goes through the inbox like all requests.
            harness.post(ShardHarness::request(client, None, answer(&response, None)));
            return turns;
        }
    }
    panic!("no message in 100 turns");
}

/// OPS-17: acknowledgments of established streams overtake the storm. A session has one response in
/// flight, so a delayed acknowledgment would delay its next update.
#[test]
fn acknowledgments_and_updates_overtake_new_streams() {
    let mut harness = ShardHarness::new();
    let mut small = settled(&mut harness);
    let mut many = storm(&mut harness);
    for round in 2..30 {
        harness.put("default", ENDPOINT, &[("x", &round.to_string())]);
        let turns = turns_until_sent(&mut harness, &mut small);
        assert!(turns <= 2, "update {round} was sent after {turns} turns");
    }
    assert!(harness.sessions().len() < STREAMS, "the storm ended too soon for the test");
    harness.settle();
    assert_eq!(many.iter_mut().filter_map(Client::take).count(), STREAMS, "all are served");
}

/// Queries of the admin API do not wait behind the storm either.
#[test]
fn queries_overtake_new_streams() {
    let mut harness = ShardHarness::new();
    let small = settled(&mut harness);
    let many = storm(&mut harness);
    let (reply, mut page) = tokio::sync::oneshot::channel();
    harness.post(Event::Status { select: SelectStreams::all(), from: 0, reply });
    harness.turn();
    assert!(page.try_recv().is_ok(), "the query was not answered in the next turn");
    drop((small, many));
}

/// A transport that asks for the next message is answered before a thousand ended streams are freed.
#[test]
fn transport_reads_overtake_ended_streams() {
    let mut harness = ShardHarness::new();
    let mut small = settled(&mut harness);
    let many = storm(&mut harness);
    harness.settle();
    assert_eq!(harness.sessions().len(), STREAMS + 1);
    // The next update waits for the transport, which is still writing this one.
    harness.put("default", ENDPOINT, &[("x", "2")]);
    harness.turn();
    let response = small.take().expect("the update is sent at once");
    harness.ack(&small, &response);
    harness.put("default", ENDPOINT, &[("x", "3")]);
    harness.turn();
    drop(many);
    assert!(small.take().is_none(), "the transport asks for the next message");
    let turns = turns_until_sent(&mut harness, &mut small);
    assert!(turns <= 2, "the update was sent after {turns} turns");
    assert!(harness.sessions().len() > STREAMS / 2, "the streams were freed too soon for the test");
    harness.settle();
    assert_eq!(harness.sessions().len(), 1);
}

/// New streams are opened, served and freed every few turns, however much work established streams
/// have.
#[test]
fn new_streams_progress_while_established_streams_are_busy() {
    let mut harness = ShardHarness::with(Config { turn_work_max: 8, ..Config::default() });
    let mut small = settled(&mut harness);
    let mut many = storm(&mut harness);
    let mut served = 0;
    for turn in 1..=STREAMS {
        // An update, and more repeated acknowledgments than a turn handles.
        while harness.n_events() < STREAMS + 20 {
            let request = DeltaRequest { type_url: ENDPOINT.to_owned(), ..DeltaRequest::default() };
            harness.post(ShardHarness::request(&small, None, request));
        }
        harness.put("default", ENDPOINT, &[("x", &(turn + 1).to_string())]);
        harness.turn();
        if let Some(response) = small.take() {
            harness.ack(&small, &response);
        }
        served += many.iter_mut().filter_map(Client::take).count();
        // Events, ends, polls, ends: a stream is opened in one turn of four, and polled in another one.
        assert!(4 * (served + 2) >= turn, "{served} streams were served after {turn} turns");
    }
}

/// A turn does one kind of bulk, so that it is short: requests of new streams, their polls, or ends of
/// streams.
#[test]
fn turn_handles_one_kind_of_bulk_work() {
    let mut harness = ShardHarness::new();
    let mut many = storm(&mut harness);
    harness.settle();
    // Polls (each session has something to send), ends, and events wait.
    harness.put("default", CLUSTER, &[("c0", "1")]);
    many.truncate(STREAMS / 2);
    let _more = storm(&mut harness);
    harness.turn();
    let waiting = |harness: &ShardHarness| {
        [harness.n_events(), harness.sessions().n_queued(), harness.shard.leaving.len()]
    };
    let mut turns = [0; 3];
    for _ in 0..40 {
        let before = waiting(&harness);
        harness.turn();
        let after = waiting(&harness);
        let done: Vec<usize> = (0..3).filter(|kind| after[*kind] < before[*kind]).collect();
        assert_eq!(done.len(), 1, "{before:?} became {after:?}");
        turns[done[0]] += 1;
    }
    assert_eq!(turns, [10, 10, 20]);
}

/// A stream's requests are handled in the order in which it sent them, whatever their lanes.
#[test]
fn requests_of_a_stream_keep_their_order() {
    let mut harness = ShardHarness::new();
    harness.put("default", ENDPOINT, &[("x", "1"), ("y", "1")]);
    let mut small = settled(&mut harness);
    let many = storm(&mut harness);
    let names: Vec<String> = (0..NAMES).map(|n| format!("e{n}")).chain(["y".to_owned()]).collect();
    let request = |subscribe: Vec<String>, unsubscribe: Vec<String>| DeltaRequest {
        type_url: ENDPOINT.to_owned(),
        subscribe: subscribe.into(),
        unsubscribe: unsubscribe.into(),
        ..DeltaRequest::default()
    };
    // A large request waits behind the storm. The small one behind it unsubscribes from one of its
    // names.
    harness.post(ShardHarness::request(&small, None, request(names, vec![])));
    harness.post(ShardHarness::request(&small, None, request(vec![], vec!["y".to_owned()])));
    harness.settle();
    while let Some(response) = small.take() {
        harness.ack(&small, &response);
        harness.settle();
    }
    harness.put("default", ENDPOINT, &[("y", "2")]);
    assert!(!text(&harness.read(&mut small)).contains("y=2"), "it is no longer subscribed");
    drop((many, Arc::clone(&small.slot)));
}
