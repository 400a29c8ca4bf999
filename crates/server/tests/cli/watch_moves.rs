//! Watches while replicas stop, leave and join: lost events are reported as `missed`, and no event is lost silently.

use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    cluster::{eventually, run_at},
    network::Cut,
    scripted::Client,
    scripted_fleet::Fleet,
    support::http_get,
    watch::Watcher,
    watch_events::publish,
};

/// Waits until a replica lists a node in a state.
fn until_state(fleet: &Fleet, at: usize, node: &str, state: &str) {
    eventually(&format!("{node} is {state}"), || {
        let done = fleet.replicas[at].run(&["node", node, "-o", "json"], "");
        let status: Value = serde_json::from_str(&done.out).ok()?;
        (status["condition"]["state"] == state).then_some(())
    });
}

/// Returns the ID of the node and the kind of an event of a node.
fn node_event(event: &Value) -> Option<(String, String)> {
    let text = |name: &str| event["node"][name].as_str().map(str::to_owned);
    Some((text("node")?, text("kind")?))
}

/// Returns the reason of an event `missed` of a replica.
fn missed(event: &Value, at: usize) -> Option<&str> {
    let missed = event.get("missed").filter(|missed| missed["replica_id"] == at + 1)?;
    missed["reason"].as_str()
}

/// The watch does not know which clients a removed replica has, and the replica may serve them for a while. When its
/// replica ID joins again, the watch has the events of its clients from the start: the old position is forgotten.
#[test]
fn removed_replica_is_missed_until_its_id_joins_again() {
    let root = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::start(root.path());
    let leader = fleet.leader(0);
    let (at, removed) = ((leader + 1) % 3, (leader + 2) % 3);
    let watcher = Watcher::start(&fleet.replicas[at].admin, &["--kind", "nodes"]);
    let local = Watcher::start(&fleet.replicas[at].admin, &["--kind", "nodes", "--local"]);
    watcher.next("the position");
    local.next("the position");
    let mut client = Client::new("edge-1");
    fleet.connect(&mut client, removed);
    watcher.wait("a client", |event| event["node"]["kind"] == "connected");

    let id = (removed + 1).to_string();
    let done = fleet.replicas[at].run(&["cluster", "remove", &id], "");
    assert_eq!(done.code, 0, "{done:?}");
    let reason =
        "the replica was removed from the cluster; the watch no longer follows its clients";
    let event = watcher.wait("the removal", |event| {
        missed(event, removed).is_some_and(|reason| reason.contains("removed"))
    });
    assert_eq!(event["missed"], json!({"replica_id": removed + 1, "count": 0, "reason": reason}));

    let mut child = fleet.replicas[removed].child.take().unwrap();
    eventually("the removed replica ends", || child.try_wait().unwrap());
    fleet.rejoin(removed, leader);
    let mut client = Client::new("edge-2");
    fleet.connect(&mut client, removed);
    watcher.wait("a client of the new replica", |event| {
        let reason = missed(event, removed).unwrap_or_default();
        assert!(!reason.contains("removed") && !reason.contains("restarted"), "{event}");
        event["node"]["node"] == "edge-2"
    });
    // A watch of one replica does not follow the others.
    let mut client = Client::new("edge-3");
    fleet.connect(&mut client, at);
    local.wait("a client of the watched replica", |event| {
        assert!(event.get("missed").is_none(), "{event}");
        event["node"]["node"] == "edge-3"
    });
}

/// The server of a watch ends, and clients of another replica connect and leave before the watch has the next server.
#[test]
fn watch_that_moves_shows_what_clients_did_meanwhile() {
    let root = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::start(root.path());
    let leader = fleet.leader(0);
    publish(&fleet.replicas[leader], "1s");
    let (first, next) = ((leader + 1) % 3, (leader + 2) % 3);
    let all = [first, next].map(|at| fleet.replicas[at].admin.clone()).join(",");
    let watcher = Watcher::start(&all, &["--kind", "nodes"]);
    watcher.next("the position");
    let mut early = Client::new("early");
    fleet.connect(&mut early, leader);
    watcher.wait("the first client", |event| event["node"]["kind"] == "connected");

    watcher.signal(Signal::STOP);
    fleet.replicas[first].kill();
    let mut late = Client::new("late");
    fleet.connect(&mut late, leader);
    until_state(&fleet, next, "late", "synced");
    early.close();
    until_state(&fleet, next, "early", "disconnected");
    watcher.signal(Signal::CONT);
    let (mut events, mut reason) = (Vec::new(), None);
    watcher.wait("both events, and what the replica that has ended had", |event| {
        events.extend(node_event(event));
        reason = reason.take().or(missed(event, first).map(str::to_owned));
        events.len() >= 2 && reason.is_some()
    });
    let expected = [("late", "connected"), ("early", "disconnected")];
    assert_eq!(events, expected.map(|(node, kind)| (node.to_owned(), kind.to_owned())));

    // The next event follows once, and nothing is repeated.
    late.close();
    watcher.wait("the last event", |event| {
        events.extend(node_event(event));
        event["node"]["kind"] == "disconnected"
    });
    assert_eq!(events.len(), 3, "{events:?}");
}

/// The server of a watch loses its leader, and then ends. The next server has known the leader all the time.
#[test]
fn watch_that_moves_shows_the_leader_that_the_lost_server_did_not_know() {
    let root = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::start(root.path());
    let leader = fleet.leader(0);
    let (first, next) = ((leader + 1) % 3, (leader + 2) % 3);
    let all = [first, next].map(|at| fleet.replicas[at].admin.clone()).join(",");
    let watcher = Watcher::start(&all, &["--kind", "members"]);
    watcher.next("the position");
    fleet.network.cut(first, Cut::Silent);
    let is_leader = |event: &Value| event["member"]["kind"] == "leader";
    watcher.wait("no leader", |event| is_leader(event) && event["member"]["replica_id"] == 0);
    fleet.replicas[first].kill();
    let event = watcher.wait("a leader", |event| {
        assert!(event.get("member").is_none() || is_leader(event), "{event}");
        is_leader(event)
    });
    let known = event["member"]["replica_id"].as_u64().unwrap();
    assert!(![0, first as u64 + 1].contains(&known), "{event}");
}

/// A revision that does not exist is refused, unless the replica cannot know. A replica that lags catches up first.
#[test]
fn watch_after_a_revision_that_does_not_exist_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::start(root.path());
    let leader = fleet.leader(0);
    let (other, lagging) = ((leader + 1) % 3, (leader + 2) % 3);
    publish(&fleet.replicas[leader], "1s");
    let text = "revision 999 does not exist; the newest revision is 1";
    for at in [leader, other] {
        let done = fleet.replicas[at].run(&["watch", "--after", "999"], "");
        assert!(done.code == 1 && done.err == format!("error: {text}\n"), "{done:?}");
        let path = "/v1/watch?after_revision=999";
        let (status, body) = http_get(&fleet.replicas[at].admin, path);
        assert!(status == 404 && body.contains(text), "{status} {body}");
    }

    fleet.signal(lagging, Signal::STOP);
    for n in 2..5 {
        publish(&fleet.replicas[leader], &format!("{n}s"));
    }
    fleet.signal(lagging, Signal::CONT);
    let args = ["--kind", "revisions", "--after", "4"];
    let watcher = Watcher::start(&fleet.replicas[lagging].admin, &args);
    assert_eq!(watcher.next("the position")["revision"], 4);
    publish(&fleet.replicas[leader], "5s");
    let event = watcher.wait("the next revision", |event| event.get("made").is_some());
    assert_eq!(event["revision"], 5, "{event}");

    // Without a majority, the revision may exist.
    fleet.replicas[leader].kill();
    fleet.replicas[lagging].kill();
    let server = fleet.replicas[other].admin.clone();
    let args = ["--kind", "revisions", "--after", "6"];
    let watcher = Watcher::start(&server, &args);
    let unknown =
        thread::spawn(move || run_at(&server, &["watch", "--kind", "members", "--after", "6"], ""));
    assert_eq!(watcher.next("the position")["revision"], 6);
    // With a majority, the replica learns that it does not exist.
    fleet.restart(leader);
    let done = unknown.join().unwrap();
    assert!(done.code == 1 && done.err.contains("revision 6 does not exist"), "{done:?}");
}

/// The connection to a server that hangs stays open, but nothing arrives.
#[test]
fn watch_moves_away_from_a_server_that_hangs() {
    let root = tempfile::tempdir().unwrap();
    let fleet = Fleet::start(root.path());
    let leader = fleet.leader(0);
    let (first, next) = ((leader + 1) % 3, (leader + 2) % 3);
    let all = [first, next].map(|at| fleet.replicas[at].admin.clone()).join(",");
    let watcher = Watcher::start(&all, &["--kind", "revisions"]);
    let begin = watcher.next("the position")["revision"].as_u64().unwrap();
    fleet.signal(first, Signal::STOP);
    publish(&fleet.replicas[leader], "1s");
    let event = watcher.wait("the revision", |event| event.get("made").is_some());
    assert_eq!(event["revision"].as_u64(), Some(begin + 1), "{event}");
    fleet.signal(first, Signal::CONT);
}
