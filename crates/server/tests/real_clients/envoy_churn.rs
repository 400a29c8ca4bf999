//! Publishing faster than a client can follow: intermediate states may be skipped, but no request
//! fails.

use std::{env, thread, time::Duration};

use anyhow::{Result, bail};
use chancery_testing::reserve_port;

use crate::support::{
    STEP,
    chancery::Chancery,
    envoy::{Envoy, Mode},
    http, in_directory,
    load::Load,
    manifests::{TYPES, proxied},
    upstream, wait_for,
};

/// Returns the number of transactions. Each adds a cluster, moves the route to it, and removes the
/// previous cluster.
fn n_rounds() -> usize {
    if env::var_os("CHANCERY_TEST_LONG").is_some() { 500 } else { 40 }
}

/// SOTW-36, SOTW-92, ADS-03, ADS-06, ADS-08: make-before-break repeatedly, without waiting.
#[test]
fn sotw_ads_follows_rapid_route_moves() -> Result<()> {
    storm(Mode::SotwAds, Interruption::None)
}

/// DELTA-42, DELTA-44, ADS-03, ADS-06, ADS-08: make-before-break repeatedly, without waiting.
#[test]
fn delta_ads_follows_rapid_route_moves() -> Result<()> {
    storm(Mode::DeltaAds, Interruption::None)
}

/// SOTW-36, ADS-06, ADS-08: the same storm with the unified SotW client.
#[test]
fn unified_sotw_mux_follows_rapid_route_moves() -> Result<()> {
    storm(Mode::SotwAdsUnified, Interruption::None)
}

/// DELTA-46, DELTA-58, ADS-08: the storm and the kills with the unified delta client.
#[test]
fn unified_delta_mux_follows_rapid_route_moves_across_kills() -> Result<()> {
    storm(Mode::DeltaAdsUnified, Interruption::Kills)
}

/// DELTA-46, DELTA-58, ADS-08: the same with a server that is killed twice during the storm.
#[test]
fn delta_ads_follows_rapid_route_moves_across_kills() -> Result<()> {
    storm(Mode::DeltaAds, Interruption::Kills)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interruption {
    None,
    Kills,
}

fn storm(mode: Mode, interruption: Interruption) -> Result<()> {
    in_directory(|dir| {
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let port = reserve_port();
        let mut chancery = Chancery::start(dir)?;
        let name = |round: usize| format!("cluster-{round}");
        let state = |round: usize| {
            proxied(mode, port, &name(round), if round.is_multiple_of(2) { a } else { b })
        };
        chancery.publish(&state(0))?;
        let mut envoy = Envoy::start(dir, mode, "envoy-churn", chancery.at.xds)?;
        http::wait_for_answer(port)?;
        let load = Load::start(port);
        chancery.wait_for_node("envoy-churn", "synced", &TYPES)?;

        let n_rounds = n_rounds();
        for round in 1..=n_rounds {
            chancery.publish(&state(round))?;
            // Some transactions come as fast as the command line allows, others while Envoy applies
            // the last one.
            thread::sleep(Duration::from_millis(u64::try_from(round % 5)? * 7));
            if interruption == Interruption::Kills && round % (n_rounds / 2) == n_rounds / 4 {
                chancery.kill()?;
                chancery.start_again()?;
            }
        }
        load.wait_for_only(if n_rounds.is_multiple_of(2) { "a" } else { "b" })?;
        wait_for("only the last cluster to be left", STEP, || {
            let names = envoy.active_cluster_names()?;
            if names == [name(n_rounds)] {
                return Ok(Some(()));
            }
            bail!("there are {names:?}")
        })?;
        chancery.wait_for_node("envoy-churn", "synced", &TYPES)?;
        envoy.expect_running()?;
        load.finish_without_failure(200)?;
        Ok(())
    })
}
