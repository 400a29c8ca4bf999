//! The guard `sotw-size`: a gRPC client receives at most 4 MiB in one response. A rejected write leaves its
//! calls unaffected, and the same write with a confirmation breaks them.

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};

use crate::{
    grpc_life::with,
    support::{
        chancery::Chancery,
        envoy::Mode,
        grpc::{GrpcClient, GrpcServer, Kind},
        manifests::{TYPES, cluster, service},
    },
};

const SERVICE: &str = "greeter.e2e";
const NODE: &str = "grpc-client";
const LARGE_BYTES: usize = 100 << 10;

#[test]
fn clusters_too_large_for_c_core_are_rejected_and_would_break_calls() -> Result<()> {
    outgrown(Kind::Python)
}

#[test]
fn clusters_too_large_for_grpc_js_are_rejected_and_would_break_calls() -> Result<()> {
    outgrown(Kind::Node)
}

#[test]
fn clusters_too_large_for_grpc_go_are_rejected_and_would_break_calls() -> Result<()> {
    outgrown(Kind::Go)
}

/// Returns a service with `n_large` further clusters. Its client requests them, because routes name them.
fn state(name: &str, port: u16, n_large: usize) -> Vec<Value> {
    let mut resources = service(SERVICE, name, port).to_vec();
    let mut routes = Vec::new();
    for n in 0..n_large {
        let large = format!("large-{n}");
        routes
            .push(json!({"match": {"prefix": format!("/{large}/")}, "route": {"cluster": large}}));
        let mut large = cluster(Mode::SotwAds, &large, "1s");
        large["eds_cluster_config"]["service_name"] = name.into();
        large["alt_stat_name"] = "x".repeat(LARGE_BYTES).into();
        resources.push(large);
    }
    routes.push(resources[1]["virtual_hosts"][0]["routes"][0].take());
    resources[1]["virtual_hosts"][0]["routes"] = routes.into();
    resources
}

fn outgrown(kind: Kind) -> Result<()> {
    with(kind, |dir| {
        let server = GrpcServer::start(dir, "a")?;
        // The default of these tests turns off all guards. This value replaces it, so `sotw-size` is on.
        let chancery = Chancery::start_with(dir, &[("CHANCERY_GUARDS_OFF", "mass-deletion")])?;
        chancery.publish(&state("one", server.port, 30))?;
        let mut client = GrpcClient::start(dir, kind, NODE, chancery.at.xds, SERVICE)?;
        client.wait_for_only("a")?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;

        // The route moves to a new cluster. A client that received the cluster would call the same server.
        let outgrown = json!({"scope": "default", "resources": state("two", server.port, 45)});
        let apply = ["apply", "-f", "-"];
        let Err(rejected) = chancery.cli(&apply, &outgrown.to_string()) else {
            bail!("the write was not rejected");
        };
        let rejected = format!("{rejected:#}");
        let effect = "guard `sotw-size` rejects the write: view default (1 node): \
                      a SotW response with every Cluster: 2.93 MiB → 4.39 MiB, more than 4.00 MiB";
        for expected in [effect, "nothing was written"] {
            ensure!(rejected.contains(expected), "no {expected:?} in {rejected:?}");
        }
        client.wait_for_more(200)?;

        let confirmed = [&apply[..], &["--confirm", "sotw-size"]].concat();
        chancery.cli(&confirmed, &outgrown.to_string())?;
        let failed = client.wait_for_failures()?;
        let is_size = |reason: &str| reason.contains("eceived message larger than max (4612");
        ensure!(failed.iter().any(|(reason, _)| is_size(reason)), "calls failed with {failed:?}");
        Ok(())
    })
}
