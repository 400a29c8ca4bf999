//! References between resources, as an author sees them on the command line.

use std::{
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use crate::support::{DEADLINE, Server, chancery};

const ROUTE: &str = "resources: [{'@type': type.googleapis.com/envoy.config.route.v3.RouteConfiguration, name: main, \
     virtual_hosts: [{name: all, domains: ['*'], routes: [{match: {prefix: /}, route: {cluster: web}}]}]}]";
const CLUSTER: &str = "resources: [{'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: web, connect_timeout: 1s}]";
const FIELD: &str = "virtual_hosts[0].routes[0].route.cluster";

/// A process that ends with the test.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn dangling_reference_is_reported_described_and_refused_by_scope() {
    let directory = tempfile::tempdir().unwrap();
    let modes = [("CHANCERY_REFERENCES_SCOPES", "prod=enforce")];
    let server = Server::start_with(&directory.path().join("data"), &modes);
    let rules = "assignments: [{name: all, match: {id: 'n*'}, scopes: [prod, default]}]";
    let assigned = server.run_with_input(&["apply", "-f", "-"], rules);
    assert_eq!(assigned.code, 0, "{assigned:?}");
    let mut node = chancery();
    node.args(["mirror", "--node", "n1", "--xds", &server.xds, "--dir"]);
    let node = node.arg(directory.path().join("files")).stdout(Stdio::null()).stderr(Stdio::null());
    let _node = Node(node.spawn().unwrap());
    let start = Instant::now();
    while server.json(&["nodes"], "")["nodes"].as_array().is_none_or(Vec::is_empty) {
        assert!(start.elapsed() < DEADLINE, "the node is not connected");
        std::thread::sleep(Duration::from_millis(20));
    }

    let apply = |args: &[&str], input| {
        server.run_with_input(&[&["apply", "-f", "-"], args].concat(), input)
    };
    let finding = format!(
        "RouteConfiguration \"main\": {FIELD}: refers to Cluster \"web\", which is missing in 1 view: prod+default (1 \
         node); publish it, unless the bootstrap of the nodes defines it [reference.missing]\n"
    );
    for args in [&["--dry-run"][..], &[]] {
        let done = apply(args, ROUTE);
        assert_eq!((done.code, done.err), (0, format!("warning: {finding}")));
    }
    let refused = apply(&["--scope", "prod"], ROUTE);
    assert_eq!((refused.code, refused.err), (1, format!("error: {finding}")));

    let described = server.run(&["describe", "rds", "main"]);
    let line = format!("  refers to cluster \"web\" (missing): {FIELD}\n");
    assert!(described.out.contains(&line), "{described:?}");
    let done = apply(&[], CLUSTER);
    assert_eq!((done.code, done.err.as_str()), (0, ""));
    let described = server.run(&["describe", "cds", "web"]);
    let line = format!("  used by   route \"main\" (in default): {FIELD}\n");
    assert!(described.out.contains(&line), "{described:?}");
    let explained = server.run(&["explain", "n1", "rds", "main"]);
    let line = format!("  refers to cluster \"web\" (in default): {FIELD}\n");
    assert!(explained.out.contains(&line), "{explained:?}");

    let guarded = server.run(&["delete", "cds", "web"]);
    assert!(guarded.err.contains("guard `cluster-in-use` rejects the write"), "{guarded:?}");
    let deleted = server.run(&["delete", "cds", "web", "--confirm", "cluster-in-use"]);
    let warning = "warning: Cluster \"web\": its removal leaves 1 dangling reference from RouteConfiguration \"main\", in 1 \
         view: prod+default (1 node); remove the references first [reference.removed]\n";
    assert_eq!((deleted.code, deleted.err.as_str()), (0, warning));
    assert_eq!(server.terminate().0, Some(0));
}
