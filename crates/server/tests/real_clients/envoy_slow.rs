//! Writes that each add a cluster and move the route to it, while Envoy answers slowly or not at all. The
//! routes follow the endpoints of their clusters (ADS-06), though the wait for an answer is limited (ADS-22).

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use chancery_testing::reserve_port;
use serde_json::Value;

use crate::support::{
    chancery::Chancery,
    envoy::{Envoy, Mode},
    http, in_directory,
    load::Load,
    manifests::{TYPES, proxied},
    report,
    tap::delay_requests,
    upstream,
};

/// The time for which Envoy is frozen: longer than the ACK timeout of 5 s.
const FROZEN: Duration = Duration::from_secs(6);

/// ADS-06, ADS-22: SotW, every request of Envoy arrives 3 s late. No request fails.
#[test]
fn sotw_slow_envoy_loses_no_request() -> Result<()> {
    slow(Mode::SotwAds)
}

/// ADS-06, ADS-22: delta, every request of Envoy arrives 3 s late. No request fails.
#[test]
fn delta_slow_envoy_loses_no_request() -> Result<()> {
    slow(Mode::DeltaAds)
}

/// ADS-06, ADS-22: SotW, Envoy is frozen for 6 s. No request fails.
#[test]
fn sotw_frozen_envoy_loses_no_request() -> Result<()> {
    frozen(Mode::SotwAds)
}

/// ADS-06, ADS-22: delta, Envoy is frozen for 6 s. No request fails.
#[test]
fn delta_frozen_envoy_loses_no_request() -> Result<()> {
    frozen(Mode::DeltaAds)
}

/// A server and two upstreams.
struct Scene {
    mode: Mode,
    chancery: Chancery,
    port: u16,
    upstreams: [(&'static str, u16); 2],
}

impl Scene {
    /// Publishes a new cluster, moves the route to it, and removes the clusters before `first`. Returns
    /// the answer of the new cluster.
    fn publish(&self, first: usize, round: usize) -> Result<&'static str> {
        let of = |round: usize| {
            let (_, upstream) = self.upstreams[round % 2];
            proxied(self.mode, self.port, &format!("c{round}"), upstream)
        };
        // Only the last round has its listener and its route.
        let earlier = (first..round).flat_map(|round| of(round).into_iter().take(2));
        let resources: Vec<Value> = earlier.chain(of(round)).collect();
        self.chancery.publish(&resources)?;
        Ok(self.upstreams[round % 2].0)
    }

    fn play(
        mode: Mode,
        delay: Duration,
        script: impl FnOnce(&Self, &mut Envoy, &Load) -> Result<()>,
    ) -> Result<()> {
        const NODE: &str = "envoy-slow";
        in_directory(|dir| {
            let upstreams = [("a", upstream::spawn("a")?), ("b", upstream::spawn("b")?)];
            let (chancery, port) = (Chancery::start(dir)?, reserve_port());
            let xds = if delay.is_zero() {
                chancery.at.xds
            } else {
                delay_requests(chancery.at.xds, delay)?
            };
            let scene = Self { mode, chancery, port, upstreams };
            scene.publish(0, 0)?;
            let mut envoy = Envoy::start(dir, mode, NODE, xds)?;
            http::wait_for_answer(port)?;
            let load = Load::start(port);
            load.wait_for_only("a")?;
            scene.chancery.wait_for_node(NODE, "synced", &TYPES)?;
            script(&scene, &mut envoy, &load)?;
            scene.chancery.wait_for_node(NODE, "synced", &TYPES)?;
            envoy.expect_running()?;
            let tally = load.finish_without_failure(50)?;
            report(&format!("{mode:?}: 0 of {} requests failed", tally.n_answered()));
            Ok(())
        })
    }
}

/// Every 2 s, a write adds a cluster. A cluster must exist until Envoy has requested its endpoints.
fn slow(mode: Mode) -> Result<()> {
    Scene::play(mode, Duration::from_secs(3), |scene, _, load| {
        let mut last = "";
        for round in 1..=8 {
            let start = Instant::now();
            last = scene.publish(0, round)?;
            thread::sleep(Duration::from_secs(2).saturating_sub(start.elapsed()));
        }
        load.wait_for_only(last)
    })
}

fn frozen(mode: Mode) -> Result<()> {
    Scene::play(mode, Duration::ZERO, |scene, envoy, load| {
        let mut round = 0;
        // The time of each write after the freeze, in milliseconds.
        for writes in [&[500][..], &[0, 2_000], &[0, 4_500]] {
            envoy.freeze()?;
            let start = Instant::now();
            let mut last = "";
            for at in writes {
                thread::sleep(Duration::from_millis(*at).saturating_sub(start.elapsed()));
                round += 1;
                last = scene.publish(round, round)?;
            }
            thread::sleep(FROZEN.saturating_sub(start.elapsed()));
            envoy.thaw()?;
            load.wait_for_only(last)?;
        }
        Ok(())
    })
}
