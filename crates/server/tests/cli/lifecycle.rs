//! Start, ready line, restart and end of a replica.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    os::unix::process::ExitStatusExt,
};

use rustix::process::Signal;
use serde_json::json;

use crate::support::{Server, chancery, clusters, eventually, http_get, logged, run, signal};

/// The replica prints one line when it is ready, exits with 0 on SIGTERM, and has the same state
/// after a restart.
#[test]
fn the_state_survives_a_restart_and_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let server = Server::start(&data);
    let applied = server.json(&["apply", "-f", "-"], &clusters(&["a", "b"], "1s"));
    assert_eq!(applied["revision"], 1);
    let before = server.json(&["get"], "");
    let (code, rest) = server.terminate();
    assert_eq!((code, rest.as_str()), (Some(0), ""), "only one line");

    let mut server = Server::start(&data);
    assert_eq!(server.json(&["get"], ""), before);
    server.json(&["apply", "-f", "-"], &clusters(&["c"], "1s"));
    let before = server.json(&["get"], "");
    signal(&server.child, Signal::KILL);
    server.child.wait().unwrap();

    let server = Server::start(&data);
    assert_eq!(server.json(&["get"], ""), before, "acknowledged writes survive kill -9");
    assert_eq!(before["revision"], 2);
    assert_eq!(server.terminate().0, Some(0));
}

#[test]
fn failed_start_reports_the_reason_and_exits_with_1() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let server = Server::start(&data);
    let serve = |data: &std::path::Path, xds: &str| {
        let mut command = chancery();
        command.args(["serve", "--admin", "127.0.0.1:0", "--xds", xds, "--data-dir"]).arg(data);
        command.env("CHANCERY_LOG", "error");
        run(command, "")
    };
    let second = serve(&data, "127.0.0.1:0");
    assert_eq!((second.code, second.out.as_str()), (1, ""));
    assert!(second.err.contains("is in use by"), "{}", second.err);

    let taken = serve(&directory.path().join("other"), &server.xds);
    assert_eq!((taken.code, taken.out.as_str()), (1, ""));
    let expected = format!("error: cannot listen on {} (xds.address): ", server.xds);
    assert!(taken.err.contains(&expected), "{}", taken.err);

    let foreign = directory.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("letter.txt"), "not yours").unwrap();
    let refused = serve(&foreign, "127.0.0.1:0");
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("letter.txt"), "{}", refused.err);
    assert_eq!(server.terminate().0, Some(0));
}

#[test]
fn shutdown_takes_bounded_time_despite_open_connections() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let mut server = Server::start(&data);
    // Two connections without data, one with half a request, and one that stays open after its
    // request.
    let silent = TcpStream::connect(&server.xds).unwrap();
    let silent_admin = TcpStream::connect(&server.admin).unwrap();
    let mut half = TcpStream::connect(&server.admin).unwrap();
    half.write_all(b"POST /v1/apply HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\nres")
        .unwrap();
    let mut idle = TcpStream::connect(&server.admin).unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut first = [0; 15];
    idle.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");

    signal(&server.child, Signal::INT);
    let status = eventually("the replica ends", || server.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
    drop((silent, silent_admin, half, idle));
}

/// The first write after a start took half a second longer than the second one.
#[test]
fn descriptors_are_loaded_before_the_ready_line() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let server = Server::start_with(&data, &[("CHANCERY_LOG", "info,chancery=debug")]);
    // The log is complete when the process has ended.
    assert_eq!(server.terminate().0, Some(0));
    let log = fs::read_to_string(data.with_extension("log")).unwrap();
    let mut lines = log.lines();
    let line = lines.find(|line| line.contains("descriptors are read")).expect(&log);
    assert!(line.contains("is_warm=true"), "{line}");
    assert!(lines.any(|line| line.contains(" ready xds=")), "{log}");

    let server = Server::start(&data);
    assert_eq!(server.terminate().0, Some(0));
    let log = fs::read_to_string(data.with_extension("log")).unwrap();
    assert!(!log.contains("openraft"), "messages of openraft are not logged: {log}");
}

#[test]
fn admin_port_answers_http_and_json_log_is_optional() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let server = Server::start(&data);
    let status = fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    // Kernels without huge pages have no such line.
    let huge = status.lines().find_map(|line| line.strip_prefix("THP_enabled:"));
    assert!(huge.is_none_or(|enabled| enabled.trim() == "0"), "{status}");
    let get = |path: &str| http_get(&server.admin, path);
    assert_eq!(get("/readyz").0, 200, "ready");
    assert!(get("/metrics").1.contains("chancery_build_info{version="), "metrics");
    assert!(get("/v1/cluster").1.contains("\"ready\":true"), "cluster");
    assert_eq!(get("/v1/nodes/a%2Fb").0, 404, "an id with a slash");
    assert_eq!(server.terminate().0, Some(0));

    fs::write(data.join("IDENTITY"), "no identity").unwrap();
    let mut command = chancery();
    command.args(["serve", "--xds", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data-dir"]);
    command.arg(&data).env("CHANCERY_LOG_FORMAT", "json");
    let failed = run(command, "");
    assert_eq!(failed.code, 1);
    let (log, errors): (Vec<&str>, Vec<&str>) =
        failed.err.lines().partition(|line| line.starts_with('{'));
    let first: serde_json::Value = serde_json::from_str(log[0]).unwrap();
    assert_eq!((&first["level"], &first["message"]), (&json!("INFO"), &json!("starting")));
    assert!(errors[0].starts_with("error: ") && errors.len() == 1, "{errors:?}");
}

/// SIGHUP does not end a replica. After the first signal that does, the replica waits for requests to end; after the
/// second one it does not.
#[test]
fn second_signal_ends_the_process_immediately() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let mut server = Server::start(&data);
    let mut half = TcpStream::connect(&server.admin).unwrap();
    half.write_all(b"POST /v1/apply HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\nres")
        .unwrap();
    let logs = |text: &str| logged(&data.with_extension("log"), text);
    signal(&server.child, Signal::HUP);
    logs("a replica reads changed files without a signal; other settings need a restart");
    // The request on `half` is being read before the signal arrives, because a later request on the
    // same port is answered.
    server.json(&["get"], "");
    signal(&server.child, Signal::TERM);
    logs("draining");
    signal(&server.child, Signal::TERM);
    let status = server.child.wait().unwrap();
    assert_eq!(status.signal(), Some(9), "{status:?}");

    // Acknowledged writes are durable, and the directory is not locked.
    let server = Server::start(&data);
    assert_eq!(server.json(&["get"], "")["revision"], 0);
    assert_eq!(server.terminate().0, Some(0));
    drop(half);
}
