//! Real gRPC clients with names of several authorities (federation).

use anyhow::Result;
use serde_json::{Value, json};

use crate::{
    grpc_life::with,
    support::{
        chancery::Chancery,
        envoy::Mode,
        grpc::{GrpcClient, GrpcServer, Kind},
        manifests::{TYPES, service},
    },
};

const NODE: &str = "grpc-federation";
const LISTENER_NAME: &str =
    "xdstp://traffic.example/envoy.config.listener.v3.Listener/client/greeter.e2e?env=e2e";

/// XDSTP-05, XDSTP-21, XDSTP-22, XDSTP-23, XDSTP-24, XDSTP-26: a client finds a listener by the template of an
/// authority, and the other resources by names of three authorities on the same stream. The endpoint
/// moves, a new cluster replaces the old one, and the server restarts: no call fails.
#[test]
fn c_core_follows_names_of_several_authorities() -> Result<()> {
    life(Kind::Python)
}

/// XDSTP-05, XDSTP-21 to -24, XDSTP-26: the same with grpc-js.
#[test]
fn grpc_js_follows_names_of_several_authorities() -> Result<()> {
    life(Kind::Node)
}

/// XDSTP-05, XDSTP-21 to -24, XDSTP-26: the same with grpc-go.
#[test]
fn grpc_go_follows_names_of_several_authorities() -> Result<()> {
    life(Kind::Go)
}

/// Returns a listener, a route, a cluster and its endpoints with structured names.
fn federated(name: &str, port: u16) -> [Value; 4] {
    let of = |authority: &str, message: &str, id: &str| {
        format!("xdstp://{authority}/envoy.config.{message}/{id}")
    };
    let route = of("traffic.example", "route.v3.RouteConfiguration", "greeter");
    let cluster = of("mesh.example", "cluster.v3.Cluster", name);
    // The authority may be empty.
    let endpoints = of("", "endpoint.v3.ClusterLoadAssignment", name);
    let mut all = service(LISTENER_NAME, name, port);
    all[0]["api_listener"]["api_listener"]["rds"]["route_config_name"] = json!(route);
    all[1]["name"] = json!(route);
    all[1]["virtual_hosts"][0]["routes"][0]["route"]["cluster"] = json!(cluster);
    all[2]["name"] = json!(cluster);
    all[2]["eds_cluster_config"] =
        json!({"service_name": endpoints, "eds_config": Mode::SotwAds.config_source()});
    all[3]["cluster_name"] = json!(endpoints);
    all
}

fn life(kind: Kind) -> Result<()> {
    with(kind, |dir| {
        let (a, b) = (GrpcServer::start(dir, "a")?, GrpcServer::start(dir, "b")?);
        let mut chancery = Chancery::start(dir)?;
        chancery.publish(&federated("one", a.port))?;
        let authorities = json!({
            "traffic.example": {
                "client_listener_resource_name_template":
                    "xdstp://traffic.example/envoy.config.listener.v3.Listener/client/%s?env=e2e",
            },
            "mesh.example": {},
            "": {},
        });
        let target = "xds://traffic.example/greeter.e2e";
        let mut client =
            GrpcClient::start_federated(dir, kind, NODE, chancery.at.xds, target, &authorities)?;
        client.wait_for_only("a")?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;
        chancery.publish(&federated("one", b.port))?;
        client.wait_for_only("b")?;
        chancery.publish(&federated("two", a.port))?;
        client.wait_for_only("a")?;
        client.wait_for_more(200)?;
        chancery.kill()?;
        client.wait_for_more(100)?;
        chancery.start_again()?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;
        chancery.publish(&federated("two", b.port))?;
        client.wait_for_only("b")?;
        client.wait_for_more(100)?;
        client.expect_own_faults(40)
    })
}
