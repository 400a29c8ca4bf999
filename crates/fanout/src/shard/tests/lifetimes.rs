//! The renewal of lifetimes: timers, pauses and cost.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use chancery_model::{ResourceDraft, Upsert};
use chancery_proto::discovery::DeltaDiscoveryResponse;

use super::{
    harness::{key_of, scope},
    *,
};

/// The lifetime in these tests.
const TTL: Duration = Duration::from_secs(3);

/// Publishes clusters with a lifetime.
fn put(harness: &mut ShardHarness, names: &[&str], body: &str) {
    let upserts = names.iter().map(|name| {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let mut draft = ResourceDraft::new(key_of(CLUSTER, name), body);
        draft.ttl = Some(TTL);
        Upsert { scope: scope("default"), draft }
    });
    harness.apply(&Transaction { upserts: upserts.collect(), ..Transaction::default() });
}

/// Opens a stream of a client with the feature for lifetimes.
fn subscribe(harness: &mut ShardHarness, node: &str) -> Client {
    let client = harness.open();
    let request = DeltaRequest { type_url: CLUSTER.to_owned(), ..DeltaRequest::default() };
    let node = Node {
        id: node.into(),
        client_features: vec!["xds.config.supports-resource-ttl".into()],
        ..Node::default()
    };
    let slot = Arc::clone(&client.slot);
    let (request, node) = (Request::Delta(request), Some(Arc::new(node)));
    harness.handle(Event::Request { slot, request, node, permit: None });
    client
}

/// Returns whether a response consists of heartbeats.
fn is_heartbeat(response: &DeltaDiscoveryResponse) -> bool {
    response.resources.iter().all(|one| one.resource.is_none() && one.ttl.is_some())
}

/// Lets time pass from timer to timer. Returns the responses with their times, all accepted.
fn pass(
    harness: &mut ShardHarness,
    clients: &mut [Client],
    ms: u64,
) -> BTreeMap<usize, Vec<(u64, DeltaDiscoveryResponse)>> {
    let end = harness.ms + ms;
    let mut all: BTreeMap<usize, Vec<_>> = BTreeMap::new();
    loop {
        for (at, client) in clients.iter_mut().enumerate() {
            for response in harness.read(client) {
                harness.ack(client, &response);
                all.entry(at).or_default().push((harness.ms, response));
            }
        }
        harness.settle();
        match harness.shard.turn(harness.now()) {
            Flow::Wait(Some(at)) if at <= end => {
                assert!(at > harness.ms, "the shard wakes at once although it has nothing to do");
                harness.ms = at;
            }
            Flow::Wait(_) => break,
            Flow::Again => {}
        }
    }
    harness.ms = end;
    all
}

/// TTL-08: one scheduler per shard renews the lifetimes of all its streams, about three times per
/// lifetime, and not at the same times.
#[test]
fn shard_renews_lifetimes_of_all_streams() {
    let mut harness = ShardHarness::new();
    put(&mut harness, &["a", "b"], "1");
    harness.put("default", CLUSTER, &[("bare", "1")]);
    let nodes: Vec<String> = (0..10).map(|n| format!("n{n}")).collect();
    let mut clients: Vec<Client> = nodes.iter().map(|node| subscribe(&mut harness, node)).collect();
    clients.push(harness.subscribe("without the feature", CLUSTER, &[]));
    let opened_at = harness.ms;
    let found = pass(&mut harness, &mut clients, 30_000);
    let mut first_beats = BTreeSet::new();
    for (at, responses) in found {
        let (_, first) = &responses[0];
        assert_eq!((first.resources.len(), is_heartbeat(first)), (3, false));
        if at == 10 {
            assert_eq!(responses.len(), 1, "a client without the feature");
            continue;
        }
        let mut last = opened_at;
        for (time, response) in &responses[1..] {
            let names: Vec<&str> = response.resources.iter().map(|one| one.name.as_str()).collect();
            assert_eq!((names, is_heartbeat(response)), (vec!["a", "b"], true));
            assert!((800..=1000).contains(&(time - last)), "{} ms", time - last);
            last = *time;
        }
        first_beats.insert(responses[1].0);
        assert!(opened_at + 30_000 - last <= 1000, "renewal ended");
    }
    assert!(first_beats.len() > 3, "all streams are renewed at {first_beats:?}");
}

/// TTL-11, TTL-14, OPS-06: a replica without contact to the majority stops renewing. The lifetime
/// does not delete the resource: when the contact returns, the client receives it again.
#[test]
fn shard_without_contact_stops_renewing() {
    let mut harness = ShardHarness::new();
    put(&mut harness, &["a"], "1");
    let mut clients = [subscribe(&mut harness, "n1")];
    harness.parts().contact.confirm(harness.now());
    let found = pass(&mut harness, &mut clients, 60_000);
    let (last, _) = found[&0].last().unwrap();
    assert!((29_000..=30_000).contains(&(last - 10_000)), "the last renewal was at {last}");
    assert_eq!(harness.parts().config.renewals_stop_after, Duration::from_secs(30));
    harness.parts().contact.confirm(harness.now());
    let found = pass(&mut harness, &mut clients, 3_000);
    let bodies: Vec<bool> = found[&0].iter().map(|(_, response)| is_heartbeat(response)).collect();
    assert!(bodies.len() >= 3, "{bodies:?}");
    assert!(!bodies[0] && bodies[1..].iter().all(|beat| *beat), "content precedes: {bodies:?}");
}

/// TTL-08: a transport that was busy when a renewal was due gets the renewal as soon as it can take it.
#[test]
fn renewal_waits_for_the_transport() {
    let mut harness = ShardHarness::new();
    put(&mut harness, &["a"], "1");
    let mut client = subscribe(&mut harness, "n1");
    let first = harness.read(&mut client);
    harness.ack(&client, &first[0]);
    put(&mut harness, &["b"], "1");
    harness.settle();
    // The client does not read the response with `b` while the renewal of `a` becomes due.
    harness.ms += 950;
    harness.settle();
    let second = client.take().unwrap();
    harness.ack(&client, &second);
    let third = harness.read(&mut client);
    assert!(third.iter().any(is_heartbeat), "{third:?}");
}

/// OPS-10: a stream without lifetimes has no timer, and a stream with lifetimes has one.
#[test]
fn only_streams_with_lifetimes_have_timers() {
    let mut harness = ShardHarness::new();
    harness.put("default", CLUSTER, &[("bare", "1")]);
    let mut clients = [subscribe(&mut harness, "n1"), harness.subscribe("n2", CLUSTER, &[])];
    pass(&mut harness, &mut clients, 60_000);
    assert_eq!(harness.sessions().n_scheduled()[1], 0);
    put(&mut harness, &["a"], "1");
    pass(&mut harness, &mut clients, 60_000);
    assert!((1..=2).contains(&harness.sessions().n_scheduled()[1]));
    harness.apply(&Transaction {
        deletes: vec![(scope("default"), key_of(CLUSTER, "a"))],
        ..Transaction::default()
    });
    pass(&mut harness, &mut clients, 60_000);
    assert_eq!(harness.sessions().n_scheduled()[1], 0);
}
