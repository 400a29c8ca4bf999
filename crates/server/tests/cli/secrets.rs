//! Sealed secrets: real processes, whose files, logs and connections are searched byte by byte.

mod capture;
pub(crate) mod clients;
mod cluster;
mod keys;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use chancery_model::types::{CLUSTER, SECRET};
use clients::{Client, Ended};

use crate::support::{Done, Server, chancery, clusters, http_get, http_post, logged, run};

/// A secret value that is on no other place of the machine.
const FIRST: &str = "aa5dF1rstSecretValue93c1";
const SECOND: &str = "bb7eSec0ndSecretValue40d2";
/// A value of a resource without secrets: the search finds it.
const PLAIN: &str = "cc8fPlainClusterName51e3";

/// Writes a key file with one key per number.
fn key_file(dir: &Path, name: &str, keys: &[u8]) -> PathBuf {
    use base64::Engine as _;
    let line = |key: &u8| format!("{}\n", base64::prelude::BASE64_STANDARD.encode([*key; 32]));
    let (path, new) = (dir.join(name), dir.join("new"));
    fs::write(&new, keys.iter().map(line).collect::<String>()).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(&new, &path).unwrap();
    path
}

/// Returns a manifest with a secret.
fn secret(name: &str, value: &str) -> String {
    format!(
        "resources:\n- \"@type\": {SECRET}\n  name: {name}\n  generic_secret: {{secret: {{inline_string: {value}}}}}\n"
    )
}

/// Returns a manifest with a route configuration that adds a secret header.
fn cluster_with_header(name: &str, value: &str) -> String {
    format!(
        "resources:\n- \"@type\": type.googleapis.com/envoy.config.route.v3.RouteConfiguration\n  name: {name}\n  \
         request_headers_to_add:\n  - header: {{key: authorization, value: {value}}}\n"
    )
}

fn publish(server: &Server, manifest: &str) -> Done {
    let done = server.run_with_input(&["apply", "-f", "-"], manifest);
    assert_eq!(done.code, 0, "{done:?}");
    done
}

fn start(dir: &Path, key: &Path) -> Server {
    let key = key.display().to_string();
    Server::start_with(&dir.join("data"), &[("CHANCERY_SECRETS_KEY_FILE", &key)])
}

/// Returns the files under a directory that contain a text.
fn files_with(dir: &Path, text: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_with(&path, text));
        } else if contains(&fs::read(&path).unwrap(), text) {
            found.push(path);
        }
    }
    found
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// The search can fail: without a key, the secret is in the directory.
#[test]
fn secret_without_a_key_is_found_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"));
    publish(&server, &secret("token", FIRST));
    drop(server);
    assert!(!files_with(dir.path(), FIRST).is_empty());
}

/// Attack 59: a published secret is in no file, log, metric, history or backup.
#[test]
fn published_secret_is_nowhere_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let key = key_file(dir.path(), "keys", &[1]);
    // Every line of the log is searched, too.
    let trace =
        [("CHANCERY_SECRETS_KEY_FILE", key.to_str().unwrap()), ("CHANCERY_LOG_LEVEL", "trace")];
    let server = Server::start_with(&dir.path().join("data"), &trace);
    publish(&server, &secret("token", FIRST));
    let first = server.json(&["history", "-n", "1"], "")["entries"][0]["revision"].to_string();
    publish(&server, &clusters(&[PLAIN], "1s"));
    publish(&server, &cluster_with_header("route", FIRST));
    let mut texts = Vec::new();
    for args in [
        ["apply", "-f", "-", "--dry-run", "--exit-zero"].as_slice(),
        &["apply", "-f", "-"],
        &["get", "-o", "yaml"],
        &["describe", "secret", "token"],
        &["describe", "route", "route"],
        &["history"],
        &["cluster", "snapshot"],
        &["keys", "status"],
    ] {
        let done = server.run_with_input(args, &secret("token", SECOND));
        assert_eq!(done.code, 0, "{args:?}: {done:?}");
        texts.push(format!("{}{}", done.out, done.err));
    }
    for args in [
        ["history", "show", &first].as_slice(),
        &["diff", "--from", &first, "-o", "json"],
        &["blame", "secret", "token"],
        &["get", "secret", "--revision", &first, "-o", "yaml"],
        &["rollback", "default", "--to", &first, "--dry-run"],
        &["undo", &first, "--dry-run", "-o", "json"],
    ] {
        let done = server.run(args);
        assert!([0, 2].contains(&done.code) || args[0] == "undo", "{args:?}: {done:?}");
        texts.push(format!("{}{}", done.out, done.err));
    }
    let mut client = Client::open(&server.xds, None);
    client.subscribe(SECRET, &["token"]);
    let bodies = client.next(SECRET).unwrap();
    assert!(contains(&bodies, SECOND), "the client receives the secret");
    client.reject(SECRET, &format!("cannot use the secret {SECOND}"));
    client.subscribe(CLUSTER, &[PLAIN]);
    client.next(CLUSTER).unwrap();
    texts.push(server.run(&["nodes", "-o", "json"]).out);
    texts.push(server.run(&["describe", "secret", "token"]).out);
    texts.push(http_get(&server.admin, "/metrics").1);
    let backup = dir.path().join("backup").display().to_string();
    assert_eq!(server.run(&["backup", &backup]).code, 0);
    assert_eq!(server.terminate().0, Some(0));
    // Another start writes its log and reads everything.
    let server = start(dir.path(), &key);
    assert!(contains(&Client::open(&server.xds, None).get(SECRET, "token"), SECOND));
    let back = server.run(&["rollback", "default", "secret", "token", "--to", &first]);
    assert_eq!(back.code, 0, "{back:?}");
    assert!(contains(&Client::open(&server.xds, None).get(SECRET, "token"), FIRST));
    texts.push(format!("{}{}", back.out, back.err));
    drop(server);
    assert!(!files_with(dir.path(), PLAIN).is_empty(), "the search finds what is there");
    for value in [FIRST, SECOND] {
        assert_eq!(files_with(dir.path(), value), Vec::<PathBuf>::new(), "{value}");
        assert!(texts.iter().all(|text| !text.contains(value)), "{texts:?}");
    }
}

/// Attack 60: a replica without its key serves the rest. Secrets are unavailable and never absent, until the key arrives.
#[test]
fn replica_without_its_key_says_unavailable_and_never_absent() {
    let dir = tempfile::tempdir().unwrap();
    let key = key_file(dir.path(), "keys", &[1]);
    let server = start(dir.path(), &key);
    publish(&server, &secret("token", FIRST));
    publish(&server, &clusters(&["web"], "1s"));
    assert_eq!(server.terminate().0, Some(0));
    fs::rename(&key, dir.path().join("elsewhere")).unwrap();
    let server = start(dir.path(), &key);

    let mut all = Client::open(&server.xds, None);
    all.subscribe(SECRET, &["token"]);
    all.subscribe(CLUSTER, &[]);
    assert!(all.next(CLUSTER).is_ok(), "other types go on");
    let mut one = Client::open(&server.xds, Some(SECRET));
    one.subscribe(SECRET, &["token"]);
    let Err(Ended { code, message }) = one.next(SECRET) else { panic!("a secret was sent") };
    assert_eq!(code, tonic::Code::Unavailable, "{message}");
    assert!(message.contains("unavailable, not absent"), "{message}");
    let poll = format!(
        "{{\"node\":{{\"id\":\"n\"}},\"resource_names\":[\"token\"],\"type_url\":\"{SECRET}\"}}"
    );
    let (status, body) = http_post(&server.xds, "/v3/discovery:secrets", &poll);
    assert_eq!(status, 503, "{body}");
    let done = server.run(&["get", "secret"]);
    assert!(done.out.contains("token"), "a list shows no bodies: {done:?}");
    for args in [["get", "secret", "-o", "yaml"], ["describe", "secret", "token", "-o=json"]] {
        let done = server.run(&args);
        assert_ne!(done.code, 0, "{args:?}");
        assert!(done.err.contains("cannot open sealed resources"), "{args:?}: {done:?}");
    }
    let done = server.run_with_input(&["apply", "-f", "-"], &secret("other", SECOND));
    assert_ne!(done.code, 0);
    assert!(done.err.contains("cannot unwrap the keys"), "{done:?}");
    let status = server.json(&["keys", "status"], "");
    assert_eq!(status["unopened"], 1, "{status}");
    assert!(status["failure"].as_str().unwrap().contains("key file"), "{status}");
    assert!(http_get(&server.admin, "/metrics").1.contains("chancery_secrets_unopened 1"));

    // The stream that waits receives the secret. Nothing was removed before.
    fs::rename(dir.path().join("elsewhere"), &key).unwrap();
    assert!(contains(&all.next(SECRET).unwrap(), FIRST));
    assert_eq!(all.n_removed(), 0);
    publish(&server, &secret("other", SECOND));
    logged(&dir.path().join("data.log"), "keys of secrets are not available");
}

/// A replica without any source takes no secret as soon as its cluster seals, or if it must not store plain secrets.
#[test]
fn replica_without_a_source_stores_no_plain_secret_in_a_sealing_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let key = key_file(dir.path(), "keys", &[1]);
    let server = start(dir.path(), &key);
    publish(&server, &secret("token", FIRST));
    assert_eq!(server.terminate().0, Some(0));
    let refused = |server: &Server| {
        let done = server.run_with_input(&["apply", "-f", "-"], &secret("other", SECOND));
        assert_ne!(done.code, 0);
        assert!(done.err.contains("this replica has no key to seal it"), "{done:?}");
        publish(server, &clusters(&["web"], "1s"));
    };
    refused(&Server::start(&dir.path().join("data")));
    let required = [("CHANCERY_SECRETS_REQUIRE", "true")];
    refused(&Server::start_with(&dir.path().join("required"), &required));
    assert_eq!(files_with(&dir.path().join("data"), SECOND), Vec::<PathBuf>::new());
}

/// A backup has the secrets in sealed form. With the key, another cluster opens them.
#[test]
fn restored_cluster_opens_sealed_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let key = key_file(dir.path(), "keys", &[1]);
    let server = start(dir.path(), &key);
    publish(&server, &secret("token", FIRST));
    let backup = dir.path().join("backup").display().to_string();
    assert_eq!(server.run(&["backup", &backup]).code, 0);
    assert_eq!(server.terminate().0, Some(0));
    let restored = dir.path().join("restored");
    let mut restore = chancery();
    restore.args(["restore", &backup, "--data-dir"]).arg(restored.join("data"));
    let done = run(restore, "");
    assert_eq!(done.code, 0, "{done:?}");
    let server = start(&restored, &key);
    assert!(contains(&Client::open(&server.xds, None).get(SECRET, "token"), FIRST));
    let done = publish(&server, &secret("token", FIRST));
    assert!(done.out.contains("unchanged"), "{done:?}");
}
