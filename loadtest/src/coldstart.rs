//! Cold start: the time from the start of a process that already holds resources to its ready line.
//!
//! The test loads the replica, ends it with SIGTERM, and starts it several times. Before every
//! other start it drops the data from the kernel's page cache, so that the replica reads them from
//! the disk. The remaining starts separate the time of the disk from the work of the process.

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{Advice, fadvise};
use serde::Serialize;

use crate::{
    author::Author,
    common::Common,
    host::{HostTime, mb},
    report::{Findings, Gate, say},
    server::{Launch, Server},
    stats::{Spread, count},
};

/// Measure the time from process start to readiness
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of resources of about 1 KB
    #[arg(long, default_value_t = 100_000)]
    resources: usize,
    /// Starts of each kind
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Maximum seconds of the median start [default: 2 up to 100,000 resources, 15 beyond]
    #[arg(long)]
    seconds_max: Option<f64>,
}

/// The measurements of one start.
#[derive(Debug, Clone, Copy)]
struct Start {
    wall: Duration,
    cpu: Duration,
    others: f64,
}

/// The statistics of one kind of start.
#[derive(Debug, Serialize)]
struct Row {
    seconds: Spread,
    cpu_seconds: Spread,
    /// The CPUs that other processes used during the starts.
    others: Spread,
}

impl Args {
    fn seconds_max(&self) -> f64 {
        self.seconds_max.unwrap_or(if self.resources <= 100_000 { 2.0 } else { 15.0 })
    }

    pub(crate) async fn run(&self, common: &Common, dir: &Path) -> Result<Findings> {
        ensure!(
            self.resources > 0 && self.rounds > 0,
            "--resources and --rounds must be greater than 0"
        );
        let launch = Launch::new(&common.binary, dir, common.pinning.server, "")?;
        let server = launch.start().await?;
        let empty = server.started_in;
        let loading = Instant::now();
        let mut author = Author::connect(server.admin).await?;
        author.load(0, self.resources).await?;
        let revision = author.cluster().await?.revision;
        server.terminate().await?;
        say!("{} resources loaded in {:.1?}", self.resources, loading.elapsed());
        let disk_bytes = each_file(&launch.data(), &mut |_| Ok(()))?;
        let (mut cold, mut warm) = (Vec::new(), Vec::new());
        for round in 0..self.rounds {
            each_file(&launch.data(), &mut forget)?;
            cold.push(self.start(&launch, revision).await?);
            warm.push(self.start(&launch, revision).await?);
            if let (Some(cold), Some(warm)) = (cold.last(), warm.last()) {
                let (cold, warm) = (cold.wall, warm.wall);
                say!("round {} of {}: {cold:.2?}, again {warm:.2?}", round + 1, self.rounds);
            }
        }
        let rows = row(&cold).zip(row(&warm)).context("no start")?;
        self.findings(empty, disk_bytes, &rows)
    }

    async fn start(&self, launch: &Launch, revision: u64) -> Result<Start> {
        let host = HostTime::now()?;
        let server = launch.start().await?;
        let cpu = server.process().cpu_time()?;
        let others = HostTime::now()?.others_since(host, &[cpu]);
        let wall = server.started_in;
        self.holds_all(&server, revision).await?;
        server.terminate().await?;
        Ok(Start { wall, cpu: cpu.total(), others })
    }

    /// Checks that the server holds all resources: a start with missing data would be fast.
    async fn holds_all(&self, server: &Server, revision: u64) -> Result<()> {
        let status = Author::connect(server.admin).await?.cluster().await?;
        ensure!(
            status.resources == count(self.resources)
                && status.revision == revision
                && status.ready,
            "after the start there are {} resources at revision {}, but {} at {revision} before",
            status.resources,
            status.revision,
            self.resources
        );
        Ok(())
    }

    fn findings(&self, empty: Duration, disk_bytes: u64, rows: &(Row, Row)) -> Result<Findings> {
        let mut text = String::new();
        writeln!(
            text,
            "{} resources of about 1 KB, {:.1} MB on disk; {} starts of each kind; median (min to max)",
            self.resources,
            mb(disk_bytes),
            self.rounds
        )?;
        writeln!(text, "  without resources, for comparison      {:.3} s", empty.as_secs_f64())?;
        for (what, row) in
            [("data not in memory", &rows.0), ("data in the kernel's cache", &rows.1)]
        {
            writeln!(text, "{what}")?;
            writeln!(text, "  start of the process to ready, s       {:.3}", row.seconds)?;
            writeln!(text, "  of it CPU, s                           {:.3}", row.cpu_seconds)?;
            writeln!(text, "  CPUs used by others                    {:.2}", row.others)?;
        }
        let gates = vec![Gate::at_most(
            "seconds from the start of the process to ready, median, data not in memory",
            rows.0.seconds.median,
            self.seconds_max(),
        )];
        let data = serde_json::json!({
            "resources": self.resources,
            "disk_bytes": disk_bytes,
            "empty_seconds": empty.as_secs_f64(),
            "cold": rows.0,
            "warm": rows.1,
        });
        Ok(Findings { text, data, gates })
    }
}

fn row(starts: &[Start]) -> Option<Row> {
    let spread = |of: fn(&Start) -> f64| Spread::of(&starts.iter().map(of).collect::<Vec<_>>());
    Some(Row {
        seconds: spread(|start| start.wall.as_secs_f64())?,
        cpu_seconds: spread(|start| start.cpu.as_secs_f64())?,
        others: spread(|start| start.others)?,
    })
}

/// Calls `on` for each file below a directory. Returns the bytes of all files.
fn each_file(dir: &Path, on: &mut impl FnMut(&fs::File) -> Result<()>) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            bytes += each_file(&path, on)?;
        } else {
            let file = fs::File::open(&path).with_context(|| format!("open {}", path.display()))?;
            bytes += file.metadata()?.len();
            on(&file)?;
        }
    }
    Ok(bytes)
}

/// Drops a file from the kernel's page cache. The sync comes first, because dirty pages stay in the
/// cache.
fn forget(file: &fs::File) -> Result<()> {
    file.sync_all().context("sync a file")?;
    fadvise(file, 0, None, Advice::DontNeed).context("drop a file from the page cache")
}
