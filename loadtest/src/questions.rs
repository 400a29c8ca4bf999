//! Questions about all nodes of a cluster: the time of their answers, and their effect on pushes.
//!
//! Three replicas hold idle streams, each with a node of its own. Clients of the first replica receive steady updates. A
//! round has two parts: without questions, and with questions to each replica in turn. A question asks for the status of
//! the cluster, the number of nodes by state, or a page of the nodes.

use std::{
    fmt::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use chancery_fleet_load::stream::Target;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::interval;

use crate::{
    author::Author,
    cluster::Cluster,
    common::Common,
    report::{Findings, Gate, say},
    resource,
    server::{self, Ports},
    stats::{Latencies, Spread, count, float},
    watch::{Times, Watch},
    wildcard_clients::{Expected, WildcardClients},
};

const PATIENCE: Duration = Duration::from_secs(600);
const REPLICAS: usize = 3;
/// The scope of the idle streams.
const IDLE: &str = "loadtest/idle";
/// The paths of the questions.
const QUESTIONS: [&str; 3] = ["/v1/cluster", "/v1/nodes?count=true", "/v1/nodes?limit=100"];

/// Ask three replicas about all nodes, and measure the answers and pushes to others
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Idle streams of all replicas together, each with its own node
    #[arg(long, default_value_t = 100_000)]
    nodes: usize,
    /// Idle streams per connection
    #[arg(long, default_value_t = 100)]
    streams_per_connection: usize,
    /// Clients of the first replica that receive each update
    #[arg(long, default_value_t = 50)]
    established: usize,
    /// Clusters of about 1 KB that the established clients see
    #[arg(long, default_value_t = 100)]
    resources: usize,
    /// Updates of one cluster per second
    #[arg(long, default_value_t = 40)]
    updates_per_second: u32,
    /// Questions per second
    #[arg(long, default_value_t = 3)]
    questions_per_second: u32,
    /// Seconds of each part
    #[arg(long, default_value_t = 10)]
    part_seconds: u32,
    /// Rounds of a part without questions and one with them
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Maximum ratio of the p99 of pushes with questions to that without
    #[arg(long, default_value_t = 1.2)]
    ratio_max: f64,
    /// Maximum milliseconds until a question is answered
    #[arg(long, default_value_t = 1000.0)]
    answer_ms_max: f64,
    /// Maximum MB by which the memory of a replica grows with questions
    #[arg(long, default_value_t = 64.0)]
    growth_mb_max: f64,
}

/// The measurements of one part.
#[derive(Debug, Serialize)]
struct Part {
    has_questions: bool,
    #[serde(flatten)]
    times: Times,
    /// The times until the answers, by question.
    answers: Vec<Latencies>,
    /// The memory of the largest replica after the part, in MB.
    memory_mb: f64,
}

impl Args {
    pub(crate) async fn run(&self, common: &Common, dir: &Path) -> Result<Findings> {
        ensure!(
            self.nodes > 0 && self.streams_per_connection > 0 && self.established > 0,
            "--nodes, --streams-per-connection and --established must be above 0"
        );
        ensure!(
            self.rounds > 0 && self.updates_per_second > 0 && self.questions_per_second > 0,
            "--rounds, --updates-per-second and --questions-per-second must be above 0"
        );
        let config = "[xds]\nconnections_per_peer_max = 5000\n";
        let cluster = Cluster::start(common, dir, REPLICAS, config).await?;
        let ports = cluster.ports();
        let idle = self.idle(&ports).await?;
        let target = Target::new(ports[0].xds, None)?;
        let updates = Author::connect(ports[0].admin).await?;
        let (clients, resources) = (self.established, self.resources);
        let watch =
            Watch::start(target, updates, clients, resources, self.updates_per_second).await?;
        let mut parts = Vec::new();
        for round in 1..=self.rounds {
            for has_questions in [false, true] {
                parts.push(self.part(&cluster, &watch, has_questions).await?);
            }
            say!("round {round} of {}", self.rounds);
        }
        watch.end().await?;
        let ended = idle.totals().wrong;
        ensure!(ended == 0, "{ended} idle streams ended: {}", idle.complaints().join("; "));
        self.findings(&parts)
    }

    /// Opens the idle streams, equally many to each replica.
    async fn idle(&self, ports: &[Ports]) -> Result<WildcardClients> {
        let mut author = Author::connect(ports[0].admin).await?;
        let cluster = resource::manifest(IDLE, vec![resource::cluster(0, 0)]);
        author.apply(&[assignment(), cluster]).await.context("publish what the nodes see")?;
        author.load(0, self.resources).await?;
        let mut idle = WildcardClients::new(self.nodes, Expected::clusters(1));
        let mut first = 0;
        while first < self.nodes {
            let n = self.streams_per_connection.min(self.nodes - first);
            let replica = (first / self.streams_per_connection) % ports.len();
            idle.open(&Target::new(ports[replica].xds, None)?, n, first).await?;
            first += n;
        }
        idle.synced(PATIENCE).await?;
        say!("{} streams to {} replicas are synced", self.nodes, ports.len());
        Ok(idle)
    }

    async fn part(&self, cluster: &Cluster, watch: &Watch, has_questions: bool) -> Result<Part> {
        let ports = cluster.ports();
        let work = async {
            let mut answered: [Vec<Duration>; QUESTIONS.len()] = Default::default();
            let mut ticks = interval(Duration::from_secs(1) / self.questions_per_second);
            for n in 0..(self.questions_per_second * self.part_seconds) as usize {
                ticks.tick().await;
                if has_questions {
                    let (question, replica) = (n % QUESTIONS.len(), n / QUESTIONS.len());
                    let start = Instant::now();
                    let at = ports[replica % ports.len()].admin;
                    let answer = server::get(at, QUESTIONS[question]).await?;
                    answered[question].push(start.elapsed());
                    self.check(question, &answer)?;
                }
            }
            Ok(answered)
        };
        let (answered, times) = watch.during(work).await?;
        let mut memory_mb = 0.0_f64;
        for server in cluster.servers() {
            memory_mb = memory_mb.max(float(server.process().memory()?.rss) / 1e6);
        }
        let answers = answered.into_iter().filter_map(Latencies::of).collect();
        Ok(Part { has_questions, times, answers, memory_mb })
    }

    /// Fails if an answer is not complete.
    fn check(&self, question: usize, answer: &str) -> Result<()> {
        let answer: Value = serde_json::from_str(answer).context("the answer is not JSON")?;
        let complete = answer["replicas_not_asked"].as_u64().unwrap_or_default() == 0;
        ensure!(complete, "a replica did not answer: {answer}");
        let all = count(self.nodes + self.established);
        match question {
            1 => {
                let counts = answer["counts"].as_object().context("there are no counts")?;
                let sum: u64 = counts.values().filter_map(Value::as_u64).sum();
                ensure!(sum == all, "{sum} nodes are counted, not {all}");
            }
            2 => {
                let nodes = answer["nodes"].as_array().map_or(0, Vec::len);
                ensure!(count(nodes) == all.min(100), "a page has {nodes} nodes");
            }
            _ => {}
        }
        Ok(())
    }

    fn findings(&self, parts: &[Part]) -> Result<Findings> {
        let of = |has_questions: bool, what: fn(&Part) -> f64| -> Vec<f64> {
            parts.iter().filter(|part| part.has_questions == has_questions).map(what).collect()
        };
        let spread = |values: &[f64]| Spread::of(values).context("there are no rounds");
        let mut text = format!(
            "{} nodes on {REPLICAS} replicas, {} questions per second\n",
            self.nodes, self.questions_per_second
        );
        let p99 = |part: &Part| part.times.push_p99_ms;
        let (without, with) = (of(false, p99), of(true, p99));
        let ratios: Vec<f64> =
            with.iter().zip(&without).map(|(with, without)| with / without).collect();
        let ratio = spread(&ratios)?;
        writeln!(
            text,
            "  pushes p99, ms: without questions {:.1}; with questions {:.1}; ratio {ratio:.2}",
            spread(&without)?,
            spread(&with)?
        )?;
        let mut slowest = 0.0_f64;
        for (at, question) in QUESTIONS.iter().enumerate() {
            let answers = || parts.iter().filter_map(|part| part.answers.get(at));
            let p50: Vec<f64> = answers().map(|answer| answer.p50_ms).collect();
            let max: Vec<f64> = answers().map(|answer| answer.max_ms).collect();
            slowest = max.iter().copied().fold(slowest, f64::max);
            writeln!(text, "  {question}, ms: p50 {:.1}; max {:.1}", spread(&p50)?, spread(&max)?)?;
        }
        let memory = |part: &Part| part.memory_mb;
        let (before, after) = (of(false, memory), of(true, memory));
        let growth =
            after.iter().copied().fold(0.0, f64::max) - before.first().copied().unwrap_or_default();
        writeln!(
            text,
            "  memory of the largest replica, MB: without questions {:.0}; with {:.0}",
            spread(&before)?,
            spread(&after)?
        )?;
        let gates = vec![
            Gate::at_most(
                "p99 of pushes, ratio to that without questions, median",
                ratio.median,
                self.ratio_max,
            ),
            Gate::at_most("milliseconds until the slowest answer", slowest, self.answer_ms_max),
            Gate::at_most("MB by which a replica grows with questions", growth, self.growth_mb_max),
        ];
        Ok(Findings { text, data: json!({"parts": parts}), gates })
    }
}

/// Returns the assignment of the idle streams. The other clients keep the default.
fn assignment() -> Value {
    let id = json!({"id": "loadtest-*"});
    let idle = json!({"name": "idle", "priority": 10, "match": id, "scopes": [IDLE]});
    json!({"assignments": [idle]})
}
