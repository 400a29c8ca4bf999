//! A frozen scope: Envoy keeps its configuration under writes, a kill of the server and its own restart. A rollback leads
//! its traffic back.

use anyhow::{Result, ensure};
use chancery_testing::reserve_port;

use crate::support::{
    chancery::Chancery,
    envoy::{Envoy, Mode},
    http, in_directory,
    load::Load,
    manifests::{TYPES, cluster, proxied},
    upstream,
};

const NODE: &str = "envoy-frozen";
/// The number of writes to the frozen scope.
const WRITES: usize = 30;

/// SOTW-14, SOTW-15: the versions of a frozen scope stay, and nothing is sent.
#[test]
fn sotw_envoy_keeps_frozen_content_until_the_thaw() -> Result<()> {
    frozen(Mode::SotwAds)
}

/// DELTA-22, DELTA-58: the same with delta.
#[test]
fn delta_envoy_keeps_frozen_content_until_the_thaw() -> Result<()> {
    frozen(Mode::DeltaAds)
}

fn frozen(mode: Mode) -> Result<()> {
    in_directory(|dir| {
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let port = reserve_port();
        let mut chancery = Chancery::start(dir)?;
        chancery.publish(&proxied(mode, port, "one", a))?;
        let first = revision(&chancery)?;
        let envoy = Envoy::start(dir, mode, NODE, chancery.at.xds)?;
        http::wait_for_answer(port)?;
        let load = Load::start(port);
        load.wait_for_only("a")?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;
        let counts = envoy.change_counts()?;
        let pushed = chancery.metric("chancery_xds_pushed_bytes_total", "")?;

        chancery.cli(&["freeze", "default", "--reason", "incident"], "")?;
        for n in 0..WRITES {
            let more = cluster(mode, "more", &format!("{}s", n + 1));
            chancery.publish(&[&proxied(mode, port, "one", b)[..], &[more]].concat())?;
        }
        load.wait_for_more(200)?;
        let pushed_again = chancery.metric("chancery_xds_pushed_bytes_total", "")?;
        ensure!(pushed_again == pushed, "{} bytes were sent", pushed_again - pushed);
        chancery.kill()?;
        chancery.start_again()?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;
        let again = envoy.change_counts()?;
        ensure!(again == counts, "Envoy changed something: {counts:?}, afterwards {again:?}");
        load.finish_without_failure(200)?;

        // Another process of the node receives the frozen content.
        drop(envoy);
        let mut envoy = Envoy::start(dir, mode, NODE, chancery.at.xds)?;
        http::wait_for_answer(port)?;
        let load = Load::start(port);
        load.wait_for_only("a")?;

        chancery.cli(&["thaw", "default"], "")?;
        load.wait_for_only("b")?;
        chancery.cli(&["rollback", "default", "--to", &first, "--confirm", "all"], "")?;
        load.wait_for_only("a")?;
        envoy.expect_running()?;
        load.finish_without_failure(200)?;
        Ok(())
    })
}

/// Returns the newest revision.
fn revision(chancery: &Chancery) -> Result<String> {
    Ok(chancery.cli(&["history", "-n", "1"], "")?["entries"][0]["revision"].to_string())
}
