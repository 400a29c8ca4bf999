//! Sessions with large work: a separate thread does it, with no visible effect except the delay.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use chancery_model::{AccessOp, Identity, Principal};
use chancery_protocol::Session;

use super::{
    harness::{access_change, access_rule},
    *,
};
use crate::{AccessControl, EndCode};

const PATIENCE: Duration = Duration::from_secs(60);

fn many(n: usize) -> Vec<String> {
    (0..n).map(|n| format!("x{n:06}")).collect()
}

fn ask(names: Vec<String>) -> DeltaRequest {
    let (type_url, subscribe) = (ENDPOINT.to_owned(), names.into());
    DeltaRequest { type_url, subscribe, ..DeltaRequest::default() }
}

pub(super) fn n_offloaded(harness: &ShardHarness) -> usize {
    harness.sessions().iter().filter(|entry| entry.presence().away().is_some()).count()
}

/// Takes turns until no session is away.
pub(super) fn until_none_offloaded(harness: &mut ShardHarness) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        harness.settle();
        if n_offloaded(harness) == 0 {
            return;
        }
        assert!(Instant::now() < deadline, "a session does not return");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Reads and acknowledges all responses until no session is away.
fn read_all(harness: &mut ShardHarness, client: &mut Client) -> Vec<String> {
    let mut resources = Vec::new();
    loop {
        until_none_offloaded(harness);
        let responses = harness.read(client);
        if responses.is_empty() && n_offloaded(harness) == 0 {
            return resources;
        }
        for response in responses {
            resources.extend(response.resources.iter().map(|r| r.name.clone()));
            harness.ack(client, &response);
        }
    }
}

/// L12: the thread for large work handles a request with many names. Other streams are served
/// meanwhile, and the next requests of the same stream wait.
#[test]
fn large_request_is_handled_outside_of_the_shard() {
    let mut harness = ShardHarness::new();
    harness.put("default", ENDPOINT, &[("x000007", "1"), ("y", "1")]);
    let mut hog = harness.open();
    harness.send(&hog, Some("hog"), ask(many(10_000)));
    assert_eq!(n_offloaded(&harness), 1, "the session is away");
    harness.send(&hog, None, ask(vec!["y".to_owned()]));
    let mut small = harness.subscribe("small", ENDPOINT, &["y"]);
    // A full turn could bring the other session back.
    harness.shard.poll_some(harness.now());
    let Poll::Ready(Delivery::Message(message)) = small.poll() else { panic!("no response") };
    assert_eq!(text(&[decode(message)]), "y=1");
    let mut got = read_all(&mut harness, &mut hog);
    got.sort();
    assert_eq!(got, ["x000007", "y"]);
    let statuses = harness.status_page(0).items;
    let hog = statuses.iter().find(|status| &*status.node.id == "hog").unwrap();
    assert_eq!(hog.subscriptions[0].n_names, 10_001);
    assert_eq!(harness.sessions().index().size().names, 10_002);
}

/// Rejects a response whose one resource has a secret and `body_bytes` further bytes. Returns whether the shard itself
/// searches for the secret, and the text that it keeps.
fn is_cleaned_inline(text: &str, body_bytes: usize) -> (bool, String) {
    let mut harness = ShardHarness::new();
    let is_inline = Arc::new(AtomicBool::new(false));
    let found_inline = Arc::clone(&is_inline);
    let find = move |_: &TypeUrl, _: &[u8], found: &mut dyn FnMut(&[u8])| {
        let is_large_work = std::thread::current().name() == Some("large-work");
        found_inline.fetch_or(!is_large_work, Ordering::Relaxed);
        found(b"qT7-key-Zz93");
    };
    let config =
        Config { secrets: SecretFinder::new(find), ..Config::clone(&harness.parts().config) };
    harness.set_config(config);
    harness.put("default", CLUSTER, &[("cert", &"x".repeat(body_bytes))]);
    let mut client = harness.subscribe("bad", CLUSTER, &[]);
    let response = harness.read(&mut client);
    harness.nack(&client, &response[0], text);
    until_none_offloaded(&mut harness);
    let message = harness.status_page(0).items[0].nacks[0].message.clone();
    (is_inline.load(Ordering::Relaxed), message)
}

/// OPS-19, L12: one rejection does not delay the streams of its shard. The thread for large work cleans long texts, and
/// searches in large responses. The kept text is the same.
#[test]
fn long_rejection_text_is_cleaned_outside_of_the_shard() {
    let short = "cannot load 'qT7-key-Zz93' of cert";
    let shown = "cannot load '[redacted]' of cert";
    assert_eq!(is_cleaned_inline(short, 10), (true, shown.to_owned()));
    assert_eq!(is_cleaned_inline(short, 64 << 10), (false, shown.to_owned()));
    let long = format!("{short}{}", ".".repeat(1_000));
    let shown = format!("{shown}{}", ".".repeat(1_000));
    assert_eq!(is_cleaned_inline(&long, 10), (false, shown));
}

/// CSDS-15, CSDS-18: a query for the resources of a session waits while the session is away. Its pages
/// are bounded, and an ended stream has none.
#[test]
fn contents_query_waits_for_offloaded_session() {
    let mut harness = ShardHarness::new();
    harness.put("default", ENDPOINT, &[("x000007", "1")]);
    let mut client = harness.open();
    harness.send(&client, Some("n1"), ask(many(5_000)));
    assert_eq!(n_offloaded(&harness), 1);
    let stream = harness.status_page(0).items.remove(0).stream;
    let query = |harness: &mut ShardHarness, after| {
        let (reply, answer) = tokio::sync::oneshot::channel();
        let (slot, type_url) = (Arc::clone(&stream.0), TypeUrl::from_static(ENDPOINT));
        harness.handle(Event::Contents { slot, type_url, after, reply });
        answer
    };
    let mut first = query(&mut harness, None);
    assert!(first.try_recv().is_err(), "the session is away");
    until_none_offloaded(&mut harness);
    let mut page = first.try_recv().unwrap().page;
    let max = harness.parts().config.turn_work_max;
    let mut n = 0;
    loop {
        assert!(page.len() <= max, "{} names", page.len());
        n += page.len();
        let Some(after) = page.next().cloned() else { break };
        page = query(&mut harness, Some(after)).try_recv().unwrap().page;
    }
    assert_eq!(n, 5_000);
    assert_eq!(read_all(&mut harness, &mut client), ["x000007"]);
    drop(client);
    until_none_offloaded(&mut harness);
    assert!(query(&mut harness, None).try_recv().is_err(), "the stream has ended");
}

/// L3, L5: a change reaches a session that is away, or whose names are being registered.
#[test]
fn change_during_offload_reaches_the_session() {
    let mut harness = ShardHarness::new();
    let mut client = harness.open();
    harness.send(&client, Some("n1"), ask(many(5_000)));
    assert_eq!(n_offloaded(&harness), 1);
    harness.put("default", ENDPOINT, &[("x000003", "1")]);
    let mut got = read_all(&mut harness, &mut client);
    assert_eq!(got, ["x000003"]);
    // For each further large request, the change follows after a different number of turns.
    for round in 0..40 {
        let before = 5_000 + round * 3_000;
        let names = (before..before + 3_000).map(|n| format!("x{n:06}")).collect();
        harness.send(&client, None, ask(names));
        assert_eq!(n_offloaded(&harness), 1, "in round {round}");
        for _ in 0..round {
            harness.turn();
            std::thread::sleep(Duration::from_micros(200));
        }
        let name = format!("x{:06}", before + 2_999);
        harness.put("default", ENDPOINT, &[(&name, "1")]);
        got = read_all(&mut harness, &mut client);
        assert_eq!(got, [name], "in round {round}");
    }
}

/// L3, L5: changes of names that a session subscribed to earlier reach it while it is away.
#[test]
fn change_of_earlier_name_reaches_offloaded_session() {
    let mut harness = ShardHarness::new();
    let mut client = harness.open();
    harness.send(&client, Some("n1"), ask(many(5_000)));
    assert!(read_all(&mut harness, &mut client).is_empty());
    // The first change is recorded individually. 300 changes are more than are recorded individually.
    for n in [1, 300] {
        harness.send(&client, None, ask((5_000..8_000).map(|n| format!("x{n:06}")).collect()));
        assert_eq!(n_offloaded(&harness), 1);
        let names: Vec<String> = (0..n).map(|n| format!("x{n:06}")).collect();
        for name in &names {
            harness.put("default", ENDPOINT, &[(name, &n.to_string())]);
        }
        let mut got = read_all(&mut harness, &mut client);
        got.sort();
        assert_eq!(got, names);
    }
}

/// ADS-08: a reconnecting client requests its further types right after the first. If the first
/// request is large, the wait of removals starts when the request has been handled.
#[test]
fn removal_wait_starts_after_large_request_is_handled() {
    let mut harness = ShardHarness::new();
    harness.put("default", CLUSTER, &[("last", "1")]);
    let mut client = harness.open();
    let held = many(3_000).into_iter().map(|name| (name, "1-00000000".to_owned()));
    let request = DeltaRequest {
        type_url: CLUSTER.to_owned(),
        initial_resource_versions: held.collect(),
        ..DeltaRequest::default()
    };
    harness.send(&client, Some("n1"), request);
    assert_eq!(n_offloaded(&harness), 1);
    harness.ms += 5_000;
    let mut next = |harness: &mut ShardHarness| loop {
        until_none_offloaded(harness);
        if let Some(response) = harness.read(&mut client).pop() {
            harness.ack(&client, &response);
            return (response.resources.len(), response.removed_resources.len());
        }
    };
    assert_eq!(next(&mut harness), (1, 0), "the removals wait");
    harness.ms += 1_001;
    assert_eq!(next(&mut harness), (0, 3_000));
}

/// SOTW-111: a stream that ends while its session is away leaves nothing after the session has
/// returned.
#[test]
fn stream_that_ends_during_offload_frees_its_state() {
    let mut harness = ShardHarness::new();
    for turns in 0..20 {
        let client = harness.open();
        harness.send(&client, Some("n1"), ask(many(5_000)));
        for _ in 0..turns {
            harness.turn();
            std::thread::sleep(Duration::from_micros(200));
        }
        drop(client);
        let deadline = Instant::now() + PATIENCE;
        while !harness.sessions().is_empty() {
            harness.settle();
            assert!(Instant::now() < deadline, "the session remains, after {turns} turns");
        }
        assert!(harness.sessions().index().is_empty(), "after {turns} turns");
        assert_eq!(harness.sessions().index().size().names, 0);
    }
}

/// Opens a stream with many names, which the access rule `r` permits.
fn large_stream_with_rights() -> (ShardHarness, Client) {
    let config = Config { access: AccessControl::Enforced, ..Config::default() };
    let mut harness = ShardHarness::with(config);
    harness.put("default", ENDPOINT, &[("x000007", "1")]);
    let rule = access_rule("r", "unix:7", "default");
    harness.apply(&access_change(vec![AccessOp::PutRule(Box::new(rule))]));
    let identity = Identity { principal: Principal::unix(7), token: None };
    let client = harness.open_as(Some(Arc::new(identity)));
    harness.send(&client, Some("n1"), ask(many(100_000)));
    (harness, client)
}

/// Attack 46: a session that is away does not return with a response of rights that its client has lost.
#[test]
fn revoked_session_that_is_away_ends_without_a_response() {
    let (mut harness, mut client) = large_stream_with_rights();
    assert_eq!(n_offloaded(&harness), 1, "the session is away");

    harness.apply(&access_change(vec![AccessOp::DeleteRule("r".into())]));
    let now = harness.now();
    harness.shard.turn(now);
    let Poll::Ready(Delivery::End(end)) = client.poll() else { panic!("the stream is open") };
    assert_eq!(end.code, EndCode::AccessChanged);
    let deadline = Instant::now() + PATIENCE;
    while !harness.sessions().is_empty() {
        harness.settle();
        assert!(Instant::now() < deadline, "the session remains");
    }
    assert!(harness.sessions().index().is_empty());
}

/// Attack 46: the same for a session that returns with a response before the pass over all sessions reaches it.
#[test]
fn revoked_session_that_returns_with_a_response_does_not_send_it() {
    let (mut harness, mut client) = large_stream_with_rights();
    assert_eq!(read_all(&mut harness, &mut client), ["x000007"]);
    harness.put("default", ENDPOINT, &[("x000007", "2")]);
    for (_, entry) in harness.sessions_mut().iter_mut() {
        entry.session_mut().unwrap().handle_new_view();
    }
    harness.turn();
    assert_eq!(n_offloaded(&harness), 1, "the response is planned elsewhere");
    let deadline = Instant::now() + PATIENCE;
    harness.apply(&access_change(vec![AccessOp::DeleteRule("r".into())]));
    let delivery = loop {
        let now = harness.now();
        harness.shard.service.on_back(&harness.ready_list, now);
        if let Poll::Ready(delivery) = client.poll() {
            break delivery;
        }
        assert!(Instant::now() < deadline, "the session does not return");
        std::thread::sleep(Duration::from_millis(1));
    };
    let Delivery::End(end) = delivery else { panic!("a response: {delivery:?}") };
    assert_eq!(end.code, EndCode::AccessChanged);
}

/// The thread for large work also moves a session with many names to other scopes.
#[test]
fn large_session_is_moved_to_other_scopes_by_offload() {
    let mut harness = ShardHarness::new();
    harness.assign("own", "*", &["one"]);
    harness.put("one", ENDPOINT, &[("x000001", "1")]);
    harness.put("two", ENDPOINT, &[("x000001", "2")]);
    let mut client = harness.open();
    harness.send(&client, Some("n1"), ask(many(5_000)));
    assert_eq!(read_all(&mut harness, &mut client), ["x000001"]);
    harness.assign("own", "*", &["two"]);
    assert_eq!(read_all(&mut harness, &mut client), ["x000001"]);
    harness.put("two", ENDPOINT, &[("x004999", "1")]);
    assert_eq!(read_all(&mut harness, &mut client), ["x004999"]);
    drop(client);
    let deadline = Instant::now() + PATIENCE;
    while !harness.sessions().is_empty() {
        harness.settle();
        assert!(Instant::now() < deadline, "the session remains");
    }
    assert!(harness.sessions().index().is_empty());
}

/// The change of the assignments that a session missed while it was away is not hidden by a later change of rules.
#[test]
fn session_that_is_away_during_two_changes_moves_when_it_is_back() {
    let mut harness = ShardHarness::new();
    harness.assign("own", "*", &["one"]);
    harness.put("two", ENDPOINT, &[("x000001", "2")]);
    let mut client = harness.open();
    harness.send(&client, Some("n1"), ask(many(5_000)));
    assert_eq!(n_offloaded(&harness), 1, "the session is away");
    harness.assign("own", "*", &["two"]);
    let now = harness.now();
    // The session returns only after the passes of both changes.
    while harness.is_placing() {
        harness.shard.turn(now);
    }
    let rule = access_rule("r", "unix:7", "default");
    harness.apply(&access_change(vec![AccessOp::PutRule(Box::new(rule))]));
    while harness.is_placing() {
        harness.shard.turn(now);
    }
    assert_eq!(read_all(&mut harness, &mut client), ["x000001"]);
}

/// L11: a stream over its share is rejected when the memory for subscriptions is used up. Only that
/// stream ends.
#[test]
fn stream_over_its_memory_share_is_rejected() {
    let config = Config { subscriptions_bytes_max: 1 << 20, ..Config::default() };
    let mut harness = ShardHarness::with(config);
    harness.put("default", ENDPOINT, &[("x000001", "1")]);
    let mut hog = harness.open();
    harness.send(&hog, Some("hog"), ask(many(4_000)));
    assert_eq!(read_all(&mut harness, &mut hog), ["x000001"]);
    let mut second = harness.open();
    harness.send(&second, Some("second"), ask(many(4_000)));
    harness.settle();
    let end = second.end();
    assert_eq!(end.code, EndCode::ResourceExhausted);
    assert!(end.message.contains("more than its share of 524288"), "{}", end.message);
    // This stream is within its share, so the largest stream ends.
    let mut third = harness.open();
    harness.send(&third, Some("third"), ask(many(2_000)));
    assert_eq!(read_all(&mut harness, &mut third), ["x000001"]);
    let end = hog.end();
    assert_eq!(end.code, EndCode::ResourceExhausted);
    assert!(end.message.contains("the most of all streams"), "{}", end.message);
}

/// Returns a request of a client with `n` clusters, none of which exists.
fn holding(n: usize) -> DeltaRequest {
    let held = many(n).into_iter().map(|name| (name, "1-00000000".to_owned()));
    DeltaRequest {
        type_url: CLUSTER.to_owned(),
        initial_resource_versions: held.collect(),
        ..DeltaRequest::default()
    }
}

/// L12: the thread for large work sends and frees many waiting removals. They count as memory of the
/// stream.
#[test]
fn pending_removals_do_not_occupy_the_shard() {
    let mut harness = ShardHarness::new();
    harness.put("default", CLUSTER, &[("last", "1")]);
    let mut client = harness.open();
    harness.send(&client, Some("n1"), holding(5_000));
    assert_eq!(read_all(&mut harness, &mut client), ["last"]);
    let bytes = |harness: &ShardHarness| {
        harness
            .sessions()
            .iter()
            .map(|entry| entry.presence().session().map_or(0, Session::retained_bytes))
            .sum::<usize>()
    };
    assert!(bytes(&harness) > 5_000 * 300, "{}", bytes(&harness));
    harness.ms += 1_001;
    harness.turn();
    assert_eq!(n_offloaded(&harness), 1, "a poll that announces 5,000 removals is large");
    until_none_offloaded(&mut harness);
    assert_eq!(harness.read(&mut client)[0].removed_resources.len(), 5_000);
    assert!(bytes(&harness) < 5_000, "{}", bytes(&harness));
    // The second stream ends while its removals wait.
    let mut second = harness.open();
    harness.send(&second, Some("n2"), holding(5_000));
    assert_eq!(read_all(&mut harness, &mut second), ["last"]);
    drop(second);
    // A full turn could free the session at once.
    harness.shard.on_calls(&harness.ready_list, harness.now());
    assert_eq!(n_offloaded(&harness), 1, "freeing 5,000 removals is large");
    until_none_offloaded(&mut harness);
    assert_eq!(harness.sessions().len(), 1);
}

/// L12: a large session that waits for its client's answer is not polled repeatedly.
#[test]
fn large_session_awaiting_answer_is_not_polled() {
    let mut harness = ShardHarness::new();
    harness.put("default", ENDPOINT, &[("x000007", "1")]);
    let mut client = harness.open();
    harness.send(&client, Some("n1"), ask(many(5_000)));
    until_none_offloaded(&mut harness);
    let first = harness.read(&mut client);
    assert_eq!(first[0].resources[0].name, "x000007");
    // A poll has to check each name, but the response is not answered.
    let (key, entry) = harness.sessions_mut().iter_mut().next().unwrap();
    entry.session_mut().unwrap().handle_new_view();
    let now = harness.now();
    harness.sessions_mut().enqueue(key, now);
    harness.turn();
    assert_eq!(n_offloaded(&harness), 1, "the poll is large");
    let deadline = Instant::now() + Duration::from_secs(10);
    while n_offloaded(&harness) == 1 {
        std::thread::sleep(Duration::from_millis(1));
        harness.turn();
        assert!(Instant::now() < deadline, "the session is polled repeatedly");
    }
    harness.settle();
    assert_eq!(n_offloaded(&harness), 0, "the session is not polled again");
    // Changes during the wait are sent after the answer.
    harness.put("default", ENDPOINT, &[("x000008", "1")]);
    harness.ack(&client, &first[0]);
    assert_eq!(read_all(&mut harness, &mut client), ["x000008"]);
}

/// L12: large requests of ended streams neither delay those of other streams nor keep their memory.
#[test]
fn large_request_of_ended_stream_is_not_handled() {
    let mut harness = ShardHarness::new();
    let (go, gate) = std::sync::mpsc::sync_channel::<()>(1);
    harness.shard.service.offload().large().submit(
        [10, 0, 0, 1].into(),
        0,
        Box::new(move || gate.recv().unwrap_or_default()),
    );
    let client = harness.open();
    harness.send(&client, Some("n1"), ask(many(5_000)));
    assert_eq!(n_offloaded(&harness), 1);
    drop(client);
    harness.settle();
    go.send(()).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !harness.sessions().is_empty() {
        harness.turn();
        assert_eq!(
            harness.sessions().index().size().names,
            0,
            "names of an ended stream are registered"
        );
        assert!(Instant::now() < deadline, "the session remains");
    }
}
