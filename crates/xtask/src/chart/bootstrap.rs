//! The check that Envoy accepts the bootstrap in the notes of the chart.

use std::{fs, process::Command};

use anyhow::{Context as _, Result};

use super::render::Chart;
use crate::{paths::Paths, proc};

/// The files of a client in the notes, and the files of `chancery dev certs` that stand for them.
const FILES: [(&str, &str); 3] = [
    ("/etc/xds/tls.crt", "client.pem"),
    ("/etc/xds/tls.key", "client.key"),
    ("/etc/xds/ca.crt", "ca.pem"),
];

/// Checks the notes.
pub(super) fn check(paths: &Paths, chart: &Chart, notes: &str) -> Result<()> {
    let mut bootstrap = bootstrap(notes).context("there is no bootstrap")?;
    for (named, file) in FILES {
        let file = chart.scratch.join("certs").join(file);
        bootstrap = bootstrap.replace(named, &file.display().to_string());
    }
    let file = chart.scratch.join("envoy.yaml");
    fs::write(&file, bootstrap).with_context(|| format!("write {}", file.display()))?;
    let mut envoy = Command::new(paths.clients.join("bin/envoy"));
    envoy.args(["--mode", "validate", "--log-level", "error", "--config-path"]).arg(file);
    proc::output(&mut envoy).map(drop)
}

/// Returns the indented block that begins with the node.
fn bootstrap(notes: &str) -> Option<String> {
    let start = notes.find("   node: ")?;
    let lines = notes.get(start..)?.lines().map_while(|line| line.strip_prefix("   "));
    Some(lines.collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn bootstrap_ends_with_its_block() {
        let notes = "1. Text\n\n   node: {id: a}\n   b:\n     c: d\n\n   More text\n";
        assert_eq!(super::bootstrap(notes).unwrap(), "node: {id: a}\nb:\n  c: d");
        assert_eq!(super::bootstrap("no block"), None);
    }
}
