//! A write that renames a route table, moves its listener to the new name, and replaces its cluster. Envoy
//! drains the old listener: its keep-alive connections use the old table until the drain time ends.

use std::{thread, time::Duration};

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
    report, upstream, wait_for,
};

const NODE: &str = "envoy-drain";

/// ADS-08: SotW, no request on a connection of the draining listener fails.
#[test]
fn sotw_renamed_route_table_loses_no_request() -> Result<()> {
    rename(Mode::SotwAds)
}

/// ADS-08: delta, no request on a connection of the draining listener fails.
#[test]
fn delta_renamed_route_table_loses_no_request() -> Result<()> {
    rename(Mode::DeltaAds)
}

/// Returns the resources of a proxy whose route table and cluster have the number of the round.
fn proxied(mode: Mode, port: u16, round: usize, upstream: u16) -> [Value; 4] {
    let (name, table) = (format!("c{round}"), format!("table{round}"));
    [
        cluster(mode, &name, "20s"),
        endpoints(&name, upstream),
        listener(mode, "main", port, &table, "main"),
        route(&table, &name),
    ]
}

fn rename(mode: Mode) -> Result<()> {
    in_directory(|dir| {
        let upstreams = [("a", upstream::spawn("a")?), ("b", upstream::spawn("b")?)];
        let port = reserve_port();
        let of = |round: usize| proxied(mode, port, round, upstreams[round % 2].1);
        let chancery = Chancery::start(dir)?;
        chancery.publish(&of(0))?;
        let bootstrap = mode.bootstrap(NODE, chancery.at.xds);
        let options = ["--drain-time-s", "8"];
        let mut envoy = Envoy::start_with_options(dir, NODE, &bootstrap, &options)?;
        http::wait_for_answer(port)?;
        let load = Load::start(port);
        load.wait_for_only("a")?;
        for round in 1..=2 {
            let name = upstreams[round % 2].0;
            chancery.publish_and_wait(&of(round))?;
            wait_for("the new route table", STEP, || {
                Ok((http::get(port, "/")? == name).then_some(()))
            })?;
            // The server has sent what it sends because of the write, except the removals.
            chancery.wait_for_node(NODE, "synced", &TYPES)?;
            thread::sleep(Duration::from_secs(3));
            let names = envoy.active_cluster_names()?;
            if names != [format!("c{}", round - 1), format!("c{round}")] {
                bail!("Envoy has {names:?} while the listener drains; {:?}", load.tally());
            }
            // The drain ends.
            wait_for("the removal of the old cluster", STEP, || {
                Ok((envoy.active_cluster_names()? == [format!("c{round}")]).then_some(()))
            })?;
            load.wait_for_only(name)?;
        }
        envoy.expect_running()?;
        let tally = load.finish_without_failure(50)?;
        report(&format!("{mode:?}: 0 of {} requests failed", tally.n_answered()));
        Ok(())
    })
}
