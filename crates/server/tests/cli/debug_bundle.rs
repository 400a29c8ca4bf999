//! `chancery debug-bundle`: complete, and without secrets.

use std::{
    collections::BTreeMap,
    fs,
    io::Read as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
};

use chancery_model::types::SECRET;
use serde_json::Value;

use crate::support::{Done, Server, chancery, clusters, run};

const IN_RESOURCE: &str = "dd1ePlantedInAResource77aa";
const IN_TOKEN: &str = "dd2ePlantedInAToken77aa";
const IN_COMMAND: &str = "dd3ePlantedInACommand77aa";
const IN_URL: &str = "dd4ePlantedInAUrl77aa";

/// Returns the files of an archive.
fn files(path: &Path) -> BTreeMap<String, String> {
    let archive = flate2::read::GzDecoder::new(fs::File::open(path).unwrap());
    let mut archive = tar::Archive::new(archive);
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (name.strip_prefix("chancery-debug/").unwrap().to_owned(), text)
    });
    entries.collect()
}

fn json(files: &BTreeMap<String, String>, name: &str) -> Value {
    serde_json::from_str(&files[name]).unwrap_or_else(|_| panic!("{name}: {}", files[name]))
}

/// Publishes a secret, and writes a configuration with secrets. Returns the path of the configuration.
fn plant(dir: &Path, server: &Server) -> PathBuf {
    server.json(&["apply", "-f", "-"], &clusters(&["web"], "1s"));
    let secret = format!(
        "resources:\n- \"@type\": {SECRET}\n  name: token\n  generic_secret: {{secret: {{inline_string: {IN_RESOURCE}}}}}\n"
    );
    server.json(&["apply", "-f", "-"], &secret);
    let (config, data) = (dir.join("chancery.toml"), dir.join("data"));
    let text = format!(
        "[store]\ndata_dir = {data:?}\n[validation]\nexternal_command = ['check', '{IN_COMMAND}']\n[auth]\nissuers = \
         [{{name = 'a', url = 'https://u:a/{IN_URL}@idp', jwks_url = 'https://idp/keys?key={IN_URL}'}}]\n"
    );
    fs::write(&config, text).unwrap();
    config
}

fn bundle(server: &Server, config: &Path, to: &Path, environment: &[(&str, &str)]) -> Done {
    let mut command = chancery();
    command.args(["debug-bundle", "-o", "json", "--config"]).arg(config).arg(to);
    command.env("CHANCERY_SERVER", &server.admin).envs(environment.iter().copied());
    run(command, "")
}

#[test]
fn bundle_is_complete_and_has_no_planted_secret() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let server = Server::start(&path("data"));
    let config = plant(dir.path(), &server);
    let done = bundle(&server, &config, &path("whole.tar.gz"), &[]);
    assert_eq!(done.code, 0, "{done:?}");
    // A server that answers late on a busy machine is named.
    assert!(done.err.is_empty() || done.err.starts_with("note: waiting for "), "{done:?}");
    let manifest: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(manifest["complete"], true, "{manifest:#}");
    let whole = files(&path("whole.tar.gz"));
    assert_eq!(json(&whole, "manifest.json"), manifest);
    check_parts(&whole, &server);
    let mode = fs::metadata(path("whole.tar.gz")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let disk = json(&whole, "disk.json");
    let db = disk["files"].as_array().unwrap().iter().find(|file| file["name"] == "db").unwrap();
    assert!(db["bytes"].as_u64().unwrap() > 4096, "{db}");

    // An existing file is not replaced.
    let done = bundle(&server, &config, &path("whole.tar.gz"), &[]);
    assert_eq!(done.code, 1);
    assert!(done.err.ends_with("whole.tar.gz: the file exists already\n"), "{}", done.err);

    // The token of the caller is in no part, whether the server answers or not.
    let token = [("CHANCERY_TOKEN", IN_TOKEN)];
    let done = bundle(&server, &config, &path("token.tar.gz"), &token);
    assert_eq!(done.code, 0, "{done:?}");
    let with_token = files(&path("token.tar.gz"));
    assert!(with_token.contains_key("doctor.json"), "{with_token:?}");
    let all = whole.values().chain(with_token.values());
    for text in all.chain([&done.out, &done.err]) {
        for planted in [IN_RESOURCE, IN_TOKEN, IN_COMMAND, IN_URL] {
            assert!(!text.contains(planted), "{planted}: {text}");
        }
        assert!(!text.contains("\"web\""), "a name of a resource: {text}");
    }
    let refused = server.run(&["--server", &format!("http://u:{IN_TOKEN}@h:1"), "version"]);
    assert!(refused.code == 2 && !refused.err.contains(IN_TOKEN), "{refused:?}");
    assert!(refused.err.contains("the address of a server contains a user"), "{refused:?}");
    check_doctor(&config, &server);
    assert_eq!(server.terminate().0, Some(0));
}

fn check_parts(whole: &BTreeMap<String, String>, server: &Server) {
    let names: Vec<&str> = whole.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "client.json",
            "config.toml",
            "disk.json",
            "doctor.json",
            "limits.json",
            "manifest.json",
            "server-1/cluster.json",
            "server-1/healthz.txt",
            "server-1/history.json",
            "server-1/log.json",
            "server-1/metrics.txt",
            "server-1/nodes.json",
            "server-1/readyz.txt",
            "server-1/version.json",
        ]
    );
    assert_eq!(json(whole, "limits.json")["pid"], server.child.id());
    assert_eq!(json(whole, "server-1/cluster.json")["members"][0]["role"], "leader");
    assert_eq!(json(whole, "server-1/log.json")["filter"], "info");
    assert_eq!(json(whole, "server-1/nodes.json")["nodes"], 0);
    assert_eq!(json(whole, "server-1/history.json")["entries"].as_array().unwrap().len(), 2);
    assert!(json(whole, "disk.json")["bytes_available"].as_u64().unwrap() > 0);
    assert!(whole["server-1/readyz.txt"].starts_with("# HTTP status 200\n"), "{whole:?}");
    assert!(whole["server-1/metrics.txt"].contains("chancery_store_revision"), "{whole:?}");
    let config = &whole["config.toml"];
    assert!(config.contains("[\"check\", \"[redacted]\"]"), "{config}");
    assert!(config.contains("https://idp/keys?[redacted]"), "{config}");
    assert!(config.contains("https://[redacted]@idp"), "{config}");
}

/// `doctor` knows the configuration and the process, too.
fn check_doctor(config: &Path, server: &Server) {
    let mut command = chancery();
    command.args(["doctor", "-o", "json", "--config"]).arg(config);
    command.env("CHANCERY_SERVER", &server.admin);
    let done = run(command, "");
    let report: Value = serde_json::from_str(&done.out).unwrap();
    let of = |name: &str| {
        let mut checks = report["checks"].as_array().unwrap().iter();
        let check = checks.find(|check| check["name"] == name).unwrap();
        let text = |key: &str| check[key].as_str().unwrap().to_owned();
        (text("status"), text("detail"))
    };
    let (status, detail) = of("config");
    assert_eq!(status, "warning", "{detail}");
    let command = "external_command = [\"check\", \"[redacted]\"] (from ";
    assert!(detail.contains(command) && !done.out.contains(IN_COMMAND), "{detail}");
    assert!(detail.contains("is not a file, nor a program in PATH"), "{detail}");
    // Whether the limit of open files suffices depends on the machine.
    assert_ne!(of("limits").0, "unknown");
}

#[test]
fn bundle_says_which_parts_are_missing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("alone.tar.gz");
    let mut command = chancery();
    command.args(["debug-bundle", "--server", "127.0.0.1:1"]).arg(&path);
    let done = run(command, "");
    assert_eq!(done.code, 0, "{done:?}");
    for line in [
        "config.toml is missing: --config FILE was not given\n",
        "server-1/metrics.txt is missing: cannot reach the server",
    ] {
        assert!(done.out.contains(line), "{done:?}");
    }
    let alone = files(&path);
    let mut command = chancery();
    let out = fs::File::create(dir.path().join("out")).unwrap();
    command.args(["debug-bundle", "-", "--server", "127.0.0.1:1"]).current_dir(dir.path());
    let done = command.stdout(out).stderr(Stdio::piped()).output().unwrap();
    assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
    assert!(files(&dir.path().join("out")).keys().eq(alone.keys()));
    assert!(!dir.path().join("-").exists());
    let manifest = json(&alone, "manifest.json");
    assert_eq!(manifest["complete"], false);
    let parts = manifest["parts"].as_array().unwrap();
    let cluster = parts.iter().find(|part| part["part"] == "server-1/cluster.json").unwrap();
    assert_eq!(cluster["included"], false);
    assert!(alone.contains_key("client.json") && !alone.contains_key("server-1/cluster.json"));
}
