//! One write that adds a cluster, moves the route to it, and removes the old cluster, under load.
//!
//! Over one aggregated stream, the server orders the changes (ADS-03, ADS-08). Between streams of different types, the
//! protocol defines no order. These tests measure the loss; `docs/operations.md` states the result.

use anyhow::{Result, bail};
use chancery_testing::reserve_port;
use serde_json::Value;

use crate::support::{
    STEP,
    chancery::Chancery,
    envoy::{Envoy, Mode},
    http, in_directory,
    load::Load,
    manifests::{TYPES, proxied},
    report, upstream, wait_for,
};

const ROUNDS: usize = 10;

/// ADS-03, ADS-08: over one SotW stream, no request fails.
#[test]
fn sotw_replacement_over_one_stream_loses_no_request() -> Result<()> {
    replace(Mode::SotwAds, Steps::One)
}

/// ADS-03, ADS-08: over one delta stream, no request fails.
#[test]
fn delta_replacement_over_one_stream_loses_no_request() -> Result<()> {
    replace(Mode::DeltaAds, Steps::One)
}

/// Over own SotW streams, requests fail only while the write arrives.
#[test]
fn sotw_replacement_over_own_streams_recovers() -> Result<()> {
    replace(Mode::SotwPerType, Steps::One)
}

/// Over own delta streams, requests fail only while the write arrives.
#[test]
fn delta_replacement_over_own_streams_recovers() -> Result<()> {
    replace(Mode::DeltaPerType, Steps::One)
}

/// Over own SotW streams, no request fails if the author adds, moves and removes in separate writes.
#[test]
fn sotw_replacement_in_three_writes_over_own_streams_loses_no_request() -> Result<()> {
    replace(Mode::SotwPerType, Steps::Three)
}

/// Over own delta streams, no request fails if the author adds, moves and removes in separate writes.
#[test]
fn delta_replacement_in_three_writes_over_own_streams_loses_no_request() -> Result<()> {
    replace(Mode::DeltaPerType, Steps::Three)
}

/// The number of writes for one replacement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Steps {
    One,
    /// Each write waits until the clients have the one before.
    Three,
}

/// Publishes the new resources. With three steps, the old cluster stays until the route has moved.
fn publish(
    chancery: &Chancery,
    envoy: &Envoy,
    steps: Steps,
    [old, new]: [&[Value; 4]; 2],
) -> Result<()> {
    if steps == Steps::Three {
        let [cluster, endpoints, listener, route] = new;
        let both = [&old[..2], &[cluster.clone(), endpoints.clone(), listener.clone()]].concat();
        let with_route = |route: &Value| [both.as_slice(), std::slice::from_ref(route)].concat();
        chancery.publish_and_wait(&with_route(&old[3]))?;
        let name = cluster["name"].as_str().unwrap_or_default();
        wait_for("the new cluster with its endpoints", STEP, || envoy.active_cluster(name))?;
        chancery.publish_and_wait(&with_route(route))?;
    }
    chancery.publish(new).map(drop)
}

fn replace(mode: Mode, steps: Steps) -> Result<()> {
    const NODE: &str = "envoy-order";
    in_directory(|dir| {
        let upstreams = [("a", upstream::spawn("a")?), ("b", upstream::spawn("b")?)];
        let port = reserve_port();
        let of = |round: usize| {
            let (name, upstream) = upstreams[round % 2];
            (name, proxied(mode, port, &format!("c{round}"), upstream))
        };
        let chancery = Chancery::start(dir)?;
        chancery.publish(&of(0).1)?;
        let mut envoy = Envoy::start(dir, mode, NODE, chancery.at.xds)?;
        http::wait_for_answer(port)?;
        let load = Load::start(port);
        load.wait_for_only("a")?;
        let (mut failed, mut outages, mut n_requests) = (Vec::new(), Vec::new(), 0);
        for round in 1..=ROUNDS {
            let (name, resources) = of(round);
            load.take();
            publish(&chancery, &envoy, steps, [&of(round - 1).1, &resources])?;
            load.wait_for_only(name)?;
            chancery.wait_for_node(NODE, "synced", &TYPES)?;
            let tally = load.take();
            failed.push(tally.n_failed);
            outages.push(tally.outage());
            n_requests += tally.n_answered() + tally.n_failed;
            load.wait_for_more(50)?;
            if load.tally().n_failed > 0 {
                bail!("requests fail after the write has arrived: {:?}", load.tally().failures);
            }
        }
        failed.sort_unstable();
        outages.sort_unstable();
        let n_failed: u64 = failed.iter().sum();
        report(&format!(
            "{mode:?}, {steps:?}: {n_failed} of {n_requests} requests failed in {ROUNDS} replacements; in each: \
             {failed:?}, within {outages:.0?}"
        ));
        if (mode.is_aggregated() || steps == Steps::Three) && n_failed > 0 {
            bail!("{n_failed} requests failed");
        }
        envoy.expect_running()?;
        load.finish_without_failure(50)?;
        Ok(())
    })
}
