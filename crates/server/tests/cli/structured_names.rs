//! Commands with structured names (`xdstp:`).

use serde_json::json;

use crate::support::Server;

/// XDSTP-03, SVC-18: commands find a resource in any spelling. The body stays as its author wrote it, and the
/// output of `get` can be applied.
#[test]
fn commands_find_structured_names_in_any_spelling() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let written = "xdstp://m/envoy.config.cluster.v3.Cluster/web:80?b=2&a=1";
    let canonical = "xdstp://m/envoy.config.cluster.v3.Cluster/web%3A80?a=1&b=2";
    let other = "xdstp://%6d/envoy.config.cluster.v3.Cluster/web%3a80?b=2&a=1#entry=x";
    let cluster =
        json!({"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": written});
    let manifest = json!({"resources": [cluster]}).to_string();
    assert_eq!(server.json(&["apply", "-f", "-"], &manifest)["changed"], 1);

    for name in [written, canonical, other] {
        let found = server.json(&["get", "cds", name], "");
        assert_eq!(found["resources"][0]["name"], canonical, "{found}");
        let yaml = server.run(&["get", "cds", name]);
        assert!(yaml.out.contains(written), "{}", yaml.out);
        assert_eq!(server.json(&["apply", "-f", "-"], &yaml.out)["unchanged"], 1);
        assert_eq!(server.json(&["describe", "cds", name], "")["name"], canonical);
        let explained = server.run(&["explain", "n1", "cds", name]);
        assert!(explained.code == 0 && explained.out.contains(canonical), "{}", explained.out);
    }
    let listed = server.json(&["delete", "cds", other], "");
    assert_eq!(listed["removed"], 1, "{listed}");
    assert_eq!(server.run(&["get", "cds", canonical]).code, 1);
}
