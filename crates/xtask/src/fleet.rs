//! `fleet`: the tests of answers about a fleet that need the machine for themselves.

use std::{ffi::OsString, process::ExitCode};

use anyhow::{Result, bail};

use crate::{compare, paths::Paths, proc, setup};

/// Runs 40 situations with 20 Envoys, 4 gRPC clients and 300 synthetic streams on three replicas. With a revision, asks a
/// cluster with a replica of its program, too.
pub(crate) fn run(paths: &Paths, args: &[&str]) -> Result<ExitCode> {
    setup::all(paths)?;
    let before = match args {
        [] => None,
        ["--before", revision] => Some(compare::program_of(paths, revision)?),
        _ => bail!("fleet takes --before REV"),
    };
    let mut passed = test(paths, "real_clients", "fleet_situations", "CHANCERY_TEST_FLEET", "1")?;
    if let Some(program) = before {
        passed &= test(paths, "cli", "old_replica", "CHANCERY_OLD_BIN", program)?;
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs selected tests of the server with a variable, and returns whether they passed.
fn test(
    paths: &Paths,
    binary: &str,
    module: &str,
    variable: &str,
    value: impl Into<OsString>,
) -> Result<bool> {
    let mut cargo = paths.cargo("test");
    cargo.args(["--package", "chancery-server", "--test", binary, module, "--", "--nocapture"]);
    cargo.env(variable, value.into());
    Ok(proc::status(&mut cargo)?.success())
}
