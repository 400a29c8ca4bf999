//! A large transaction: its effect on the clients of another scope and on other writers, and its memory.
//!
//! Two servers run. Clients watch one of them, where an author changes one cluster at each tick. A round has
//! three parts: idle, a large transaction at the other server (the control), and the same transaction at the
//! measured server. The ratio of the last two is the effect of the server; the control takes the same CPUs.
//! No watching client sees the scope of the large transaction. With `--secrets`, the transaction consists of secrets,
//! which the servers seal.
//!
//! Times are measured from when an update was due: to its answer (writes), and to its arrival at each client
//! (pushes).

use std::{
    fmt::{self, Write as _},
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::{
    task::spawn_blocking,
    time::{interval, sleep},
};

use crate::{
    author::Author,
    common::Common,
    hostile::{arrivals::Arrivals, clients::Clients, updates::Updates},
    process::Process,
    random::Random,
    report::{Findings, Gate, say},
    resource,
    server::{Launch, Server},
    stats::{Spread, count, float},
};

const PATIENCE: Duration = Duration::from_secs(120);
/// The pause after a part, so that its remaining work is measured in no part.
const SETTLE: Duration = Duration::from_millis(1500);
/// The interval of looks at the memory.
const LOOK: Duration = Duration::from_millis(20);
/// The scope of the large transactions, which no client sees.
const SCOPE: &str = "loadtest/bulk";
/// The line of the key file of both servers: 32 bytes in base64.
const KEY: &str = "bG9hZHRlc3QgbG9hZHRlc3QgbG9hZHRlc3QgbG9hZDA=";
const MIB: f64 = 1_048_576.0;

/// Publish many clusters or secrets at once and measure pushes of another scope, writes and memory
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Clusters in the large transaction
    #[arg(long, default_value_t = 100_000)]
    clusters: usize,
    /// Publish N sealed secrets instead of clusters [default N: 50000]
    ///
    /// Each is a generic secret with 1026 random bytes. Both servers have a key file.
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        default_missing_value = "50000",
        conflicts_with = "clusters"
    )]
    secrets: Option<usize>,
    /// Clients that receive each update
    #[arg(long, default_value_t = 50)]
    clients: usize,
    /// Clusters of about 1 KB that these clients see
    #[arg(long, default_value_t = 100)]
    resources: usize,
    /// Updates of one cluster per second
    #[arg(long, default_value_t = 40)]
    updates_per_second: u32,
    /// Rounds of idle, control, large transaction
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of the idle part of a round
    #[arg(long, default_value_t = 5.0)]
    idle_seconds: f64,
    /// Maximum ratio of the p99 of pushes during a large transaction to that of the control
    #[arg(long, default_value_t = 2.0)]
    ratio_max: f64,
    /// Maximum growth of the server's memory during a large transaction, in bytes per byte of the manifest
    #[arg(long, default_value_t = 20.0)]
    growth_max: f64,
}

/// The resources of the large transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Bulk {
    Clusters(usize),
    /// Sealed secrets.
    Secrets(usize),
}

/// The kinds of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Idle,
    /// A large transaction at the other server.
    Elsewhere,
    Here,
}

/// The measurements of one part.
#[derive(Debug, Clone, Serialize)]
struct Part {
    kind: Kind,
    seconds: f64,
    push_p50_ms: f64,
    push_p99_ms: f64,
    push_max_ms: f64,
    pushes: u64,
    write_p99_ms: f64,
    write_max_ms: f64,
    writes: u64,
    /// The highest RSS in MiB, and RSS at the start.
    peak_mib: f64,
    start_mib: f64,
}

/// A measured value of a part.
type Quantity = fn(&Part) -> f64;

struct Run {
    server: Server,
    _other: Server,
    here: Author,
    elsewhere: Author,
    arrivals: Arc<Arrivals>,
    clients: Clients,
    updates: Updates,
}

impl Args {
    pub(crate) async fn run(&self, common: &Common, dir: &Path) -> Result<Findings> {
        ensure!(
            self.rounds > 0 && self.clients > 0 && self.bulk().len() > 0,
            "--rounds, --clients, --clusters and --secrets must be greater than 0"
        );
        ensure!(
            self.updates_per_second > 0 && self.resources > 0,
            "--updates-per-second and --resources must be greater than 0"
        );
        let idle = Duration::try_from_secs_f64(self.idle_seconds)?;
        let mut run = self.start(common, dir).await?;
        let mut parts = Vec::new();
        let mut manifest_bytes = 0;
        for round in 1..=self.rounds {
            for kind in [Kind::Idle, Kind::Elsewhere, Kind::Here] {
                // The clients of this process must not wait for the manifest.
                let bulk = self.bulk();
                let manifest = spawn_blocking(move || bulk.manifest(count(round))).await?;
                manifest_bytes = manifest.len();
                sleep(SETTLE).await;
                parts.push(run.part(kind, idle, manifest).await?);
            }
            say!("round {round} of {}", self.rounds);
        }
        let written = run.updates.stop().await?;
        ensure!(written.failed == 0, "{} writes failed: {:?}", written.failed, written.error);
        let complaints = run.clients.complaints();
        ensure!(complaints.is_empty(), "a client failed: {}", complaints.join("; "));
        let mut findings = self.findings(&parts, manifest_bytes)?;
        if let Bulk::Secrets(n) = self.bulk() {
            let sealed = run.server.metrics().await?.sum("chancery_secrets_sealed")?;
            findings.gates.push(Gate::at_least("sealed secrets", sealed, float(count(n))));
        }
        Ok(findings)
    }

    fn bulk(&self) -> Bulk {
        self.secrets.map_or(Bulk::Clusters(self.clusters), Bulk::Secrets)
    }

    async fn start(&self, common: &Common, dir: &Path) -> Result<Run> {
        let (server, mut here) = self.server(common, &dir.join("measured")).await?;
        let (other, elsewhere) = self.server(common, &dir.join("other")).await?;
        let revision = here.cluster().await.context("read the revision")?.revision;
        let arrivals = Arc::new(Arrivals::new(revision));
        let clients = Clients::healthy(server.xds, &arrivals, self.clients, self.resources).await?;
        clients.synced(PATIENCE).await?;
        // A connection of its own, so that no small write waits behind the bytes of a large one.
        let author = Author::connect(server.admin).await?;
        let (per_second, random) = (self.updates_per_second, Random::new(1));
        let updates =
            Updates::start(author, Arc::clone(&arrivals), per_second, self.resources, random);
        sleep(SETTLE).await;
        Ok(Run { server, _other: other, here, elsewhere, arrivals, clients, updates })
    }

    async fn server(&self, common: &Common, dir: &Path) -> Result<(Server, Author)> {
        let config = self.bulk().config(dir)?;
        let server = Launch::new(&common.binary, dir, None, &config)?.start().await?;
        let mut author = Author::connect(server.admin).await?;
        author.load(0, self.resources).await?;
        Ok((server, author))
    }

    fn findings(&self, parts: &[Part], manifest_bytes: usize) -> Result<Findings> {
        let mut text = String::new();
        let of = |kind, what: Quantity| -> Vec<f64> {
            parts.iter().filter(|part| part.kind == kind).map(what).collect()
        };
        let spread = |values: &[f64]| Spread::of(values).context("there are no rounds");
        let mib = float(count(manifest_bytes)) / MIB;
        writeln!(text, "{} at once, a manifest of {mib:.1} MiB", self.bulk())?;
        let mut gates = Vec::new();
        let quantities: [(&str, Quantity); 5] = [
            ("pushes p50", |part| part.push_p50_ms),
            ("pushes p99", |part| part.push_p99_ms),
            ("pushes max", |part| part.push_max_ms),
            ("writes p99", |part| part.write_p99_ms),
            ("writes max", |part| part.write_max_ms),
        ];
        for (name, what) in quantities {
            let [idle, elsewhere, here] =
                [Kind::Idle, Kind::Elsewhere, Kind::Here].map(|kind| of(kind, what));
            let ratio: Vec<f64> = here.iter().zip(&elsewhere).map(|(a, b)| a / b).collect();
            let ratio = spread(&ratio)?;
            writeln!(
                text,
                "{name}, ms: idle {:.1}; elsewhere {:.1}; here {:.1}; here to elsewhere {ratio:.2}",
                spread(&idle)?,
                spread(&elsewhere)?,
                spread(&here)?
            )?;
            if name == "pushes p99" {
                let what = "p99 of pushes in a large transaction, ratio to one elsewhere";
                gates.push(Gate::at_most(what, ratio.median, self.ratio_max));
            }
        }
        let seconds = spread(&of(Kind::Here, |part| part.seconds))?;
        writeln!(text, "until the large transaction was answered, s: {seconds:.2}")?;
        let peak = spread(&of(Kind::Here, |part| part.peak_mib))?;
        let growth = spread(&of(Kind::Here, |part| part.peak_mib - part.start_mib))?;
        writeln!(text, "peak RSS, MiB: {peak:.0}; growth during the transaction: {growth:.0}")?;
        let what = "growth of RSS per byte of the manifest";
        gates.push(Gate::at_most(what, growth.max / mib, self.growth_max));
        let data = serde_json::json!({
            "resources": self.bulk(),
            "manifest_bytes": manifest_bytes,
            "parts": parts,
        });
        Ok(Findings { text, data, gates })
    }
}

impl fmt::Display for Bulk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clusters(n) => write!(f, "{n} clusters"),
            Self::Secrets(n) => write!(f, "{n} sealed secrets"),
        }
    }
}

impl Bulk {
    fn len(self) -> usize {
        let (Self::Clusters(n) | Self::Secrets(n)) = self;
        n
    }

    /// Returns the manifest of a round. Rounds differ in every resource.
    fn manifest(self, round: u64) -> String {
        let resources: Vec<String> = match self {
            Self::Clusters(n) => (0..n).map(|n| resource::eds_cluster(n, round)).collect(),
            Self::Secrets(n) => {
                let mut random = Random::new(round);
                (0..n).map(|n| resource::secret(n, &mut random)).collect()
            }
        };
        format!(r#"{{"scope":"{SCOPE}","resources":[{}]}}"#, resources.join(","))
    }

    /// Returns the configuration of a server in this directory. A server of secrets gets its key file there, and accepts
    /// no secret that it cannot seal.
    fn config(self, dir: &Path) -> Result<String> {
        if matches!(self, Self::Clusters(_)) {
            return Ok(String::new());
        }
        std::fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        let path = dir.join("secrets.key");
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| writeln!(file, "{KEY}"))
            .with_context(|| format!("write {}", path.display()))?;
        Ok(format!("[secrets]\nkey_file = \"{}\"\nrequire = true\n", path.display()))
    }
}

impl Run {
    async fn part(&mut self, kind: Kind, idle: Duration, manifest: String) -> Result<Part> {
        let process = self.server.process();
        let start_mib = rss_mib(process)?;
        let (part, start) = (self.arrivals.begin(), Instant::now());
        let work = async {
            match kind {
                Kind::Idle => sleep(idle).await,
                Kind::Elsewhere => drop(self.elsewhere.apply_text(manifest).await?),
                Kind::Here => drop(self.here.apply_text(manifest).await?),
            }
            anyhow::Ok(())
        };
        let mut peak_mib = start_mib;
        let look = async {
            let mut ticks = interval(LOOK);
            loop {
                ticks.tick().await;
                peak_mib = rss_mib(process)?.max(peak_mib);
            }
        };
        let done: Result<()> = tokio::select! {
            done = work => done.context("publish the large transaction"),
            looked = look => looked,
        };
        done?;
        self.arrivals.end();
        let seconds = start.elapsed().as_secs_f64();
        // Writes in progress belong to the part.
        sleep(SETTLE).await;
        let (pushes, writes) = (self.arrivals.times(part), self.updates.times(part));
        Ok(Part {
            kind,
            seconds,
            push_p50_ms: ms(&pushes, 0.5),
            push_p99_ms: ms(&pushes, 0.99),
            push_max_ms: ms(&pushes, 1.0),
            pushes: pushes.len(),
            write_p99_ms: ms(&writes, 0.99),
            write_max_ms: ms(&writes, 1.0),
            writes: writes.len(),
            peak_mib,
            start_mib,
        })
    }
}

fn rss_mib(process: Process) -> Result<f64> {
    Ok(float(process.memory()?.rss) / MIB)
}

/// Returns a quantile of times in microseconds, converted to milliseconds.
fn ms(times: &Histogram<u64>, quantile: f64) -> f64 {
    float(times.value_at_quantile(quantile)) / 1e3
}
