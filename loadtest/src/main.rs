//! Load tests for a control plane.
//!
//! The program drives the real binary from outside, over its real ports, as authors and clients do.
//! Each command starts its own servers in its own directory and ends them. It exits with 1 if a
//! gate does not hold. `docs/measurements.md` has measurements with their machine.
//!
//! Invariants:
//! - The measured time and memory are the server's own, as the kernel counts them. They never
//!   include the clients.
//! - Clients and servers run on different CPUs, unless the user asks otherwise. Values to compare
//!   are measured in turns within one run.
//! - No process and no file is left behind.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

mod access;
mod attack;
mod author;
mod bulk;
mod certificates;
mod cluster;
mod coldstart;
mod common;
mod crash;
mod doors;
mod etcd;
mod fanout;
mod files;
mod held_clients;
mod host;
mod hostile;
mod idle;
mod mcp;
mod memory;
mod metrics;
mod nemesis;
mod pressure;
mod process;
mod questions;
mod random;
mod report;
mod resource;
mod rolling;
mod server;
mod sinks;
mod stats;
mod storm;
mod thaw;
mod tls;
mod watch;
mod wildcard_clients;
mod worker;
mod writes;

use common::Common;
use host::{Host, Pinning};
use report::{Findings, Format, say};

/// Load tests for a Chancery server
///
/// Exit code: 0 if all gates hold, 1 if one does not hold or the run failed, 2 for wrong usage.
#[derive(Debug, Parser)]
#[command(name = "loadtest", max_term_width = 100)]
struct Cli {
    /// The `chancery` binary [default: the one in the directory of this program]
    #[arg(long, global = true, value_name = "PATH", env = "CHANCERY_BIN", hide_env_values = true)]
    chancery: Option<PathBuf>,
    /// Directory in which a temporary directory for the data is created [default: the system's
    /// temporary directory]
    #[arg(long, global = true, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Output format: text, or JSON for programs
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT", default_value = "text")]
    output: Format,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Change access rules under many streams and measure pushes to others
    Access(access::Args),
    /// Send expensive requests and measure memory and the latency of a healthy client
    Attack(attack::Args),
    /// Flood three replicas that may open few files with idle connections
    Files(files::Args),
    /// Publish many clusters or secrets at once and measure pushes of another scope, writes and memory
    Bulk(bulk::Args),
    /// Measure server CPU per acknowledged delivery in small and large views
    Fanout(fanout::Args),
    // Its arguments have the help, which says what the sinks receive first.
    Mcp(mcp::Args),
    /// Measure server memory by number of resources and of streams
    Memory(memory::Args),
    /// Kill the server under write load and check that no write is lost or changed
    Crash(crash::Args),
    /// Measure the cost of REST polls, mirrored files and heartbeats in small and large views
    Doors(doors::Args),
    /// Measure the effect of clients that never read or never acknowledge
    Hostile(hostile::Args),
    /// Measure server memory per idle client
    Idle(idle::Args),
    /// Compare durable writes of 1 KiB with etcd, three replicas of each
    Etcd(etcd::Args),
    /// Restart replicas in turn under load and check streams and writes
    Rolling(rolling::Args),
    /// Measure the time from process start to readiness
    Coldstart(coldstart::Args),
    /// Inject faults into a cluster under load and check all guarantees
    Nemesis(nemesis::Args),
    /// Queue more deliveries than clients take and check leadership and writes
    Pressure(pressure::Args),
    /// Ask three replicas about all nodes, and measure the answers and pushes to others
    Questions(questions::Args),
    /// Reconnect thousands of clients at once and measure pushes to others and writes
    Storm(storm::Args),
    /// Thaw a scope with many held changes and clients, and measure pushes to others
    Thaw(thaw::Args),
    /// Compare mutual TLS with plaintext: CPU per delivery, memory per idle client, reconnects
    Tls(tls::Args),
    /// Measure throughput and latency of durable writes by number of writers
    Writes(writes::Args),
    /// Run a part of another load test
    #[command(hide = true)]
    Worker(worker::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Command::Worker(args) = &cli.command {
        return args.work();
    }
    match run(cli) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<bool> {
    let binary = match cli.chancery {
        Some(path) => path,
        None => beside_us("chancery")?,
    };
    if !binary.is_file() {
        bail!(
            "cannot start the server: {} is not a file; build it, or pass --chancery",
            binary.display()
        );
    }
    let dir = cli.dir.unwrap_or_else(std::env::temp_dir);
    let dir = tempfile::Builder::new().prefix("chancery-loadtest-").tempdir_in(&dir);
    let dir = dir.context("create a directory for the data")?;
    let host = Host::look(dir.path())?;
    let pinning = match &cli.command {
        Command::Fanout(args) => args.pinning()?,
        Command::Mcp(args) => args.pinning()?,
        Command::Memory(args) => args.pinning()?,
        Command::Hostile(args) => args.pinning()?,
        Command::Idle(args) => args.pinning()?,
        Command::Tls(args) => args.pinning()?,
        Command::Access(_)
        | Command::Questions(_)
        | Command::Attack(_)
        | Command::Bulk(_)
        | Command::Crash(_)
        | Command::Doors(_)
        | Command::Files(_)
        | Command::Nemesis(_)
        | Command::Etcd(_)
        | Command::Pressure(_)
        | Command::Storm(_)
        | Command::Thaw(_)
        | Command::Writes(_)
        | Command::Rolling(_)
        | Command::Coldstart(_)
        | Command::Worker(_) => Pinning::NONE,
    };
    let common = Common { binary, pinning };
    // The clients use one CPU, so one thread suffices. The main thread must be the one that starts
    // servers.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let findings = runtime.block_on(async {
        tokio::select! {
            findings = cli.command.run(&common, dir.path()) => findings,
            // The default action of the signal would leave the data behind.
            signal = interruption() => Err(anyhow::anyhow!("interrupted by {}", signal?)),
        }
    })?;
    drop(runtime);
    findings.print(cli.output, &command_line(), &host)
}

impl Command {
    async fn run(&self, common: &Common, dir: &Path) -> Result<Findings> {
        match self {
            Self::Access(args) => args.run(common, dir).await,
            Self::Questions(args) => args.run(common, dir).await,
            Self::Attack(args) => args.run(common, dir).await,
            Self::Bulk(args) => args.run(common, dir).await,
            Self::Fanout(args) => args.run(common, dir).await,
            Self::Files(args) => args.run(common, dir).await,
            Self::Mcp(args) => args.run(common, dir).await,
            Self::Memory(args) => args.run(common, dir).await,
            Self::Crash(args) => args.run(common, dir).await,
            Self::Doors(args) => args.run(common, dir).await,
            Self::Hostile(args) => hostile::run(args, common, dir).await,
            Self::Idle(args) => args.run(common, dir).await,
            Self::Etcd(args) => etcd::run(args, common, dir).await,
            Self::Rolling(args) => rolling::run(args, common, dir).await,
            Self::Coldstart(args) => args.run(common, dir).await,
            Self::Nemesis(args) => args.run(common, dir).await,
            Self::Pressure(args) => args.run(common, dir).await,
            Self::Storm(args) => args.run(common, dir).await,
            Self::Thaw(args) => args.run(common, dir).await,
            Self::Tls(args) => args.run(common, dir).await,
            Self::Writes(args) => args.run(common, dir).await,
            Self::Worker(_) => bail!("a worker has no findings"),
        }
    }
}

/// Waits for SIGTERM or SIGINT, and returns the name of the signal.
async fn interruption() -> Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    })
}

/// Returns the path of a program in the directory of this one.
fn beside_us(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("find this program")?;
    Ok(own.parent().unwrap_or(Path::new(".")).join(name))
}

/// Returns the command line without the path of the program.
fn command_line() -> String {
    let words: Vec<String> = std::env::args().skip(1).collect();
    format!("loadtest {}", words.join(" "))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn command_line_definition_is_consistent() {
        Cli::command().debug_assert();
    }
}
