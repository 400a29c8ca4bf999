//! Expensive requests: their effect on the server's memory and on other clients.
//!
//! Each kind of request comes from several connections at once, repeatedly for some seconds.
//! Meanwhile an author changes clusters, a healthy client waits for the changes, and a task
//! requests `/healthz`. RSS is read every 10 ms. The kinds run one after the other on the same
//! server, so that memory that is never freed becomes visible.
//!
//! The attackers run in a separate process, which takes CPU from the server and from the healthy
//! client. A second server separates this effect. A round of a kind has three parts: idle, the
//! attack on the second server ("elsewhere"), and the attack on the measured server.
//!
//! With `--cgroup-bytes` the measured server runs in a control group with this memory limit. The
//! kernel kills the server if it exceeds the limit.

use std::{
    fmt::Write as _,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum as _;
use serde::Serialize;
use tokio::time::sleep;

use crate::{
    author::Author,
    common::Common,
    hostile::{arrivals::Arrivals, clients::Clients, updates::Updates},
    process::Process,
    random::Random,
    report::{Findings, Gate, say},
    server::{self, Launch, Server},
    stats::{Spread, float},
    worker::{Order, Worker},
};

pub(crate) mod load;
mod payload;

use load::{Load, Outcomes, Request};
use payload::Kind;

const SYNC: Duration = Duration::from_secs(120);
const SAMPLE: Duration = Duration::from_millis(10);
/// The time after each part, in which memory falls and work ends.
const AFTER: Duration = Duration::from_secs(5);
const MIB: f64 = 1_048_576.0;
const TURNS: &str = "chancery_xds_shard_turn_seconds";

/// Send expensive requests and measure memory and the latency of a healthy client
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Kinds of requests [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    kinds: Vec<Kind>,
    /// Rounds of all kinds
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Concurrent attacking connections
    #[arg(long, default_value_t = 8)]
    connections: usize,
    /// Streams per connection, opened in turn
    #[arg(long, default_value_t = 2)]
    streams: usize,
    /// Bytes of a request, for kinds without a fixed number of names
    #[arg(long, default_value_t = 64 << 20)]
    bytes: usize,
    /// Seconds of an attack
    #[arg(long, default_value_t = 6.0)]
    seconds: f64,
    /// Seconds for which the streams of a connection stay open after their answers
    #[arg(long, default_value_t = 0.5)]
    hold_seconds: f64,
    /// Seconds of quiet time before each attack
    #[arg(long, default_value_t = 5.0)]
    idle_seconds: f64,
    /// Let each connection begin with a stream that acknowledges all clusters, as an established
    /// client does
    #[arg(long)]
    established: bool,
    /// The `nice` value of the attacking process
    #[arg(long, default_value_t = 0)]
    nice: i32,
    /// Clusters of about 1 KB
    #[arg(long, default_value_t = 1000)]
    resources: usize,
    /// Updates of one cluster per second
    #[arg(long, default_value_t = 100)]
    updates_per_second: u32,
    /// Content of the servers' configuration files
    #[arg(long, default_value = "")]
    config: String,
    /// Memory limit of the measured server in bytes, as a control group; needs root
    #[arg(long)]
    cgroup_bytes: Option<u64>,
    /// Maximum growth of RSS over the idle server, in MiB; the default is twice the default budgets
    #[arg(long, default_value_t = 2560.0)]
    growth_mib_max: f64,
    /// Maximum ratio of the healthy client's p99 in an attack to that in the attack elsewhere
    #[arg(long, default_value_t = 2.0)]
    ratio_max: f64,
}

/// The target of an attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Part {
    Idle,
    Elsewhere,
    Here,
}

/// The measurements of one part of a round.
#[derive(Debug, Serialize)]
struct Row {
    kind: String,
    part: Part,
    /// The highest RSS in MiB.
    peak_mib: f64,
    /// RSS in MiB some seconds after the attackers have left.
    after_mib: f64,
    /// The latency of the healthy client, from the time when an update was due to its arrival.
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    updates: u64,
    healthz_max_ms: f64,
    /// The upper bound of the longest turn of a shard.
    turn_max_ms: f64,
    /// The CPUs that the measured server used, and those for which its runnable threads waited.
    cpus: f64,
    cpus_waited_for: f64,
    outcomes: Outcomes,
}

/// The samples of one part.
#[derive(Debug, Default)]
struct Samples {
    stop: AtomicBool,
    peak: AtomicU64,
    healthz_micros: AtomicU64,
}

/// A control group with a memory limit. Dropping it removes the group when its processes have
/// ended.
#[derive(Debug)]
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(bytes: u64) -> Result<Self> {
        let name = format!("chancery-loadtest-{}", std::process::id());
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let (dir, limit) = if v1.is_dir() {
            (v1.join(name), "memory.limit_in_bytes")
        } else {
            (Path::new("/sys/fs/cgroup").join(name), "memory.max")
        };
        fs::create_dir(&dir).with_context(|| format!("create {}", dir.display()))?;
        let group = Self(dir);
        fs::write(group.0.join(limit), bytes.to_string()).context("limit a control group")?;
        Ok(group)
    }

    fn add(&self, process: Process) -> Result<()> {
        let path = self.0.join("cgroup.procs");
        fs::write(path, process.id().to_string()).context("add the server to a control group")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A process that was just killed may still be in the group.
        for _ in 0..50 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The state of a run.
struct Run<'a> {
    args: &'a Args,
    server: Server,
    other: Server,
    arrivals: Arc<Arrivals>,
    worker: Worker,
}

impl Args {
    pub(crate) async fn run(&self, common: &Common, dir: &Path) -> Result<Findings> {
        ensure!(
            self.rounds > 0 && self.connections > 0,
            "--rounds and --connections must be greater than 0"
        );
        let group = self.cgroup_bytes.map(Cgroup::new).transpose()?;
        let start = async |name: &str| -> Result<(Server, Author)> {
            let launch = Launch::new(&common.binary, &dir.join(name), None, &self.config)?;
            let server = launch.start().await?;
            let mut author = Author::connect(server.admin).await?;
            author.load(0, self.resources).await?;
            Ok((server, author))
        };
        let (server, mut author) = start("measured").await?;
        if let Some(group) = &group {
            group.add(server.process())?;
        }
        let (other, _) = start("other").await?;
        let revision = author.cluster().await.context("read the revision")?.revision;
        let arrivals = Arc::new(Arrivals::new(revision));
        let healthy = Clients::healthy(server.xds, &arrivals, 1, self.resources).await?;
        healthy.synced(SYNC).await?;
        let updates = Updates::start(
            author,
            Arc::clone(&arrivals),
            self.updates_per_second,
            self.resources,
            Random::new(1),
        );
        sleep(Duration::from_secs(2)).await;
        let idle_rss = rss_mib(&server)?;
        let mut run =
            Run { args: self, server, other, arrivals, worker: Worker::start(self.nice)? };
        let kinds = if self.kinds.is_empty() { Kind::value_variants() } else { &self.kinds };
        let mut rows = Vec::new();
        for round in 1..=self.rounds {
            for kind in kinds {
                rows.extend(run.kind(*kind).await?);
            }
            say!("round {round} of {}", self.rounds);
        }
        let written = updates.stop().await?;
        let wrong = healthy.wrong();
        drop(healthy);
        run.server.kill().await?;
        run.other.kill().await?;
        self.findings(idle_rss, &rows, written.failed, wrong)
    }

    fn findings(&self, idle_rss: f64, rows: &[Row], failed: u64, wrong: u64) -> Result<Findings> {
        let mut text = String::new();
        writeln!(
            text,
            "{} connections with {} streams each; RSS of the idle server {idle_rss:.0} MiB",
            self.connections, self.streams
        )?;
        let mut kinds: Vec<&str> = Vec::new();
        for row in rows {
            if !kinds.contains(&row.kind.as_str()) {
                kinds.push(&row.kind);
            }
        }
        let mut here_to_elsewhere = 0.0_f64;
        for kind in kinds {
            here_to_elsewhere = here_to_elsewhere.max(write_kind(&mut text, kind, rows)?);
        }
        let last = rows.iter().rfind(|row| row.part == Part::Here);
        let left = last.map_or(0.0, |row| row.after_mib - idle_rss);
        let peak = rows.iter().map(|row| row.peak_mib).fold(0.0, f64::max) - idle_rss;
        let gates = vec![
            Gate::at_most("growth of RSS under attack, in MiB", peak, self.growth_mib_max),
            Gate::at_most(
                "p99 of the healthy client, ratio to the attack elsewhere, worst kind",
                here_to_elsewhere,
                self.ratio_max,
            ),
            Gate::at_most(
                "growth of RSS that remains 5 s after the last attack, in MiB",
                left,
                100.0,
            ),
            Gate::none("writes that failed", failed),
            Gate::none("healthy streams that failed or received wrong resources", wrong),
        ];
        let data = serde_json::json!({"idle_rss_mib": idle_rss, "rows": rows});
        Ok(Findings { text, data, gates })
    }
}

impl Run<'_> {
    /// Runs one round of a kind.
    async fn kind(&mut self, kind: Kind) -> Result<[Row; 3]> {
        let name = kind.to_possible_value().map(|it| it.get_name().to_owned());
        let name = name.unwrap_or_default();
        let request = Request { kind, bytes: self.args.bytes };
        self.worker.ask::<()>(&Order::Prepare(request)).await?;
        let idle = self.part(&name, Part::Idle).await?;
        let elsewhere = self.part(&name, Part::Elsewhere).await?;
        let here = self.part(&name, Part::Here).await;
        let here = here.with_context(|| format!("the server did not survive {name}"))?;
        say!("{name}: peak {:.0} MiB, p99 {:.1} ms", here.peak_mib, here.p99_ms);
        Ok([idle, elsewhere, here])
    }

    async fn attack(&mut self, xds: SocketAddr) -> Result<Outcomes> {
        let Args { connections, streams, seconds, hold_seconds, established, .. } = *self.args;
        let load = Load { xds, connections, streams, seconds, hold_seconds, established };
        self.worker.ask(&Order::Attack(load)).await
    }

    /// Measures one part. Memory and shard turns are sampled for some seconds beyond its end.
    async fn part(&mut self, kind: &str, part: Part) -> Result<Row> {
        let samples = Arc::new(Samples::default());
        let (process, admin) = (self.server.process(), self.server.admin);
        let of_rss = Arc::clone(&samples);
        let rss = std::thread::spawn(move || {
            while !of_rss.stop.load(Ordering::Relaxed) {
                if let Ok(memory) = process.memory() {
                    of_rss.peak.fetch_max(memory.rss, Ordering::Relaxed);
                }
                std::thread::sleep(SAMPLE);
            }
        });
        let of_health = Arc::clone(&samples);
        let health = tokio::spawn(async move {
            while !of_health.stop.load(Ordering::Relaxed) {
                let since = Instant::now();
                // Other measurements detect a server that has ended.
                let _answer = server::get(admin, "/healthz").await;
                let micros = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
                of_health.healthz_micros.fetch_max(micros, Ordering::Relaxed);
                sleep(SAMPLE).await;
            }
        });
        let metrics = self.server.metrics().await?;
        let (cpu, waited) = process.run_and_wait()?;
        let (measured_part, since) = (self.arrivals.begin(), Instant::now());
        let outcomes = match part {
            Part::Idle => {
                sleep(Duration::try_from_secs_f64(self.args.idle_seconds)?).await;
                Ok(Outcomes::new())
            }
            Part::Elsewhere => self.attack(self.other.xds).await,
            Part::Here => self.attack(self.server.xds).await,
        };
        self.arrivals.end();
        let seconds = since.elapsed().as_secs_f64();
        let (cpu_after, waited_after) = process.run_and_wait()?;
        sleep(AFTER).await;
        let after_mib = rss_mib(&self.server)?;
        samples.stop.store(true, Ordering::Relaxed);
        drop(rss.join());
        drop(health.await);
        let outcomes = outcomes?;
        let turn = self.server.metrics().await?.quantile_since(&metrics, TURNS, "", 1.0)?;
        let times = self.arrivals.times(measured_part);
        let ms = |micros: u64| float(micros) / 1e3;
        Ok(Row {
            kind: kind.to_owned(),
            part,
            peak_mib: float(samples.peak.load(Ordering::Relaxed)) / MIB,
            after_mib,
            p50_ms: ms(times.value_at_quantile(0.5)),
            p99_ms: ms(times.value_at_quantile(0.99)),
            max_ms: ms(times.value_at_quantile(1.0)),
            updates: times.len(),
            healthz_max_ms: ms(samples.healthz_micros.load(Ordering::Relaxed)),
            turn_max_ms: turn.unwrap_or(0.0) * 1e3,
            cpus: (cpu_after.saturating_sub(cpu)).as_secs_f64() / seconds,
            cpus_waited_for: (waited_after.saturating_sub(waited)).as_secs_f64() / seconds,
            outcomes,
        })
    }
}

/// Writes the measurements of a kind. Returns the ratio of the healthy client's p99 in the attack to
/// that in the attack elsewhere.
fn write_kind(text: &mut String, kind: &str, rows: &[Row]) -> Result<f64> {
    let of = |part, what: fn(&Row) -> f64| -> Vec<f64> {
        let rows = rows.iter().filter(|row| row.kind == kind && row.part == part);
        rows.map(what).collect()
    };
    let spread = |values: &[f64]| Spread::of(values).context("there are no rounds");
    let most = |what| of(Part::Here, what).into_iter().fold(0.0, f64::max);
    writeln!(
        text,
        "{kind}: RSS at most {:.0} MiB, {:.0} MiB afterwards; /healthz at most {:.0} ms",
        most(|row| row.peak_mib),
        most(|row| row.after_mib),
        most(|row| row.healthz_max_ms),
    )?;
    for part in [Part::Idle, Part::Elsewhere, Part::Here] {
        writeln!(
            text,
            "  {part:?}: p50 {:.1}, p99 {:.1}, max {:.1} ms; longest turn below {:.1} ms; \
             the server had {:.2} CPUs and waited for {:.2} more",
            spread(&of(part, |row| row.p50_ms))?,
            spread(&of(part, |row| row.p99_ms))?,
            spread(&of(part, |row| row.max_ms))?,
            spread(&of(part, |row| row.turn_max_ms))?,
            spread(&of(part, |row| row.cpus))?,
            spread(&of(part, |row| row.cpus_waited_for))?,
        )?;
    }
    let p99 = |part| of(part, |row| row.p99_ms);
    let ratio = |to| {
        let ratios = p99(Part::Here).into_iter().zip(p99(to)).map(|(a, b)| a / b);
        spread(&ratios.collect::<Vec<_>>())
    };
    let elsewhere = ratio(Part::Elsewhere)?;
    writeln!(text, "  p99 here, to idle {}, to elsewhere {elsewhere}", ratio(Part::Idle)?)?;
    let mut outcomes = Outcomes::new();
    for row in rows.iter().filter(|row| row.kind == kind && row.part == Part::Here) {
        for (outcome, n) in &row.outcomes {
            *outcomes.entry(outcome.clone()).or_default() += n;
        }
    }
    let outcomes: Vec<String> = outcomes.iter().map(|(it, n)| format!("{n}: {it}")).collect();
    writeln!(text, "  streams: {}", outcomes.join("; "))?;
    Ok(elsewhere.median)
}

fn rss_mib(server: &Server) -> Result<f64> {
    let rss = server.process().memory().context("read the memory of the server")?.rss;
    Ok(float(rss) / MIB)
}
