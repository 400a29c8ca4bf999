//! Secrets that Envoy rejects. Envoy quotes the whole resource, but the key is shown nowhere.

use std::{collections::HashSet, fs};

use anyhow::{Context as _, Result, bail};
use chancery_testing::reserve_port;
use serde_json::{Value, json};

use crate::support::{
    STEP,
    chancery::Chancery,
    envoy::{Envoy, Mode},
    http, in_directory,
    manifests::{cluster, endpoints, listener, route},
    tls::{SECRET, listener_over_tls},
    upstream, wait_for,
};

const KEY: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ9mXqTz7vQ0Rk3sWb5nLd8fPy2hGu6cVa1eYi4oZt0x\n\
                   -----END PRIVATE KEY-----\n";
const PASSWORD: &str = "quokka-lantern-orbit";

/// A SotW client rejects a secret, and its key is shown nowhere.
#[test]
fn sotw_key_in_a_rejected_secret_is_shown_nowhere() -> Result<()> {
    rejected_secret(Mode::SotwAds)
}

/// A delta client rejects a secret, and its key is shown nowhere.
#[test]
fn delta_key_in_a_rejected_secret_is_shown_nowhere() -> Result<()> {
    rejected_secret(Mode::DeltaAds)
}

/// Returns secrets that Envoy rejects. The first violates a rule of Envoy's proto files, so that
/// Envoy quotes the resource. The key of the second cannot be loaded.
fn bad_secrets() -> [Value; 2] {
    let secret = |chain: Value, key: Value| {
        json!({"@type": SECRET, "name": "shown", "tls_certificate": {
            "certificate_chain": chain,
            "private_key": key,
            "password": {"inline_string": PASSWORD},
        }})
    };
    [
        secret(json!({"filename": ""}), json!({"inline_string": KEY})),
        secret(json!({"inline_string": "no certificate"}), json!({"inline_string": KEY})),
    ]
}

fn rejected_secret(mode: Mode) -> Result<()> {
    const NODE: &str = "envoy-bad-secret";
    in_directory(|dir| {
        let a = upstream::spawn("a")?;
        let (port, tls_port) = (reserve_port(), reserve_port());
        let source = json!({"name": "shown", "sds_config": mode.config_source()});
        let tls = listener_over_tls(
            listener(mode, "tls", tls_port, "main", "tls"),
            &json!({"tls_certificate_sds_secret_configs": [source]}),
        );
        let chancery = Chancery::start_with(dir, &[("CHANCERY_LOG_LEVEL", "trace")])?;
        let base = [
            cluster(mode, "one", "1s"),
            endpoints("one", a),
            listener(mode, "main", port, "main", "main"),
            route("main", "one"),
            tls,
        ];
        chancery.publish(&base)?;
        let _envoy = Envoy::start(dir, mode, NODE, chancery.at.xds)?;
        http::wait_for_answer(port)?;
        for (round, secret) in bad_secrets().into_iter().enumerate() {
            let manifest = json!({"resources": [secret]}).to_string();
            let args = ["apply", "-f", "-", "--validation=off", "--wait=20s"];
            let told = match chancery.cli(&args, &manifest) {
                Ok(answer) => bail!("`apply --wait` reports no problem: {answer}"),
                Err(error) => format!("{error:#}"),
            };
            let message = wait_for("the NACK in `chancery node`", STEP, || {
                let all = chancery.subscriptions(NODE)?;
                let of_secrets = all.iter().find(|it| it["type_url"] == SECRET);
                let of_secrets = of_secrets.context("no subscription to secrets")?;
                Ok((of_secrets["state"] == "nacked")
                    .then(|| of_secrets["nack_message"].to_string()))
            })?;
            // The message still contains the cause.
            let cause = ["Proto constraint validation failed", "certificate chain"][round];
            if !message.contains(cause) || !told.contains("has rejected secret") {
                bail!("the author receives {told:?}, and the node has {message:?}");
            }
            for (place, text) in [
                ("the author of --wait", told),
                ("`node`", chancery.node(NODE)?.to_string()),
                ("`nodes`", chancery.cli(&["nodes"], "")?.to_string()),
                ("`explain`", chancery.cli(&["explain", NODE, "secret", "shown"], "")?.to_string()),
                ("`describe`", chancery.cli(&["describe", "secret", "shown"], "")?.to_string()),
                ("`history`", chancery.cli(&["history"], "")?.to_string()),
                ("/v1/nodes", http::get(chancery.at.admin, "/v1/nodes")?),
                ("/metrics", http::get(chancery.at.admin, "/metrics")?),
                ("the log", fs::read_to_string(dir.join("chancery.log"))?),
            ] {
                expect_no_secret(place, &text)?;
            }
        }
        Ok(())
    })
}

/// Fails if the text contains eight consecutive bytes of a secret. A debug log has more than 100
/// MB.
fn expect_no_secret(place: &str, text: &str) -> Result<()> {
    // Envoy's own text contains these words.
    let harmless: HashSet<&[u8]> = " PRIVATE KEY".as_bytes().windows(8).collect();
    let secrets = [KEY.as_bytes(), PASSWORD.as_bytes()];
    let runs: HashSet<&[u8]> = secrets.into_iter().flat_map(|secret| secret.windows(8)).collect();
    let is_secret = |run: &&[u8]| runs.contains(run) && !harmless.contains(run);
    if let Some(run) = text.as_bytes().windows(8).find(is_secret) {
        let run = String::from_utf8_lossy(run);
        bail!("{place} shows {run:?}, a part of a secret");
    }
    Ok(())
}
