//! Files with a `DiscoveryResponse`: `mirror` writes them, and `apply` reads them.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Stdio,
    sync::mpsc,
    time::{Duration, Instant},
};

use chancery_model::types;
use chancery_proto::discovery::{Any, DiscoveryResponse};
use chancery_testing::reserve_address;
use prost::Message;
use serde_json::{Value, json};

use crate::{
    cluster::eventually,
    support::{DEADLINE, Done, KillOnDrop, Server, chancery, run},
};

fn source() -> Value {
    json!({"path_config_source": {"path": "unused"}})
}

fn cluster(name: &str, timeout: &str) -> Value {
    json!({"@type": types::CLUSTER, "name": name, "type": "EDS", "connect_timeout": timeout,
        "eds_cluster_config": {"eds_config": source()}})
}

fn endpoints(cluster: &str, port: u16) -> Value {
    json!({"@type": types::ENDPOINT, "cluster_name": cluster, "endpoints": [{"lb_endpoints": [{"endpoint":
        {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}}]}]})
}

/// A listener with a route by RDS and a certificate by SDS.
fn listener(route: &str, secret: &str) -> Value {
    let manager = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.\
                   HttpConnectionManager";
    let tls = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext";
    json!({"@type": types::LISTENER, "name": "main", "api_listener": {}, "filter_chains": [{
        "filters": [{"name": "hcm", "typed_config": {"@type": manager, "stat_prefix": "x",
            "rds": {"route_config_name": route, "config_source": source()}}}],
        "transport_socket": {"name": "tls", "typed_config": {"@type": tls, "common_tls_context":
            {"tls_certificate_sds_secret_configs": [{"name": secret, "sds_config": source()}]}}}}]})
}

fn route(name: &str) -> Value {
    json!({"@type": types::ROUTE, "name": name, "virtual_hosts": []})
}

fn secret(name: &str) -> Value {
    json!({"@type": types::SECRET, "name": name, "generic_secret": {"secret": {"inline_string": "hush"}}})
}

fn view(timeout: &str) -> Vec<Value> {
    vec![
        cluster("web", timeout),
        endpoints("web", 1),
        cluster("a/b", "1s"),
        listener("../main", "cert"),
        route("../main"),
        secret("cert"),
        json!({"@type": types::RUNTIME, "name": "layer", "layer": {"x": 1}}),
    ]
}

fn publish(server: &Server, resources: &[Value]) -> Value {
    let args = ["apply", "-f", "-", "--prune", "--confirm", "empty-endpoints"];
    server.json(&args, &json!({"resources": resources}).to_string())
}

fn mirror_once(server: &Server, dir: &Path, more: &[&str]) -> Done {
    let mut command = chancery();
    let args = ["mirror", "--node", "n", "--once", "--xds", &server.xds, "--pause", "1ms", "--dir"];
    run(
        {
            command.args(args).arg(dir).args(more);
            command
        },
        "",
    )
}

/// Returns the files of a directory, without the listing: the content by path.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { walk(&path, found) } else { found.push(path) }
        }
    }
    let mut found = Vec::new();
    walk(dir, &mut found);
    let name = |path: &PathBuf| path.strip_prefix(dir).unwrap().display().to_string();
    found
        .iter()
        .map(|path| (name(path), fs::read(path).unwrap_or_default()))
        .filter(|(name, _)| name != "listing.txt" && !name.contains(".chancery-mirror-"))
        .collect()
}

/// FS-01, FS-02, FS-03, FS-08, FS-09, FS-10, FS-16, FS-17: the view of a node is written in each encoding, and a
/// second store that reads the directory has the same resources.
#[test]
fn mirrored_directory_seeds_another_store_in_every_encoding() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    publish(&server, &view("1s"));
    let expected = server.json(&["get"], "")["resources"].clone();
    for encoding in ["json", "yaml", "pb", "pb_text"] {
        let dir = directory.path().join(encoding);
        let done = mirror_once(&server, &dir, &["--encoding", encoding, "--include", "rtds/layer"]);
        assert_eq!((done.code, done.err.as_str()), (0, ""), "{done:?}");
        let found = files(&dir);
        let names =
            ["cds", "eds/a%2Fb", "eds/web", "lds", "rds/%2E.%2Fmain", "rtds/layer", "sds/cert"];
        let expected_names: Vec<String> =
            names.iter().map(|name| format!("{name}.{encoding}")).collect();
        assert_eq!(found.keys().cloned().collect::<Vec<_>>(), expected_names, "{done:?}");
        for line in done.out.lines() {
            assert!(line.starts_with("written "), "{line}");
        }
        assert!(!done.out.contains("accepted"), "{}", done.out);
        let absent = format!("written eds/a%2Fb.{encoding}: the resource does not exist");
        assert!(done.out.lines().any(|line| line == absent), "{}", done.out);
        let mode = |name: &str| dir.join(name).metadata().unwrap().mode() & 0o777;
        assert_eq!(mode(&format!("sds/cert.{encoding}")), 0o600);
        assert_eq!(mode(&format!("cds.{encoding}")), 0o644);
        if encoding == "pb" {
            let response = DiscoveryResponse::decode(found["eds/web.pb"].as_slice()).unwrap();
            assert_eq!(response.resources.len(), 1);
            assert!(!response.version_info.is_empty() && response.nonce.is_empty());
            let all = DiscoveryResponse::decode(found["cds.pb"].as_slice()).unwrap();
            assert_eq!(all.resources.len(), 2);
        }
        let listing = fs::read_to_string(dir.join("listing.txt")).unwrap();
        assert!(
            listing.contains(&format!("rds/%2E.%2Fmain.{encoding}\trds\t../main\n")),
            "{listing}"
        );

        let other = Server::start(&directory.path().join(format!("data-{encoding}")));
        let seeded = other.json(&["apply", "-f", dir.to_str().unwrap()], "");
        assert_eq!(seeded["revision"], 1);
        let got = other.json(&["get"], "")["resources"].clone();
        let bodies = |list: &Value| -> Vec<Value> {
            list.as_array().unwrap().iter().map(|it| it["body"].clone()).collect()
        };
        assert_eq!(bodies(&got), bodies(&expected), "{encoding}");
    }
}

/// FS-14: a second run changes only the files whose content changes. Files of others stay.
#[test]
fn later_run_rewrites_only_changes_and_removes_only_its_own_files() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let dir = directory.path().join("files");
    publish(&server, &view("1s"));
    assert_eq!(mirror_once(&server, &dir, &[]).code, 0);
    fs::write(dir.join("eds/mine.json"), "{}").unwrap();
    let inodes = || -> BTreeMap<String, u64> {
        let inode = |name: &String| dir.join(name).metadata().unwrap().ino();
        files(&dir).keys().map(|name| (name.clone(), inode(name))).collect()
    };
    let before = inodes();
    let again = mirror_once(&server, &dir, &[]);
    assert_eq!((again.code, again.out.as_str()), (0, ""), "{again:?}");
    assert_eq!(inodes(), before);

    let mut changed = view("2s");
    changed.retain(|it| it["name"] != "a/b");
    publish(&server, &changed);
    let third = mirror_once(&server, &dir, &[]);
    let lines: Vec<&str> = third.out.lines().collect();
    assert_eq!(lines.len(), 2, "{third:?}");
    assert!(
        lines[0].starts_with("written cds.json: version ") && lines[0].ends_with(", 1 resources")
    );
    assert_eq!(lines[1], "removed eds/a%2Fb.json");
    let after = inodes();
    let kept = |name: &&String| *name != "cds.json" && *name != "eds/a%2Fb.json";
    for name in before.keys().filter(kept) {
        assert_eq!(after.get(name), before.get(name), "{name}");
    }
}

/// A view that cannot be fetched is a failure, and leaves the files of an earlier run as they are.
#[test]
fn unreachable_view_is_an_error_that_names_what_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("files");
    let mut command = chancery();
    command.args(["mirror", "--node", "edge 1", "--once", "--timeout", "2s"]);
    command.args(["--xds", "127.0.0.1:1,127.0.0.1:2", "--dir"]).arg(&dir);
    let done = run(command, "");
    assert_eq!((done.code, done.out.as_str()), (1, ""));
    let lines: Vec<&str> = done.err.lines().collect();
    assert_eq!(lines.len(), 3, "{done:?}");
    assert!(lines[0].starts_with("error: no stream from the server at 127.0.0.1:1: "), "{done:?}");
    assert_eq!(
        lines[2],
        "error: the view of node \"edge 1\" could not be fetched completely within 2s: no answer for cds, lds, srds; \
         nothing was written"
    );
    assert!(files(&dir).is_empty());
    for (args, text) in [
        (["--include", "cds/x"], "is not a type that is requested by name: eds"),
        (["--include", "rtds"], "expected TYPE/NAME"),
        (["--secret-mode", "999"], "expected an octal mode"),
        (["--metadata", "[]"], "expected a JSON object"),
        (["--timeout", "1s"], "--once"),
        (["--node", ""], "a value is required for '--node <ID>'"),
        (["--xds", ""], "expected HOST:PORT"),
        (["--xds", "http://127.0.0.1:1"], "expected HOST:PORT"),
    ] {
        let mut command = chancery();
        command.args(["mirror", "--dir", "x"]).args(args);
        if args[0] != "--node" {
            command.args(["--node", "n"]);
        }
        let done = run(command, "");
        assert!(done.code == 2 && done.err.contains(text), "{done:?}");
    }
    let mut command = chancery();
    command.args(["mirror", "--node", "n", "--xds", "chancery.invalid:1", "--dir"]).arg(&dir);
    let done = run(command, "");
    let text = "error: cannot resolve \"chancery.invalid:1\" of --xds: ";
    assert!(done.code == 1 && done.err.starts_with(text), "{done:?}");
}

/// The reason of a server that rejects the node is shown, and so is the wrong port.
#[test]
fn rejected_stream_is_an_error_with_the_reason_of_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("files");
    let limit = [("CHANCERY_XDS_NODE_BYTES_MAX", "4KiB")];
    let server = Server::start_with(&directory.path().join("data"), &limit);
    let (node, admin) = ("x".repeat(5000), &server.admin);
    // The limit may have another value after a restart, but a wrong port stays wrong.
    for (xds, node, timeout, text) in [
        (&server.xds, node.as_str(), "2s", "(node_bytes_max)"),
        (admin, "n", "10m", "it serves no discovery services; use the address of its xDS port"),
    ] {
        let mut command = chancery();
        command.args([
            "mirror",
            "--node",
            node,
            "--once",
            "--timeout",
            timeout,
            "--xds",
            xds,
            "--dir",
        ]);
        command.arg(&dir);
        let done = run(command, "");
        let first = done.err.lines().next().unwrap();
        assert!(done.code == 1 && first.contains(text), "{text}: {done:?}");
        assert!(done.err.lines().all(|line| line.len() > 10), "{done:?}");
    }
}

/// FS-06: a directory that is removed while the mirror runs is written again, and so is a subdirectory.
#[test]
fn removed_directory_is_written_again() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let dir = directory.path().join("files");
    publish(&server, &view("1s"));
    let args = ["mirror", "--node", "n", "--pause", "1ms", "--xds", &server.xds, "--dir"];
    let _mirror = Running::start(&args, &dir);
    let names = ["cds", "lds", "eds/web", "eds/a%2Fb", "rds/%2E.%2Fmain", "sds/cert"];
    let is_whole = || {
        let is_there = |name: &&str| dir.join(format!("{name}.json")).exists();
        (names.iter().all(is_there) && dir.join("listing.txt").exists()).then_some(())
    };
    eventually("the files", is_whole);
    let before = files(&dir);
    // The mirror may still write its listing, and a directory is removed only when it is empty.
    let remove = |dir: &Path| eventually("the removal", || fs::remove_dir_all(dir).ok());
    remove(&dir);
    eventually("the files after the removal", is_whole);
    assert_eq!(files(&dir), before);
    remove(&dir.join("eds"));
    let mut changed = view("1s");
    changed[1] = endpoints("web", 2);
    publish(&server, &changed);
    eventually("the endpoints", || {
        let web = fs::read_to_string(dir.join("eds/web.json")).ok()?;
        web.contains("\"port_value\": 2").then_some(())
    });
    eventually("the other endpoints", is_whole);
}

/// FS-16: a mirror that is killed leaves no file that the next one does not know, such as a secret.
#[test]
fn killed_mirror_leaves_no_unknown_file() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let dir = directory.path().join("files");
    publish(&server, &view("1s"));
    let args = ["mirror", "--node", "n", "--pause", "60s", "--xds", &server.xds, "--dir"];
    let mirror = Running::start(&args, &dir);
    eventually("the first files", || dir.join("cds.json").exists().then_some(()));
    drop(mirror);
    assert!(dir.join("sds/cert.json").exists() && !dir.join("lds.json").exists());
    let mut rest = view("1s");
    rest.retain(|it| it["name"] != "main" && it["name"] != "cert");
    publish(&server, &rest);
    assert_eq!(mirror_once(&server, &dir, &[]).code, 0);
    assert!(!dir.join("sds/cert.json").exists());
}

/// A cluster that lost its data does not empty the files. They follow it when the data is back.
#[test]
fn new_cluster_removes_nothing_until_it_is_complete_or_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("files");
    let first = Server::start(&directory.path().join("data"));
    publish(&first, &view("1s"));
    assert_eq!(mirror_once(&first, &dir, &[]).code, 0);
    let before = files(&dir);
    let second = Server::start(&directory.path().join("other"));
    publish(&second, &view("2s")[..1]);
    let held = mirror_once(&second, &dir, &[]);
    assert_eq!((held.code, held.out.as_str()), (1, ""), "{held:?}");
    for text in ["another cluster", "which lacks cds \"a/b\" and ", "--accept-new-cluster"] {
        assert!(held.err.contains(text), "{held:?}");
    }
    let args = ["mirror", "--node", "n", "--pause", "1ms", "--xds", &second.xds, "--dir"];
    let mirror = Running::start(&args, &dir);
    eventually("the session", || {
        (!second.json(&["nodes"], "")["nodes"].as_array()?.is_empty()).then_some(())
    });
    publish(&second, &view("2s")[..2]);
    assert_eq!(files(&dir), before);
    publish(&second, &view("2s"));
    assert!(mirror.until("written cds.json").len() < 3, "only the changed file is written");
    drop(mirror);
    assert_eq!(mirror_once(&first, &dir, &[]).code, 0, "it has all resources");
    publish(&second, &view("2s")[..1]);
    let done = mirror_once(&second, &dir, &["--accept-new-cluster"]);
    assert!(done.code == 0 && done.out.contains("removed sds/cert.json"), "{done:?}");
}

/// A running `mirror`, and the lines of its output.
struct Running {
    /// Ends with this.
    _child: KillOnDrop,
    lines: mpsc::Receiver<String>,
}

impl Running {
    fn start(args: &[&str], dir: &Path) -> Self {
        let mut command = chancery();
        command.args(args).arg(dir).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = KillOnDrop(command.spawn().unwrap());
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::sync_channel(1024);
        std::thread::spawn(move || {
            out.lines().map_while(Result::ok).try_for_each(|it| sender.send(it))
        });
        Self { _child: child, lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(DEADLINE).unwrap()
    }

    /// Returns the lines up to one with this start.
    fn until(&self, start: &str) -> Vec<String> {
        let mut lines = vec![self.line()];
        while !lines.last().is_some_and(|line| line.starts_with(start)) {
            lines.push(self.line());
        }
        lines
    }
}

/// FS-04, FS-13, FS-14: changes arrive as they are published, through a restart of the server, at another server of
/// the list, and after a kill of the mirror.
#[test]
fn mirror_follows_changes_through_restarts_of_both_sides() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let dir = directory.path().join("files");
    let [xds, admin] = [(); 2].map(|()| reserve_address().to_string());
    let start = || {
        let mut serve = chancery();
        serve.args(["serve", "--raft", "127.0.0.1:0", "--xds", &xds, "--admin", &admin]);
        serve.arg("--data-dir").arg(&data).env("CHANCERY_STORE_FREE_BYTES_MIN", "64MiB");
        serve.stderr(Stdio::null());
        Server::spawn(serve)
    };
    let server = start();
    publish(&server, &view("1s"));
    let servers = format!("127.0.0.1:1,{xds}");
    let args = ["mirror", "--node", "n", "--pause", "20ms", "--xds", &servers, "--dir"];
    let mirror = Running::start(&args, &dir);
    let lines = mirror.until("written lds.json");
    assert!(lines.iter().any(|line| line.starts_with("written cds.json: version ")), "{lines:?}");
    assert!(!lines.last().unwrap().contains("cds"), "{lines:?}");

    // One endpoint changes, and one file.
    let mut changed = view("1s");
    changed[1] = endpoints("web", 2);
    publish(&server, &changed);
    assert!(mirror.line().starts_with("written eds/web.json: version "));
    // A new cluster comes with its endpoints: their file exists before the clusters refer to it.
    changed.extend([cluster("new", "1s"), endpoints("new", 3)]);
    publish(&server, &changed);
    let lines = mirror.until("written cds.json");
    assert!(lines[0].starts_with("written eds/new.json"), "{lines:?}");

    // The server is killed and returns on the same ports.
    drop(server);
    let server = start();
    changed[1] = endpoints("web", 4);
    publish(&server, &changed);
    assert!(
        mirror.line().starts_with("written eds/web.json: version "),
        "only the change is written"
    );

    // The mirror is killed and returns.
    drop(mirror);
    changed[1] = endpoints("web", 5);
    changed.retain(|it| it["name"] != "new" && it["cluster_name"] != "new");
    publish(&server, &changed);
    let mirror = Running::start(&args, &dir);
    let lines = mirror.until("removed ");
    assert!(
        lines[0].starts_with("written eds/web.json") || lines[0].starts_with("written cds.json")
    );
    assert_eq!(lines.last().unwrap(), "removed eds/new.json");
    assert_eq!(lines.iter().filter(|line| line.starts_with("written lds")).count(), 0, "{lines:?}");
    let cds: Value = serde_json::from_slice(&fs::read(dir.join("cds.json")).unwrap()).unwrap();
    assert_eq!(cds["resources"].as_array().unwrap().len(), 2);
}

/// DELTA-53: a first state that arrives in several responses is written as a whole. A part of it would remove
/// clusters that are in use.
#[test]
fn large_first_state_is_written_as_a_whole() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let dir = directory.path().join("files");
    let text = "x".repeat(1 << 16);
    // Three times as much as the server puts into one response.
    let clusters: Vec<Value> = (0..160)
        .map(|n| {
            json!({"@type": types::CLUSTER, "name": format!("c{n}"), "metadata":
                {"filter_metadata": {"x": {"text": text}}}})
        })
        .collect();
    let publish_part = |clusters: &[Value]| {
        server.json(&["apply", "-f", "-"], &json!({"resources": clusters}).to_string())
    };
    clusters.chunks(20).for_each(|part| drop(publish_part(part)));
    let args = ["mirror", "--node", "n", "--encoding", "pb", "--xds", &server.xds, "--dir"];
    let mirror = Running::start(&args, &dir);
    let lines = mirror.until("written cds.pb");
    assert!(lines.last().unwrap().ends_with(", 160 resources"), "{lines:?}");
}

/// FS-17: a broken file changes nothing, and its problem names the file and the resource.
#[test]
fn broken_response_file_changes_nothing_and_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let dir = directory.path().join("files");
    fs::create_dir(&dir).unwrap();
    let any =
        |value: &'static [u8]| Any { type_url: types::CLUSTER.to_owned(), value: value.into() };
    let response = |resources| DiscoveryResponse { resources, ..DiscoveryResponse::default() };
    fs::write(dir.join("good.pb"), response(vec![any(b"\x0a\x01a")]).encode_to_vec()).unwrap();
    fs::write(
        dir.join("bad.pb"),
        response(vec![any(b"\x0a\x01b"), any(b"\x0a\xff")]).encode_to_vec(),
    )
    .unwrap();
    fs::write(
        dir.join("bad.pb_text"),
        "version_info: '1'\nresources { [type.googleapis.com/envoy.config.cluster.v3.Cluster] { nam: 'c' } }\n",
    )
    .unwrap();
    let path = dir.display().to_string();
    let refused = server.run(&["apply", "-f", &path]);
    assert_eq!((refused.code, refused.out.as_str()), (1, ""));
    let lines: Vec<&str> = refused.err.lines().collect();
    assert_eq!(lines.len(), 2, "{refused:?}");
    assert!(
        lines[0].starts_with(&format!("error: {path}/bad.pb_text:1:1: resources[0]: ")),
        "{refused:?}"
    );
    assert!(
        lines[1].starts_with(&format!(
            "error: {path}/bad.pb: document 1: resources[1] Cluster: value: "
        )),
        "{refused:?}"
    );
    assert_eq!(server.json(&["get"], "")["revision"], 0);
    fs::remove_file(dir.join("bad.pb")).unwrap();
    fs::remove_file(dir.join("bad.pb_text")).unwrap();
    assert_eq!(server.json(&["apply", "-f", &path], "")["changed"], 1);
    let single = server.json(&["apply", "-f", &format!("{path}/good.pb")], "");
    assert_eq!((&single["changed"], &single["unchanged"]), (&json!(0), &json!(1)));
}

/// FS-17: a directory is followed. A problem is reported and changes nothing, and the next correct state is applied.
#[test]
fn watched_directory_is_applied_after_each_change() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let dir = directory.path().join("files");
    fs::create_dir(&dir).unwrap();
    let write = |name: &str, resources: &[Value]| {
        fs::write(dir.join(name), json!({"resources": resources}).to_string()).unwrap();
    };
    write("a.json", &[cluster("a", "1s")]);
    let errors = directory.path().join("errors");
    let mut command = chancery();
    command
        .env("CHANCERY_SERVER", &server.admin)
        .args(["apply", "--prune", "--settle", "1s", "--watch"])
        .arg(&dir);
    command.stdout(Stdio::null()).stderr(fs::File::create(&errors).unwrap());
    let mut watching = KillOnDrop(command.spawn().unwrap());
    let names = || -> Vec<String> {
        let list = server.json(&["get"], "");
        let list = list["resources"].as_array().unwrap();
        list.iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect()
    };
    let wait_for =
        |expected: &[&str]| eventually("the resources", || (names() == expected).then_some(()));
    wait_for(&["a"]);
    write("b.json", &[cluster("b", "1s")]);
    wait_for(&["a", "b"]);
    // A broken file beside a deleted one: nothing changes.
    fs::write(dir.join("c.yaml"), "resources: [{}]").unwrap();
    fs::remove_file(dir.join("b.json")).unwrap();
    let error = eventually("the error", || {
        let text = fs::read_to_string(&errors).unwrap();
        text.contains('\n').then_some(text)
    });
    assert!(
        error.starts_with(&format!(
            "error: {}/c.yaml:1:13: document 1: resources[0]: ",
            dir.display()
        )),
        "{error}"
    );
    assert_eq!(names(), ["a", "b"]);
    fs::remove_file(dir.join("c.yaml")).unwrap();
    wait_for(&["a"]);
    // A file that is empty, because it is being written, is a problem too.
    fs::write(dir.join("a.json"), "").unwrap();
    eventually("the error", || {
        fs::read_to_string(&errors).unwrap().contains("a.json: the file is empty").then_some(())
    });
    assert_eq!(names(), ["a"]);
    // An empty directory is a problem. It deletes nothing.
    fs::remove_file(dir.join("a.json")).unwrap();
    eventually("the error", || {
        fs::read_to_string(&errors).unwrap().contains("has no *.yaml").then_some(())
    });
    assert_eq!(names(), ["a"]);
    assert!(watching.try_wait().unwrap().is_none(), "it keeps running");
    drop(watching);
}

/// FS-17: another program writes a file in parts that end between two resources. Nothing is deleted meanwhile.
#[test]
fn watched_file_that_is_being_written_removes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let dir = directory.path().join("files");
    fs::create_dir(&dir).unwrap();
    let text = |n: usize| {
        let names = ["a", "b", "c"].iter().take(n);
        let clusters: Vec<String> = names.map(|name| cluster(name, "1s").to_string()).collect();
        format!("resources:\n- {}\n", clusters.join("\n- "))
    };
    let write = |n: usize| fs::write(dir.join("a.yaml"), text(n)).unwrap();
    write(3);
    let mut command = chancery();
    command.env("CHANCERY_SERVER", &server.admin);
    command.args(["apply", "--prune", "--settle", "4s", "--watch"]).arg(&dir).stdout(Stdio::null());
    let _watching = KillOnDrop(command.spawn().unwrap());
    let state = || {
        let got = server.json(&["get"], "");
        (got["revision"].clone(), got["resources"].as_array().unwrap().len())
    };
    loop {
        let before = eventually("the resources", || Some(state()).filter(|(_, n)| *n == 3));
        let mut longest = Duration::ZERO;
        for n in [1, 2, 1, 2, 1, 3] {
            let start = Instant::now();
            write(n);
            std::thread::sleep(Duration::from_millis(900));
            longest = longest.max(start.elapsed());
        }
        if state() == before {
            break;
        }
        // If the system suspended this test between two writes, the file was unchanged for the settle time.
        assert!(longest > Duration::from_secs(2), "{:?}, then {:?}", before, state());
    }
    write(1);
    eventually("the removal", || (state().1 == 1).then_some(()));
}
