//! Rejections by Envoy: they are reported with Envoy's text, do no harm, and end with the next
//! valid version.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context as _, Result, bail};
use chancery_testing::reserve_port;
use serde_json::json;

use crate::support::{
    STEP,
    chancery::Chancery,
    envoy::{Envoy, Mode},
    http, in_directory,
    load::Load,
    manifests::{LISTENER, TYPES, cluster, endpoints, listener, proxied, route},
    upstream, wait_for,
};

/// SOTW-20, SOTW-21, SOTW-23, SOTW-27, SOTW-28: a listener that cannot bind.
#[test]
fn sotw_nack_is_reported_and_recovered() -> Result<()> {
    nack_and_recovery(Mode::SotwAds)
}

/// DELTA-11, DELTA-16, SOTW-28: a listener that cannot bind.
#[test]
fn delta_nack_is_reported_and_recovered() -> Result<()> {
    nack_and_recovery(Mode::DeltaAds)
}

/// SOTW-20, SOTW-21, SOTW-23: the same with the unified SotW client.
#[test]
fn unified_sotw_mux_nack_is_reported_and_recovered() -> Result<()> {
    nack_and_recovery(Mode::SotwAdsUnified)
}

/// DELTA-11, DELTA-16: the same with the unified delta client.
#[test]
fn unified_delta_mux_nack_is_reported_and_recovered() -> Result<()> {
    nack_and_recovery(Mode::DeltaAdsUnified)
}

fn nack_and_recovery(mode: Mode) -> Result<()> {
    in_directory(|dir| {
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let port = reserve_port();
        let chancery = Chancery::start(dir)?;
        let base = |upstream| proxied(mode, port, "one", upstream);
        chancery.publish(&base(a))?;
        let envoy = Envoy::start(dir, mode, "envoy-nack", chancery.at.xds)?;
        http::wait_for_answer(port)?;
        let load = Load::start(port);
        chancery.wait_for_node("envoy-nack", "synced", &TYPES)?;

        // Admission cannot detect this conflict: another process on this machine uses the port.
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, reserve_port()))?;
        let taken = (taken.local_addr()?.port(), taken);
        let second = |port| listener(mode, "second", port, "main", "second");
        chancery.publish(&[base(a).as_slice(), &[second(taken.0)]].concat())?;
        let message = wait_for("the NACK in `chancery node`", STEP, || {
            let subscriptions = chancery.subscriptions("envoy-nack")?;
            let listeners = subscriptions
                .iter()
                .find(|subscription| subscription["type_url"] == LISTENER)
                .context("no subscription to listeners")?;
            if listeners["state"] == "nacked" {
                return Ok(Some(listeners["nack_message"].as_str().unwrap_or_default().to_owned()));
            }
            bail!("it is {listeners}")
        })?;
        if !message.contains("second") {
            bail!("Envoy's message about the listener `second` is {message:?}");
        }
        let node = chancery.node("envoy-nack")?;
        if node["state"] != "nacked" {
            bail!("the node's state is {}", node["state"]);
        }

        // The other resources still change, and the rejected resource is not sent again.
        let rejected = envoy.stat("listener_manager.lds.update_rejected")?;
        chancery.publish(&[base(b).as_slice(), &[second(taken.0)]].concat())?;
        load.wait_for_only("b")?;
        load.wait_for_more(500)?;
        let again = envoy.stat("listener_manager.lds.update_rejected")?;
        if (rejected, again) != (1, 1) {
            bail!("one rejection was expected, but Envoy counts {rejected} and then {again}");
        }

        // A valid version.
        let free = reserve_port();
        chancery.publish(&[base(b).as_slice(), &[second(free)]].concat())?;
        wait_for("the good listener", STEP, || http::get(free, "/").map(Some))?;
        chancery.wait_for_node("envoy-nack", "synced", &TYPES)?;
        load.finish_without_failure(500)?;
        Ok(())
    })
}

/// SOTW-27, CLI-E-31: one response has a good listener, and one that cannot bind. The good one serves. After
/// a correction of the other, the rejection is gone.
#[test]
fn sotw_a_good_listener_beside_a_bad_one_serves() -> Result<()> {
    one_of_two(Mode::SotwAds)
}

/// SOTW-30, DELTA-17, ADS-09, CLI-E-31: in delta, only Envoy's text names the bad listener. After its repair, the good one
/// is sent again once, so that the rejection ends and holds back no removal.
#[test]
fn delta_a_good_listener_beside_a_bad_one_serves() -> Result<()> {
    one_of_two(Mode::DeltaAds)
}

fn one_of_two(mode: Mode) -> Result<()> {
    in_directory(|dir| {
        let a = upstream::spawn("a")?;
        let port = reserve_port();
        let chancery = Chancery::start(dir)?;
        let with = |second: u16, clusters: &[&str]| {
            let mut resources = vec![
                listener(mode, "main", port, "main", "main"),
                listener(mode, "second", second, "main", "second"),
                route("main", "one"),
            ];
            for name in clusters {
                resources.extend([cluster(mode, name, "1s"), endpoints(name, a)]);
            }
            resources
        };
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, reserve_port()))?;
        chancery.publish(&with(taken.local_addr()?.port(), &["one", "two"]))?;
        let envoy = Envoy::start(dir, mode, "envoy-one-of-two", chancery.at.xds)?;
        http::wait_for_answer(port)?;
        let load = Load::start(port);
        chancery.wait_for_node("envoy-one-of-two", "nacked", &TYPES)?;

        let free = reserve_port();
        chancery.publish(&with(free, &["one", "two"]))?;
        wait_for("the corrected listener", STEP, || http::get(free, "/").map(Some))?;
        chancery.wait_for_node("envoy-one-of-two", "synced", &TYPES)?;
        // An unused cluster is removed.
        chancery.publish(&with(free, &["one"]))?;
        wait_for("the removal of the unused cluster", STEP, || {
            Ok(envoy.active_cluster("two")?.is_none().then_some(()))
        })?;
        load.finish_without_failure(100)?;
        Ok(())
    })
}

/// SOTW-24: a rollback to the content before a rejected version.
#[test]
fn sotw_rollback_after_a_nack_is_sent() -> Result<()> {
    rollback_after_nack(Mode::SotwAds)
}

/// DELTA-18: a rollback to the content before a rejected version.
#[test]
fn delta_rollback_after_a_nack_is_sent() -> Result<()> {
    rollback_after_nack(Mode::DeltaAds)
}

fn rollback_after_nack(mode: Mode) -> Result<()> {
    in_directory(|dir| {
        let a = upstream::spawn("a")?;
        let port = reserve_port();
        let chancery = Chancery::start(dir)?;
        let with_port = |port| proxied(mode, port, "one", a);
        chancery.publish(&with_port(port))?;
        let _envoy = Envoy::start(dir, mode, "envoy-rollback", chancery.at.xds)?;
        http::wait_for_answer(port)?;
        let load = Load::start(port);
        chancery.wait_for_node("envoy-rollback", "synced", &TYPES)?;

        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, reserve_port()))?;
        chancery.publish(&with_port(taken.local_addr()?.port()))?;
        chancery.wait_for_node("envoy-rollback", "nacked", &TYPES)?;
        chancery.publish(&with_port(port))?;
        chancery.wait_for_node("envoy-rollback", "synced", &TYPES)?;
        load.wait_for_more(200)?;
        load.finish_without_failure(200)?;
        Ok(())
    })
}

/// `apply --wait` reports the node that rejected the write, and its text.
#[test]
fn apply_with_wait_reports_the_nack() -> Result<()> {
    in_directory(|dir| {
        let mode = Mode::DeltaAds;
        let a = upstream::spawn("a")?;
        let port = reserve_port();
        let chancery = Chancery::start(dir)?;
        let base = proxied(mode, port, "one", a);
        chancery.publish(&base)?;
        let _envoy = Envoy::start(dir, mode, "envoy-wait", chancery.at.xds)?;
        http::wait_for_answer(port)?;
        chancery.wait_for_node("envoy-wait", "synced", &TYPES)?;

        let apply = |resource: &serde_json::Value| {
            let manifest = serde_json::json!({"resources": [resource]}).to_string();
            chancery.cli(&["apply", "-f", "-", "--wait=60s"], &manifest)
        };
        let good = apply(&listener(mode, "second", reserve_port(), "main", "second"))?;
        if good["wait"]["settled"] != true {
            bail!("a good listener did not settle: {good}");
        }

        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, reserve_port()))?;
        let bad = listener(mode, "third", taken.local_addr()?.port(), "main", "third");
        // The command fails, and its message names the node and the listener.
        let told = match apply(&bad) {
            Ok(answer) => bail!("`apply --wait` reports no problem: {answer}"),
            Err(error) => format!("{error:#}"),
        };
        for word in ["exit status: 1", "envoy-wait", "rejected", "third"] {
            if !told.contains(word) {
                bail!("{word:?} is missing in the author's error: {told}");
            }
        }
        http::get(port, "/")?;
        Ok(())
    })
}

/// Envoy rejects a listener with the address of another one, whatever its options. Without the check of
/// stored listeners, the write would be stored.
#[test]
fn listener_with_the_address_of_a_stored_one_is_refused_as_envoy_rejects_it() -> Result<()> {
    in_directory(|dir| {
        let port = reserve_port();
        let chancery = Chancery::start(dir)?;
        let base = proxied(Mode::SotwAds, port, "one", upstream::spawn("a")?);
        chancery.publish(&base)?;
        let _envoy = Envoy::start(dir, Mode::SotwAds, "envoy-address", chancery.at.xds)?;
        chancery.wait_for_node("envoy-address", "synced", &TYPES)?;
        for option in ["enable_reuse_port", "bind_to_port"] {
            let mut second = listener(Mode::SotwAds, "second", port, "main", "second");
            second[option] = false.into();
            let manifest = json!({"resources": [second]}).to_string();
            let Err(refused) = chancery.cli(&["apply", "-f", "-"], &manifest) else {
                bail!("{option}: the listener was not refused")
            };
            if !format!("{refused:#}").contains("[listener.shared_address]") {
                bail!("{option}: the refusal is {refused:#}");
            }
            let all = [base.as_slice(), &[second]].concat();
            let said = chancery.publish_rejected("envoy-address", LISTENER, &all)?;
            if !said.contains("has duplicate address") {
                bail!("{option}: Envoy says {said:?}");
            }
        }
        Ok(())
    })
}
