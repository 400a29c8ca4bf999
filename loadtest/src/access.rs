//! Changes of access rules under many streams: the effect on pushes to other clients.
//!
//! Each identity has a certificate and one connection with many streams, which are idle. Other clients stay connected
//! and receive steady updates. A round has three parts: no changes, changes of a resource that no client sees (the
//! control), and changes of an access rule that concerns no client. The replica checks all streams after a change of
//! access rules. The ratio of the last part to the control is the effect of these checks. At the end, one identity
//! loses its rights: its streams end, and no others do.

use std::{
    fmt::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use chancery_fleet_load::stream::Target;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::{interval, sleep};

use crate::{
    author::Author,
    certificates::Certificates,
    common::Common,
    report::{Findings, Gate, say},
    resource,
    server::{Launch, Server},
    stats::{Latencies, Spread, count},
    watch::{Times, Watch},
    wildcard_clients::{Expected, WildcardClients},
};

const PATIENCE: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(5);
/// The time after a revocation in which no further stream ends.
const QUIET: Duration = Duration::from_secs(2);
/// The scope of the idle streams.
const IDLE: &str = "loadtest/idle";
/// A scope that no rule and no assignment names.
const UNSEEN: &str = "loadtest/unseen";

/// Change access rules under many streams and measure pushes to others
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Identities, each with a certificate and a connection
    #[arg(long, default_value_t = 1000)]
    identities: usize,
    /// Idle streams of each identity
    #[arg(long, default_value_t = 100)]
    streams: usize,
    /// Clients that receive each update, with an identity of their own
    #[arg(long, default_value_t = 50)]
    established: usize,
    /// Clusters of about 1 KB that the established clients see
    #[arg(long, default_value_t = 100)]
    resources: usize,
    /// Updates of one cluster per second
    #[arg(long, default_value_t = 40)]
    updates_per_second: u32,
    /// Changes per second in a part with changes
    #[arg(long, default_value_t = 2)]
    changes_per_second: u32,
    /// Seconds of each part
    #[arg(long, default_value_t = 10)]
    part_seconds: u32,
    /// Rounds of idle, control, access
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Maximum ratio of the p99 of pushes during changes of access rules to that of the control
    #[arg(long, default_value_t = 2.0)]
    ratio_max: f64,
    /// Maximum seconds until all streams of an identity without rights have ended
    #[arg(long, default_value_t = 1.0)]
    revocation_seconds_max: f64,
}

/// The kinds of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Idle,
    /// Changes of a resource that no client sees.
    Control,
    /// Changes of an access rule that concerns no client.
    Access,
}

/// The measurements of one part.
#[derive(Debug, Serialize)]
struct Part {
    kind: Kind,
    #[serde(flatten)]
    times: Times,
    /// Milliseconds of server CPU per second.
    cpu_ms: f64,
    /// The time until a change was answered.
    changes: Option<Latencies>,
}

/// A measured value of a part.
type Quantity = fn(&Part) -> f64;

struct Run {
    server: Server,
    author: Author,
    idle: WildcardClients,
    watch: Watch,
    n_changes: u64,
}

impl Args {
    pub(crate) async fn run(&self, common: &Common, dir: &Path) -> Result<Findings> {
        ensure!(
            self.identities > 0 && self.streams > 0 && self.established > 0 && self.rounds > 0,
            "--identities, --streams, --established and --rounds must be above 0"
        );
        ensure!(
            self.resources > 0 && self.updates_per_second > 0 && self.changes_per_second > 0,
            "--resources, --updates-per-second and --changes-per-second must be above 0"
        );
        let mut run = self.start(common, dir).await?;
        let mut parts = Vec::new();
        for round in 1..=self.rounds {
            for kind in [Kind::Idle, Kind::Control, Kind::Access] {
                parts.push(self.part(&mut run, kind).await?);
            }
            say!("round {round} of {}", self.rounds);
        }
        run.watch.end().await?;
        let ended = run.idle.totals().wrong;
        ensure!(ended == 0, "{ended} idle streams ended: {}", run.idle.complaints().join("; "));
        let (seconds, others) = self.revoke(&mut run.author, &run.idle).await?;
        run.server.kill().await?;
        self.findings(&parts, seconds, others)
    }

    async fn start(&self, common: &Common, dir: &Path) -> Result<Run> {
        let certificates = Certificates::create(&dir.join("certs"))?;
        let socket = dir.join("admin.sock");
        let config = format!(
            "{}[admin]\nsocket = \"{}\"\n[access]\nadmins = [\"unix:{}\"]\n",
            certificates.config(),
            socket.display(),
            rustix::process::getuid().as_raw()
        );
        let server = Launch::new(&common.binary, dir, None, &config)?.start().await?;
        let mut author = Author::connect_unix(&socket).await?;
        author.apply(&[rules(), assignment()]).await.context("publish the access rules")?;
        let cluster = resource::manifest(IDLE, vec![resource::cluster(0, 0)]);
        author.apply(&[cluster]).await.context("publish the resource of the idle streams")?;
        author.load(0, self.resources).await?;
        let mut idle = WildcardClients::new(self.identities * self.streams, Expected::clusters(1));
        for n in 0..self.identities {
            let client = certificates.client("client", &identity(n));
            let target = Target::new(server.xds, Some(&client.tls()))?;
            idle.open(&target, self.streams, n * self.streams).await?;
        }
        idle.synced(PATIENCE).await?;
        let streams = self.identities * self.streams;
        say!("{streams} streams of {} identities are synced", self.identities);
        let established = certificates.client("established", ESTABLISHED).tls();
        let target = Target::new(server.xds, Some(&established))?;
        let updates = Author::connect_unix(&socket).await?;
        let (clients, resources) = (self.established, self.resources);
        let watch =
            Watch::start(target, updates, clients, resources, self.updates_per_second).await?;
        Ok(Run { server, author, idle, watch, n_changes: 0 })
    }

    async fn part(&self, run: &mut Run, kind: Kind) -> Result<Part> {
        let process = run.server.process();
        let (cpu, start) = (process.cpu_time()?, Instant::now());
        let (author, n_changes) = (&mut run.author, &mut run.n_changes);
        let work = async {
            let mut answered = Vec::new();
            let mut ticks = interval(Duration::from_secs(1) / self.changes_per_second);
            for _ in 0..self.changes_per_second * self.part_seconds {
                ticks.tick().await;
                *n_changes += 1;
                let manifest = match kind {
                    Kind::Idle => continue,
                    Kind::Control => {
                        resource::manifest(UNSEEN, vec![resource::cluster(0, *n_changes)])
                    }
                    Kind::Access => unrelated_rule(*n_changes),
                };
                let start = Instant::now();
                author.apply(&[manifest]).await.context("write a change")?;
                answered.push(start.elapsed());
            }
            Ok(answered)
        };
        let (answered, times) = run.watch.during(work).await?;
        let cpu = (process.cpu_time()? - cpu).total();
        let cpu_ms = cpu.as_secs_f64() * 1e3 / start.elapsed().as_secs_f64();
        Ok(Part { kind, times, cpu_ms, changes: Latencies::of(answered) })
    }

    /// Takes the rights of one identity. Returns the seconds until all its streams have ended, and the number of other
    /// streams that ended.
    async fn revoke(&self, author: &mut Author, idle: &WildcardClients) -> Result<(f64, u64)> {
        let rule = json!({"name": "revoked", "identity": identity(0), "refuse": true});
        let start = Instant::now();
        author.apply(&[json!({"access": [rule]})]).await.context("revoke an identity")?;
        let streams = count(self.streams);
        while idle.totals().wrong < streams {
            let ended = idle.totals().wrong;
            ensure!(start.elapsed() < PATIENCE, "only {ended} of {streams} streams ended");
            sleep(POLL).await;
        }
        let seconds = start.elapsed().as_secs_f64();
        sleep(QUIET).await;
        Ok((seconds, idle.totals().wrong - streams))
    }

    fn findings(&self, parts: &[Part], seconds: f64, others: u64) -> Result<Findings> {
        let of = |kind, what: Quantity| -> Vec<f64> {
            parts.iter().filter(|part| part.kind == kind).map(what).collect()
        };
        let spread = |values: &[f64]| Spread::of(values).context("there are no rounds");
        let mut text = String::new();
        writeln!(
            text,
            "{} streams of {} identities, {} changes per second",
            self.identities * self.streams,
            self.identities,
            self.changes_per_second
        )?;
        let quantities: [(&str, Quantity); 5] = [
            ("pushes p50, ms", |part| part.times.push_p50_ms),
            ("pushes p99, ms", |part| part.times.push_p99_ms),
            ("pushes max, ms", |part| part.times.push_max_ms),
            ("change p99, ms", |part| part.changes.map_or(0.0, |changes| changes.p99_ms)),
            ("server CPU, ms per s", |part| part.cpu_ms),
        ];
        let mut p99 = None;
        for (name, what) in quantities {
            let [idle, control, access] =
                [Kind::Idle, Kind::Control, Kind::Access].map(|kind| of(kind, what));
            let ratios: Vec<f64> = access.iter().zip(&control).map(|(a, b)| a / b).collect();
            let ratio = spread(&ratios)?;
            writeln!(
                text,
                "  {name}: idle {:.1}; control {:.1}; access rules {:.1}, to control {ratio:.2}",
                spread(&idle)?,
                spread(&control)?,
                spread(&access)?
            )?;
            if name == "pushes p99, ms" {
                p99 = Some(ratio);
            }
        }
        writeln!(text, "  streams of a revoked identity ended after {seconds:.3} s")?;
        let p99 = p99.context("there are no rounds")?;
        let what = "p99 of pushes during changes of access rules, ratio to other changes, median";
        let gates = vec![
            Gate::at_most(what, p99.median, self.ratio_max),
            Gate::at_most(
                "seconds until the streams of a revoked identity ended",
                seconds,
                self.revocation_seconds_max,
            ),
            Gate::none("streams of other identities that ended", others),
        ];
        let data = json!({"parts": parts, "revocation_seconds": seconds, "others_ended": others});
        Ok(Findings { text, data, gates })
    }
}

/// The identity of the clients that receive the updates.
const ESTABLISHED: &str = "spiffe://load.test/established";

/// Returns the identity of idle streams.
fn identity(n: usize) -> String {
    format!("spiffe://load.test/client/{n}")
}

fn rules() -> Value {
    json!({"access": [
        {"name": "clients", "identity": "spiffe://load.test/client/{n}", "read": [IDLE]},
        {"name": "established", "identity": ESTABLISHED, "read": [resource::SCOPE]},
    ]})
}

/// Returns a rule of an identity without streams. Each `n` gives other rights.
fn unrelated_rule(n: u64) -> Value {
    let read = format!("loadtest/{n}");
    let rule = json!({"name": "unrelated", "identity": "spiffe://load.test/none", "read": [read]});
    json!({"access": [rule]})
}

/// Returns the assignment of the idle streams. The other clients keep the default.
fn assignment() -> Value {
    let id = json!({"id": "loadtest-*"});
    let idle = json!({"name": "idle", "priority": 10, "match": id, "scopes": [IDLE]});
    json!({"assignments": [idle]})
}
