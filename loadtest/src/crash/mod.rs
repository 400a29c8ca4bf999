//! Repeated SIGKILL under write load. No acknowledged write is lost, and no untouched cluster
//! changes. A write in flight takes effect as a whole or not at all.
//!
//! In each round, writers write as fast as they can, each to its own clusters in two scopes, and a
//! client listens. The server is killed at a random time after the first acknowledgment, or before
//! it. Sometimes the next start is killed too. Then the server is started on the same directory,
//! and everything that it shows is compared with the [`History`]. A seed reproduces the times, but
//! not the activity of the server at these times.

use std::{fmt::Write as _, path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tokio::{sync::Notify, task::JoinSet, time::timeout};

use crate::{
    author::Author,
    common::Common,
    random::Random,
    report::{Findings, Gate, say},
    resource,
    server::{Launch, Server},
    stats::{Latencies, count, float},
};

mod history;
mod observe;
mod plant;
mod writer;

use history::{Fault, History, Kind, Report, Verdict, names};
pub(crate) use observe::Cluster;
use observe::observe;
use plant::plant;
use writer::{SCOPES, Writer};

/// Small enough that short runs include snapshots and purges of the log.
const CONFIG: &str = "[store]\nsnapshot_log_entries = 300\n";
/// One of this number of starts is killed too.
const KILLED_STARTS: u64 = 4;
/// One of this number of kills under load does not wait for the first write.
const EARLY_KILLS: u64 = 8;
/// The maximum wait for the first write.
const FIRST_WRITE: Duration = Duration::from_secs(20);
/// The maximum number of faults in the text.
const FAULTS_SHOWN: usize = 20;

/// Kill the server under write load and check that no write is lost or changed
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Kills of the server
    #[arg(long, default_value_t = 200)]
    kills: u64,
    /// Concurrent writers
    #[arg(long, default_value_t = 16)]
    writers: usize,
    /// Clusters that no writer changes
    #[arg(long, default_value_t = 500)]
    kept: usize,
    /// Maximum time from the first acknowledged write to the kill, in milliseconds
    #[arg(long, default_value_t = 300)]
    load_ms: u64,
    /// Seed of the random times
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The results of all rounds.
#[derive(Debug, Default)]
struct Sum {
    kills: u64,
    kills_while_starting: u64,
    kills_with_writes_in_flight: u64,
    acked: u64,
    in_flight: u64,
    landed: u64,
    unchanged: u64,
    pushed: u64,
    faults: Vec<Fault>,
    planted: u64,
    missed: Vec<String>,
    starts: Vec<Duration>,
    snapshot_index: u64,
    revision: u64,
}

impl Args {
    pub(crate) async fn run(&self, common: &Common, dir: &Path) -> Result<Findings> {
        ensure!(
            self.kills > 0 && self.writers > 0 && self.kept > 0,
            "--kills, --writers and --kept must be above 0"
        );
        let launch = Launch::new(&common.binary, dir, common.pinning.server, CONFIG)?;
        let mut random = Random::new(self.seed);
        let mut server = launch.start().await?;
        self.prepare(&server).await?;
        let (observation, mut watcher) = observe(&server).await?;
        let mut history = History::new(observation, self.writers);
        let mut sum = Sum::default();
        let mut round = 0;
        while sum.kills < self.kills {
            round += 1;
            let reports = self.write_and_kill(server, &history, round, &mut random).await?;
            sum.kills += 1;
            let in_flight = reports.iter().any(|report| report.in_flight.is_some());
            sum.kills_with_writes_in_flight += u64::from(in_flight);
            let pushed = watcher.given().await?;
            sum.pushed += count(pushed.len());
            history.record(reports, pushed);
            if sum.kills < self.kills && random.one_in(KILLED_STARTS) {
                let longest = sum.starts.last().copied().unwrap_or(Duration::from_millis(100));
                let starting = launch.spawn()?;
                tokio::time::sleep(random.time(longest)).await;
                starting.kill().await?;
                sum.kills += 1;
                sum.kills_while_starting += 1;
            }
            server = launch.start().await?;
            sum.starts.push(server.started_in);
            let (now, next) = observe(&server).await?;
            watcher = next;
            let verdict = history.check(&now);
            for planted in plant(&history, &now) {
                let found = history.check(&planted.observation).faults;
                sum.planted += 1;
                if !found.iter().any(|fault| fault.kind == planted.expected) {
                    sum.missed.push(format!("round {round}: {}", planted.what));
                }
            }
            sum.revision = now.revision;
            history.settle(now);
            sum.add(round, verdict);
            if round % 10 == 0 {
                say!("{sum}");
            }
        }
        let status = Author::connect(server.admin).await?.cluster().await?;
        sum.snapshot_index = status.snapshot_index;
        server.kill().await?;
        watcher.given().await?;
        self.findings(sum)
    }

    /// Assigns both scopes to all nodes, and publishes the clusters that no writer changes.
    async fn prepare(&self, server: &Server) -> Result<()> {
        let mut author = Author::connect(server.admin).await?;
        let assignment = json!({"assignments": [
            {"name": "crash", "priority": 10, "match": {}, "scopes": SCOPES},
        ]});
        author.apply(&[assignment]).await.context("assign the scopes")?;
        let kept = (0..self.kept).map(|n| resource::cluster(n, 0)).collect();
        author.apply(&[resource::manifest(SCOPES[0], kept)]).await.context("publish clusters")?;
        Ok(())
    }

    async fn write_and_kill(
        &self,
        server: Server,
        history: &History,
        round: u64,
        random: &mut Random,
    ) -> Result<Vec<Report>> {
        let mut writers = JoinSet::new();
        let acked = Arc::new(Notify::new());
        for number in 0..self.writers {
            let author = Author::connect(server.admin).await?;
            let [a, _, _] = names(number);
            let holds_left = history.base().clusters.contains_key(&a);
            let random = Random::new(random.number());
            let writer = Writer { number, round, holds_left, random, acked: Arc::clone(&acked) };
            writers.spawn(async move { (number, writer.run(author).await) });
        }
        // The first write after a start takes longer than the others. Some kills come before it.
        if !random.one_in(EARLY_KILLS) {
            drop(timeout(FIRST_WRITE, acked.notified()).await);
        }
        tokio::time::sleep(random.time(Duration::from_millis(self.load_ms))).await;
        server.kill().await?;
        let mut reports = vec![Report::default(); self.writers];
        while let Some(ended) = writers.join_next().await {
            let (number, report) = ended?;
            if let Some(place) = reports.get_mut(number) {
                *place = report?;
            }
        }
        Ok(reports)
    }

    fn findings(&self, sum: Sum) -> Result<Findings> {
        let of = |kind: Kind| count(sum.faults.iter().filter(|fault| fault.kind == kind).count());
        let lost = of(Kind::Lost) + of(Kind::RevisionBack);
        let wrong = count(sum.faults.len()) - lost;
        let starts = Latencies::of(sum.starts.clone());
        let mut text = format!("seed {}, {} writers\n{sum}\n", self.seed, self.writers);
        writeln!(text, "  pushed to a client and checked         {}", sum.pushed)?;
        writeln!(
            text,
            "  revision {}, newest snapshot up to entry {}",
            sum.revision, sum.snapshot_index
        )?;
        if let Some(starts) = &starts {
            writeln!(text, "  start to ready                         {starts}")?;
        }
        for fault in sum.faults.iter().take(FAULTS_SHOWN) {
            writeln!(text, "FAULT {fault}")?;
        }
        for missed in sum.missed.iter().take(FAULTS_SHOWN) {
            writeln!(text, "MISSED {missed}")?;
        }
        let gates = vec![
            Gate::none("acknowledged writes lost", lost),
            Gate::none("wrong: partial or changed writes, phantoms, wrong revision counts", wrong),
            Gate::none("planted faults that the checker missed", count(sum.missed.len())),
            Gate::above("planted faults", float(sum.planted), 0.0),
            // A run without load would prove nothing.
            Gate::above("acknowledged writes per kill", float(sum.acked) / float(sum.kills), 1.0),
            Gate::above(
                "share of the kills under load with a write in flight",
                float(sum.kills_with_writes_in_flight)
                    / float(sum.kills - sum.kills_while_starting),
                0.5,
            ),
        ];
        let shown: Vec<String> = sum.faults.iter().map(Fault::to_string).collect();
        let data = json!({
            "seed": self.seed,
            "writers": self.writers,
            "kills": sum.kills,
            "kills_while_starting": sum.kills_while_starting,
            "kills_with_writes_in_flight": sum.kills_with_writes_in_flight,
            "acked_writes_checked": sum.acked,
            "in_flight_writes_checked": sum.in_flight,
            "in_flight_writes_that_landed": sum.landed,
            "unchanged_clusters_compared": sum.unchanged,
            "pushed_clusters_checked": sum.pushed,
            "lost": lost,
            "wrong": wrong,
            "faults": shown,
            "planted_faults": sum.planted,
            "planted_faults_missed": sum.missed,
            "start_to_ready": starts,
            "revision": sum.revision,
            "snapshot_index": sum.snapshot_index,
        });
        Ok(Findings { text, data, gates })
    }
}

impl Sum {
    fn add(&mut self, round: u64, verdict: Verdict) {
        self.acked += verdict.acked;
        self.in_flight += verdict.in_flight;
        self.landed += verdict.landed;
        self.unchanged += verdict.unchanged;
        for mut fault in verdict.faults {
            fault.what = format!("round {round}: {}", fault.what);
            say!("FAULT {fault}");
            self.faults.push(fault);
        }
    }
}

impl std::fmt::Display for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} kills ({} while starting), {} acknowledged writes checked, {} in flight of which {} took effect, \
             {} unchanged clusters compared; {} faults; {} of {} planted faults found",
            self.kills,
            self.kills_while_starting,
            self.acked,
            self.in_flight,
            self.landed,
            self.unchanged,
            self.faults.len(),
            self.planted - count(self.missed.len()),
            self.planted
        )
    }
}
