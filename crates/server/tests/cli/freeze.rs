//! Freezes over three replicas: clients keep frozen content, wherever they connect.

use std::collections::BTreeMap;

use chancery_proto::discovery::DiscoveryResponse;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::{
    cluster::{Replica, eventually, joined},
    fleet_wait::Client,
    scripted::marks,
    support::{Done, clusters},
};

const RULES: &str =
    "assignments: [{name: each, priority: 1, match: {id: '*'}, scopes: [edge, base]}]";

/// The timeouts of clusters in seconds, by name.
type Clusters = BTreeMap<String, i64>;

fn write(replica: &Replica, args: &[&str], input: &str) -> u64 {
    let done = replica.run(&[args, &["-o", "json"]].concat(), input);
    assert_eq!(done.code, 0, "{args:?}: {done:?}");
    serde_json::from_str::<Value>(&done.out).unwrap()["revision"].as_u64().unwrap()
}

fn apply(replica: &Replica, scope: &str, names: &[&str], timeout: &str) -> u64 {
    write(replica, &["apply", "-f", "-", "--scope", scope], &clusters(names, timeout))
}

fn held(done: &Done) -> &str {
    assert_eq!(done.code, 6, "{done:?}");
    assert!(done.err.contains("held: scope \"edge\" is frozen since revision"), "{done:?}");
    &done.err
}

/// A client of each replica.
struct Fleet {
    runtime: Runtime,
    clients: Vec<Client>,
    /// The number of markers that were written.
    n_markers: i64,
}

impl Fleet {
    fn connect(&mut self, replicas: &[Replica]) -> Vec<DiscoveryResponse> {
        self.clients.clear();
        let mut first = Vec::new();
        for (n, replica) in replicas.iter().enumerate() {
            // After this linearizable read, the replica has the writes of the other replicas.
            replica.json(&["get"]);
            self.runtime.block_on(async {
                let mut client = Client::resume(replica, &format!("node-{n}"), "").await;
                let response = client.read().await;
                client.accept(&response).await;
                first.push(response);
                self.clients.push(client);
            });
        }
        first
    }

    /// Writes a marker to the scope that is not frozen. The next response of each client must have these clusters and the
    /// marker. So nothing was sent before.
    fn next_is(&mut self, replica: &Replica, expected: &[(&str, i64)]) {
        self.n_markers += 1;
        apply(replica, "base", &["marker"], &format!("{}s", self.n_markers));
        let mut expected: Clusters =
            expected.iter().map(|(name, timeout)| ((*name).to_owned(), *timeout)).collect();
        expected.insert("marker".into(), self.n_markers);
        for client in &mut self.clients {
            let received = self.runtime.block_on(async {
                let response = client.read().await;
                client.accept(&response).await;
                marks(&response)
            });
            assert_eq!(received, expected);
        }
    }

    /// Reads responses until each client has these clusters.
    fn converge(&mut self, expected: &[(&str, i64)]) {
        let has = |received: &Clusters| {
            expected.iter().all(|(name, timeout)| received.get(*name) == Some(timeout))
        };
        for client in &mut self.clients {
            self.runtime.block_on(async {
                loop {
                    let response = client.read().await;
                    client.accept(&response).await;
                    if has(&marks(&response)) {
                        return;
                    }
                }
            });
        }
    }
}

/// Every replica says what a freeze holds back from a node.
fn check_explained(replica: &Replica) {
    let explained = replica.run(&["explain", "node-1", "cluster", "a"], "");
    assert!(explained.out.contains("frozen since revision"), "{explained:?}");
    let new = replica.json(&["describe", "cluster", "b"]);
    assert_eq!(new["scopes"][0]["nodes_total"], 0, "no node sees a new resource: {new}");
    let new = replica.run(&["explain", "node-1", "cluster", "b"], "").out;
    assert!(new.contains("\"b\" of scope edge back from clients: "), "{new}");
}

/// Clients keep frozen content on every replica, also new clients, after kills of all replicas and under a new leader.
#[test]
fn frozen_content_stays_at_clients_of_every_replica() {
    let root = tempfile::tempdir().unwrap();
    let mut replicas = joined(root.path());
    write(&replicas[0], &["apply", "-f", "-"], RULES);
    apply(&replicas[0], "edge", &["a"], "1s");
    apply(&replicas[0], "base", &["marker"], "1s");
    let mut fleet = Fleet { runtime: Runtime::new().unwrap(), clients: Vec::new(), n_markers: 1 };
    fleet.connect(&replicas);
    let frozen = write(&replicas[1], &["freeze", "edge", "--reason", "incident 12"], "");
    // Clients have what is written again.
    let apply_edge = ["apply", "-f", "-", "--scope", "edge", "--wait=30s"];
    let done = replicas[0].run(&apply_edge, &clusters(&["a"], "1s"));
    assert_eq!(done.code, 0, "{done:?}");
    let done = replicas[2].run(&apply_edge, &clusters(&["a", "b"], "2s"));
    assert!(held(&done).contains(&format!("since revision {frozen}")), "{done:?}");
    assert!(done.err.contains("incident 12"), "{done:?}");
    held(&replicas[0].run(&["wait", &(frozen + 1).to_string()], ""));
    held(&replicas[0].run(&["wait", &(frozen + 1).to_string(), "--scope", "edge"], ""));
    held(&replicas[1].run(&["nodes", "--behind", &(frozen + 1).to_string()], ""));
    for replica in &replicas {
        let described = replica.run(&["describe", "cluster", "a", "--scope", "edge"], "");
        let line = format!("held      frozen since revision {frozen}; nodes have");
        assert!(described.out.contains(&line), "{described:?}");
    }
    fleet.next_is(&replicas[2], &[("a", 1)]);
    let before = replicas[0].json(&["get", "cluster", "--node", "node-0"]);
    for replica in &mut replicas {
        replica.kill();
        replica.start_and_wait(&[]);
    }
    replicas[0].wait_voters(3);
    let first = fleet.connect(&replicas);
    for response in &first {
        let expected = Clusters::from([("a".into(), 1), ("marker".into(), 2)]);
        assert_eq!(marks(response), expected);
        assert_eq!(response.version_info, first[0].version_info, "versions are equal");
    }
    let seen = replicas[1].json(&["get", "cluster", "--node", "node-0"]);
    assert_eq!(seen["resources"], before["resources"]);
    fleet.next_is(&replicas[0], &[("a", 1)]);
    for replica in &replicas {
        let freezes = replica.json(&["freezes"]);
        let freeze = &freezes["freezes"][0];
        assert_eq!(
            (freeze["scope"].as_str(), freeze["held_resources"].as_u64()),
            (Some("edge"), Some(2))
        );
        check_explained(replica);
    }
    // An urgent write passes the freeze, and releases nothing else.
    let urgent = ["apply", "-f", "-", "--scope", "edge", "--override-freeze", "--wait=30s"];
    let done = run_while_clients_read(&mut fleet, &replicas[1], &urgent, &clusters(&["c"], "3s"));
    assert_eq!(done.code, 0, "{done:?}");
    fleet.next_is(&replicas[1], &[("a", 1), ("c", 3)]);
    let dry = replicas[2].run(&["thaw", "edge", "--dry-run"], "");
    assert_eq!(dry.code, 2, "{dry:?}");
    assert!(
        dry.out.contains("added    cluster  b") && dry.out.contains("updated  cluster  a"),
        "{dry:?}"
    );
    let done =
        run_while_clients_read(&mut fleet, &replicas[2], &["thaw", "edge", "--wait=30s"], "");
    assert_eq!(done.code, 0, "{done:?}");
    fleet.next_is(&replicas[1], &[("a", 2), ("b", 2), ("c", 3)]);
    let missing = replicas[1].run(&["thaw", "edge"], "");
    assert!(
        missing.code == 1 && missing.err.contains("there is no freeze of scope"),
        "{missing:?}"
    );
}

/// Small deletions that a freeze holds together trip the guard at the thaw, from any replica. The way back trips none.
#[test]
fn thaw_trips_guards_by_what_clients_have() {
    let root = tempfile::tempdir().unwrap();
    let replicas = joined(root.path());
    write(&replicas[0], &["apply", "-f", "-"], RULES);
    let names: Vec<String> = (0..60).map(|n| format!("c{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    apply(&replicas[0], "edge", &names, "1s");
    apply(&replicas[0], "base", &["marker"], "1s");
    let mut fleet = Fleet { runtime: Runtime::new().unwrap(), clients: Vec::new(), n_markers: 1 };
    fleet.connect(&replicas[1..2]);
    write(&replicas[1], &["freeze", "edge"], "");
    for n in [43, 31, 22, 16, 1] {
        let prune = ["apply", "-f", "-", "--scope", "edge", "--prune", "--confirm", "unasked"];
        write(&replicas[2], &prune, &clusters(&names[..n], "1s"));
    }
    for replica in &replicas {
        let deleted = replica.run(&["describe", "cluster", "c59"], "");
        let held = "clients still have it, because a freeze holds its deletion back";
        assert!(deleted.code == 1 && deleted.err.contains(held), "{deleted:?}");
        let dry = replica.run(&["thaw", "edge", "--dry-run"], "");
        assert_eq!(dry.code, 1, "{dry:?}");
        assert!(format!("{}{}", dry.out, dry.err).contains("mass-deletion"), "{dry:?}");
        let refused = replica.run(&["thaw", "edge"], "");
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(refused.err.contains("guard `mass-deletion` rejects"), "{refused:?}");
    }
    fleet.next_is(&replicas[0], &names.iter().map(|name| (*name, 1)).collect::<Vec<_>>());
    write(&replicas[0], &["thaw", "edge", "--confirm", "mass-deletion"], "");
    fleet.converge(&[("c0", 1)]);
    // Clients have nothing of what a discard takes back, so it needs no confirmation.
    write(&replicas[0], &["freeze", "edge"], "");
    apply(&replicas[1], "edge", &names, "2s");
    write(&replicas[2], &["thaw", "edge", "--discard"], "");
    let missing = replicas[0].run(&["freeze", "egde"], "");
    assert!(missing.err.contains("scope \"egde\" has no resources"), "{missing:?}");
}

/// While all scopes are frozen, nodes keep their scopes, and held assignments count for no guard. Each replica finds the
/// same guards, also the one that serves the client.
#[test]
fn held_assignments_do_not_count_for_guards() {
    let root = tempfile::tempdir().unwrap();
    let replicas = joined(root.path());
    write(&replicas[0], &["apply", "-f", "-"], RULES);
    let names: Vec<String> = (0..30).map(|n| format!("c{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    apply(&replicas[0], "edge", &names, "1s");
    apply(&replicas[0], "new", &names, "1s");
    let mut fleet = Fleet { runtime: Runtime::new().unwrap(), clients: Vec::new(), n_markers: 0 };
    fleet.connect(&replicas[1..2]);
    write(&replicas[0], &["freeze", "--all"], "");
    let moved = RULES.replace("[edge, base]", "[new]");
    write(&replicas[2], &["apply", "-f", "-", "--confirm", "view-change,unasked"], &moved);
    let left = clusters(&names[..1], "1s");
    for replica in &replicas {
        let prune = |scope| {
            replica.run(&["apply", "-f", "-", "--prune", "--scope", scope, "--dry-run"], &left)
        };
        let seen = prune("edge");
        assert!(seen.code == 1 && seen.err.contains("guard `mass-deletion`"), "{seen:?}");
        let unseen = prune("new");
        assert!(unseen.code == 2 && !unseen.err.contains("mass-deletion"), "{unseen:?}");
    }
}

/// Runs a command that waits for the clients, which read the next response meanwhile.
fn run_while_clients_read(
    fleet: &mut Fleet,
    replica: &Replica,
    args: &[&str],
    input: &str,
) -> Done {
    std::thread::scope(|scope| {
        let command = scope.spawn(|| replica.run(args, input));
        fleet.runtime.block_on(async {
            for client in &mut fleet.clients {
                let response = client.read().await;
                client.accept(&response).await;
            }
        });
        command.join().unwrap()
    })
}

/// `thaw --discard` takes held changes back, a freeze ends at its time, and a freeze of all scopes holds assignments and
/// new scopes.
#[test]
fn freezes_are_discarded_and_end_at_their_time() {
    let root = tempfile::tempdir().unwrap();
    let replicas = joined(root.path());
    write(&replicas[0], &["apply", "-f", "-"], RULES);
    apply(&replicas[0], "edge", &["a"], "1s");
    let mut fleet = Fleet { runtime: Runtime::new().unwrap(), clients: Vec::new(), n_markers: 0 };
    fleet.connect(&replicas);
    write(&replicas[0], &["freeze", "--all"], "");
    let alone = replicas[1].run(&["freeze", "edge"], "");
    assert!(alone.code == 1 && alone.err.contains("all scopes are frozen"), "{alone:?}");
    apply(&replicas[2], "edge", &["a", "b"], "2s");
    apply(&replicas[2], "base", &["new"], "2s");
    let urgent = ["apply", "-f", "-", "--override-freeze", "--wait=30s"];
    let more = "assignments: [{name: more, priority: 9, match: {id: other}, scopes: [edge]}]";
    let done = replicas[0].run(&urgent, more);
    assert_ne!(done.code, 6, "an urgent change of assignments is not held: {done:?}");
    write(&replicas[2], &["assignments", "delete", "each", "--confirm", "view-change,unasked"], "");
    let listed = replicas[1].run(&["freezes"], "");
    assert!(
        listed.out.contains("(all)") && listed.out.contains("3 and the assignments"),
        "{listed:?}"
    );
    let dry = replicas[1].run(&["thaw", "--all", "--discard", "--dry-run"], "");
    // Clients have the old assignment.
    assert_eq!(dry.code, 2, "{dry:?}");
    write(&replicas[1], &["thaw", "--all", "--discard"], "");
    fleet.converge(&[("a", 1)]);
    fleet.next_is(&replicas[0], &[("a", 1)]);
    let stored = replicas[2].json(&["get", "cluster", "--scope", "edge"]);
    assert_eq!(stored["resources"].as_array().unwrap().len(), 1, "{stored}");
    // The end of a freeze changes no assignment.
    write(&replicas[0], &["freeze", "--all"], "");
    write(&replicas[0], &["thaw", "--all"], "");
    let thaw = replicas[1].json(&["history", "-n", "1"])["entries"][0].clone();
    assert_eq!((&thaw["access"], &thaw["names"]), (&json!(1), &json!([])), "{thaw}");
    write(&replicas[1], &["freeze", "edge", "--for", "5s"], "");
    let revision = apply(&replicas[2], "edge", &["a"], "7s");
    eventually("the freeze ends", || {
        let freezes = replicas[2].json(&["freezes"]);
        freezes["freezes"].as_array().is_none_or(Vec::is_empty).then_some(())
    });
    fleet.converge(&[("a", 7)]);
    let last = replicas[0].json(&["history", "-n", "1"])["entries"][0].clone();
    assert_eq!(last["revision"].as_u64(), Some(revision + 1));
    assert_eq!(last["reason"], "thaw of scope \"edge\": its time has ended");

    // Held assignments move the clients at the thaw, also if access rules have changed since.
    write(&replicas[0], &["freeze", "--all"], "");
    let moved = RULES.replace("[edge, base]", "[base]");
    write(&replicas[1], &["apply", "-f", "-", "--confirm", "view-change,unasked"], &moved);
    let rule = "access: [{name: x, identity: 'token:x', allow: [{verbs: [get], scopes: ['**']}]}]";
    write(&replicas[1], &["apply", "-f", "-"], rule);
    let stale = replicas[2].run(&["thaw", "--all", "--if-revision", "3"], "");
    assert!(stale.code == 1 && stale.err.contains("has changed"), "{stale:?}");
    for replica in &replicas {
        let guarded = replica.run(&["thaw", "--all"], "");
        assert!(guarded.code == 1 && guarded.err.contains("guard `view-change`"), "{guarded:?}");
    }
    write(&replicas[2], &["thaw", "--all", "--confirm", "view-change,unasked"], "");
    for client in &mut fleet.clients {
        fleet.runtime.block_on(async {
            loop {
                let response = client.read().await;
                client.accept(&response).await;
                if !marks(&response).contains_key("a") {
                    return;
                }
            }
        });
    }
}
