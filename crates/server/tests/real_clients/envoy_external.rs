//! The external validator `envoy --mode validate`: what Envoy rejects is refused when it is written.

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use crate::support::{
    chancery::Chancery, envoy::Mode, in_directory, manifests::proxied, process::installed,
};

/// Admission reads no files, so only Envoy knows that this file does not exist.
#[test]
fn envoy_as_external_validator_refuses_what_it_would_reject() -> Result<()> {
    in_directory(|dir| {
        let envoy = installed()?.join("bin/envoy");
        let envoy = envoy.to_str().context("the path is not text")?;
        let command = format!("{envoy},--mode,validate,-l,error,-c,{{file}}");
        let chancery = Chancery::start_with(
            dir,
            &[
                ("CHANCERY_VALIDATION_EXTERNAL_COMMAND", &command),
                ("CHANCERY_VALIDATION_EXTERNAL_TIMEOUT", "60s"),
            ],
        )?;
        chancery.publish(&proxied(Mode::DeltaAds, 18_080, "web", 8080))?;
        let tls = json!({
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "common_tls_context": {"validation_context": {"trusted_ca": {"filename": "/nowhere/ca.pem"}}},
        });
        let bad = json!({
            "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            "name": "bad", "connect_timeout": "1s",
            "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": tls},
        });
        let Err(refused) = chancery.publish(&[bad]) else { bail!("the cluster was not refused") };
        let refused = format!("{refused:#}");
        for expected in ["external validator", "/nowhere/ca.pem", "[external]"] {
            if !refused.contains(expected) {
                bail!("the refusal is {refused:?}, and does not contain {expected:?}");
            }
        }
        Ok(())
    })
}
