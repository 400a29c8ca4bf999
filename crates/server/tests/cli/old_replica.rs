//! A cluster with one replica of a release that does not know the questions between replicas: `cargo xtask fleet --before
//! REV`.

use std::{
    env,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use chancery_testing::{Lack, skip};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::{
    cluster::{Replica, eventually, joined_with},
    scripted::{Addresses, Client},
    support::{clusters, http_get},
    watch::Watcher,
};

const REASON: &str = "runs a release that does not know the question";
/// The position of the old replica.
const OLD: usize = 2;

/// Three replicas, of which the last one is old, with a client on each.
struct Mixed {
    replicas: [Replica; 3],
    clients: Vec<Client>,
    _runtime: Runtime,
}

impl Mixed {
    fn start(root: &Path, old: PathBuf) -> Self {
        let mut replicas = joined_with(root, |replica| replica.program = Some(old.clone()));
        for replica in &mut replicas[..OLD] {
            replica.terminate();
            replica.program = None;
            replica.start_and_wait(&[]);
            replica.wait_voters(3);
        }
        let runtime = Runtime::new().unwrap();
        let addresses: Addresses = Arc::new(Mutex::new(replicas.each_ref().map(Replica::xds)));
        let connect = |at: usize| {
            let mut client = Client::new(&format!("edge-{}", at + 1));
            client.connect(runtime.handle(), &addresses, at);
            client
        };
        let clients = (0..3).map(connect).collect();
        let mixed = Self { replicas, clients, _runtime: runtime };
        let done = mixed.replicas[0].run(&["apply", "-f", "-"], &clusters(&["web", "db"], "1s"));
        assert_eq!(done.code, 0, "{done:?}");
        mixed.until_held(1);
        mixed
    }

    fn until_held(&self, mark: i64) {
        for client in &self.clients {
            eventually("the client holds the cluster", || {
                (client.record().mark("web") == Some(mark)).then_some(())
            });
        }
    }
}

/// Runs a command on a new replica. The answer names the old replica as missing.
fn incomplete(replica: &Replica, args: &[&str], input: &str) -> Value {
    let done = replica.run(&[args, &["-o", "json"]].concat(), input);
    assert_eq!(done.code, 4, "{args:?}: {done:?}");
    assert!(done.err.contains(&format!("replica 3 {REASON}")), "{args:?}: {done:?}");
    serde_json::from_str(&done.out).unwrap_or_else(|_| panic!("{args:?}: {done:?}"))
}

fn check_missing(answer: &Value) {
    let missing = &answer["not_asked"];
    assert_eq!((&missing[0]["replica_id"], &missing[1]), (&json!(3), &Value::Null), "{answer}");
    assert!(missing[0]["message"].as_str().unwrap().contains(REASON), "{answer}");
}

/// Checks every kind of answer of a new replica.
fn check_answers(mixed: &Mixed, at: usize, mark: i64) {
    let replica = &mixed.replicas[at];
    let nodes = incomplete(replica, &["nodes"], "");
    check_missing(&nodes);
    let ids: Vec<&Value> =
        nodes["nodes"].as_array().unwrap().iter().map(|node| &node["id"]).collect();
    assert_eq!(ids, ["edge-1", "edge-2"], "{nodes}");
    check_missing(&incomplete(replica, &["node", "edge-1"], ""));
    let done = replica.run(&["node", "edge-3"], "");
    assert!(done.code != 0 && done.err.contains(REASON), "{done:?}");
    check_missing(&incomplete(replica, &["describe", "cds", "web"], ""));
    check_missing(&incomplete(replica, &["explain", "edge-1", "cds", "web"], ""));

    let input = clusters(&["web", "db"], &format!("{mark}s"));
    let written = incomplete(replica, &["apply", "--wait=5s", "-f", "-"], &input);
    check_missing(&written["wait"]);
    mixed.until_held(mark);
    let revision = written["revision"].to_string();
    let waited = incomplete(replica, &["wait", &revision, "--timeout", "5s"], "");
    check_missing(&waited);
    assert_eq!((&waited["asked"], &waited["acknowledged"]), (&json!(2), &json!(2)), "{waited}");
    assert_eq!(waited["complete"], false, "{waited}");
    let behind = incomplete(replica, &["nodes", "--behind", &revision], "");
    assert_eq!(behind["nodes"], json!([]), "{behind}");

    let doctor = replica.run(&["doctor", "-o", "json"], "");
    let report: Value = serde_json::from_str(&doctor.out).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let of_nodes = checks.iter().find(|check| check["name"] == "nodes").unwrap();
    assert_eq!(of_nodes["status"], "unknown", "{of_nodes}");
    assert!(of_nodes["detail"].as_str().unwrap().contains(REASON), "{of_nodes}");
    let (status, page) = http_get(&replica.admin, "/v1/nodes?limit=10");
    assert_eq!(status, 200, "{page}");
    check_missing(&serde_json::from_str(&page).unwrap());
}

/// The guard `unasked` rejects a write that may remove resources from clients of the old replica.
fn check_guards(mixed: &Mixed, at: usize) {
    let refused = mixed.replicas[at].run(&["assignments", "delete", "default"], "");
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains("guard `unasked` rejects the write: replica 3 "), "{refused:?}");
}

/// Every answer of a new replica names the old replica, and no command fails.
#[test]
fn replica_of_an_older_release_is_named_in_every_answer() {
    let Some(old) = env::var_os("CHANCERY_OLD_BIN") else {
        skip(Lack::OldRelease, "CHANCERY_OLD_BIN is not set");
        return;
    };
    let root = tempfile::tempdir().unwrap();
    let mixed = Mixed::start(root.path(), old.into());
    let watcher = Watcher::start(&mixed.replicas[0].admin, &["--kind", "nodes"]);
    let missed = watcher.wait("the old replica", |event| event.get("missed").is_some());
    assert_eq!(missed["missed"]["replica_id"], 3, "{missed}");
    assert!(missed["missed"]["reason"].as_str().unwrap().contains(REASON), "{missed}");
    // The old replica leads, and then a new one.
    let mut mark = 2;
    for leader in [OLD, 0] {
        let id = (leader + 1).to_string();
        let done = mixed.replicas[0].run(&["cluster", "transfer-leader", &id], "");
        assert_eq!(done.code, 0, "{done:?}");
        eventually("the replica leads", || {
            (mixed.replicas[0].wait_voters(3)["leader"] == leader + 1).then_some(())
        });
        for at in 0..OLD {
            check_answers(&mixed, at, mark);
            mark += 1;
        }
        check_guards(&mixed, 0);
    }
    // The old replica answers for its own client.
    let done = mixed.replicas[OLD].run(&["nodes", "-o", "json"], "");
    assert!(done.code == 0 && done.out.contains("edge-3"), "{done:?}");
    let log = mixed.replicas[OLD].output("log");
    assert!(!log.contains(" ERROR "), "{log}");
}
