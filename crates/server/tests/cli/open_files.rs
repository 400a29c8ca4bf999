//! Replicas that may open few files, and those whose disk fails for a moment.

use std::{
    fs,
    io::Write,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::Instant,
};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};
use tokio::{net::TcpSocket, runtime::Runtime};

use crate::support::{DEADLINE, Server, clusters, http_get, logged, run};

/// More connections to each port than the replica may open files.
const HELD: usize = 300;

/// Lets this process open as many files as possible.
fn raise_own_limit() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

/// Connects from another address than the other clients of these tests.
fn connect_from(runtime: &Runtime, host: u8, to: SocketAddr) -> TcpStream {
    let connected = runtime.block_on(async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::new(127, 0, 0, host), 0).into()).unwrap();
        socket.connect(to).await.unwrap().into_std().unwrap()
    });
    connected.set_nonblocking(false).unwrap();
    connected
}

fn write(server: &Server, n: usize) {
    let written =
        server.run_with_input(&["apply", "-f", "-"], &clusters(&[&format!("c{n}")], "1s"));
    assert_eq!(written.code, 0, "{written:?}");
}

fn open_files(server: &Server) -> usize {
    fs::read_dir(format!("/proc/{}/fd", server.child.id())).unwrap().count()
}

/// Attack 69: idle connections to all ports do not take the files that the store and the other ports need. The store
/// failed for good when it could open no file.
#[test]
fn replica_with_few_files_survives_idle_connections_to_all_ports() {
    raise_own_limit();
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let server = Server::start_by(&["sh", "-c", "ulimit -n 256 && exec \"$0\" \"$@\""], &data, &[]);
    let status = server.json(&["cluster", "status"], "");
    let raft = status["members"][0]["address"].as_str().unwrap().to_owned();
    logged(&data.with_extension("log"), "the ports accept fewer connections");
    let greetings: [&[u8]; 4] = [
        b"",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
        b"GET /healthz HTTP/1.1\r\nhost:",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let mut held = Vec::new();
    for (host, port) in (2..).zip([&server.xds, &server.admin, &raft]) {
        let to = port.parse().unwrap();
        for n in 0..HELD {
            let mut stream = connect_from(&runtime, host, to);
            // The replica may have closed the connection already.
            drop(stream.write_all(greetings[n % greetings.len()]));
            held.push(stream);
            if n % 100 == 0 {
                write(&server, n);
            }
            let n_open = open_files(&server);
            assert!(n_open < 250, "{n_open} files are open after {n} connections to {port}");
        }
        for path in ["/healthz", "/readyz"] {
            assert_eq!(http_get(&server.admin, path).0, 200, "{path} while {port} is flooded");
        }
    }
    write(&server, HELD);
    let status = server.json(&["cluster", "status"], "");
    assert_eq!(status["members"][0]["failure"], "");
    let log = fs::read_to_string(data.with_extension("log")).unwrap();
    assert!(!log.contains("Too many open files"), "{log}");
    drop(held);
    assert_eq!(server.terminate().0, Some(0));
}

#[test]
fn start_with_too_few_files_is_refused_with_both_values() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -n 100 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_chancery")]);
    command.env_clear().args(["serve", "--xds", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.args(["--raft", "127.0.0.1:0", "--data-dir"]).arg(directory.path().join("data"));
    let refused = run(command, "");
    assert_eq!(refused.code, 1, "{refused:?}");
    let reason = "error: the limit of open files is 100, but a replica with this configuration needs at least 204, and \
                  104072 for all connections; raise it with ulimit -n or LimitNOFILE";
    assert!(refused.err.contains(reason), "{refused:?}");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -n 100 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_chancery")]);
    command.env_clear().args(["config", "check"]);
    let checked = run(command, "");
    assert!(checked.code == 0 && checked.out.contains("limit of open files is 100"), "{checked:?}");
}

/// Sets the maximum size of files that the replica may write. `None` permits all sizes.
fn limit_file_size(server: &Server, bytes: Option<u64>) {
    let limit = Rlimit { current: bytes, maximum: None };
    prlimit(Some(Pid::from_child(&server.child)), Resource::Fsize, limit).unwrap();
}

/// A replica whose disk failed for a moment stayed `store_failed` until somebody restarted it. After a failed write or
/// sync, it never writes to the open database again: it starts again, with all checks of a start.
#[test]
fn replica_starts_again_when_its_disk_works_again() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    // A write beyond the limit then fails, instead of ending the process.
    let ignoring = ["bash", "-c", "trap '' XFSZ; exec \"$0\" \"$@\""];
    let mut server = Server::start_by(&ignoring, &data, &[]);
    write(&server, 0);
    limit_file_size(&server, Some(64 << 10));
    let start = Instant::now();
    let mut n_written = 0;
    let refused = loop {
        let names: Vec<String> = (0..200).map(|n| format!("{n_written}-{}", n * 7919)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let written = server.run_with_input(&["apply", "-f", "-"], &clusters(&names, "1s"));
        if written.code != 0 {
            break written;
        }
        n_written += 1;
        assert!(start.elapsed() < DEADLINE, "the log can grow without a limit");
    };
    assert!(refused.err.contains("cannot be written"), "{refused:?}");
    let (status, readiness) = http_get(&server.admin, "/readyz?format=json");
    assert!(status == 503 && readiness.contains("store_failed"), "{readiness}");
    // The disk does not work yet, so the replica keeps serving streams.
    logged(&data.with_extension("log"), "the replica has failed and accepts no more writes");
    let pid = server.child.id();
    limit_file_size(&server, None);
    server.wait_for_next_start();
    assert!(server.child.try_wait().unwrap().is_none() && server.child.id() == pid);
    write(&server, 1);
    assert_eq!(http_get(&server.admin, "/readyz").0, 200);
    let state = server.json(&["get", "clusters"], "");
    let n_clusters = state["resources"].as_array().unwrap().len();
    assert!(n_clusters >= 2 + 200 * n_written, "{n_clusters} of {n_written} writes are left");
    logged(&data.with_extension("log"), "the disk works again after a failure");
    assert_eq!(server.terminate().0, Some(0));
}
