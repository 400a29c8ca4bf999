//! The situations of `cargo xtask fleet`: synthetic clients, writes, and faults of replicas and of their network, while the real
//! clients are connected.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::{
    network::Cut,
    scripted::{Manner, Protocol},
    support::{
        STEP,
        envoy::Mode,
        manifests::{CLUSTER, cluster, route},
        wait_for,
    },
};

use super::{
    Fleet,
    commands::{add, own, revision_of},
    crowd::{self, SCOPE, id},
};

/// A change of the fleet.
pub(super) struct Situation {
    pub(super) name: &'static str,
    pub(super) change: fn(&mut Fleet) -> Result<()>,
}

/// Publishes the cluster of the synthetic clients with a new mark. Returns when all clients except `except` hold it.
fn publish_crowd(fleet: &mut Fleet, at: usize, except: &[&str]) -> Result<()> {
    fleet.mark += 1;
    add(&fleet.replicas[at], SCOPE, &crowd::cluster(fleet.mark))?;
    fleet.crowd.until_held(fleet.mark, except)
}

/// Publishes the cluster while a replica is cut off. Its clients do not receive the cluster.
fn publish_to_live(fleet: &mut Fleet) -> Result<()> {
    let ids = fleet.crowd_of_dead();
    publish_crowd(fleet, 0, &ids.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Lets clients reject the next write.
fn reject(fleet: &mut Fleet, at: usize, numbers: &[usize]) -> Result<()> {
    let ids: Vec<String> = numbers.iter().copied().map(id).collect();
    for id in &ids {
        fleet.crowd.set_manner(id, Manner::Reject)?;
    }
    publish_crowd(fleet, at, &ids.iter().map(String::as_str).collect::<Vec<_>>())?;
    for id in &ids {
        fleet.crowd.until_rejected(id)?;
        fleet.expect(id, "rejected", "bad port");
    }
    Ok(())
}

/// Lets all clients accept the next write.
fn accept(fleet: &mut Fleet, at: usize) -> Result<()> {
    for id in fleet.unusual_ids() {
        fleet.crowd.set_manner(&id, Manner::Accept)?;
    }
    fleet.expect_nothing();
    publish_crowd(fleet, at, &[])
}

/// Lets a client receive the next write without an answer, and waits until it is silent.
fn silence(fleet: &mut Fleet, at: usize, number: usize) -> Result<()> {
    let id = id(number);
    fleet.crowd.set_manner(&id, Manner::Silent)?;
    publish_crowd(fleet, at, &[&id])?;
    fleet.crowd.until_owing(&id)?;
    wait_for("the client is silent", STEP, || {
        let nodes = fleet.replicas[at].cli(&["nodes", "--state", "silent"], "")?;
        ensure!(nodes["nodes"][0]["id"] == *id, "{nodes}");
        Ok(Some(()))
    })?;
    fleet.expect(&id, "silent", "");
    Ok(())
}

fn answer(fleet: &mut Fleet, number: usize) -> Result<()> {
    fleet.crowd.client(&id(number))?.answer(Manner::Accept);
    fleet.expect_nothing();
    fleet.crowd.until_held(fleet.mark, &[])
}

/// Adds a cluster to the scope of an Envoy, or removes it.
fn own_cluster(fleet: &mut Fleet, proxy: usize, exists: bool) -> Result<()> {
    let scope = own(&format!("edge-{proxy}"));
    if exists {
        let cluster = json!({"@type": CLUSTER, "name": "own", "type": "STATIC"});
        add(&fleet.replicas[0], &scope, &cluster)?;
    } else {
        fleet.replicas[1].cli(&["delete", "cluster", "own", "--scope", &scope], "")?;
    }
    Ok(())
}

/// Waits until a replica other than `former` leads.
fn wait_for_leader_besides(fleet: &Fleet, asked: usize, former: usize) -> Result<()> {
    wait_for("another leader", 2 * STEP, || {
        let status = fleet.replicas[asked].ask(&["cluster", "status"], "")?.json;
        let leader = status["leader"].as_u64().context("no leader")?;
        ensure!(leader != former as u64 + 1, "{status}");
        add(&fleet.replicas[asked], "nobody", &cluster(Mode::SotwAds, "unseen", "2s")).map(Some)
    })?;
    Ok(())
}

/// Cuts a replica off. The replica keeps running, and knows only its own clients.
fn cut(fleet: &mut Fleet, at: usize, cut: Cut) -> Result<()> {
    fleet.network.cut(at, cut);
    fleet.live.retain(|live| *live != at);
    let done = fleet.replicas[at].ask(&["nodes"], "")?;
    let missing = done.json["not_asked"].as_array().context("no list")?.len();
    ensure!(done.status.code() == Some(4) && missing == 2, "a replica that is cut off: {done:?}");
    let revision = revision_of_cut_off(fleet, at)?;
    let done = fleet.replicas[at].ask(&["wait", &revision, "--timeout", "1s"], "")?;
    ensure!(done.status.code() == Some(4), "a replica that is cut off: {done:?}");
    Ok(())
}

fn revision_of_cut_off(fleet: &Fleet, at: usize) -> Result<String> {
    let status = fleet.replicas[at].ask(&["cluster", "status"], "")?;
    let revision = status.json["revision"].as_u64();
    Ok(revision.with_context(|| format!("{status:?}"))?.to_string())
}

fn heal(fleet: &mut Fleet) -> Result<()> {
    fleet.network.heal();
    fleet.live = vec![0, 1, 2];
    fleet.replicas[0].wait_for_voters(3)?;
    fleet.crowd.until_held(fleet.mark, &[])
}

fn leader(fleet: &Fleet) -> Result<usize> {
    let status = fleet.replicas[0].cli(&["cluster", "status"], "")?;
    Ok(usize::try_from(status["leader"].as_u64().context("no leader")? - 1)?)
}

fn lead(fleet: &Fleet, at: usize) -> Result<()> {
    fleet.replicas[0].cli(&["cluster", "transfer-leader", &(at + 1).to_string()], "")?;
    wait_for("the replica leads", STEP, || Ok((leader(fleet)? == at).then_some(())))
}

/// Returns a follower that is not the first replica.
fn follower(fleet: &Fleet) -> Result<usize> {
    let leader = leader(fleet)?;
    (1..3).find(|at| *at != leader).context("no follower")
}

macro_rules! situations {
    ($($name:literal: $change:expr,)*) => {
        &[$(Situation { name: $name, change: $change }),*]
    };
}

pub(super) const TABLE: &[Situation] = situations! {
    "a write to all synthetic clients": |fleet| publish_crowd(fleet, 0, &[]),
    "a write through another replica": |fleet| publish_crowd(fleet, 2, &[]),
    "a write that changes nothing": |fleet| {
        let before = revision_of(&fleet.replicas[0])?;
        let after = add(&fleet.replicas[1], SCOPE, &crowd::cluster(fleet.mark))?;
        ensure!(before == after, "revision {after} after {before}");
        Ok(())
    },
    "a cluster of one Envoy": |fleet| own_cluster(fleet, 1, true),
    "a cluster of another Envoy": |fleet| own_cluster(fleet, 3, true),
    "the end of the cluster of the first Envoy": |fleet| own_cluster(fleet, 1, false),
    "the end of the cluster of the second Envoy": |fleet| own_cluster(fleet, 3, false),
    "a changed route table": |fleet| {
        let mut changed = route("main", "web");
        changed["response_headers_to_remove"] = json!(["x-none"]);
        add(&fleet.replicas[2], "mesh", &changed).map(drop)
    },
    "the route table as before": |fleet| add(&fleet.replicas[0], "mesh", &route("main", "web")).map(drop),
    "a SotW client rejects": |fleet| reject(fleet, 0, &[1]),
    "the client accepts a later write": |fleet| accept(fleet, 1),
    "a delta client rejects": |fleet| reject(fleet, 1, &[2]),
    "the delta client accepts a later write": |fleet| accept(fleet, 2),
    "clients of all replicas reject": |fleet| reject(fleet, 2, &[3, 4, 5, 6, 7, 8]),
    "a revision of nobody while clients reject": |fleet| {
        add(&fleet.replicas[0], "nobody", &cluster(Mode::SotwAds, "unseen", "4s")).map(drop)
    },
    "all clients accept": |fleet| accept(fleet, 0),
    "a silent SotW client": |fleet| silence(fleet, 0, 1),
    "the late acknowledgment of the SotW client": |fleet| answer(fleet, 1),
    "a silent delta client": |fleet| silence(fleet, 1, 2),
    "the late acknowledgment of the delta client": |fleet| answer(fleet, 2),
    "a client moves": |fleet| {
        fleet.crowd.client(&id(3))?.move_to(1);
        fleet.crowd.until(&id(3), "it moves", |client| client.record().connected == Some(1))
    },
    "a write to the client that has moved": |fleet| publish_crowd(fleet, 1, &[]),
    "a client leaves": |fleet| fleet.crowd.close(&id(4)),
    "a write while the client is away": |fleet| publish_crowd(fleet, 0, &[]),
    "the client returns to another replica": |fleet| {
        fleet.crowd.return_to(&id(4), 0)?;
        fleet.crowd.until(&id(4), "it returns", |client| client.record().connected == Some(0))?;
        fleet.crowd.until_held(fleet.mark, &[])
    },
    "two clients with one ID": |fleet| {
        fleet.crowd.connect("twin", &id(5), Protocol::Sotw, 0);
        fleet.crowd.until("twin", "it connects", |client| client.record().connected == Some(0))?;
        fleet.crowd.until_held(fleet.mark, &[])
    },
    "one of two clients with one ID leaves": |fleet| {
        fleet.crowd.close("twin")?;
        fleet.crowd.forget("twin");
        Ok(())
    },
    "an unassigned client": |fleet| {
        fleet.crowd.connect("stray-1", "stray-1", Protocol::Delta, 2);
        fleet.expect("stray-1", "unassigned", "");
        fleet.crowd.until("stray-1", "it connects", |client| client.record().connected == Some(2))
    },
    "the client has an assignment": |fleet| {
        let rule = json!({"assignments": [
            {"name": "stray", "priority": 1, "match": {"id": "stray-*"}, "scopes": [SCOPE]},
        ]});
        fleet.replicas[0].cli(&["apply", "-f", "-"], &rule.to_string())?;
        fleet.expect_nothing();
        fleet.crowd.until_held(fleet.mark, &[])
    },
    "the client leaves": |fleet| {
        fleet.crowd.close("stray-1")?;
        fleet.crowd.forget("stray-1");
        Ok(())
    },
    "another replica leads": |fleet| {
        lead(fleet, follower(fleet)?)?;
        publish_crowd(fleet, 0, &[])
    },
    "a drained replica": |fleet| {
        fleet.replicas[0].cli(&["drain", "3", "--over", "0s"], "")?;
        fleet.move_clients(2, 0);
        publish_crowd(fleet, 1, &[])
    },
    "the replica takes streams again": |fleet| {
        fleet.replicas[2].cli(&["undrain", "3"], "")?;
        publish_crowd(fleet, 2, &[])
    },
    "a follower is cut off": |fleet| {
        let at = follower(fleet)?;
        cut(fleet, at, Cut::Silent)
    },
    "a write while the follower is cut off": publish_to_live,
    "the follower is no longer cut off": heal,
    "the leader is cut off": |fleet| {
        if leader(fleet)? == 0 {
            lead(fleet, 1)?;
        }
        let former = leader(fleet)?;
        cut(fleet, former, Cut::Silent)?;
        wait_for_leader_besides(fleet, 0, former)?;
        publish_to_live(fleet)
    },
    "the former leader is no longer cut off": heal,
    "connections to a follower are refused": |fleet| {
        let at = follower(fleet)?;
        cut(fleet, at, Cut::Reset)
    },
    "the follower accepts connections": heal,
};
