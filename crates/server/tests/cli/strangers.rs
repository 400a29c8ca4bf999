//! Connections to the replication port from other programs than replicas.

use std::{fs, net::TcpStream, time::Instant};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::support::{DEADLINE, Server, eventually, http_get};

/// The number of files that the replica may still open.
const FREE: u64 = 20;
/// More connections than the files that the replica may open.
const HELD: usize = 200;

fn metric(server: &Server, sample: &str) -> f64 {
    let (status, page) = http_get(&server.admin, "/metrics");
    assert_eq!(status, 200);
    let found = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {sample}")).parse().unwrap()
}

/// Attack 69: without free file descriptors the replication port accepts no connections. It accepts them again
/// as soon as descriptors are free.
#[test]
fn replication_port_survives_file_descriptor_exhaustion() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("first");
    let first = Server::start(&data);
    let pid = Some(Pid::from_child(&first.child));
    let limit = getrlimit(Resource::Nofile);
    let n_open = fs::read_dir(format!("/proc/{}/fd", first.child.id())).unwrap().count() as u64;
    // Lower than the limit to which the replica has adapted its connections.
    prlimit(pid, Resource::Nofile, Rlimit { current: Some(n_open + FREE), ..limit }).unwrap();
    let status = first.json(&["cluster", "status"], "");
    let address = status["members"][0]["address"].as_str().unwrap().to_owned();

    let start = Instant::now();
    let mut held = std::collections::VecDeque::new();
    let log = || fs::read_to_string(data.with_extension("log")).unwrap();
    while !log().contains("cannot accept a connection to the replication port") {
        assert!(start.elapsed() < DEADLINE, "there are files left: {}", log());
        // The replica closes connections that send nothing for a while.
        held.push_back(TcpStream::connect(&address).unwrap());
        if held.len() > HELD {
            held.pop_front();
        }
    }
    drop(held);
    prlimit(pid, Resource::Nofile, limit).unwrap();

    let environment = [("CHANCERY_RAFT_REPLICA_ID", "2"), ("CHANCERY_RAFT_JOIN", address.as_str())];
    let second = Server::start_with(&directory.path().join("second"), &environment);
    eventually("the second replica is a voter", || {
        (second.json(&["cluster", "status"], "")["voters_up"] == 2).then_some(())
    });
    let refused = |reason: &str| {
        metric(&first, &format!("chancery_raft_refused_connections_total{{reason=\"{reason}\"}}"))
    };
    assert!(refused("accept") >= 1.0);
    assert_eq!(refused("tls"), 0.0);
    assert!(
        metric(&first, "chancery_raft_connections") >= 1.0,
        "the connection of the other replica"
    );
    for server in [second, first] {
        assert_eq!(server.terminate().0, Some(0));
    }
}
