//! The discovery of filter chains (FCDS), which Envoy has since 1.40. Each chain has a name in the listener's matcher.

use anyhow::{Result, ensure};
use chancery_testing::reserve_port;
use serde_json::{Value, json};

use crate::support::{
    chancery::Chancery,
    envoy::{Envoy, Mode},
    http, in_directory,
    load::Load,
    manifests::{
        CLUSTER, ENDPOINT, LISTENER, ROUTE, cluster, connection_manager, endpoints, listener_of,
        route,
    },
    upstream,
};

const FILTER_CHAIN: &str = "type.googleapis.com/envoy.config.listener.v3.FilterChain";
const NODE: &str = "envoy-fcds";

/// SOTW-75, ADS-08: a chain is added, changed, replaced and removed, and no request fails.
#[test]
fn sotw_filter_chains_lose_no_request() -> Result<()> {
    chains(Mode::SotwAds)
}

/// DELTA-48, ADS-08: the same over delta. Envoy would close the connections of a chain whose removal arrives, also while
/// an old listener with the chain drains. No removal is sent.
#[test]
fn delta_filter_chains_lose_no_request() -> Result<()> {
    chains(Mode::DeltaAds)
}

/// Returns a listener that requests the chain `name`.
fn discovering(port: u16, name: &str) -> Value {
    let mut listener = listener_of("main", port, &Value::Null);
    let fields = listener.as_object_mut().expect("a listener has fields");
    fields.remove("filter_chains");
    listener["fcds_config"] = json!({"config_source": Mode::SotwAds.config_source()});
    let action = json!({"name": "chain", "typed_config":
        {"@type": "type.googleapis.com/google.protobuf.StringValue", "value": name}});
    listener["filter_chain_matcher"] = json!({"on_no_match": {"action": action}});
    listener
}

/// Returns the chain `name`, whose routes come from RDS.
fn chain(mode: Mode, name: &str, route: &str) -> Value {
    json!({
        "@type": FILTER_CHAIN,
        "name": name,
        "filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": connection_manager(mode, route, name),
        }],
    })
}

fn chains(mode: Mode) -> Result<()> {
    in_directory(|dir| {
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let port = reserve_port();
        let chancery = Chancery::start(dir)?;
        let state = |of_listener: &str, chains: &[Value]| {
            let base = [
                cluster(mode, "a", "1s"),
                endpoints("a", a),
                cluster(mode, "b", "1s"),
                endpoints("b", b),
                route("to-a", "a"),
                route("to-b", "b"),
                discovering(port, of_listener),
            ];
            [base.as_slice(), chains].concat()
        };
        chancery.publish(&state("one", &[chain(mode, "one", "to-a")]))?;
        let mut envoy = Envoy::start(dir, mode, NODE, chancery.at.xds)?;
        ensure!(http::wait_for_answer(port)? == "a");
        let load = Load::start(port);
        load.wait_for_more(20)?;

        // The routes of the new content arrive after it.
        chancery.publish_and_wait(&state("one", &[chain(mode, "one", "to-b")]))?;
        load.wait_for_only("b")?;
        // One transaction replaces the chain that the listener names.
        chancery.publish_and_wait(&state("two", &[chain(mode, "two", "to-a")]))?;
        load.wait_for_only("a")?;
        let types = [LISTENER, FILTER_CHAIN, ROUTE, CLUSTER, ENDPOINT];
        chancery.wait_for_node(NODE, "synced", &types)?;
        envoy.expect_running()?;
        load.finish_without_failure(100)?;
        ensure!(chancery.metric("chancery_xds_nacks_total", "type=\"filter-chain\"")? == 0.0);
        Ok(())
    })
}
