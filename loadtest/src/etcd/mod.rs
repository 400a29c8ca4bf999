//! A comparison of durable writes of 1 KiB with etcd: three replicas of each, on the same disk of
//! the same machine.
//!
//! The same writers write to both systems through their public APIs. They use the same number of
//! connections, spread over all replicas. Chancery receives manifests and validates them as usual.
//! A round consists of the disk alone, one writer on each system, and many writers on each system.
//! The latency of one writer is compared with the disk in the same round. The throughput is
//! compared with etcd in the same round.

mod args;
mod kv;
mod report;
mod turn;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail, ensure};

use crate::{
    author::Author,
    cluster::Cluster,
    common::Common,
    host,
    report::{Findings, say},
    stats::count,
};
pub(crate) use args::Args;
use kv::{Etcd, Kv};
use report::Round;
use turn::{Subject, VALUE_BYTES, Writer};

pub(crate) async fn run(args: &Args, common: &Common, dir: &Path) -> Result<Findings> {
    ensure!(
        args.replicas > 0 && args.writers > 0 && args.rounds > 0,
        "--replicas, --writers and --rounds must be above 0"
    );
    ensure!(args.connections >= args.replicas, "--connections must be at least --replicas");
    ensure!(args.seconds > 0.0, "--seconds must be greater than 0");
    let binary = binary(args)?;
    let cluster = Cluster::start(common, dir, args.replicas, "").await?;
    let etcd = Etcd::start(&binary, &dir.join("etcd"), args.replicas).await?;
    say!("{} replicas of each system accept writes", args.replicas);
    let subjects = [ours(args, &cluster).await?, theirs(args, &etcd).await?];
    let mut rounds = Vec::new();
    for round in 0..args.rounds {
        let over_ms = host::fdatasync(dir, host::Place::Over)?;
        let append_ms = host::fdatasync(dir, host::Place::Append)?;
        let mut turns = Vec::new();
        for subject in &subjects {
            let one = subject.turn(1, args.seconds / 2.0, &cluster).await?;
            turns.push((one, subject.turn(args.writers, args.seconds, &cluster).await?));
        }
        let shown: Vec<String> = subjects
            .iter()
            .zip(&turns)
            .map(|(subject, (_, many))| {
                format!("{} {:.0} writes/s", subject.name, many.writes_per_second)
            })
            .collect();
        say!("round {} of {}: {}", round + 1, args.rounds, shown.join(", "));
        rounds.push(Round {
            over_ms: median_ms(over_ms)?,
            append_ms: median_ms(append_ms)?,
            turns,
        });
    }
    check_values(args, &cluster).await?;
    report::findings(args, &version(&binary)?, &rounds)
}

fn binary(args: &Args) -> Result<PathBuf> {
    if let Some(path) = &args.etcd {
        return Ok(path.clone());
    }
    let path = PathBuf::from("/usr/bin/etcd");
    if !path.is_file() {
        bail!(
            "cannot find /usr/bin/etcd; install it (Debian: apt-get install -y etcd-server) or pass --etcd"
        );
    }
    Ok(path)
}

/// Checks the size of the values, without which the comparison would not be valid.
async fn check_values(args: &Args, cluster: &Cluster) -> Result<()> {
    let Some(server) = cluster.servers().next() else { return Ok(()) };
    let (bytes, n) = Author::connect(server.admin).await?.payload().await?;
    let wanted = count(VALUE_BYTES) * n;
    ensure!(
        args.endpoints || bytes == wanted,
        "{n} resources have {bytes} bytes instead of {wanted}"
    );
    Ok(())
}

async fn ours(args: &Args, cluster: &Cluster) -> Result<Subject> {
    let admin: Vec<_> = cluster.ports().iter().map(|ports| ports.admin).collect();
    let mut writers = Vec::new();
    for address in admin.iter().cycle().take(args.connections) {
        let author = Author::connect(*address).await?;
        writers.push(Writer::Chancery { author, has_endpoints: args.endpoints });
    }
    let processes = cluster.servers().map(crate::server::Server::process).collect();
    Ok(Subject { name: "chancery", writers, processes })
}

async fn theirs(args: &Args, etcd: &Etcd) -> Result<Subject> {
    let mut writers = Vec::new();
    for address in etcd.clients.iter().cycle().take(args.connections) {
        writers.push(Writer::Etcd(Kv::connect(*address).await?));
    }
    Ok(Subject { name: "etcd", writers, processes: etcd.processes() })
}

fn median_ms(times: Vec<std::time::Duration>) -> Result<f64> {
    let latencies = crate::stats::Latencies::of(times);
    latencies
        .map(|latencies| latencies.p50_ms)
        .ok_or_else(|| anyhow::anyhow!("no sync was measured"))
}

/// Returns the first line of `etcd --version`.
fn version(etcd: &Path) -> Result<String> {
    let output = Command::new(etcd).arg("--version").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or("etcd of unknown version").to_owned())
}
