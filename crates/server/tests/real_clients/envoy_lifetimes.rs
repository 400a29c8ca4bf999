//! Lifetimes of resources (`ttl`) with a real Envoy under continuous load.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use chancery_testing::reserve_port;
use serde_json::{Value, json};

use crate::support::{
    STEP,
    chancery::Chancery,
    envoy::{Envoy, Mode},
    http, in_directory,
    load::Load,
    manifests::{CLUSTER, TYPES, proxied},
    upstream, wait_for,
};

/// The lifetime in these tests.
const TTL: Duration = Duration::from_secs(6);

/// TTL-01, TTL-02, TTL-03, TTL-07, TTL-08: a delta Envoy with the feature keeps a cluster and a
/// listener for longer than a lifetime without a failed request. Their lifetimes end when the server is
/// gone.
#[test]
fn delta_envoy_keeps_renewed_resources_and_drops_them_without_a_server() -> Result<()> {
    lifetimes(Mode::DeltaAds)
}

/// TTL-05, TTL-06, TTL-08: the same with a SotW Envoy, which is renewed with the content.
#[test]
fn sotw_envoy_keeps_renewed_resources_and_drops_them_without_a_server() -> Result<()> {
    lifetimes(Mode::SotwAds)
}

/// TTL-08: the same with the unified delta client.
#[test]
fn unified_delta_envoy_keeps_renewed_resources() -> Result<()> {
    lifetimes(Mode::DeltaAdsUnified)
}

/// Returns the bootstrap of an Envoy that reports the features. It does not report them by default.
fn bootstrap(mode: Mode, xds: u16) -> Value {
    let mut bootstrap = mode.bootstrap("envoy-ttl", xds);
    let features = ["xds.config.supports-resource-ttl", "xds.config.resource-in-sotw"];
    bootstrap["node"]["client_features"] = json!(features);
    bootstrap
}

fn lifetimes(mode: Mode) -> Result<()> {
    in_directory(|dir| in_dir(mode, dir))
}

fn in_dir(mode: Mode, dir: &Path) -> Result<()> {
    let (a, port) = (upstream::spawn("a")?, reserve_port());
    let mut chancery = Chancery::start(dir)?;
    let resources = proxied(mode, port, "one", a).map(|resource| {
        // A SotW Envoy crashes when the lifetime of endpoints or of a route ends.
        let has_lifetime = resource["@type"] == CLUSTER || resource["name"] == "main";
        let has_lifetime = has_lifetime && resource.get("virtual_hosts").is_none();
        if has_lifetime { json!({"resource": resource, "ttl": "6s"}) } else { resource }
    });
    chancery.publish(&resources)?;
    let mut envoy = Envoy::start_with(dir, "envoy-ttl", &bootstrap(mode, chancery.at.xds))?;
    http::wait_for_answer(port)?;
    let load = Load::start(port);
    load.wait_for_only("a")?;
    chancery.wait_for_node("envoy-ttl", "synced", &TYPES)?;
    let of_types = ["type=\"cluster\"", "type=\"listener\""];
    let renewed = || -> Result<[f64; 2]> {
        let of = |of_type| chancery.metric("chancery_xds_renewed_resources_total", of_type);
        Ok([of(of_types[0])?, of(of_types[1])?])
    };
    let (before, first) = (envoy.change_counts()?, renewed()?);
    let end = Instant::now() + 3 * TTL / 2;
    while Instant::now() < end {
        ensure!(envoy.active_cluster("one")?.is_some(), "the cluster is gone");
        thread::sleep(Duration::from_millis(100));
    }
    ensure!(envoy.change_counts()? == before, "a renewal changed something");
    let last = renewed()?;
    for (at, of_type) in of_types.into_iter().enumerate() {
        let nacks = chancery.metric("chancery_xds_nacks_total", of_type)?;
        let n = last[at] - first[at];
        // The server renews at least three times per lifetime, so four renewals are due in one and a half lifetimes.
        // One of them may be late.
        ensure!(nacks < 1.0 && n >= 3.0, "{n} renewals, {nacks} rejected: {of_type}");
    }
    load.finish_without_failure(50)?;
    chancery.kill()?;
    let killed_at = Instant::now();
    wait_for("the end of the cluster's lifetime", STEP, || {
        Ok(envoy.active_cluster("one")?.is_none().then_some(()))
    })?;
    let passed = killed_at.elapsed();
    ensure!(passed > TTL / 3, "the cluster was kept for {passed:?}");
    wait_for("the end of the listener's lifetime", STEP, || {
        Ok(http::get(port, "/").is_err().then_some(()))
    })?;
    envoy.expect_running()?;
    // The server returns, and so do the resources.
    chancery.start_again()?;
    http::wait_for_answer(port)?;
    envoy.expect_running()
}
