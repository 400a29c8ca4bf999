//! Memory of the server, by resources and by wildcard streams.
//!
//! By resources: RSS without resources and with each number of them, compared with the bytes of
//! their bodies.
//!
//! By streams: the growth of RSS when the same number of streams is opened on a small and on a
//! large view. It consists of the memory that closing the streams frees, and the memory that
//! remains in use. Both views include the cost of a stream itself (buffers, its task). The
//! difference is therefore the cost per resource.
//!
//! The test opens and closes the streams several times. Pages that the allocator keeps after a
//! large send are the noise of the measurement, which the report states.

use std::{
    fmt::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use crate::{
    author::Author,
    common::Common,
    host::{Pinning, mb},
    process::Process,
    report::{Findings, Gate, say},
    server::{Launch, Server},
    stats::{Spread, count, float},
    wildcard_clients::{Expected, WildcardClients},
};

const SYNC: Duration = Duration::from_secs(300);
const MB: f64 = 1e6;
/// The interval of RSS readings. RSS is stable if the last `READINGS` values agree.
const READ_EVERY: Duration = Duration::from_millis(500);
const READINGS: usize = 8;
/// The maximum relative difference between readings that agree.
const AGREE: f64 = 0.005;

/// Measure server memory by number of resources and of streams
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Numbers of resources of about 1 KB at which RSS is read, in ascending order
    #[arg(long, value_delimiter = ',', default_value = "10000,100000")]
    resources: Vec<usize>,
    /// Resources in the small view
    #[arg(long, default_value_t = 100)]
    small: usize,
    /// Wildcard delta streams
    #[arg(long, default_value_t = 100)]
    streams: usize,
    /// Times that the streams are opened on each view
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Maximum wait for stable RSS, in seconds
    #[arg(long, default_value_t = 20)]
    settle_seconds: u64,
    /// Maximum bytes of RSS per resource beyond its body
    #[arg(long, default_value_t = 512)]
    bytes_per_resource_max: u64,
    /// Maximum MB of RSS beyond the bodies and the bytes per resource
    #[arg(long, default_value_t = 100)]
    fixed_mb_max: u64,
    /// Maximum bytes of RSS per stream and resource
    #[arg(long, default_value_t = 1.0)]
    slope_max: f64,
    /// Let server and clients run on any CPU, instead of one CPU for each of them
    #[arg(long)]
    no_pin: bool,
}

/// RSS with a number of resources and no streams.
#[derive(Debug, Serialize)]
struct Loaded {
    resources: u64,
    payload_bytes: u64,
    rss_bytes: u64,
    /// The part of RSS without a file behind it.
    anonymous_bytes: u64,
    /// RSS beyond that of the empty server and the payload, per resource.
    overhead_per_resource: Option<f64>,
}

/// RSS with streams on one view.
#[derive(Debug, Serialize)]
struct Opened {
    resources: usize,
    before_bytes: u64,
    /// RSS when all streams are synced and it is stable.
    with_streams: Spread,
    /// RSS after the streams were closed.
    after: Spread,
    /// The highest reading while the streams synced.
    peak_bytes: u64,
}

/// The growth of RSS with streams.
#[derive(Debug, Serialize)]
struct Slope {
    /// Bytes per stream and resource.
    bytes: f64,
    /// The spread between the rounds, in the same unit.
    noise: f64,
    /// Bytes per stream, on the small view.
    bytes_per_stream: f64,
}

impl Args {
    pub(crate) fn pinning(&self) -> Result<Pinning> {
        if self.no_pin { Ok(Pinning::NONE) } else { Pinning::apart() }
    }

    pub(crate) async fn run(&self, common: &Common, dir: &Path) -> Result<Findings> {
        ensure!(self.resources.is_sorted(), "--resources must be in ascending order");
        ensure!(
            self.rounds > 0 && self.streams > 0,
            "--rounds and --streams must be greater than 0"
        );
        let large =
            *self.resources.last().context("--resources is empty; name at least one size")?;
        ensure!(large > self.small, "--small must be less than the largest of --resources");
        let start = async |name: &str| {
            Launch::new(&common.binary, &dir.join(name), common.pinning.server, "")?.start().await
        };

        let server = start("large").await?;
        let mut author = Author::connect(server.admin).await?;
        let empty = self.at_rest(server.process()).await?;
        let mut loaded = vec![Loaded {
            resources: 0,
            payload_bytes: 0,
            rss_bytes: empty,
            anonymous_bytes: server.process().memory()?.anonymous,
            overhead_per_resource: None,
        }];
        let mut from = 0;
        for to in &self.resources {
            author.load(from, *to).await?;
            from = *to;
            loaded.push(self.loaded(&server, &mut author, empty).await?);
        }
        let on_large = self.opened(&server, large).await?;
        server.kill().await?;

        let server = start("small").await?;
        Author::connect(server.admin).await?.load(0, self.small).await?;
        let on_small = self.opened(&server, self.small).await?;
        server.kill().await?;
        let slope = self.slope(&on_small, &on_large);
        self.findings(&loaded, &[on_small, on_large], &slope)
    }

    async fn loaded(&self, server: &Server, author: &mut Author, empty: u64) -> Result<Loaded> {
        let rss_bytes = self.at_rest(server.process()).await?;
        let (payload_bytes, resources) = author.payload().await?;
        say!("{resources} resources: {:.1} MB", mb(rss_bytes));
        let overhead = float(rss_bytes) - float(empty) - float(payload_bytes);
        let overhead_per_resource = Some(overhead / float(resources.max(1)));
        let anonymous_bytes = server.process().memory()?.anonymous;
        Ok(Loaded { resources, payload_bytes, rss_bytes, anonymous_bytes, overhead_per_resource })
    }

    async fn opened(&self, server: &Server, resources: usize) -> Result<Opened> {
        let expected = Expected::clusters(resources);
        let before_bytes = self.at_rest(server.process()).await?;
        let (mut with_streams, mut after, mut peak_bytes) = (Vec::new(), Vec::new(), 0);
        for round in 0..self.rounds {
            let clients = WildcardClients::connect(server.xds, self.streams, 1, expected).await?;
            tokio::select! {
                synced = clients.synced(SYNC) => synced?,
                never = watch_peak(server.process(), &mut peak_bytes) => never?,
            }
            let with = self.at_rest(server.process()).await?;
            let complaints = clients.complaints();
            ensure!(complaints.is_empty(), "{}", complaints.join("; "));
            with_streams.push(float(with));
            drop(clients);
            let without = self.at_rest(server.process()).await?;
            after.push(float(without));
            say!(
                "{resources} resources, {} streams, round {}: {:.1} MB with, {:.1} MB after",
                self.streams,
                round + 1,
                mb(with),
                mb(without)
            );
        }
        let with_streams = Spread::of(&with_streams).context("no rounds")?;
        let after = Spread::of(&after).context("no rounds")?;
        Ok(Opened { resources, before_bytes, with_streams, after, peak_bytes })
    }

    fn slope(&self, small: &Opened, large: &Opened) -> Slope {
        let streams = float(count(self.streams));
        let pairs = streams * float(count(large.resources - small.resources));
        // `held` is freed when the streams are closed, and `kept` is not. After the streams, RSS
        // may be lower than before them, because the load had left memory behind. That must not
        // reduce `held`.
        let held = |opened: &Opened| opened.with_streams.median - opened.after.median;
        let kept = |opened: &Opened| (opened.after.median - float(opened.before_bytes)).max(0.0);
        let grown = |opened: &Opened| held(opened) + kept(opened);
        let spread = |opened: &Opened| opened.with_streams.max - opened.with_streams.min;
        Slope {
            bytes: (grown(large) - grown(small)) / pairs,
            noise: (spread(large) + spread(small)) / pairs,
            bytes_per_stream: grown(small) / streams,
        }
    }

    async fn at_rest(&self, process: Process) -> Result<u64> {
        at_rest(process, Duration::from_secs(self.settle_seconds)).await
    }

    fn findings(&self, loaded: &[Loaded], opened: &[Opened; 2], slope: &Slope) -> Result<Findings> {
        let mut text = String::new();
        writeln!(text, "without streams")?;
        for row in loaded {
            write!(
                text,
                "  {:>7} resources, {:>6.1} MB of bodies: RSS {:>6.1} MB ({:.1} MB anonymous)",
                row.resources,
                mb(row.payload_bytes),
                mb(row.rss_bytes),
                mb(row.anonymous_bytes)
            )?;
            match row.overhead_per_resource {
                Some(bytes) => writeln!(text, ", {bytes:.0} bytes per resource beyond its body")?,
                None => writeln!(text)?,
            }
        }
        writeln!(text, "\n{} wildcard delta streams, opened {} times", self.streams, self.rounds)?;
        for row in opened {
            writeln!(
                text,
                "  {:>7} resources: RSS before {:.1} MB, with {} MB, after {} MB, peak {:.1} MB",
                row.resources,
                mb(row.before_bytes),
                in_mb(row.with_streams),
                in_mb(row.after),
                mb(row.peak_bytes)
            )?;
        }
        let Slope { bytes, noise, bytes_per_stream } = slope;
        writeln!(text, "  {:.1} KB per stream on the small view", bytes_per_stream / 1e3)?;
        writeln!(text, "  {bytes:.3} bytes per stream and resource, noise {noise:.3}")?;

        let mut gates = Vec::new();
        for row in loaded.iter().skip(1) {
            let allowed = row.payload_bytes + row.resources * self.bytes_per_resource_max;
            gates.push(Gate::at_most(
                "RSS in MB; the limit is the bodies, bytes per resource and a fixed amount",
                mb(row.rss_bytes),
                mb(allowed) + float(self.fixed_mb_max),
            ));
        }
        gates.push(Gate::at_most("bytes of RSS per stream and resource", *bytes, self.slope_max));
        let data = serde_json::json!({"loaded": loaded, "streams": opened, "slope": slope});
        Ok(Findings { text, data, gates })
    }
}

/// Waits until RSS is stable, and returns it. The allocator returns memory with a delay.
pub(crate) async fn at_rest(process: Process, patience: Duration) -> Result<u64> {
    let deadline = Instant::now() + patience;
    let mut readings: Vec<u64> = Vec::new();
    loop {
        tokio::time::sleep(READ_EVERY).await;
        readings.push(process.memory()?.rss);
        let last = readings.get(readings.len().saturating_sub(READINGS)..).unwrap_or_default();
        let (min, max) = (last.iter().min(), last.iter().max());
        let (Some(min), Some(max)) = (min, max) else { continue };
        let agree = float(max - min) <= float(*max) * AGREE;
        if (readings.len() >= READINGS && agree) || Instant::now() > deadline {
            return Ok(*last.last().unwrap_or(max));
        }
    }
}

/// Records the highest RSS in `peak` until the future is dropped.
async fn watch_peak(process: Process, peak: &mut u64) -> Result<()> {
    loop {
        *peak = process.memory()?.rss.max(*peak);
        tokio::time::sleep(READ_EVERY).await;
    }
}

fn in_mb(spread: Spread) -> String {
    let Spread { median, min, max, n } = spread;
    format!("{:.1}", Spread { median: median / MB, min: min / MB, max: max / MB, n })
}
