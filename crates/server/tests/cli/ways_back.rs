//! Earlier content on one replica: exit codes of `diff`, `get --revision`, differences of revisions, and the way back after a
//! restore.

use serde_json::{Value, json};

use crate::support::{Server, chancery, clusters, run};

fn write(server: &Server, args: &[&str], input: &str) -> u64 {
    server.json(args, input)["revision"].as_u64().unwrap()
}

/// Returns an assignment, an access rule and a quota, each with a number.
fn items(number: u64) -> String {
    json!({
        "assignments": [{"name": "each", "priority": number, "match": {"id": "*"}, "scopes": ["edge"]}],
        "access": [{"name": "ci", "identity": "token:ci", "allow": [
            {"verbs": ["get"], "scopes": [format!("team{number}")]},
        ]}],
        "quotas": [{"name": "all", "scopes": ["**"], "max_resources": 1000 + number}],
    })
    .to_string()
}

/// `diff -f` exits with 0 if `apply` would change nothing, with 2 if it would, and with 1 if the server would reject it.
#[test]
fn diff_of_a_file_exits_with_what_apply_would_do() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let file = directory.path().join("edge.yaml");
    let file = file.to_str().unwrap();
    let diff = |manifest: &str, more: &[&str]| {
        std::fs::write(file, manifest).unwrap();
        server.run(&[&["diff", "-f", file, "--scope", "edge"], more].concat())
    };
    let (old, new) = (clusters(&["a", "b"], "1s"), clusters(&["a"], "2s"));
    let all_new = diff(&old, &[]);
    assert_eq!(all_new.code, 2, "{all_new:?}");
    write(&server, &["apply", "-f", file, "--scope", "edge"], "");
    let equal = diff(&old, &[]);
    assert_eq!((equal.code, &*equal.err), (0, ""), "{equal:?}");
    let differs = diff(&new, &[]);
    assert_eq!(differs.code, 2, "{differs:?}");
    for line in ["- connect_timeout: 1s", "+ connect_timeout: 2s"] {
        assert!(differs.out.contains(line), "{line}: {}", differs.out);
    }
    // Only with --prune does a missing resource count.
    let part = clusters(&["a"], "1s");
    assert_eq!(diff(&part, &[]).code, 0);
    let pruned = diff(&part, &["--prune"]);
    assert!(pruned.code == 2 && pruned.out.contains("removed"), "{pruned:?}");
    let invalid = diff(&old.replace("connect_timeout", "conect_timeout"), &[]);
    assert!(invalid.code == 1 && invalid.err.contains("conect_timeout"), "{invalid:?}");
    for (manifest, code) in [(items(1), 2), (items(1), 0), (items(2), 2)] {
        let done = diff(&manifest, &[]);
        assert_eq!(done.code, code, "{done:?}");
        if code == 2 {
            write(&server, &["apply", "-f", file], "");
            std::fs::write(file, "").unwrap();
        }
    }
    assert_eq!(diff(&items(2), &["-o", "json"]).code, 0);
    let revision = server.json(&["get"], "")["revision"].clone();
    assert_eq!(revision, 3, "`diff` writes nothing");
    server.terminate();
}

fn timeouts(server: &Server, args: &[&str]) -> Vec<Value> {
    let list = server.json(&[&["get", "cluster", "--scope", "edge"], args].concat(), "");
    let resources = list["resources"].as_array().unwrap().iter();
    resources.map(|one| json!([one["name"], one["body"]["connect_timeout"]])).collect()
}

/// `get --revision` shows the content of then, also after a backup and a restore, and a rollback restores it.
#[test]
fn earlier_content_is_shown_and_restored_also_from_a_backup() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let server = Server::start(&directory.path().join("data"));
    let apply = ["apply", "-f", "-", "--scope", "edge", "--prune"];
    let first = write(&server, &apply, &clusters(&["a", "b"], "1s")).to_string();
    write(&server, &apply, &clusters(&["b", "c"], "2s"));
    let third = write(&server, &["delete", "cluster", "b", "--scope", "edge"], "").to_string();
    let check = |server: &Server| {
        assert_eq!(timeouts(server, &["--revision", "0"]), Vec::<Value>::new());
        let of_first = [json!(["a", "1s"]), json!(["b", "1s"])];
        assert_eq!(timeouts(server, &["--revision", &first]), of_first);
        assert_eq!(
            timeouts(server, &["--revision", "2"]),
            [json!(["b", "2s"]), json!(["c", "2s"])]
        );
        assert_eq!(timeouts(server, &["--revision", &third]), [json!(["c", "2s"])]);
        let named = ["get", "cluster", "a", "--scope", "edge", "--revision"];
        let then = server.run(&[&named[..], &[&first]].concat());
        assert!(then.code == 0 && then.out.contains("connect_timeout: 1s"), "{then:?}");
        let gone = server.run(&[&named[..], &[&third]].concat());
        assert!(gone.code == 1 && gone.err.contains("\"a\" does not exist"), "{gone:?}");
    };
    check(&server);
    let future = server.run(&["get", "--revision", "9"]);
    assert!(future.code == 1 && future.err.contains("revision 9 does not exist"), "{future:?}");
    assert_eq!(server.run(&["backup", &path("file")]).code, 0);
    write(&server, &apply, &clusters(&["lost"], "9s"));
    assert_eq!(server.terminate().0, Some(0));
    let mut restore = chancery();
    restore.args(["restore", &path("file"), "--data-dir", &path("new")]);
    let restored = run(restore, "");
    assert_eq!(restored.code, 0, "{restored:?}");

    let server = Server::start(&directory.path().join("new"));
    check(&server);
    assert_eq!(timeouts(&server, &[]), [json!(["c", "2s"])]);
    let back = ["rollback", "edge", "--to", &first];
    let dry = server.run(&[&back[..], &["--dry-run"]].concat());
    assert!(dry.code == 2 && dry.out.contains("added    cluster  a"), "{dry:?}");
    let restoring = write(&server, &back, "");
    assert_eq!(restoring, (1 << 32) + 1);
    assert_eq!(timeouts(&server, &[]), [json!(["a", "1s"]), json!(["b", "1s"])]);
    write(&server, &["undo", &restoring.to_string()], "");
    assert_eq!(timeouts(&server, &[]), [json!(["c", "2s"])]);
    write(&server, &["undo", &third], "");
    assert_eq!(timeouts(&server, &[]), [json!(["b", "2s"]), json!(["c", "2s"])]);
    let lost = server.run(&["rollback", "edge", "--to", "4"]);
    assert!(lost.code == 1 && lost.err.contains("a restore from a backup skipped it"), "{lost:?}");
    check(&server);
    server.terminate();
}

/// `history show` and `diff --from --to` show changed assignments, access rules and quotas, as text and as JSON.
#[test]
fn differences_of_revisions_show_assignments_access_rules_and_quotas() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let first = write(&server, &["apply", "-f", "-"], &items(1)).to_string();
    let second = write(&server, &["apply", "-f", "-"], &items(2)).to_string();
    for args in [
        &["assignments", "delete", "each", "--confirm", "all"][..],
        &["access", "delete", "ci"],
        &["quota", "delete", "all"],
    ] {
        let done = server.run(args);
        assert_eq!(done.code, 0, "{done:?}");
    }
    let changed = [
        "- priority: 1",
        "+ priority: 2",
        "team1",
        "team2",
        "- max_resources: 1001",
        "+ max_resources: 1002",
    ];
    for args in [
        vec!["history", "show", &second],
        vec!["diff", "--from", &first, "--to", &second],
        vec!["diff", "--from", &second, "--to", &first],
    ] {
        let shown = server.run(&args);
        assert_eq!(shown.code, if args[0] == "diff" { 2 } else { 0 }, "{shown:?}");
        let is_back = args.get(2) == Some(&&*second) && args[0] == "diff";
        for text in changed {
            let text = match (is_back, text.split_at(1)) {
                (true, ("-", rest)) => format!("+{rest}"),
                (true, ("+", rest)) => format!("-{rest}"),
                _ => text.to_owned(),
            };
            assert!(shown.out.contains(&text), "{args:?}: {text}: {}", shown.out);
        }
        for name in ["each", "ci", "all"] {
            assert!(shown.out.contains(name), "{args:?}: {name}: {}", shown.out);
        }
        let json = server.run(&[&args[..], &["-o", "json"]].concat());
        let json: Value = serde_json::from_str(&json.out).unwrap();
        assert_eq!(json["assignment_changes"][0]["kind"], "updated", "{json}");
        let access = json["access_changes"].as_array().unwrap().iter();
        let access: Vec<_> = access
            .map(|one| (one["object"].clone(), one["name"].clone(), one["kind"].clone()))
            .collect();
        assert_eq!(access.len(), 2, "{json}");
    }
    // Everything was deleted since.
    let gone = server.run(&["diff", "--from", &second]);
    assert_eq!(gone.code, 2, "{gone:?}");
    for text in ["3 changes", "each", "ci", "all", "priority: 2", "- max_resources: 1002"] {
        assert!(gone.out.contains(text), "{text}: {}", gone.out);
    }
    server.terminate();
}
