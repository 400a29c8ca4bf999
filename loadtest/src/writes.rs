//! Durable writes: their rate and latency, by the number of writers.
//!
//! Each writer changes its own clusters, one after the other. A write is complete when the server
//! has answered, and the server answers when the write is on the disk. The numbers of writers take
//! turns, so that other load on the machine affects all of them. The number of syncs comes from the
//! metrics of the server.

use std::{
    fmt::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::{
    author::Author,
    common::Common,
    host::HostTime,
    process::Process,
    report::{Findings, Gate, say},
    resource,
    server::{Launch, Server},
    stats::{Latencies, Spread, count, float},
};

const FSYNCS: &str = "chancery_store_fsyncs_total";
const COMMITS: &str = "chancery_store_commits_total";
/// The number of clusters that each writer changes in turn.
const CLUSTERS: u64 = 4;

/// Measure throughput and latency of durable writes by number of writers
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Numbers of concurrent writers, in ascending order
    #[arg(long, value_delimiter = ',', default_value = "1,16,256")]
    writers: Vec<usize>,
    /// Seconds per turn; each number of writers has one turn per round
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Rounds
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// The measurements of one turn.
struct Turn {
    writes_per_second: f64,
    fsyncs_per_commit: f64,
    fsyncs_per_second: f64,
    cpu_us_per_write: f64,
    others: f64,
    latencies: Vec<Duration>,
}

/// The statistics of one number of writers.
#[derive(Debug, Serialize)]
struct Row {
    writers: usize,
    writes: u64,
    writes_per_second: Spread,
    fsyncs_per_commit: Spread,
    fsyncs_per_second: Spread,
    /// Microseconds of the server's CPU.
    cpu_us_per_write: Spread,
    latency: Latencies,
    /// The CPUs that other processes used during the turns.
    others: Spread,
}

impl Args {
    pub(crate) async fn run(&self, common: &Common, dir: &Path) -> Result<Findings> {
        ensure!(
            self.writers.is_sorted() && self.writers.len() > 1,
            "--writers needs at least two numbers in ascending order"
        );
        ensure!(
            self.rounds > 0 && self.seconds > 0.0,
            "--rounds and --seconds must be greater than 0"
        );
        let launch = Launch::new(&common.binary, dir, common.pinning.server, "")?;
        let server = launch.start().await?;
        let author = Author::connect(server.admin).await?;
        let mut turns: Vec<Vec<Turn>> = self.writers.iter().map(|_| Vec::new()).collect();
        let mut generation = 0;
        for round in 0..self.rounds {
            for (turns, writers) in turns.iter_mut().zip(&self.writers) {
                generation += 1 << 32;
                let turn = self.turn(&server, &author, *writers, generation).await?;
                say!(
                    "round {} of {}: {writers} writers, {:.0} writes/s, {:.3} fsyncs per commit",
                    round + 1,
                    self.rounds,
                    turn.writes_per_second,
                    turn.fsyncs_per_commit
                );
                turns.push(turn);
            }
        }
        server.kill().await?;
        let rows: Option<Vec<Row>> =
            self.writers.iter().zip(turns).map(|(writers, turns)| row(*writers, &turns)).collect();
        self.findings(&rows.context("a turn has no writes")?)
    }

    async fn turn(
        &self,
        server: &Server,
        author: &Author,
        writers: usize,
        generation: u64,
    ) -> Result<Turn> {
        let before = server.metrics().await?;
        let host = HostTime::now()?;
        let (own, cpu) = (Process::own().cpu_time()?, server.process().cpu_time()?);
        let start = Instant::now();
        let until = start + Duration::from_secs_f64(self.seconds);
        let mut tasks = JoinSet::new();
        for writer in 0..writers {
            tasks.spawn(write(author.clone(), writer, generation, until));
        }
        let mut latencies = Vec::new();
        while let Some(times) = tasks.join_next().await {
            latencies.extend(times??);
        }
        let elapsed = start.elapsed().as_secs_f64();
        let cpu = server.process().cpu_time()? - cpu;
        let own = Process::own().cpu_time()? - own;
        let others = HostTime::now()?.others_since(host, &[cpu, own]);
        let after = server.metrics().await?;
        let grown = |name| Ok::<_, anyhow::Error>(after.sum(name)? - before.sum(name)?);
        let (fsyncs, commits) = (grown(FSYNCS)?, grown(COMMITS)?);
        let writes = float(count(latencies.len()));
        ensure!(
            (commits - writes).abs() < 0.5,
            "the server counted {commits} commits, but acknowledged {writes} writes"
        );
        Ok(Turn {
            writes_per_second: writes / elapsed,
            fsyncs_per_commit: fsyncs / commits,
            fsyncs_per_second: fsyncs / elapsed,
            cpu_us_per_write: cpu.total().as_secs_f64() * 1e6 / writes,
            others,
            latencies,
        })
    }

    fn findings(&self, rows: &[Row]) -> Result<Findings> {
        let mut text = String::new();
        writeln!(
            text,
            "each write changes one cluster of about 1 KB; {} rounds of {} s per turn; median (min to max)",
            self.rounds, self.seconds
        )?;
        for row in rows {
            writeln!(text, "\n{} writers", row.writers)?;
            writeln!(text, "  writes per second       {:.0}", row.writes_per_second)?;
            writeln!(text, "  latency                 {}", row.latency)?;
            writeln!(text, "  fsyncs per commit       {:.3}", row.fsyncs_per_commit)?;
            writeln!(text, "  fsyncs per second       {:.0}", row.fsyncs_per_second)?;
            writeln!(text, "  server CPU per write, µs  {:.0}", row.cpu_us_per_write)?;
            writeln!(text, "  CPUs used by others     {:.2}", row.others)?;
        }
        let mut gates = Vec::new();
        for (few, many) in rows.iter().zip(rows.iter().skip(1)) {
            gates.push(Gate::above(
                "writes per second with more writers, compared with fewer",
                many.writes_per_second.median,
                few.writes_per_second.median,
            ));
        }
        if let (Some(first), Some(last)) = (rows.first(), rows.last()) {
            gates.push(Gate::at_most(
                "fsyncs per commit with the most writers, compared with half of that with the fewest",
                last.fsyncs_per_commit.median,
                first.fsyncs_per_commit.median / 2.0,
            ));
        }
        let data =
            serde_json::json!({"rounds": self.rounds, "seconds": self.seconds, "writers": rows});
        Ok(Findings { text, data, gates })
    }
}

fn row(writers: usize, turns: &[Turn]) -> Option<Row> {
    let spread = |of: fn(&Turn) -> f64| Spread::of(&turns.iter().map(of).collect::<Vec<_>>());
    let latencies: Vec<Duration> =
        turns.iter().flat_map(|turn| turn.latencies.iter().copied()).collect();
    Some(Row {
        writers,
        writes: count(latencies.len()),
        writes_per_second: spread(|turn| turn.writes_per_second)?,
        fsyncs_per_commit: spread(|turn| turn.fsyncs_per_commit)?,
        fsyncs_per_second: spread(|turn| turn.fsyncs_per_second)?,
        cpu_us_per_write: spread(|turn| turn.cpu_us_per_write)?,
        latency: Latencies::of(latencies)?,
        others: spread(|turn| turn.others)?,
    })
}

/// Writes in sequence until the deadline. Returns the duration of each write.
async fn write(
    mut author: Author,
    writer: usize,
    mut generation: u64,
    until: Instant,
) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    while Instant::now() < until {
        generation += 1;
        let n = writer * 1000 + usize::try_from(generation % CLUSTERS)?;
        let manifest = resource::manifest(resource::SCOPE, vec![resource::cluster(n, generation)]);
        let start = Instant::now();
        let written = author.apply(&[manifest]).await.context("write a cluster")?;
        times.push(start.elapsed());
        ensure!(written.changed == 1, "a write changed {} resources", written.changed);
    }
    Ok(times)
}
