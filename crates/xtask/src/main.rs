//! `cargo xtask`: the one entry point for developers and for CI.
//!
//! Invariants:
//! - Whatever is slow to build or to download is kept outside the checkout (`Paths::cache`), so that
//!   a fresh clone on a known machine is cheap.
//! - `verify` reads; only `fix` and `conformance` write into the tree.
//! - This crate does not depend on the product: it compiles in seconds, before RocksDB is there.

use std::process::ExitCode;

use anyhow::{Result, bail};

mod conformance;
mod demo;
mod paths;
mod proc;
mod say;
mod setup;
mod source;
mod tidy;
mod verify;

use paths::Paths;
use say::say;

const USAGE: &str = "\
usage: cargo xtask <command>

  demo [--check]         build, start a control plane with sample resources, and say how to point a
                         real Envoy and a real gRPC client at it; --check runs both against it,
                         moves an endpoint, and exits 0 or 1
  test [--long] [ARGS]   set up what is missing and run all tests; ARGS go to `cargo test`
                         (with -p, only that package); --long runs the long forms
  verify                 everything that is checked without running tests; changes no file
  fix                    formats, applies clippy's suggestions, regenerates docs/conformance.md
  conformance [--check]  writes (or checks) docs/conformance.md from the doc comments of tests
  setup                  installs what the system lacks, builds RocksDB once, installs real clients
";

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            say!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let paths = Paths::find()?;
    match args.as_slice() {
        ["setup"] => setup::all(&paths)?,
        ["demo"] => return demo::serve(&paths),
        ["demo", "--check"] => return demo::check(&paths),
        ["test", rest @ ..] => return test(&paths, rest),
        ["verify"] => verify::verify(&paths)?,
        ["fix"] => verify::fix(&paths)?,
        ["conformance"] => conformance::write(&paths)?,
        ["conformance", "--check"] => conformance::check(&paths)?,
        [] | ["help" | "-h" | "--help", ..] => say!("{USAGE}"),
        other => {
            say!("{USAGE}");
            bail!("unknown command {:?}", other.join(" "));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the tests, with cargo's own output. Arguments that are not ours go to `cargo test`.
fn test(paths: &Paths, args: &[&str]) -> Result<ExitCode> {
    setup::all(paths)?;
    let mut cargo = paths.cargo("test");
    let ours = args.iter().take_while(|arg| **arg != "--");
    let names_package = ours.clone().any(|arg| {
        ["-p", "--package", "--workspace", "--all", "--manifest-path"].contains(arg)
            || arg.starts_with("--package=")
    });
    if !names_package {
        cargo.arg("--workspace");
    }
    let mut before_separator = true;
    for arg in args {
        before_separator &= *arg != "--";
        match *arg {
            "--long" if before_separator => {
                cargo.env("CHANCERY_TEST_LONG", "1");
            }
            other => {
                cargo.arg(other);
            }
        }
    }
    say!("running the tests: {}", proc::shown(&cargo));
    let status = proc::status(&mut cargo)?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
