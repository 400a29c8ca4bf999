//! Far more to be sent than clients take, at every replica at once: nobody stands for election, and writes
//! go on.
//!
//! Every stream sees all clusters, and every round changes all of them: each round owes each stream so many
//! deliveries. Half of the streams read so slowly that what they are owed is there whatever the machine
//! can do; the others read as fast as they can, so that the fan-out of every replica never rests. The load
//! is chosen by its size: rounds go on until so much was owed for so long. Meanwhile writers write at all
//! replicas what no client sees, and at the end everybody who reads has the newest of everything.
//!
//! Somebody else may take the processors away from a replica for so long that the others stand for election,
//! with this load or without. So it is put on again after an election, a few times: if the load were to
//! blame there would be one each time.

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
    Common,
    author::Author,
    cluster::Cluster,
    report::{Findings, Gate, say},
    resource,
    rolling::writers::{Writers, Written},
    stats::{Latencies, count, float},
};
use client::{Board, Clients, Pace};

const SYNC: Duration = Duration::from_secs(120);
/// The newest of everything is with all that read it after so long, in a debug build on a busy machine.
const CURRENT: Duration = Duration::from_secs(120);
/// Between two looks at what is owed.
const LOOK: Duration = Duration::from_millis(50);
/// A writer pauses so long.
const PAUSE: Duration = Duration::from_millis(20);
/// Of an encoded cluster: small, so that what counts is how many there are.
const CLUSTER_BYTES: usize = 150;

/// Whether the cluster keeps its leader while every replica has more to send than it can.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Replicas.
    #[arg(long, default_value_t = 3)]
    replicas: usize,
    /// Streams at each replica that read slowly.
    #[arg(long, default_value_t = 250)]
    slow: usize,
    /// Streams at each replica that read as fast as they can.
    #[arg(long, default_value_t = 100)]
    fast: usize,
    /// Streams on one connection.
    #[arg(long, default_value_t = 25)]
    streams_per_connection: usize,
    /// Clusters that every stream sees, all of which each round changes.
    #[arg(long, default_value_t = 200)]
    resources: usize,
    /// Writers of what no client sees.
    #[arg(long, default_value_t = 3)]
    writers: usize,
    /// Rounds, at least.
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Deliveries that have to be owed.
    #[arg(long, default_value_t = 100_000)]
    owed_min: u64,
    /// Seconds for which they have to be, all together.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// The load is given up after so many seconds; then it was too small.
    #[arg(long, default_value_t = 120.0)]
    seconds_max: f64,
    /// The load is put on so often at most, as long as there is an election meanwhile.
    #[arg(long, default_value_t = 3)]
    attempts: usize,
}

/// What a replica says of its elections.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Leading {
    term: f64,
    leader: Option<u64>,
    leader_changes: f64,
}

/// What came of the rounds.
#[derive(Debug, Default)]
struct Pressed {
    rounds: usize,
    /// For how long enough was owed.
    enough: Duration,
    /// Of all looks.
    owed_most: u64,
    /// Of the looks right after a round.
    owed_least: Option<u64>,
    /// From the request to its answer, of the rounds.
    latencies: Vec<Duration>,
}

/// The load put on once.
struct Attempt {
    before: Vec<Leading>,
    after: Vec<Leading>,
    load: Duration,
    pressed: Pressed,
    written: Vec<Written>,
}

impl Attempt {
    /// Replicas that know of one.
    fn elections(&self) -> usize {
        // One that hears nobody for a moment follows the same leader all the same.
        let of = |leading: &Leading| (leading.term, leading.leader_changes);
        self.before
            .iter()
            .zip(&self.after)
            .filter(|(before, after)| of(before) != of(after))
            .count()
    }
}

/// All that takes part.
struct Run {
    cluster: Cluster,
    admin: Vec<SocketAddr>,
    board: Arc<Board>,
    clients: Clients,
    generation: u64,
}

impl Args {
    pub(crate) async fn run(&self, common: &Common, dir: &Path) -> Result<Findings> {
        ensure!(self.replicas >= 3, "--replicas: with fewer than 3 nobody can take over");
        ensure!(self.resources > 0 && self.fast > 0 && self.attempts > 0, "there is nothing to do");
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
        run.board.wait_for(Pace::Fast, CURRENT).await?;
        say!("all fast clients have what the last round wrote");
        let complaints = run.clients.complaints();
        ensure!(complaints.is_empty(), "{}", complaints.join("; "));
        self.findings(&attempts)
    }

    async fn attempt(&self, run: &mut Run) -> Result<Attempt> {
        let before = leading(&run.cluster).await?;
        let writers = Writers::start(&run.admin, self.writers, PAUSE);
        let started = Instant::now();
        let pressed = self.press(run).await?;
        let load = started.elapsed();
        let written = writers.finish().await?;
        let after = leading(&run.cluster).await?;
        Ok(Attempt { before, after, load, pressed, written })
    }

    async fn connect(&self, cluster: Cluster) -> Result<Run> {
        let ports = cluster.ports();
        let admin: Vec<SocketAddr> = ports.iter().map(|ports| ports.admin).collect();
        let mut author = Author::connect(*admin.first().context("there is no replica")?).await?;
        let revision = self.round(&mut author, 0).await?;
        let streams = ports.len() * (self.slow + self.fast);
        let board = Arc::new(Board::new(count(self.resources), streams));
        board.owe(revision);
        let mut clients = Clients::new(Arc::clone(&board));
        let (slow, fast) = ((Pace::Slow, self.slow), (Pace::Fast, self.fast));
        for ports in &ports {
            for (pace, streams) in [slow, fast] {
                clients.connect(ports.xds, pace, streams, self.streams_per_connection).await?;
            }
        }
        board.wait_for(Pace::Fast, SYNC).await?;
        board.wait_for(Pace::Slow, SYNC).await?;
        cluster.whole().await?;
        say!("{streams} streams at {} replicas have {} clusters", ports.len(), self.resources);
        Ok(Run { cluster, admin, board, clients, generation: 0 })
    }

    /// Changes all clusters. Gives the revision.
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

    /// One round after the other, at one replica after the other, until enough was owed for long enough.
    async fn press(&self, run: &mut Run) -> Result<Pressed> {
        let looks = Looks::start(Arc::clone(&run.board), self.owed_min);
        let mut authors = Vec::new();
        for admin in &run.admin {
            authors.push(Author::connect(*admin).await?);
        }
        let mut pressed = Pressed::default();
        let deadline = Instant::now() + Duration::from_secs_f64(self.seconds_max);
        let enough = Duration::from_secs_f64(self.seconds);
        for at in (0..authors.len()).cycle() {
            let author = authors.get_mut(at).context("there is no replica")?;
            run.generation += 1;
            let start = Instant::now();
            let revision = self.round(author, run.generation).await?;
            pressed.latencies.push(start.elapsed());
            run.board.owe(revision);
            let owed = run.board.owed();
            pressed.owed_least = Some(pressed.owed_least.map_or(owed, |least| least.min(owed)));
            pressed.rounds += 1;
            let so_far = looks.so_far();
            let done = pressed.rounds >= self.rounds && so_far.0 >= enough;
            if done || Instant::now() > deadline {
                (pressed.enough, pressed.owed_most) = so_far;
                say!("{} rounds: at most {} deliveries were owed", pressed.rounds, so_far.1);
                break;
            }
            sleep(LOOK).await;
        }
        Ok(pressed)
    }

    fn findings(&self, attempts: &[Attempt]) -> Result<Findings> {
        let last = attempts.last().context("there is nothing to tell")?;
        let Attempt { after, load, pressed, written, .. } = last;
        let elections = last.elections();
        let acked = written.iter().map(|written| written.acked.len()).sum::<usize>();
        let failed: u64 = written.iter().flat_map(|written| written.failed.values()).sum();
        let latencies = written.iter().flat_map(|written| written.latencies.iter().copied());
        let (writes, rounds) =
            (Latencies::of(latencies.collect()), Latencies::of(pressed.latencies.clone()));
        let least = pressed.owed_least.unwrap_or_default();
        let mut text = String::new();
        let streams = self.replicas * (self.slow + self.fast);
        writeln!(
            text,
            "{} replicas, {streams} wildcard delta streams ({} of them slow), {} clusters, all changed {} times in {load:.1?}",
            self.replicas,
            self.replicas * self.slow,
            self.resources,
            pressed.rounds
        )?;
        writeln!(text, "  deliveries owed       {least} to {}", pressed.owed_most)?;
        writeln!(text, "  attempts              {}", attempts.len())?;
        writeln!(text, "  enough of them for    {:.1?}", pressed.enough)?;
        if let (Some(writes), Some(rounds)) = (&writes, &rounds) {
            writeln!(text, "  a write of all        {rounds}")?;
            writeln!(text, "  a write beside        {writes} ({acked} of them)")?;
        }
        for (id, leading) in (1..).zip(after) {
            writeln!(text, "  replica {id}             {leading:?}")?;
        }
        let data = json!({
            "streams": streams,
            "attempts": attempts.len(),
            "rounds": pressed.rounds,
            "owed": {"least": least, "most": pressed.owed_most, "seconds": pressed.enough.as_secs_f64()},
            "writes": {"acknowledged": acked, "failed": failed, "latency": writes},
        });
        let gates = vec![
            Gate::none("replicas with another leader or term than before", count(elections)),
            Gate::none("writes that failed", failed),
            Gate::at_least("deliveries owed after each round", float(least), float(self.owed_min)),
            Gate::at_least("seconds with so many owed", pressed.enough.as_secs_f64(), self.seconds),
            Gate::at_least("writes beside", float(count(acked)), float(count(self.writers))),
        ];
        Ok(Findings { text, data, gates })
    }
}

/// Looks at what is owed, again and again. Ends when it is dropped.
struct Looks {
    task: tokio::task::JoinHandle<()>,
    so_far: Arc<parking_lot::Mutex<(Duration, u64)>>,
}

impl Looks {
    fn start(board: Arc<Board>, enough: u64) -> Self {
        let so_far = Arc::new(parking_lot::Mutex::default());
        let shared = Arc::clone(&so_far);
        let task = tokio::spawn(async move {
            let mut ticks = interval(LOOK);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut last = Instant::now();
            let mut was_enough = false;
            loop {
                ticks.tick().await;
                let (owed, now) = (board.owed(), Instant::now());
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

    /// For how long enough was owed, and the most that was.
    fn so_far(&self) -> (Duration, u64) {
        *self.so_far.lock()
    }
}

impl Drop for Looks {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What all replicas say, in the order of their places.
async fn leading(cluster: &Cluster) -> Result<Vec<Leading>> {
    let mut all = Vec::new();
    for server in cluster.servers() {
        let metrics = server.metrics().await?;
        let status = Author::connect(server.admin).await?.cluster().await?;
        all.push(Leading {
            term: metrics.sum("chancery_raft_term")?,
            leader: status.leader,
            leader_changes: metrics.sum("chancery_raft_leader_changes_total")?,
        });
    }
    Ok(all)
}
