//! The view of a node changes by its assignment, and may be large. Neither costs a request.

use anyhow::{Result, bail};
use chancery_testing::reserve_port;
use serde_json::{Value, json};

use crate::{
    grpc_life,
    support::{
        STEP,
        chancery::Chancery,
        envoy::{Envoy, Mode},
        grpc::{GrpcClient, GrpcServer, Kind},
        http, in_directory,
        load::Load,
        manifests::{TYPES, cluster, endpoints, listener, proxied, route, service},
        tap::Tap,
        upstream, wait_for,
    },
};

/// The number of moves of a node from one scope to the other.
const MOVES: usize = 6;

/// Publishes resources in the given scope.
fn fill(chancery: &Chancery, scope: &str, resources: &[Value]) -> Result<()> {
    let manifest = json!({"scope": scope, "resources": resources});
    chancery.cli(&["apply", "-f", "-", "--prune"], &manifest.to_string())?;
    Ok(())
}

/// Assigns this scope to all nodes.
fn assign(chancery: &Chancery, scope: &str) -> Result<()> {
    let manifest = json!({"assignments": [
        {"name": "all", "priority": 10, "match": {"id": "*"}, "scopes": [scope]},
    ]});
    chancery.cli(&["apply", "-f", "-"], &manifest.to_string())?;
    Ok(())
}

/// DELTA-50, SOTW-71, ADS-06, ADS-08: a changed assignment replaces all resources of a proxy, over
/// SotW.
#[test]
fn sotw_ads_moves_between_scopes() -> Result<()> {
    envoy_moves(Mode::SotwAds)
}

/// DELTA-50, ADS-06, ADS-08: the same over delta.
#[test]
fn delta_ads_moves_between_scopes() -> Result<()> {
    envoy_moves(Mode::DeltaAds)
}

fn envoy_moves(mode: Mode) -> Result<()> {
    const NODE: &str = "envoy-moves";
    in_directory(|dir| {
        let port = reserve_port();
        let chancery = Chancery::start(dir)?;
        for name in ["blue", "green"] {
            let upstream = upstream::spawn(name)?;
            fill(&chancery, name, &proxied(mode, port, name, upstream))?;
        }
        assign(&chancery, "blue")?;
        let mut envoy = Envoy::start(dir, mode, NODE, chancery.at.xds)?;
        http::wait_for_answer(port)?;
        let load = Load::start(port);
        load.wait_for_only("blue")?;
        for round in 1..=MOVES {
            let name = if round % 2 == 0 { "blue" } else { "green" };
            assign(&chancery, name)?;
            load.wait_for_only(name)?;
            // In some rounds the client becomes idle before the next move.
            if round % 3 == 0 {
                wait_for("the removal of the other scope's cluster", STEP, || {
                    Ok((envoy.active_cluster_names()? == [name]).then_some(()))
                })?;
                chancery.wait_for_node(NODE, "synced", &TYPES)?;
            }
        }
        envoy.expect_running()?;
        load.finish_without_failure(500)?;
        Ok(())
    })
}

/// SOTW-71, CLI-G-09, ADS-06, ADS-08: a changed assignment replaces all resources of C-core.
#[test]
fn c_core_moves_between_scopes() -> Result<()> {
    grpc_moves(Kind::Python)
}

/// SOTW-71, CLI-G-09, ADS-06, ADS-08: the same with grpc-js.
#[test]
fn grpc_js_moves_between_scopes() -> Result<()> {
    grpc_moves(Kind::Node)
}

/// SOTW-71, CLI-G-09, ADS-06, ADS-08: the same with grpc-go.
#[test]
fn grpc_go_moves_between_scopes() -> Result<()> {
    grpc_moves(Kind::Go)
}

fn grpc_moves(kind: Kind) -> Result<()> {
    const SERVICE: &str = "greeter.e2e";
    const NODE: &str = "grpc-moves";
    grpc_life::with(kind, |dir| {
        let (blue, green) = (GrpcServer::start(dir, "blue")?, GrpcServer::start(dir, "green")?);
        let chancery = Chancery::start(dir)?;
        for (name, server) in [("blue", &blue), ("green", &green)] {
            fill(&chancery, name, &service(SERVICE, name, server.port))?;
        }
        assign(&chancery, "blue")?;
        let mut client = GrpcClient::start(dir, kind, NODE, chancery.at.xds, SERVICE)?;
        client.wait_for_only("blue")?;
        for round in 1..=MOVES {
            let name = if round % 2 == 0 { "blue" } else { "green" };
            assign(&chancery, name)?;
            client.wait_for_only(name)?;
        }
        chancery.wait_for_node(NODE, "synced", &TYPES)?;
        client.wait_for_more(100)?;
        client.expect_own_faults(20 * u64::try_from(MOVES)?)
    })
}

/// DELTA-53, DELTA-58, DELTA-71, OPS-12, OPS-13: 2,000 clusters are sent in parts over delta. All
/// of them change repeatedly while connections end at their age. Each connection resumes at its
/// position.
#[test]
fn large_state_in_parts_resumes_across_connections() -> Result<()> {
    const CLUSTERS: usize = 2000;
    const ROUNDS: usize = 4;
    const NODE: &str = "envoy-large";
    let settings = [
        ("CHANCERY_XDS_CONNECTION_AGE_MAX", "2s"),
        ("CHANCERY_XDS_CONNECTION_AGE_GRACE", "300ms"),
        ("CHANCERY_XDS_RESPONSE_BYTES_TARGET", "64KiB"),
    ];
    in_directory(|dir| {
        let mode = Mode::DeltaAds;
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let port = reserve_port();
        let chancery = Chancery::start_with(dir, &settings)?;
        let tap = Tap::start(chancery.at.xds)?;
        let state = |round: usize| {
            let upstream = if round.is_multiple_of(2) { a } else { b };
            let mut resources = vec![
                listener(mode, "main", port, "main", "main"),
                route("main", &format!("cluster-{}", round * 7 % CLUSTERS)),
            ];
            for at in 0..CLUSTERS {
                let name = format!("cluster-{at}");
                resources.push(cluster(mode, &name, &format!("{}s", round + 1)));
                resources.push(endpoints(&name, upstream));
            }
            resources
        };
        chancery.publish(&state(0))?;
        let mut envoy = Envoy::start(dir, mode, NODE, tap.port)?;
        http::wait_for_answer(port)?;
        let load = Load::start(port);
        chancery.wait_for_node(NODE, "synced", &TYPES)?;
        for round in 1..=ROUNDS {
            chancery.publish(&state(round))?;
            let n_connections = tap.seen().n_connections;
            wait_for("the next connection", STEP, || {
                Ok((tap.seen().n_connections > n_connections).then_some(()))
            })?;
        }
        load.wait_for_only("a")?;
        wait_for("the last version of every cluster", 2 * STEP, || {
            let n_warming = envoy.stat("cluster_manager.warming_clusters")?;
            let timeout = format!("{}s", ROUNDS + 1);
            for at in [0, CLUSTERS / 2, CLUSTERS - 1] {
                let it = envoy.active_cluster(&format!("cluster-{at}"))?;
                if n_warming > 0 || it.is_none_or(|it| it["connect_timeout"] != timeout.as_str()) {
                    bail!("{n_warming} clusters warm, cluster-{at} is old");
                }
            }
            Ok(Some(()))
        })?;
        tap.seen().expect_no_goaway_error()?;
        if envoy.stat("cluster_manager.cds.update_rejected")? > 0 {
            bail!("Envoy rejected clusters");
        }
        envoy.expect_running()?;
        load.finish_without_failure(500)?;
        Ok(())
    })
}
