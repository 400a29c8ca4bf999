//! Watches over three replicas: each revision once, whatever ends.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Stdio},
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, sync_channel},
    },
    thread,
};

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    cluster::{Replica, eventually, index, joined},
    support::{DEADLINE, chancery, clusters, run, signal},
};

/// A running `chancery watch`, whose lines are read by a thread.
struct Watcher {
    child: Child,
    events: Receiver<Value>,
}

impl Watcher {
    fn start(servers: &str, args: &[&str]) -> Self {
        let mut command = chancery();
        command.args(["watch", "-o", "json", "--server", servers]).args(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, events) = sync_channel(10_000);
        thread::spawn(move || {
            // A killed process may leave a part of a line.
            for event in
                lines.map_while(Result::ok).map_while(|line| serde_json::from_str(&line).ok())
            {
                if sender.send(event).is_err() {
                    return;
                }
            }
        });
        Self { child, events }
    }

    /// Waits for the next event that `select` selects.
    fn wait(&self, what: &str, select: impl Fn(&Value) -> bool) -> Value {
        loop {
            let event =
                self.events.recv_timeout(DEADLINE).unwrap_or_else(|_| panic!("no event: {what}"));
            if select(&event) {
                return event;
            }
        }
    }

    fn kill(mut self) -> Vec<Value> {
        signal(&self.child, Signal::KILL);
        self.child.wait().unwrap();
        self.events.iter().collect()
    }
}

fn servers(replicas: &[Replica]) -> String {
    replicas.iter().map(|replica| replica.admin.clone()).collect::<Vec<_>>().join(",")
}

/// Returns the revisions of events.
fn revisions(events: &[Value]) -> Vec<u64> {
    let made = events.iter().filter_map(|event| event["made"]["entry"]["revision"].as_u64());
    made.collect()
}

/// Watchers end with SIGKILL, and replicas with them, while revisions are written.
#[test]
fn killed_watchers_and_leaders_lose_and_repeat_no_revision() {
    let root = tempfile::tempdir().unwrap();
    let mut replicas = joined(root.path());
    let all = servers(&replicas);
    let (is_over, n_written) = (AtomicBool::new(false), AtomicU64::new(0));
    let n_kills = if std::env::var_os("CHANCERY_TEST_LONG").is_some() { 100 } else { 20 };
    let mut seen: Vec<u64> = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0.. {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let args = ["apply", "-f", "-", "--server", &all];
                let mut command = chancery();
                command.args(args);
                let done = run(command, &clusters(&["web"], &format!("{}s", n + 1)));
                // A write may fail while no replica leads.
                n_written.fetch_add(u64::from(done.code == 0), Ordering::Relaxed);
            }
        });
        let mut last = 0;
        for n in 0..n_kills {
            let watcher =
                Watcher::start(&all, &["--kind", "revisions", "--after", &last.to_string()]);
            let first = watcher.wait("a revision", |event| event.get("made").is_some());
            if n % 10 == 5 {
                let leader = index(&replicas[0].wait_voters(3)["leader"]);
                replicas[leader].kill();
                replicas[leader].start_and_wait(&[]);
            }
            let rest = watcher.kill();
            let events: Vec<Value> = [first].into_iter().chain(rest).collect();
            seen.extend(revisions(&events));
            last = events.last().unwrap()["revision"].as_u64().unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(n_written.load(Ordering::Relaxed) > 0);
    let newest = eventually("a replica answers", || {
        replicas[1].json(&["cluster", "status"])["revision"].as_u64()
    });
    let last = seen.last().copied().unwrap();
    if last < newest {
        let watcher = Watcher::start(&all, &["--kind", "revisions", "--after", &last.to_string()]);
        while seen.last() < Some(&newest) {
            let event = watcher.wait("a revision", |event| event.get("made").is_some());
            seen.extend(revisions(&[event]));
        }
        drop(watcher.kill());
    }
    let expected: Vec<u64> = (1..=newest).collect();
    assert_eq!(seen, expected, "each revision once, in order");
}

/// A client that connects, rejects and leaves on one replica is seen through another. So are changes by scope, and the
/// end of the leader.
#[test]
fn events_of_all_replicas_reach_a_watcher() {
    let root = tempfile::tempdir().unwrap();
    let mut replicas = joined(root.path());
    let leader = index(&replicas[0].wait_voters(3)["leader"]);
    let (at, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let watcher = Watcher::start(&replicas[at].admin, &[]);
    watcher.wait("progress", |event| event.get("made").is_none());
    let done =
        replicas[other].run(&["apply", "-f", "-", "--label", "v1"], &clusters(&["web"], "1s"));
    assert_eq!(done.code, 0, "{done:?}");
    let made = watcher.wait("a revision", |event| event.get("made").is_some());
    assert_eq!(made["made"]["entry"]["label"], "v1", "{made}");
    let change = &made["made"]["changes"][0];
    assert_eq!((&change["scope"], &change["changed"]), (&"default".into(), &1.into()), "{made}");

    let mut node = chancery();
    node.args(["mirror", "--node", "edge-1", "--xds", &replicas[other].xds()]);
    node.arg("--dir").arg(root.path().join("files"));
    let mut node = node.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let is = |event: &Value, kind: &str| {
        event["node"]["kind"] == kind && event["node"]["node"] == "edge-1"
    };
    let connected = watcher.wait("the node connects", |event| is(event, "connected"));
    assert_eq!(connected["node"]["replica_id"], other + 1, "{connected}");
    signal(&node, Signal::KILL);
    node.wait().unwrap();
    watcher.wait("the node leaves", |event| is(event, "disconnected"));

    replicas[leader].kill();
    let id = leader + 1;
    watcher.wait("a replica is missing", |event| event["missed"]["replica_id"] == id);
    watcher.wait("another replica leads", |event| {
        event["member"]["kind"] == "leader"
            && event["member"]["replica_id"].as_u64().is_some_and(|new| new > 0 && new != id as u64)
    });
    drop(watcher.kill());
    let follow =
        replicas[at].run(&["watch", "--after", "18446744073709551615", "--kind", "nodez"], "");
    assert_eq!(follow.code, 2, "{follow:?}");
}
