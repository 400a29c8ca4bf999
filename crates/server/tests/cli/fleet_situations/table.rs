//! The situations, in turn. Each begins with what the ones before have left.

use chancery_model::types::ENDPOINT;

use crate::{
    cluster::eventually,
    network::Cut,
    scripted::{Client, Manner},
};

use super::{RULES, Situation, World, silence::until_silent};

const EDGE: [&str; 3] = ["edge-1", "edge-2", "edge-3"];

fn endpoints(scope: &str, name: &str) -> String {
    format!("scope: {scope}\nresources: [{{'@type': {ENDPOINT}, cluster_name: {name}}}]")
}

/// Returns a route table that refers to a cluster.
fn route(scope: &str, cluster: &str) -> String {
    format!(
        "scope: {scope}\nresources: [{{'@type': type.googleapis.com/envoy.config.route.v3.RouteConfiguration, name: main, \
         virtual_hosts: [{{name: all, domains: ['*'], routes: [{{match: {{prefix: /}}, route: {{cluster: {cluster}}}}}]}}]}}]"
    )
}

/// Publishes a cluster that the clients of a scope accept.
fn publish_to(world: &mut World, at: usize, scope: &str, name: &str, keys: &[&str]) {
    let mark = world.publish(at, scope, &[name]);
    for key in keys {
        world.until_held(key, name, mark);
    }
}

/// The clients and answers that a write can meet.
const WRITES: &[Situation] = &[
    Situation {
        name: "a client on each replica",
        change: |world| {
            for key in EDGE {
                world.until(key, |client| client.record().mark("web").is_some());
            }
        },
        subject: ("edge-1", "web"),
    },
    Situation {
        name: "a write through the leader",
        change: |world| publish_to(world, world.leader(), "shared", "web", &EDGE),
        subject: ("edge-2", "web"),
    },
    Situation {
        name: "a write through a follower",
        change: |world| publish_to(world, world.follower(), "shared", "web", &EDGE),
        subject: ("edge-3", "web"),
    },
    Situation {
        name: "a client rejects on another replica",
        change: |world| {
            world.manner("edge-2", Manner::Reject);
            publish_to(world, 0, "shared", "web", &["edge-1", "edge-3", "canary-1"]);
            world.until_rejected("edge-2");
        },
        subject: ("edge-2", "web"),
    },
    Situation {
        name: "a revision for another node while a rejection stands",
        change: |world| publish_to(world, 2, "node/edge-1", "own", &["edge-1"]),
        subject: ("edge-1", "own"),
    },
    Situation {
        name: "the client accepts a later write",
        change: |world| {
            world.manner("edge-2", Manner::Accept);
            publish_to(world, 1, "shared", "web", &EDGE);
        },
        subject: ("edge-2", "web"),
    },
    Situation {
        name: "a silent client",
        change: |world| {
            world.manner("edge-3", Manner::Silent);
            publish_to(world, 0, "shared", "web", &["edge-1", "edge-2", "canary-1"]);
            world.until_owing("edge-3");
        },
        subject: ("edge-3", "web"),
    },
    Situation {
        name: "a second write while a client is silent",
        change: |world| publish_to(world, 1, "shared", "db", &["edge-1", "edge-2", "canary-1"]),
        subject: ("edge-3", "db"),
    },
    Situation {
        name: "a revision for another node while a client is silent",
        change: |world| publish_to(world, 0, "node/edge-2", "own", &["edge-2"]),
        subject: ("edge-3", "db"),
    },
    Situation {
        name: "a late acknowledgement",
        change: |world| {
            world.client("edge-3").answer(Manner::Accept);
            let mark = world.published[&("shared".to_owned(), "db".to_owned())];
            world.until_held("edge-3", "db", mark);
        },
        subject: ("edge-3", "db"),
    },
    Situation {
        name: "a late rejection",
        change: |world| {
            world.manner("edge-3", Manner::Silent);
            publish_to(world, 0, "shared", "db", &["edge-1", "edge-2", "canary-1"]);
            world.until_owing("edge-3");
            world.client("edge-3").answer(Manner::Reject);
            world.until_rejected("edge-3");
        },
        subject: ("edge-3", "db"),
    },
    Situation {
        name: "a rejected cluster is replaced",
        change: |world| {
            world.manner("edge-3", Manner::Accept);
            publish_to(world, 2, "shared", "db", &EDGE);
        },
        subject: ("edge-3", "db"),
    },
    Situation {
        name: "a revision that touches nobody",
        change: |world| {
            world.publish(1, "nobody", &["web"]);
        },
        subject: ("edge-1", "web"),
    },
    Situation {
        name: "a write that changes nothing",
        change: |world| {
            let before = world.revision;
            world.mark -= 1;
            world.publish(0, "nobody", &["web"]);
            assert_eq!(world.revision, before);
        },
        subject: ("edge-2", "web"),
    },
    Situation {
        name: "a cluster of one node",
        change: |world| publish_to(world, 0, "node/edge-3", "own", &["edge-3"]),
        subject: ("edge-3", "own"),
    },
    Situation {
        name: "a node does not see the cluster of another",
        change: |world| publish_to(world, 0, "node/edge-1", "alone", &["edge-1"]),
        subject: ("edge-2", "alone"),
    },
];

/// Scopes that shadow each other, removals, and names that nothing has.
const NAMES: &[Situation] = &[
    Situation {
        name: "a shadowed cluster",
        change: |world| publish_to(world, 2, "canary", "web", &["canary-1"]),
        subject: ("canary-1", "web"),
    },
    Situation {
        name: "a change of the shadowed cluster",
        change: |world| publish_to(world, 0, "shared", "web", &EDGE),
        subject: ("canary-1", "web"),
    },
    Situation {
        name: "the shadowing cluster is rejected",
        change: |world| {
            world.manner("canary-1", Manner::Reject);
            world.publish(0, "canary", &["web"]);
            world.until_rejected("canary-1");
        },
        subject: ("canary-1", "web"),
    },
    Situation {
        name: "the shadowing cluster is removed",
        change: |world| {
            world.manner("canary-1", Manner::Accept);
            world.delete(1, "canary", "web");
            let mark = world.published[&("shared".to_owned(), "web".to_owned())];
            world.until_held("canary-1", "web", mark);
        },
        subject: ("canary-1", "web"),
    },
    Situation {
        name: "a new name",
        change: |world| publish_to(world, 0, "shared", "new", &["edge-1", "canary-1"]),
        subject: ("edge-2", "new"),
    },
    Situation {
        name: "a removal that a client does not answer",
        change: |world| {
            world.manner("edge-1", Manner::Silent);
            world.delete(2, "shared", "new");
            world.until_gone("edge-2", "new");
            world.until_gone("edge-3", "new");
            world.until_owing("edge-1");
        },
        subject: ("edge-1", "new"),
    },
    Situation {
        name: "a removed name",
        change: |world| {
            world.client("edge-1").answer(Manner::Accept);
            world.until_gone("edge-1", "new");
        },
        subject: ("edge-1", "new"),
    },
    Situation {
        name: "a client asks for a name that nothing has",
        change: |world| {
            let mut client = Client::new("edge-9");
            client.types.push((ENDPOINT, vec!["late"]));
            world.add("dangling", client, 1);
        },
        subject: ("edge-9", "web"),
    },
    Situation {
        name: "the name is published",
        change: |world| {
            world.apply(0, &endpoints("node/edge-9", "late"));
            world.until("dangling", |client| {
                client.record().held.get(ENDPOINT).is_some_and(|held| held.contains_key("late"))
            });
        },
        subject: ("edge-9", "db"),
    },
    Situation {
        name: "the client with the name leaves",
        change: |world| world.close("dangling"),
        subject: ("edge-9", "web"),
    },
    Situation {
        name: "a dangling reference",
        change: |world| {
            world.apply(1, &route("node/edge-2", "later"));
            for at in 0..3 {
                let route = ["describe", "rds", "main", "--scope", "node/edge-2"];
                let described = world.fleet.replicas[at].json(&route);
                assert_eq!(described["scopes"][0]["referents"][0]["state"], "missing");
            }
        },
        subject: ("edge-2", "later"),
    },
    Situation {
        name: "the reference is resolved",
        change: |world| publish_to(world, 2, "shared", "later", &EDGE),
        subject: ("edge-2", "later"),
    },
];

/// Nodes without an assignment, with one ID, or that move and end.
const NODES: &[Situation] = &[
    Situation {
        name: "an unassigned node",
        change: |world| world.connect("stray", "stray-1", 2),
        subject: ("stray-1", "web"),
    },
    Situation {
        name: "the node has an assignment",
        change: |world| {
            world.unassigned = "nobody";
            let rule = "assignments: [{name: stray, priority: 5, match: {id: 'stray-*'}, scopes: [shared]}]";
            world.apply(0, rule);
            world.until("stray", |client| client.record().mark("web").is_some());
        },
        subject: ("stray-1", "web"),
    },
    Situation {
        name: "the assignment is gone",
        change: |world| {
            world.unassigned = "stray";
            world.write(1, &["assignments", "delete", "stray", "--confirm", "all"], "");
        },
        subject: ("stray-1", "web"),
    },
    Situation {
        name: "the unassigned node leaves",
        change: |world| world.close("stray"),
        subject: ("stray-1", "web"),
    },
    Situation {
        name: "two clients with one node ID",
        change: |world| {
            world.connect("twin", "edge-2", 0);
            world.until("twin", |client| client.record().mark("web").is_some());
        },
        subject: ("edge-2", "web"),
    },
    Situation {
        name: "one of the two rejects",
        change: |world| {
            world.manner("twin", Manner::Reject);
            publish_to(world, 2, "shared", "web", &EDGE);
            world.until_rejected("twin");
        },
        subject: ("edge-2", "web"),
    },
    Situation {
        name: "one of the two leaves",
        change: |world| world.close("twin"),
        subject: ("edge-2", "web"),
    },
    Situation {
        name: "a node moves to another replica",
        change: |world| {
            world.client("edge-1").move_to(2);
            world.until("edge-1", |client| client.record().connected == Some(2));
        },
        subject: ("edge-1", "web"),
    },
    Situation {
        name: "a write to the node that has moved",
        change: |world| publish_to(world, 0, "shared", "web", &EDGE),
        subject: ("edge-1", "web"),
    },
    Situation {
        name: "a node moves instead of answering",
        change: |world| {
            world.manner("edge-1", Manner::Move(0, Box::new(Manner::Silent)));
            publish_to(world, 1, "shared", "web", &["edge-2", "edge-3"]);
            world.until_owing("edge-1");
        },
        subject: ("edge-1", "web"),
    },
    Situation {
        name: "the moved node answers",
        change: |world| {
            world.client("edge-1").answer(Manner::Accept);
            let mark = world.mark;
            world.until_held("edge-1", "web", mark);
        },
        subject: ("edge-1", "web"),
    },
    Situation {
        name: "a client disconnects",
        change: |world| world.close("canary-1"),
        subject: ("canary-1", "web"),
    },
    Situation {
        name: "a write while the client is away",
        change: |world| publish_to(world, 2, "shared", "web", &EDGE),
        subject: ("canary-1", "web"),
    },
    Situation {
        name: "the client returns to another replica",
        change: |world| {
            let mark = world.mark;
            world.reconnect("canary-1", 0);
            world.until_held("canary-1", "web", mark);
        },
        subject: ("canary-1", "web"),
    },
    Situation {
        name: "an assignment to a scope without resources",
        change: |world| {
            let rule = "assignments: [{name: canary, priority: 30, match: {id: 'canary-*'}, scopes: [nothing]}]";
            world.apply(1, rule);
            world.until_gone("canary-1", "web");
        },
        subject: ("canary-1", "web"),
    },
    Situation {
        name: "the assignment is as before",
        change: |world| {
            world.apply(0, RULES);
            world.until("canary-1", |client| client.record().mark("web").is_some());
        },
        subject: ("canary-1", "web"),
    },
];

/// Replicas that lead, hang, end, or take no streams.
const REPLICAS: &[Situation] = &[
    Situation {
        name: "another replica leads",
        change: |world| {
            world.lead(world.follower());
            publish_to(world, 0, "shared", "web", &EDGE);
        },
        subject: ("edge-1", "web"),
    },
    Situation {
        name: "a drained replica",
        change: |world| {
            world.write(0, &["drain", "2", "--over", "0s"], "");
            world.until("edge-2", |client| client.record().connected.is_none());
            publish_to(world, 1, "shared", "web", &["edge-1", "edge-3"]);
        },
        subject: ("edge-2", "web"),
    },
    Situation {
        name: "the replica takes streams again",
        change: |world| {
            world.write(2, &["undrain", "2"], "");
            let mark = world.mark;
            world.reconnect("edge-2", 1);
            world.until_held("edge-2", "web", mark);
        },
        subject: ("edge-2", "web"),
    },
    Situation {
        name: "a silent client, while a follower hangs",
        change: |world| {
            let hanging = world.follower();
            world.manner("canary-1", Manner::Silent);
            world.publish(hanging, "shared", &["web"]);
            world.until_owing("canary-1");
            world.hang(hanging);
        },
        subject: ("canary-1", "web"),
    },
    Situation {
        name: "the follower goes on",
        change: |world| {
            for at in world.missing.clone() {
                world.go_on(at);
            }
            let mark = world.mark;
            for key in EDGE {
                world.until_held(key, "web", mark);
            }
        },
        subject: ("edge-2", "web"),
    },
    Situation {
        name: "the silent client ends without an answer",
        change: |world| world.close("canary-1"),
        subject: ("canary-1", "web"),
    },
    Situation {
        name: "a follower is down",
        change: |world| {
            let down = world.follower();
            world.kill(down);
            let keys: Vec<&str> = EDGE
                .into_iter()
                .filter(|key| world.client(key).record().connected.is_some())
                .collect();
            publish_to(world, world.asked(), "shared", "web", &keys);
        },
        subject: ("edge-1", "web"),
    },
    Situation {
        name: "the follower is back",
        change: |world| restart_with_clients(world),
        subject: ("edge-2", "web"),
    },
    Situation {
        name: "the leader is killed, and a client rejects meanwhile",
        change: |world| {
            if world.leader() == 0 {
                world.lead(1);
            }
            world.kill(world.leader());
            world.manner("edge-1", Manner::Reject);
            world.fleet.wait_leader(0);
            world.publish(0, "shared", &["web"]);
            world.until_rejected("edge-1");
        },
        subject: ("edge-1", "web"),
    },
    Situation {
        name: "the leader is back, and the client accepts",
        change: |world| {
            for key in EDGE {
                world.manner(key, Manner::Accept);
            }
            restart_with_clients(world);
            publish_to(world, 0, "shared", "web", &EDGE);
        },
        subject: ("edge-3", "web"),
    },
];

/// Starts the replicas that are down, and connects the clients that have lost their streams.
fn restart_with_clients(world: &mut World) {
    for at in world.missing.clone() {
        world.restart(at);
    }
    let mark = world.mark;
    for (at, key) in EDGE.into_iter().enumerate() {
        if world.client(key).record().connected.is_none() {
            world.reconnect(key, at);
        }
        let has_rejected = !world.client(key).record().rejected.is_empty();
        world.until(key, |client| has_rejected || client.record().mark("web") == Some(mark));
    }
}

/// The keys of the clients that have a stream to another replica than this one.
fn edges_without(world: &World, at: usize) -> Vec<&'static str> {
    let is_elsewhere = |key: &&str| world.client(key).record().connected != Some(at);
    EDGE.into_iter().filter(is_elsewhere).collect()
}

/// Publishes a cluster while a replica is cut off. The clients of the others accept it.
fn publish_without(world: &mut World, cut_off: usize, name: &str) {
    let keys = edges_without(world, cut_off);
    publish_to(world, 0, "shared", name, &keys);
}

/// Waits until all clients hold what was published last.
fn until_all_hold(world: &World, name: &str) {
    let mark = world.mark;
    EDGE.into_iter().for_each(|key| world.until_held(key, name, mark));
}

/// A replica that is cut off refuses to read the newest state, which it may not have.
fn refuses_to_read(world: &World, at: usize) {
    eventually("the replica notices that it is alone", || {
        let done = world.fleet.replicas[at].run(&["describe", "cds", "web"], "");
        assert_ne!(done.code, 4, "{done:?}");
        (done.code == 1 && done.err.contains("--stale")).then_some(())
    });
}

/// Replicas that run, and do not reach each other.
const PARTITIONS: &[Situation] = &[
    Situation {
        name: "a follower is cut off",
        change: |world| {
            // The first replica is asked for writes, and stays with the majority.
            let cut_off = world.follower();
            world.cut(cut_off, Cut::Silent);
            refuses_to_read(world, cut_off);
        },
        subject: ("edge-1", "web"),
    },
    Situation {
        name: "a write while the follower is cut off",
        change: |world| {
            let cut_off = world.cut_off.as_ref().unwrap().at;
            publish_without(world, cut_off, "web");
        },
        subject: ("edge-2", "web"),
    },
    Situation {
        name: "a client connects to the replica that is cut off",
        change: |world| {
            let at = world.cut_off.as_ref().unwrap().at;
            world.connect("late", "edge-7", at);
            world.until("late", |client| client.record().mark("web").is_some());
        },
        subject: ("edge-7", "web"),
    },
    Situation {
        name: "a client rejects while a replica is cut off",
        change: |world| {
            world.manner("edge-1", Manner::Reject);
            let cut_off = world.cut_off.as_ref().unwrap().at;
            let keys: Vec<&str> =
                edges_without(world, cut_off).into_iter().filter(|key| *key != "edge-1").collect();
            publish_to(world, 0, "shared", "web", &keys);
            world.until_rejected("edge-1");
        },
        subject: ("edge-1", "web"),
    },
    Situation {
        name: "a client moves away from the replica that is cut off",
        change: |world| {
            let cut_off = world.cut_off.as_ref().unwrap().at;
            let key = EDGE[cut_off];
            world.client(key).move_to(0);
            let mark = world.mark;
            world.until_held(key, "web", mark);
        },
        subject: ("edge-3", "web"),
    },
    Situation {
        name: "the replica is no longer cut off",
        change: |world| {
            world.heal();
            world.manner("edge-1", Manner::Accept);
            let mark = world.mark;
            world.until_held("late", "web", mark);
            publish_to(world, 1, "shared", "web", &EDGE);
            world.until_held("late", "web", world.mark);
            world.close("late");
        },
        subject: ("edge-1", "web"),
    },
    Situation {
        name: "each client returns to a replica of its own",
        change: |world| {
            for (at, key) in EDGE.into_iter().enumerate() {
                world.client(key).move_to(at);
                world.until(key, |client| client.record().connected == Some(at));
            }
        },
        subject: ("edge-2", "web"),
    },
    Situation {
        name: "the leader is cut off",
        change: |world| {
            if world.leader() == 0 {
                world.lead(1);
            }
            let leader = world.leader();
            world.cut(leader, Cut::Silent);
            world.fleet.wait_leader(0);
            publish_without(world, leader, "web");
            refuses_to_read(world, leader);
        },
        subject: ("edge-1", "web"),
    },
    Situation {
        name: "the former leader is no longer cut off",
        change: |world| {
            world.heal();
            until_all_hold(world, "web");
        },
        subject: ("edge-2", "web"),
    },
    Situation {
        name: "connections to a follower are refused",
        change: |world| {
            let cut_off = world.follower();
            world.cut(cut_off, Cut::Reset);
            publish_without(world, cut_off, "db");
        },
        subject: ("edge-3", "db"),
    },
    Situation {
        name: "the follower accepts connections",
        change: |world| {
            world.heal();
            until_all_hold(world, "db");
        },
        subject: ("edge-1", "db"),
    },
];

/// A client that never answers.
const SILENCE: &[Situation] = &[
    Situation {
        name: "a client is silent for more than ten seconds",
        change: |world| {
            world.manner("edge-3", Manner::Silent);
            publish_to(world, 0, "shared", "web", &["edge-1", "edge-2"]);
            world.until_owing("edge-3");
            until_silent(world, "edge-3");
        },
        subject: ("edge-3", "web"),
    },
    Situation {
        name: "the silent client answers",
        change: |world| {
            world.client("edge-3").answer(Manner::Accept);
            until_all_hold(world, "web");
        },
        subject: ("edge-3", "web"),
    },
];

pub(super) const TABLE: [&[Situation]; 6] = [WRITES, NAMES, NODES, REPLICAS, PARTITIONS, SILENCE];
