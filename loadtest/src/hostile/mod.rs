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
use tokio::time::sleep;

use crate::{
    author::Author,
    common::Common,
    host::HostTime,
    process::Process,
    random::Random,
    report::{Findings, say},
    server::{Launch, Server},
    stats::{count, float},
};

mod args;
pub(crate) mod arrivals;
pub(crate) mod clients;
mod memory;
mod report;
pub(crate) mod updates;

pub(crate) use args::Args;
use arrivals::{Arrivals, Part};
use clients::Clients;
use memory::Sampler;
use report::{Faulty, Left, Measured, Report, Row, Rss, ms};
use updates::Updates;

/// The maximum wait until all clients have the last update, and until the server no longer counts
/// clients that have left.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(100);
const STREAMS: &str = "chancery_xds_streams";
const CONNECTIONS: &str = "chancery_xds_connections";

/// The state of a run.
struct Run<'a> {
    args: &'a Args,
    server: Server,
    sampler: Sampler,
    arrivals: Arc<Arrivals>,
    healthy: Clients,
    updates: Updates,
    random: Random,
    faulty: Faulty,
}

pub(crate) async fn run(args: &Args, common: &Common, dir: &Path) -> Result<Findings> {
    ensure!(args.healthy() > 0, "--clients must be greater than --never-read plus --never-ack");
    ensure!(
        args.updates_per_second > 0 && args.resources > 0,
        "--updates-per-second and --resources must be greater than 0"
    );
    ensure!(args.rounds > 0, "--rounds must be greater than 0");
    let [round, settle, long] = [args.round_seconds, args.settle_seconds, args.minutes * 60.0]
        .map(Duration::try_from_secs_f64);
    let (round, settle, long) = (round?, settle?, long?);
    ensure!(
        !round.is_zero() && !long.is_zero(),
        "--round-seconds and --minutes must be greater than 0"
    );

    let launch = Launch::new(&common.binary, dir, common.pinning.server, "")?;
    let server = launch.start().await?;
    let mut author = Author::connect(server.admin).await?;
    author.load(0, args.resources).await?;
    let loaded = rss_mib(&server)?;
    let mut run = start(args, server, author).await?;
    let mut measured = Vec::new();
    for n in 1..=args.rounds {
        measured.push(run.measured(settle, round).await?);
        measured.push(run.with_faulty(settle, round).await?);
        say!("round {n} of {}", args.rounds);
    }
    measured.push(run.measured(settle, round).await?);
    let healthy = rss_mib(&run.server)?;
    let clients = run.open_faulty().await?;
    say!("{} minutes with all clients", args.minutes);
    let together = run.together(&clients, settle, long).await?;
    let all = rss_mib(&run.server)?;
    drop(clients);
    let left_of_faulty = left(&run.server, args.healthy()).await?;
    sleep(settle).await;
    let after = rss_mib(&run.server)?;
    let rss = Rss { loaded, healthy, all, after, end: after };
    run.end(measured, together, left_of_faulty, rss).await
}

/// Connects the healthy clients and starts the updates.
async fn start(args: &Args, server: Server, mut author: Author) -> Result<Run<'_>> {
    let revision = author.cluster().await.context("read the revision")?.revision;
    let arrivals = Arc::new(Arrivals::new(revision));
    let healthy = Clients::healthy(server.xds, &arrivals, args.healthy(), args.resources).await?;
    healthy.synced(PATIENCE).await?;
    say!("{} healthy clients hold {} clusters", args.healthy(), args.resources);
    let mut random = Random::new(args.seed);
    let of_updates = Random::new(random.number());
    let per_second = args.updates_per_second;
    let for_updates = Arc::clone(&arrivals);
    let updates = Updates::start(author, for_updates, per_second, args.resources, of_updates);
    let sampler = Sampler::start(server.process());
    let faulty = Faulty::default();
    Ok(Run { args, server, sampler, arrivals, healthy, updates, random, faulty })
}

impl Run<'_> {
    /// Waits for `settle`, then measures for `time`.
    async fn measured(&self, settle: Duration, time: Duration) -> Result<Measured> {
        sleep(settle).await;
        let host = HostTime::now()?;
        let own = Process::own().cpu_time()?;
        let server = self.server.process().cpu_time()?;
        let counts = self.healthy.counts();
        let (part, from) = (self.arrivals.begin(), Instant::now());
        sleep(time).await;
        self.arrivals.end();
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
        self.faulty.missing += self.missing_of(measured.part).await;
        Ok(Measured { with_faulty: true, ..measured })
    }

    /// Waits until all healthy clients have the updates of a part, or until a timeout. Returns the number of updates that
    /// some of them lack.
    async fn missing_of(&self, part: Part) -> u64 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let missing = self.arrivals.missing_of(part, count(self.args.healthy()));
            if missing == 0 || self.healthy.wrong() > 0 || Instant::now() > deadline {
                return missing;
            }
            sleep(POLL).await;
        }
    }

    /// Ends the updates, then the clients, and returns the findings.
    async fn end(
        self,
        measured: Vec<Measured>,
        together: Measured,
        left_of_faulty: Left,
        rss: Rss,
    ) -> Result<Findings> {
        let Self { args, server, sampler, arrivals, healthy, updates, faulty, .. } = self;
        let written = updates.stop().await?;
        let deadline = Instant::now() + PATIENCE;
        let clients = count(args.healthy());
        while arrivals.missing(clients) > 0 && healthy.wrong() == 0 && Instant::now() < deadline {
            sleep(POLL).await;
        }
        healthy.complaints().iter().for_each(|complaint| say!("a healthy client: {complaint}"));
        let (missing, wrong) = (arrivals.missing(clients), healthy.wrong());
        drop(healthy);
        let left_at_end = left(&server, 0).await?;
        let rss = Rss { end: rss_mib(&server)?, ..rss };
        let warm = together.from + (together.to - together.from) / 5;
        let course = sampler.course(warm, together.to);
        drop(sampler);
        server.kill().await?;
        let report = Report {
            rounds: measured.iter().map(|it| Row::of(it, &arrivals)).collect(),
            long: Row::of(&together, &arrivals),
            course,
            rss,
            updates: arrivals.written(),
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
