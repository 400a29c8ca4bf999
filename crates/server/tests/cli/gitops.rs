//! `export`, `apply --prune`, `get -o json` and `sync`: the content of a cluster as files, and back.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::Stdio,
};

use chancery_model::types;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    cluster::{joined, run_at},
    support::{Done, KillOnDrop, Server, chancery, clusters, eventually, signal},
};

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus/admission")
}

/// Returns the files below a directory with their content, by path.
fn tree(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                let content = fs::read_to_string(&path).unwrap();
                found.insert(path.strip_prefix(root).unwrap().to_owned(), content);
            }
        }
    }
    found
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Exports everything, applies it, and exports it again. Nothing may change.
fn assert_round_trip(server: &Server, root: &Path) -> Value {
    let (one, two) = (root.join("one"), root.join("two"));
    let first = server.json(&["export", text(&one)], "");
    let args = ["apply", "--prune", "--validation", "off", "-f", text(&one)];
    let applied = server.json(&args, "");
    let counts = ["changed", "removed", "assignments", "access"].map(|key| applied[key].clone());
    assert_eq!(counts, [0, 0, 0, 0].map(Value::from), "{applied}");
    assert_eq!(applied["unchanged"], first["resources"]);
    assert_eq!(applied["revision"], first["revision"]);
    let second = server.json(&["export", text(&two)], "");
    assert_eq!(second["revision"], first["revision"]);
    let (one, two) = (tree(&one), tree(&two));
    assert_eq!(one, two);
    first
}

/// Returns the good cases of the corpus as manifests, each in a scope of its own, and the bootstraps.
fn good_cases(to: &Path) -> Vec<PathBuf> {
    let mut open: Vec<PathBuf> =
        ["tuning/good", "held-out/good"].map(|part| corpus().join(part)).into();
    let mut n = 0;
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let name = path.file_stem().unwrap().to_str().unwrap();
            let content = fs::read_to_string(&path).unwrap();
            fs::write(to.join(format!("{name}.yaml")), format!("scope: case/{name}\n{content}"))
                .unwrap();
            n += 1;
        }
    }
    assert!(n >= 250, "{n} cases");
    let mut shapes: Vec<PathBuf> = fs::read_dir(corpus().join("shapes/good"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    shapes.sort();
    assert!(shapes.len() >= 60, "{} bootstraps", shapes.len());
    shapes
}

/// Removes the manifests that an error names: those that cannot be decoded with Envoy's descriptors.
fn without_undecodable(server: &Server, directory: &Path) -> usize {
    let done = server.run(&["apply", "--validation", "off", "-f", text(directory), "-o", "json"]);
    if done.code == 0 {
        return 0;
    }
    let error: Value = serde_json::from_str(&done.out).unwrap();
    let problems = error["error"]["problems"].as_array().unwrap();
    let mut n = 0;
    for problem in problems {
        let file = problem["file"].as_str().unwrap();
        n += usize::from(fs::remove_file(file).is_ok());
    }
    assert!(n > 0, "{done:?}");
    let done = server.run(&["apply", "--validation", "off", "-f", text(directory)]);
    assert_eq!(done.code, 0, "{done:?}");
    n
}

#[test]
fn every_good_case_of_the_corpus_survives_the_round_trip() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(&root.path().join("data"));
    let cases = root.path().join("cases");
    fs::create_dir(&cases).unwrap();
    let shapes = good_cases(&cases);
    let n_undecodable = without_undecodable(&server, &cases);
    assert!(n_undecodable <= 5, "{n_undecodable} cases cannot be decoded");
    for shape in &shapes {
        let scope = format!("shape/{}", shape.file_stem().unwrap().to_str().unwrap());
        let args = ["import", text(shape), "--scope", &scope, "--validation", "off"];
        let done = server.run(&args);
        assert_eq!(done.code, 0, "{args:?}: {done:?}");
    }
    let exported = assert_round_trip(&server, root.path());
    assert!(exported["resources"].as_u64().unwrap() > 400, "{exported}");
    // Only resources with secrets are not written in full.
    let kept = exported["kept"].as_u64().unwrap();
    assert!((1..60).contains(&kept), "{exported}");
    // The lists that `get` shows can be applied, too.
    for format in ["json", "yaml"] {
        let list = server.run(&["get", "-o", format]);
        assert_eq!(list.code, 0, "{}", list.err);
        let args = ["apply", "--prune", "--validation", "off", "-f", "-"];
        let applied = server.json(&args, &list.out);
        assert_eq!((&applied["changed"], &applied["removed"]), (&json!(0), &json!(0)), "{format}");
        assert_eq!(applied["unchanged"], exported["resources"], "{format}");
        assert_eq!(applied["revision"], exported["revision"], "{format}");
    }
}

fn secret(value: &str) -> Value {
    json!({"@type": types::SECRET, "name": "cert", "generic_secret": {"secret": {"inline_string": value}}})
}

/// Everything that a manifest can have.
fn everything() -> String {
    json!({
        "scope": "mesh/a", "resources": [
            {"@type": types::CLUSTER, "name": "web: #1", "connect_timeout": "1.5s",
                "metadata": {"filter_metadata": {"x": {"yes": "yes", "octal": "0440", "big": 1e300, "n": null}}}},
            {"ttl": "30s", "labels": {"team": "shop", "n": "1"}, "aliases": ["other"],
                "resource": {"@type": types::ENDPOINT, "cluster_name": "web: #1"}},
            {"name": "v", "dynamic_parameter_constraints": {"constraint": {"key": "env", "value": "prod"}},
                "resource": {"@type": types::CLUSTER, "name": "v"}},
            {"name": "opaque", "resource": {"@type": "example.com/acme.Thing", "value": "CgFh"}},
            {"@type": "networking.istio.io/v1/ServiceEntry",
                "metadata": {"name": "shop/entry", "annotations": {"a": "b"}},
                "body": {"@type": "type.googleapis.com/google.protobuf.StringValue", "value": "x"}},
            secret("hush"),
        ],
        "assignments": [{"name": "edge", "priority": 10, "match": {"id": "edge-*", "locality": {"region": "eu"},
            "metadata": {"mesh": "m1"}}, "scopes": ["node/{node.id}", "mesh/a"]}],
        "access": [{"name": "team", "identities": ["jwt:corp/{team}"], "read": ["mesh/**"],
            "node": {"id": "{team}/*"}, "secrets": {"scopes": ["mesh/**"], "names": ["tls-*"]},
            "allow": [{"verbs": ["apply", "get"], "scopes": ["team/{team}"]}], "quota": {"streams": 3}}],
        "quotas": [{"name": "all", "scopes": ["**"], "max_resources": 100_000, "max_body_bytes": 1_000_000}],
    })
    .to_string()
}

#[test]
fn resources_rules_and_quotas_survive_the_round_trip() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(&root.path().join("data"));
    let args = ["apply", "--validation", "off", "-f", "-"];
    let done = server.run_with_input(&args, &everything());
    assert_eq!(done.code, 0, "{done:?}");
    let exported = assert_round_trip(&server, root.path());
    assert_eq!((&exported["kept"], &exported["resources"]), (&json!(1), &json!(6)), "{exported}");
    let files = tree(&root.path().join("one"));
    let names: Vec<&str> = files.keys().map(|path| text(path)).collect();
    let scope = "scopes/mesh%2Fa";
    let expected = [
        "access.yaml".to_owned(),
        "assignments.yaml".to_owned(),
        "quotas.yaml".to_owned(),
        format!("{scope}/cluster.yaml"),
        format!("{scope}/endpoint.yaml"),
        format!("{scope}/example.com%2Facme.Thing.yaml"),
        format!("{scope}/networking.istio.io%2Fv1%2FServiceEntry.yaml"),
        format!("{scope}/secret.yaml"),
    ];
    assert_eq!(names, expected);
    let all: String = files.into_values().collect();
    assert!(!all.contains("hush") && all.contains("[redacted]"), "{all}");
    // An empty cluster gets everything except what needs secrets.
    let other = Server::start(&root.path().join("other"));
    let directory = root.path().join("one");
    fs::remove_file(directory.join(scope).join("secret.yaml")).unwrap();
    let args = ["apply", "--prune", "--validation", "off", "-f", text(&directory)];
    assert_eq!(other.json(&args, "")["changed"], 5);
    let copy = root.path().join("copy");
    other.json(&["export", text(&copy)], "");
    assert_eq!(tree(&copy), tree(&directory));
}

/// Returns the command's only line on standard error without the path of the file.
fn refusal(done: &Done) -> &str {
    assert_eq!(done.code, 1, "{done:?}");
    done.err.split_once("resources[0] ").map_or(done.err.as_str(), |(_, rule)| rule).trim_end()
}

#[test]
fn entry_of_a_secret_keeps_only_the_version_that_it_names() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(&root.path().join("data"));
    let manifest = |value: &str| json!({"scope": "tls", "resources": [secret(value)]}).to_string();
    server.json(&["apply", "-f", "-"], &manifest("one"));
    let directory = root.path().join("config");
    server.json(&["export", text(&directory)], "");
    let file = directory.join("scopes/tls/secret.yaml");
    let exported = fs::read_to_string(&file).unwrap();
    let before = server.json(&["get", "secret", "cert", "--scope", "tls"], "");
    let version = before["resources"][0]["version"].as_str().unwrap();
    assert!(exported.contains(&format!("unchanged: {version}\n")), "{exported}");
    let apply = |content: &str| server.run_with_input(&["apply", "--prune", "-f", "-"], content);
    // A label is not a secret: it changes, and the stored body stays.
    let labeled = exported.replace(
        &format!("unchanged: {version}\n"),
        &format!("unchanged: {version}\n  labels: {{team: shop}}\n"),
    );
    let done = apply(&labeled);
    assert_eq!(done.code, 0, "{done:?}\n{labeled}");
    let after = server.json(&["get", "secret", "cert", "--scope", "tls"], "");
    assert_eq!(after["resources"][0]["labels"]["team"], "shop");
    assert_eq!(after["resources"][0]["bytes"], before["resources"][0]["bytes"]);
    // Content that was edited is not silently ignored.
    let edited = exported.replace("[redacted]", "new");
    let said = apply(&edited);
    let said = refusal(&said);
    let at = "Secret \"cert\": keeps version";
    assert!(said.starts_with(at), "{said}");
    assert!(said.contains("but was edited at `generic_secret.secret.inline_string`"), "{said}");
    // A dry run says the same.
    let dry = server.run_with_input(&["diff", "-f", "-"], &edited);
    assert!(refusal(&dry).contains("but was edited at"), "{dry:?}");
    // Another write changed the secret.
    server.json(&["apply", "-f", "-"], &manifest("two"));
    let said = apply(&exported);
    let said = refusal(&said);
    assert!(
        said.contains(&format!("keeps version {version}, but the stored resource has version ")),
        "{said}"
    );
    // The resource is gone.
    server.json(&["delete", "secret", "cert", "--scope", "tls"], "");
    let said = apply(&exported);
    let said = refusal(&said);
    let expected = "Secret \"cert\": keeps a resource that does not exist in scope \"tls\", and the entry lacks its \
                    secrets; give the whole resource";
    assert_eq!(said, expected);
    // Prune deletes a secret that no file has.
    server.json(&["apply", "-f", "-"], &manifest("three"));
    let empty = "scope: tls\nresources: []\n";
    assert_eq!(server.json(&["apply", "--prune", "-f", "-"], empty)["removed"], 1);
}

#[test]
fn export_keeps_foreign_files_and_says_what_it_leaves() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(&root.path().join("data"));
    for scope in ["a", "b"] {
        server.json(&["apply", "-f", "-", "--scope", scope], &clusters(&["web"], "1s"));
    }
    let directory = root.path().join("config");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("README.md"), "mine").unwrap();
    let done = server.run(&["export", text(&directory)]);
    assert_eq!(
        (done.code, done.out.as_str()),
        (0, "revision 2: 2 resources in 5 files: 5 written, 0 unchanged, 0 removed\n"),
        "{done:?}"
    );
    assert_eq!(done.err, "note: left README.md, which `chancery export` did not write\n");
    server.json(&["delete", "cluster", "web", "--scope", "a"], "");
    server.json(&["apply", "-f", "-", "--scope", "b"], &clusters(&["web"], "2s"));
    // The other scope stays as it was.
    let done = server.json(&["export", text(&directory), "--scope", "b"], "");
    assert_eq!((&done["written"], &done["removed"]), (&json!(1), &json!(0)), "{done}");
    assert!(directory.join("scopes/a/cluster.yaml").exists());
    let done = server.json(&["export", text(&directory)], "");
    assert_eq!(
        (&done["written"], &done["removed"], &done["left"]),
        (&json!(0), &json!(1), &json!(["README.md"]))
    );
    assert!(!directory.join("scopes/a").exists());
    // A file of somebody else in the way.
    fs::write(directory.join("quotas.yaml"), "quotas: []\n").unwrap();
    let done = server.run(&["export", text(&directory)]);
    assert_eq!(done.code, 1);
    let end =
        "quotas.yaml was not written by `chancery export`; move it, or choose another directory\n";
    assert!(done.err.ends_with(end), "{}", done.err);
}

/// A `sync --watch` whose status lines a thread reads.
struct Follower {
    child: KillOnDrop,
    lines: BufReader<std::process::ChildStdout>,
}

impl Follower {
    fn start(servers: &str, directory: &Path) -> Self {
        let mut command = chancery();
        command
            .args([
                "sync",
                "--watch",
                "--interval",
                "1s",
                "--settle",
                "100ms",
                "-o",
                "json",
                "--dir",
            ])
            .arg(directory)
            .env("CHANCERY_SERVER", servers)
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = KillOnDrop(command.spawn().unwrap());
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// Waits for the next status.
    fn status(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// Ends the command by a signal, and returns its exit code.
    fn end(mut self, by: Signal) -> Option<i32> {
        signal(&self.child, by);
        eventually("sync ends", || self.child.try_wait().unwrap()).code()
    }
}

#[test]
fn three_replicas_follow_a_directory_through_a_follower() {
    let root = tempfile::tempdir().unwrap();
    let replicas = joined(root.path());
    let leader = replicas[2].wait_voters(3)["leader"].as_u64().unwrap();
    let follower = replicas.iter().find(|replica| replica.id != leader).unwrap();
    let others: Vec<_> = replicas.iter().filter(|replica| replica.id != follower.id).collect();
    let directory = root.path().join("config");
    fs::create_dir(&directory).unwrap();
    let file = |name: &str| directory.join(name);
    let manifest = |names: &[&str]| format!("scope: edge\n{}", clusters(names, "1s"));
    fs::write(file("edge.yaml"), manifest(&["web", "cart"])).unwrap();

    let sync = |args: &[&str]| {
        run_at(
            &follower.admin,
            &[&["sync", "--once", "--dir", text(&directory)], args].concat(),
            "",
        )
    };
    assert_eq!(sync(&["--dry-run"]).code, 2, "there are changes");
    let done = sync(&[]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.out.contains(": 2 changed, 0 removed, 0 unchanged"), "{done:?}");
    assert_eq!(sync(&["--dry-run"]).code, 0, "there is nothing to do");
    let stored = |replica: &crate::cluster::Replica| {
        crate::cluster::names(&replica.json(&["get", "cluster", "--scope", "edge"]))
    };
    for replica in &others {
        assert_eq!(stored(replica).len(), 2);
    }
    fs::write(file("bad.yaml"), "resources: 1\n").unwrap();
    assert_eq!(sync(&[]).code, 1);
    assert_eq!(sync(&["--dry-run"]).code, 1);
    fs::remove_file(file("bad.yaml")).unwrap();

    let mut watch = Follower::start(&follower.admin, &directory);
    let status = watch.status();
    assert_eq!((&status["ok"], &status["unchanged"]), (&json!(true), &json!(2)), "{status}");
    // A file that is broken for a while.
    fs::write(file("edge.yaml"), "scope: edge\nresources: [\n").unwrap();
    let status = watch.status();
    assert_eq!((&status["ok"], &status["revision"].is_u64()), (&json!(false), &true), "{status}");
    assert!(status["error"].as_str().unwrap().contains("edge.yaml"), "{status}");
    fs::write(file("edge.yaml"), manifest(&["web"])).unwrap();
    let status = watch.status();
    assert_eq!((&status["ok"], &status["removed"]), (&json!(true), &json!(1)), "{status}");
    assert_eq!(status["error"], "");
    for replica in &others {
        eventually("the change is everywhere", || (stored(replica).len() == 1).then_some(()));
    }
    // Somebody else writes: the directory wins.
    let drifted = others[0].run(&["apply", "-f", "-"], &manifest(&["foreign"]));
    assert_eq!(drifted.code, 0, "{drifted:?}");
    let status = watch.status();
    assert_eq!((&status["ok"], &status["removed"]), (&json!(true), &json!(1)), "{status}");
    assert_eq!(watch.end(Signal::TERM), Some(0));

    let mut watch = Follower::start(&follower.admin, &directory);
    watch.status();
    assert_eq!(watch.end(Signal::INT), Some(130));
}
