//! Thousands of clients reconnect at once: the effect on connected clients and on writers.
//!
//! Two servers run. Established clients watch one of them, where an author changes one cluster at
//! each tick. A round has three parts: idle, a storm at the other server (the control), and a storm
//! at the measured server. The control takes the same CPUs from the measured server, which itself
//! has no work from it. The ratio of the control to idle is the effect of the machine. The ratio of
//! the storm to the control is the effect of the server. The clients of each storm run in a
//! separate process.
//!
//! Times are measured from when an update was due: to its answer (writes), and to its arrival at
//! each established client (pushes).

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use tokio::time::sleep;

use crate::{
    author::Author,
    common::Common,
    report::{Findings, Gate, say},
    server::{Launch, Server},
    stats::{Latencies, Spread},
    watch::{Times, Watch},
    worker::{Order, Worker},
};

pub(crate) mod clients;

use clients::Load;

/// The pause after a part, so that its remaining work is measured in no part.
const SETTLE: Duration = Duration::from_millis(1500);

/// Reconnect thousands of clients at once and measure pushes to others and writes
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Clients that stay connected and receive each update
    #[arg(long, default_value_t = 50)]
    established: usize,
    /// Clusters of about 1 KB that the established clients see
    #[arg(long, default_value_t = 100)]
    resources: usize,
    /// Updates of one cluster per second
    #[arg(long, default_value_t = 40)]
    updates_per_second: u32,
    /// Clients that reconnect at once: one quarter is new to delta, one quarter resumes a wildcard,
    /// one quarter resumes names, and one quarter speaks SotW
    #[arg(long, default_value_t = 4000)]
    clients: usize,
    /// Clusters of about 1 KB that each reconnecting client requests
    #[arg(long, default_value_t = 1000)]
    client_resources: usize,
    /// Rounds of idle, control, storm
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of the idle part of a round
    #[arg(long, default_value_t = 5.0)]
    idle_seconds: f64,
    /// The `nice` value of the processes with the reconnecting clients
    #[arg(long, default_value_t = 0)]
    nice: i32,
    /// Maximum ratio of the p99 during a storm to that of the control, for pushes and for writes
    #[arg(long, default_value_t = 2.0)]
    ratio_max: f64,
}

/// The kinds of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Idle,
    /// A storm at the other server.
    Control,
    Storm,
}

/// The measurements of one part.
#[derive(Debug, Clone, Serialize)]
struct Part {
    kind: Kind,
    #[serde(flatten)]
    times: Times,
    /// The CPUs that the measured server used.
    cpus: f64,
    /// The CPUs for which its runnable threads waited.
    cpus_waited_for: f64,
    /// Upper bounds of p99 in ms, from the histograms of the measured server; `None` without
    /// values.
    server_p99_ms: BTreeMap<&'static str, Option<f64>>,
    /// The times from the start of the storm until a client was current.
    current: Option<Latencies>,
}

/// A measured value of a part.
type Quantity = fn(&Part) -> f64;

/// Histograms of the server whose p99 is reported: label, name, labels.
const HISTOGRAMS: [(&str, &str, &str); 5] = [
    ("inbox wait, updates", "chancery_xds_inbox_wait_seconds", "lane=\"updates\""),
    ("inbox wait, bulk", "chancery_xds_inbox_wait_seconds", "lane=\"bulk\""),
    ("queue wait, updates", "chancery_xds_queue_wait_seconds", "lane=\"updates\""),
    ("queue wait, bulk", "chancery_xds_queue_wait_seconds", "lane=\"bulk\""),
    ("shard turn", "chancery_xds_shard_turn_seconds", ""),
];

struct Run {
    server: Server,
    _other: Server,
    watch: Watch,
    reconnecting: StormWorker,
    control: StormWorker,
}

/// The clients that reconnect to one server, in a separate process.
struct StormWorker {
    worker: Worker,
    order: Order,
}

impl StormWorker {
    async fn storm(&mut self) -> Result<Latencies> {
        self.worker.ask(&self.order).await
    }
}

impl Args {
    pub(crate) async fn run(&self, common: &Common, dir: &Path) -> Result<Findings> {
        ensure!(
            self.rounds > 0 && self.clients > 0 && self.established > 0,
            "--rounds, --clients and --established must be greater than 0"
        );
        ensure!(
            self.updates_per_second > 0 && self.resources > 0,
            "--updates-per-second and --resources must be greater than 0"
        );
        let idle = Duration::try_from_secs_f64(self.idle_seconds)?;
        let mut run = self.start(common, dir).await?;
        let mut parts = Vec::new();
        for round in 1..=self.rounds {
            for kind in [Kind::Idle, Kind::Control, Kind::Storm] {
                parts.push(run.part(kind, idle).await?);
                sleep(SETTLE).await;
            }
            say!("round {round} of {}", self.rounds);
        }
        run.watch.end().await?;
        self.findings(&parts)
    }

    async fn start(&self, common: &Common, dir: &Path) -> Result<Run> {
        let (server, mut reconnecting, author) = self.server(common, &dir.join("measured")).await?;
        let (other, mut control, _) = self.server(common, &dir.join("other")).await?;
        let watch = Watch::start(
            server.xds,
            author,
            self.established,
            self.resources,
            self.updates_per_second,
        )
        .await?;
        for (what, reconnecting) in [("measured", &mut reconnecting), ("other", &mut control)] {
            let current = reconnecting.storm().await?;
            say!("{} clients connected to the {what} server: {current}", self.clients);
        }
        sleep(SETTLE).await;
        Ok(Run { server, _other: other, watch, reconnecting, control })
    }

    async fn server(&self, common: &Common, dir: &Path) -> Result<(Server, StormWorker, Author)> {
        let server = Launch::new(&common.binary, dir, None, "")?.start().await?;
        let mut author = Author::connect(server.admin).await?;
        author.load(0, self.resources).await?;
        let (clients, resources) = (self.clients, self.client_resources);
        let load = Load::publish(&mut author, server.xds, clients, resources).await?;
        let reconnecting =
            StormWorker { worker: Worker::start(self.nice)?, order: Order::Storm(load) };
        Ok((server, reconnecting, author))
    }

    fn findings(&self, parts: &[Part]) -> Result<Findings> {
        let mut text = String::new();
        let of = |kind, what: fn(&Part) -> f64| -> Vec<f64> {
            parts.iter().filter(|part| part.kind == kind).map(what).collect()
        };
        let quantities: [(&str, Quantity); 4] = [
            ("pushes p50", |part| part.times.push_p50_ms),
            ("pushes p99", |part| part.times.push_p99_ms),
            ("writes p50", |part| part.times.write_p50_ms),
            ("writes p99", |part| part.times.write_p99_ms),
        ];
        let mut gates = Vec::new();
        for (name, what) in quantities {
            let (idle, control, storm) =
                (of(Kind::Idle, what), of(Kind::Control, what), of(Kind::Storm, what));
            let ratio = |a: &[f64], b: &[f64]| {
                let ratios: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / b).collect();
                Spread::of(&ratios).context("there are no rounds")
            };
            let (machine, own, all) =
                (ratio(&control, &idle)?, ratio(&storm, &control)?, ratio(&storm, &idle)?);
            let ms = |values: &[f64]| Spread::of(values).context("there are no rounds");
            writeln!(text, "{name}, ms: idle {:.1}", ms(&idle)?)?;
            writeln!(text, "  storm elsewhere {:.1}, to idle {machine:.2}", ms(&control)?)?;
            writeln!(
                text,
                "  storm here      {:.1}, to idle {all:.2}, to elsewhere {own:.2}",
                ms(&storm)?
            )?;
            let gate = match name {
                "pushes p99" => "p99 of pushes in a storm, ratio to a storm elsewhere",
                "writes p99" => "p99 of writes in a storm, ratio to a storm elsewhere",
                _ => continue,
            };
            gates.push(Gate::at_most(gate, own.median, self.ratio_max));
        }
        for kind in [Kind::Idle, Kind::Control, Kind::Storm] {
            let shown = |what| Spread::of(&of(kind, what)).context("there are no rounds");
            write!(
                text,
                "{kind:?}: {:.1} s; the server had {:.2} CPUs and waited for {:.2} more",
                shown(|part| part.times.seconds)?,
                shown(|part| part.cpus)?,
                shown(|part| part.cpus_waited_for)?,
            )?;
            for (label, ..) in HISTOGRAMS {
                let of_kind = parts.iter().filter(|part| part.kind == kind);
                let bounds: Vec<f64> =
                    of_kind.filter_map(|part| *part.server_p99_ms.get(label)?).collect();
                if let Some(bounds) = Spread::of(&bounds) {
                    write!(text, "; {label} p99 below {bounds:.2} ms")?;
                }
            }
            writeln!(text)?;
        }
        let last = parts.iter().rev().find_map(|part| part.current);
        writeln!(text, "until a client was current, last storm: {}", last.context("no storm")?)?;
        Ok(Findings { text, data: serde_json::json!({ "parts": parts }), gates })
    }
}

impl Run {
    async fn part(&mut self, kind: Kind, idle: Duration) -> Result<Part> {
        let (process, metrics) = (self.server.process(), self.server.metrics().await?);
        let (cpu, waited) = process.run_and_wait()?;
        let work = async {
            match kind {
                Kind::Idle => {
                    sleep(idle).await;
                    Ok(None)
                }
                Kind::Control => self.control.storm().await.map(Some),
                Kind::Storm => self.reconnecting.storm().await.map(Some),
            }
        };
        let start = Instant::now();
        let (current, times) = self.watch.during(work).await?;
        let all = start.elapsed().as_secs_f64();
        let (cpu_after, waited_after) = process.run_and_wait()?;
        let after = self.server.metrics().await?;
        let mut server_p99_ms = BTreeMap::new();
        for (label, name, labels) in HISTOGRAMS {
            let bound = after.quantile_since(&metrics, name, labels, 0.99)?;
            server_p99_ms.insert(label, bound.map(|seconds| seconds * 1e3));
        }
        Ok(Part {
            kind,
            times,
            cpus: (cpu_after.saturating_sub(cpu)).as_secs_f64() / all,
            cpus_waited_for: (waited_after.saturating_sub(waited)).as_secs_f64() / all,
            server_p99_ms,
            current,
        })
    }
}
