//! `chancery analyze` on three replicas: its table, its exit codes, and the nodes of all replicas.

use std::process::Stdio;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    cluster::{Replica, eventually, index, joined},
    scripted::{Client, Manner},
    scripted_fleet::Fleet,
    support::{KillOnDrop, chancery, clusters, http_get, signal},
};

/// The scope of each node has a route to a cluster. The scope `base` has a cluster without a route.
const RULES: &str = "assignments: [{name: own, priority: 1, match: {id: 'own-*'}, scopes: ['own/{node.id}', base]}]\n";
const SCOPES: &str = "---\nscope: own/own-1\nresources:\n\
    - {'@type': type.googleapis.com/envoy.config.listener.v3.Listener, name: in, address: {socket_address: {address: \
      127.0.0.1, port_value: 80}}, filter_chains: [{filters: [{name: tcp, typed_config: {'@type': \
      type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: a, cluster: web}}]}]}\n";

fn base(cluster: &str) -> String {
    format!(
        "---\nscope: base\nresources: [{{'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: {cluster}, \
         connect_timeout: 1s}}]\n"
    )
}

/// Returns the rules of the findings of an answer.
fn found(answer: &Value) -> Vec<&str> {
    let all = answer["findings"].as_array().unwrap().iter();
    all.map(|one| one["rule_id"].as_str().unwrap()).collect()
}

fn analyze(replica: &Replica) -> (i32, Value) {
    let done = replica.run(&["analyze", "-o", "json"], "");
    (done.code, serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:?}")))
}

/// Returns a row of a table without its alignment.
fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The view of a node depends on its ID, and only the replica of the node knows it. Every replica reports on it.
#[test]
fn analysis_of_any_replica_covers_the_nodes_of_all() {
    let root = tempfile::tempdir().unwrap();
    let mut replicas = joined(root.path());
    let leader = index(&replicas[0].wait_voters(3)["leader"]);
    let (with_node, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let written =
        replicas[other].run(&["apply", "-f", "-"], &format!("{RULES}{SCOPES}{}", base("spare")));
    assert_eq!(written.code, 0, "{written:?}");
    let done = replicas[other].run(&["analyze"], "");
    let rows: Vec<String> = done.out.lines().map(words).collect();
    let row = "warning resource.unused base cluster spare nothing refers to it; delete it, unless the bootstrap of the \
               nodes refers to it";
    assert_eq!(
        (rows[0].as_str(), rows[1].as_str()),
        ("SEVERITY RULE SCOPE TYPE NAME FINDING", row)
    );
    // No node is connected.
    assert_eq!(
        rows[2],
        "info assignment.unused - - default no connected node has it; delete it if its nodes do not return"
    );
    assert!(
        rows[4].starts_with("3 findings (1 warning) about 2 resources at revision "),
        "{rows:?}"
    );
    assert_eq!((done.code, done.err.as_str()), (5, "error: the analysis has 1 warning\n"));

    let mut node = chancery();
    node.args(["mirror", "--node", "own-1", "--xds", &replicas[with_node].xds()]);
    node.arg("--dir").arg(root.path().join("files")).stdout(Stdio::null()).stderr(Stdio::null());
    let _node = KillOnDrop(node.spawn().unwrap());
    for replica in &replicas {
        let answer = eventually("the view of the node is checked", || {
            let (code, answer) = analyze(replica);
            (code == 5 && answer["warnings"] == 2).then_some(answer)
        });
        // The node has the assignment `own`, and not `default`.
        let rules = ["resource.unused", "reference.missing", "assignment.unused", "node.version"];
        assert_eq!(found(&answer), rules, "{answer}");
        assert_eq!(answer["findings"][2]["name"], "default");
        let message =
            "refers to Cluster \"web\", which is missing in 1 view: own/own-1+base (1 node)";
        assert_eq!(answer["findings"][1]["message"], message);
        assert_eq!(answer["not_asked"], json!([]));
    }

    // The resource that was missing is published, and the other one is deleted.
    let prune = ["apply", "--prune", "--confirm", "all", "-f", "-"];
    let repaired = replicas[other].run(&prune, &base("web"));
    assert_eq!(repaired.code, 0, "{repaired:?}");
    for replica in &replicas {
        let (code, answer) = analyze(replica);
        let rules = vec!["assignment.unused", "node.version"];
        assert_eq!((code, found(&answer)), (0, rules), "{answer}");
    }

    // A replica that does not answer matters if only it may know a view.
    let broken = replicas[other].run(&prune, &base("spare"));
    assert_eq!(broken.code, 0, "{broken:?}");
    signal(replicas[with_node].child.as_ref().unwrap(), Signal::STOP);
    let done = replicas[other].run(&["analyze", "--scope", "own/own-1"], "");
    let warning = format!("replica {} did not answer within ", with_node + 1);
    assert_eq!((done.code, done.err.contains(&warning)), (4, true), "{done:?}");
    signal(replicas[with_node].child.as_ref().unwrap(), Signal::CONT);
    let missing = replicas[other].run(&["analyze", "--scope", "nowhere"], "");
    assert_eq!(missing.code, 1, "{missing:?}");
    assert!(missing.err.starts_with("error: scope \"nowhere\" has no resources"), "{missing:?}");
    replicas[leader].terminate();
}

/// Each problem of a node is found by the replicas to which the node is not connected, too.
#[test]
fn problems_of_nodes_are_found_on_every_replica() {
    let root = tempfile::tempdir().unwrap();
    let fleet = Fleet::start(root.path());
    fleet.wait_leader(0);
    let rules = "assignments: [{name: default, match: {id: 'e*'}, scopes: [default]}]\n";
    fleet.write(0, &["apply", "--confirm", "all", "-f", "-"], rules);
    fleet.write(0, &["apply", "-f", "-"], &clusters(&["web"], "1s"));
    let mut clients: Vec<Client> =
        ["e-twin", "e-twin", "e-bad", "stray"].into_iter().map(Client::new).collect();
    clients[2].record().manner = Manner::Reject;
    // The twins are on two replicas, and the third one has the others.
    for (client, at) in clients.iter_mut().zip([0, 1, 2, 2]) {
        fleet.connect(client, at);
    }
    let expected = ["node.rejected e-bad", "node.duplicate e-twin", "node.unassigned stray"];
    for replica in &fleet.replicas {
        eventually("the nodes are found", || {
            let (code, answer) = analyze(replica);
            let is_whole = answer["not_asked"] == json!([]);
            (code == 5 && is_whole && of_nodes(&answer) == expected).then_some(())
        });
        // A node with streams to two replicas is one node.
        let counts = json!({"synced": 1, "rejected": 1, "unassigned": 1});
        eventually("each node counts once", || {
            let (status, counted) = http_get(&replica.admin, "/v1/nodes?count=true");
            let counted: Value = serde_json::from_str(&counted).unwrap();
            (status == 200 && counted["counts"] == counts).then_some(())
        });
        let line = "1 node rejected (e-bad); 1 node unassigned (stray); 1 node with several clients (e-twin)";
        eventually("doctor names them", || {
            let done = replica.run(&["doctor"], "");
            (done.code == 1 && done.out.contains(line)).then_some(())
        });
    }
    check_missing(&fleet);
    drop(clients);
}

/// A replica that hangs is named. Its nodes are not known, and those of the others are found.
fn check_missing(fleet: &Fleet) {
    fleet.signal(2, Signal::STOP);
    fleet.wait_leader(0);
    let names_the_third = |not_asked: &Value| {
        not_asked.as_array().is_some_and(|all| all.len() == 1 && all[0]["replica_id"] == 3)
    };
    for replica in &fleet.replicas[..2] {
        eventually("the nodes of the others are found", || {
            let (code, answer) = analyze(replica);
            let is_found = code == 5 && of_nodes(&answer) == ["node.duplicate e-twin"];
            (is_found && names_the_third(&answer["not_asked"])).then_some(())
        });
        eventually("doctor names the replica, after all counts", || {
            let out = replica.run(&["doctor"], "").out;
            let (_, rest) = out.split_once("1 node with several clients (e-twin); ")?;
            let mut parts = rest.lines().next()?.split("; ");
            parts.any(|part| part.starts_with("replica 3 ")).then_some(())
        });
        // So does the status of the leader, which is complete.
        eventually("the status names the replica", || {
            let (_, body) = http_get(&replica.admin, "/v1/mcp");
            let body: Value = serde_json::from_str(&body).unwrap();
            let leads = body["leader"] == body["replica_id"];
            (leads && names_the_third(&body["not_asked"])).then_some(())
        });
        let done = replica.run(&["mcp", "status"], "");
        assert_eq!(done.code, 0, "{done:?}");
    }
    fleet.signal(2, Signal::CONT);
}

/// Returns the findings about nodes as `rule name`, without those about versions.
fn of_nodes(answer: &Value) -> Vec<String> {
    let all = answer["findings"].as_array().unwrap().iter();
    let text = |one: &Value, key: &str| one[key].as_str().unwrap().to_owned();
    let all = all.map(|one| format!("{} {}", text(one, "rule_id"), text(one, "name")));
    all.filter(|one| one.starts_with("node.") && !one.starts_with("node.version")).collect()
}

/// A page of nodes with long IDs was too large for an answer, so that a healthy replica counted as one that did not
/// answer.
#[test]
fn nodes_with_long_ids_are_listed_by_another_replica() {
    let root = tempfile::tempdir().unwrap();
    let fleet = Fleet::start(root.path());
    fleet.wait_leader(0);
    let ids: Vec<String> = (0..28).map(|n| format!("{n:02}{}", "x".repeat(800_000))).collect();
    let mut clients: Vec<Client> = ids.iter().map(|id| Client::new(id)).collect();
    for client in &mut clients {
        fleet.connect(client, 0);
    }
    let other = &fleet.replicas[1];
    eventually("all nodes are connected", || {
        let (_, body) = http_get(&other.admin, "/v1/nodes?count=true");
        let counted: Value = serde_json::from_str(&body).unwrap();
        let n: u64 = counted["counts"].as_object()?.values().filter_map(Value::as_u64).sum();
        (n == 28).then_some(())
    });
    // On a busy machine, a page of 12 MB may exceed the time limit of an answer.
    let list: Value = eventually("a complete list", || {
        let done = other.run(&["nodes", "-o", "json"], "");
        (done.code == 0).then(|| serde_json::from_str(&done.out).unwrap())
    });
    let listed: Vec<&str> =
        list["nodes"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
    assert!(listed == ids, "{} nodes", listed.len());
}
