//! Tests of `apply`, `get`, `delete` and other commands with a running replica.

use std::fs;

use serde_json::json;

use crate::support::{Server, clusters};

/// A manifest of all resources is no list of all assignments, rules and quotas: others may own them.
#[test]
fn prune_keeps_assignments_rules_and_quotas() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let others = json!({
        "assignments": [{"name": "edge", "match": {"id": "edge-*"}, "scopes": ["edge"]}],
        "access": [{"name": "ci", "identity": "token:ci", "allow": [{"verbs": ["get"], "scopes": ["**"]}]}],
        "quotas": [{"name": "all", "scopes": ["**"], "max_resources": 10}],
    });
    let lists = || {
        let names = |command: &[&str], key: &str| {
            let list = server.json(command, "");
            list[key].as_array().unwrap().iter().map(|it| it["name"].clone()).collect::<Vec<_>>()
        };
        [
            names(&["assignments", "list"], "assignments"),
            names(&["access", "list"], "rules"),
            names(&["quota", "list"], "quotas"),
        ]
    };
    server.json(&["apply", "-f", "-"], &others.to_string());
    let before = lists();
    assert!(before[0].contains(&json!("edge")), "{before:?}");
    assert_eq!(before[1..], [vec![json!("ci")], vec![json!("all")]]);
    server.json(&["apply", "-f", "-"], &clusters(&["a", "b"], "1s"));
    // Neither a manifest of resources nor one of another assignment deletes them.
    let pruned = server.json(&["apply", "-f", "-", "--prune"], &clusters(&["a"], "1s"));
    assert_eq!(pruned["removed"], 1);
    let assignment = json!({"assignments": [{"name": "z", "scopes": ["z"]}], "resources": []});
    server.json(&["apply", "-f", "-", "--prune"], &assignment.to_string());
    let after = lists();
    assert_eq!(after[1..], before[1..]);
    assert!(before[0].iter().all(|name| after[0].contains(name)), "{after:?}");
}

#[test]
fn applied_resources_can_be_listed_changed_and_pruned() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let applied =
        server.json(&["apply", "-f", "-", "--label", "4fe1"], &clusters(&["a", "b"], "1s"));
    assert_eq!(applied["revision"], 1);
    assert_eq!(
        (&applied["changed"], &applied["removed"], &applied["unchanged"]),
        (&json!(2), &json!(0), &json!(0))
    );

    let text = server.run_with_input(&["apply", "-f", "-"], &clusters(&["a", "b"], "1s"));
    assert_eq!(
        (text.code, text.out.as_str()),
        (0, "revision 1: 0 changed, 0 removed, 2 unchanged\n")
    );

    let dry = server
        .run_with_input(&["apply", "-f", "-", "--dry-run", "--prune"], &clusters(&["a"], "2s"));
    assert_eq!(
        (dry.code, dry.out.as_str()),
        (
            2,
            "CHANGE   TYPE     NAME  SCOPE\n\
             updated  cluster  a     default\n\
             removed  cluster  b     default\n\
             cluster \"a\" in default:\n\
             - connect_timeout: 1s\n\
             + connect_timeout: 2s\n\
             cluster \"b\" in default:\n\
             - \"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\n\
             - connect_timeout: 1s\n\
             - name: b\n\
             dry run, nothing written; revision 1: 1 changed, 1 removed, 0 unchanged\n"
        )
    );
    let list = server.json(&["get", "cds"], "");
    assert_eq!((&list["revision"], list["resources"].as_array().unwrap().len()), (&json!(1), 2));

    // No client is connected.
    let args = ["apply", "-f", "-", "--prune", "--wait=5s", "-o", "json"];
    let waited = server.run_with_input(&args, &clusters(&["a"], "2s"));
    assert_eq!(waited.code, 3, "{}", waited.err);
    assert!(waited.err.starts_with("warning: written, but not confirmed"), "{}", waited.err);
    let pruned: serde_json::Value = serde_json::from_str(&waited.out).unwrap();
    assert_eq!((&pruned["revision"], &pruned["removed"]), (&json!(2), &json!(1)));
    assert_eq!(pruned["wait"]["settled"], true);
    assert_eq!((&pruned["wait"]["asked"], &pruned["wait"]["complete"]), (&json!(0), &json!(false)));

    let behind =
        server.run_with_input(&["apply", "-f", "-", "--if-revision", "1"], &clusters(&["a"], "3s"));
    assert_eq!((behind.code, behind.out.as_str()), (1, ""));
    assert_eq!(
        behind.err,
        "error: scope \"default\" has changed at revision 2, after the expected revision 1\n"
    );
    let held = server.json(&["apply", "-f", "-", "--if-revision", "2"], &clusters(&["a"], "3s"));
    assert_eq!(held["revision"], 3);

    let yaml = server.run(&["get", "cds", "a"]);
    assert!(yaml.out.starts_with("scope: default\nresources:\n- "), "{}", yaml.out);
    let again = server.json(&["apply", "-f", "-"], &yaml.out);
    assert_eq!(
        (&again["revision"], &again["unchanged"]),
        (&json!(3), &json!(1)),
        "the output of get can be applied"
    );

    let history = server.json(&["history"], "");
    assert_eq!(history["entries"][2]["label"], "4fe1");
    assert_eq!(history["entries"][0]["author"], "tester");
    let source: std::net::SocketAddr =
        history["entries"][0]["source"].as_str().unwrap().parse().unwrap();
    assert!(source.ip().is_loopback() && source.port() > 0, "{source}");
    assert_eq!(server.terminate().0, Some(0));
}

/// Clients of the API write the mark of a secret in base64.
#[test]
fn masked_secret_is_refused_with_its_position_in_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let secret = "resources: []
---
resources:
- '@type': type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
  name: cert
  generic_secret:
    secret: {inline_bytes: W3JlZGFjdGVkXQ==}
";
    let file = directory.path().join("secret.yaml");
    fs::write(&file, secret).unwrap();
    let file = file.to_str().unwrap();
    let finding = format!(
        "error: {file}:7:14: document 2: resources[0] Secret \"cert\": generic_secret.secret.inline_bytes: has \"[redacted]\" \
         in place of a secret: it was read from the server, which never shows secrets; give the secret itself\n"
    );
    let refused = server.run(&["apply", "-f", file]);
    assert_eq!((refused.code, &refused.err), (1, &finding));
    let found = server.run(&["lint", "-f", file]);
    assert_eq!((found.code, &found.out), (5, &finding));
    assert_eq!(server.terminate().0, Some(0));
}

#[test]
fn only_existing_resources_of_the_expected_version_are_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    server.json(&["apply", "-f", "-"], &clusters(&["a"], "1s"));
    let missing = server.run(&["delete", "cds", "a", "zz"]);
    assert_eq!(missing.code, 1);
    assert!(missing.err.contains("\"zz\" in scope \"default\" does not exist"), "{}", missing.err);
    let missing = server.run(&["get", "cds", "zz"]);
    assert_eq!(
        (missing.code, missing.err.as_str()),
        (1, "error: cds \"zz\" does not exist in any scope\n")
    );
    let missing = server.run(&["delete", "cds", "x", "a", "y"]);
    assert!(missing.err.contains("\"x\"") && missing.err.contains("\"y\""), "{}", missing.err);
    let version = server.json(&["get", "cds", "a"], "")["resources"][0]["version"].clone();
    let behind = server.run(&["delete", "cds", "a", "--if-version", "1-00000000"]);
    assert_eq!(behind.code, 1);
    assert!(behind.err.contains("not the expected 1-00000000"), "{}", behind.err);
    let two = server.run(&["delete", "cds", "a", "b", "--if-version", "1-00000000"]);
    assert_eq!((two.code, two.err.contains("2 are named")), (1, true), "{}", two.err);
    let version = version.as_str().unwrap();
    let deleted = server.json(&["delete", "cds", "a", "--if-version", version], "");
    assert_eq!((&deleted["revision"], &deleted["removed"]), (&json!(2), &json!(1)));
    assert_eq!(server.run(&["get"]).out, "no resources (revision 2)\n");
    assert_eq!(server.terminate().0, Some(0));
}

/// An error names the file as the author named it, and each problem has its own line.
#[test]
fn a_directory_is_one_transaction_and_its_problems_name_their_files() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let manifests = directory.path().join("manifests");
    fs::create_dir_all(manifests.join("sub")).unwrap();
    fs::write(manifests.join("a.yaml"), clusters(&["a"], "1s")).unwrap();
    fs::write(manifests.join("sub/b.json"), r#"{"scope": "other", "resources": []}"#).unwrap();
    fs::write(manifests.join("sub/c.yml"), clusters(&["c"], "1s").replace("name", "nam")).unwrap();
    fs::write(manifests.join("notes.txt"), "not a manifest").unwrap();
    let path = manifests.to_str().unwrap();
    let refused = server.run(&["apply", "-f", path]);
    assert_eq!((refused.code, refused.out.as_str()), (1, ""));
    let lines: Vec<&str> = refused.err.lines().collect();
    assert!(!lines.is_empty());
    for line in &lines {
        assert!(
            line.starts_with(&format!("error: {path}/sub/c.yml:"))
                && line.contains(": document 1: resources[0]"),
            "{line}"
        );
    }
    assert_eq!(server.json(&["get"], "")["revision"], 0, "nothing is applied");

    fs::remove_file(manifests.join("sub/c.yml")).unwrap();
    fs::write(manifests.join("sub/c.yml"), clusters(&["c"], "1s")).unwrap();
    let applied = server.json(&["apply", "-f", path], "");
    assert_eq!((&applied["revision"], &applied["changed"]), (&json!(1), &json!(2)));
    assert_eq!(server.terminate().0, Some(0));
}

/// The examples of the README work, and `expect: absent` holds once. The quick start has a test with a real Envoy.
#[test]
fn readme_manifests_are_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let readme = include_str!("../../../../README.md");
    let manifests: Vec<&str> =
        readme.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(manifests.len(), 2);
    for manifest in &manifests {
        let applied = server.json(&["apply", "-f", "-"], manifest);
        let is_change = |field: &str| applied[field].as_u64() > Some(0);
        assert!(is_change("changed") || is_change("assignments"), "{applied}");
    }
    let again = server.run_with_input(&["apply", "-f", "-"], manifests[0]);
    assert_eq!(again.code, 1, "{again:?}");
    assert!(again.err.contains("\"cart\" in scope \"default\" exists already"), "{}", again.err);
    assert_eq!(server.terminate().0, Some(0));
}

/// A refused transaction names each expectation that does not hold.
#[test]
fn all_unmet_expectations_are_reported() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    server.json(&["apply", "-f", "-"], &clusters(&["a", "b"], "1s"));
    let entry = |name: &str, expect: &str| {
        format!(
            "- expect: {expect}\n  resource: {{\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster, \
             name: {name}}}\n"
        )
    };
    let manifest =
        ["resources:\n".into(), entry("a", "absent"), entry("b", "present"), entry("c", "present")];
    for args in [["apply", "-f", "-"].as_slice(), &["apply", "-f", "-", "--dry-run"]] {
        let refused = server.run_with_input(args, &manifest.concat());
        assert_eq!((refused.code, refused.err.lines().count()), (1, 1), "{refused:?}");
        for text in ["\"a\" in scope \"default\" exists already", "\"c\" in scope \"default\""] {
            assert!(refused.err.contains(text), "{text}: {refused:?}");
        }
        assert!(!refused.err.contains("\"b\""), "{refused:?}");
    }
    assert_eq!(server.terminate().0, Some(0));
}

#[test]
fn remaining_commands_answer_in_text_and_json() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    server.json(&["apply", "-f", "-"], &clusters(&["web"], "1s"));
    let bootstrap = directory.path().join("envoy.yaml");
    fs::write(
        &bootstrap,
        "static_resources: {clusters: [{name: imported, connect_timeout: 1s}]}\n",
    )
    .unwrap();
    let imported = server.json(&["import", bootstrap.to_str().unwrap(), "--scope", "mesh"], "");
    assert_eq!((&imported["revision"], &imported["changed"]), (&json!(2), &json!(1)));

    for (args, text, key) in [
        (["get"].as_slice(), "TYPE     NAME      SCOPE", "resources"),
        (&["get", "cds", "web", "--scope", "default"], "name: web", "resources"),
        (&["describe", "cds", "web"], "seen by   no connected node", "scopes"),
        (&["nodes"], "no nodes", "nodes"),
        (&["assignments", "list"], "lowest    every node", "assignments"),
        (&["cluster", "status"], "replica 1 leads, 1 of 1 voters answer (1 needed)", "voters"),
        (&["history"], "REVISION", "entries"),
        (&["version"], "server 0.", "server_version"),
    ] {
        let done = server.run(args);
        assert_eq!((done.code, done.err.as_str()), (0, ""), "{args:?}");
        assert!(done.out.contains(text), "{args:?}: {}", done.out);
        let json = server.json(args, "");
        assert!(json.get(key).is_some(), "{args:?}: {json}");
    }
    // The node is not connected, but its ID determines the answer.
    for args in [["explain", "n", "cds", "web"].as_slice(), &["explain", "n"]] {
        let done = server.run(args);
        assert_eq!((done.code, done.err.as_str()), (0, ""), "{args:?}");
        assert!(done.out.contains("lowest"), "{args:?}: {}", done.out);
    }
    let node = server.run(&["node", "a/b"]);
    assert_eq!(
        (node.code, node.err.as_str()),
        (
            1,
            "error: node \"a/b\" is not connected; list the connected nodes with `chancery nodes`\n"
        )
    );

    let deleted = server.run(&["assignments", "delete", "default", "-o", "json"]);
    assert_eq!(deleted.code, 0, "{deleted:?}");
    let deleted = server.run(&["assignments", "delete", "default"]);
    assert_eq!(
        (deleted.code, deleted.err.as_str()),
        (1, "error: there is no assignment \"default\"\n")
    );
    assert_eq!(server.terminate().0, Some(0));
}

/// A program that reads JSON gets the problems as JSON, with the same fields as over HTTP.
#[test]
fn failure_is_json_if_the_output_is_json() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let bad = clusters(&["web"], "fast");
    let done = server.run_with_input(&["apply", "-f", "-", "-o", "json"], &bad);
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.err.starts_with("error: "), "{done:?}");
    let shown: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    let error = &shown["error"];
    assert_eq!(error["code"], "INVALID_ARGUMENT", "{shown}");
    assert_eq!(error["problems"][0]["file"], "-", "{shown}");
    assert!(error["problems"][0]["line"].as_u64() > Some(0), "{shown}");
    let missing = server.run(&["node", "nobody", "-o", "json"]);
    let shown: serde_json::Value = serde_json::from_str(&missing.out).unwrap();
    assert_eq!((missing.code, &shown["error"]["code"]), (1, &json!("NOT_FOUND")), "{shown}");
    // A command that has shown its result fails on standard error only.
    let unconfirmed = server
        .run_with_input(&["apply", "-f", "-", "--wait", "-o", "json"], &clusters(&["web"], "1s"));
    let shown: serde_json::Value = serde_json::from_str(&unconfirmed.out).unwrap();
    assert_eq!((unconfirmed.code, &shown["revision"]), (3, &json!(1)), "{shown}");
}

/// The pages of `get` are the list, in each form of output.
#[test]
fn get_shows_a_list_in_pages() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    server.json(&["apply", "-f", "-"], &clusters(&["a", "b", "c"], "1s"));
    let whole = server.json(&["get", "cds"], "");
    assert_eq!(whole["next"], "", "{whole}");
    let first = server.json(&["get", "cds", "--limit", "2"], "");
    let next = first["next"].as_str().unwrap();
    let rest = server.json(&["get", "cds", "--cursor", next], "");
    let both = [&first, &rest].map(|page| page["resources"].as_array().unwrap().clone());
    assert_eq!(both.concat(), *whole["resources"].as_array().unwrap());
    assert_eq!(rest["next"], "");
    let table = server.run(&["get", "cds", "-n", "2"]).out;
    assert!(table.ends_with(&format!("\nmore resources: --cursor {next}\n")), "{table}");
    let yaml = server.run(&["get", "cds", "-n", "2", "-o", "yaml"]).out;
    assert!(yaml.ends_with(&format!("\n# more resources: --cursor {next}\n")), "{yaml}");
    assert_eq!(server.json(&["apply", "-f", "-"], &yaml)["unchanged"], 2);
    let pruned = server.run_with_input(&["apply", "--prune", "-f", "-"], &yaml);
    assert!(
        pruned.code == 1 && pruned.err.contains("next: the list has only a part"),
        "{pruned:?}"
    );
    assert_eq!(server.json(&["get", "cds"], "")["resources"].as_array().unwrap().len(), 3);
    let refused = server.run(&["get", "--cursor", "abc"]);
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("the cursor is invalid: no list has made it"), "{}", refused.err);
}
