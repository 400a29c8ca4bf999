//! More deliveries than clients take, at every replica at once: no replica may stand for election,
//! and writes must continue.
//!
//! Every stream sees all clusters, and every round changes all of them. Each round thus owes every
//! stream one delivery per cluster. Slow streams ensure that deliveries remain owed on any machine.
//! Fast streams read as fast as they can, so that the fan-out of every replica is always busy. The
//! size of the load decides its duration: rounds continue until a minimum number of deliveries was
//! owed for a minimum time. Meanwhile, writers at all replicas write resources that no client sees.
//! At the end, all fast clients have the newest clusters.
//!
//! Other processes may take the CPUs from a replica for long enough to cause an election, with or
//! without this load. The test therefore repeats the load a few times after an election. If the
//! load were the cause, there would be an election in each attempt.

mod client;

use std::{
    fmt::Write as _,
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::{
    author::Author,
    cluster::Cluster,
    common::Common,
    report::{Findings, Gate, say},
    resource,
    rolling::writers::{Writers, Written},
    stats::{Latencies, count, float},
};
use client::{Clients, Deliveries, Pace};

const SYNC: Duration = Duration::from_secs(120);
/// The maximum time until all fast clients have the last round, for a debug build on a busy
/// machine.
const CURRENT: Duration = Duration::from_secs(120);
/// The interval of checks of the owed deliveries, and the pause between rounds.
const SAMPLE: Duration = Duration::from_millis(50);
/// The pause of a writer between two writes.
const PAUSE: Duration = Duration::from_millis(20);
/// The length of an encoded cluster. It is small, because only the number of clusters matters.
const CLUSTER_BYTES: usize = 150;

/// Queue more deliveries than clients take and check leadership and writes
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Replicas
    #[arg(long, default_value_t = 3)]
    replicas: usize,
    /// Streams per replica that read slowly
    #[arg(long, default_value_t = 250)]
    slow: usize,
    /// Streams per replica that read as fast as they can
    #[arg(long, default_value_t = 100)]
    fast: usize,
    /// Streams per connection
    #[arg(long, default_value_t = 25)]
    streams_per_connection: usize,
    /// Clusters that every stream sees; each round changes all of them
    #[arg(long, default_value_t = 200)]
    resources: usize,
    /// Writers of resources that no client sees
    #[arg(long, default_value_t = 3)]
    writers: usize,
    /// Minimum number of rounds
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Minimum number of owed deliveries
    #[arg(long, default_value_t = 100_000)]
    owed_min: u64,
    /// Minimum total seconds with this number of owed deliveries
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Maximum seconds of the load, after which it counts as too small
    #[arg(long, default_value_t = 120.0)]
    seconds_max: f64,
    /// Maximum number of attempts; another attempt follows only after an election
    #[arg(long, default_value_t = 3)]
    attempts: usize,
}

/// The leadership as one replica shows it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Leadership {
    term: f64,
    leader: Option<u64>,
    leader_changes: f64,
}

/// The results of the rounds.
#[derive(Debug, Default)]
struct Results {
    rounds: usize,
    /// The total time with enough owed deliveries.
    enough: Duration,
    /// The maximum of all checks.
    owed_most: u64,
    /// The minimum of the checks directly after a round.
    owed_least: Option<u64>,
    /// The time of each round from its request to the answer.
    latencies: Vec<Duration>,
}

/// One attempt with the load.
struct Attempt {
    before: Vec<Leadership>,
    after: Vec<Leadership>,
    load: Duration,
    results: Results,
    written: Vec<Written>,
}

impl Attempt {
    /// Returns the number of replicas that observed an election.
    fn elections(&self) -> usize {
        // A replica that hears no leader for a moment still follows the same leader.
        let of = |leadership: &Leadership| (leadership.term, leadership.leader_changes);
        self.before
            .iter()
            .zip(&self.after)
            .filter(|(before, after)| of(before) != of(after))
            .count()
    }
}

/// The state of a run.
struct Run {
    cluster: Cluster,
    admin: Vec<SocketAddr>,
    deliveries: Arc<Deliveries>,
    clients: Clients,
    generation: u64,
}

impl Args {
    pub(crate) async fn run(&self, common: &Common, dir: &Path) -> Result<Findings> {
        ensure!(
            self.replicas >= 3,
            "--replicas must be at least 3, so that another replica can take over"
        );
        ensure!(
            self.resources > 0 && self.fast > 0 && self.attempts > 0,
            "--resources, --fast and --attempts must be above 0"
        );
        let cluster = Cluster::start(common, dir, self.replicas, "").await?;
        let mut run = self.connect(cluster).await?;
        let mut attempts = Vec::new();
        while attempts.len() < self.attempts {
            run.cluster.whole().await?;
            let attempt = self.attempt(&mut run).await?;
            let elections = attempt.elections();
            attempts.push(attempt);
            if elections == 0 {
                break;
            }
            say!("there was an election: {:?}", attempts.last().map(|attempt| &attempt.after));
        }
        run.deliveries.wait_for(Pace::Fast, CURRENT).await?;
        say!("all fast clients have the last round");
        let complaints = run.clients.complaints();
        ensure!(complaints.is_empty(), "{}", complaints.join("; "));
        self.findings(&attempts)
    }

    async fn attempt(&self, run: &mut Run) -> Result<Attempt> {
        let before = leadership(&run.cluster).await?;
        let writers = Writers::start(&run.admin, self.writers, PAUSE);
        let started = Instant::now();
        let results = self.press(run).await?;
        let load = started.elapsed();
        let written = writers.finish().await?;
        let after = leadership(&run.cluster).await?;
        Ok(Attempt { before, after, load, results, written })
    }

    async fn connect(&self, cluster: Cluster) -> Result<Run> {
        let ports = cluster.ports();
        let admin: Vec<SocketAddr> = ports.iter().map(|ports| ports.admin).collect();
        let mut author = Author::connect(*admin.first().context("there is no replica")?).await?;
        let revision = self.round(&mut author, 0).await?;
        let streams = ports.len() * (self.slow + self.fast);
        let deliveries = Arc::new(Deliveries::new(count(self.resources), streams));
        deliveries.owe(revision);
        let mut clients = Clients::new(Arc::clone(&deliveries));
        let (slow, fast) = ((Pace::Slow, self.slow), (Pace::Fast, self.fast));
        for ports in &ports {
            for (pace, streams) in [slow, fast] {
                clients.connect(ports.xds, pace, streams, self.streams_per_connection).await?;
            }
        }
        deliveries.wait_for(Pace::Fast, SYNC).await?;
        deliveries.wait_for(Pace::Slow, SYNC).await?;
        cluster.whole().await?;
        say!("{streams} streams at {} replicas have {} clusters", ports.len(), self.resources);
        Ok(Run { cluster, admin, deliveries, clients, generation: 0 })
    }

    /// Changes all clusters. Returns the revision.
    async fn round(&self, author: &mut Author, generation: u64) -> Result<u64> {
        let clusters: Vec<String> = (0..self.resources)
            .map(|n| resource::flat_cluster(n, generation, CLUSTER_BYTES))
            .collect();
        let scope = resource::SCOPE;
        let manifest = format!(r#"{{"scope":"{scope}","resources":[{}]}}"#, clusters.join(","));
        let written = author.apply_text(manifest).await.context("change all clusters")?;
        let changed = written.changed;
        ensure!(changed == count(self.resources), "a round changed {changed} resources");
        Ok(written.revision)
    }

    /// Runs rounds at each replica in turn, until enough deliveries were owed for long enough.
    async fn press(&self, run: &mut Run) -> Result<Results> {
        let sampler = Sampler::start(Arc::clone(&run.deliveries), self.owed_min);
        let mut authors = Vec::new();
        for admin in &run.admin {
            authors.push(Author::connect(*admin).await?);
        }
        let mut results = Results::default();
        let deadline = Instant::now() + Duration::from_secs_f64(self.seconds_max);
        let enough = Duration::from_secs_f64(self.seconds);
        for at in (0..authors.len()).cycle() {
            let author = authors.get_mut(at).context("there is no replica")?;
            run.generation += 1;
            let start = Instant::now();
            let revision = self.round(author, run.generation).await?;
            results.latencies.push(start.elapsed());
            run.deliveries.owe(revision);
            let owed = run.deliveries.owed();
            results.owed_least = Some(results.owed_least.map_or(owed, |least| least.min(owed)));
            results.rounds += 1;
            let so_far = sampler.so_far();
            let done = results.rounds >= self.rounds && so_far.0 >= enough;
            if done || Instant::now() > deadline {
                (results.enough, results.owed_most) = so_far;
                say!("{} rounds: at most {} deliveries were owed", results.rounds, so_far.1);
                break;
            }
            sleep(SAMPLE).await;
        }
        Ok(results)
    }

    fn findings(&self, attempts: &[Attempt]) -> Result<Findings> {
        let last = attempts.last().context("there was no attempt")?;
        let Attempt { after, load, results, written, .. } = last;
        let elections = last.elections();
        let acked = written.iter().map(|written| written.acked.len()).sum::<usize>();
        let failed: u64 = written.iter().flat_map(|written| written.failed.values()).sum();
        let latencies = written.iter().flat_map(|written| written.latencies.iter().copied());
        let (writes, rounds) =
            (Latencies::of(latencies.collect()), Latencies::of(results.latencies.clone()));
        let least = results.owed_least.unwrap_or_default();
        let mut text = String::new();
        let streams = self.replicas * (self.slow + self.fast);
        writeln!(
            text,
            "{} replicas, {streams} wildcard delta streams ({} of them slow), {} clusters, all changed {} times in {load:.1?}",
            self.replicas,
            self.replicas * self.slow,
            self.resources,
            results.rounds
        )?;
        writeln!(text, "  deliveries owed       {least} to {}", results.owed_most)?;
        writeln!(text, "  attempts              {}", attempts.len())?;
        writeln!(text, "  enough of them for    {:.1?}", results.enough)?;
        if let (Some(writes), Some(rounds)) = (&writes, &rounds) {
            writeln!(text, "  latency of a round    {rounds}")?;
            writeln!(text, "  latency of a write    {writes} ({acked} writes)")?;
        }
        for (id, leadership) in (1..).zip(after) {
            writeln!(text, "  replica {id}             {leadership:?}")?;
        }
        let data = json!({
            "streams": streams,
            "attempts": attempts.len(),
            "rounds": results.rounds,
            "owed": {"least": least, "most": results.owed_most, "seconds": results.enough.as_secs_f64()},
            "writes": {"acknowledged": acked, "failed": failed, "latency": writes},
        });
        let gates = vec![
            Gate::none("replicas with a different leader or term than before", count(elections)),
            Gate::none("writes that failed", failed),
            Gate::at_least("deliveries owed after each round", float(least), float(self.owed_min)),
            Gate::at_least(
                "seconds with enough deliveries owed",
                results.enough.as_secs_f64(),
                self.seconds,
            ),
            Gate::at_least("concurrent writes", float(count(acked)), float(count(self.writers))),
        ];
        Ok(Findings { text, data, gates })
    }
}

/// A task that checks the owed deliveries repeatedly, until it is dropped.
struct Sampler {
    task: tokio::task::JoinHandle<()>,
    so_far: Arc<parking_lot::Mutex<(Duration, u64)>>,
}

impl Sampler {
    fn start(deliveries: Arc<Deliveries>, enough: u64) -> Self {
        let so_far = Arc::new(parking_lot::Mutex::default());
        let shared = Arc::clone(&so_far);
        let task = tokio::spawn(async move {
            let mut ticks = interval(SAMPLE);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut last = Instant::now();
            let mut was_enough = false;
            loop {
                ticks.tick().await;
                let (owed, now) = (deliveries.owed(), Instant::now());
                let mut so_far = shared.lock();
                let (time, most): &mut (Duration, u64) = &mut so_far;
                if was_enough && owed >= enough {
                    *time += now - last;
                }
                *most = (*most).max(owed);
                (was_enough, last) = (owed >= enough, now);
            }
        });
        Self { task, so_far }
    }

    /// Returns the total time with enough owed deliveries, and the maximum number of owed
    /// deliveries.
    fn so_far(&self) -> (Duration, u64) {
        *self.so_far.lock()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns the leadership as each replica shows it, in order.
async fn leadership(cluster: &Cluster) -> Result<Vec<Leadership>> {
    let mut all = Vec::new();
    for server in cluster.servers() {
        let metrics = server.metrics().await?;
        let status = Author::connect(server.admin).await?.cluster().await?;
        all.push(Leadership {
            term: metrics.sum("chancery_raft_term")?,
            leader: status.leader,
            leader_changes: metrics.sum("chancery_raft_leader_changes_total")?,
        });
    }
    Ok(all)
}
