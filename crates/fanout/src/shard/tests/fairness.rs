//! Clients with much data do not delay clients with little data: counted in turns of one step each.

use chancery_model::types::{CLUSTER, ENDPOINT};
use chancery_protocol::DeltaRequest;

use super::harness::{Client, ShardHarness, text};
use crate::{
    Config,
    messages::event::{Event, SelectStreams},
};

/// Creates a shard with one step of each kind per turn, and small responses.
fn harness() -> ShardHarness {
    let session =
        chancery_protocol::Config { response_bytes_target: 4 << 10, ..Default::default() };
    ShardHarness::with(Config { turn_work_max: 1, session, ..Config::default() })
}

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

/// Connects 200 clients that subscribe to all clusters, while no cluster exists. Each acknowledges its empty response.
fn settled_wildcards(harness: &mut ShardHarness) -> Vec<Client> {
    let settled = |n| {
        let mut client = harness.subscribe(&format!("n{n}"), CLUSTER, &[]);
        let first = harness.read(&mut client);
        harness.ack(&client, &first[0]);
        client
    };
    (0..200).map(settled).collect()
}

/// Takes turns until the client receives a message. Runs `meanwhile` before each turn.
fn turns_until(
    harness: &mut ShardHarness,
    client: &mut Client,
    mut meanwhile: impl FnMut(&mut ShardHarness),
) -> usize {
    for turns in 1..100 {
        meanwhile(harness);
        harness.turn();
        if let Some(response) = client.take() {
            harness.ack(client, &response);
            return turns;
        }
    }
    panic!("no message in 100 turns");
}

/// While one client loads 100,000 resources, the update of another client waits for one part of them.
#[test]
fn large_sync_does_not_delay_small_update() {
    let mut harness = harness();
    let mut small = settled(&mut harness);
    let names: Vec<String> = (0..100_000).map(|n| format!("c{n:06}")).collect();
    let clusters: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    harness.put("default", CLUSTER, &clusters);
    harness.settle();
    let mut huge = harness.subscribe("huge", CLUSTER, &[]);
    let mut got = 0;
    let mut rounds = 0;
    while got < names.len() {
        rounds += 1;
        let version = (rounds + 1).to_string();
        harness.put("default", ENDPOINT, &[("x", &version)]);
        let turns = turns_until(&mut harness, &mut small, |harness| {
            // The client acknowledges each part at once, so it always waits for the next.
            if let Some(part) = huge.take() {
                got += part.resources.len();
                harness.ack(&huge, &part);
            }
        });
        assert!(turns <= 4, "the update waited for {turns} turns, in round {rounds}");
    }
    assert!(rounds > 50, "{rounds} rounds: the sync ended too soon for the test");
}

/// OPS-17: clients that connect all at once are served one after the other, type by type. Connected
/// clients continue to be served.
#[test]
fn many_connecting_clients_do_not_delay_small_update() {
    let mut harness = harness();
    let mut small = settled(&mut harness);
    harness.put("default", CLUSTER, &[("a", "1"), ("b", "1")]);
    harness.settle();
    let mut many: Vec<Client> = (0..1000).map(|_| harness.open()).collect();
    let mut round = 1;
    for (type_url, names) in [(CLUSTER, vec![]), (ENDPOINT, vec!["y".to_owned()])] {
        for (n, client) in many.iter().enumerate() {
            let type_url = type_url.to_owned();
            let request =
                DeltaRequest { type_url, subscribe: names.clone().into(), ..Default::default() };
            harness.send(client, Some(&format!("n{n}")), request);
        }
        assert_eq!(harness.sessions().n_queued(), 1000);
        while harness.sessions().n_queued() > 1 {
            round += 1;
            harness.put("default", ENDPOINT, &[("x", &round.to_string())]);
            let turns = turns_until(&mut harness, &mut small, |_| {});
            assert!(turns <= 4, "the update waited for {turns} turns, in round {round}");
        }
        let served = many.iter_mut().filter_map(Client::take).count();
        assert_eq!(served, many.len(), "all new clients are served too");
        // The transports ask for the next message.
        assert!(many.iter_mut().filter_map(Client::take).next().is_none());
        harness.settle();
    }
    assert!(round > 200, "{round} rounds: the clients were served too soon for the test");
}

/// A commit that affects many streams delays the updates of others only by the marking. Marking costs
/// an eighth of a step per stream.
#[test]
fn commit_for_many_streams_does_not_delay_pending_update() {
    let mut harness = harness();
    let mut many = settled_wildcards(&mut harness);
    let mut small = settled(&mut harness);
    harness.put("default", ENDPOINT, &[("x", "2")]);
    harness.put("default", CLUSTER, &[("a", "1")]);
    let turns = turns_until(&mut harness, &mut small, |_| {});
    assert!(turns <= 2, "its update waited for {turns} turns");
    for client in &mut many {
        assert_eq!(text(&harness.read(client)), "a=1");
    }
}

/// A commit that changes much for many streams, such as a thaw, does not delay a later update of another client.
#[test]
fn large_commit_for_many_streams_does_not_delay_small_update() {
    let mut harness = harness();
    let mut many = settled_wildcards(&mut harness);
    let mut small = settled(&mut harness);
    // After a small update, the streams no longer count as new.
    harness.put("default", CLUSTER, &[("first", "1")]);
    for client in &mut many {
        let update = harness.read(client);
        harness.ack(client, &update[0]);
    }
    harness.settle();
    let names: Vec<String> = (0..100).map(|n| format!("c{n:03}")).collect();
    let clusters: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    harness.put("default", CLUSTER, &clusters);
    let mut n_turns = 0;
    while harness.sessions().n_queued() < many.len() / 2 {
        n_turns += 1;
        assert!(n_turns < 100, "the commit marks too few streams");
        harness.turn();
    }
    let mut round = 1;
    while harness.sessions().n_queued() > 1 {
        round += 1;
        harness.put("default", ENDPOINT, &[("x", &round.to_string())]);
        let turns = turns_until(&mut harness, &mut small, |_| {});
        // The marking of the large commit ends in the first round.
        let most = if round == 2 { 20 } else { 4 };
        assert!(turns <= most, "the update waited for {turns} turns, in round {round}");
    }
    assert!(round > 10, "{round} rounds: the clients were served too soon for the test");
    let n_served = many.iter_mut().filter_map(Client::take).count();
    assert_eq!(n_served, many.len(), "all clients are served too");
}

/// Queries about all streams are answered in pages. A turn handles one page.
#[tokio::test]
async fn queries_about_all_streams_are_answered_in_pages() {
    let mut harness = ShardHarness::with(Config { turn_work_max: 10, ..Config::default() });
    let _clients: Vec<Client> =
        (0..95).map(|n| harness.subscribe(&format!("n{n}"), CLUSTER, &[])).collect();
    harness.settle();
    let mut from = Some(0);
    let (mut pages, mut found) = (0, 0);
    while let Some(at) = from {
        let (reply, answer) = tokio::sync::oneshot::channel();
        harness.post(Event::Status { select: SelectStreams::all(), from: at, reply });
        // The next query waits for the next turn.
        harness.post(Event::Status {
            select: SelectStreams::all(),
            from: 0,
            reply: tokio::sync::oneshot::channel().0,
        });
        harness.turn();
        assert_eq!(harness.n_events(), 1, "a page is a whole turn's work");
        harness.events.updates.clear();
        let page = answer.await.unwrap();
        assert!(page.items.len() <= 10);
        (pages, found, from) = (pages + 1, found + page.items.len(), page.next);
    }
    assert_eq!(found, 95);
    assert!(pages >= 10, "{pages} pages");
}
