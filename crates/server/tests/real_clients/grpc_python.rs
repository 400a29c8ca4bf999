//! A real proxyless gRPC client (Python, C-core), which calls all the time.

use anyhow::{Result, bail};

use crate::support::{
    chancery::Chancery,
    envoy::Mode,
    grpc::{GrpcClient, GrpcServer},
    in_directory,
    manifests::{TYPES, api_listener, cluster, endpoints, route},
};

const SERVICE: &str = "greeter.e2e";
const NODE: &str = "grpc-client";

/// CLI-G-02, CLI-G-08, CLI-G-09, SOTW-41, ADS-06, ADS-08: boot by LDS, RDS, CDS, EDS; a moved endpoint; a
/// service that moves to a new cluster in one transaction; a server that is killed and comes back;
/// deletion. Only calls of a deleted service fail.
#[test]
fn only_a_deletion_fails_calls() -> Result<()> {
    in_directory(|dir| {
        let (a, b) = (GrpcServer::start(dir, "a")?, GrpcServer::start(dir, "b")?);
        let mut chancery = Chancery::start(dir)?;
        let state = |name, port| {
            [
                api_listener(SERVICE, "greeter"),
                route("greeter", name),
                cluster(Mode::SotwAds, name, "1s"),
                endpoints(name, port),
            ]
        };

        // Boot.
        chancery.publish(&state("one", a.port))?;
        let mut client = GrpcClient::start(dir, NODE, chancery.at.xds, SERVICE)?;
        client.wait_for_only("a")?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;

        // The endpoint moves.
        chancery.publish(&state("one", b.port))?;
        client.wait_for_only("b")?;

        // One transaction: a new cluster, the route moves to it, the old cluster goes.
        chancery.publish(&state("two", a.port))?;
        client.wait_for_only("a")?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;
        client.wait_for_more(200)?;

        // The server is killed and comes back; its client resumes.
        chancery.kill()?;
        client.wait_for_more(100)?;
        chancery.start_again()?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;
        client.wait_for_more(100)?;
        chancery.publish(&state("two", b.port))?;
        client.wait_for_only("b")?;

        // Deletion: calls fail because the service is gone, and come back with it.
        chancery.cli(&["delete", "listener", SERVICE], "")?;
        let failed = client.wait_for_failures()?;
        if failed.iter().any(|(reason, _)| !reason.starts_with("UNAVAILABLE")) {
            bail!("calls of a deleted service failed with {failed:?}");
        }
        chancery.publish(&state("two", a.port))?;
        client.wait_for_recovery("a")?;
        client.wait_for_more(100)
    })
}

/// SOTW-36, SOTW-92, ADS-06, ADS-08: make-before-break again and again, without waiting.
#[test]
fn a_storm_of_moves_fails_no_call() -> Result<()> {
    const ROUNDS: usize = 20;
    in_directory(|dir| {
        let (a, b) = (GrpcServer::start(dir, "a")?, GrpcServer::start(dir, "b")?);
        let chancery = Chancery::start(dir)?;
        let state = |round: usize| {
            let name = format!("cluster-{round}");
            let port = if round.is_multiple_of(2) { a.port } else { b.port };
            [
                api_listener(SERVICE, "greeter"),
                route("greeter", &name),
                cluster(Mode::SotwAds, &name, "1s"),
                endpoints(&name, port),
            ]
        };
        chancery.publish(&state(0))?;
        let mut client = GrpcClient::start(dir, NODE, chancery.at.xds, SERVICE)?;
        client.wait_for_only("a")?;
        for round in 1..=ROUNDS {
            chancery.publish(&state(round))?;
            // Now and then the client comes to rest in between.
            client.wait_for_more(if round.is_multiple_of(4) { 100 } else { 1 })?;
        }
        client.wait_for_only("a")?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;
        client.wait_for_more(200)
    })
}

/// SOTW-20, SOTW-27: the client's own words about what it rejects; the old config serves.
#[test]
fn a_nack_is_seen_and_recovered() -> Result<()> {
    in_directory(|dir| {
        let (a, b) = (GrpcServer::start(dir, "a")?, GrpcServer::start(dir, "b")?);
        let chancery = Chancery::start(dir)?;
        let state = |name, port| {
            [
                api_listener(SERVICE, "greeter"),
                route("greeter", name),
                cluster(Mode::SotwAds, name, "1s"),
                endpoints(name, port),
            ]
        };
        chancery.publish(&state("one", a.port))?;
        let mut client = GrpcClient::start(dir, NODE, chancery.at.xds, SERVICE)?;
        client.wait_for_only("a")?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;

        // Envoy takes such a cluster; gRPC knows no balancing policy of this kind.
        let mut bad = state("one", a.port);
        bad[2]["lb_policy"] = "MAGLEV".into();
        chancery.publish(&bad)?;
        chancery.wait_for_node(NODE, "nacked", &TYPES)?;
        let subscriptions = chancery.subscriptions(NODE)?;
        let is_told = subscriptions.iter().any(|subscription| {
            subscription["nack_message"].as_str().is_some_and(|message| message.contains("one"))
        });
        if !is_told {
            bail!("nobody names the cluster `one`: {subscriptions:?}");
        }
        client.wait_for_more(200)?;

        chancery.publish(&state("one", b.port))?;
        client.wait_for_only("b")?;
        chancery.wait_for_node(NODE, "synced", &TYPES)
    })
}
