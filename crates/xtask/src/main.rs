//! `cargo xtask`: the one entry point for developers and for CI.
//!
//! Invariants:
//! - Whatever is slow to build or to download is kept outside the checkout (`Paths::cache`), so that
//!   a fresh clone on a known machine is cheap.
//! - `verify` reads; only `fix` and `conformance` write into the tree.
//! - This crate does not depend on the product: it compiles in seconds, before RocksDB is there.

use std::{fs, path::Path, process::ExitCode};

use anyhow::{Context as _, Result, bail};

mod bare;
mod conformance;
mod demo;
mod metrics_page;
mod mutants;
mod paths;
mod proc;
mod say;
mod setup;
mod source;
mod tidy;
mod verify;

use mutants::Which;
use paths::Paths;
use say::say;

const USAGE: &str = "\
usage: cargo xtask <command>

  demo [--check] [--dev] build, start a control plane with sample resources, and say how to point a
                         real Envoy and a real gRPC client at it; --check runs both against it,
                         moves an endpoint, and exits 0 or 1; --dev takes a debug build
  test [--long] [ARGS]   set up what is missing and run all tests; ARGS go to `cargo test`
                         (with -p, only that package); --long runs the long forms
  verify                 everything that is checked without running tests; changes no file
  fix                    formats, applies clippy's suggestions, regenerates docs/conformance.md and
                         docs/metrics.md
  conformance [--check]  writes (or checks) docs/conformance.md from the doc comments of tests
  metrics [--check]      writes (or checks) docs/metrics.md from the METRICS tables in the code
  mutants [--group NAME] plants bugs in a copy of the crates, and fails if no test catches one; writes
                         docs/mutants.md; groups are protocol, store, server; --only N,N plants these
  bare [--quick|--half]  runs the README's commands in a bare Debian root, with an empty cache (about 40
                         minutes on two cores); --quick lends it this machine's archive of RocksDB;
                         --half: runs setup in a root with some packages half there (5 minutes)
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
        [setup::PROBE_LIBCLANG_COMMAND] => setup::probe_libclang()?,
        ["demo", flags @ ..] => {
            if let Some(unknown) = flags.iter().find(|flag| !["--check", "--dev"].contains(flag)) {
                bail!("demo has no {unknown:?}");
            }
            let is_dev = flags.contains(&"--dev");
            let profile = if is_dev { demo::Profile::Dev } else { demo::Profile::Release };
            if flags.contains(&"--check") {
                demo::check(&paths, profile)?;
            } else {
                demo::serve(&paths, profile)?;
            }
        }
        ["test", rest @ ..] => return test(&paths, rest),
        ["verify"] => verify::verify(&paths)?,
        ["fix"] => verify::fix(&paths)?,
        ["conformance"] => conformance::write(&paths)?,
        ["conformance", "--check"] => conformance::check(&paths)?,
        ["metrics"] => metrics_page::write(&paths)?,
        ["mutants"] => mutants::run(&paths, Which::All)?,
        ["mutants", "--group", name] => mutants::run(&paths, Which::Group(name))?,
        ["mutants", "--only", numbers] => {
            let parse = |number: &str| {
                number.parse().with_context(|| format!("--only: {number:?} is not a number"))
            };
            let numbers = numbers.split(',').map(parse).collect::<Result<Vec<u32>>>()?;
            mutants::run(&paths, Which::Only(&numbers))?;
        }
        ["bare"] => bare::run(&paths, bare::Machine::Bare)?,
        ["bare", "--quick"] => bare::run(&paths, bare::Machine::Quick)?,
        ["bare", "--half"] => bare::run(&paths, bare::Machine::HalfThere)?,
        ["metrics", "--check"] => metrics_page::check(&paths)?,
        [] | ["help" | "-h" | "--help", ..] => say!("{USAGE}"),
        other => {
            say!("{USAGE}");
            bail!("unknown command {:?}", other.join(" "));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the tests, with cargo's own output. Arguments that are not ours go to `cargo test`. When nothing
/// narrows it down, the demo is tried too.
fn test(paths: &Paths, args: &[&str]) -> Result<ExitCode> {
    setup::all(paths)?;
    let call = TestCall::parse(args);
    let mut cargo = paths.cargo("test");
    if !call.names_package {
        cargo.arg("--workspace");
    }
    if call.is_long {
        cargo.env("CHANCERY_TEST_LONG", "1");
    }
    cargo.args(&call.rest);
    let skips = paths.target.join(format!("skipped-tests-{}", std::process::id()));
    cargo.env("CHANCERY_TEST_SKIPS", &skips);
    say!("running the tests: {}", proc::shown(&cargo));
    let passed = proc::status(&mut cargo)?.success();
    say_skipped(&skips)?;
    if !passed {
        return Ok(ExitCode::FAILURE);
    }
    if call.rest.is_empty() && call.is_long {
        mutants::run(paths, Which::All)?;
    }
    if call.rest.is_empty() {
        say!("trying the demo, with a real Envoy and a real gRPC client");
        demo::check(paths, demo::Profile::Dev)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists the tests that recorded that they were skipped (`chancery-testing`), which cargo counts as passed.
fn say_skipped(skips: &Path) -> Result<()> {
    let Ok(listed) = fs::read_to_string(skips) else { return Ok(()) };
    say!("{} of the tests that passed were skipped:", listed.lines().count());
    for skip in listed.lines() {
        say!("  {skip}");
    }
    fs::remove_file(skips).with_context(|| format!("remove {}", skips.display()))
}

/// What `cargo xtask test` was asked for.
#[derive(Debug, PartialEq, Eq)]
struct TestCall<'a> {
    /// The long forms of tests.
    is_long: bool,
    /// A package was named: not the whole workspace.
    names_package: bool,
    /// For `cargo test`.
    rest: Vec<&'a str>,
}

impl<'a> TestCall<'a> {
    fn parse(args: &[&'a str]) -> Self {
        let separator = args.iter().position(|arg| *arg == "--").unwrap_or(args.len());
        let (ours, theirs) = args.split_at(separator);
        let packages = ["-p", "--package", "--workspace", "--all", "--manifest-path"];
        Self {
            is_long: ours.contains(&"--long"),
            names_package: ours
                .iter()
                .any(|arg| packages.contains(arg) || arg.starts_with("--package=")),
            rest: ours.iter().filter(|arg| **arg != "--long").chain(theirs).copied().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_a_test_run_are_told_apart() {
        let call = TestCall::parse(&["--long", "-p", "chancery-view", "--", "--long"]);
        assert_eq!(
            call,
            TestCall {
                is_long: true,
                names_package: true,
                rest: vec!["-p", "chancery-view", "--", "--long"]
            }
        );
        let call = TestCall::parse(&["diff"]);
        assert!(!call.is_long && !call.names_package);
        assert_eq!(TestCall::parse(&["--long"]).rest, Vec::<&str>::new());
    }
}
