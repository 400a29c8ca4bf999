//! Clusters that a proxy requests when traffic needs them (ODCDS).

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use chancery_testing::reserve_port;
use serde_json::{Value, json};

use crate::{
    envoy_references::exchange,
    support::{
        STEP,
        chancery::Chancery,
        envoy::{Envoy, Mode},
        http::{self, Request},
        in_directory,
        load::Load,
        manifests::{
            CLUSTER, ENDPOINT, LISTENER, add_on_demand_filter, cluster, connection_manager,
            endpoints, listener_of,
        },
        upstream, wait_for,
    },
};

/// The on-demand timeouts of the two listeners. When the timeout ends, Envoy answers the request with 503.
const TIMEOUTS: [&str; 2] = ["60s", "1s"];
/// The maximum duration of an answer that does not wait for the longer timeout.
const PROMPT: Duration = Duration::from_secs(30);

/// Returns the connection manager of a listener whose requests name their cluster.
fn manager(mode: Mode, timeout: &str) -> Value {
    let mut manager = connection_manager(mode, "main", "main");
    let odcds = json!({"source": mode.config_source(), "timeout": timeout});
    add_on_demand_filter(&mut manager, json!({"odcds": odcds}));
    manager["rds"].take();
    manager["route_config"] = json!({"name": "inline", "virtual_hosts": [{
        "name": "all",
        "domains": ["*"],
        "routes": [{"match": {"prefix": ""}, "route": {"cluster_header": "x-cluster"}}],
    }]});
    manager
}

/// DELTA-40, DELTA-43, DELTA-68, CLI-E-40: Envoy requests a cluster by name, and sends no other request. The
/// server answers at once if it does not exist, and sends it after its creation. The subscription survives a
/// restart.
#[test]
fn clusters_are_delivered_on_demand() -> Result<()> {
    on_demand(Mode::DeltaAds)
}

/// DELTA-68, CLI-E-40: clusters by name, with a rejection and its correction. Each subscription has its own stream.
#[test]
fn clusters_are_delivered_on_demand_on_own_streams() -> Result<()> {
    on_demand(Mode::DeltaPerType)
}

fn on_demand(mode: Mode) -> Result<()> {
    const NODE: &str = "envoy-odcds";
    in_directory(|dir| {
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let port = reserve_port();
        let main = listener_of("main", port, &manager(mode, TIMEOUTS[0]));
        let ask = |name: &str| http::ask(port, &Request::with_header("x-cluster", name));
        let expect = |name: &str, status: u16| {
            let start = Instant::now();
            let answer = ask(name)?;
            if answer.status != status || start.elapsed() > PROMPT {
                bail!("{name}: {status} was expected, not {answer:?} after {:?}", start.elapsed());
            }
            Ok(())
        };

        let mut chancery = Chancery::start(dir)?;
        let (one, two) = (cluster(mode, "one", "1s"), cluster(mode, "two", "1s"));
        chancery.publish(&[main.clone(), one.clone(), endpoints("one", a)])?;
        let mut bootstrap = mode.bootstrap(NODE, chancery.at.xds);
        bootstrap["dynamic_resources"]["cds_config"].take();
        let mut envoy = Envoy::start_with(dir, NODE, &bootstrap)?;
        wait_for("the listener", STEP, || ask("").map(Some))?;
        if !envoy.active_cluster_names()?.is_empty() {
            bail!("there are clusters that no request needs: {:?}", envoy.active_cluster_names()?);
        }
        // Envoy holds the first request until it has the cluster.
        expect("one", 200)?;
        expect("two", 503)?;
        let load = Load::start_with(port, Request::with_header("x-cluster", "one"));
        load.wait_for_only("a")?;
        let types = [LISTENER, CLUSTER, ENDPOINT];
        chancery.wait_for_node(NODE, "synced", &types)?;

        // Envoy no longer waits for the cluster, and receives it anyway.
        chancery.publish(&[
            main.clone(),
            one.clone(),
            endpoints("one", b),
            two.clone(),
            endpoints("two", a),
        ])?;
        load.wait_for_only("b")?;
        wait_for("the cluster that did not exist", STEP, || {
            Ok((ask("two")?.status == 200).then_some(()))
        })?;

        let with = |one: &Value| {
            [main.clone(), one.clone(), endpoints("one", b), two.clone(), endpoints("two", a)]
        };
        reject_and_correct(&chancery, NODE, &envoy, |timeout| {
            with(&cluster(mode, "one", timeout))
        })?;
        load.wait_for_only("b")?;

        chancery.kill()?;
        load.wait_for_more(100)?;
        chancery.start_again()?;
        chancery.wait_for_node(NODE, "synced", &types)?;
        let impatient_port = reserve_port();
        let impatient = listener_of("impatient", impatient_port, &manager(mode, TIMEOUTS[1]));
        chancery.publish(&[main, impatient, one, endpoints("one", a)])?;
        load.wait_for_only("a")?;
        wait_for("the removal of the cluster", STEP, || {
            Ok((envoy.active_cluster_names()? == ["one"]).then_some(()))
        })?;
        // Envoy may keep its subscription and send no new request. The request then fails when the timeout ends.
        wait_for("503 for the removed cluster", STEP, || {
            let request = Request::with_header("x-cluster", "two");
            Ok((http::ask(impatient_port, &request)?.status == 503).then_some(()))
        })?;
        chancery.wait_for_node(NODE, "synced", &types)?;
        envoy.expect_running()?;
        load.finish_without_failure(300)?;
        Ok(())
    })
}

/// Envoy rejects an extension that it does not know, keeps the old cluster, and accepts the next one. `with` returns
/// the resources with a connect timeout of the cluster, the first resource but one.
fn reject_and_correct(
    chancery: &Chancery,
    node: &str,
    envoy: &Envoy,
    with: impl Fn(&str) -> [Value; 5],
) -> Result<()> {
    let mut bad = with("3s");
    bad[1]["typed_extension_protocol_options"] =
        json!({"unknown": {"@type": "type.googleapis.com/google.protobuf.Empty"}});
    chancery.publish_rejected(node, CLUSTER, &bad)?;
    let is = |timeout: &str| {
        Ok(envoy.active_cluster("one")?.filter(|it| it["connect_timeout"] == timeout))
    };
    wait_for("the old cluster", STEP, || is("1s"))?;
    chancery.publish(&with("2s"))?;
    wait_for("the corrected cluster", STEP, || is("2s"))?;
    chancery.wait_for_node(node, "synced", &[CLUSTER])
}

/// DELTA-68, ADS-11: on-demand clusters exchange their endpoints. The clusters have one subscription each.
#[test]
fn on_demand_clusters_swap_endpoints_without_loss() -> Result<()> {
    swap(Mode::DeltaAds)
}

/// DELTA-68: the same on own streams.
#[test]
fn on_demand_clusters_swap_endpoints_without_loss_on_own_streams() -> Result<()> {
    swap(Mode::DeltaPerType)
}

fn swap(mode: Mode) -> Result<()> {
    in_directory(|dir| {
        let port = reserve_port();
        let base = [
            listener_of("main", port, &manager(mode, TIMEOUTS[0])),
            endpoints("x", upstream::spawn("a")?),
            endpoints("y", upstream::spawn("b")?),
        ];
        let of = |name: &str, service: &str| {
            let mut cluster = cluster(mode, name, "1s");
            cluster["eds_cluster_config"]["service_name"] = json!(service);
            cluster
        };
        let with = |clusters: &[Value]| [base.as_slice(), clusters].concat();
        let before = with(&[of("c1", "x"), of("c2", "y")]);
        let after = with(&[of("c1", "y"), of("c3", "x")]);
        let chancery = Chancery::start(dir)?;
        chancery.publish(&before)?;
        let mut bootstrap = mode.bootstrap("envoy-exchange", chancery.at.xds);
        bootstrap["dynamic_resources"]["cds_config"].take();
        let envoy = Envoy::start_with(dir, "envoy-exchange", &bootstrap)?;
        let parents = ["c1", "c2", "c3"].map(|name| (port, Some(("x-cluster", name))));
        exchange(&chancery, envoy, [&before, &after], parents, ["a", "b"])
    })
}
