//! The audit log of a replica, and the commands that check and show it.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::{fs::PermissionsExt as _, net::UnixDatagram},
    path::Path,
};

use serde_json::Value;

use crate::support::{DEADLINE, Done, Server, chancery, clusters, http_get, http_post, run};

/// Runs a command that connects to no server.
fn local(args: &[&str]) -> Done {
    let mut command = chancery();
    command.args(args);
    run(command, "")
}

fn records(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the records as `verb decision reason`.
fn decisions(records: &[Value]) -> Vec<String> {
    let word = |record: &Value, key: &str| record[key].as_str().unwrap_or_default().to_owned();
    let show = |record: &Value| {
        let words = ["verb", "decision", "reason"].map(|key| word(record, key));
        words.join(" ").trim_end().to_owned()
    };
    records.iter().map(show).collect()
}

/// Sends a request to the admin port.
fn request(server: &Server, head: &str) -> String {
    let mut stream = TcpStream::connect(&server.admin).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    write!(stream, "{head}connection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Attacks 44, 50 and 52: the log has writes and refusals with their source, and no text of a client can forge a
/// record.
#[test]
fn audit_log_has_start_writes_refusals_and_stop() {
    let dir = tempfile::tempdir().unwrap();
    let (path, policy) = (dir.path().join("audit.jsonl"), dir.path().join("policy.toml"));
    fs::write(&policy, "default = \"request\"\n").unwrap();
    let sink = format!("file:{}", path.display());
    let environment = [
        ("CHANCERY_AUDIT_SINKS", sink.as_str()),
        ("CHANCERY_AUDIT_POLICY_FILE", policy.to_str().unwrap()),
    ];
    let server = Server::start_with(&dir.path().join("data"), &environment);
    let forged = "x\r\n{\"v\":1,\"seq\":2}\u{1b}[2J";
    let done = server.run_with_input(
        &["apply", "-f", "-", "--author", forged, "--reason", "for the audit"],
        &clusters(&["web"], "1s"),
    );
    assert_eq!(done.code, 0, "{done:?}");
    let refused = server.run_with_input(&["apply", "-f", "-"], &clusters(&["web"], "soon"));
    assert_eq!(refused.code, 1, "{refused:?}");
    assert_eq!(server.run(&["delete", "cds", "none"]).code, 1);
    let answer = request(
        &server,
        "GET /v1/history HTTP/1.1\r\nhost: evil.example\r\nuser-agent: b\u{e9}d\r\n",
    );
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    let backup = dir.path().join("backup");
    assert_eq!(server.run(&["backup", backup.to_str().unwrap()]).code, 0);
    let (_, metrics) = http_get(&server.admin, "/metrics");
    let sample = "chancery_audit_records_total{sink=\"file\",result=\"written\"}";
    assert!(metrics.contains(sample), "{metrics}");
    assert_eq!(server.terminate().0, Some(0));

    let records = records(&path);
    let expected = [
        "start allowed",
        "apply allowed",
        "apply refused input",
        "delete refused not_found",
        "request refused foreign_host",
        "backup allowed",
        "stop allowed",
    ];
    assert_eq!(decisions(&records), expected);
    let apply = &records[1];
    assert_eq!(
        (&apply["details"]["author"], &apply["details"]["reason"]),
        (&forged.into(), &"for the audit".into())
    );
    assert_eq!((&apply["details"]["changed"], &apply["port"]), (&1.into(), &"admin".into()));
    assert!(apply["source"].as_str().unwrap().starts_with("127.0.0.1:"), "{apply}");
    assert!(!apply["request_id"].as_str().unwrap().is_empty(), "{apply}");
    assert_eq!((&records[3]["type"], &records[3]["name"]), (&"cds".into(), &"none".into()));
    assert_eq!(records[4]["details"]["path"], "/v1/history");
    assert_eq!(records[4]["user_agent"], "b\u{e9}d");
    let text = fs::read_to_string(&path).unwrap();
    assert!(!text.contains(['\r', '\u{1b}']), "{text}");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

/// Attack 58: `audit verify` names an edited record and a cut end.
#[test]
fn changed_audit_log_is_found_by_verify() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    let sink = format!("file:{}", path.display());
    // The second start continues the chain of the first one.
    for _ in 0..2 {
        let environment = [("CHANCERY_AUDIT_SINKS", sink.as_str())];
        let server = Server::start_with(&dir.path().join("data"), &environment);
        assert_eq!(server.run_with_input(&["apply", "-f", "-"], &clusters(&["web"], "1s")).code, 0);
        assert_eq!(server.terminate().0, Some(0));
    }
    let file = path.to_str().unwrap();
    let done = local(&["audit", "verify", file, "-o", "json"]);
    assert_eq!(done.code, 0, "{done:?}");
    let report: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((&report["valid"], &report["records"]), (&true.into(), &6.into()));
    let head = format!("6:{}", report["head"]["hash"].as_str().unwrap());
    let done = local(&["audit", "verify", file, "--expect-head", &head]);
    assert_eq!(done.out, format!("6 valid records in 1 file: 1 to 6\nhead {head}\n"));
    let done = local(&["audit", "tail", file, "-n", "1"]);
    assert!(done.out.contains(" internal stop allowed by replica"), "{done:?}");

    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen("apply", "reply", 1)).unwrap();
    let done = local(&["audit", "verify", file, "-o", "json"]);
    assert_eq!(done.code, 1);
    let report: Value = serde_json::from_str(&done.out).unwrap();
    let problem = &report["problem"];
    assert_eq!(
        (&problem["kind"], &problem["seq"], &problem["line"]),
        (&"altered".into(), &2.into(), &2.into())
    );
    assert!(done.err.starts_with(&format!("error: {file}:2: record 2 has the hash ")), "{done:?}");

    let cut: String = text.lines().take(5).map(|line| format!("{line}\n")).collect();
    fs::write(&path, cut).unwrap();
    assert_eq!(local(&["audit", "verify", file]).code, 0);
    let done = local(&["audit", "verify", file, "--expect-head", &head]);
    assert!(
        done.code == 1 && done.err.contains("record 6 is missing: the last record is 5"),
        "{done:?}"
    );
}

/// The server holds the standard output only while it writes a line.
#[test]
fn standard_output_takes_records_while_the_server_runs() {
    let dir = tempfile::tempdir().unwrap();
    let environment = [("CHANCERY_AUDIT_SINKS", "stdout"), ("CHANCERY_AUDIT_MODE", "strict")];
    let server = Server::start_with(&dir.path().join("data"), &environment);
    let done = server.run_with_input(&["apply", "-f", "-"], &clusters(&["a"], "1s"));
    assert_eq!(done.code, 0, "{done:?}");
    let (code, rest) = server.terminate();
    let is_record = |line: &&str| line.starts_with('{');
    let records: Vec<Value> =
        rest.lines().filter(is_record).map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(code, Some(0));
    assert_eq!(decisions(&records), ["apply pending", "apply allowed", "stop allowed"]);
}

#[test]
fn strict_audit_log_refuses_writes_while_no_sink_takes_records() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("log");
    let sink = format!("syslog:{}", socket.display());
    let strict = |timeout| {
        [
            ("CHANCERY_AUDIT_SINKS", sink.as_str()),
            ("CHANCERY_AUDIT_MODE", "strict"),
            ("CHANCERY_AUDIT_STRICT_TIMEOUT", timeout),
        ]
    };
    let mut command = chancery();
    command.args(["serve", "--data-dir"]).arg(dir.path().join("other")).envs(strict("500ms"));
    let done = run(command, "");
    let reason = "no sink of the audit log took the record within 500ms (audit.strict_timeout)";
    assert!(done.code == 1 && done.err.contains(reason), "{done:?}");

    let daemon = UnixDatagram::bind(&socket).unwrap();
    daemon.set_read_timeout(Some(DEADLINE)).unwrap();
    let take = |daemon: &UnixDatagram| {
        let mut message = vec![0; 64 << 10];
        let n = daemon.recv(&mut message).unwrap();
        let text = String::from_utf8(message[..n].to_vec()).unwrap();
        serde_json::from_str::<Value>(text.splitn(8, ' ').last().unwrap()).unwrap()
    };
    // The strict timeout must exceed the duration of a successful write on a slow machine.
    let server = Server::start_with(&dir.path().join("data"), &strict("2s"));
    let apply = |name| server.run_with_input(&["apply", "-f", "-"], &clusters(&[name], "1s"));
    assert_eq!(apply("first").code, 0);
    let secret = "resources:\n- \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret\n  \
                  name: ca\n  generic_secret: {secret: {inline_string: x}}\n";
    let done = server.run_with_input(&["apply", "-f", "-", "--validation", "off"], secret);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(
        decisions(&[take(&daemon), take(&daemon), take(&daemon), take(&daemon), take(&daemon)]),
        ["start allowed", "apply pending", "apply allowed", "apply pending", "apply allowed"]
    );
    drop(daemon);
    fs::remove_file(&socket).unwrap();
    let done = apply("second");
    assert!(done.code == 1 && done.err.contains("nothing has been written: no sink"), "{done:?}");
    let names = server.run(&["get", "cds"]).out;
    assert!(names.contains("first") && !names.contains("second"), "{names}");
    let done = server.run(&["get", "secret"]);
    assert!(done.code == 1 && done.err.contains("no secret was read: no sink"), "{done:?}");

    let daemon = UnixDatagram::bind(&socket).unwrap();
    daemon.set_read_timeout(Some(DEADLINE)).unwrap();
    assert_eq!(apply("third").code, 0);
    assert_eq!(
        decisions(&std::array::from_fn::<_, 6, _>(|_| take(&daemon))),
        [
            "apply pending",
            "apply refused not_audited",
            "secrets.read pending",
            "secrets.read refused not_audited",
            "apply pending",
            "apply allowed",
        ]
    );
}

#[test]
fn failed_handshake_is_recorded_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let certs = dir.path().join("certs");
    assert_eq!(local(&["dev", "certs", "--dir", certs.to_str().unwrap()]).code, 0);
    let path = dir.path().join("audit.jsonl");
    let mut command = chancery();
    command.args(["serve", "--config"]).arg(certs.join("chancery.toml"));
    command.args(["--xds", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--raft", "127.0.0.1:0"]);
    command.arg("--data-dir").arg(dir.path().join("data"));
    command.env("CHANCERY_STORE_FREE_BYTES_MIN", "64MiB");
    command.env("CHANCERY_AUDIT_SINKS", format!("file:{}", path.display()));
    let server = Server::spawn(command);
    for address in [&server.xds, &server.admin] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        drop(stream.read_to_end(&mut Vec::new()));
    }
    assert_eq!(server.terminate().0, Some(0));
    let records = records(&path);
    let failed: Vec<&Value> =
        records.iter().filter(|record| record["verb"] == "handshake").collect();
    let ports: BTreeSet<&str> =
        failed.iter().map(|record| record["port"].as_str().unwrap()).collect();
    assert_eq!(ports, BTreeSet::from(["admin", "xds"]), "{records:?}");
    assert_eq!(failed.len(), 2, "{records:?}");
    for record in failed {
        assert_eq!(
            (&record["decision"], &record["reason"]),
            (&"refused".into(), &"protocol".into())
        );
        assert!(record["source"].as_str().unwrap().starts_with("127.0.0.1:"), "{record}");
    }
}

#[test]
fn invalid_policy_is_reported_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("policy.toml");
    fs::write(&policy, "[[rules]]\nlevel = \"none\"\nusers = [\"a\"]\n").unwrap();
    let mut command = chancery();
    command.args(["config", "check"]).env("CHANCERY_AUDIT_POLICY_FILE", &policy);
    let done = run(command, "");
    let place = format!("{}:3: unknown field `users`", policy.display());
    assert!(done.code == 1 && done.err.contains(&place), "{done:?}");
}

/// The log has refused clients, and secrets that are read or sent, without a secret.
#[test]
fn refused_clients_and_secrets_are_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let (path, socket) = (dir.path().join("audit.jsonl"), dir.path().join("admin.sock"));
    let (sink, socket) = (format!("file:{}", path.display()), socket.display().to_string());
    let key = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlYw==";
    let secret = serde_json::json!({"resources": [{
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
        "name": "tickets",
        "session_ticket_keys": {"keys": [{"inline_bytes": key}]},
    }]});
    let poll = r#"{"node": {"id": "edge-1", "cluster": "edge"}, "resource_names": ["tickets"]}"#;
    let data = dir.path().join("data");
    let server = Server::start_with(&data, &[("CHANCERY_AUDIT_SINKS", sink.as_str())]);
    let done =
        server.run_with_input(&["apply", "-f", "-", "--validation", "off"], &secret.to_string());
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(server.run(&["get", "secret"]).code, 0);
    let (status, body) = http_post(&server.xds, "/v3/discovery:secrets", poll);
    assert!(status == 200 && body.contains(key), "{status} {body}");
    server.terminate();

    let environment = [
        ("CHANCERY_AUDIT_SINKS", sink.as_str()),
        ("CHANCERY_ADMIN_SOCKET", socket.as_str()),
        ("CHANCERY_ACCESS_ADMINS", "unix:0"),
    ];
    let server = Server::start_with(&data, &environment);
    let rule = serde_json::json!({"access": [
        {"name": "r", "identity": "anonymous", "read": ["other"]},
    ]});
    for _ in 0..3 {
        assert_eq!(http_post(&server.xds, "/v3/discovery:secrets", poll).0, 401);
    }
    let address = format!("unix:{socket}");
    let done =
        server.run_with_input(&["--server", &address, "apply", "-f", "-"], &rule.to_string());
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(http_post(&server.xds, "/v3/discovery:secrets", poll).0, 403);
    server.terminate();

    let records = records(&path);
    let expected = [
        "start allowed",
        "apply allowed",
        "secrets.read allowed",
        "secrets.send allowed",
        "stop allowed",
        "start allowed",
        "authenticate refused no_credential",
        "apply allowed",
        "stream refused scope",
        "stop allowed",
    ];
    assert_eq!(decisions(&records), expected, "a client causes one record of a kind per minute");
    for (at, port) in [(2, "admin"), (3, "xds"), (6, "xds"), (8, "xds")] {
        assert_eq!(records[at]["port"], port);
        assert!(records[at]["source"].as_str().unwrap().starts_with("127.0.0.1:"), "{at}");
    }
    assert_eq!((&records[3]["name"], &records[8]["name"]), (&"edge-1".into(), &"edge-1".into()));
    assert!(!fs::read_to_string(&path).unwrap().contains(key));
}
