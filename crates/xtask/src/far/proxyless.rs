//! Clients that send requests themselves: Kitex, Armeria and grpc-java. They print each answer that differs from the
//! previous one.

use std::{
    process::{Command, Stdio},
    sync::mpsc::Receiver,
    time::Duration,
};

use anyhow::{Context as _, Result};

use super::{
    lab::Lab,
    replica::Replica,
    scenario::{Change, Changes, NOTHING},
    steps::Steps,
    templates::{self, fill},
};
use crate::{
    demo::{lines, log_tail},
    proc::{Guard, leashed},
    setup,
};

/// The listener of Armeria and grpc-java.
const LISTENER: &str = "greeter";
/// The listener of Kitex, with the port of the destination.
const KITEX_LISTENER: &str = "greeter.default.svc.cluster.local:8888";
const CONFIG: &str = "";

/// A running client.
struct Client {
    name: &'static str,
    process: Guard,
    lines: Receiver<String>,
    last: String,
}

impl Client {
    fn start(lab: &Lab<'_>, name: &'static str, command: &mut Command) -> Result<Self> {
        let errors = lab.dir.join(format!("{name}.log"));
        let errors = std::fs::File::create(errors).context("create a log")?;
        command.current_dir(&lab.dir).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
        let mut process = Guard::spawn(name, command)?;
        let lines = lines(&mut process)?;
        Ok(Self { name, process, lines, last: String::new() })
    }

    /// Returns the last answer.
    fn ask(&mut self, lab: &Lab<'_>) -> Result<String> {
        self.process.expect_running().with_context(|| log_tail(&lab.dir, self.name))?;
        self.last = self.lines.try_iter().last().unwrap_or_else(|| std::mem::take(&mut self.last));
        Ok(self.last.clone())
    }
}

/// Runs a client with a listener whose endpoint moves.
fn check(
    lab: &Lab<'_>,
    steps: &mut Steps,
    (listener, name): (&str, &str),
    [a, b]: [&str; 2],
    start: impl FnOnce(&Replica) -> Result<Client>,
) -> Result<()> {
    let service = |port| fill(templates::SERVICE, &[("BACKEND", port)]);
    let (at_a, at_b) = (service(a)?, service(b)?);
    let changes = Changes {
        first: Change {
            publish: &|replica| replica.apply(&[listener, &at_a]),
            answer: "hello from a",
        },
        update: Change { publish: &|replica| replica.apply(&[&at_b]), answer: "hello from b" },
        removal: Change { publish: &|replica| replica.delete("lds", name), answer: NOTHING },
    };
    let mut replica = Replica::start(lab, CONFIG)?;
    (changes.first.publish)(&replica)?;
    let mut client = start(&replica)?;
    changes.check(steps, &mut replica, || client.ask(lab))
}

/// Runs Armeria, which sends HTTP requests.
pub(super) fn run_armeria(lab: &Lab<'_>, steps: &mut Steps) -> Result<()> {
    let java = setup::java(lab.paths)?;
    let listener = fill(templates::PROXYLESS, &[("LISTENER", LISTENER)])?;
    let ports = [lab.backends.a.http.as_str(), &lab.backends.b.http];
    check(lab, steps, (&listener, LISTENER), ports, |replica| {
        let port = replica.xds.rsplit(':').next().unwrap_or_default();
        let bootstrap =
            lab.write("armeria.json", &fill(templates::ARMERIA, &[("XDS_PORT", port)])?)?;
        Client::start(lab, "armeria", java.command("Armeria").arg(bootstrap).arg(LISTENER))
    })
}

/// Runs grpc-java, with the bootstrap of `chancery bootstrap grpc`.
pub(super) fn run_grpc_java(lab: &Lab<'_>, steps: &mut Steps) -> Result<()> {
    let java = setup::java(lab.paths)?;
    let listener = fill(templates::PROXYLESS, &[("LISTENER", LISTENER)])?;
    let ports = [lab.backends.a.grpc.as_str(), &lab.backends.b.grpc];
    check(lab, steps, (&listener, LISTENER), ports, |replica| {
        let to = [
            "--node",
            "grpc-java-1",
            "--cluster",
            "far",
            "--xds",
            &replica.xds,
            "--out",
            "grpc.json",
        ];
        replica.command(&[&["bootstrap", "grpc"], to.as_slice()].concat())?;
        let mut command = java.command("GrpcJava");
        command.arg(format!("xds:///{LISTENER}"));
        Client::start(lab, "grpc-java", command.env("GRPC_XDS_BOOTSTRAP", "grpc.json"))
    })
}

/// Runs Kitex without the name table.
pub(super) fn run_kitex(lab: &Lab<'_>, steps: &mut Steps) -> Result<()> {
    let program = setup::kitex(lab.paths)?;
    let listener =
        fill(templates::PROXY, &[("LISTENER", KITEX_LISTENER), ("LISTENER_PORT", "8888")])?;
    let ports = [lab.backends.a.http.as_str(), &lab.backends.b.http];
    check(lab, steps, (&listener, KITEX_LISTENER), ports, |replica| {
        Client::start(lab, "kitex", leashed(&program).arg(&replica.xds).arg(KITEX_LISTENER))
    })
}

/// Runs Kitex with its default configuration: its manager first waits for the name table.
pub(super) fn run_kitex_with_name_table(lab: &Lab<'_>, steps: &mut Steps) -> Result<()> {
    let program = setup::kitex(lab.paths)?;
    let replica = Replica::start(lab, CONFIG)?;
    replica.apply(&[&templates::name_table(lab)?])?;
    let mut command = leashed(&program);
    command.arg(&replica.xds).arg(KITEX_LISTENER).arg("nds");
    let client = Client::start(lab, "kitex", &mut command)?;
    steps.run("the name table arrives, and the manager starts", || {
        let line = client.lines.recv_timeout(Duration::from_secs(20));
        line.map(drop).context("the manager still waits for the name table after 20 s")
    })
}
