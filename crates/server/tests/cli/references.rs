//! References between resources, as an author sees them on the command line.

use std::process::Stdio;

use crate::support::{KillOnDrop, Server, chancery, eventually};

const ROUTE: &str = "resources: [{'@type': type.googleapis.com/envoy.config.route.v3.RouteConfiguration, name: main, \
     virtual_hosts: [{name: all, domains: ['*'], routes: [{match: {prefix: /}, route: {cluster: web}}]}]}]";
const ROUTE_JSON: &str = r#"{"resources": [
  {"@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
   "name": "main",
   "virtualHosts": [{"name": "all", "domains": ["*"], "routes": [
     {"match": {"prefix": "/"}, "route": {"timeout": "1s", "cluster": "web"}}]}]}]}"#;
const CLUSTER: &str = "resources: [{'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: web, connect_timeout: 1s}]";
const FIELD: &str = "virtual_hosts[0].routes[0].route.cluster";

/// Returns a listener with an address.
fn listener(name: &str) -> String {
    format!(
        r#"{{"@type": "type.googleapis.com/envoy.config.listener.v3.Listener", "name": "{name}",
  "address": {{"socket_address": {{"address": "127.0.0.1", "port_value": 80}}}}, "filter_chains": [{{}}]}}"#
    )
}

#[test]
fn address_of_a_stored_listener_is_reported_with_file_line_and_column() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start_with(&directory.path().join("data"), &[]);
    let first = format!("resources: [{}]", listener("a"));
    let stored = server.run_with_input(&["apply", "-f", "-"], &first);
    assert_eq!(stored.code, 0, "{stored:?}");
    let yaml = "resources:\n- '@type': type.googleapis.com/envoy.config.listener.v3.Listener\n  name: b\n  \
                filter_chains: [{}]\n  address:\n    socket_address: {address: 127.0.0.1, port_value: 80}\n";
    let json = format!("{{\"resources\":\n [{}]}}", listener("b"));
    for (name, content, position) in [("b.yaml", yaml, "5:3"), ("b.json", &json, "3:3")] {
        let file = directory.path().join(name);
        std::fs::write(&file, content).unwrap();
        let file = file.to_str().unwrap();
        for args in [&["--dry-run"][..], &[]] {
            let refused = server.run(&[&["apply", "-f", file], args].concat());
            let expected = format!(
                "error: {file}:{position}: document 1: resources[0] Listener \"b\": address: 127.0.0.1:80 is also an \
                 address of Listener \"a\" in scope \"default\""
            );
            assert!(refused.err.starts_with(&expected), "{expected}\n{refused:?}");
            assert_eq!(refused.code, 1);
        }
    }
    assert_eq!(server.terminate().0, Some(0));
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
    let _node = KillOnDrop(node.spawn().unwrap());
    eventually("the node is connected", || {
        (!server.json(&["nodes"], "")["nodes"].as_array()?.is_empty()).then_some(())
    });

    let apply = |args: &[&str], input| {
        server.run_with_input(&[&["apply", "-f", "-"], args].concat(), input)
    };
    let finding = format!(
        "resources[0] RouteConfiguration \"main\": {FIELD}: refers to Cluster \"web\", which is missing in 1 view: prod+default (1 \
         node); publish it, unless the bootstrap of the nodes defines it [reference.missing]\n"
    );
    for args in [&["--dry-run", "--exit-zero"][..], &[]] {
        let done = apply(args, ROUTE);
        let column = ROUTE.find("cluster: web").unwrap() + 1;
        assert_eq!(
            (done.code, done.err),
            (0, format!("warning: -:1:{column}: document 1: {finding}"))
        );
    }
    let file = directory.path().join("route.json");
    std::fs::write(&file, ROUTE_JSON).unwrap();
    let file = file.to_str().unwrap();
    let refused = server.run(&["apply", "--scope", "prod", "-f", file]);
    let expected = format!("error: {file}:5:60: document 1: {finding}");
    assert_eq!((refused.code, refused.err), (1, expected));

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
