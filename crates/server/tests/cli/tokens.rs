//! The token that commands send.

use std::{
    fs,
    process::{Command, Stdio},
    time::Instant,
};

use crate::{
    recorder::Recorder,
    support::{DEADLINE, Done, chancery, run},
};

/// A text that must not appear anywhere.
const TOKEN: &str = "hush-hush";

fn command(server: &str, args: &[&str]) -> Command {
    let mut command = chancery();
    command.args(["--server", server]).args(args);
    command
}

/// Runs a command that fails. Checks that its output does not contain the token.
fn fails(mut command: Command, code: i32) -> Done {
    let done = run(
        {
            command.env("RUST_LOG", "trace");
            command
        },
        "resources: []",
    );
    assert_eq!(done.code, code, "{done:?}");
    assert!(!done.err.contains(TOKEN) && !done.out.contains(TOKEN), "{done:?}");
    done
}

#[test]
fn each_request_has_the_token() {
    let recorder = Recorder::start();
    let one = recorder.address.to_string();
    let both = format!("{one},{one}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    fs::write(&file, format!("{TOKEN}\n")).unwrap();
    let by_flag = ["--token-file", file.to_str().unwrap()];
    for (server, args) in [
        (&one, ["get"].as_slice()),
        (&both, &["nodes"]),
        (&one, &["apply", "-f", "-"]),
        (&one, &["load"]),
        (&one, &["mcp", "status"]),
        (&one, &["backup", "-"]),
        (&one, &["doctor"]),
        (&one, &["conformance", "--xds", &one, "--case", "delta"]),
    ] {
        for variable in
            [None, Some(("CHANCERY_TOKEN", TOKEN)), Some(("CHANCERY_TOKEN_FILE", by_flag[1]))]
        {
            let before = recorder.requests().len();
            let mut command = command(server, args);
            match variable {
                None => command.args(by_flag),
                Some((name, value)) => command.env(name, value),
            };
            fails(command, 1);
            let requests = recorder.requests()[before..].to_vec();
            let expected = Some(format!("Bearer {TOKEN}"));
            assert!(!requests.is_empty(), "{args:?}");
            assert!(
                requests.iter().all(|(_, header)| *header == expected),
                "{args:?}: {requests:?}"
            );
        }
    }
    let before = recorder.requests().len();
    fails(command(&one, &["get"]), 1);
    assert_eq!(recorder.requests()[before].1, None);
}

/// Attack 65: a token is sent without TLS to loopback addresses only. 0.0.0.0 leads to the loopback interface, but is not
/// one of its addresses.
#[test]
fn token_does_not_leave_the_machine_without_tls() {
    let recorder = Recorder::start();
    let port = recorder.address.port();
    let remote = format!("0.0.0.0:{port}");
    fails(command(&remote, &["get"]), 1);
    assert_eq!(recorder.n_connections(), 1, "without a token, the command connects");
    let dir = tempfile::tempdir().unwrap();
    let files = dir.path().join("files").display().to_string();
    let mirror = ["mirror", "--node", "n", "--once", "--dir", &files, "--xds", &remote];
    let in_list = format!("127.0.0.1:1,{remote}");
    for (server, args) in [
        (remote.as_str(), ["get"].as_slice()),
        (&in_list, &["get"]),
        (&remote, &["apply", "-f", "-"]),
        ("http://192.0.2.1:1", &["get"]),
        ("192.0.2.1:1", &["doctor"]),
        ("127.0.0.1:1", &mirror),
    ] {
        let start = Instant::now();
        let mut command = command(server, args);
        command.env("CHANCERY_TOKEN", TOKEN);
        let done = fails(command, 1);
        let said = format!("{}{}", done.out, done.err);
        assert!(said.contains("the token is not sent to "), "{args:?}: {done:?}");
        assert!(start.elapsed() < DEADLINE);
    }
    assert_eq!(recorder.n_connections(), 1);
    for local in [format!("localhost:{port}"), format!("http://127.0.0.1:{port}")] {
        let mut command = command(&local, &["get"]);
        fails(
            {
                command.env("CHANCERY_TOKEN", TOKEN);
                command
            },
            1,
        );
    }
    let tokens: Vec<_> = recorder.requests().into_iter().filter_map(|(_, header)| header).collect();
    assert_eq!(tokens, vec![format!("Bearer {TOKEN}"); 2]);
}

#[test]
fn mirror_sends_the_newest_token() {
    let recorder = Recorder::start();
    let dir = tempfile::tempdir().unwrap();
    let place = |token: &str| {
        let new = dir.path().join("new");
        fs::write(&new, token).unwrap();
        fs::rename(&new, dir.path().join("token")).unwrap();
    };
    place("first\n");
    let mut command = chancery();
    command.args(["mirror", "--node", "n", "--xds", &recorder.address.to_string(), "--dir"]);
    command.arg(dir.path().join("files")).arg("--token-file").arg(dir.path().join("token"));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    recorder.wait_for("first");
    place("second\n");
    recorder.wait_for("second");
    child.kill().unwrap();
    child.wait().unwrap();
    let paths: Vec<String> = recorder.requests().into_iter().map(|(path, _)| path).collect();
    assert!(paths.iter().all(|path| path.contains("AggregatedDiscoveryService")), "{paths:?}");
}

#[test]
fn unusable_token_is_refused_before_a_connection() {
    let recorder = Recorder::start();
    let server = recorder.address.to_string();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    let shown = file.display().to_string();
    for (content, expected) in [
        (None, format!("cannot read the token file {shown}: No such file")),
        (Some(String::new()), format!("the token file {shown} is empty; ")),
        (
            Some(format!("Bearer {TOKEN}")),
            format!("the token file {shown} has white space between"),
        ),
        (
            Some(TOKEN.repeat(2000)),
            format!("cannot read the token file {shown}: it has more than 16384"),
        ),
    ] {
        if let Some(content) = content {
            fs::write(&file, content).unwrap();
        }
        let done = fails(command(&server, &["get", "--token-file", &shown]), 1);
        assert!(done.err.starts_with(&format!("error: {expected}")), "{done:?}");
    }
    let mut empty = command(&server, &["get"]);
    empty.env("CHANCERY_TOKEN", "");
    let done = fails(empty, 1);
    assert!(done.err.starts_with("error: CHANCERY_TOKEN is empty; "), "{done:?}");
    let mut both = command(&server, &["get"]);
    both.env("CHANCERY_TOKEN", TOKEN).env("CHANCERY_TOKEN_FILE", &shown);
    let done = fails(both, 2);
    assert!(done.err.contains("CHANCERY_TOKEN and CHANCERY_TOKEN_FILE are both set"), "{done:?}");
    let done = fails(command(&server, &["get", "--token", TOKEN]), 2);
    assert!(done.err.contains("unexpected argument '--token'"), "{done:?}");
    assert_eq!(recorder.n_connections(), 0);
}
