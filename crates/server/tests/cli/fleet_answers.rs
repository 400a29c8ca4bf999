//! Answers about nodes: every replica answers for all of them, and names those that did not answer.

use std::{path::Path, process::Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    cluster::{Replica, eventually, joined},
    support::{DEADLINE, KillOnDrop, chancery, clusters, http_get, http_post, signal},
};

const RULES: &str = "assignments:\n\
    - {name: canary, priority: 20, match: {cluster: canary}, scopes: [canary]}\n\
    - {name: edge, priority: 10, match: {id: 'edge-*'}, scopes: [edge]}\n\
    - {name: own, priority: 1, match: {id: 'own-*'}, scopes: ['own/{node.id}', shared]}\n";
const ROUTE: &str = "scope: canary\nresources: [{'@type': type.googleapis.com/envoy.config.route.v3.RouteConfiguration, \
    name: main, virtual_hosts: [{name: all, domains: ['*'], routes: [{match: {prefix: /}, route: {cluster: none}}]}]}]";

/// Connects the node `edge-1` of the cluster `canary` to a replica.
fn connect(replica: &Replica, root: &Path) -> KillOnDrop {
    let mut node = chancery();
    node.args(["mirror", "--node", "edge-1", "--cluster", "canary", "--xds", &replica.xds()]);
    node.arg("--dir").arg(root.join("files")).stdout(Stdio::null()).stderr(Stdio::null());
    let node = KillOnDrop(node.spawn().unwrap());
    eventually("the node has acknowledged everything", || {
        (replica.json(&["nodes"])["nodes"][0]["state"] == "synced").then_some(())
    });
    node
}

fn http_json(replica: &Replica, path: &str) -> Value {
    let (status, body) = http_get(&replica.admin, path);
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

/// Publishes scopes for the node `edge-1`, and connects it to the first of three replicas.
fn start(root: &Path) -> ([Replica; 3], KillOnDrop) {
    let replicas = joined(root);
    let canary = format!("scope: canary\n{}", clusters(&["web"], "1s"));
    let shared = format!("scope: shared\n{}", clusters(&["db"], "1s"));
    let own =
        ROUTE.replace("scope: canary", "scope: own/own-1").replace("cluster: none", "cluster: db");
    for input in [RULES, &canary, &shared, &own] {
        let done = replicas[0].run(&["apply", "-f", "-"], input);
        assert_eq!(done.code, 0, "{done:?}");
    }
    let node = connect(&replicas[0], root);
    (replicas, node)
}

/// `explain` on another replica showed the wrong assignment, `describe` denied the node, `nodes` listed none.
#[test]
fn every_replica_answers_for_the_nodes_of_all() {
    let root = tempfile::tempdir().unwrap();
    let (mut replicas, node) = start(root.path());
    for replica in &replicas {
        check_fleet(replica);
        check_doors(replica);
    }
    for other in &replicas[1..] {
        check_local(other);
        check_references(other);
    }
    check_hanging(&replicas);
    drop(node);
    check_disconnected(&mut replicas);
}

/// The answers are those of the replica to which the node is connected.
fn check_fleet(replica: &Replica) {
    let nodes = replica.json(&["nodes"]);
    assert_eq!((&nodes["replicas"], &nodes["not_asked"]), (&json!(3), &json!([])), "{nodes}");
    let node = &nodes["nodes"][0];
    assert_eq!((&node["id"], &node["state"]), (&json!("edge-1"), &json!("synced")), "{node}");
    assert_eq!(node["condition"]["state"], "synced");
    assert_eq!(node["streams"][0]["replica_id"], 1, "{node}");
    let listed = replica.run(&["nodes", "--state", "synced"], "");
    assert!(listed.code == 0 && listed.out.contains("edge-1"), "{listed:?}");
    for state in ["nacked", "rejected", "silent", "waiting", "disconnected"] {
        let listed = replica.run(&["nodes", "--state", state], "");
        assert_eq!((listed.code, listed.out.as_str()), (0, "no nodes\n"), "{state}: {listed:?}");
    }
    let page = http_json(replica, "/v1/nodes?state=synced&limit=1");
    assert_eq!((&page["nodes"][0]["id"], &page["replicas"]), (&json!("edge-1"), &json!(3)));

    let shown = replica.json(&["node", "edge-1"]);
    assert_eq!((&shown["streams"][0]["replica_id"], &shown["not_asked"]), (&json!(1), &json!([])));
    assert_eq!(http_json(replica, "/v1/nodes/edge-1")["id"], "edge-1");
    let explained = replica.json(&["explain", "edge-1", "cds", "web"]);
    assert_eq!((&explained["connected"], &explained["unknown"]), (&json!(true), &json!([])));
    assert_eq!(explained["replicas_not_asked"], 0, "{explained}");
    let text = explained["conclusions"].to_string();
    assert!(text.contains("Assignment \\\"canary\\\" gives the node"), "{text}");
    let described = replica.json(&["describe", "cds", "web"]);
    assert_eq!(described["scopes"][0]["nodes"], json!(["edge-1"]), "{described}");
    assert_eq!(described["replicas_not_asked"], 0);
    let unknown = replica.run(&["node", "edge-9"], "");
    assert!(
        unknown.code == 1 && unknown.err.contains("\"edge-9\" is not connected; list"),
        "{unknown:?}"
    );
}

/// The flag `--local` shows what one replica knows, and says that others were not asked.
fn check_local(other: &Replica) {
    let done = other.run(&["explain", "edge-1", "cds", "web", "--local"], "");
    let warning = "warning: incomplete: node \"edge-1\" is not connected to this replica; 2 other replicas not asked\n";
    assert_eq!((done.code, done.err.as_str()), (4, warning), "{done:?}");
    assert!(done.out.contains("2 other replicas were not asked"), "{done:?}");
    assert!(!done.out.contains("gives the node the scopes"), "{done:?}");
    let explained = http_json(other, "/v1/explain?node=edge-1&type=cds&name=web&local=true");
    assert_eq!(
        (&explained["connected"], &explained["replicas_not_asked"]),
        (&json!(false), &json!(2)),
        "{explained}"
    );
    for property in ["cluster", "locality", "metadata", "identity"] {
        assert!(explained["unknown"].as_array().unwrap().contains(&json!(property)));
    }
    for trial in explained["trials"].as_array().unwrap() {
        assert_eq!((&trial["matched"], &trial["unknown"]), (&json!(false), &json!(true)));
    }
    let nodes = other.run(&["nodes", "--local"], "");
    assert_eq!(nodes.out, "no nodes of this replica; 2 other replicas not asked\n", "{nodes:?}");
    let list = http_json(other, "/v1/nodes?state=synced&local=true");
    assert_eq!((&list["replicas_not_asked"], &list["nodes"]), (&json!(2), &json!([])), "{list}");
    let described = other.run(&["describe", "cds", "web", "--local"], "");
    let seen = "seen by   no connected node of this replica; 2 other replicas not asked\n";
    assert!(described.out.contains(seen), "{described:?}");
    let missing = "is not connected to this replica; 2 other replicas were not asked";
    let node = other.run(&["node", "edge-1", "--local"], "");
    assert!(node.code == 1 && node.err.contains(missing), "{node:?}");
    let (status, body) = http_get(&other.admin, "/v1/nodes/edge-1?local=true");
    assert!(status == 404 && body.contains(missing), "{body}");
}

/// A node of another replica may have both scopes in its view, and another scope with a reference. Asked for all
/// replicas, the reference is missing; asked for one, it is unknown.
fn check_references(other: &Replica) {
    let route = ["describe", "rds", "main", "--scope", "own/own-1"];
    let described = other.json(&route);
    let (referent, n) =
        (&described["scopes"][0]["referents"][0], &described["scopes"][0]["replicas_not_asked"]);
    assert_eq!((&referent["state"], n), (&json!("missing"), &json!(0)), "{described}");
    let not_asked = "the nodes of 2 other replicas were not asked";
    let described = other.run(&[&route[..], &["--local"]].concat(), "");
    let unknown = format!("refers to cluster \"db\" (unknown: {not_asked})");
    assert!(described.out.contains(&unknown), "{described:?}");
    let described = other.run(&["describe", "cds", "db", "--scope", "shared", "--local"], "");
    let more = format!("used by   possibly more: {not_asked}\n");
    assert!(described.out.contains(&more), "{described:?}");
    // All views with the scope are those of an assignment without variables.
    let described = other.json(&["describe", "cds", "web", "--local"]);
    assert_eq!(described["scopes"][0]["replicas_not_asked"], 0, "{described}");
}

/// The other ways to ask: the view of a node, access rules, a dry run, and the status of clients.
fn check_doors(replica: &Replica) {
    let view = replica.json(&["get", "--node", "edge-1"]);
    assert_eq!(view["resources"][0]["name"], "web", "{view}");
    let decided = replica.json(&["access", "explain", "token:anna", "edge-1"]);
    assert_eq!(decided["node"]["scopes"], json!(["canary"]), "{decided}");
    let tried = replica.run(&["apply", "--dry-run", "-f", "-"], ROUTE);
    assert!(tried.err.contains("[reference.missing]"), "{tried:?}");
    assert!(!tried.err.contains("(0 nodes)"), "{tried:?}");
    let (status, answer) = http_post(&replica.admin, "/v3/discovery:client_status", "{}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((status, &answer["config"][0]["node"]["id"]), (200, &json!("edge-1")), "{answer}");
    let head = headers(&replica.admin, "");
    assert!(head.contains("x-chancery-replicas-not-asked: 0\r\n"), "{head}");
    assert!(head.contains("x-chancery-scope: replica=1,2,3\r\n"), "{head}");
    assert!(!head.contains("x-chancery-not-asked"), "{head}");
    let head = headers(&replica.admin, "?local=true");
    assert!(head.contains("x-chancery-replicas-not-asked: 2\r\n"), "{head}");
}

/// A replica that hangs is named, and the answer of the others has the code of an incomplete one.
fn check_hanging(replicas: &[Replica; 3]) {
    let hanging = replicas[0].child.as_ref().unwrap();
    signal(hanging, Signal::STOP);
    let other = &replicas[1];
    // If the leader hangs, reads wait for another one.
    eventually("another replica leads", || (other.run(&["get"], "").code == 0).then_some(()));
    for args in [&["nodes"][..], &["describe", "cds", "web"], &["load"]] {
        let done = other.run(args, "");
        assert_eq!(done.code, 4, "{args:?}: {done:?}");
        assert!(done.err.starts_with("warning: incomplete: replica 1 "), "{done:?}");
    }
    let listed = other.run(&["nodes"], "");
    assert_eq!(listed.out, "no nodes of the replicas that answered\n", "{listed:?}");
    check_words(other);
    let head = headers(&other.admin, "");
    let reason = head.lines().find_map(|line| line.strip_prefix("x-chancery-not-asked: "));
    let reason: Value = serde_json::from_str(reason.unwrap_or_else(|| panic!("{head}"))).unwrap();
    assert_eq!((reason[0]["replica_id"].as_u64(), reason.as_array().unwrap().len()), (Some(1), 1));
    assert!(!reason[0]["message"].as_str().unwrap().is_empty(), "{reason}");
    let node = other.run(&["node", "edge-1"], "");
    assert!(node.err.contains("to the 2 replicas that answered; replica 1 "), "{node:?}");
    signal(hanging, Signal::CONT);
    eventually("the replica answers again", || (other.run(&["nodes"], "").code == 0).then_some(()));
}

/// The text of an answer has the same words for the missing replica as the warning.
fn check_words(other: &Replica) {
    let incomplete = |args: &[&str]| {
        let done = other.run(args, "");
        let reason = done.err.strip_prefix("warning: incomplete: ").map(str::trim_end);
        let reason = reason.unwrap_or_else(|| panic!("{args:?}: {done:?}")).to_owned();
        assert!(done.code == 4 && reason.starts_with("replica 1 "), "{args:?}: {done:?}");
        (done.out, reason)
    };
    let (out, reason) = incomplete(&["describe", "cds", "web"]);
    let seen = format!("seen by   no connected node of the replicas that answered; {reason}\n");
    assert!(out.contains(&seen), "{out}");
    let (out, reason) = incomplete(&["describe", "rds", "main", "--scope", "own/own-1"]);
    let unknown = format!("refers to cluster \"db\" (unknown: {reason})");
    assert!(out.contains(&unknown), "{out}");
    let (out, reason) = incomplete(&["describe", "cds", "db", "--scope", "shared"]);
    assert!(out.contains(&format!("used by   possibly more: {reason}\n")), "{out}");
    let (out, _) = incomplete(&["disconnect", "edge-9"]);
    assert_eq!(out, "node \"edge-9\" is not connected to the replicas that answered\n");
}

/// A node that has lost its stream stays visible, also after its replica has restarted.
fn check_disconnected(replicas: &mut [Replica; 3]) {
    let listed = |replica: &Replica| {
        eventually("the node is disconnected", || {
            let list = replica.json(&["nodes", "--state", "disconnected"]);
            let node = list["disconnected"].as_array()?.first()?.clone();
            assert_eq!(list["nodes"], json!([]), "{list}");
            Some(node)
        })
    };
    let before = listed(&replicas[1]);
    assert_eq!((&before["id"], &before["replica_id"]), (&json!("edge-1"), &json!(1)), "{before}");
    let shown = replicas[2].json(&["node", "edge-1"]);
    assert_eq!(shown["condition"]["state"], "disconnected", "{shown}");
    let table = replicas[2].run(&["nodes"], "");
    assert!(table.out.contains("disconnected"), "{table:?}");
    // The file follows within the pause between two visits.
    let file = replicas[0].directory.join("recent-nodes");
    eventually("the list is written", || file.exists().then_some(()));
    replicas[0].kill();
    replicas[0].start_and_wait(&[]);
    let after = listed(&replicas[1]);
    assert_eq!((&after["id"], &after["replica_id"]), (&json!("edge-1"), &json!(1)), "{after}");
}

/// Returns the head of an answer about the status of clients.
fn headers(admin: &str, query: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(admin).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let request = format!(
        "POST /v3/discovery:client_status{query} HTTP/1.0\r\nhost: localhost\r\n\
         content-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").map(|(head, _)| format!("{head}\r\n").to_lowercase()).unwrap()
}
