//! Three replicas as processes. The tests form, break, repair and restart the cluster as operators
//! do.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    net::TcpListener,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use chancery_testing::{reserve_address, reserve_port};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{
    Done, KillOnDrop, chancery, clusters, http_get, logged, of_program, run, signal,
};

pub(crate) use crate::support::eventually;

/// One replica of a cluster, running or not.
pub(crate) struct Replica {
    pub(crate) id: u64,
    pub(crate) directory: PathBuf,
    pub(crate) raft: String,
    pub(crate) admin: String,
    pub(crate) child: Option<KillOnDrop>,
    /// Environment variables of the configuration.
    pub(crate) environment: Vec<(&'static str, String)>,
    /// The program of another release; `None` for the tested one.
    pub(crate) program: Option<PathBuf>,
}

impl Replica {
    pub(crate) fn new(root: &Path, id: u64) -> Self {
        Self {
            id,
            directory: root.join(id.to_string()),
            raft: reserve_address().to_string(),
            admin: reserve_address().to_string(),
            child: None,
            environment: Vec::new(),
            program: None,
        }
    }

    pub(crate) fn output(&self, what: &str) -> String {
        fs::read_to_string(self.directory.with_extension(what)).unwrap_or_default()
    }

    /// Waits until the log has a text, and returns its lines.
    fn logged(&self, text: &str) -> String {
        logged(&self.directory.with_extension("log"), text)
    }

    /// Starts the replica and returns at once.
    pub(crate) fn start(&mut self, args: &[&str]) {
        let file = |what: &str| File::create(self.directory.with_extension(what)).unwrap();
        let mut command = self.program.as_deref().map_or_else(chancery, of_program);
        command
            .args(["serve", "--xds", "127.0.0.1:0", "--admin", &self.admin, "--raft", &self.raft])
            .args(["--replica-id", &self.id.to_string(), "--data-dir"])
            .arg(&self.directory)
            .args(args)
            .env("CHANCERY_STORE_FREE_BYTES_MIN", "64MiB")
            .env("CHANCERY_STORE_TRANSACT_TIMEOUT", "5s")
            .env("CHANCERY_RAFT_CATCH_UP_TIMEOUT", "3s")
            .envs(self.environment.iter().map(|(key, value)| (key, value)))
            .stdout(Stdio::from(file("out")))
            .stderr(file("log"));
        self.child = Some(KillOnDrop(command.spawn().unwrap()));
    }

    pub(crate) fn wait_ready(&mut self) {
        let child = self.child.as_mut().unwrap();
        let (id, directory) = (self.id, &self.directory);
        let read =
            |what: &str| fs::read_to_string(directory.with_extension(what)).unwrap_or_default();
        eventually(&format!("replica {id} is ready"), || {
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "replica {id} has ended: {}", read("log"));
            read("out").contains("chancery ready").then_some(())
        });
    }

    pub(crate) fn start_and_wait(&mut self, args: &[&str]) {
        self.start(args);
        self.wait_ready();
    }

    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        signal(&child, Signal::KILL);
        child.wait().unwrap();
    }

    /// Ends the replica with SIGTERM.
    pub(crate) fn terminate(&mut self) {
        let mut child = self.child.take().unwrap();
        signal(&child, Signal::TERM);
        let status = eventually("the replica ends", || child.try_wait().unwrap());
        assert_eq!(status.code(), Some(0), "{}", self.output("log"));
    }

    /// Returns the address of the discovery services of a running replica.
    pub(crate) fn xds(&self) -> String {
        let out = self.output("out");
        let address = out.split_whitespace().find_map(|word| word.strip_prefix("xds="));
        address.expect("the replica is ready").to_owned()
    }

    pub(crate) fn run(&self, args: &[&str], input: &str) -> Done {
        run_at(&self.admin, args, input)
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let args = [args, ["-o", "json"].as_slice()].concat();
        let done = self.run(&args, "");
        assert_eq!(done.code, 0, "{args:?}: {done:?}");
        serde_json::from_str(&done.out).unwrap()
    }

    pub(crate) fn apply(&self, name: &str) {
        let done = self.run(&["apply", "-f", "-"], &clusters(&[name], "1s"));
        assert_eq!(done.code, 0, "{done:?}");
    }

    /// Waits until the replica shows a status with all these texts. A peer that answers late counts as down meanwhile.
    fn wait_status(&self, texts: &[&str]) {
        eventually(&format!("the status has {texts:?}"), || {
            let shown = self.run(&["cluster", "status"], "").out;
            texts.iter().all(|text| shown.contains(text)).then_some(())
        });
    }

    /// Waits until the replica sees `n` voters that answer, and a leader.
    pub(crate) fn wait_voters(&self, n: u64) -> Value {
        eventually(&format!("{n} voters answer"), || {
            let done = self.run(&["cluster", "status", "-o", "json"], "");
            let status: Value = serde_json::from_str(&done.out).ok()?;
            (status["voters_up"] == n && status["leader"].is_u64()).then_some(status)
        })
    }
}

pub(crate) fn run_at(servers: &str, args: &[&str], input: &str) -> Done {
    let mut command = chancery();
    command.args(args).env("CHANCERY_SERVER", servers);
    run(command, input)
}

pub(crate) fn names(list: &Value) -> BTreeSet<String> {
    let resources = list["resources"].as_array().unwrap();
    resources.iter().map(|resource| resource["name"].as_str().unwrap().to_owned()).collect()
}

pub(crate) fn index(id: &Value) -> usize {
    usize::try_from(id.as_u64().unwrap() - 1).unwrap()
}

/// Starts three replicas: the first forms the cluster, and the others join it.
pub(crate) fn joined(root: &Path) -> [Replica; 3] {
    joined_with(root, |_| {})
}

/// [`joined`], with changes to each replica before it starts.
pub(crate) fn joined_with(root: &Path, change: impl Fn(&mut Replica)) -> [Replica; 3] {
    let mut replicas = [1, 2, 3].map(|id| Replica::new(root, id));
    replicas.iter_mut().for_each(change);
    let first = replicas[0].raft.clone();
    replicas[0].start_and_wait(&[]);
    for replica in &mut replicas[1..] {
        replica.start(&["--join", &first]);
    }
    for replica in &mut replicas[1..] {
        replica.wait_ready();
    }
    replicas[2].wait_voters(3);
    replicas
}

#[test]
fn cluster_survives_replica_loss_and_is_repaired() {
    let root = tempfile::tempdir().unwrap();
    let mut replicas = joined(root.path());
    let all = replicas.each_ref().map(|replica| replica.admin.as_str()).join(",");

    // Every replica accepts writes, and reads on all replicas see them at once.
    replicas[2].apply("a");
    for replica in &replicas {
        assert_eq!(names(&replica.json(&["get"])), BTreeSet::from(["a".to_owned()]));
    }

    // The leader is killed; the other replicas continue.
    let status = replicas[1].wait_voters(3);
    let leader = index(&status["leader"]);
    let other = (leader + 1) % 3;
    replicas[leader].kill();
    let done = run_at(&all, &["apply", "-f", "-"], &clusters(&["b"], "1s"));
    assert_eq!(done.code, 0, "{done:?}");
    let status = replicas[other].wait_voters(2);
    let down = &status["members"][leader];
    assert_eq!((&down["up"], &down["role"]), (&Value::from(false), &Value::from("voter")));
    replicas[other].wait_status(&["DOWN", "2 of 3 voters answer: if one more is lost"]);
    replicas[leader].start_and_wait(&[]);
    replicas[leader].wait_voters(3);
    assert_eq!(names(&replicas[leader].json(&["get"])).len(), 2);

    // A replica without its data joins again.
    let join = replicas[leader].raft.clone();
    replicas[other].terminate();
    fs::remove_dir_all(&replicas[other].directory).unwrap();
    replicas[other].start_and_wait(&["--join", &join]);
    replicas[other].wait_voters(3);
    assert_eq!(names(&replicas[other].json(&["get"])).len(), 2);

    check_leader_transfer_and_membership(&replicas, other);
    check_reads_without_quorum(&mut replicas);
}

/// A replica that was removed while it runs receives no more messages. It detects its removal and
/// ends, so that its clients connect to other replicas.
#[test]
fn removed_replica_exits() {
    let root = tempfile::tempdir().unwrap();
    let mut replicas = joined(root.path());
    let leader = index(&replicas[0].wait_voters(3)["leader"]);
    let (removed, asked) = ((leader + 1) % 3, (leader + 2) % 3);
    let id = replicas[removed].id.to_string();
    let done = replicas[asked].run(&["cluster", "remove", &id], "");
    assert_eq!((done.code, done.out), (0, format!("replica {id} was removed\n")), "{}", done.err);
    for again in [false, true] {
        if again {
            // Its directory belongs to a replica that is not a member.
            replicas[removed].start(&[]);
        }
        let mut child = replicas[removed].child.take().unwrap();
        let status = eventually("the removed replica ends", || child.try_wait().unwrap());
        let log = replicas[removed].output("log");
        assert_eq!(status.code(), Some(1), "{log}");
        assert!(log.contains("this replica was removed from its cluster"), "{log}");
    }
    // It has not disturbed the others. Without its data it can join again.
    replicas[asked].wait_voters(2);
    let join = replicas[asked].raft.clone();
    fs::remove_dir_all(&replicas[removed].directory).unwrap();
    replicas[removed].start_and_wait(&["--join", &join]);
    replicas[removed].wait_voters(3);
}

fn check_leader_transfer_and_membership(replicas: &[Replica; 3], to: usize) {
    let asked = &replicas[(to + 1) % 3];
    let id = replicas[to].id.to_string();
    let done = asked.run(&["cluster", "transfer-leader", &id], "");
    assert_eq!((done.code, done.out), (0, format!("replica {id} leads now\n")));
    eventually("the leader is known", || {
        (asked.json(&["cluster", "status"])["leader"] == replicas[to].id).then_some(())
    });
    let taken = asked.json(&["cluster", "snapshot"]);
    assert_eq!(taken["replica_id"], asked.id);
    assert!(taken["snapshot_index"].as_u64().unwrap() > 0, "{taken}");
    let done = asked.run(&["cluster", "add", "4", "127.0.0.1:1", "--learner"], "");
    assert!(done.code == 0 && done.out.contains("as a learner"), "{done:?}");
    let done = asked.run(&["cluster", "promote", "9"], "");
    assert!(done.code == 1 && done.err.contains("add it first"), "{done:?}");
    let done = asked.run(&["cluster", "remove", "4"], "");
    assert_eq!((done.code, done.out.as_str()), (0, "replica 4 was removed\n"), "{}", done.err);
    let done = asked.run(&["cluster", "remove", "4"], "");
    assert_eq!((done.code, done.err.as_str()), (1, "error: replica 4 is not a member\n"));
    let done = asked.run(&["cluster", "add", "4", "nowhere"], "");
    assert!(done.code == 1 && done.err.contains("HOST:PORT"), "{done:?}");
    let long = format!("{}:18002", "a".repeat(256));
    let done = asked.run(&["cluster", "add", "4", &long], "");
    assert!(done.code == 1 && done.err.contains("at most 261"), "{done:?}");
}

/// OPS-04: a replica serves the state that it has, whichever replicas are lost. It cannot know
/// whether that state is current.
fn check_reads_without_quorum(replicas: &mut [Replica; 3]) {
    replicas[0].kill();
    replicas[1].kill();
    let left = &mut replicas[2];
    let refused = |left: &Replica, args: &[&str], input: &str, hint: &str| {
        let done = left.run(args, input);
        assert!(done.code == 1 && done.err.contains(hint), "{args:?}: {done:?}");
    };
    let still_served = |left: &Replica| {
        refused(left, &["get"], "", "--stale");
        refused(left, &["apply", "--dry-run", "-f", "-"], &clusters(&["c"], "1s"), "--stale");
        // The server does not know that the command makes its first attempt. A former leader has appended the write to
        // its log, from where it may still take effect.
        let done = left.run(&["delete", "cds", "missing"], "");
        let told = ["this attempt wrote nothing", "it may still be"];
        let is_told = told.iter().any(|text| done.err.contains(text));
        assert!(done.code == 1 && is_told && !done.err.contains("--stale"), "{done:?}");
        let done = left.run(&["apply", "-f", "-"], &clusters(&["b"], "1s"));
        let told = done.err.contains("no leader") || done.err.contains("it may still be");
        assert!(done.code == 1 && told, "{done:?}");
        assert_eq!(names(&left.json(&["get", "--stale"])).len(), 2);
        let (status, _) = http_get(&left.admin, "/v1/resources?stale=true");
        assert_eq!(status, 200);
        assert_eq!(http_get(&left.admin, "/v1/resources").0, 503);
        assert_eq!(http_get(&left.admin, "/readyz"), (200, "ready\n".to_owned()));
        left.wait_status(&["only 1 of 3 voters answer"]);
    };
    still_served(left);
    // It also starts without the others, and logs that.
    left.terminate();
    left.start_and_wait(&[]);
    left.logged("no leader was found within 3s");
    still_served(left);
    replicas[1].start_and_wait(&[]);
    replicas[2].wait_voters(2);
    replicas[2].apply("d");
    let there = names(&replicas[1].json(&["get"]));
    assert_eq!(there, ["a", "b", "d"].map(str::to_owned).into());
}

/// Replicas start like in a StatefulSet: each one knows all others, and none is started first.
#[test]
fn writes_go_on_while_all_replicas_are_restarted_one_by_one() {
    let root = tempfile::tempdir().unwrap();
    let mut replicas = [1, 2, 3].map(|id| Replica::new(root.path(), id));
    let peers =
        replicas.each_ref().map(|replica| format!("{}={}", replica.id, replica.raft)).join(",");
    let peers = ["--peers", peers.as_str()];
    for replica in replicas.iter_mut().rev() {
        replica.start(&peers);
    }
    for replica in &mut replicas {
        replica.wait_ready();
    }
    replicas[0].wait_voters(3);

    let servers = replicas.each_ref().map(|replica| replica.admin.as_str()).join(",");
    let (stop, n_written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let writer = thread::spawn({
        let (stop, n_written) = (Arc::clone(&stop), Arc::clone(&n_written));
        move || {
            let (mut written, mut failed) = (BTreeSet::new(), Vec::new());
            for n in 0..10_000 {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                let name = format!("w{n}");
                let done = run_at(&servers, &["apply", "-f", "-"], &clusters(&[&name], "1s"));
                if done.code == 0 {
                    written.insert(name);
                    n_written.fetch_add(1, Ordering::SeqCst);
                } else {
                    failed.push(done.err);
                }
            }
            (written, failed)
        }
    });
    let more = |what: &str| {
        let before = n_written.load(Ordering::SeqCst);
        eventually(what, || (n_written.load(Ordering::SeqCst) > before + 1).then_some(()));
    };
    more("writes before the restarts");
    for replica in &mut replicas {
        replica.terminate();
        more("writes while one is gone");
        replica.start_and_wait(&peers);
        replica.wait_voters(3);
    }
    more("writes after the restarts");
    stop.store(true, Ordering::SeqCst);
    let (written, failed) = writer.join().unwrap();
    assert_eq!(failed, Vec::<String>::new());
    for replica in &replicas {
        let there = names(&replica.json(&["get", "cds"]));
        let lost: Vec<&String> = written.difference(&there).collect();
        assert!(lost.is_empty(), "replica {} has lost {lost:?}", replica.id);
    }
    for replica in &mut replicas {
        replica.terminate();
    }
}

/// A replica that waits to join a cluster ends at once, and so does one whose state never arrived.
#[test]
fn replica_that_waits_to_join_ends_on_sigterm() {
    let root = tempfile::tempdir().unwrap();
    let mut replica = Replica::new(root.path(), 2);
    let nobody = reserve_port();
    replica.start(&["--join", &format!("127.0.0.1:{nobody}")]);
    replica.logged("waiting to join");
    replica.terminate();
    assert_eq!(replica.output("out"), "", "it was never ready");
}

/// Several replicas without configured replication addresses run on one machine. A replica with a
/// configured address listens on it, or fails with the reason.
#[test]
fn occupied_default_replication_address_does_not_prevent_start() {
    let root = tempfile::tempdir().unwrap();
    // If the bind fails, another process has the address, so that it is in use anyway.
    let _taken = TcpListener::bind("127.0.0.1:18002");
    let serve = |name: &str, more: &[&str]| {
        let mut command = chancery();
        let out = File::create(root.path().join(name).with_extension("out")).unwrap();
        let log = File::create(root.path().join(name).with_extension("log")).unwrap();
        command.args(["serve", "--xds", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data-dir"]);
        command.arg(root.path().join(name)).args(more);
        command.env("CHANCERY_STORE_FREE_BYTES_MIN", "64MiB").stdout(out).stderr(log);
        let mut replica = Replica::new(root.path(), 1);
        replica.directory = root.path().join(name);
        replica.child = Some(KillOnDrop(command.spawn().unwrap()));
        replica
    };
    let mut alone = serve("alone", &[]);
    alone.wait_ready();
    assert!(alone.output("out").trim_end().ends_with(" raft=none"), "{}", alone.output("out"));
    alone.logged("continuing as a cluster of one replica");
    alone.terminate();

    let mut told = serve("told", &["--raft", "127.0.0.1:18002"]);
    let status =
        eventually("the replica ends", || told.child.as_mut().unwrap().try_wait().unwrap());
    assert_eq!(status.code(), Some(1));
    let log = told.output("log");
    assert!(log.contains("error: cannot listen on 127.0.0.1:18002 (raft.address): "), "{log}");
}
