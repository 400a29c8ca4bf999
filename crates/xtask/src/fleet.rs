//! `fleet`: the tests of answers about a fleet that need the machine for themselves.

use std::{ffi::OsString, process::ExitCode};

use anyhow::{Result, bail, ensure};

use crate::{compare, paths::Paths, proc, setup};

const SITUATIONS: &str =
    "fleet_situations::all_replicas_answer_as_the_clients_of_the_fleet_confirm";
const OLD_RELEASE: &str = "old_replica::replica_of_an_older_release_is_named_in_every_answer";

/// Runs 40 situations with 20 Envoys, 4 gRPC clients and 300 synthetic streams on three replicas. With a revision, also asks
/// a cluster in which one replica runs the program of that revision.
pub(crate) fn run(paths: &Paths, args: &[&str]) -> Result<ExitCode> {
    setup::all(paths)?;
    let before = match args {
        [] => None,
        ["--before", revision] => Some(compare::program_of(paths, revision)?),
        _ => bail!("unknown arguments {args:?}: `fleet` takes only `--before REV`"),
    };
    let mut passed = test(paths, "real_clients", SITUATIONS, "CHANCERY_TEST_FLEET", "1")?;
    if let Some(program) = before {
        passed &= test(paths, "cli", OLD_RELEASE, "CHANCERY_OLD_BIN", program)?;
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs one test of the server with an environment variable, and returns whether it passed.
fn test(
    paths: &Paths,
    binary: &str,
    name: &str,
    variable: &str,
    value: impl Into<OsString>,
) -> Result<bool> {
    let command = |args: &[&str]| {
        let mut cargo = paths.cargo("test");
        cargo.args(["--package", "chancery-server", "--test", binary, "--", "--exact", name]);
        cargo.args(args);
        cargo
    };
    // Without this, a test of another name would pass.
    let listed = proc::output(&mut command(&["--list"]))?;
    ensure!(listed.contains(&format!("{name}: test")), "{binary} has no test {name}");
    Ok(proc::status(command(&["--nocapture"]).env(variable, value.into()))?.success())
}
