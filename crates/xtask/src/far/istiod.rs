//! istiod as docs/mcp.md configures it, and an Envoy behind it.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result, ensure};

use super::{
    backends::free_ports,
    envoy,
    lab::Lab,
    replica::Replica,
    scenario::{Change, Changes, wait},
    steps::Steps,
    templates::{self, example, fill},
};
use crate::{
    demo::{log, log_tail},
    http,
    proc::{self, Guard, leashed},
    setup::{self, Istio},
};

/// The page with the examples.
const PAGE: &str = "mcp.md";
/// The collection and the name of the example in docs/mcp.md.
const COLLECTION: &str = "networking.istio.io/v1/VirtualService";
const NAME: &str = "shop/reviews";
const HOST: &str = "reviews.shop.svc.cluster.local";
/// The answers of the backends, with the virtual service in the route of Envoy.
const FIRST: &str = "hello from a, by the virtual service";
const UPDATED: &str = "hello from b, by the virtual service";
/// The route to a service without a virtual service leads to the service itself.
const REMOVED: &str = "hello from a";

/// Runs istiod, and an Envoy behind it.
pub(super) fn run(lab: &Lab<'_>, steps: &mut Steps) -> Result<()> {
    let istio = steps.run("istiod is compiled", || setup::istio(lab.paths))?;
    let mesh = Mesh::new(lab)?;
    let mut replica = Replica::start(lab, "")?;
    steps.run("the example of docs/mcp.md is published", || mesh.publish(&replica))?;
    let moved = templates::MOVED;
    let changes = Changes {
        first: Change { publish: &|replica| mesh.publish(replica), answer: FIRST },
        update: Change { publish: &|replica| replica.apply(&[moved]), answer: UPDATED },
        removal: Change { publish: &|replica| replica.delete(COLLECTION, NAME), answer: REMOVED },
    };
    let source = sources(&mesh.sources, &replica.xds)?;
    let mut istiod = steps.run("istiod is ready", || Istiod::start(lab, &istio, &source))?;
    let mut envoy = Envoy::start(lab, &istiod, &mesh)?;
    changes.check(steps, &mut replica, || {
        istiod.process.expect_running().with_context(|| log_tail(&lab.dir, "istiod"))?;
        envoy.ask(lab)
    })
}

/// Runs istiod with both modes of TLS that docs/mcp.md describes.
pub(super) fn run_tls(lab: &Lab<'_>, steps: &mut Steps) -> Result<()> {
    let istio = steps.run("istiod is compiled", || setup::istio(lab.paths))?;
    let mesh = Mesh::new(lab)?;
    let mut certs = Command::new(lab.program);
    proc::output(certs.current_dir(&lab.dir).args(["dev", "certs", "--dir", "certs"]))?;
    let xds = "[xds]\ntls_cert = \"certs/server.pem\"\ntls_key = \"certs/server.key\"\ntls_client_ca = \"certs/ca.pem\"\n\
               tls_client_cert = \"optional\"\n";
    let replica = Replica::start(lab, xds)?;
    mesh.publish(&replica)?;
    let ca = setup::read(&lab.dir.join("certs/ca.pem"))?.replace('\n', "\n      ");
    let example_certificate =
        "-----BEGIN CERTIFICATE-----\n      …\n      -----END CERTIFICATE-----\n";
    let block = sources(&example(lab, PAGE, "### TLS to istiod")?, &replica.xds)?
        .replace(example_certificate, &format!("{}\n", ca.trim_end()))
        .replace("sni: chancery.infra.svc", "sni: localhost");
    steps.run("the traffic follows the example with the mode SIMPLE", || {
        let istiod = Istiod::start(lab, &istio, &block)?;
        let mut envoy = Envoy::start(lab, &istiod, &mesh)?;
        wait(FIRST, &mut || envoy.ask(lab))
    })?;
    steps.run("istiod without a certificate does not start with the mode MUTUAL", || {
        let started = Istiod::start(lab, &istio, &block.replace("SIMPLE", "MUTUAL"));
        ensure!(started.is_err(), "istiod is ready");
        let said = log(&lab.dir, "chancery");
        ensure!(said.contains("does not use TLS"), "{}", log_tail(&lab.dir, "chancery"));
        Ok(())
    })
}

/// Returns the example for istiod with the address of a replica.
fn sources(example: &str, xds: &str) -> Result<String> {
    let address = "xds://chancery.infra.svc:18000";
    ensure!(example.contains(address), "the example has no address {address}");
    Ok(example.replace(address, &format!("xds://{xds}")))
}

/// The configuration of the mesh.
struct Mesh {
    /// The manifests of the services and of the example.
    manifests: [String; 2],
    /// The example for istiod.
    sources: String,
    /// The port of the services, on which Envoy listens.
    port: String,
}

impl Mesh {
    fn new(lab: &Lab<'_>) -> Result<Self> {
        let [port] = free_ports()?;
        let (a, b) = (&lab.backends.a.http, &lab.backends.b.http);
        let services = fill(templates::SERVICES, &[("PORT", &port), ("A", a), ("B", b)])?;
        let manifests = [services, example(lab, PAGE, "## Publish a collection")?];
        Ok(Self { manifests, sources: example(lab, PAGE, "## istiod")?, port })
    }

    fn publish(&self, replica: &Replica) -> Result<()> {
        replica.apply(&self.manifests.each_ref().map(String::as_str))
    }
}

/// A running istiod.
struct Istiod {
    process: Guard,
    /// The port for Envoys.
    port: String,
    _kubernetes: Guard,
}

impl Istiod {
    /// Starts istiod with a mesh configuration, and waits until it is ready.
    fn start(lab: &Lab<'_>, istio: &Istio, mesh: &str) -> Result<Self> {
        let [kubernetes, grpc, web] = free_ports()?;
        let kubeconfig = fill(templates::KUBECONFIG, &[("PORT", &kubernetes)])?;
        let kubeconfig: PathBuf = lab.write("kubeconfig.yaml", &kubeconfig)?;
        let mut stub = leashed(&istio.kube_stub);
        stub.arg(format!("127.0.0.1:{kubernetes}"));
        let stub = lab.spawn("kube-stub", &mut stub)?;

        let mut istiod = leashed(&istio.istiod);
        istiod.arg("discovery").arg("--kubeconfig").arg(kubeconfig);
        istiod.arg("--meshConfig").arg(lab.write("mesh.yaml", mesh)?);
        let local = |port: &str| format!("127.0.0.1:{port}");
        istiod.args(["--grpcAddr", &local(&grpc), "--httpAddr", &local(&web)]);
        istiod.args(["--httpsAddr=", "--secureGRPCAddr=", "--monitoringAddr=", "--ctrlz_port=0"]);
        istiod.envs([
            ("POD_NAME", "istiod-1"),
            ("POD_NAMESPACE", "istio-system"),
            // An Envoy that Istio did not build has no such filters.
            ("PILOT_ENABLE_METADATA_EXCHANGE", "false"),
            ("PILOT_ENABLE_ALPN_FILTER", "false"),
            // These parts need a real Kubernetes.
            ("ENABLE_CA_SERVER", "false"),
            ("ENABLE_LEADER_ELECTION", "false"),
            ("PILOT_CERT_PROVIDER", "none"),
            ("PILOT_ENABLE_GATEWAY_API", "false"),
            ("XDS_AUTH", "false"),
        ]);
        let mut process = lab.spawn("istiod", &mut istiod)?;
        proc::eventually(super::scenario::LIMIT, "istiod is not ready", || {
            process.expect_running().with_context(|| log_tail(&lab.dir, "istiod"))?;
            Ok(http::get(&local(&web), "/ready").ok().filter(|answer| answer.status == 200))
        })?;
        Ok(Self { process, port: grpc, _kubernetes: stub })
    }
}

/// An Envoy behind istiod.
struct Envoy {
    process: Guard,
    admin: String,
    port: String,
}

impl Envoy {
    fn start(lab: &Lab<'_>, istiod: &Istiod, mesh: &Mesh) -> Result<Self> {
        let [admin] = free_ports()?;
        let values = [("ADMIN", admin.as_str()), ("ISTIOD", &istiod.port)];
        let bootstrap = lab.write("envoy.yaml", &fill(templates::ENVOY, &values)?)?;
        let process = envoy::start(lab, &bootstrap)?;
        Ok(Self { process, admin: format!("127.0.0.1:{admin}"), port: mesh.port.clone() })
    }

    /// Returns the answer to a request, and whether the route is that of the virtual service.
    fn ask(&mut self, lab: &Lab<'_>) -> Result<String> {
        let host = format!("{HOST}:{}", self.port);
        let answer = envoy::ask(lab, ("envoy", &mut self.process), &self.port, &host)?;
        let routes = http::get(&self.admin, "/config_dump?resource=dynamic_route_configs");
        let is_routed = routes.is_ok_and(|dump| dump.body.contains("virtual-service/reviews"));
        Ok(if is_routed { format!("{answer}, by the virtual service") } else { answer })
    }
}
