//! The two backends, which are the upstreams of the demo.

use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    paths::Paths,
    proc::{self, Guard},
};

/// Two backends, which answer "hello from a" and "hello from b" over HTTP and over gRPC.
pub(super) struct Backends {
    pub(super) a: Backend,
    pub(super) b: Backend,
}

/// The ports of one backend.
pub(super) struct Backend {
    pub(super) http: String,
    pub(super) grpc: String,
    _process: Guard,
}

impl Backends {
    pub(super) fn start(paths: &Paths) -> Result<Self> {
        Ok(Self { a: Backend::start(paths, "a")?, b: Backend::start(paths, "b")? })
    }
}

impl Backend {
    fn start(paths: &Paths, name: &str) -> Result<Self> {
        let [http, grpc] = free_ports()?;
        let mut command = proc::leashed(&paths.clients.join("bin/python"));
        command.arg(paths.root.join("deploy/demo/upstream.py"));
        command.args(["--name", name, "--http", &http, "--grpc", &grpc]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Guard::spawn(&format!("backend {name}"), &mut command)?;
        let mut line = String::new();
        BufReader::new(process.stdout()?).read_line(&mut line).context("wait for a backend")?;
        ensure!(line == "ready\n", "backend {name} printed {line:?} instead of \"ready\"");
        Ok(Self { http, grpc, _process: process })
    }
}

/// Returns free ports of the loopback interface.
pub(super) fn free_ports<const N: usize>() -> Result<[String; N]> {
    let port = |address: String| address.rsplit(':').next().unwrap_or_default().to_owned();
    Ok(proc::free_addresses::<N>()?.map(port))
}
