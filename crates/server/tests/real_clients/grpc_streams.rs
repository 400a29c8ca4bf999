//! gRPC processes with more than one stream, and gRPC servers that are configured by xDS.

use anyhow::{Result, bail};
use chancery_testing::reserve_port;
use serde_json::{Value, json};

use crate::{
    grpc_life,
    support::{
        STEP,
        chancery::Chancery,
        envoy::Mode,
        grpc::{GrpcClient, GrpcServer, Kind},
        in_directory,
        manifests::{LISTENER, TYPES, api_listener, cluster, endpoints, listener_of, route},
        wait_for,
    },
};

const NODE: &str = "grpc-client";

/// CLI-G-25, ADS-02: C-core opens a stream for the target of each channel. Both streams belong to
/// one node, and the server serves each of them separately.
#[test]
fn c_core_has_a_stream_per_target() -> Result<()> {
    two_targets(Kind::Python, 2)
}

/// CLI-G-06, CLI-G-25: grpc-js requests all targets on one stream, name by name.
#[test]
fn grpc_js_has_one_stream_for_all_targets() -> Result<()> {
    two_targets(Kind::Node, 1)
}

/// CLI-G-25, ADS-02: grpc-go opens a stream for the target of each channel.
#[test]
fn grpc_go_has_a_stream_per_target() -> Result<()> {
    two_targets(Kind::Go, 2)
}

/// CSDS-05, CSDS-07, CSDS-20: the server lists each stream as a separate client, which has acknowledged
/// all resources of its targets.
fn expect_synced(clients: &[Value], n_streams: usize) -> Result<()> {
    let mut scopes: Vec<&str> = clients.iter().filter_map(|c| c["client_scope"].as_str()).collect();
    scopes.dedup();
    let resources = || {
        let all = clients.iter().filter_map(|client| client["generic_xds_configs"].as_array());
        all.flatten()
    };
    // A listener, a route, a cluster and endpoints of each target.
    let is_synced = |one: &Value| one["config_status"] == "SYNCED" && one["xds_config"].is_object();
    if scopes.len() != n_streams || resources().count() != 8 || !resources().all(is_synced) {
        bail!("{n_streams} clients with 8 acknowledged resources were expected: {clients:?}");
    }
    Ok(())
}

fn two_targets(kind: Kind, n_streams: usize) -> Result<()> {
    grpc_life::with(kind, |dir| {
        let (a, b) = (GrpcServer::start(dir, "a")?, GrpcServer::start(dir, "b")?);
        let mut chancery = Chancery::start(dir)?;
        let state = |first: u16, second: u16| {
            let mut resources = Vec::new();
            for (name, port) in [("first", first), ("second", second)] {
                resources.extend([
                    api_listener(&format!("{name}.e2e"), name),
                    route(name, name),
                    cluster(Mode::SotwAds, name, "1s"),
                    endpoints(name, port),
                ]);
            }
            resources
        };
        chancery.publish(&state(a.port, a.port))?;
        let services = ["first.e2e", "second.e2e"];
        let mut client = GrpcClient::start_to(dir, kind, NODE, chancery.at.xds, &services)?;
        client.wait_for_only("a")?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;
        if chancery.n_streams(NODE)? != n_streams {
            bail!("{n_streams} streams were expected: {}", chancery.node(NODE)?);
        }
        expect_synced(&chancery.client_status()?, n_streams)?;
        // One service moves, then the other.
        chancery.publish(&state(a.port, b.port))?;
        wait_for("answers of both services", STEP, || {
            let tally = client.take()?;
            if !tally.failed.is_empty() {
                bail!("calls failed: {tally:?}");
            }
            Ok((tally.answers.len() == 2).then_some(()))
        })?;
        chancery.publish(&state(b.port, b.port))?;
        client.wait_for_only("b")?;
        chancery.kill()?;
        client.wait_for_more(50)?;
        chancery.start_again()?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;
        chancery.publish(&state(a.port, a.port))?;
        client.wait_for_only("a")?;
        client.wait_for_more(50)
    })
}

/// CLI-G-03, CLI-G-02: a gRPC server requests the listener of its address, serves by it, and
/// applies its changes. Its client finds it by xDS, too.
#[test]
fn grpc_server_serves_by_its_listener_resource() -> Result<()> {
    const SERVICE: &str = "greeter.e2e";
    const SERVER: &str = "grpc-server-served";
    in_directory(|dir| {
        let port = reserve_port();
        let mut chancery = Chancery::start(dir)?;
        let state = |filters: &[Value], prefix: &str| {
            let router = json!({
                "name": "router",
                "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
            });
            let filters = [filters, &[router]].concat();
            let manager = json!({
                "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                "stat_prefix": prefix,
                "route_config": {"name": "inbound", "virtual_hosts": [{
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": ""}, "non_forwarding_action": {}}],
                }]},
                "http_filters": filters,
            });
            let address = format!("127.0.0.1:{port}");
            let name = format!("grpc/server?xds.resource.listening_address={address}");
            [
                listener_of(&name, port, &manager),
                api_listener(SERVICE, "greeter"),
                route("greeter", "one"),
                cluster(Mode::SotwAds, "one", "1s"),
                endpoints("one", port),
            ]
        };
        chancery.publish(&state(&[], "first"))?;
        let _server = GrpcServer::start_by_xds(dir, "served", port, chancery.at.xds)?;
        chancery.wait_for_node(SERVER, "synced", &[LISTENER])?;
        let mut client = GrpcClient::start(dir, Kind::Python, NODE, chancery.at.xds, SERVICE)?;
        client.wait_for_recovery("served")?;
        client.wait_for_more(100)?;

        // A change, a kill of the control plane, and another change: no call fails.
        chancery.publish(&state(&[], "second"))?;
        chancery.wait_for_node(SERVER, "synced", &[LISTENER])?;
        client.wait_for_more(100)?;
        chancery.kill()?;
        client.wait_for_more(50)?;
        chancery.start_again()?;
        chancery.wait_for_node(SERVER, "synced", &[LISTENER])?;
        client.wait_for_more(50)?;

        // The listener decides who is allowed: first it denies all calls, then it allows all calls.
        let deny = json!({"name": "rbac", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC",
            "rules": {"action": "DENY", "policies": {
                "all": {"permissions": [{"any": true}], "principals": [{"any": true}]},
            }},
        }});
        chancery.publish(&state(&[deny], "third"))?;
        let failed = client.wait_for_failures()?;
        if failed.iter().any(|(reason, _)| !reason.starts_with("PERMISSION_DENIED")) {
            bail!("calls that a rule denies failed with {failed:?}");
        }
        chancery.publish(&state(&[], "fourth"))?;
        client.wait_for_recovery("served")?;
        client.wait_for_more(100)
    })
}
