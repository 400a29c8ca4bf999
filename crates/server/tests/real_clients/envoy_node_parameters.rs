//! Collections whose names have parameters of the node (`node_context_params`).

use std::path::Path;

use anyhow::{Result, ensure};
use chancery_testing::reserve_port;
use serde_json::{Value, json};

use crate::support::{
    STEP,
    chancery::Chancery,
    envoy::{Envoy, Mode},
    http, in_directory,
    manifests::{CLUSTER, LISTENER, cluster, endpoints, listener, route},
    upstream, wait_for,
};

/// Returns the name of a member of `edge/*` with the parameters of a node. Envoy adds them to the name of the
/// collection.
fn member(kind: &str, id: &str, node: &str) -> String {
    format!("{}?xds.node.cluster=e2e&xds.node.id={node}", collection(kind).replace('*', id))
}

fn collection(kind: &str) -> String {
    let package = kind.to_lowercase();
    format!("xdstp://mesh.example/envoy.config.{package}.v3.{kind}/edge/*")
}

/// Returns a listener, a route and a cluster for one node.
fn resources(mode: Mode, node: &str, port: u16, upstream: u16) -> Vec<Value> {
    let name = member("Cluster", "web", node);
    let mut own = cluster(mode, &name, "1s");
    own["eds_cluster_config"]["service_name"] = json!(node);
    vec![
        own,
        endpoints(node, upstream),
        listener(mode, &member("Listener", "main", node), port, node, "main"),
        route(node, &name),
    ]
}

fn start(dir: &Path, mode: Mode, node: &str, xds: u16) -> Result<Envoy> {
    let mut bootstrap = mode.bootstrap(node, xds);
    bootstrap["node_context_params"] = json!(["id", "cluster"]);
    let dynamic = &mut bootstrap["dynamic_resources"];
    dynamic["lds_resources_locator"] = json!(collection("Listener"));
    dynamic["cds_resources_locator"] = json!(collection("Cluster"));
    Envoy::start_with(dir, node, &bootstrap)
}

fn wait_for_answer(port: u16, from: &str) -> Result<()> {
    wait_for(&format!("an answer of {from:?}"), STEP, || {
        Ok(http::get(port, "/").ok().filter(|answer| answer == from).map(drop))
    })
}

fn life(mode: Mode) -> Result<()> {
    in_directory(|dir| {
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let (first, second, third) = (reserve_port(), reserve_port(), reserve_port());
        let extra = member("Listener", "extra", "envoy-1");
        let with = |upstream| {
            let plain = [cluster(mode, "plain", "1s"), endpoints("plain", a)];
            let own = resources(mode, "envoy-1", first, upstream);
            let others = resources(mode, "envoy-2", second, b);
            let extra = [listener(mode, &extra, third, "envoy-1", "extra")];
            plain.into_iter().chain(own).chain(others).chain(extra).collect::<Vec<_>>()
        };
        let chancery = Chancery::start(dir)?;
        chancery.publish(&with(a))?;
        let envoy = start(dir, mode, "envoy-1", chancery.at.xds)?;
        let other = start(dir, mode, "envoy-2", chancery.at.xds)?;
        let legacy = Envoy::start(dir, mode, "envoy-3", chancery.at.xds)?;
        wait_for_answer(first, "a")?;
        wait_for_answer(second, "b")?;
        for (envoy, node) in [(&envoy, "envoy-1"), (&other, "envoy-2")] {
            let names = envoy.active_cluster_names()?;
            ensure!(names == [member("Cluster", "web", node)], "{node} has {names:?}");
            chancery.wait_for_node(node, "synced", &[LISTENER, CLUSTER])?;
        }
        // A wildcard has no names of other nodes.
        chancery.wait_for_node("envoy-3", "synced", &[LISTENER, CLUSTER])?;
        let names = legacy.active_cluster_names()?;
        ensure!(names == ["plain"], "the wildcard has {names:?}");

        chancery.publish_and_wait(&with(b))?;
        wait_for_answer(first, "b")?;
        let mut left = with(b);
        // Envoy ignores a SotW response without any member of the collection, and so keeps the last one.
        let removals =
            [Some(extra.clone()), mode.is_delta().then(|| member("Listener", "main", "envoy-1"))];
        for (n, name) in (1..).zip(removals.into_iter().flatten()) {
            left.retain(|one| one["name"] != name);
            chancery.publish_and_wait(&left)?;
            wait_for(&format!("the removal of {name}"), STEP, || {
                Ok((envoy.stat("listener_manager.listener_removed")? == n).then_some(()))
            })?;
        }
        ensure!(other.stat("listener_manager.listener_removed")? == 0, "envoy-2 lost its listener");
        for (envoy, node) in [(&envoy, "envoy-1"), (&other, "envoy-2")] {
            let rejected = envoy.stat("cluster_manager.cds.update_rejected")?
                + envoy.stat("listener_manager.lds.update_rejected")?;
            ensure!(rejected == 0, "{node} rejected {rejected} responses");
        }
        Ok(())
    })
}

/// XDSTP-08, XDSTP-09, XDSTP-15, XDSTP-16: Envoy adds parameters of its node to the names of its collections over
/// delta. It receives, updates and removes the members with equal parameters, and none of other nodes.
#[test]
fn delta_envoy_with_node_context_params_receives_its_members() -> Result<()> {
    life(Mode::DeltaAds)
}

/// XDSTP-08, XDSTP-19: the same over SotW, except for the removal of the last member.
#[test]
fn sotw_envoy_with_node_context_params_receives_its_members() -> Result<()> {
    life(Mode::SotwAds)
}
