//! Real proxyless gRPC clients (C-core, grpc-js, grpc-go) that make calls continuously.

use std::path::Path;

use anyhow::{Result, bail, ensure};
use chancery_testing::{Lack, skip};

use crate::support::{
    chancery::Chancery,
    grpc::{GrpcClient, GrpcServer, Kind},
    in_directory,
    manifests::{CLUSTER, TYPES, service},
};

const SERVICE: &str = "greeter.e2e";
const NODE: &str = "grpc-client";

/// Runs a test with a client of this kind, or reports that this machine cannot run it.
pub(crate) fn with(kind: Kind, test: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    if let Some(reason) = kind.absence()? {
        skip(Lack::Go, &reason);
        return Ok(());
    }
    in_directory(test)
}

/// CLI-G-02, CLI-G-08, CLI-G-09, CLI-G-17, SOTW-41, ADS-06, ADS-08: a client boots by LDS, RDS, CDS and EDS.
/// Then an endpoint moves, a service moves to a new cluster in one transaction, a server is killed and
/// restarts, and a service is deleted. Only calls of the deleted service fail.
#[test]
fn c_core_fails_calls_of_a_deleted_service_only() -> Result<()> {
    life(Kind::Python)
}

/// CLI-G-02, CLI-G-08, CLI-G-09, ADS-06, ADS-08: the same life with grpc-js.
#[test]
fn grpc_js_fails_calls_of_a_deleted_service_only() -> Result<()> {
    life(Kind::Node)
}

/// CLI-G-02, CLI-G-06, CLI-G-08, CLI-G-09, ADS-06, ADS-08: the same life with grpc-go.
#[test]
fn grpc_go_fails_calls_of_a_deleted_service_only() -> Result<()> {
    life(Kind::Go)
}

fn life(kind: Kind) -> Result<()> {
    with(kind, |dir| {
        let (a, b) = (GrpcServer::start(dir, "a")?, GrpcServer::start(dir, "b")?);
        let mut chancery = Chancery::start(dir)?;
        let state = |name, port| service(SERVICE, name, port);

        // Start.
        chancery.publish(&state("one", a.port))?;
        let mut client = GrpcClient::start(dir, kind, NODE, chancery.at.xds, SERVICE)?;
        client.wait_for_only("a")?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;

        // The endpoint moves.
        chancery.publish(&state("one", b.port))?;
        client.wait_for_only("b")?;

        // One transaction adds a cluster, moves the route to it, and removes the old cluster.
        chancery.publish(&state("two", a.port))?;
        client.wait_for_only("a")?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;
        client.wait_for_more(200)?;

        // The server is killed and restarts; its client resumes.
        chancery.kill()?;
        client.wait_for_more(100)?;
        chancery.start_again()?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;
        client.wait_for_more(100)?;
        chancery.publish(&state("two", b.port))?;
        client.wait_for_only("b")?;

        // Deletion: calls fail because the service does not exist, and succeed when it exists
        // again.
        chancery.cli(&["delete", "listener", SERVICE], "")?;
        let failed = client.wait_for_failures()?;
        if failed.iter().any(|(reason, _)| !reason.to_uppercase().starts_with("UNAVAILABLE")) {
            bail!("calls of a deleted service failed with {failed:?}");
        }
        let mut again = state("two", a.port);
        // grpc-js 1.14 compares a listener with the deleted one, and ignores an equal one.
        again[0]["api_listener"]["api_listener"]["stat_prefix"] = "again".into();
        chancery.publish(&again)?;
        client.wait_for_recovery("a")?;
        client.wait_for_more(100)?;
        client.expect_own_faults(40)
    })
}

/// SOTW-36, SOTW-92, ADS-06, ADS-08: make-before-break repeatedly, without waiting.
#[test]
fn c_core_loses_no_call_during_rapid_route_moves() -> Result<()> {
    storm(Kind::Python)
}

/// SOTW-36, SOTW-92, ADS-06, ADS-08: the same storm over grpc-js.
#[test]
fn grpc_js_loses_no_call_during_rapid_route_moves() -> Result<()> {
    storm(Kind::Node)
}

/// SOTW-36, SOTW-92, ADS-06, ADS-08: the same storm over grpc-go.
#[test]
fn grpc_go_loses_no_call_during_rapid_route_moves() -> Result<()> {
    storm(Kind::Go)
}

fn storm(kind: Kind) -> Result<()> {
    const ROUNDS: usize = 20;
    with(kind, |dir| {
        let (a, b) = (GrpcServer::start(dir, "a")?, GrpcServer::start(dir, "b")?);
        let chancery = Chancery::start(dir)?;
        let state = |round: usize| {
            let name = format!("cluster-{round}");
            let port = if round.is_multiple_of(2) { a.port } else { b.port };
            service(SERVICE, &name, port)
        };
        chancery.publish(&state(0))?;
        let mut client = GrpcClient::start(dir, kind, NODE, chancery.at.xds, SERVICE)?;
        client.wait_for_only("a")?;
        for round in 1..=ROUNDS {
            chancery.publish(&state(round))?;
            // In some rounds the client becomes idle before the next move.
            client.wait_for_more(if round.is_multiple_of(4) { 100 } else { 1 })?;
        }
        client.wait_for_only("a")?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;
        client.wait_for_more(200)?;
        client.expect_own_faults(20 * u64::try_from(ROUNDS)?)
    })
}

/// SOTW-20, SOTW-27, CLI-G-11, CLI-G-12: C-core's own text about the rejected resource; the old
/// configuration serves.
#[test]
fn c_core_nack_text_is_reported_and_recovered() -> Result<()> {
    nack(Kind::Python)
}

/// SOTW-20, SOTW-27: the same with grpc-js.
#[test]
fn grpc_js_nack_text_is_reported_and_recovered() -> Result<()> {
    nack(Kind::Node)
}

/// SOTW-20, SOTW-27, CLI-G-11, CLI-G-12: the same with grpc-go.
#[test]
fn grpc_go_nack_text_is_reported_and_recovered() -> Result<()> {
    nack(Kind::Go)
}

fn nack(kind: Kind) -> Result<()> {
    with(kind, |dir| {
        let (a, b) = (GrpcServer::start(dir, "a")?, GrpcServer::start(dir, "b")?);
        let chancery = Chancery::start(dir)?;
        let state = |name, port| service(SERVICE, name, port);
        chancery.publish(&state("one", a.port))?;
        let mut client = GrpcClient::start(dir, kind, NODE, chancery.at.xds, SERVICE)?;
        client.wait_for_only("a")?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;

        // Envoy accepts such a cluster; gRPC does not support this load balancing policy.
        let mut bad = state("one", a.port);
        bad[2]["lb_policy"] = "MAGLEV".into();
        let Err(refusal) = chancery.publish(&bad) else { bail!("the cluster is not refused") };
        ensure!(refusal.to_string().contains("[grpc.lb_policy]"), "{refusal}");
        let rejection = chancery.publish_rejected(NODE, CLUSTER, &bad)?;
        // grpc-js does not name the resource.
        let word = if kind == Kind::Node { "MAGLEV" } else { "one" };
        ensure!(rejection.contains(word), "no {word:?} in {rejection:?}");
        client.wait_for_more(200)?;

        chancery.publish(&state("one", b.port))?;
        client.wait_for_only("b")?;
        chancery.wait_for_node(NODE, "synced", &TYPES)
    })
}
