//! Clients of a frozen scope, and the effect of the thaw on pushes to others.
//!
//! A round has three parts: idle, writes that the freeze holds, and the thaw. The clients of the frozen scope run in a
//! process of their own. They have one cluster of another scope. They may receive nothing else before the thaw, and
//! everything after it.

use std::{
    fmt::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    author::Author,
    common::Common,
    held_clients::Load,
    report::{Findings, Gate, say},
    resource,
    server::{Launch, Server},
    stats::{Spread, count},
    watch::{Times, Watch},
    worker::{Order, Worker},
};

/// The scope with the cluster that the clients have from the beginning.
const BASE: &str = "loadtest/base";

/// Thaw a scope with many held changes and clients, and measure pushes to others
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Clients of the frozen scope
    #[arg(long, default_value_t = 4000)]
    clients: usize,
    /// Clusters of about 1 KB that the freeze holds
    #[arg(long, default_value_t = 1000)]
    held: usize,
    /// Clients of the other scope, which receive each update
    #[arg(long, default_value_t = 50)]
    established: usize,
    /// Clusters of about 1 KB that the established clients see
    #[arg(long, default_value_t = 100)]
    resources: usize,
    /// Updates of one cluster per second
    #[arg(long, default_value_t = 40)]
    updates_per_second: u32,
    /// Rounds of idle, held writes, thaw
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of the idle part of a round
    #[arg(long, default_value_t = 10.0)]
    idle_seconds: f64,
    /// The `nice` value of the process with the clients of the frozen scope
    #[arg(long, default_value_t = 0)]
    nice: i32,
    /// Maximum ratio of the p99 of pushes during the thaw to that of the idle part
    #[arg(long, default_value_t = 2.0)]
    ratio_max: f64,
}

/// The measurements of one round.
#[derive(Debug, Serialize)]
struct Round {
    idle: Times,
    held: Times,
    thaw: Times,
    /// The time from the request until all clients had acknowledged everything.
    thaw_seconds: f64,
    /// The CPUs that the server used during the thaw.
    cpus: f64,
}

struct Run {
    server: Server,
    watch: Watch,
    author: Author,
    worker: Worker,
}

impl Args {
    pub(crate) async fn run(&self, common: &Common, dir: &Path) -> Result<Findings> {
        ensure!(
            ![self.rounds, self.clients, self.held, self.established].contains(&0)
                && self.updates_per_second > 0,
            "--rounds, --clients, --held, --established and --updates-per-second must be above 0"
        );
        // A server that lowers the first limit to its limit of open files lowers the second one, too. The clients of a
        // round connect while the server still closes those of the one before.
        let connections = 2 * self.clients + self.established + 100;
        let config = format!(
            "[xds]\nconnections_max = {connections}\nconnections_per_peer_max = {connections}\n"
        );
        let server = Launch::new(&common.binary, dir, None, &config)?.start().await?;
        let mut author = Author::connect(server.admin).await?;
        author.load(0, self.resources).await?;
        author.apply(&[resource::manifest(BASE, vec![resource::cluster(self.held, 0)])]).await?;
        let (clients, resources) = (self.established, self.resources);
        let updates = Author::connect(server.admin).await?;
        let watch =
            Watch::start(server.xds, updates, clients, resources, self.updates_per_second).await?;
        let mut run = Run { server, watch, author, worker: Worker::start(self.nice)? };
        let mut rounds = Vec::new();
        for round in 1..=self.rounds {
            rounds.push(self.round(&mut run, round).await?);
            say!("round {round} of {}", self.rounds);
        }
        run.watch.end().await?;
        self.findings(&rounds)
    }

    async fn round(&self, run: &mut Run, round: usize) -> Result<Round> {
        let idle = Duration::try_from_secs_f64(self.idle_seconds)?;
        let scope = format!("loadtest/held-{round}");
        run.author.apply(&[assignment(&scope)]).await.context("assign the scope")?;
        run.author.freeze(&scope).await.context("freeze the scope")?;
        let load = Load { xds: run.server.xds, clients: self.clients, held: self.held };
        run.worker.ask::<()>(&Order::ConnectHeld(load)).await?;
        let wait = async {
            sleep(idle).await;
            Ok(())
        };
        let ((), idle) = run.watch.during(wait).await?;
        let resources: Vec<Value> = (0..self.held).map(|n| resource::cluster(n, 0)).collect();
        let (author, worker) = (&mut run.author, &mut run.worker);
        let writes = async {
            // Each write is a change of its own.
            for one in resources {
                author.apply(&[resource::manifest(&scope, vec![one])]).await?;
            }
            let received: u64 = worker.ask(&Order::CountHeld).await?;
            let base = count(self.clients);
            ensure!(received == base, "clients received {received} resources, not {base}");
            Ok(())
        };
        let ((), held) = run.watch.during(writes).await?;
        let (cpu, _) = run.server.process().run_and_wait()?;
        let thawing = async {
            let start = Instant::now();
            author.thaw(&scope).await.context("thaw the scope")?;
            worker.ask::<()>(&Order::AwaitHeld).await?;
            let took = start.elapsed();
            // The part needs at least one update of the others.
            let least = Duration::from_secs(2) / self.updates_per_second;
            sleep(least.saturating_sub(took)).await;
            Ok(took.as_secs_f64())
        };
        let (thaw_seconds, thaw) = run.watch.during(thawing).await?;
        ensure!(
            thaw.pushes > 0,
            "no update reached the other clients during the thaw; raise --updates-per-second"
        );
        let (cpu_after, _) = run.server.process().run_and_wait()?;
        let cpus = (cpu_after.saturating_sub(cpu)).as_secs_f64() / thaw_seconds;
        Ok(Round { idle, held, thaw, thaw_seconds, cpus })
    }

    fn findings(&self, rounds: &[Round]) -> Result<Findings> {
        let spread = |what: &dyn Fn(&Round) -> f64| {
            let values: Vec<f64> = rounds.iter().map(what).collect();
            Spread::of(&values).context("there are no rounds")
        };
        let mut text = format!(
            "{} clients of a frozen scope, {} held clusters, in writes of one cluster\n",
            self.clients, self.held
        );
        writeln!(text, "  held resources sent to them before the thaw: 0")?;
        let ratio = spread(&|one| one.thaw.push_p99_ms / one.idle.push_p99_ms)?;
        writeln!(
            text,
            "  pushes to others, p99 ms: idle {:.1}; held writes {:.1}; thaw {:.1}; thaw to idle {ratio:.2}",
            spread(&|one| one.idle.push_p99_ms)?,
            spread(&|one| one.held.push_p99_ms)?,
            spread(&|one| one.thaw.push_p99_ms)?,
        )?;
        writeln!(
            text,
            "  until all clients had everything, s: {:.1}; CPUs of the server {:.2}",
            spread(&|one| one.thaw_seconds)?,
            spread(&|one| one.cpus)?,
        )?;
        let what = "p99 of pushes to others during the thaw, ratio to idle, median";
        let gates = vec![Gate::at_most(what, ratio.median, self.ratio_max)];
        Ok(Findings { text, data: json!({"rounds": rounds}), gates })
    }
}

/// Returns the assignment of the clients of the frozen scope.
fn assignment(scope: &str) -> Value {
    let id = json!({"id": "loadtest-*"});
    let held = json!({"name": "held", "priority": 10, "match": id, "scopes": [scope, BASE]});
    json!({"assignments": [held]})
}
