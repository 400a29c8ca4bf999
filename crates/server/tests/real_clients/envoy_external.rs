//! The external validator `envoy --mode validate`: what Envoy rejects is refused when it is written.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::{
    envoy_routes::virtual_host,
    support::{
        chancery::Chancery,
        envoy::Mode,
        in_directory,
        manifests::{ROUTE, cluster, listener, proxied, service},
        process::installed,
    },
};

const MODE: Mode = Mode::DeltaAds;

/// Starts a replica whose external validator is Envoy.
fn start(dir: &Path) -> Result<Chancery> {
    let envoy = installed()?.join("bin/envoy");
    let envoy = envoy.to_str().context("the path is not text")?;
    let command = format!("{envoy},--mode,validate,-l,error,-c,{{file}}");
    let settings = [
        ("CHANCERY_VALIDATION_EXTERNAL_COMMAND", command.as_str()),
        ("CHANCERY_VALIDATION_EXTERNAL_TIMEOUT", "60s"),
    ];
    Chancery::start_with(dir, &settings)
}

/// Returns a cluster whose certificate is a missing file. Admission reads no files, so only Envoy rejects it.
fn bad_cluster(name: &str, file: &str) -> Value {
    let mut cluster = cluster(MODE, name, "1s");
    cluster["transport_socket"] = json!({"name": "tls", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        "common_tls_context": {"validation_context": {"trusted_ca": {"filename": file}}},
    }});
    cluster
}

fn expect_refused(written: Result<Value>, scope: &str, file: &str) -> Result<()> {
    let Err(refused) = written else { bail!("the resource with {file} was not refused") };
    let refused = format!("{refused:#}");
    let scope = format!("the external validator rejects the resources of scope {scope:?}: ");
    for expected in [&scope, file, "[external]"] {
        if !refused.contains(expected) {
            bail!("the refusal is {refused:?}, and does not contain {expected:?}");
        }
    }
    Ok(())
}

#[test]
fn envoy_as_external_validator_refuses_what_it_would_reject() -> Result<()> {
    in_directory(|dir| {
        let chancery = start(dir)?;
        chancery.publish(&proxied(MODE, 18_080, "web", 8080))?;
        let file = "/nowhere/ca.pem";
        expect_refused(chancery.publish(&[bad_cluster("bad", file)]), "default", file)
    })
}

/// One write has two scopes, variants, virtual hosts (VHDS) and a listener of gRPC clients. Envoy rejects a wrong
/// variant, a wrong virtual host, and a wrong cluster of the second scope.
#[test]
fn envoy_as_external_validator_checks_each_scope_variant_and_virtual_host() -> Result<()> {
    in_directory(|dir| {
        let chancery = start(dir)?;
        let write = |edge: &[Value], mesh: &[Value]| {
            let of = |scope: &str, all| json!({"scope": scope, "resources": all});
            let manifest = format!("{}\n---\n{}", of("edge", edge), of("mesh", mesh));
            chancery.cli(&["apply", "-f", "-"], &manifest)
        };
        let variant = |env: &str, cluster: Value| {
            let constraints = json!({"constraint": {"key": "env", "value": env}});
            json!({"dynamic_parameter_constraints": constraints, "resource": cluster})
        };
        let edge = [
            variant("prod", cluster(MODE, "web", "1s")),
            variant("test", cluster(MODE, "web", "1s")),
            listener(MODE, "main", 18_080, "main", "main"),
            json!({"@type": ROUTE, "name": "main", "vhds": {"config_source": MODE.config_source()}}),
            virtual_host("a", "web"),
            virtual_host("b", "web"),
        ];
        let mesh = service("greeter.e2e", "web", 8080);
        let written = write(&edge, &mesh)?;
        if written["changed"] != 10 {
            bail!("10 changes were expected: {written}");
        }

        let mut bad = edge.clone();
        bad[1] = variant("test", bad_cluster("web", "/nowhere/variant-test.pem"));
        expect_refused(write(&bad, &mesh), "edge", "/nowhere/variant-test.pem")?;
        let mut bad = edge.clone();
        bad[5]["resource"]["routes"][0] = json!({
            "match": {"prefix": "/"},
            "direct_response": {"status": 200, "body": {"filename": "/nowhere/host-b.txt"}},
        });
        expect_refused(write(&bad, &mesh), "edge", "/nowhere/host-b.txt")?;
        let mut bad = mesh.clone();
        bad[2] = bad_cluster("web", "/nowhere/mesh.pem");
        expect_refused(write(&edge, &bad), "mesh", "/nowhere/mesh.pem")
    })
}
