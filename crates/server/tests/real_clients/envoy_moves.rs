//! A client that moves from one of three replicas to another while a write swaps the cluster of its route.

use std::thread;

use anyhow::{Context as _, Result, bail};
use chancery_testing::reserve_port;
use serde_json::Value;

use crate::{
    grpc_life,
    support::{
        STEP,
        chancery::Chancery,
        envoy::{Envoy, Mode},
        grpc::{GrpcClient, GrpcServer, Kind},
        http, in_directory,
        load::Load,
        manifests::{TYPES, proxied, service},
        report,
        switch::Switch,
        upstream, wait_for,
    },
};

const NODE: &str = "moving";
const HOPS: usize = 6;

/// How the client loses its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Move {
    /// The connection breaks. The write is complete before the client connects to another replica.
    AfterWrite,
    /// The client connects to another replica during the write.
    DuringWrite,
    /// The replica of the client is killed. The other two replicas elect a leader if needed, and commit the write.
    ReplicaKilled,
}

/// ADS-08, ADS-09, SOTW-100: SotW, no request fails in six moves.
#[test]
fn sotw_envoy_moves_between_replicas_without_a_failed_request() -> Result<()> {
    envoy_moves(Mode::SotwAds)
}

/// ADS-08, ADS-09, SOTW-100: the same with the unified SotW client.
#[test]
fn unified_sotw_envoy_moves_between_replicas_without_a_failed_request() -> Result<()> {
    envoy_moves(Mode::SotwAdsUnified)
}

/// ADS-08, DELTA-58: delta, no request fails in six moves.
#[test]
fn delta_envoy_moves_between_replicas_without_a_failed_request() -> Result<()> {
    envoy_moves(Mode::DeltaAds)
}

/// ADS-08, ADS-09, SOTW-100: the same with C-core.
#[test]
fn c_core_moves_between_replicas_without_a_failed_call() -> Result<()> {
    grpc_moves(Kind::Python)
}

/// ADS-08, ADS-09, SOTW-100: the same with grpc-js.
#[test]
fn grpc_js_moves_between_replicas_without_a_failed_call() -> Result<()> {
    grpc_moves(Kind::Node)
}

/// ADS-08, ADS-09, SOTW-100: the same with grpc-go.
#[test]
fn grpc_go_moves_between_replicas_without_a_failed_call() -> Result<()> {
    grpc_moves(Kind::Go)
}

/// Moves the client to the next replica, while `resources` become the whole content of the scope.
fn hop(
    replicas: &mut [Chancery; 3],
    switch: &Switch,
    round: usize,
    resources: &[Value],
) -> Result<()> {
    let moves = [Move::ReplicaKilled, Move::AfterWrite, Move::DuringWrite];
    let (from, to, other) = ((round + 2) % 3, round % 3, (round + 1) % 3);
    replicas[other].wait_for_node(NODE, "synced", &TYPES)?;
    let xds = replicas[to].at.xds;
    match moves[round % 3] {
        Move::AfterWrite => {
            switch.cut();
            replicas[other].publish(resources)?;
        }
        Move::DuringWrite => thread::scope(|scope| {
            let writer = &replicas[other];
            let write = scope.spawn(|| writer.publish(resources).map(drop));
            switch.cut();
            switch.connect(xds);
            write.join().unwrap_or_else(|_| bail!("the writer panicked"))
        })?,
        Move::ReplicaKilled => {
            replicas[from].kill()?;
            wait_for("a write without the killed replica", STEP, || {
                replicas[other].publish(resources).map(Some)
            })?;
            switch.cut();
        }
    }
    switch.connect(xds);
    wait_for("the node at the next replica", STEP, || {
        let nodes = replicas[to].cli(&["node", NODE, "--local"], "")?;
        Ok((nodes["streams"][0]["replica_id"] == to + 1).then_some(()))
    })?;
    Ok(())
}

/// Starts the replica that [`hop`] killed.
fn restart(replicas: &mut [Chancery; 3], round: usize) -> Result<()> {
    let from = (round + 2) % 3;
    if round.is_multiple_of(3) {
        replicas[from].start_again()?;
    }
    replicas[from].wait_for_voters(3)
}

fn envoy_moves(mode: Mode) -> Result<()> {
    in_directory(|dir| {
        let upstreams = [("a", upstream::spawn("a")?), ("b", upstream::spawn("b")?)];
        let port = reserve_port();
        let of = |round: usize| proxied(mode, port, &format!("c{round}"), upstreams[round % 2].1);
        let mut replicas = Chancery::start_three(dir, &[])?;
        replicas[0].publish(&of(0))?;
        let switch = Switch::start(replicas[0].at.xds)?;
        let mut envoy = Envoy::start(dir, mode, NODE, switch.port)?;
        http::wait_for_answer(port)?;
        let load = Load::start(port);
        load.wait_for_only("a")?;
        let mut failed = Vec::new();
        for round in 1..=HOPS {
            hop(&mut replicas, &switch, round, &of(round))?;
            load.wait_for_only(upstreams[round % 2].0)?;
            wait_for("the removal of the old cluster", STEP, || {
                Ok((envoy.active_cluster_names()? == [format!("c{round}")]).then_some(()))
            })?;
            let tally = load.take();
            report(&format!(
                "{mode:?}, move {round}: {} of {} requests failed",
                tally.n_failed,
                tally.n_failed + tally.n_answered(),
            ));
            failed.extend(tally.failures.into_iter().map(|text| format!("move {round} {text}")));
            restart(&mut replicas, round)?;
        }
        envoy.expect_running()?;
        if !failed.is_empty() {
            bail!("requests failed: {failed:#?}");
        }
        load.finish_without_failure(1)?;
        Ok(())
    })
}

fn grpc_moves(kind: Kind) -> Result<()> {
    const SERVICE: &str = "greeter.moves";
    grpc_life::with(kind, |dir| {
        let servers = [("a", GrpcServer::start(dir, "a")?), ("b", GrpcServer::start(dir, "b")?)];
        let of = |round: usize| service(SERVICE, &format!("c{round}"), servers[round % 2].1.port);
        let mut replicas = Chancery::start_three(dir, &[])?;
        replicas[0].publish(&of(0))?;
        let switch = Switch::start(replicas[0].at.xds)?;
        let mut client = GrpcClient::start(dir, kind, NODE, switch.port, SERVICE)?;
        client.wait_for_only("a")?;
        for round in 1..=HOPS {
            hop(&mut replicas, &switch, round, &of(round))?;
            client.wait_for_only(servers[round % 2].0).with_context(|| format!("move {round}"))?;
            client.wait_for_more(50)?;
            restart(&mut replicas, round)?;
        }
        client.expect_own_faults(200)
    })
}
