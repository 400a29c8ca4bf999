//! The server is killed and restarts, with the same state or with a changed one.

use anyhow::{Result, bail};
use chancery_testing::reserve_port;

use crate::support::{
    STEP,
    chancery::{Addresses, Chancery},
    envoy::{Envoy, Mode},
    http, in_directory,
    load::Load,
    manifests::{TYPES, proxied},
    report, upstream, wait_for,
};

/// SOTW-14, SOTW-100, CLI-E-10, CLI-E-36: after `kill -9` the versions are the same, and Envoy
/// changes nothing.
#[test]
fn sotw_ads_sees_the_same_state_after_a_kill() -> Result<()> {
    same_state(Mode::SotwAds)
}

/// DELTA-22, DELTA-58, DELTA-70, CLI-E-21, CLI-E-36: after `kill -9` the versions are the same.
/// Only resources requested by name are sent again, once.
#[test]
fn delta_ads_sees_the_same_state_after_a_kill() -> Result<()> {
    same_state(Mode::DeltaAds)
}

/// SOTW-14, SOTW-100, ADS-24: the same versions after `kill -9`, with SotW streams per type.
#[test]
fn sotw_per_type_sees_the_same_state_after_a_kill() -> Result<()> {
    same_state(Mode::SotwPerType)
}

/// DELTA-58, DELTA-70, ADS-24: the same versions after `kill -9`, with delta streams per type.
#[test]
fn delta_per_type_sees_the_same_state_after_a_kill() -> Result<()> {
    same_state(Mode::DeltaPerType)
}

/// SOTW-14, SOTW-100: the same with the unified SotW client.
#[test]
fn unified_sotw_mux_sees_the_same_state_after_a_kill() -> Result<()> {
    same_state(Mode::SotwAdsUnified)
}

/// DELTA-22, DELTA-58, DELTA-70: the same with the unified delta client.
#[test]
fn unified_delta_mux_sees_the_same_state_after_a_kill() -> Result<()> {
    same_state(Mode::DeltaAdsUnified)
}

fn same_state(mode: Mode) -> Result<()> {
    in_directory(|dir| {
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let port = reserve_port();
        let mut chancery = Chancery::start(dir)?;
        let state = |upstream| proxied(mode, port, "one", upstream);
        chancery.publish(&state(a))?;
        let mut envoy = Envoy::start(dir, mode, "envoy-same", chancery.at.xds)?;
        http::wait_for_answer(port)?;
        let load = Load::start(port);
        chancery.wait_for_node("envoy-same", "synced", &TYPES)?;
        let resources = chancery.cli(&["get"], "")?;
        let versions = acked_versions(&chancery, "envoy-same")?;
        let counts = envoy.change_counts()?;
        if chancery.metric("chancery_xds_pushed_resources_total", "type=\"cluster\"")? < 1.0 {
            bail!("the metric did not count the resources of the start");
        }

        chancery.kill()?;
        load.wait_for_more(200)?;
        chancery.start_again()?;
        chancery.wait_for_node("envoy-same", "synced", &TYPES)?;
        load.wait_for_more(200)?;

        if chancery.cli(&["get"], "")? != resources {
            bail!("the resources differ from those before the kill");
        }
        let again = envoy.change_counts()?;
        if again != counts {
            bail!("Envoy changed something: before {counts:?}, afterwards {again:?}");
        }
        if mode.is_delta() {
            // Wildcard subscriptions resume from the versions that the client reports. Named
            // resources are sent on every new stream (DELTA-22).
            for (alias, demanded) in
                [("cluster", 0.0), ("listener", 0.0), ("endpoint", 1.0), ("route", 1.0)]
            {
                let label = format!("type=\"{alias}\"");
                let n_pushed = chancery.metric("chancery_xds_pushed_resources_total", &label)?;
                if n_pushed > demanded {
                    bail!("{n_pushed} resources of {alias} were sent again");
                }
            }
        } else {
            let versions_again = acked_versions(&chancery, "envoy-same")?;
            if versions_again != versions {
                bail!("versions were {versions:?}, and are {versions_again:?}");
            }
        }

        // The resumed streams receive changes.
        chancery.publish(&state(b))?;
        load.wait_for_only("b")?;
        envoy.expect_running()?;
        load.finish_without_failure(400)?;
        Ok(())
    })
}

/// Returns the type URLs with the versions that the node acknowledged.
fn acked_versions(chancery: &Chancery, node: &str) -> Result<Vec<(String, String)>> {
    let mut versions: Vec<_> = chancery
        .subscriptions(node)?
        .iter()
        .map(|it| (it["type_url"].to_string(), it["acked_version"].to_string()))
        .collect();
    versions.sort();
    Ok(versions)
}

/// ADS-08, DELTA-46, DELTA-58: a cluster to which Envoy still routes is removed only after its
/// routes have moved.
#[test]
fn delta_ads_loses_no_request_after_restart_with_changed_state() -> Result<()> {
    let n_failed = changed_state(Mode::DeltaAds)?;
    if n_failed > 0 {
        bail!("{n_failed} requests failed");
    }
    Ok(())
}

/// ADS-08, DELTA-46, DELTA-58: the same with the unified delta client.
#[test]
fn unified_delta_mux_loses_no_request_after_restart_with_changed_state() -> Result<()> {
    let n_failed = changed_state(Mode::DeltaAdsUnified)?;
    if n_failed > 0 {
        bail!("{n_failed} requests failed");
    }
    Ok(())
}

/// SOTW-100: the server cannot know which resources a SotW client has, so that some requests may
/// fail. The test reports their number; afterwards no request fails.
#[test]
fn sotw_ads_recovers_after_restart_with_changed_state() -> Result<()> {
    let n_failed = changed_state(Mode::SotwAds)?;
    report(&format!("SotW, restart with changed state: {n_failed} requests failed"));
    Ok(())
}

/// Returns the number of requests that failed until the new state was in use.
fn changed_state(mode: Mode) -> Result<u64> {
    let mut n_failed = 0;
    in_directory(|dir| {
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let port = reserve_port();
        let mut chancery = Chancery::start(dir)?;
        let state = |name, upstream| proxied(mode, port, name, upstream);
        chancery.publish(&state("one", a))?;
        let mut envoy = Envoy::start(dir, mode, "envoy-changed", chancery.at.xds)?;
        http::wait_for_answer(port)?;
        let load = Load::start(port);
        load.wait_for_only("a")?;
        chancery.wait_for_node("envoy-changed", "synced", &TYPES)?;

        // The state changes where Envoy cannot see it: a server with the same data runs on other
        // ports.
        chancery.kill()?;
        let seen_by_envoy = std::mem::replace(&mut chancery.at, Addresses::free()?);
        chancery.start_again()?;
        chancery.publish(&state("two", b))?;
        chancery.terminate()?;
        chancery.at = seen_by_envoy;
        load.wait_for_more(100)?;
        chancery.start_again()?;

        load.wait_for_only("b")?;
        wait_for("the removal of the old cluster", STEP, || {
            Ok(envoy.active_cluster("one")?.is_none().then_some(()))
        })?;
        chancery.wait_for_node("envoy-changed", "synced", &TYPES)?;
        let tally = load.take();
        n_failed = tally.n_failed;
        if mode.is_delta() && n_failed > 0 {
            bail!("{n_failed} requests failed: {:#?}", tally.failures);
        }
        load.wait_for_more(500)?;
        envoy.expect_running()?;
        load.finish_without_failure(500)?;
        Ok(())
    })?;
    Ok(n_failed)
}
