//! `cargo xtask far-clients`: clients that are too large for the tests, with a real replica.
//!
//! Each client gets its first configuration, an update and a removal, and survives a restart of the replica. The traffic
//! goes to two backends, which answer "hello from a" and "hello from b".
//!
//! Invariant: a step that fails does not hide the other clients. The command runs all of them, and then fails.

use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

use crate::{paths::Paths, say::say, setup};

mod agent;
mod backends;
mod envoy;
mod istiod;
mod lab;
mod proxyless;
mod replica;
mod scenario;
mod steps;
mod templates;

use lab::Lab;
use steps::Steps;

/// The clients with the function that runs each.
#[expect(clippy::type_complexity, reason = "a table of functions")]
const CLIENTS: &[(&str, fn(&Lab<'_>, &mut Steps) -> Result<()>)] = &[
    ("istiod", istiod::run),
    ("istiod-tls", istiod::run_tls),
    ("istio-agent", agent::run),
    ("kitex", proxyless::run_kitex),
    ("kitex-nds", proxyless::run_kitex_with_name_table),
    ("armeria", proxyless::run_armeria),
    ("grpc-java", proxyless::run_grpc_java),
];

/// Runs the clients in `names`, or all.
pub(crate) fn run(paths: &Paths, program: &Path, names: &[&str]) -> Result<()> {
    check_names(names)?;
    setup::demo_needs(paths)?;
    let program = program.canonicalize().context("find the program")?;
    let mut n_failed = 0;
    for (name, run) in CLIENTS.iter().filter(|(name, _)| names.is_empty() || names.contains(name)) {
        let mut steps = Steps::new(name);
        let lab = Lab::new(paths, &program, name)?;
        if let Err(error) = run(&lab, &mut steps) {
            steps.fail("the client", &error);
        }
        if steps.n_failed() == 0 {
            lab.remove()?;
        } else {
            say!("the files and logs of {name} are in {}", lab.dir.display());
        }
        n_failed += steps.n_failed();
    }
    ensure!(n_failed == 0, "{n_failed} steps failed");
    Ok(())
}

/// Rejects names of unknown clients.
pub(crate) fn check_names(names: &[&str]) -> Result<()> {
    let known: Vec<&str> = CLIENTS.iter().map(|(name, _)| *name).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(name)) {
        bail!("unknown client {unknown:?}: the clients are {}", known.join(", "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_client_is_an_error_with_the_known_ones() {
        assert!(check_names(&["kitex", "istiod"]).is_ok());
        assert!(check_names(&["mosn"]).unwrap_err().to_string().contains("istiod, istiod-tls"));
    }
}
