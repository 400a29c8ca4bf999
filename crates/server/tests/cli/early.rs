//! A replica before its store is open: the admin port, `chancery health`, and the messages to the service manager.

use std::{
    fs,
    io::ErrorKind,
    net::TcpStream,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    time::{Duration, Instant},
};

use rustix::{
    fs::{CWD, FileType, Mode, mknodat},
    process::Signal,
};
use serde_json::{Value, json};

use crate::{
    cluster::{Replica, eventually},
    support::{DEADLINE, http_get, signal},
};

/// The socket of a service manager.
struct ServiceManager(UnixDatagram);

impl ServiceManager {
    fn bind(address: &SocketAddr) -> Self {
        let socket = UnixDatagram::bind_addr(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        Self(socket)
    }

    /// Returns the lines until each of `last` has arrived.
    fn lines_until(&self, last: &[&str]) -> Vec<String> {
        let (mut lines, mut buffer): (Vec<String>, _) = (Vec::new(), [0; 4096]);
        let start = Instant::now();
        while !last.iter().all(|last| lines.iter().any(|line| line == last)) {
            assert!(start.elapsed() < DEADLINE, "not all of {last:?} in {lines:?}");
            match self.0.recv(&mut buffer) {
                Ok(n) => {
                    let text = std::str::from_utf8(&buffer[..n]).unwrap();
                    lines.extend(text.lines().map(str::to_owned));
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
        }
        lines
    }
}

/// The replica has no data, and nobody admits it. Probes are answered, everything else is unavailable with the reason, and
/// the service manager is asked for patience. When a cluster admits the replica, the same port serves everything.
#[test]
fn replica_that_waits_for_its_cluster_answers_probes_only() {
    let root = tempfile::tempdir().unwrap();
    let [mut first, mut replica] = [1, 2].map(|id| Replica::new(root.path(), id));
    let address = SocketAddr::from_pathname(root.path().join("notify")).unwrap();
    let manager = ServiceManager::bind(&address);
    let socket = root.path().join("admin.sock").display().to_string();
    replica.environment = vec![
        ("NOTIFY_SOCKET", root.path().join("notify").display().to_string()),
        ("WATCHDOG_USEC", "400000".to_owned()),
        ("CHANCERY_ADMIN_SOCKET", socket.clone()),
    ];
    replica.start(&["--join", &first.raft]);
    let waits = "this replica has no data, and waits until a cluster admits it";
    let told = manager.lines_until(&["WATCHDOG=1", &format!("STATUS={waits}")]);
    assert!(told.contains(&"EXTEND_TIMEOUT_USEC=60000000".to_owned()), "{told:?}");
    assert!(!told.contains(&"READY=1".to_owned()), "{told:?}");

    assert_eq!(http_get(&replica.admin, "/healthz"), (200, "ok\n".to_owned()));
    let (status, body) = http_get(&replica.admin, "/readyz");
    let body: Value = serde_json::from_str(&body).unwrap();
    let expected = json!({"ready": false, "reason": "joining", "message": waits});
    assert_eq!((status, body), (503, expected));
    assert!(http_get(&replica.admin, "/metrics").1.contains("chancery_build_info{version="));
    let (status, body) = http_get(&replica.admin, "/v1/resources");
    assert!(status == 503 && body.contains("UNAVAILABLE") && body.contains(waits), "{body}");
    let refused = replica.run(&["get"], "");
    assert!(refused.code == 1 && refused.err.contains(waits), "{refused:?}");

    for server in [replica.admin.clone(), format!("unix:{socket}")] {
        let health = |args: &[&str]| {
            let args = [&["--server", &server, "health"], args].concat();
            let done = replica.run(&args, "");
            (done.code, done.out, done.err)
        };
        assert_eq!(health(&[]), (0, "healthy\n".to_owned(), String::new()));
        let not_ready = format!("error: the server at {server} is not ready: {waits}\n");
        assert_eq!(health(&["--ready"]), (1, String::new(), not_ready));
        let (code, out, _) = health(&["--ready", "-o", "json"]);
        let body: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((code, &body["reason"]), (1, &json!("joining")));
    }

    first.start_and_wait(&[]);
    let told = manager.lines_until(&["READY=1"]);
    assert!(told.contains(&"STATUS=ready".to_owned()), "{told:?}");
    replica.wait_ready();
    assert_eq!(http_get(&replica.admin, "/readyz"), (200, "ready\n".to_owned()));
    let ready = replica.run(&["health", "--ready", "-o", "json"], "");
    assert_eq!(
        (ready.code, serde_json::from_str(&ready.out).ok()),
        (0, Some(json!({"ready": true})))
    );
    replica.json(&["get"]);
    replica.terminate();
    let told = manager.lines_until(&["STOPPING=1"]);
    assert!(told.iter().any(|line| line.starts_with("EXTEND_TIMEOUT_USEC=")), "{told:?}");
}

/// A signal ends a replica that nobody admits, and its port, at once. The service manager has an abstract socket.
#[test]
fn signal_ends_a_replica_that_waits_for_its_cluster() {
    let root = tempfile::tempdir().unwrap();
    let [first, mut replica] = [1, 2].map(|id| Replica::new(root.path(), id));
    let name = root.path().join("notify").display().to_string();
    let manager = ServiceManager::bind(&SocketAddr::from_abstract_name(&name).unwrap());
    replica.environment = vec![("NOTIFY_SOCKET", format!("@{name}"))];
    replica.start(&["--join", &first.raft]);
    eventually("the replica waits", || {
        let done = replica.run(&["health", "--ready"], "");
        done.err.contains("waits until a cluster admits it").then_some(())
    });
    replica.terminate();
    manager.lines_until(&["STOPPING=1"]);
    let gone = replica.run(&["health"], "");
    assert!(gone.code == 1 && gone.err.contains("cannot reach the server"), "{gone:?}");
}

/// After the first signal, threads may still read the store. The second signal does not wait for them.
#[test]
fn second_signal_ends_a_replica_whose_store_does_not_open() {
    let root = tempfile::tempdir().unwrap();
    let mut replica = Replica::new(root.path(), 1);
    replica.start_and_wait(&[]);
    replica.terminate();
    // Opening a FIFO without a writer blocks.
    let current = replica.directory.join("db/CURRENT");
    fs::remove_file(&current).unwrap();
    mknodat(CWD, &current, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    replica.start(&[]);
    let is_open = || TcpStream::connect(&replica.admin).is_ok();
    eventually("the admin port opens", || is_open().then_some(()));
    signal(replica.child.as_ref().unwrap(), Signal::TERM);
    eventually("the admin port closes", || (!is_open()).then_some(()));
    let start = Instant::now();
    let child = replica.child.as_mut().unwrap();
    signal(child, Signal::TERM);
    eventually("the replica ends", || child.try_wait().unwrap());
    // Without the second signal, the replica waits for 30 s.
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}
