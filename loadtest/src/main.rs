//! Load for a control plane, and what came of it.
//!
//! Drives the real binary over its real ports, from outside: as authors do, and as clients do. Each
//! command starts its own servers in a directory of its own, ends them, and exits with 1 if a promise
//! does not hold. Figures with their machine are in `docs/measurements.md`.
//!
//! Invariants:
//! - What is measured is the server's own time and memory, as the kernel counts them; never what the
//!   clients take.
//! - Clients and servers are on different CPUs (unless asked otherwise), and figures to be compared
//!   are taken in turns within one run.
//! - Nothing is left behind: no process, no file.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

mod attack;
mod author;
mod cluster;
mod coldstart;
mod crash;
mod etcd;
mod fanout;
mod host;
mod hostile;
mod idle;
mod memory;
mod metrics;
mod nemesis;
mod pressure;
mod process;
mod random;
mod report;
mod resource;
mod rolling;
mod scan;
mod server;
mod stats;
mod storm;
mod stream;
mod swarm;
mod worker;
mod writes;

use host::{Host, Pinning};
use report::{Findings, Format, say};

/// Load for a Chancery server, and what came of it.
///
/// Exit code: 0 all promises hold, 1 one does not or the run failed, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(name = "loadtest", max_term_width = 100)]
struct Cli {
    /// The `chancery` binary [default: the one beside this program].
    #[arg(long, global = true, value_name = "PATH", env = "CHANCERY_BIN", hide_env_values = true)]
    chancery: Option<PathBuf>,
    /// Directory for the data of the servers, in a directory that is removed [default: that for
    /// temporary files].
    #[arg(long, global = true, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Output: text for people, or JSON.
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT", default_value = "text")]
    output: Format,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Send expensive requests and measure memory and the latency of a healthy client
    Attack(attack::Args),
    /// Server CPU per acknowledged delivery, in small views and in large ones.
    Fanout(fanout::Args),
    /// Memory of the server by resources, and by streams.
    Memory(memory::Args),
    /// Kill -9 under write load: nothing that was acknowledged is lost, nothing else is changed.
    Crash(crash::Args),
    /// Clients that never read and clients that never acknowledge: what the others notice of them.
    Hostile(hostile::Args),
    /// Memory of the server per client that does nothing.
    Idle(idle::Args),
    /// Durable writes of 1 KiB, in turns with etcd: three replicas of each on the same disk.
    Etcd(etcd::Args),
    /// Replicas are restarted one after the other under load: what clients and writers notice of it.
    Rolling(rolling::Args),
    /// Time from the start of a process to a replica that serves.
    Coldstart(coldstart::Args),
    /// Faults of all kinds under load: no promise of the cluster is broken.
    Nemesis(nemesis::Args),
    /// More to be sent than anybody takes, at all replicas: the cluster keeps its leader, and writes go on.
    Pressure(pressure::Args),
    /// Reconnect thousands of clients at once and measure pushes to the other clients and writes
    Storm(storm::Args),
    /// Durable writes per second and their latency, by the number of writers.
    Writes(writes::Args),
    /// Take orders of another load test
    #[command(hide = true)]
    Worker(worker::Args),
}

/// What all commands need.
#[derive(Debug)]
struct Common {
    binary: PathBuf,
    pinning: Pinning,
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
        bail!("no server at {}: build it, or name it with --chancery", binary.display());
    }
    let dir = cli.dir.unwrap_or_else(std::env::temp_dir);
    let dir = tempfile::Builder::new().prefix("chancery-loadtest-").tempdir_in(&dir);
    let dir = dir.context("create a directory for the data")?;
    let host = Host::look(dir.path())?;
    let pinning = match &cli.command {
        Command::Fanout(args) => args.pinning()?,
        Command::Memory(args) => args.pinning()?,
        Command::Hostile(args) => args.pinning()?,
        Command::Idle(args) => args.pinning()?,
        Command::Attack(_)
        | Command::Crash(_)
        | Command::Nemesis(_)
        | Command::Etcd(_)
        | Command::Pressure(_)
        | Command::Storm(_)
        | Command::Writes(_)
        | Command::Rolling(_)
        | Command::Coldstart(_)
        | Command::Worker(_) => Pinning::NONE,
    };
    let common = Common { binary, pinning };
    // One thread: the clients have one CPU, and the main thread is the one that starts servers.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let findings = runtime.block_on(async {
        tokio::select! {
            findings = cli.command.run(&common, dir.path()) => findings,
            // Not left to the kernel: the data would stay.
            signal = interruption() => Err(anyhow::anyhow!("ended by {}", signal?)),
        }
    })?;
    drop(runtime);
    findings.print(cli.output, &command_line(), &host)
}

impl Command {
    async fn run(&self, common: &Common, dir: &Path) -> Result<Findings> {
        match self {
            Self::Attack(args) => args.run(common, dir).await,
            Self::Fanout(args) => args.run(common, dir).await,
            Self::Memory(args) => args.run(common, dir).await,
            Self::Crash(args) => args.run(common, dir).await,
            Self::Hostile(args) => args.run(common, dir).await,
            Self::Idle(args) => args.run(common, dir).await,
            Self::Etcd(args) => args.run(common, dir).await,
            Self::Rolling(args) => args.run(common, dir).await,
            Self::Coldstart(args) => args.run(common, dir).await,
            Self::Nemesis(args) => args.run(common, dir).await,
            Self::Pressure(args) => args.run(common, dir).await,
            Self::Storm(args) => args.run(common, dir).await,
            Self::Writes(args) => args.run(common, dir).await,
            Self::Worker(_) => bail!("a worker finds nothing"),
        }
    }
}

/// The signal that asks us to end.
async fn interruption() -> Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    })
}

/// A program in the directory of this one.
fn beside_us(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("find this program")?;
    Ok(own.parent().unwrap_or(Path::new(".")).join(name))
}

/// As it was typed, without the path of the program.
fn command_line() -> String {
    let words: Vec<String> = std::env::args().skip(1).collect();
    format!("loadtest {}", words.join(" "))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
