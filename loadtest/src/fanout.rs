//! The server CPU of one change for each client that receives it, in small and large views.
//!
//! Each size of view has its own server. The servers run at the same time and take turns, so that
//! other load on the machine affects all of them. A turn is a number of updates in sequence: one
//! resource changes, and all clients acknowledge the change before the next update.
//!
//! The cost is the CPU time of the server over the whole turn, including the writes, divided by the
//! deliveries. The first size opens and closes each round (A B A), and the ratio of a round is to
//! the mean of both. Each round also measures writes that no client receives. They show which part
//! of the cost does not come from deliveries.

use std::{
    fmt::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use crate::{
    author::Author,
    certificates::Security,
    common::Common,
    host::{HostTime, Pinning},
    process::{CpuTime, Process},
    report::{Findings, Gate, say},
    resource::{self, Content},
    server::Server,
    sinks,
    stats::{Latencies, Spread, count, float},
    wildcard_clients::{Expected, Totals, WildcardClients},
};

const SYNC: Duration = Duration::from_secs(300);
const ACK: Duration = Duration::from_secs(20);
/// The wait after the last acknowledgment was sent. The work that it causes in the server belongs
/// to the turn.
const LAST_ACKS: Duration = Duration::from_millis(50);
/// A scope that is assigned to no node.
const UNSEEN: &str = "loadtest/unseen";
const ACKS: &str = "chancery_xds_acks_total";

/// Measure server CPU per acknowledged delivery in small and large views
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The resources, and with them the protocol of the clients.
    #[arg(skip = Content::Clusters)]
    pub(crate) content: Content,
    /// Whether each size has a second server, whose clients use mutual TLS.
    #[arg(skip)]
    pub(crate) compares_tls: bool,
    /// Sizes of the views in clusters of about 1 KB; the first is the base of the comparison
    #[arg(long, value_delimiter = ',', default_value = "100,100000")]
    pub(crate) resources: Vec<usize>,
    /// Wildcard delta streams per size
    #[arg(long, default_value_t = 100)]
    pub(crate) streams: usize,
    /// Streams per connection
    #[arg(long, default_value_t = 1)]
    pub(crate) streams_per_connection: usize,
    /// Updates per turn
    #[arg(long, default_value_t = 500)]
    pub(crate) updates: usize,
    /// Rounds; in each, the first size has two turns and the others have one
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// Maximum ratio of the cost per delivery to that of the first size
    #[arg(long, default_value_t = 1.25)]
    pub(crate) ratio_max: f64,
    /// Let server and clients run on any CPU, instead of one CPU for each of them
    #[arg(long)]
    pub(crate) no_pin: bool,
}

/// The server, clients and measurements of one size.
struct Side {
    content: Content,
    resources: usize,
    security: Security,
    server: Server,
    author: Author,
    clients: WildcardClients,
    generation: u64,
    turns: Vec<Turn>,
    /// Microseconds of CPU per write to a scope that no node has, by round.
    writes: Vec<f64>,
    after_sync: Totals,
    synced_in: Duration,
}

/// The measurements of one turn.
struct Turn {
    cpu: CpuTime,
    deliveries: u64,
    elapsed: Duration,
    wire: Totals,
    latencies: Vec<Duration>,
    others: f64,
}

/// The statistics of one size.
#[derive(Debug, Serialize)]
struct Row {
    resources: usize,
    security: Security,
    streams: usize,
    sync_seconds: f64,
    /// Microseconds of the server's CPU per acknowledged delivery.
    cpu_us: Spread,
    cpu_user_us: Spread,
    cpu_system_us: Spread,
    /// Microseconds of the server's CPU per write that no client receives.
    cpu_us_per_write: Spread,
    deliveries: u64,
    /// Resources on the wire per delivery, over all deliveries.
    resources_per_delivery: f64,
    bytes_per_delivery: f64,
    /// The time from the write request to the acknowledgment of the last client.
    latency: Option<Latencies>,
    deliveries_per_second: Spread,
    /// The CPUs that other processes used during the turns.
    others: Spread,
    /// The ratio of the cost to that of the first size, by round.
    ratio: Option<Spread>,
    /// Full states that sinks of MCP received after their first response.
    full_resends: u64,
    wrong: u64,
}

impl Args {
    pub(crate) fn pinning(&self) -> Result<Pinning> {
        if self.no_pin { Ok(Pinning::NONE) } else { Pinning::apart() }
    }

    pub(crate) async fn run(&self, common: &Common, dir: &Path) -> Result<Findings> {
        ensure!(!self.resources.is_empty(), "--resources is empty; name at least one size");
        ensure!(
            self.resources.iter().all(|n| *n > 0),
            "--resources contains 0; a view needs at least one resource"
        );
        ensure!(
            self.rounds > 0 && self.updates > 0 && self.streams > 0,
            "--rounds, --updates and --streams must be above 0"
        );
        let mut sides = Vec::new();
        let securities: &[Security] = if self.compares_tls {
            &[Security::Plaintext, Security::MutualTls]
        } else {
            &[Security::Plaintext]
        };
        for resources in &self.resources {
            for security in securities {
                let dir = dir.join(sides.len().to_string());
                sides.push(self.side(common, &dir, *resources, *security).await?);
            }
        }
        let mut ratios = vec![Vec::new(); sides.len()];
        for round in 0..self.rounds {
            let mut costs = Vec::new();
            for side in &mut sides {
                costs.push(self.turn(side).await?);
            }
            let Some(first) = sides.first_mut() else { continue };
            let again = self.turn(first).await?;
            let base = costs.first().map_or(again, |first| f64::midpoint(*first, again));
            for side in &mut sides {
                self.writes_alone(side).await?;
            }
            for (ratios, cost) in ratios.iter_mut().zip(&costs).skip(1) {
                ratios.push(cost / base);
            }
            say!("round {} of {}: {}", round + 1, self.rounds, shown(&costs, again));
        }
        self.findings(sides, &ratios).await
    }

    async fn side(
        &self,
        common: &Common,
        dir: &Path,
        resources: usize,
        security: Security,
    ) -> Result<Side> {
        let (server, xds) = security.start(common, dir, common.pinning.server).await?;
        let mut author = Author::connect(server.admin).await?;
        author.load_content(self.content, 0, resources).await?;
        let start = Instant::now();
        let expected = Expected::of(self.content, resources);
        let (n, per_connection) = (self.streams, self.streams_per_connection);
        let clients = match self.content {
            Content::Clusters => WildcardClients::connect(xds, n, per_connection, expected).await?,
            Content::Collection => sinks::connect(xds, n, per_connection, expected).await?,
        };
        clients.synced(SYNC).await?;
        let synced_in = start.elapsed();
        say!("{resources} resources: {} streams synced in {synced_in:.1?}", self.streams);
        let after_sync = clients.totals();
        Ok(Side {
            content: self.content,
            resources,
            security,
            server,
            author,
            clients,
            generation: 0,
            turns: Vec::new(),
            writes: Vec::new(),
            after_sync,
            synced_in,
        })
    }

    /// Runs one turn. Returns the microseconds of CPU per delivery.
    async fn turn(&self, side: &mut Side) -> Result<f64> {
        let acks = side.server.metrics().await?.sum(ACKS)?;
        let wire = side.clients.totals();
        let host = HostTime::now()?;
        let own = Process::own().cpu_time()?;
        let cpu = side.server.process().cpu_time()?;
        let start = Instant::now();
        let mut latencies = Vec::with_capacity(self.updates);
        for _ in 0..self.updates {
            latencies.push(side.update().await?);
        }
        let elapsed = start.elapsed();
        tokio::time::sleep(LAST_ACKS).await;
        let cpu = side.server.process().cpu_time()? - cpu;
        let own = Process::own().cpu_time()? - own;
        let others = HostTime::now()?.others_since(host, &[cpu, own]);
        let deliveries = count(self.updates * self.streams);
        side.counts(acks + float(deliveries)).await?;
        let wire = side.clients.totals() - wire;
        side.turns.push(Turn { cpu, deliveries, elapsed, wire, latencies, others });
        Ok(micros(cpu.total(), deliveries))
    }

    /// Measures the same number of writes to a scope that no node has.
    async fn writes_alone(&self, side: &mut Side) -> Result<()> {
        let cpu = side.server.process().cpu_time()?;
        for _ in 0..self.updates {
            side.generation += 1;
            let resource = side.content.resource(0, side.generation);
            side.author.apply(&[resource::manifest(UNSEEN, vec![resource])]).await?;
        }
        tokio::time::sleep(LAST_ACKS).await;
        let cpu = side.server.process().cpu_time()? - cpu;
        side.writes.push(micros(cpu.total(), count(self.updates)));
        Ok(())
    }

    async fn findings(&self, sides: Vec<Side>, ratios: &[Vec<f64>]) -> Result<Findings> {
        let mut rows = Vec::new();
        let mut gates = Vec::new();
        for (side, ratios) in sides.into_iter().zip(ratios) {
            let row = self.row(&side, Spread::of(ratios)).context("no turns")?;
            let wrong = row.wrong + row.deliveries.abs_diff(side.on_the_wire().resources);
            gates.push(Gate::none("responses other than the one changed resource", wrong));
            if self.content == Content::Collection {
                let resends = row.full_resends;
                gates.push(Gate::none("full states after the first response of a sink", resends));
            }
            if let Some(ratio) = row.ratio {
                let what = if self.compares_tls {
                    "CPU per delivery, ratio to plaintext, median of the rounds"
                } else {
                    "CPU per delivery, ratio to the first size, median of the rounds"
                };
                gates.push(Gate::at_most(what, ratio.median, self.ratio_max));
            }
            rows.push(row);
            side.server.kill().await?;
        }
        let data =
            serde_json::json!({"rounds": self.rounds, "updates": self.updates, "sizes": rows});
        Ok(Findings { text: self.text(&rows)?, data, gates })
    }

    fn row(&self, side: &Side, ratio: Option<Spread>) -> Option<Row> {
        let spread =
            |of: &dyn Fn(&Turn) -> f64| Spread::of(&side.turns.iter().map(of).collect::<Vec<_>>());
        let deliveries: u64 = side.turns.iter().map(|turn| turn.deliveries).sum();
        let wire = side.on_the_wire();
        let latencies = side.turns.iter().flat_map(|turn| turn.latencies.iter().copied());
        Some(Row {
            resources: side.resources,
            security: side.security,
            streams: self.streams,
            sync_seconds: side.synced_in.as_secs_f64(),
            cpu_us: spread(&|turn| micros(turn.cpu.total(), turn.deliveries))?,
            cpu_user_us: spread(&|turn| micros(turn.cpu.user(), turn.deliveries))?,
            cpu_system_us: spread(&|turn| micros(turn.cpu.system(), turn.deliveries))?,
            cpu_us_per_write: Spread::of(&side.writes)?,
            deliveries,
            resources_per_delivery: float(wire.resources) / float(deliveries),
            bytes_per_delivery: float(wire.bytes) / float(deliveries),
            latency: Latencies::of(latencies.collect()),
            deliveries_per_second: spread(&|turn| {
                float(turn.deliveries) / turn.elapsed.as_secs_f64()
            })?,
            others: spread(&|turn| turn.others)?,
            ratio,
            full_resends: side.clients.totals().full_resends,
            // Resources that arrived after the sync and outside of all turns are wrong too.
            wrong: side.clients.totals().wrong + side.clients.totals().resources
                - side.after_sync.resources
                - wire.resources,
        })
    }

    fn text(&self, rows: &[Row]) -> Result<String> {
        let mut text = String::new();
        let clients = match self.content {
            Content::Clusters => "wildcard delta streams",
            Content::Collection => "sinks of MCP",
        };
        writeln!(
            text,
            "{} {clients} ({} per connection), one resource changes; {} rounds of {} updates per turn; median (min to max)",
            self.streams, self.streams_per_connection, self.rounds, self.updates
        )?;
        for row in rows {
            writeln!(text, "\nview of {} resources, {}", row.resources, row.security)?;
            writeln!(text, "  first sync of all streams     {:.1} s", row.sync_seconds)?;
            writeln!(text, "  server CPU per delivery, µs   {:.2}", row.cpu_us)?;
            writeln!(text, "    of it user                  {:.2}", row.cpu_user_us)?;
            writeln!(text, "    of it kernel                {:.2}", row.cpu_system_us)?;
            writeln!(text, "  CPU per unseen write, µs      {:.0}", row.cpu_us_per_write)?;
            if let Some(ratio) = row.ratio {
                writeln!(text, "  ratio to the first, by round  {ratio:.3}")?;
            }
            writeln!(text, "  acknowledged deliveries       {}", row.deliveries)?;
            writeln!(
                text,
                "  on the wire, per delivery     {:.4} resources, {:.0} bytes",
                row.resources_per_delivery, row.bytes_per_delivery
            )?;
            if let Some(latency) = &row.latency {
                writeln!(text, "  write to last acknowledgment  {latency}")?;
            }
            writeln!(text, "  deliveries per second         {:.0}", row.deliveries_per_second)?;
            writeln!(text, "  CPUs used by others           {:.2}", row.others)?;
        }
        Ok(text)
    }
}

impl Side {
    /// Changes one resource, and waits until all clients have acknowledged it. Returns the duration.
    async fn update(&mut self) -> Result<Duration> {
        self.generation += 1;
        // The updates visit all resources of the view, because 7919 is prime.
        let generation = usize::try_from(self.generation).unwrap_or(usize::MAX);
        let n = generation.wrapping_mul(7919) % self.resources;
        let resource = self.content.resource(n, self.generation);
        self.clients.expect(&self.content.name(n));
        let start = Instant::now();
        let manifest = resource::manifest(resource::SCOPE, vec![resource]);
        let written = self.author.apply(&[manifest]).await.context("change a resource")?;
        ensure!(written.changed == 1, "an update changed {} resources", written.changed);
        self.clients.acked(ACK).await?;
        Ok(start.elapsed())
    }

    /// Waits until the server has counted exactly `expected` acknowledgments.
    async fn counts(&self, expected: f64) -> Result<()> {
        let deadline = Instant::now() + ACK;
        loop {
            let acks = self.server.metrics().await?.sum(ACKS)?;
            if (acks - expected).abs() < 0.5 {
                return Ok(());
            }
            ensure!(
                acks < expected && Instant::now() < deadline,
                "the server counted {acks} acknowledgments, but the clients sent {expected}"
            );
            tokio::time::sleep(LAST_ACKS).await;
        }
    }

    /// Returns the sum over all turns.
    fn on_the_wire(&self) -> Totals {
        self.turns.iter().fold(Totals::default(), |sum, turn| sum + turn.wire)
    }
}

fn micros(time: Duration, n: u64) -> f64 {
    time.as_secs_f64() * 1e6 / float(n)
}

fn shown(costs: &[f64], again: f64) -> String {
    let costs: Vec<String> =
        costs.iter().chain([&again]).map(|cost| format!("{cost:.2}")).collect();
    format!("{} µs", costs.join(", "))
}
