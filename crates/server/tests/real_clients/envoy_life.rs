//! The life of an Envoy under continuous load: no published change costs a request.

use std::time::Duration;

use anyhow::{Result, bail};
use chancery_testing::reserve_port;
use serde_json::Value;

use crate::support::{
    STEP,
    chancery::Chancery,
    envoy::{Envoy, Mode},
    http, in_directory,
    load::Load,
    manifests::{TYPES, cluster, endpoints, listener, route},
    upstream, wait_for,
};

/// The `initial_fetch_timeout` of the endpoints. A changed cluster waits for it if no endpoints arrive.
const FETCH: &str = "60s";
/// The maximum duration of a change that does not wait for [`FETCH`].
const WARMING: Duration = Duration::from_secs(30);

/// Returns the cluster "two", which changes.
fn second_cluster(mode: Mode, connect_timeout: &str) -> Value {
    let mut cluster = cluster(mode, "two", connect_timeout);
    cluster["eds_cluster_config"]["eds_config"]["initial_fetch_timeout"] = FETCH.into();
    cluster
}

/// SOTW-02, SOTW-69, ADS-03, ADS-06, ADS-08, ADS-11: start, a moved endpoint, make-before-break in
/// one transaction, a changed cluster, and added and removed listeners, on one aggregated SotW
/// stream.
#[test]
fn sotw_ads_loses_no_request() -> Result<()> {
    life(Mode::SotwAds)
}

/// DELTA-22, DELTA-42, ADS-03, ADS-06, ADS-08, ADS-11, CLI-E-26: the life of an Envoy on one
/// aggregated delta stream.
#[test]
fn delta_ads_loses_no_request() -> Result<()> {
    life(Mode::DeltaAds)
}

/// CLI-E-12, ADS-11, ADS-12: the same life with the unified SotW client. It does not request
/// endpoints again after a change of their cluster.
#[test]
fn sotw_ads_loses_no_request_with_the_unified_mux() -> Result<()> {
    life(Mode::SotwAdsUnified)
}

/// ADS-11, CLI-E-26: the same life with the unified delta client.
#[test]
fn delta_ads_loses_no_request_with_the_unified_mux() -> Result<()> {
    life(Mode::DeltaAdsUnified)
}

/// SVC-05, ADS-24: the life of an Envoy with a SotW stream per type and, for endpoints, per
/// cluster. The author publishes make-before-break in steps.
#[test]
fn sotw_per_type_loses_no_request() -> Result<()> {
    life(Mode::SotwPerType)
}

/// SVC-05, ADS-24: the life of an Envoy with delta streams per type. The author publishes
/// make-before-break in steps.
#[test]
fn delta_per_type_loses_no_request() -> Result<()> {
    life(Mode::DeltaPerType)
}

fn life(mode: Mode) -> Result<()> {
    in_directory(|dir| {
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let port = reserve_port();
        let main_listener = listener(mode, "main", port, "main", "main");
        let chancery = Chancery::start(dir)?;

        // Start.
        chancery.publish(&[
            cluster(mode, "one", "1s"),
            endpoints("one", a),
            main_listener.clone(),
            route("main", "one"),
        ])?;
        let mut envoy = Envoy::start(dir, mode, "envoy-life", chancery.at.xds)?;
        http::wait_for_answer(port)?;
        let load = Load::start(port);
        load.wait_for_only("a")?;
        chancery.wait_for_node("envoy-life", "synced", &TYPES)?;

        // The endpoint moves.
        chancery.publish(&[
            cluster(mode, "one", "1s"),
            endpoints("one", b),
            main_listener.clone(),
            route("main", "one"),
        ])?;
        load.wait_for_only("b")?;

        // One transaction adds a cluster, moves the route to it, and removes the old cluster.
        let second = |connect_timeout| {
            [
                second_cluster(mode, connect_timeout),
                endpoints("two", a),
                main_listener.clone(),
                route("main", "two"),
            ]
        };
        if !mode.is_aggregated() {
            in_steps(mode, &chancery, &main_listener, a, b)?;
        }
        chancery.publish(&second("1s"))?;
        load.wait_for_only("a")?;
        wait_for("the removal of the old cluster", STEP, || {
            Ok(envoy.active_cluster("one")?.is_none().then_some(()))
        })?;
        load.wait_for_more(200)?;

        // The cluster changes. Envoy warms the new version before it uses it.
        chancery.publish(&second("3s"))?;
        wait_for("the changed cluster to be in use", WARMING, || {
            let timeout = envoy.active_cluster("two")?.map(|it| it["connect_timeout"].clone());
            if timeout.as_ref().is_some_and(|timeout| *timeout == "3s") {
                return Ok(Some(()));
            }
            bail!("its connect_timeout is {timeout:?}")
        })?;
        load.wait_for_more(200)?;

        let n_min = listeners(mode, &chancery, &envoy, &second("3s"))?;

        envoy.expect_running()?;
        chancery.wait_for_node("envoy-life", "synced", &TYPES)?;
        load.finish_without_failure(n_min)?;
        Ok(())
    })
}

/// Publishes in steps what an aggregated stream orders by itself, because separate streams have no
/// common order (ADS-24). `--wait` ends a step when Envoy has acknowledged it.
fn in_steps(mode: Mode, chancery: &Chancery, listener: &Value, a: u16, b: u16) -> Result<()> {
    let both = |used| {
        [
            cluster(mode, "one", "1s"),
            endpoints("one", b),
            second_cluster(mode, "1s"),
            endpoints("two", a),
            listener.clone(),
            route("main", used),
        ]
    };
    chancery.publish_and_wait(&both("one"))?;
    chancery.publish_and_wait(&both("two"))
}

/// Adds, changes and removes a second listener, with its own load.
fn listeners(mode: Mode, chancery: &Chancery, envoy: &Envoy, rest: &[Value]) -> Result<u64> {
    let port = reserve_port();
    let with = |stat_prefix| {
        let second =
            [listener(mode, "second", port, "second", stat_prefix), route("second", "two")];
        [rest, &second].concat()
    };
    chancery.publish(&with("before"))?;
    wait_for("the added listener", STEP, || http::get(port, "/").map(Some))?;
    let load = Load::start(port);
    load.wait_for_more(200)?;

    chancery.publish(&with("after"))?;
    wait_for("requests on the changed listener", STEP, || {
        // Connections stay with the listener that accepted them. A new connection reaches the new
        // listener.
        http::get(port, "/")?;
        Ok((envoy.stat("http.after.downstream_rq_total")? > 0).then_some(()))
    })?;
    load.wait_for_more(200)?;
    let tally = load.finish_without_failure(400)?;

    chancery.publish(rest)?;
    wait_for("the removal of the listener", STEP, || {
        Ok(http::get(port, "/").is_err().then_some(()))
    })?;
    Ok(tally.n_answered())
}
