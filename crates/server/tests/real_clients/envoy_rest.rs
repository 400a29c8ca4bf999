//! A real Envoy that polls its configuration as REST-JSON, under continuous load.

use std::{
    net::{Ipv4Addr, TcpListener},
    thread,
    time::Duration,
};

use anyhow::{Result, bail};
use chancery_testing::reserve_port;

use crate::support::{
    STEP,
    chancery::Chancery,
    envoy::{Envoy, Mode},
    http, in_directory,
    load::Load,
    manifests::{cluster, endpoints, listener, proxied, route},
    upstream, wait_for,
};

/// REST-01, -07, -10, -15, -17, -18, -21, -23, -25, CLI-E-35: start, updates, a rejected update, and an
/// outage of the replica, over HTTP/1.1. No request fails.
#[test]
fn rest_over_http1_loses_no_request() -> Result<()> {
    life(Mode::Rest, &[])
}

/// REST-13, -14, -23: the same over HTTP/2, with long polling.
#[test]
fn long_polls_over_http2_lose_no_request() -> Result<()> {
    life(Mode::RestHttp2, &[("CHANCERY_XDS_POLL_HOLD", "500ms")])
}

fn life(mode: Mode, settings: &[(&str, &str)]) -> Result<()> {
    in_directory(|dir| {
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let port = reserve_port();
        let main = listener(mode, "main", port, "main", "main");
        let mut chancery = Chancery::start_with(dir, settings)?;
        chancery.publish(&proxied(mode, port, "one", a))?;
        let mut envoy = Envoy::start(dir, mode, "envoy-rest", chancery.at.xds)?;
        http::wait_for_answer(port)?;
        let load = Load::start(port);
        load.wait_for_only("a")?;

        // The endpoint moves.
        chancery.publish(&proxied(mode, port, "one", b))?;
        load.wait_for_only("b")?;

        // The route moves to another cluster. Polls have no order between types, so the author adds the
        // cluster first, and removes the old one last.
        let both = |used| {
            [
                cluster(mode, "one", "1s"),
                endpoints("one", b),
                cluster(mode, "two", "1s"),
                endpoints("two", a),
                main.clone(),
                route("main", used),
            ]
        };
        chancery.publish(&both("one"))?;
        wait_for("the second cluster", STEP, || {
            Ok(envoy.active_cluster("two")?.is_some().then_some(()))
        })?;
        chancery.publish(&both("two"))?;
        load.wait_for_only("a")?;
        chancery.publish(&proxied(mode, port, "two", a))?;
        wait_for("the removal of the old cluster", STEP, || {
            Ok(envoy.active_cluster("one")?.is_none().then_some(()))
        })?;

        reject_and_correct(mode, port, [a, b], &chancery, &envoy, &load)?;
        let rejected = envoy.stat("listener_manager.lds.update_rejected")?;

        // The replica is gone for a while. Then Envoy has everything, and receives the next change.
        chancery.terminate()?;
        let failures = envoy.stat("cluster_manager.cds.update_failure")?;
        wait_for("failed polls", STEP, || {
            let now = envoy.stat("cluster_manager.cds.update_failure")?;
            Ok((now >= failures + 3).then_some(()))
        })?;
        load.wait_for_more(200)?;
        chancery.start_again()?;
        let counts = envoy.change_counts()?;
        wait_for("unchanged polls", STEP, || {
            let unchanged = chancery.metric("chancery_xds_polls_total", "result=\"unchanged\"")?;
            Ok((unchanged >= 10.0).then_some(()))
        })?;
        let changed = chancery.metric("chancery_xds_polls_total", "result=\"changed\"")?;
        if changed > 0.0 || envoy.change_counts()? != counts {
            bail!("Envoy was current after the restart, but received {changed} responses");
        }
        chancery.publish(&proxied(mode, port, "two", a))?;
        load.wait_for_only("a")?;
        if envoy.stat("listener_manager.lds.update_rejected")? != rejected {
            bail!("Envoy rejected a further response");
        }
        // No poll waits in the way of the end of the replica.
        thread::sleep(Duration::from_millis(100));
        chancery.terminate()?;
        envoy.expect_running()?;
        load.finish_without_failure(500)?;
        Ok(())
    })
}

/// Envoy rejects a listener whose port is in use. It repeats its old version, and the other resources
/// continue to change.
fn reject_and_correct(
    mode: Mode,
    port: u16,
    [a, b]: [u16; 2],
    chancery: &Chancery,
    envoy: &Envoy,
    load: &Load,
) -> Result<()> {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, reserve_port()))?;
    let second = |port| listener(mode, "second", port, "main", "second");
    let with = |second_port, upstream| {
        [proxied(mode, port, "two", upstream).as_slice(), &[second(second_port)]].concat()
    };
    chancery.publish(&with(taken.local_addr()?.port(), a))?;
    wait_for("the rejection", STEP, || {
        Ok((envoy.stat("listener_manager.lds.update_rejected")? > 0).then_some(()))
    })?;
    chancery.publish(&with(taken.local_addr()?.port(), b))?;
    load.wait_for_only("b")?;
    let free = reserve_port();
    chancery.publish(&with(free, b))?;
    wait_for("the corrected listener", STEP, || http::get(free, "/").map(Some))?;
    Ok(())
}

/// REST-20, REST-25, CLI-E-35: a replica whose memory for polls is in use answers 503. Envoy keeps its clusters and
/// polls again, other types still change, and the next smaller state arrives. No request fails.
#[test]
fn poll_rejected_with_503_keeps_the_configuration() -> Result<()> {
    let mode = Mode::Rest;
    in_directory(|dir| {
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let port = reserve_port();
        let with = |n_bytes: usize, timeout: &str, upstream| {
            let mut resources = proxied(mode, port, "one", upstream);
            resources[0]["connect_timeout"] = timeout.into();
            let text = "x".repeat(n_bytes);
            resources[0]["metadata"] = serde_json::json!({"filter_metadata": {"x": {"y": text}}});
            resources
        };
        let limit = [("CHANCERY_XDS_POLL_BYTES_MAX", "1MiB")];
        let chancery = Chancery::start_with(dir, &limit)?;
        chancery.publish(&with(10, "1s", a))?;
        let mut envoy = Envoy::start(dir, mode, "envoy-rest", chancery.at.xds)?;
        http::wait_for_answer(port)?;
        let load = Load::start(port);
        load.wait_for_only("a")?;

        chancery.publish(&with(3 << 19, "2s", b))?;
        wait_for("polls that are rejected with 503", STEP, || {
            let label = "result=\"unavailable\"";
            let unavailable = chancery.metric("chancery_xds_polls_total", label)?;
            Ok((unavailable >= 5.0).then_some(()))
        })?;
        load.wait_for_only("b")?;
        let is = |timeout: &str| {
            Ok::<_, anyhow::Error>(
                envoy.active_cluster("one")?.filter(|it| it["connect_timeout"] == timeout),
            )
        };
        if is("1s")?.is_none() {
            bail!("the cluster has changed: {:?}", envoy.active_cluster("one")?);
        }
        let failures = envoy.stat("cluster_manager.cds.update_failure")?;
        if failures == 0 || envoy.stat("cluster_manager.cds.update_rejected")? > 0 {
            bail!("{failures} failures of updates");
        }

        chancery.publish(&with(10, "3s", a))?;
        wait_for("the next cluster", STEP, || is("3s"))?;
        load.wait_for_only("a")?;
        envoy.expect_running()?;
        load.finish_without_failure(200)?;
        Ok(())
    })
}
