//! Expensive requests: their effect on the server's memory and on other clients.
//!
//! Each kind of request comes from several connections at once, over and over again for some seconds. All the
//! time an author changes clusters and a healthy client waits for them, and `/healthz` is asked. RSS is read
//! every 10 ms. The kinds are tried one after the other on the same server, so that memory that does
//! not come back would show.
//!
//! With `--cgroup-bytes` the server is in a control group that allows no more memory: the kernel kills it if it
//! takes more.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use bytes::{Buf as _, Bytes};
use clap::ValueEnum as _;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::{task::JoinSet, time::sleep};

use crate::{
    Common,
    author::Author,
    host::Pinning,
    hostile::{board::Board, clients::Clients, updates::Updates},
    process::Process,
    random::Random,
    report::{Findings, Gate, say},
    server::{self, Launch, Server},
    stats::float,
    stream::{self, Windows},
};

mod payload;

use payload::Kind;

const SYNC: Duration = Duration::from_secs(120);
const SAMPLE: Duration = Duration::from_millis(10);
/// The time for memory to fall after the attackers have left.
const AFTER: Duration = Duration::from_secs(5);
const MIB: f64 = 1_048_576.0;

/// Sends expensive requests and measures memory and the latency of a healthy client.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Kinds of requests [default: all].
    #[arg(long, value_enum, value_delimiter = ',')]
    kinds: Vec<Kind>,
    /// Connections that attack at a time.
    #[arg(long, default_value_t = 8)]
    connections: usize,
    /// Streams per connection, opened in turn; streams that are not refused stay open.
    #[arg(long, default_value_t = 2)]
    streams: usize,
    /// Bytes of a request, for kinds without a fixed number of names.
    #[arg(long, default_value_t = 64 << 20)]
    bytes: usize,
    /// Seconds for which streams stay open after the last request was sent.
    #[arg(long, default_value_t = 5.0)]
    hold_seconds: f64,
    /// Seconds of quiet time that an attack is compared to.
    #[arg(long, default_value_t = 15.0)]
    idle_seconds: f64,
    /// Clusters.
    #[arg(long, default_value_t = 1000)]
    resources: usize,
    /// Updates of one cluster per second.
    #[arg(long, default_value_t = 50)]
    updates_per_second: u32,
    /// Content of the server's configuration file.
    #[arg(long, default_value = "")]
    config: String,
    /// Memory that the server may take, in bytes: a control group's limit. Needs root.
    #[arg(long)]
    cgroup_bytes: Option<u64>,
    /// Maximum growth of RSS over the idle server, in MiB: twice the configured budgets.
    #[arg(long, default_value_t = 2560.0)]
    growth_mib_max: f64,
    /// Largest ratio of the healthy client's p99 to that without an attack.
    #[arg(long, default_value_t = 2.0)]
    ratio_max: f64,
}

/// The measurements of one kind of request.
#[derive(Debug, Serialize)]
struct Row {
    kind: String,
    /// MiB of RSS, at most.
    peak_mib: f64,
    /// MiB of RSS some seconds after the attackers have left.
    after_mib: f64,
    /// The healthy client: from when an update was due to when it had it.
    p99_ms: f64,
    max_ms: f64,
    healthz_max_ms: f64,
    /// How the streams ended, or that they did not; with how many did.
    outcome: String,
}

/// Samples of one time.
#[derive(Debug, Default)]
struct Samples {
    stop: AtomicBool,
    peak: AtomicU64,
    healthz_micros: AtomicU64,
}

/// A control group with a limit on memory. Dropping it removes it, when its processes have ended.
#[derive(Debug)]
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(bytes: u64) -> Result<Self> {
        let name = format!("chancery-loadtest-{}", std::process::id());
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let (dir, limit) = match v1.is_dir() {
            true => (v1.join(name), "memory.limit_in_bytes"),
            false => (Path::new("/sys/fs/cgroup").join(name), "memory.max"),
        };
        fs::create_dir(&dir).with_context(|| format!("create {}", dir.display()))?;
        let group = Self(dir);
        fs::write(group.0.join(limit), bytes.to_string()).context("limit a control group")?;
        Ok(group)
    }

    fn add(&self, process: Process) -> Result<()> {
        let path = self.0.join("cgroup.procs");
        fs::write(path, process.id().to_string()).context("put the server into a control group")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A process that has just been killed may still be in it.
        for _ in 0..50 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Args {
    pub(crate) fn pinning(&self) -> Result<Pinning> {
        Ok(Pinning::NONE)
    }

    pub(crate) async fn run(&self, common: &Common, dir: &Path) -> Result<Findings> {
        let launch = Launch::new(&common.binary, dir, None, &self.config)?;
        let group = self.cgroup_bytes.map(Cgroup::new).transpose()?;
        let server = launch.start().await?;
        if let Some(group) = &group {
            group.add(server.process())?;
        }
        let mut author = Author::connect(server.admin).await?;
        author.load(0, self.resources).await?;
        let revision = author.cluster().await.context("read the revision")?.revision;
        let board = Arc::new(Board::new(revision));
        let healthy = Clients::healthy(server.xds, &board, 1, self.resources).await?;
        healthy.synced(SYNC).await?;
        let updates = Updates::start(
            author,
            Arc::clone(&board),
            self.updates_per_second,
            self.resources,
            Random::new(1),
        );
        sleep(Duration::from_secs(2)).await;
        let idle_rss = rss_mib(&server)?;
        let quiet = Duration::try_from_secs_f64(self.idle_seconds)?;
        let idle = self.during("idle", &server, &board, sleep(quiet)).await?;
        let kinds = if self.kinds.is_empty() { Kind::value_variants() } else { &self.kinds };
        let mut rows = Vec::new();
        for kind in kinds {
            let name = kind.to_possible_value().map(|it| it.get_name().to_owned());
            let name = name.unwrap_or_default();
            let message = kind.message(self.bytes);
            let outcome = Mutex::new(String::new());
            let row = self
                .during(&name, &server, &board, async {
                    *outcome.lock() = self.attack(*kind, &message, &server).await;
                })
                .await;
            let mut row = match row {
                Ok(row) => row,
                Err(error) => {
                    say!("{name}: {error:#}; {}", outcome.lock());
                    bail!("the server did not survive {name}: {error:#}");
                }
            };
            row.outcome = outcome.into_inner();
            sleep(AFTER).await;
            row.after_mib = rss_mib(&server).with_context(|| format!("after {name}"))?;
            say!("{name}: peak {:.0} MiB, {}", row.peak_mib, row.outcome);
            rows.push(row);
        }
        let written = updates.stop().await?;
        let wrong = healthy.wrong();
        drop(healthy);
        server.kill().await?;
        self.findings(idle_rss, idle, rows, written.failed, wrong)
    }

    /// Measures while something is done, and until the healthy client has what was written meanwhile.
    async fn during(
        &self,
        kind: &str,
        server: &Server,
        board: &Board,
        what: impl Future<Output = ()>,
    ) -> Result<Row> {
        let samples = Arc::new(Samples::default());
        let (process, admin) = (server.process(), server.admin);
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
                // A server that is gone shows elsewhere.
                let _answer = server::get(admin, "/healthz").await;
                let micros = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
                of_health.healthz_micros.fetch_max(micros, Ordering::Relaxed);
                sleep(SAMPLE).await;
            }
        });
        let part = board.begin();
        what.await;
        board.end();
        sleep(Duration::from_secs(1)).await;
        samples.stop.store(true, Ordering::Relaxed);
        drop(rss.join());
        drop(health.await);
        rss_mib(server)?;
        let times = board.times(part);
        let ms = |micros: u64| float(micros) / 1e3;
        Ok(Row {
            kind: kind.to_owned(),
            peak_mib: float(samples.peak.load(Ordering::Relaxed)) / MIB,
            after_mib: 0.0,
            p99_ms: ms(times.value_at_quantile(0.99)),
            max_ms: ms(times.value_at_quantile(1.0)),
            healthz_max_ms: ms(samples.healthz_micros.load(Ordering::Relaxed)),
            outcome: String::new(),
        })
    }

    /// Sends the request on all connections. Says how that ended.
    async fn attack(&self, kind: Kind, message: &Bytes, server: &Server) -> String {
        let mut attackers = JoinSet::new();
        let hold = Duration::try_from_secs_f64(self.hold_seconds).unwrap_or_default();
        for _ in 0..self.connections {
            let (message, xds, streams) = (message.clone(), server.xds, self.streams);
            attackers.spawn(async move {
                let mut outcomes = Vec::new();
                let Ok((mut sender, connection)) = stream::connect(xds, Windows::ENVOY).await
                else {
                    return vec!["no connection".to_owned()];
                };
                let connection = tokio::spawn(async move { drop(connection.await) });
                let mut readers = JoinSet::new();
                for _ in 0..streams {
                    let none: [chancery_proto::discovery::DeltaDiscoveryRequest; 0] = [];
                    let opened = stream::open_with(sender, xds, kind.method(), &none).await;
                    let Ok((next, mut requests, responses)) = opened else {
                        outcomes.push("no stream".to_owned());
                        break;
                    };
                    sender = next;
                    readers.spawn(async move {
                        let ended = responses.read(|_| Ok(())).await;
                        ended.err().map(|error| error.to_string()).unwrap_or_default()
                    });
                    // If the stream was ended meanwhile, its reader says how.
                    let _sent = requests.send_all(message.clone()).await;
                    readers.spawn(async move {
                        // Dropping it would reset the stream.
                        sleep(hold).await;
                        drop(requests);
                        String::new()
                    });
                }
                let deadline = tokio::time::sleep(hold);
                tokio::pin!(deadline);
                let mut ended = 0;
                loop {
                    tokio::select! {
                        () = &mut deadline => break,
                        outcome = readers.join_next() => match outcome {
                            Some(Ok(outcome)) if !outcome.is_empty() => {
                                ended += 1;
                                outcomes.push(outcome);
                            }
                            Some(_) => {}
                            None => break,
                        },
                    }
                }
                outcomes.extend((ended..streams).map(|_| "goes on".to_owned()));
                connection.abort();
                outcomes
            });
        }
        let mut counts = std::collections::BTreeMap::new();
        while let Some(outcomes) = attackers.join_next().await {
            for outcome in outcomes.unwrap_or_default() {
                *counts.entry(outcome).or_insert(0_u32) += 1;
            }
        }
        let counts: Vec<String> = counts.iter().map(|(what, n)| format!("{n}: {what}")).collect();
        counts.join("; ")
    }

    fn findings(
        &self,
        idle_rss: f64,
        idle: Row,
        rows: Vec<Row>,
        failed: u64,
        wrong: u64,
    ) -> Result<Findings> {
        let mut text = String::new();
        writeln!(
            text,
            "{} connections with {} streams each; RSS of the idle server {idle_rss:.0} MiB",
            self.connections, self.streams
        )?;
        writeln!(
            text,
            "{:<16} {:>9} {:>10} {:>9} {:>9} {:>11}  streams",
            "request", "peak MiB", "after MiB", "p99 ms", "max ms", "healthz ms"
        )?;
        for row in std::iter::once(&idle).chain(&rows) {
            writeln!(
                text,
                "{:<16} {:>9.0} {:>10.0} {:>9.1} {:>9.1} {:>11.1}  {}",
                row.kind,
                row.peak_mib,
                row.after_mib,
                row.p99_ms,
                row.max_ms,
                row.healthz_max_ms,
                row.outcome
            )?;
        }
        let most = |of: fn(&Row) -> f64| rows.iter().map(of).fold(0.0, f64::max);
        let peak = most(|row| row.peak_mib) - idle_rss;
        let ratio = most(|row| row.p99_ms) / idle.p99_ms.max(0.001);
        let left = rows.last().map_or(0.0, |row| row.after_mib) - idle_rss;
        let gates = vec![
            Gate::at_most("growth of RSS under attack, in MiB", peak, self.growth_mib_max),
            Gate::at_most("p99 of the healthy client, to that when idle", ratio, self.ratio_max),
            Gate::at_most("RSS that is left 5 s after the last attack, in MiB", left, 100.0),
            Gate::none("writes that failed", failed),
            Gate::none("healthy streams that broke or received wrong resources", wrong),
        ];
        let data = serde_json::json!({"idle_rss_mib": idle_rss, "idle": idle, "rows": rows});
        Ok(Findings { text, data, gates })
    }
}

fn rss_mib(server: &Server) -> Result<f64> {
    let rss = server.process().memory().context("the server is gone")?.rss;
    Ok(float(rss) / MIB)
}

impl stream::Requests {
    /// Sends bytes as fast as the server takes them. `false` if the stream ended before it took all.
    async fn send_all(&mut self, mut bytes: Bytes) -> bool {
        while bytes.has_remaining() {
            let Some(room) = self.room(bytes.len()).await else { return false };
            let part = bytes.split_to(room.min(bytes.len()));
            if self.send_bytes(part).is_err() {
                return false;
            }
        }
        true
    }
}
