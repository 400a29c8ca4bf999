//! Watches over three replicas: each revision once, whatever ends.

use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, sync_channel},
    },
    thread,
    time::Instant,
};

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    cluster::{Replica, eventually, index, joined},
    support::{DEADLINE, KillOnDrop, chancery, clusters, run, signal},
};

/// A command that runs until it is killed. A thread reads its output.
pub(crate) struct Follower {
    child: KillOnDrop,
    lines: Receiver<String>,
}

impl Follower {
    pub(crate) fn start(servers: &str, args: &[&str]) -> Self {
        let mut command = chancery();
        command.args(args).env("CHANCERY_SERVER", servers);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = KillOnDrop(child.unwrap());
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, received) = sync_channel(10_000);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines: received }
    }

    /// Returns the next line.
    pub(crate) fn line(&self, what: &str) -> String {
        self.lines.recv_timeout(DEADLINE).unwrap_or_else(|_| panic!("no line: {what}"))
    }

    /// Waits for the next line that has a text, and returns all lines up to it.
    pub(crate) fn until(&self, text: &str) -> Vec<String> {
        let (start, mut lines) = (Instant::now(), Vec::new());
        loop {
            assert!(start.elapsed() < DEADLINE, "no line with {text:?}: {lines:#?}");
            lines.push(self.line(text));
            if lines.last().is_some_and(|line| line.contains(text)) {
                return lines;
            }
        }
    }

    fn kill(mut self) -> Vec<String> {
        signal(&self.child, Signal::KILL);
        self.child.wait().unwrap();
        self.lines.iter().collect()
    }
}

/// A running `chancery watch`.
pub(crate) struct Watcher(Follower);

impl Watcher {
    pub(crate) fn start(servers: &str, args: &[&str]) -> Self {
        Self(Follower::start(servers, &[&["watch", "-o", "json"], args].concat()))
    }

    /// Returns the next event.
    pub(crate) fn next(&self, what: &str) -> Value {
        serde_json::from_str(&self.0.line(what)).unwrap()
    }

    /// Waits for the next event that `select` selects.
    pub(crate) fn wait(&self, what: &str, mut select: impl FnMut(&Value) -> bool) -> Value {
        // Other events, such as progress notifications, arrive forever.
        let (start, mut others) = (Instant::now(), Vec::new());
        loop {
            assert!(start.elapsed() < DEADLINE, "no event: {what}: {others:#?}");
            let event = self.next(what);
            if select(&event) {
                return event;
            }
            others.push(event);
        }
    }

    /// Sends a signal to the process.
    pub(crate) fn signal(&self, number: Signal) {
        signal(&self.0.child, number);
    }

    fn kill(self) -> Vec<Value> {
        // A killed process may leave a part of a line.
        let lines = self.0.kill();
        lines.iter().map_while(|line| serde_json::from_str(line).ok()).collect()
    }
}

pub(crate) fn servers(replicas: &[Replica]) -> String {
    replicas.iter().map(|replica| replica.admin.clone()).collect::<Vec<_>>().join(",")
}

/// Returns the newest revision of the cluster.
pub(crate) fn newest_revision(replica: &Replica) -> u64 {
    eventually("the history has an answer", || {
        let done = replica.run(&["history", "-n", "1", "-o", "json"], "");
        let history: Value = serde_json::from_str(&done.out).ok()?;
        history["entries"][0]["revision"].as_u64()
    })
}

/// Says that a test is over, also if it fails.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the revisions of events.
pub(crate) fn revisions(events: &[Value]) -> Vec<u64> {
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
        let over = Over(&is_over);
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
        drop(over);
    });
    assert!(n_written.load(Ordering::Relaxed) > 0);
    let newest = newest_revision(&replicas[1]);
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
