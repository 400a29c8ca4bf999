//! Endpoints of a locality as a glob collection (LEDS).

use anyhow::{Result, bail};
use chancery_testing::reserve_port;
use serde_json::{Value, json};

use crate::support::{
    STEP,
    chancery::Chancery,
    envoy::{Envoy, Mode},
    in_directory,
    load::Load,
    manifests::{CLUSTER, ENDPOINT, LISTENER, cluster, endpoints, listener, route},
    upstream, wait_for,
};

const LB_ENDPOINT: &str = "type.googleapis.com/envoy.config.endpoint.v3.LbEndpoint";
const NODE: &str = "envoy-leds";

/// Returns an endpoint that is a resource of its own.
fn member(id: &str, port: u16) -> Value {
    json!({
        "name": format!("xdstp://mesh.example/envoy.config.endpoint.v3.LbEndpoint/{id}?zone=z&env=e2e"),
        "resource": {
            "@type": LB_ENDPOINT,
            "health_status": "HEALTHY",
            "endpoint": {"address": {
                "socket_address": {"address": "127.0.0.1", "port_value": port}
            }},
        },
    })
}

/// XDSTP-15, XDSTP-16, XDSTP-18, XDSTP-27, SVC-04: Envoy requests the endpoints of a locality as a collection
/// over ADS. They are added, moved and removed under traffic, and Envoy resumes after a restart of the
/// server.
#[test]
fn leds_endpoints_change_under_traffic_over_ads() -> Result<()> {
    life(Mode::DeltaAds)
}

/// XDSTP-15, XDSTP-16, XDSTP-18, XDSTP-27, SVC-04: the same over `DeltaLocalityEndpoints`.
#[test]
fn leds_endpoints_change_under_traffic_over_their_own_stream() -> Result<()> {
    life(Mode::DeltaPerType)
}

fn life(mode: Mode) -> Result<()> {
    in_directory(|dir| {
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let port = reserve_port();
        let mut assignment = endpoints("one", a);
        assignment["endpoints"] = json!([{
            "locality": {"region": "r", "zone": "z"},
            "load_balancing_weight": 1,
            "leds_cluster_locality_config": {
                "leds_config": mode.config_source(),
                "leds_collection_name":
                    "xdstp://mesh.example/envoy.config.endpoint.v3.LbEndpoint/one/*?zone=z&env=e2e",
            },
        }]);
        let with = |members: &[Value]| {
            let fixed = [
                cluster(mode, "one", "1s"),
                assignment.clone(),
                listener(mode, "main", port, "main", "main"),
                route("main", "one"),
                // Neither is a member.
                member("other/x", 1),
                member("one/deeper/x", 1),
            ];
            fixed.into_iter().chain(members.iter().cloned()).collect::<Vec<_>>()
        };
        let mut chancery = Chancery::start(dir)?;
        chancery.publish(&with(&[member("one/x", a)]))?;
        let mut envoy = Envoy::start(dir, mode, NODE, chancery.at.xds)?;
        let load = wait_for("the listener", STEP, || {
            Ok(std::net::TcpStream::connect(("127.0.0.1", port)).ok())
        });
        drop(load?);
        let load = Load::start(port);
        load.wait_for_only("a")?;
        let types = [LISTENER, CLUSTER, ENDPOINT, LB_ENDPOINT];
        chancery.wait_for_node(NODE, "synced", &types)?;

        // An endpoint is added, and then the first one is removed.
        chancery.publish_and_wait(&with(&[member("one/x", a), member("one/y", b)]))?;
        wait_for("both endpoints", STEP, || {
            let before = load.tally().answers.get("b").copied();
            load.wait_for_more(50)?;
            Ok((load.tally().answers.get("b").copied() > before).then_some(()))
        })?;
        chancery.publish_and_wait(&with(&[member("one/y", b)]))?;
        load.wait_for_only("b")?;

        // The endpoint moves.
        chancery.publish_and_wait(&with(&[member("one/y", a)]))?;
        load.wait_for_only("a")?;

        // The server restarts. Envoy resumes, and receives nothing that it has.
        chancery.kill()?;
        load.wait_for_more(100)?;
        chancery.start_again()?;
        chancery.wait_for_node(NODE, "synced", &types)?;
        chancery.publish_and_wait(&with(&[member("one/z", b)]))?;
        load.wait_for_only("b")?;
        chancery.wait_for_node(NODE, "synced", &types)?;
        let rejected = envoy.stat("cluster.one.leds.update_rejected")?;
        if rejected > 0 {
            bail!("Envoy rejected {rejected} responses");
        }
        envoy.expect_running()?;
        load.finish_without_failure(300)?;
        Ok(())
    })
}
