//! `chancery analyze` on three replicas: its table, its exit codes, and the nodes of all replicas.

use std::process::Stdio;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    cluster::{Replica, eventually, index, joined},
    support::{KillOnDrop, chancery, signal},
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
        let rules = ["resource.unused", "reference.missing", "assignment.unused"];
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
        assert_eq!((code, found(&answer)), (0, vec!["assignment.unused"]), "{answer}");
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
