//! A fault of Envoy 1.36 to 1.40. A response adds an EDS cluster that fails late, and a valid
//! cluster. Envoy neither acknowledges nor rejects the response until the bad cluster is removed.

use anyhow::{Context as _, Result, bail};
use chancery_testing::reserve_port;
use serde_json::{Value, json};

use crate::support::{
    STEP,
    chancery::Chancery,
    envoy::{Envoy, Mode},
    http, in_directory,
    load::Load,
    manifests::{CLUSTER, TYPES, cluster, endpoints, proxied},
    upstream, wait_for,
};

const NODE: &str = "envoy-wedge";

/// SOTW-31, SOTW-112, ADS-22: the unanswered response delays only clusters, and those at most by
/// the timeout. The removal of the bad cluster ends the fault.
#[test]
fn sotw_unacknowledged_clusters_delay_no_other_type() -> Result<()> {
    wedge(Mode::SotwAds)
}

/// ADS-22: the same in delta.
#[test]
fn delta_unacknowledged_clusters_delay_no_other_type() -> Result<()> {
    wedge(Mode::DeltaAds)
}

fn wedge(mode: Mode) -> Result<()> {
    in_directory(|dir| {
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let port = reserve_port();
        let settings = [("CHANCERY_XDS_ACK_TIMEOUT", "2s"), ("CHANCERY_VALIDATION_MODE", "off")];
        let chancery = Chancery::start_with(dir, &settings)?;
        let with = |upstream, more: &[Value]| {
            let base = proxied(mode, port, "one", upstream);
            [base.as_slice(), more].concat()
        };
        let good = [cluster(mode, "good", "1s"), endpoints("good", b)];
        let mut bad = [cluster(mode, "bad", "1s"), endpoints("bad", b)];
        bad[0]["lb_policy"] = "RING_HASH".into();
        bad[0]["ring_hash_lb_config"] =
            json!({"minimum_ring_size": 100_000, "maximum_ring_size": 10});

        chancery.publish(&with(a, &[]))?;
        let mut envoy = Envoy::start(dir, mode, NODE, chancery.at.xds)?;
        http::wait_for_answer(port)?;
        let load = Load::start(port);
        chancery.wait_for_node(NODE, "synced", &TYPES)?;

        // Envoy warms the valid cluster and does not answer.
        chancery.publish(&with(a, &[bad.as_slice(), &good].concat()))?;
        wait_for("Envoy to warm the good cluster", STEP, || {
            Ok((envoy.stat("cluster_manager.warming_clusters")? > 0).then_some(()))
        })?;
        expect_unanswered(&chancery)?;
        // Endpoints still change meanwhile.
        chancery.publish(&with(b, &[bad.as_slice(), &good].concat()))?;
        load.wait_for_only("b")?;
        expect_unanswered(&chancery)?;

        // The removal is sent without an answer to the previous response.
        chancery.publish(&with(b, &good))?;
        wait_for("the good cluster alone", STEP, || {
            let names = envoy.active_cluster_names()?;
            if names == ["good", "one"] {
                return Ok(Some(()));
            }
            bail!("there are {names:?}")
        })?;
        // Now the late rejection arrives. In SotW it has the nonce of the response that ended the
        // fault, and the rejection stands until all resources that it may concern have been replaced. In delta, the
        // good cluster is sent again once, because the bad one is gone.
        let state = if mode.is_delta() { "synced" } else { "nacked" };
        chancery.wait_for_node(NODE, state, &TYPES)?;
        let changed = [cluster(mode, "good", "3s"), endpoints("good", b)];
        chancery.publish(&with(a, &changed))?;
        load.wait_for_only("a")?;
        chancery.wait_for_node(NODE, "synced", &TYPES)?;
        envoy.expect_running()?;
        load.finish_without_failure(500)?;
        Ok(())
    })
}

/// Fails if Envoy has answered the clusters, because the test would then prove nothing.
fn expect_unanswered(chancery: &Chancery) -> Result<()> {
    let subscriptions = chancery.subscriptions(NODE)?;
    let clusters = subscriptions
        .iter()
        .find(|subscription| subscription["type_url"] == CLUSTER)
        .context("no subscription to clusters")?;
    if clusters["state"] != "pending" {
        bail!("Envoy answered: {clusters}");
    }
    Ok(())
}
