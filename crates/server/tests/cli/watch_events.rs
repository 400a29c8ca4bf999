//! The events of a watch: scripted clients and members, seen through another replica.

use std::{path::Path, thread};

use chancery_model::types::CLUSTER;
use serde_json::{Value, json};

use crate::{
    cluster::{Replica, eventually},
    scripted::{Client, Manner, REJECTION},
    scripted_fleet::Fleet,
    support::clusters,
    watch::{Follower, Watcher, servers},
};

/// Publishes the cluster `web`.
pub(crate) fn publish(replica: &Replica, timeout: &str) {
    let done = replica.run(&["apply", "--confirm", "all", "-f", "-"], &clusters(&["web"], timeout));
    assert_eq!(done.code, 0, "{done:?}");
}

/// Waits until a client holds the cluster `web` with a mark.
fn until_held(client: &Client, mark: i64) {
    eventually("the client holds the cluster", || {
        (client.record().mark("web") == Some(mark)).then_some(())
    });
}

fn until_rejected(client: &Client) {
    eventually("the client rejects", || (!client.record().rejected.is_empty()).then_some(()));
}

/// Lets a client connect, reject, accept and leave.
fn live(fleet: &Fleet, at: usize, writer: usize) {
    let mut client = Client::new("edge-1");
    fleet.connect(&mut client, at);
    until_held(&client, 1);
    client.record().manner = Manner::Reject;
    publish(&fleet.replicas[writer], "2s");
    until_rejected(&client);
    client.record().manner = Manner::Accept;
    publish(&fleet.replicas[writer], "3s");
    until_held(&client, 3);
    // If the client closed its stream at once, its acknowledgment could be lost.
    eventually("the replica knows that the client accepts", || {
        let done = fleet.replicas[at].run(&["node", "edge-1", "-o", "json"], "");
        let node: Value = serde_json::from_str(&done.out).ok()?;
        (node["condition"]["state"] == "synced").then_some(())
    });
    client.close();
}

fn start(root: &Path) -> (Fleet, usize) {
    let fleet = Fleet::start(root);
    let leader = fleet.leader(0);
    publish(&fleet.replicas[leader], "1s");
    (fleet, leader)
}

/// A client connects, rejects, accepts and leaves on one replica. A watcher of another replica sees each of that once.
#[test]
fn rejections_of_clients_and_their_ends_reach_watchers_of_other_replicas() {
    let root = tempfile::tempdir().unwrap();
    let (fleet, leader) = start(root.path());
    let (at, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let watcher = Watcher::start(&fleet.replicas[at].admin, &[]);
    let local = Watcher::start(&fleet.replicas[at].admin, &["--kind", "nodes", "--local"]);
    let first = watcher.next("the position");
    assert!(first["revision"] == 1 && first.as_object().unwrap().len() == 2, "{first}");
    local.next("the position");
    live(&fleet, other, at);

    let mut seen = Vec::new();
    watcher.wait("the client leaves", |event| {
        if event.get("node").is_some() || event.get("made").is_some() {
            seen.push(event.clone());
        }
        event["node"]["kind"] == "disconnected"
    });
    let made: Vec<&Value> = seen.iter().filter(|event| event.get("made").is_some()).collect();
    assert_eq!(made.len(), 2, "{seen:#?}");
    let nodes: Vec<&Value> = seen.iter().filter_map(|event| event.get("node")).collect();
    let kinds: Vec<&str> = nodes.iter().map(|node| node["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["connected", "rejected", "recovered", "disconnected"], "{seen:#?}");
    for node in &nodes {
        assert_eq!((&node["node"], &node["replica_id"]), (&json!("edge-1"), &json!(other + 1)));
        assert_eq!(node["peer"], nodes[0]["peer"], "{seen:#?}");
        let is_rejection = node["kind"] == "rejected";
        let expected = if is_rejection { (CLUSTER, REJECTION) } else { ("", "") };
        assert_eq!((&node["type_url"], &node["message"]), (&json!(expected.0), &json!(expected.1)));
    }
    // The rejection is that of the second revision, and ends with the third.
    let revision = |kind: &str| {
        let event = seen.iter().find(|event| event["node"]["kind"] == kind).unwrap();
        event["revision"].as_u64().unwrap()
    };
    assert!(revision("rejected") >= 2 && revision("recovered") >= 3, "{seen:#?}");

    // A watch of one replica has the events of its own clients only.
    let mut client = Client::new("edge-2");
    fleet.connect(&mut client, at);
    let event = local.wait("a client connects here", |event| event.get("node").is_some());
    assert_eq!(
        (&event["node"]["node"], &event["node"]["kind"]),
        (&json!("edge-2"), &json!("connected"))
    );
}

/// The list comes first. What happens after it follows, also if the client acts while the command starts.
#[test]
fn nodes_watch_shows_the_list_and_then_each_event() {
    let root = tempfile::tempdir().unwrap();
    let (fleet, leader) = start(root.path());
    let (at, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let mut early = Client::new("early-1");
    fleet.connect(&mut early, other);
    until_held(&early, 1);
    let follower = Follower::start(&fleet.replicas[at].admin, &["nodes", "--watch"]);
    let head = follower.until("early-1");
    assert!(head[0].starts_with("NODE "), "{head:?}");
    live(&fleet, other, at);
    let lines = follower.until("node edge-1 on replica");
    let rest = follower.until("disconnected from");
    let lines: Vec<&String> =
        lines.iter().chain(&rest).filter(|line| line.contains("edge-1")).collect();
    let place = format!("node edge-1 on replica {}", other + 1);
    let parts = [
        "connected from 127.0.0.1:".to_owned(),
        format!("rejected cluster: {REJECTION}"),
        "recovered from 127.0.0.1:".to_owned(),
        "disconnected from 127.0.0.1:".to_owned(),
    ];
    assert_eq!(lines.len(), parts.len(), "{lines:?}");
    for (line, part) in lines.iter().zip(parts) {
        assert!(line.contains(&format!("Z  {place} {part}")), "{line}");
    }
}

/// A client that connects while `nodes --watch` starts is in the list, or in the events.
#[test]
fn nodes_watch_misses_no_client_between_its_list_and_its_events() {
    let root = tempfile::tempdir().unwrap();
    let (fleet, leader) = start(root.path());
    let (at, other) = ((leader + 1) % 3, (leader + 2) % 3);
    for n in 0..10 {
        let follower = Follower::start(&fleet.replicas[at].admin, &["nodes", "--watch"]);
        let clients = thread::scope(|scope| {
            let connecting = scope.spawn(|| {
                let ids = (0..40).map(|one| format!("round-{n}-{one}."));
                let connect = |id: String| {
                    let mut client = Client::new(&id);
                    fleet.connect(&mut client, other);
                    until_held(&client, 1);
                    client
                };
                ids.map(connect).collect::<Vec<_>>()
            });
            connecting.join().unwrap()
        });
        let mut missing: Vec<&str> = clients.iter().map(|client| client.id.as_str()).collect();
        while !missing.is_empty() {
            let line = follower.line(&format!("nothing shows {missing:?}"));
            missing.retain(|id| !line.contains(id));
        }
    }
}

/// `history --follow` lists the history, and then each new revision once, also after its replica has ended.
#[test]
fn history_follow_shows_each_revision_once_through_the_end_of_its_replica() {
    let root = tempfile::tempdir().unwrap();
    let (mut fleet, leader) = start(root.path());
    let (first, other) = ((leader + 1) % 3, (leader + 2) % 3);
    publish(&fleet.replicas[leader], "2s");
    let all = [first, other, leader].map(|at| fleet.replicas[at].admin.clone()).join(",");
    let follower = Follower::start(&all, &["history", "--follow"]);
    let list = ["REVISION ", "2 ", "1 "].map(|start| (follower.line("the list"), start));
    assert!(list.iter().all(|(line, start)| line.starts_with(start)), "{list:?}");
    let mut seen = Vec::new();
    for n in 3..9 {
        publish(&fleet.replicas[other], &format!("{n}s"));
        let lines = follower.until(&format!("revision {n}: 1 changed, 0 removed, by "));
        seen.extend(lines);
        if n == 5 {
            fleet.replicas[first].kill();
        }
    }
    let heads = seen.iter().filter(|line| line.contains("  revision ")).count();
    assert_eq!(heads, 6, "{seen:#?}");
    let changes = seen.iter().filter(|line| *line == "  default cluster: 1 changed, 0 removed");
    // The changes of the last revision follow its line.
    assert_eq!(changes.count(), 5, "{seen:#?}");
}

/// A replica that joins and one that is removed are events, on every replica. So is the next leader.
#[test]
fn changes_of_members_reach_watchers() {
    let root = tempfile::tempdir().unwrap();
    let (mut fleet, leader) = start(root.path());
    let (at, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let watchers = [at, leader].map(|at| {
        let watcher = Watcher::start(&fleet.replicas[at].admin, &["--kind", "members,nodes"]);
        watcher.next("the position");
        watcher
    });
    // On a busy machine, the leader may change.
    let is_leader = |member: &Value| member["kind"] == "leader";
    let member = |watcher: &Watcher| {
        let event = watcher
            .wait("a member", |event| event.get("member").is_some_and(|member| !is_leader(member)));
        event["member"].clone()
    };
    let mut fourth = Replica::new(root.path(), 4);
    fourth.start_and_wait(&["--join", &fleet.replicas[leader].raft]);
    // The watchers see the first client of a new member, even if they have not asked the member before.
    let addresses = fleet.addresses.clone();
    addresses.lock().unwrap()[other] = fourth.xds();
    let mut client = Client::new("new-1");
    fleet.connect(&mut client, other);
    for watcher in &watchers {
        let (mut seen, mut connected) = (Vec::new(), Value::Null);
        watcher.wait("a voter with a client", |event| {
            seen.extend(event.get("member").filter(|member| !is_leader(member)).cloned());
            if event["node"]["kind"] == "connected" {
                connected = event["node"].clone();
            }
            seen.last().is_some_and(|member| member["role"] == "voter") && connected.is_object()
        });
        // A replica may become a voter before the watcher sees it as a learner.
        let added = |role: &str| json!({"kind": "added", "replica_id": 4, "role": role});
        let role = json!({"kind": "role", "replica_id": 4, "role": "voter"});
        let expected = [vec![added("learner"), role], vec![added("voter")]];
        assert!(expected.contains(&seen), "{seen:?}");
        let place = (&connected["node"], &connected["replica_id"]);
        assert_eq!(place, (&json!("new-1"), &json!(4)), "{connected}");
    }
    fleet.replicas[at].wait_voters(4);
    client.close();
    let done = fleet.replicas[at].run(&["cluster", "remove", "4"], "");
    assert_eq!(done.code, 0, "{done:?}");
    for watcher in &watchers {
        assert_eq!(member(watcher), json!({"kind": "removed", "replica_id": 4, "role": ""}));
    }
    let [watcher, _] = watchers;
    fleet.replicas[leader].kill();
    let id = leader + 1;
    let (mut is_missing, mut has_leader) = (false, false);
    watcher.wait("a replica is missing, and another one leads", |event| {
        let member = &event["member"];
        is_missing |= event["missed"]["replica_id"] == id;
        has_leader |=
            member["kind"] == "leader" && ![json!(0), json!(id)].contains(&member["replica_id"]);
        is_missing && has_leader
    });
}

/// A revision shows its changes by scope and type, and a watch of a scope has the revisions of that scope only.
#[test]
fn revisions_show_their_changes_and_are_selected_by_scope() {
    let root = tempfile::tempdir().unwrap();
    let (fleet, leader) = start(root.path());
    let all = servers(&fleet.replicas);
    let every = Watcher::start(&all, &["--kind", "revisions"]);
    let of_scope =
        Watcher::start(&all, &["--scope", "other", "--kind", "revisions", "--after", "0"]);
    every.next("the position");
    publish(&fleet.replicas[leader], "2s");
    let manifest = format!("scope: other\n{}", clusters(&["a", "b"], "1s"));
    fleet.write((leader + 1) % 3, &["apply", "-f", "-", "--label", "v1"], &manifest);
    let made = |watcher: &Watcher| {
        let event = watcher.wait("a revision", |event| event.get("made").is_some());
        (event["revision"].clone(), event["made"].clone())
    };
    let change = |scope: &str, changed: u64| json!([{"scope": scope, "type_url": CLUSTER, "changed": changed, "removed": 0}]);
    let (revision, first) = made(&every);
    assert_eq!((revision, &first["changes"]), (json!(2), &change("default", 1)), "{first}");
    for watcher in [&every, &of_scope] {
        let (revision, second) = made(watcher);
        assert_eq!((revision, &second["changes"]), (json!(3), &change("other", 2)), "{second}");
        assert_eq!(second["entry"]["label"], "v1", "{second}");
    }
    let unknown = fleet.replicas[0].run(&["watch", "--kind", "nodez"], "");
    assert_eq!(unknown.code, 2, "{unknown:?}");
}
