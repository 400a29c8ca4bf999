//! Answers of a replica about nodes of other replicas: they contain nothing that the replica does not know.

use std::{path::Path, process::Stdio};

use serde_json::{Value, json};

use crate::{
    cluster::{Replica, eventually, joined},
    support::{DEADLINE, KillOnDrop, chancery, clusters, http_get, http_post},
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
    eventually("the node is connected", || {
        (!replica.json(&["nodes"])["nodes"].as_array()?.is_empty()).then_some(())
    });
    node
}

fn http_json(replica: &Replica, path: &str) -> Value {
    let (status, body) = http_get(&replica.admin, path);
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

/// `explain` on another replica showed the wrong assignment, `describe` denied the node, and a finding about a
/// reference counted no nodes.
#[test]
fn replica_says_nothing_about_nodes_of_other_replicas() {
    let root = tempfile::tempdir().unwrap();
    let replicas = joined(root.path());
    let done = replicas[0].run(&["apply", "-f", "-"], RULES);
    assert_eq!(done.code, 0, "{done:?}");
    let canary = format!("scope: canary\n{}", clusters(&["web"], "1s"));
    let done = replicas[0].run(&["apply", "-f", "-"], &canary);
    assert_eq!(done.code, 0, "{done:?}");
    let shared = format!("scope: shared\n{}", clusters(&["db"], "1s"));
    let own = ROUTE.replace("scope: canary", "scope: own/own-1");
    for input in [shared, own.replace("cluster: none", "cluster: db")] {
        let done = replicas[0].run(&["apply", "-f", "-"], &input);
        assert_eq!(done.code, 0, "{done:?}");
    }
    let _node = connect(&replicas[0], root.path());

    check_replica_of_the_node(&replicas[0]);
    for other in &replicas[1..] {
        check_explain(other);
        check_lists(other);
        check_references(other);
        check_doors(other);
    }
}

/// The replica with the node knows the node, and says that others were not asked.
fn check_replica_of_the_node(replica: &Replica) {
    let explained = replica.json(&["explain", "edge-1", "cds", "web"]);
    assert_eq!((&explained["connected"], &explained["unknown"]), (&json!(true), &json!([])));
    assert_eq!(explained["replicas_not_asked"], 2, "{explained}");
    let text = explained["conclusions"].to_string();
    assert!(text.contains("Assignment \\\"canary\\\" gives the node"), "{text}");
    let described = replica.json(&["describe", "cds", "web"]);
    assert_eq!(described["scopes"][0]["nodes"], json!(["edge-1"]), "{described}");
    assert_eq!(replica.json(&["node", "edge-1"])["replicas_not_asked"], 2);
}

fn check_explain(other: &Replica) {
    let done = other.run(&["explain", "edge-1", "cds", "web"], "");
    let warning = "warning: incomplete: node \"edge-1\" is not connected to this replica; 2 other replicas not asked\n";
    assert_eq!((done.code, done.err.as_str()), (4, warning), "{done:?}");
    assert!(done.out.contains("2 other replicas were not asked"), "{done:?}");
    assert!(!done.out.contains("gives the node the scopes"), "{done:?}");
    let done = other.run(&["explain", "edge-1", "cds", "web", "-o", "json"], "");
    assert_eq!(done.code, 4, "{done:?}");
    let by_command: Value = serde_json::from_str(&done.out).unwrap();
    let by_http = http_json(other, "/v1/explain?node=edge-1&type=cds&name=web");
    for explained in [by_command, by_http] {
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
        assert_eq!(explained["scopes"], json!([]), "{explained}");
    }
}

fn check_lists(other: &Replica) {
    let nodes = other.run(&["nodes"], "");
    assert_eq!(nodes.out, "no nodes of this replica; 2 other replicas not asked\n", "{nodes:?}");
    for args in [&["nodes"][..], &["nodes", "--state", "synced"]] {
        let list = other.json(args);
        assert_eq!(list["replicas_not_asked"], 2, "{list}");
    }
    assert_eq!(
        http_json(other, "/v1/nodes?state=synced"),
        json!({"replicas_not_asked": 2, "nodes": []})
    );
    let described = other.run(&["describe", "cds", "web"], "");
    let seen = "seen by   no connected node of this replica; 2 other replicas not asked\n";
    assert!(described.out.contains(seen), "{described:?}");
    assert_eq!(other.json(&["describe", "cds", "web"])["replicas_not_asked"], 2);
    let node = other.run(&["node", "edge-1"], "");
    let missing = "is not connected to this replica; 2 other replicas were not asked";
    assert!(node.code == 1 && node.err.contains(missing), "{node:?}");
    let (status, body) = http_get(&other.admin, "/v1/nodes/edge-1");
    assert!(status == 404 && body.contains(missing), "{body}");
}

/// A node of another replica may have both scopes in its view, and another scope with a reference.
fn check_references(other: &Replica) {
    let not_asked = "the nodes of 2 other replicas were not asked";
    let route = ["describe", "rds", "main", "--scope", "own/own-1"];
    let described = other.json(&route);
    let (referent, n) =
        (&described["scopes"][0]["referents"][0], &described["scopes"][0]["replicas_not_asked"]);
    assert_eq!((&referent["state"], n), (&json!("unknown"), &json!(2)), "{described}");
    let described = other.run(&route, "");
    let unknown = format!("refers to cluster \"db\" (unknown: {not_asked})");
    assert!(described.out.contains(&unknown), "{described:?}");
    let described = other.run(&["describe", "cds", "db", "--scope", "shared"], "");
    let more = format!("used by   possibly more: {not_asked}\n");
    assert!(described.out.contains(&more), "{described:?}");
    // All views with the scope are those of an assignment without variables.
    let described = other.json(&["describe", "cds", "web"]);
    assert_eq!(described["scopes"][0]["replicas_not_asked"], 0, "{described}");
}

/// The other ways to ask: the view of a node, access rules, a dry run, and the status of clients.
fn check_doors(other: &Replica) {
    let missing = "is not connected to this replica; 2 other replicas were not asked";
    for args in
        [["get", "--node", "edge-1"].as_slice(), &["access", "explain", "token:anna", "edge-1"]]
    {
        let done = other.run(args, "");
        assert!(done.code == 1 && done.err.contains(missing), "{args:?}: {done:?}");
    }
    let tried = other.run(&["apply", "--dry-run", "-f", "-"], ROUTE);
    assert!(tried.err.contains("[reference.missing]"), "{tried:?}");
    assert!(!tried.err.contains("(0 nodes)"), "{tried:?}");
    let (status, answer) = http_post(&other.admin, "/v3/discovery:client_status", "{}");
    assert_eq!((status, answer.as_str()), (200, "{\"config\":[]}"));
    let head = headers(&other.admin);
    assert!(head.contains("x-chancery-replicas-not-asked: 2\r\n"), "{head}");
}

/// Returns the head of an answer about the status of clients.
fn headers(admin: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(admin).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let request = "POST /v3/discovery:client_status HTTP/1.0\r\nhost: localhost\r\n\
        content-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").map(|(head, _)| format!("{head}\r\n").to_lowercase()).unwrap()
}
