//! Clients that never read or never acknowledge. Healthy clients should receive every update as
//! fast as they would without them.
//!
//! The test has one server. Each healthy client subscribes to all clusters on its own connection
//! and stays to the end. An author changes one cluster at each tick, independently of the results.
//! Rounds with and without the faulty clients alternate (A B A B … A), and the ratio of a round is
//! to the mean of its two neighbors. A long part with the faulty clients shows whether memory
//! grows. In the end all clients leave, and the server must not count any of them.
//!
//! Of the clients that never read, half keep their stream's window shut, and half do not read their
//! socket at all. The server disconnects the latter when their keepalive times out, and they
//! connect again. Times are measured from when an update was due to when a client has it, for every
//! update and every healthy client. With this number of clients, the machine is the limit, with and
//! without the faulty clients.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::time::sleep;

use crate::{
    Common,
    author::Author,
    host::{HostTime, Pinning},
    process::{CpuTime, Process},
    random::Random,
    report::{Findings, say},
    server::{Launch, Server},
    stats::{count, float},
};

pub(crate) mod board;
pub(crate) mod clients;
mod memory;
mod report;
pub(crate) mod updates;

use board::{Board, Part};
use clients::{Clients, Counts, Fault};
use memory::Sampler;
use report::{Report, Row};
use updates::Updates;

/// The maximum wait until all clients have the last update, and until the server no longer counts
/// clients that have left.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(100);
const STREAMS: &str = "chancery_xds_streams";
const CONNECTIONS: &str = "chancery_xds_connections";

/// Measure the effect of clients that never read or never acknowledge
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Clients in total
    #[arg(long, default_value_t = 1000)]
    clients: usize,
    /// Clients that never read: half keep the stream's window shut, half do not read their socket
    #[arg(long, default_value_t = 100)]
    never_read: usize,
    /// Clients that never acknowledge
    #[arg(long, default_value_t = 100)]
    never_ack: usize,
    /// Updates of one cluster per second, each for all clients
    #[arg(long, default_value_t = 100)]
    updates_per_second: u32,
    /// Clusters of about 1 KB
    #[arg(long, default_value_t = 1000)]
    resources: usize,
    /// Rounds with faulty clients; there is one more round without them
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of measurement per round
    #[arg(long, default_value_t = 20.0)]
    round_seconds: f64,
    /// Seconds before each measurement
    #[arg(long, default_value_t = 5.0)]
    settle_seconds: f64,
    /// Minutes of the long part; its first fifth does not count for memory
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Maximum ratio of the healthy clients' p99 to that without faulty clients
    #[arg(long, default_value_t = 2.0)]
    ratio_max: f64,
    /// Maximum growth of RSS over the long part, in percent
    #[arg(long, default_value_t = 2.0)]
    growth_percent_max: f64,
    /// Seed for the choice of clusters and the times of reconnects
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Let server and clients run on any CPU, instead of one CPU for each of them
    #[arg(long)]
    no_pin: bool,
}

/// The state of a run.
struct Run<'a> {
    args: &'a Args,
    server: Server,
    sampler: Sampler,
    board: Arc<Board>,
    healthy: Clients,
    updates: Updates,
    random: Random,
    faulty: Faulty,
}

/// The measurements of some time.
#[derive(Debug)]
struct Measured {
    /// Whether faulty clients were connected.
    with_faulty: bool,
    part: Part,
    from: Instant,
    to: Instant,
    server: CpuTime,
    own: CpuTime,
    others: f64,
    counts: Counts,
}

/// The totals of the faulty clients over the whole run.
#[derive(Debug, Default, Serialize)]
struct Faulty {
    seconds: f64,
    /// Responses to clients that never acknowledge, beyond their first state.
    unacknowledged: u64,
    /// Connections of clients that never read.
    connects: u64,
    /// Ended streams of clients that never acknowledge.
    ended: u64,
}

/// RSS at some times, in MiB.
#[derive(Debug, Serialize)]
struct Rss {
    loaded: f64,
    /// With the healthy clients, before the long part.
    healthy: f64,
    /// With all clients, at the end of the long part.
    all: f64,
    /// After the faulty clients have left.
    after: f64,
    /// After all clients have left.
    end: f64,
}

/// The streams and connections that the server still counts after clients have left.
#[derive(Debug, Serialize)]
struct Left {
    streams: f64,
    connections: f64,
}

impl Args {
    pub(crate) fn pinning(&self) -> Result<Pinning> {
        if self.no_pin { Ok(Pinning::NONE) } else { Pinning::apart() }
    }

    fn healthy(&self) -> usize {
        self.clients.saturating_sub(self.never_read + self.never_ack)
    }

    fn faults(&self) -> impl Iterator<Item = Fault> + use<> {
        let read = |n| if n % 2 == 0 { Fault::Window } else { Fault::Socket };
        (0..self.never_read).map(read).chain((0..self.never_ack).map(|_| Fault::Ack))
    }

    pub(crate) async fn run(&self, common: &Common, dir: &Path) -> Result<Findings> {
        ensure!(self.healthy() > 0, "--clients must be greater than --never-read plus --never-ack");
        ensure!(
            self.updates_per_second > 0 && self.resources > 0,
            "--updates-per-second and --resources must be greater than 0"
        );
        ensure!(self.rounds > 0, "--rounds must be greater than 0");
        let [round, settle, long] = [self.round_seconds, self.settle_seconds, self.minutes * 60.0]
            .map(Duration::try_from_secs_f64);
        let (round, settle, long) = (round?, settle?, long?);
        ensure!(
            !round.is_zero() && !long.is_zero(),
            "--round-seconds and --minutes must be greater than 0"
        );

        let launch = Launch::new(&common.binary, dir, common.pinning.server, "")?;
        let server = launch.start().await?;
        let mut author = Author::connect(server.admin).await?;
        author.load(0, self.resources).await?;
        let loaded = rss_mib(&server)?;
        let mut run = self.start(server, author).await?;
        let mut measured = Vec::new();
        for n in 1..=self.rounds {
            measured.push(run.measured(settle, round).await?);
            measured.push(run.with_faulty(settle, round).await?);
            say!("round {n} of {}", self.rounds);
        }
        measured.push(run.measured(settle, round).await?);
        let healthy = rss_mib(&run.server)?;
        let clients = run.open_faulty().await?;
        say!("{} minutes with all clients", self.minutes);
        let together = run.together(&clients, settle, long).await?;
        let all = rss_mib(&run.server)?;
        drop(clients);
        let left_of_faulty = left(&run.server, self.healthy()).await?;
        sleep(settle).await;
        let after = rss_mib(&run.server)?;
        let rss = Rss { loaded, healthy, all, after, end: after };
        run.end(measured, together, left_of_faulty, rss).await
    }

    /// Connects the healthy clients and starts the updates.
    async fn start(&self, server: Server, mut author: Author) -> Result<Run<'_>> {
        let revision = author.cluster().await.context("read the revision")?.revision;
        let board = Arc::new(Board::new(revision));
        let healthy = Clients::healthy(server.xds, &board, self.healthy(), self.resources).await?;
        healthy.synced(PATIENCE).await?;
        say!("{} healthy clients hold {} clusters", self.healthy(), self.resources);
        let mut random = Random::new(self.seed);
        let of_updates = Random::new(random.number());
        let per_second = self.updates_per_second;
        let for_updates = Arc::clone(&board);
        let updates = Updates::start(author, for_updates, per_second, self.resources, of_updates);
        let sampler = Sampler::start(server.process());
        let faulty = Faulty::default();
        Ok(Run { args: self, server, sampler, board, healthy, updates, random, faulty })
    }
}

impl Run<'_> {
    /// Waits for `settle`, then measures for `time`.
    async fn measured(&self, settle: Duration, time: Duration) -> Result<Measured> {
        sleep(settle).await;
        let host = HostTime::now()?;
        let own = Process::own().cpu_time()?;
        let server = self.server.process().cpu_time()?;
        let counts = self.healthy.counts();
        let (part, from) = (self.board.begin(), Instant::now());
        sleep(time).await;
        self.board.end();
        let to = Instant::now();
        let counts = self.healthy.counts() - counts;
        let server = self.server.process().cpu_time()? - server;
        let own = Process::own().cpu_time()? - own;
        let others = HostTime::now()?.others_since(host, &[server, own]);
        Ok(Measured { with_faulty: false, part, from, to, server, own, others, counts })
    }

    async fn with_faulty(&mut self, settle: Duration, time: Duration) -> Result<Measured> {
        let clients = self.open_faulty().await?;
        let measured = self.together(&clients, settle, time).await?;
        drop(clients);
        left(&self.server, self.args.healthy()).await?;
        Ok(measured)
    }

    async fn open_faulty(&mut self) -> Result<Clients> {
        let (args, xds) = (self.args, self.server.xds);
        let clients = Clients::faulty(xds, args.faults(), args.resources, &mut self.random).await?;
        clients.synced(PATIENCE).await?;
        Ok(clients)
    }

    async fn together(
        &mut self,
        clients: &Clients,
        settle: Duration,
        time: Duration,
    ) -> Result<Measured> {
        let before = clients.counts();
        let measured = self.measured(settle, time).await?;
        self.faulty.seconds += (settle + time).as_secs_f64();
        self.faulty.unacknowledged += (clients.counts() - before).responses;
        self.faulty.connects += clients.connects() - count(self.args.never_ack);
        self.faulty.ended += clients.wrong();
        Ok(Measured { with_faulty: true, ..measured })
    }

    /// Ends the updates, then the clients, and returns the findings.
    async fn end(
        self,
        measured: Vec<Measured>,
        together: Measured,
        left_of_faulty: Left,
        rss: Rss,
    ) -> Result<Findings> {
        let Self { args, server, sampler, board, healthy, updates, faulty, .. } = self;
        let written = updates.stop().await?;
        let deadline = Instant::now() + PATIENCE;
        let clients = count(args.healthy());
        while board.missing(clients) > 0 && healthy.wrong() == 0 && Instant::now() < deadline {
            sleep(POLL).await;
        }
        healthy.complaints().iter().for_each(|complaint| say!("a healthy client: {complaint}"));
        let (missing, wrong) = (board.missing(clients), healthy.wrong());
        drop(healthy);
        let left_at_end = left(&server, 0).await?;
        let rss = Rss { end: rss_mib(&server)?, ..rss };
        let warm = together.from + (together.to - together.from) / 5;
        let course = sampler.course(warm, together.to);
        drop(sampler);
        server.kill().await?;
        let report = Report {
            rounds: measured.iter().map(|it| Row::of(it, &board)).collect(),
            long: Row::of(&together, &board),
            course,
            rss,
            updates: board.written(),
            write_p50_ms: ms(&written.times, 0.5),
            write_p99_ms: ms(&written.times, 0.99),
            failed_writes: written.failed,
            write_error: written.error,
            missing,
            wrong,
            faulty,
            left_of_faulty,
            left_at_end,
        };
        report.findings(args)
    }
}

/// Waits until the server counts at most `clients` clients, or until a timeout. Returns the counts.
async fn left(server: &Server, clients: usize) -> Result<Left> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let metrics = server.metrics().await?;
        let (streams, connections) = (metrics.sum(STREAMS)?, metrics.sum(CONNECTIONS)?);
        let most = float(count(clients)) + 0.5;
        if (streams < most && connections < most) || Instant::now() > deadline {
            return Ok(Left { streams, connections });
        }
        sleep(POLL).await;
    }
}

fn rss_mib(server: &Server) -> Result<f64> {
    Ok(float(server.process().memory()?.rss) / f64::from(1 << 20))
}

/// Returns a quantile of times in microseconds, converted to milliseconds.
fn ms(times: &Histogram<u64>, quantile: f64) -> f64 {
    float(times.value_at_quantile(quantile)) / 1e3
}
