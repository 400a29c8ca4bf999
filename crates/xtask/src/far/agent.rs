//! istio-agent with Chancery in the place of istiod. It starts an Envoy of its own.

use std::{net::UdpSocket, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::{
    backends::free_ports,
    envoy,
    lab::Lab,
    replica::Replica,
    scenario::{Change, Changes, NOTHING},
    steps::Steps,
    templates::{self, example, fill, name_table},
};
use crate::{
    proc::{self, Guard, leashed},
    setup,
};

const LISTENER: &str = "http";

/// A running istio-agent, and its Envoy in the same process group.
struct Agent(Guard);

impl Drop for Agent {
    fn drop(&mut self) {
        // The guard would kill only istio-agent.
        let group = format!("-{}", self.0.id());
        proc::succeeds(Command::new("kill").args(["-KILL", "--", &group]));
    }
}

/// Runs istio-agent and its Envoy.
pub(super) fn run(lab: &Lab<'_>, steps: &mut Steps) -> Result<()> {
    let istio = steps.run("istio-agent is compiled", || setup::istio(lab.paths))?;
    let [port, admin, dns, metrics, status, probes] = free_ports()?;
    let listener = fill(templates::PROXY, &[("LISTENER", LISTENER), ("LISTENER_PORT", &port)])?;
    let service = |port: &str| fill(templates::SERVICE, &[("BACKEND", port)]);
    let (at_a, at_b) = (service(&lab.backends.a.http)?, service(&lab.backends.b.http)?);
    let table = name_table(lab)?;
    let changes = Changes {
        first: Change {
            publish: &|replica| replica.apply(&[&listener, &at_a, &table]),
            answer: "hello from a",
        },
        update: Change { publish: &|replica| replica.apply(&[&at_b]), answer: "hello from b" },
        removal: Change { publish: &|replica| replica.delete("lds", LISTENER), answer: NOTHING },
    };
    let mut replica = Replica::start(lab, "")?;
    (changes.first.publish)(&replica)?;

    let address = "chancery.infra.svc:18000";
    let mut proxy = example(lab, "clients.md", "## istio-agent")?;
    ensure!(proxy.contains(address), "the example has no address {address}");
    proxy = proxy.replace(address, &replica.xds);
    for (key, value) in [
        ("binaryPath", envoy::binary(lab)?.as_path()),
        ("proxyBootstrapTemplatePath", &istio.envoy_bootstrap),
        ("configPath", &lab.dir.join("proxy")),
        ("proxyAdminPort", admin.as_ref()),
        // The agent needs this port, and always opens it on all addresses.
        ("statusPort", probes.as_ref()),
        ("concurrency", "1".as_ref()),
    ] {
        proxy += &format!("{key}: {}\n", value.display());
    }
    let mut agent = leashed(&istio.agent);
    agent.args(["proxy", "sidecar", "--domain", "default.svc.cluster.local"]).envs([
        ("POD_NAME", "client"),
        ("POD_NAMESPACE", "default"),
        ("INSTANCE_IP", "127.0.0.1"),
        ("PROXY_CONFIG", &proxy),
        ("FILE_MOUNTED_CERTS", "true"),
        ("ISTIO_META_DNS_CAPTURE", "true"),
        ("DNS_PROXY_ADDR", &format!("127.0.0.1:{dns}")),
        ("ENVOY_PROMETHEUS_PORT", &metrics),
        ("ENVOY_STATUS_PORT", &status),
    ]);
    let mut agent = Agent(lab.spawn("istio-agent", &mut agent)?);
    changes.check(steps, &mut replica, || {
        envoy::ask(lab, ("istio-agent", &mut agent.0), &port, "greeter")
    })?;
    steps.check("the name table arrives: the agent answers a DNS query", || {
        let failure = "no DNS answer with the address of the name table";
        proc::eventually(Duration::from_secs(10), failure, || Ok(resolves(&dns)?.then_some(())))
    });
    Ok(())
}

/// Returns whether the agent resolves the host of the name table to 127.0.0.1.
fn resolves(port: &str) -> Result<bool> {
    // A query with the number 1, which asks for the A record of the host.
    let mut query = vec![0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in "greeter.default.svc.cluster.local".split('.') {
        query.push(u8::try_from(label.len()).context("a label is too long")?);
        query.extend(label.bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    let socket = UdpSocket::bind("127.0.0.1:0").context("open a UDP socket")?;
    socket.set_read_timeout(Some(Duration::from_secs(1))).context("set a timeout")?;
    socket.send_to(&query, format!("127.0.0.1:{port}")).context("send a DNS query")?;
    let mut answer = [0; 512];
    let length = socket.recv(&mut answer).unwrap_or_default();
    let records = answer.get(query.len()..length).unwrap_or_default();
    Ok(records.windows(4).any(|bytes| bytes == [127, 0, 0, 1]))
}
