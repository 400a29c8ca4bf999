//! Certificates that expire, are unusable, or come from another CA.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result};

use super::{
    budgets::EDGE,
    cluster::REPLICAS,
    scenario::{Group, Scenario, alert, late},
    stage::Stage,
};
use crate::proc;

/// The files of a replica. The CAs are separate.
const FILES: [&str; 4] = ["server.pem", "server.key", "replica.pem", "replica.key"];
/// The CAs that replicas trust.
const CAS: [&str; 2] = ["ca.pem", "replicas-ca.pem"];

/// The time at which the short certificates were made, in the syntax of `date`. 12 hours of their 30 days remain, which
/// is less than a tenth.
const SHORT_MADE: &str = "29 days ago 12 hours ago";

pub(super) const GROUP: Group = Group {
    name: "certificates",
    prepare,
    scenarios: &[
        Scenario {
            alerts: &[
                alert("ChanceryCertificateExpires", &[("instance", "@1")]),
                alert("ChanceryCertificateExpiresInADay", &[("instance", "@1")]),
                alert("ChanceryPortCertificateExpires", &[("instance", "@1"), ("port", "xds")]),
                alert(
                    "ChanceryPortCertificateExpiresInADay",
                    &[("instance", "@1"), ("port", "xds")],
                ),
            ],
            also: &[],
            is_early: false,
            fault: "the certificates of a replica expire within a day",
            repair: "the files are replaced, without a restart",
            inject: |stage| certificates(stage, 1, "short"),
            recover: |stage| certificates(stage, 1, "long"),
        },
        Scenario {
            alerts: &[late(
                "ChanceryCertificateFilesUnusable",
                &[("instance", "@2"), ("port", "xds")],
            )],
            also: &[],
            is_early: false,
            fault: "the key of a port is replaced by a broken file",
            repair: "the file is corrected",
            inject: |stage| {
                let key = stage.cluster.dir.join("files-2/server.key");
                fs::write(key, "no key").context("write a broken key")
            },
            recover: |stage| certificates(stage, 2, "long"),
        },
        Scenario {
            alerts: &[alert(
                "ChanceryClientsFailHandshake",
                &[("port", "xds"), ("result", "no_certificate")],
            )],
            also: &[],
            is_early: false,
            fault: "clients connect without a certificate",
            repair: "the clients end, and a connection with a certificate is accepted",
            inject: |stage| {
                let address = stage.cluster.xds(1);
                stage.client("handshakes", &["handshake", &address])
            },
            recover: |stage| {
                stage.stop("handshakes");
                expect_handshake(stage)
            },
        },
        Scenario {
            alerts: &[
                alert("ChanceryReplicaWithoutLeader", &[("instance", "@3")]),
                alert("ChanceryReplicasRefused", &[("reason", "tls")]),
            ],
            also: &[],
            is_early: false,
            fault: "a replica has certificates of another CA",
            repair: "the replica receives certificates of the right CA",
            inject: |stage| {
                stage.cluster.kill(3);
                certificates(stage, 3, "foreign")?;
                stage.cluster.start(3)
            },
            recover: |stage| {
                certificates(stage, 3, "long")?;
                stage.cluster.expect_ready()
            },
        },
    ],
};

fn prepare(stage: &mut Stage) -> Result<()> {
    let names = REPLICAS.map(|id| stage.cluster.ip(id)).join(",");
    for (dir, made) in [("long", "now"), ("short", SHORT_MADE), ("foreign", "now")] {
        let mut command = stage.cluster.command_at(made);
        proc::output(
            command.args(["dev", "certs", "--dir", dir, "--days", "30", "--name", &names]),
        )?;
    }
    // `dev certs` creates new CAs with each call. As in a change of the CA, the replicas trust both.
    for ca in CAS {
        let read = |dir: &str| fs::read_to_string(stage.cluster.dir.join(dir).join(ca));
        let both = read("long")? + &read("short")?;
        for dir in ["long", "short"] {
            fs::write(stage.cluster.dir.join(dir).join(ca), &both).context("write a CA")?;
        }
    }
    for id in REPLICAS {
        certificates(stage, id, "long")?;
    }
    for (key, file) in [
        ("CHANCERY_XDS_TLS_CERT", "files-{id}/server.pem"),
        ("CHANCERY_XDS_TLS_KEY", "files-{id}/server.key"),
        ("CHANCERY_XDS_TLS_CLIENT_CA", "files-{id}/ca.pem"),
        ("CHANCERY_RAFT_TLS_CERT", "files-{id}/replica.pem"),
        ("CHANCERY_RAFT_TLS_KEY", "files-{id}/replica.key"),
        ("CHANCERY_RAFT_TLS_CA", "files-{id}/replicas-ca.pem"),
    ] {
        stage.cluster.set(key, format!("{{dir}}/{file}"));
    }
    stage.cluster.start_all()?;
    stage.cluster.apply(EDGE)
}

/// Gives a replica the certificates in the directory `kind`. Each file is replaced atomically.
fn certificates(stage: &mut Stage, id: usize, kind: &str) -> Result<()> {
    let dir = stage.cluster.dir.join(format!("files-{id}"));
    fs::create_dir_all(&dir).context("create a directory")?;
    for file in FILES.iter().chain(&CAS) {
        replace(&stage.cluster.dir.join(kind).join(file), &dir.join(file))?;
    }
    Ok(())
}

/// Connects to the port for clients with the certificate of a client.
fn expect_handshake(stage: &Stage) -> Result<()> {
    let mut connect = Command::new("openssl");
    connect.current_dir(stage.cluster.dir.join("long"));
    connect.args(["s_client", "-connect", &stage.cluster.xds(1), "-CAfile", "ca.pem"]);
    connect.args(["-verify_return_error", "-cert", "client.pem", "-key", "client.key"]);
    proc::output(connect.args(["-alpn", "h2"])).map(drop)
}

fn replace(from: &Path, to: &Path) -> Result<()> {
    let new = to.with_extension("new");
    fs::copy(from, &new).with_context(|| format!("copy {}", from.display()))?;
    fs::rename(&new, to).with_context(|| format!("replace {}", to.display()))
}
