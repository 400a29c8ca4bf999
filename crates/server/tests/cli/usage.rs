//! Commands that need no server: usage, configuration and help.

use std::fs;

use crate::support::{Server, chancery, run};

fn code_and_error(args: &[&str]) -> (i32, String) {
    let mut command = chancery();
    command.args(args).env("CHANCERY_SERVER", "127.0.0.1:1");
    let done = run(command, "");
    assert_eq!(done.out, "", "{args:?}");
    (done.code, done.err)
}

/// Exit code 1 means rejected or failed, 2 means wrong usage. The reason goes to standard error.
#[test]
fn exit_codes_distinguish_failure_from_wrong_usage() {
    for (args, code, text) in [
        (["apply"].as_slice(), 2, "--file"),
        (&["frobnicate"], 2, "unrecognized subcommand"),
        (&["get", "-o", "xml"], 2, "invalid value 'xml'"),
        (&["delete", "cds"], 2, "<NAME>"),
        (&["cluster", "add", "2"], 2, "<HOST:PORT>"),
        (&["serve", "--xds", "nowhere"], 2, "invalid value 'nowhere'"),
        (&[], 2, "Usage: chancery"),
        (&["get"], 1, "error: cannot reach the server at 127.0.0.1:1: connection refused"),
        (&["get", "--server", "not an address"], 1, "is not the address of a server"),
        (&["apply", "-f", "/nowhere/x.yaml"], 1, "error: /nowhere/x.yaml: No such file"),
        (
            &["serve", "--xds", "0.0.0.0:0"],
            1,
            "error: xds.address = \"0.0.0.0:0\" (from --xds): is not a loopback",
        ),
        (
            &["serve", "--config", "/nowhere/c.toml"],
            1,
            "error: cannot read the configuration file /nowhere/c.toml",
        ),
    ] {
        let (got, error) = code_and_error(args);
        assert_eq!(got, code, "{args:?}: {error}");
        assert!(error.contains(text), "{args:?}: {error}");
        assert!(code == 2 || error.lines().all(|line| line.starts_with("error: ")), "{error}");
    }
}

/// An empty scope is ambiguous: it may mean the default scope or all scopes.
#[test]
fn empty_scope_is_rejected() {
    for args in [
        &["blame", "cds", "a"][..],
        &["get"],
        &["describe", "cds", "a"],
        &["delete", "cds", "a"],
        &["apply", "-f", "-"],
        &["diff", "-f", "-"],
        &["sync", "--dir", "."],
        &["import", "-"],
        &["lint", "-f", "-"],
        &["export", "x"],
        &["history"],
        &["analyze"],
        &["lb-policy", "explain"],
        &["wait", "1"],
        &["watch"],
    ] {
        let (code, error) = code_and_error(&[args, &["--scope", ""]].concat());
        assert_eq!(code, 2, "{args:?}: {error}");
        assert!(error.contains("a value is required for '--scope <"), "{args:?}: {error}");
    }
}

/// The program checks the range of a time before it sends a request.
#[test]
fn time_outside_its_range_is_wrong_usage() {
    for (args, text) in [
        (
            &["freeze", "edge", "--for", "0s"][..],
            "'0s' for '--for <TIME>': must be from 1s to 720h",
        ),
        (&["freeze", "edge", "--for", "721h"], "must be from 1s to 720h"),
        (&["drain", "1", "--over", "2h"], "'2h' for '--over <TIME>': must be at most 1h"),
        (&["log", "level", "debug", "--for", "25h"], "must be from 1s to 24h"),
        (&["token", "create", "ci", "--valid-for", "0s"], "must be from 1s to 8784h"),
        (&["load", "set", "--interval", "99999999h"], "must be from 1s to 1h"),
        (&["apply", "-f", "-", "--wait=2h"], "must be at most 1h"),
        (&["sync", "--dir", ".", "--watch", "--interval", "2h"], "must be from 1s to 1h"),
    ] {
        let (code, error) = code_and_error(args);
        assert_eq!(code, 2, "{args:?}: {error}");
        assert!(error.contains(text), "{args:?}: {error}");
    }
}

/// One run reports the files that are missing, and the problems of those that are there.
#[test]
fn missing_files_are_reported_beside_the_problems_of_the_others() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    fs::write(path("bad.yaml"), "resources: [{}]\nscop: a\n").unwrap();
    let (one, bad, two) = (path("one.yaml"), path("bad.yaml"), path("two.yaml"));
    let (code, error) = code_and_error(&["apply", "-f", &one, "-f", &bad, "-f", &two]);
    let expected = format!(
        "error: {one}: No such file or directory (os error 2)\n\
         error: {two}: No such file or directory (os error 2)\n\
         error: {bad}:1:13: document 1: resources[0]: expected a resource with \"@type\", or {{\"resource\": …}}; \
         found neither key\n\
         error: {bad}:2:1: document 1: scop: unknown key; did you mean \"scope\"?\n"
    );
    assert_eq!((code, error), (1, expected));
}

/// The replica would silently use another directory.
#[test]
fn a_data_directory_that_is_not_text_is_refused() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

    let path = OsStr::from_bytes(b"/tmp/chancery-\xff");
    let mut by_flag = chancery();
    by_flag.args(["config", "check", "--data-dir"]).arg(path);
    let mut by_variable = chancery();
    by_variable.args(["config", "check"]).env("CHANCERY_STORE_DATA_DIR", path);
    for (command, what) in [(by_flag, "--data-dir"), (by_variable, "CHANCERY_STORE_DATA_DIR")] {
        let done = run(command, "");
        let expected =
            format!("error: {what} is \"/tmp/chancery-\\xFF\", which is not UTF-8 text\n");
        assert_eq!((done.code, done.err), (1, expected));
    }
}

/// A replica that was configured to join a cluster formed its own cluster, and nothing showed why.
#[test]
fn unknown_variable_is_reported() {
    for (name, meant) in [
        ("CHANCERY_JOIN", "CHANCERY_RAFT_JOIN"),
        ("CHANCERY_RAFTT_JOIN", "CHANCERY_RAFT_JOIN"),
        ("CHANCERY_REPLICA_ID", "CHANCERY_RAFT_REPLICA_ID"),
        ("CHANCERY_DATA_DIR", "CHANCERY_STORE_DATA_DIR"),
        ("chancery_raft_join", "CHANCERY_RAFT_JOIN"),
        ("CHANCERY_RAFT_JOINS", "CHANCERY_RAFT_JOIN"),
    ] {
        let mut command = chancery();
        command.args(["config", "check"]).env(name, "127.0.0.1:1").env("CHANCERY_SERVER", "h:1");
        let done = run(command, "");
        let expected = format!(
            "warning: the environment variable {name} sets no key; did you mean {meant}?\n\
             the configuration is valid\n"
        );
        assert_eq!((done.code, done.out), (0, expected));
    }
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let server = Server::start_with(&data, &[("CHANCERY_JOIN", "127.0.0.1:1")]);
    assert_eq!(server.terminate().0, Some(0));
    let log = fs::read_to_string(data.with_extension("log")).unwrap();
    assert!(log.contains("CHANCERY_JOIN sets no key; did you mean CHANCERY_RAFT_JOIN?"), "{log}");
}

#[test]
fn help_version_and_completions_exit_with_success() {
    for (args, text) in [
        (["--help"].as_slice(), "an xds control plane"),
        (&["apply", "--help"], "--prune"),
        (&["apply", "--help"], "[default: $user, or none if that is unset]"),
        (
            &["--help"],
            "3    only with --wait and `wait`: the write took effect or changed nothing, but it",
        ),
        (
            &["delete", "--help"],
            "with --wait: the write took effect or changed nothing, but it is unknown",
        ),
        (&["--version"], "chancery 0."),
        (&["completions", "bash"], "_chancery"),
    ] {
        let mut command = chancery();
        command.args(args);
        let done = run(command, "");
        assert_eq!((done.code, done.err.as_str()), (0, ""), "{args:?}");
        assert!(done.out.to_lowercase().contains(text), "{args:?}: {}", done.out);
    }
}

#[test]
fn version_without_a_server_shows_client_version() {
    let mut command = chancery();
    command.args(["version", "-o", "json", "--server", "127.0.0.1:1"]);
    let done = run(command, "");
    assert_eq!(done.code, 0, "{done:?}");
    let json: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(json["server_version"], serde_json::Value::Null);
}

#[test]
fn the_configuration_is_checked_and_printed_with_what_overrides_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("chancery.toml");
    fs::write(&file, "[xds]\naddress = \"127.0.0.1:7000\"\nack_timeout = \"9s\"\n").unwrap();
    let config = |args: &[&str]| {
        let mut command = chancery();
        command.args(["config"]).args(args).arg("--config").arg(&file);
        command.env("CHANCERY_XDS_ADDRESS", "127.0.0.1:7001");
        run(command, "")
    };
    let checked = config(&["check"]);
    assert_eq!((checked.code, checked.out.as_str()), (0, "the configuration is valid\n"));
    let printed = config(&["print"]);
    assert!(printed.out.contains("address = \"127.0.0.1:7001\"\n"), "{}", printed.out);
    assert!(printed.out.contains("ack_timeout = \"9s\"\n"), "{}", printed.out);
    let json: serde_json::Value =
        serde_json::from_str(&config(&["print", "-o", "json", "--admin", "127.0.0.1:7002"]).out)
            .unwrap();
    assert_eq!(json["admin"]["address"], "127.0.0.1:7002");
    assert_eq!(json["xds"]["address"], "127.0.0.1:7001");

    // The output of `config print` is a valid configuration.
    fs::write(&file, printed.out).unwrap();
    assert_eq!(config(&["check"]).code, 0);

    // `config check` reads the files that the configuration names, as a start does.
    fs::write(&file, "[raft]\ntls_cert = \"c.pem\"\ntls_key = \"k.pem\"\ntls_ca = \"none.pem\"\n")
        .unwrap();
    let missing = config(&["check"]);
    assert_eq!((missing.code, missing.out.as_str()), (1, ""), "{missing:?}");
    for key in ["tls_cert", "tls_key", "tls_ca"] {
        assert!(missing.err.contains(&format!("error: raft.{key} = ")), "{missing:?}");
    }

    // A file without which `serve` starts is a warning.
    fs::write(&file, "[secrets]\nkey_file = \"/none/keys\"\n").unwrap();
    let reduced = config(&["check"]);
    assert_eq!(reduced.code, 0, "{reduced:?}");
    assert!(reduced.out.starts_with("warning: secrets.key_file = \"/none/keys\" (from "));
    assert!(reduced.out.ends_with("the configuration is valid\n"), "{reduced:?}");

    fs::write(&file, "[xds]\nack_timeout = \"soon\"\n[log]\nformat = \"xml\"\n").unwrap();
    let refused = config(&["check"]);
    assert_eq!((refused.code, refused.out.as_str()), (1, ""));
    assert_eq!(refused.err.lines().count(), 2, "{}", refused.err);
    assert!(refused.err.contains("error: xds.ack_timeout = \"soon\" (from "), "{}", refused.err);
}
