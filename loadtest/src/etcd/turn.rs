//! One turn: a number of writers writes to one system for some time.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use tokio::task::JoinSet;

use super::kv::Kv;
use crate::{
    author::Author,
    cluster::Cluster,
    host::HostTime,
    process::{CpuTime, Process},
    resource,
    stats::{count, float},
};

/// The number of keys that each writer changes in turn.
const KEYS: u64 = 4;
/// The length of a value in bytes.
pub(super) const VALUE_BYTES: usize = 1024;
/// The first generation. All generations have the same number of digits, and therefore of bytes.
const FIRST_GENERATION: u64 = 100_000_000_000;
const FSYNCS: &str = "chancery_store_fsyncs_total";

/// A connection to one of the systems.
#[derive(Debug, Clone)]
pub(super) enum Writer {
    Chancery { author: Author, has_endpoints: bool },
    Etcd(Kv),
}

/// One of the two systems.
#[derive(Debug)]
pub(super) struct Subject {
    pub(super) name: &'static str,
    /// One writer for each connection.
    pub(super) writers: Vec<Writer>,
    pub(super) processes: Vec<Process>,
}

/// The measurements of one turn.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) writes_per_second: f64,
    pub(super) latencies: Vec<Duration>,
    /// Microseconds of CPU per write, for all replicas together.
    pub(super) cpu_us: f64,
    /// Microseconds of CPU per write, for this program.
    pub(super) own_cpu_us: f64,
    /// The CPUs that other processes used.
    pub(super) others: f64,
    /// Syncs of all Chancery replicas together, per write.
    pub(super) fsyncs: f64,
}

impl Subject {
    pub(super) async fn turn(
        &self,
        writers: usize,
        seconds: f64,
        cluster: &Cluster,
    ) -> Result<Turn> {
        let fsyncs = fsyncs(cluster).await?;
        let cpu = self.cpu_time()?;
        let own = Process::own().cpu_time()?;
        let host = HostTime::now()?;
        let start = Instant::now();
        let until = start + Duration::from_secs_f64(seconds);
        let mut tasks = JoinSet::new();
        for (writer, connection) in self.writers.iter().cycle().take(writers).enumerate() {
            tasks.spawn(connection.clone().run(writer, until));
        }
        let mut latencies = Vec::new();
        while let Some(times) = tasks.join_next().await {
            latencies.extend(times?.with_context(|| format!("write to {}", self.name))?);
        }
        let elapsed = start.elapsed().as_secs_f64();
        let cpu =
            self.cpu_time()?.iter().zip(cpu).map(|(now, then)| *now - then).collect::<Vec<_>>();
        let own = Process::own().cpu_time()? - own;
        let ours: Vec<CpuTime> = cpu.iter().copied().chain([own]).collect();
        let others = HostTime::now()?.others_since(host, &ours);
        let writes = float(count(latencies.len()));
        ensure!(writes > 0.0, "no write to {} was acknowledged", self.name);
        let micros = |time: Duration| time.as_secs_f64() * 1e6 / writes;
        Ok(Turn {
            writes_per_second: writes / elapsed,
            latencies,
            cpu_us: micros(cpu.iter().map(|time| time.total()).sum()),
            own_cpu_us: micros(own.total()),
            others,
            fsyncs: (self::fsyncs(cluster).await? - fsyncs) / writes,
        })
    }

    fn cpu_time(&self) -> Result<Vec<CpuTime>> {
        self.processes.iter().map(|process| process.cpu_time()).collect()
    }
}

async fn fsyncs(cluster: &Cluster) -> Result<f64> {
    let mut sum = 0.0;
    for server in cluster.servers() {
        sum += server.metrics().await?.sum(FSYNCS)?;
    }
    Ok(sum)
}

impl Writer {
    /// Writes in sequence until the deadline. Returns the duration of each write.
    async fn run(mut self, writer: usize, until: Instant) -> Result<Vec<Duration>> {
        let mut times = Vec::new();
        // Each turn writes other values, because an equal value would not be a change.
        let elapsed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
        let mut generation =
            FIRST_GENERATION + u64::try_from(elapsed.as_micros())? % FIRST_GENERATION;
        while Instant::now() < until {
            generation += 1;
            let n = writer * 10 + usize::try_from(generation % KEYS)?;
            let start = Instant::now();
            match &mut self {
                Self::Chancery { author, has_endpoints } => {
                    let cluster = if *has_endpoints {
                        resource::cluster(n, generation).to_string()
                    } else {
                        resource::flat_cluster(n, generation, VALUE_BYTES)
                    };
                    let manifest =
                        format!(r#"{{"scope":"{}","resources":[{cluster}]}}"#, resource::SCOPE);
                    let written = author.apply_text(manifest).await?;
                    ensure!(written.changed == 1, "a write changed {} resources", written.changed);
                }
                Self::Etcd(kv) => {
                    let text = format!("{generation:x<VALUE_BYTES$}");
                    kv.put(&resource::name(n), Bytes::from(text)).await?;
                }
            }
            times.push(start.elapsed());
        }
        Ok(times)
    }
}
