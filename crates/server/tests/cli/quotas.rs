//! Quotas and the hashes of the history with the real binary.

use std::fs;

use serde_json::{Value, json};

use crate::support::{Server, clusters, http_get, http_post};

fn apply(server: &Server, args: &[&str], manifest: &str) -> crate::support::Done {
    server.run_with_input(&[&["apply", "-f", "-"], args].concat(), manifest)
}

/// The first steps of docs/quotas.md. A restart keeps the quotas and counts again.
#[test]
fn quota_limits_a_tenant_and_shows_its_use() {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("data");
    let server = Server::start(&data);
    assert_eq!(server.run(&["quota", "list"]).out, "no quotas\n");
    let quotas = json!({"quotas": [
        {"name": "pay", "scopes": ["team/pay", "team/pay/**"], "max_resources": 2, "max_scopes": 1,
         "max_body_bytes": 1000},
        {"name": "all", "scopes": ["**"], "max_bytes": 100_000},
    ]})
    .to_string();
    let done = apply(&server, &["--dry-run"], &quotas);
    assert_eq!(done.code, 2, "{done:?}");
    let done = apply(&server, &[], &quotas);
    assert!(done.code == 0 && done.out.ends_with(", 2 access rules or quotas\n"), "{done:?}");
    let done = apply(&server, &["--scope", "team/pay"], &clusters(&["a", "b"], "1s"));
    assert_eq!(done.code, 0, "{done:?}");

    let done = apply(&server, &["--scope", "team/pay"], &clusters(&["c"], "1s"));
    assert_eq!(done.code, 1, "{done:?}");
    let text = "the quota \"pay\" is exceeded: max_resources is 2, and the write needs 3; delete resources or raise \
                the limit";
    assert!(done.err.contains(text), "{done:?}");
    let cluster = json!({"resources": [{
        "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "c", "connect_timeout": "1s",
    }]});
    let (status, body) =
        http_post(&server.admin, "/v1/apply?scope=team/pay/eu", &cluster.to_string());
    assert!(status == 429 && body.contains("max_resources is 2"), "{status} {body}");
    let (_, metrics) = http_get(&server.admin, "/metrics");
    let sample = "chancery_access_refused_total{port=\"admin\",reason=\"quota\"} 2";
    assert!(metrics.contains(sample), "{metrics}");

    let list = |server: &Server| server.run(&["quota", "list"]);
    let shown = list(&server).out;
    let words: Vec<Vec<&str>> =
        shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[0], ["NAME", "PATTERNS", "RESOURCES", "BYTES", "SCOPES", "BODY"]);
    assert_eq!((words[1][0], words[1][2]), ("all", "2"), "{shown}");
    assert!(words[1][3].ends_with("/100000"), "{shown}");
    assert_eq!((words[2][0], words[2][3], words[2][5]), ("pay", "2/2", "1/1"), "{shown}");
    let manifest = server.run(&["quota", "list", "-o", "yaml"]).out;
    let again = apply(&server, &[], &manifest);
    assert!(again.code == 0 && !again.out.contains("quota"), "{again:?} {manifest}");

    server.terminate();
    let server = Server::start(&data);
    assert_eq!(list(&server).out, shown, "the use is counted again");
    assert_eq!(apply(&server, &["--scope", "team/pay"], &clusters(&["c"], "1s")).code, 1);
    let done = server.run(&["quota", "delete", "pay"]);
    assert!(done.code == 0 && done.out.contains("deleted the quota pay"), "{done:?}");
    assert_eq!(server.run(&["quota", "delete", "pay"]).code, 1);
    assert_eq!(apply(&server, &["--scope", "team/pay"], &clusters(&["c"], "1s")).code, 0);
    server.terminate();
}

#[test]
fn invalid_quotas_are_refused_with_their_fields() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(&root.path().join("data"));
    let quotas = json!({"quotas": [
        {"name": "a", "scopes": ["x"], "max_resource": 1},
        {"name": "b", "scopes": []},
        {"name": "c", "scopes": ["{team}"], "max_bytes": -1},
        {"name": "d", "scopes": ["**"]},
        {"name": "d", "scopes": ["**"], "max_bytes": 1},
    ]});
    let done = apply(&server, &[], &quotas.to_string());
    assert_eq!(done.code, 1, "{done:?}");
    for text in [
        "quotas[0] \"a\": max_resource: unknown key; did you mean",
        "quotas[1] \"b\": scopes: is missing or empty",
        "quotas[2] \"c\": max_bytes: expected a number of at least 0",
        "quotas[2] \"c\": scopes[0]:",
        "quotas[3] \"d\": the quota has no limit; add one of max_resources",
        "quotas[4] \"d\": duplicate quota, first defined in",
    ] {
        assert!(done.err.contains(text), "{text}: {}", done.err);
    }
    server.terminate();
}

/// The chain of the history continues over restarts, a backup and a restore. A head from elsewhere must match.
#[test]
fn history_has_a_verifiable_chain() {
    let root = tempfile::tempdir().unwrap();
    let (data, backup) = (root.path().join("data"), root.path().join("backup"));
    let server = Server::start(&data);
    for names in [&["a"][..], &["a", "b"], &["c"]] {
        assert_eq!(apply(&server, &["--author", "anna"], &clusters(names, "1s")).code, 0);
    }
    let verify =
        |server: &Server, args: &[&str]| server.run(&[&["history", "--verify"], args].concat());
    let done = verify(&server, &[]);
    assert_eq!(done.code, 0, "{done:?}");
    let mut lines = done.out.lines();
    assert_eq!(lines.next(), Some("3 valid revisions: 1 to 3"));
    let head = lines.next().unwrap().strip_prefix("head ").unwrap().to_owned();
    assert!(head.starts_with("3:") && head.len() == 66, "{head}");
    assert_eq!(server.run(&["backup", backup.to_str().unwrap()]).code, 0);
    server.terminate();

    let server = Server::start(&data);
    assert_eq!(verify(&server, &["--expect-head", &head]).code, 0);
    let forged = format!("3:{}", "0".repeat(64));
    let done = verify(&server, &["--expect-head", &forged]);
    assert!(done.code == 1 && done.err.contains("the history differs: revision 3"), "{done:?}");
    server.terminate();

    let restored = root.path().join("restored");
    let mut restore = crate::support::chancery();
    restore.args(["restore", backup.to_str().unwrap(), "--data-dir"]).arg(&restored);
    let done = crate::support::run(restore, "");
    assert_eq!(done.code, 0, "{done:?}");
    fs::remove_file(&backup).unwrap();
    let server = Server::start(&restored);
    let done = verify(&server, &["--expect-head", &head, "-o", "json"]);
    assert_eq!(done.code, 0, "{done:?}");
    let report: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((&report["revisions"], &report["first"]), (&4.into(), &1.into()));
    server.terminate();
}
