//! Certificates, and resources that present and trust them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

pub(crate) const SECRET: &str =
    "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";

/// A self-signed certificate with its key. Its subject is `CN=<name>`.
#[derive(Debug)]
pub(crate) struct Identity {
    certificate: PathBuf,
    key: PathBuf,
}

impl Identity {
    pub(crate) fn make(dir: &Path, name: &str) -> Result<Self> {
        let (certificate, key) = (dir.join(format!("{name}.pem")), dir.join(format!("{name}.key")));
        let output = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"])
            .args(["-nodes", "-days", "2", "-subj", &format!("/CN={name}"), "-keyout"])
            .arg(&key)
            .arg("-out")
            .arg(&certificate)
            .output()
            .context("start openssl")?;
        if !output.status.success() {
            bail!("openssl: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(Self { certificate, key })
    }

    pub(crate) fn certificate(&self) -> Result<String> {
        Ok(fs::read_to_string(&self.certificate)?)
    }

    /// Returns a `TlsCertificate` that a peer presents.
    pub(crate) fn tls_certificate(&self) -> Result<Value> {
        Ok(json!({
            "certificate_chain": {"inline_string": self.certificate()?},
            "private_key": {"inline_string": fs::read_to_string(&self.key)?},
        }))
    }

    /// Returns the secret with the certificate that a peer presents.
    pub(crate) fn shown(&self, name: &str) -> Result<Value> {
        Ok(json!({"@type": SECRET, "name": name, "tls_certificate": self.tls_certificate()?}))
    }

    /// Returns the secret with the certificate that a peer trusts.
    pub(crate) fn trusted(&self, name: &str) -> Result<Value> {
        Ok(json!({"@type": SECRET, "name": name, "validation_context": trust(&[self])?}))
    }
}

/// Returns a `CertificateValidationContext` that trusts all given certificates.
pub(crate) fn trust(identities: &[&Identity]) -> Result<Value> {
    let bundle = identities.iter().map(|it| it.certificate()).collect::<Result<String>>()?;
    Ok(json!({"trusted_ca": {"inline_string": bundle}}))
}

/// Returns the cluster with TLS to its endpoints, configured by this `CommonTlsContext`. Each
/// request uses a new connection and session, and thus the present certificate.
pub(crate) fn cluster_over_tls(mut cluster: Value, context: &Value) -> Value {
    // The connect timeout includes the TLS handshake.
    cluster["connect_timeout"] = "20s".into();
    cluster["transport_socket"] = json!({"name": "tls", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        "common_tls_context": context,
        "max_session_keys": 0,
    }});
    cluster["typed_extension_protocol_options"] = json!({"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "common_http_protocol_options": {"max_requests_per_connection": 1},
        "explicit_http_config": {"http_protocol_options": {}},
    }});
    cluster
}

/// Returns the listener with TLS, configured by this `CommonTlsContext`.
pub(crate) fn listener_over_tls(mut listener: Value, context: &Value) -> Value {
    listener["filter_chains"][0]["transport_socket"] = json!({"name": "tls", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        "common_tls_context": context,
    }});
    listener
}
