//! Durable writes of 1 KiB, in turns with etcd: three replicas each, on the same disk of the same machine.
//!
//! Both are written through their public API, by the same writers over as many connections, spread over
//! all replicas; ours takes a manifest and admits it as any other. A round is: the disk alone, one writer
//! on each, many writers on each. One writer's latency is set against that of the disk in the same round,
//! the throughput against that of etcd in the same round.

mod kv;
mod report;
mod turn;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail, ensure};

use crate::{
    Common,
    author::Author,
    cluster::Cluster,
    host,
    report::{Findings, say},
    stats::count,
};
use kv::{Etcd, Kv};
use turn::{Subject, Turn, VALUE_BYTES, Writer};

/// Durable writes of 1 KiB, in turns with etcd.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Replicas of each.
    #[arg(long, default_value_t = 3)]
    replicas: usize,
    /// Writers at a time.
    #[arg(long, default_value_t = 1000)]
    writers: usize,
    /// Connections that they share, over all replicas.
    #[arg(long, default_value_t = 48)]
    connections: usize,
    /// Seconds that each writes in a turn.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The etcd binary [default: the one of Debian's package etcd-server].
    #[arg(long, value_name = "PATH")]
    etcd: Option<PathBuf>,
    /// Write clusters of 24 endpoints, about as large, rather than clusters with few fields.
    #[arg(long)]
    endpoints: bool,
    /// How many times as many writes per second as etcd there have to be.
    #[arg(long, default_value_t = 3.0)]
    ratio_min: f64,
    /// Seconds that the slowest write may take.
    #[arg(long, default_value_t = 0.25)]
    slowest_max: f64,
    /// How many times as long as the disk takes for itself one writer may wait.
    #[arg(long, default_value_t = 1.3)]
    fsync_ratio_max: f64,
}

/// What one round showed.
struct Round {
    /// Median of the disk alone, in milliseconds: a block written over, and one appended.
    over_ms: f64,
    append_ms: f64,
    /// Of each subject in order: one writer, many writers.
    turns: Vec<(Turn, Turn)>,
}

impl Args {
    pub(crate) async fn run(&self, common: &Common, dir: &Path) -> Result<Findings> {
        ensure!(self.replicas > 0 && self.writers > 0 && self.rounds > 0, "there is nothing to do");
        ensure!(self.connections >= self.replicas, "--connections: at least one to each replica");
        ensure!(self.seconds > 0.0, "--seconds: there is nothing to do");
        let binary = self.binary()?;
        let cluster = Cluster::start(common, dir, self.replicas, "").await?;
        let etcd = Etcd::start(&binary, &dir.join("etcd"), self.replicas).await?;
        say!("{} replicas of each take writes", self.replicas);
        let subjects = [self.ours(&cluster).await?, self.theirs(&etcd).await?];
        let mut rounds = Vec::new();
        for round in 0..self.rounds {
            let over_ms = host::fdatasync(dir, host::Place::Over)?;
            let append_ms = host::fdatasync(dir, host::Place::Append)?;
            let mut turns = Vec::new();
            for subject in &subjects {
                let one = subject.turn(1, self.seconds / 2.0, &cluster).await?;
                turns.push((one, subject.turn(self.writers, self.seconds, &cluster).await?));
            }
            let shown: Vec<String> = subjects
                .iter()
                .zip(&turns)
                .map(|(subject, (_, many))| {
                    format!("{} {:.0} writes/s", subject.name, many.writes_per_second)
                })
                .collect();
            say!("round {} of {}: {}", round + 1, self.rounds, shown.join(", "));
            rounds.push(Round {
                over_ms: median_ms(over_ms)?,
                append_ms: median_ms(append_ms)?,
                turns,
            });
        }
        self.check_values(&cluster).await?;
        self.findings(&version(&binary)?, &rounds)
    }

    fn binary(&self) -> Result<PathBuf> {
        if let Some(path) = &self.etcd {
            return Ok(path.clone());
        }
        let path = PathBuf::from("/usr/bin/etcd");
        if !path.is_file() {
            bail!("there is no etcd to compare with; on Debian: apt-get install -y etcd-server");
        }
        Ok(path)
    }

    /// Values of another size would be another test.
    async fn check_values(&self, cluster: &Cluster) -> Result<()> {
        let Some(server) = cluster.servers().next() else { return Ok(()) };
        let (bytes, n) = Author::connect(server.admin).await?.payload().await?;
        let wanted = count(VALUE_BYTES) * n;
        ensure!(
            self.endpoints || bytes == wanted,
            "{n} resources have {bytes} bytes rather than {wanted}"
        );
        Ok(())
    }

    async fn ours(&self, cluster: &Cluster) -> Result<Subject> {
        let admin: Vec<_> = cluster.ports().iter().map(|ports| ports.admin).collect();
        let mut writers = Vec::new();
        for address in admin.iter().cycle().take(self.connections) {
            let author = Author::connect(*address).await?;
            writers.push(Writer::Chancery { author, has_endpoints: self.endpoints });
        }
        let processes = cluster.servers().map(crate::server::Server::process).collect();
        Ok(Subject { name: "chancery", writers, processes })
    }

    async fn theirs(&self, etcd: &Etcd) -> Result<Subject> {
        let mut writers = Vec::new();
        for address in etcd.clients.iter().cycle().take(self.connections) {
            writers.push(Writer::Etcd(Kv::connect(*address).await?));
        }
        Ok(Subject { name: "etcd", writers, processes: etcd.processes() })
    }
}

fn median_ms(times: Vec<std::time::Duration>) -> Result<f64> {
    let latencies = crate::stats::Latencies::of(times);
    latencies.map(|latencies| latencies.p50_ms).ok_or_else(|| anyhow::anyhow!("no sync was made"))
}

/// The first line of what it says of itself.
fn version(etcd: &Path) -> Result<String> {
    let output = Command::new(etcd).arg("--version").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or("of unknown version").to_owned())
}
