//! `cargo xtask`: the commands for developers and CI.
//!
//! Invariants:
//! - Artifacts that are slow to build or download are stored outside the checkout (`Paths::cache`).
//!   A fresh clone on the same machine reuses them.
//! - `verify` does not change the tree. Only `fix`, `metrics`, `dashboards`, `corpus`, `chart --update` and
//!   `fuzz --minimize` do.
//! - This crate does not depend on the product, so it compiles in seconds and without RocksDB.

use std::{
    env, fs,
    num::NonZero,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    thread,
};

use anyhow::{Context as _, Result, bail};

mod attacks;
mod bare;
mod chart;
mod compare;
mod conformance;
mod console;
mod corpus;
mod demo;
mod far;
mod fleet;
mod fuzz;
mod http;
mod metrics_page;
mod mixin;
mod mutants;
mod openapi;
mod package;
mod page;
mod paths;
mod proc;
mod program;
mod progress;
mod say;
mod setup;
mod source;
mod tidy;
mod verify;

use chart::Golden;
use mutants::Which;
use paths::Paths;
use program::Profile;
use say::say;

/// The variable with the number of tests of a program that run at the same time.
const TEST_THREADS: &str = "RUST_TEST_THREADS";

const USAGE: &str = "\
usage: cargo xtask <command>

  demo [--check] [--dev] build the program without optimization, start a control plane with sample
                         resources, and print how to connect a real Envoy and a real gRPC client;
                         --check runs both clients, moves an endpoint, and exits with 0 or 1; --dev
                         uses a debug build
  build                  build the optimized program for production, and print its path
  test [--long] [ARGS]   run setup, then all tests; ARGS are passed to `cargo test` (-p selects one
                         package); --long runs the long forms of tests, `fleet` and `chart --apiserver`, and
                         plants all bugs
  verify                 run all checks except the tests; changes no file
  fix                    format, apply clippy's suggestions, and regenerate docs/metrics.md and the dashboards
  conformance [--check]  write a page with the tests of each requirement into the target directory, from the
                         doc comments of tests; --check fails if a requirement has neither a test nor a reason
  conformance --xds ADDR build the program, and check the behavior of an xDS server from outside; takes the
                         flags of `chancery conformance` (docs/conformance-kit.md)
  console                open every page of the console in Chromium, with three replicas of a debug build and real
                         Envoys; check the pages with axe-core, and do the tasks of an operator (3 minutes)
  attacks [--check]      write a page with the tests of each attack into the target directory; --check fails
                         if an attack has neither a test nor a reason
  metrics [--check]      write (or check) docs/metrics.md from the METRICS tables in the code
  dashboards             write deploy/mixin/dashboards from the table in crates/xtask/src/mixin/boards
  alerts [--live]        check deploy/mixin, and run the unit tests of the alerts with promtool; --live
                         builds the program, and checks the rules and dashboards with a real Prometheus
  alerts --faults [--only NAME,..]
                         make each alert fire with a real fault, and recover with the step of its runbook;
                         needs root and strace (about 15 minutes on two cores)
  mutants [--group NAME] plant bugs in a copy of the crates, and fail if the tests that a bug names do not catch
                         it; prints and stores each result; groups: protocol, store, server; --only N,N
                         plants the bugs with these numbers
  mutants --generated [CRATE..]
                         let cargo-mutants change the crates without input and output (diff, lb-policy, model,
                         protocol, resolve, view), and list the changes that no test notices (hours)
  chart [--update]       check the Helm chart: lint, schemas of Kubernetes, golden files, refusals, and the
                         configuration that it renders; --update writes the golden files first
  chart --apiserver      install, upgrade and uninstall the Helm chart with a real API server of Kubernetes,
                         which is compiled once (10 minutes on two cores)
  image [--check] [--dev] write the container image as an OCI layout, without a daemon; --check writes it twice, and
                         runs a replica from it; --dev uses a debug build
  dist [--check] [--dev] write all files of a release: archive, Debian package, image, chart, mixin, schema, protos,
                         component list and checksums; --check writes them twice and compares them
  install [--dev]        follow docs/install-systemd.md in three Debian roots with systemd and the Debian package,
                         until two Envoys are connected (about 5 minutes besides the build); needs root
  packages               check the systemd units, the Dockerfile and the Compose file
  corpus [--cases REGEX] [--only CLIENT[@VERSION],..]
                         ask every version of Envoy and the gRPC clients in corpus/admission/clients.txt about
                         every case of the corpus, and write its verdicts.json (about 15 minutes on two idle
                         cores, besides the installation of the clients)
  far-clients [--program PATH] [CLIENT..]
                         run istiod and istio-agent with an Envoy, Kitex, Armeria and grpc-java with a debug build or
                         a program: updates, removals, a restart and traffic; compiles istiod once (30 minutes)
  fleet [--before REV]   compare the answers of three replicas with the resources of 20 Envoys, 4 gRPC clients and 300
                         synthetic streams, in 40 situations (15 minutes); --before also asks a cluster in which one
                         replica runs a revision without questions between replicas, such as 4e4f226b
  compare REV [--rounds N]
                         build the program and that of an earlier revision, and measure both in turns (writes,
                         fanout, etcd); fails if a cost grew by more than 10 % (6 minutes on two idle cores, and
                         the builds)
  openapi                send requests that schemathesis generates from /v1/openapi.json to a debug build, and check the
                         answers (about 3 minutes)
  fuzz [TARGET..]        search with libFuzzer for inputs that break a decoder, for 60 s per target;
                         --runs N tries N inputs, --seconds N searches for N seconds; --minimize
                         replaces the corpora by minimal ones with the same coverage
  bare [--quick|--half]  run the README's commands in a bare Debian root with an empty cache (about 40
                         minutes on two cores); --quick copies this machine's RocksDB archive into the
                         root; --half runs setup in a root with incomplete packages (5 minutes)
  setup                  install missing system packages, RocksDB (built once) and real clients
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
                bail!("unknown flag {unknown:?} of demo: the flags are --check and --dev");
            }
            let is_dev = flags.contains(&"--dev");
            let profile = if is_dev { Profile::Dev } else { Profile::Quickstart };
            if flags.contains(&"--check") {
                demo::check(&paths, profile)?;
            } else {
                demo::serve(&paths, profile)?;
            }
        }
        ["build"] => {
            setup::build_needs(&paths)?;
            say!("the program is {}", program::build(&paths, Profile::Release)?.display());
        }
        ["test", rest @ ..] => return test(&paths, rest),
        ["verify"] => verify::verify(&paths)?,
        ["fix"] => verify::fix(&paths)?,
        ["conformance"] => conformance::page(&paths)?.write(&paths)?,
        ["conformance", "--check"] => conformance::page(&paths)?.check()?,
        ["conformance", flags @ ..] => return conformance_kit(&paths, flags),
        ["console"] => console::run(&paths, &given_or_built(&paths)?)?,
        ["attacks"] => attacks::page(&paths)?.write(&paths)?,
        ["attacks", "--check"] => attacks::page(&paths)?.check()?,
        ["metrics"] => metrics_page::write(&paths)?,
        ["dashboards"] => mixin::write(&paths)?,
        ["alerts"] => mixin::check(&paths).and_then(|()| mixin::test(&paths))?,
        ["alerts", "--live"] => mixin::check_live(&paths, &given_or_built(&paths)?)?,
        ["alerts", "--faults"] => mixin::check_faults(&paths, &[])?,
        ["alerts", "--faults", "--only", names] => {
            mixin::check_faults(&paths, &names.split(',').collect::<Vec<_>>())?;
        }
        ["mutants", "--generated", names @ ..] => return mutants::generated::run(&paths, names),
        ["mutants"] => mutants::run(&paths, Which::All)?,
        ["mutants", "--group", name] => mutants::run(&paths, Which::Group(name))?,
        ["mutants", "--only", numbers] => {
            mutants::run(&paths, Which::Only(&bug_numbers(numbers)?))?;
        }
        ["chart"] => helm_chart(&paths, Golden::Compare)?,
        ["chart", "--apiserver"] => chart::run_installed(&paths)?,
        ["chart", "--update"] => helm_chart(&paths, Golden::Write)?,
        ["image", flags @ ..] => package::image(&paths, flags)?,
        ["dist", flags @ ..] => package::dist(&paths, flags)?,
        ["install", flags @ ..] => package::install(&paths, flags)?,
        ["packages"] => package::check_files(&paths)?,
        ["corpus", rest @ ..] => corpus::run(&paths, rest)?,
        ["far-clients", rest @ ..] => far_clients(&paths, rest)?,
        ["fleet", rest @ ..] => return fleet::run(&paths, rest),
        ["compare", rest @ ..] => return compare::run(&paths, rest),
        ["openapi"] => openapi::run(&paths, &given_or_built(&paths)?)?,
        ["fuzz", rest @ ..] => fuzz::run(&paths, rest)?,
        ["bare", flags @ ..] => bare::run(&paths, bare::Machine::parse(flags)?)?,
        ["metrics", "--check"] => metrics_page::check(&paths)?,
        [] | ["help" | "-h" | "--help", ..] => say!("{USAGE}"),
        other => {
            say!("{USAGE}");
            bail!("unknown command {:?}", other.join(" "));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Parses the numbers of planted bugs.
fn bug_numbers(text: &str) -> Result<Vec<u32>> {
    let parse = |number: &str| {
        number.parse().with_context(|| format!("--only: {number:?} is not a number"))
    };
    text.split(',').map(parse).collect()
}

/// Returns the program in `CHANCERY_BIN`, or a debug build.
fn given_or_built(paths: &Paths) -> Result<PathBuf> {
    if let Some(program) = std::env::var_os("CHANCERY_BIN") {
        return Ok(program.into());
    }
    setup::build_needs(paths)?;
    program::build(paths, Profile::Dev)
}

/// Runs clients that are too large for the tests.
fn far_clients(paths: &Paths, args: &[&str]) -> Result<()> {
    if let ["--program", program, names @ ..] = args {
        return far::run(paths, Path::new(program), names);
    }
    far::check_names(args)?;
    far::run(paths, &given_or_built(paths)?, args)
}

/// Checks the Helm chart.
fn helm_chart(paths: &Paths, golden: Golden) -> Result<()> {
    chart::run(paths, &given_or_built(paths)?, golden)
}

/// Runs the conformance kit of a debug build. All arguments go to `chancery conformance`.
fn conformance_kit(paths: &Paths, args: &[&str]) -> Result<ExitCode> {
    setup::build_needs(paths)?;
    let program = program::build(paths, Profile::Dev)?;
    let status = Command::new(&program).arg("conformance").args(args).status();
    let status = status.with_context(|| format!("run {}", program.display()))?;
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Runs the tests, with cargo's own output. Arguments that xtask does not know go to `cargo test`.
/// Without such arguments, the command also checks the demo, the mixin and the Helm chart. The long form runs `fleet`, plants
/// bugs, and installs the chart in an API server.
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
    if env::var_os(TEST_THREADS).is_none() {
        // Tests with real clients wait half of their time. One more than processors keeps the processors busy.
        let n_processors = thread::available_parallelism().map_or(1, NonZero::get);
        cargo.env(TEST_THREADS, (n_processors + 1).to_string());
    }
    let skips = paths.target.join(format!("skipped-tests-{}", std::process::id()));
    cargo.env("CHANCERY_TEST_SKIPS", &skips);
    say!("running the tests: {}", proc::shown(&cargo));
    let passed = proc::status(&mut cargo)?.success();
    print_skipped(&skips)?;
    if !passed {
        return Ok(ExitCode::FAILURE);
    }
    if call.rest.is_empty() && call.is_long {
        if fleet::run(paths, &[])? == ExitCode::FAILURE {
            return Ok(ExitCode::FAILURE);
        }
        mutants::run(paths, Which::All)?;
        chart::run_installed(paths)?;
    }
    if call.rest.is_empty() {
        say!("checking the demo with a real Envoy and a real gRPC client");
        let program = program::of_tests(paths)?;
        demo::check_program(paths, &program)?;
        say!("checking the alerts and dashboards with a real Prometheus");
        mixin::check_live(paths, &program)?;
        chart::run(paths, &program, Golden::Compare)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the tests that recorded a skip (`chancery-testing`). Cargo counts them as passed.
fn print_skipped(skips: &Path) -> Result<()> {
    let Ok(listed) = fs::read_to_string(skips) else { return Ok(()) };
    say!("{} of the tests that passed were skipped:", listed.lines().count());
    for skip in listed.lines() {
        say!("  {skip}");
    }
    fs::remove_file(skips).with_context(|| format!("remove {}", skips.display()))
}

/// The parsed arguments of `cargo xtask test`.
#[derive(Debug, PartialEq, Eq)]
struct TestCall<'a> {
    /// Whether to run the long forms of tests.
    is_long: bool,
    /// Whether the arguments select packages, instead of the whole workspace.
    names_package: bool,
    /// The arguments for `cargo test`.
    rest: Vec<&'a str>,
}

impl<'a> TestCall<'a> {
    fn parse(args: &[&'a str]) -> Self {
        let separator = args.iter().position(|arg| *arg == "--").unwrap_or(args.len());
        let (cargo_args, binary_args) = args.split_at(separator);
        let packages = ["-p", "--package", "--workspace", "--all", "--manifest-path"];
        Self {
            is_long: cargo_args.contains(&"--long"),
            names_package: cargo_args
                .iter()
                .any(|arg| packages.contains(arg) || arg.starts_with("--package=")),
            rest: (cargo_args.iter().filter(|arg| **arg != "--long"))
                .chain(binary_args)
                .copied()
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_call_separates_own_arguments_from_those_of_cargo() {
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
