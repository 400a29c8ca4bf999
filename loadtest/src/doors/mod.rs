//! The cost of REST polls, of mirrored files and of heartbeats, in small and large views.
//!
//! Each size has a server, a mirror of its view and a client that receives heartbeats. A view has as many
//! endpoints as clusters. The sizes take turns. In a turn, endpoints change one after the other, and the mirror
//! writes each change before the next one. The test compares the files before and after a turn. Then a poller
//! repeats polls for resources that have not changed. At last, one cluster changes.
//!
//! The file of all clusters is one file by Envoy's format, so its cost grows with the view. The other costs must
//! not.

use std::{fmt::Write as _, fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    author::Author,
    common::Common,
    process::Process,
    report::{Findings, Gate, say},
    resource,
    server::{Launch, Server},
    stats::{Spread, count, float},
};

mod clients;

use clients::{Heartbeats, Mirror, Poller};

/// The number of resources in one transaction.
const BATCH: usize = 1000;
/// The number of the cluster with a lifetime.
const RENEWED: usize = 9_999_999;
/// No limit for the rate of polls on a connection.
const CONFIG: &str = "[xds]\nrequests_per_second_max = 1000000\n";

/// Measure the cost of REST polls, mirrored files and heartbeats
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Sizes of the views in clusters; the first is the base of the comparison
    #[arg(long, value_delimiter = ',', default_value = "1000,100000")]
    resources: Vec<usize>,
    /// Rounds; each size has one turn per round
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Endpoints that change in a turn, one after the other
    #[arg(long, default_value_t = 20)]
    changes: usize,
    /// Polls of each kind in a turn
    #[arg(long, default_value_t = 500)]
    polls: usize,
    /// Seconds for which heartbeats are counted in a turn
    #[arg(long, default_value_t = 3.0)]
    heartbeat_seconds: f64,
    /// Maximum ratio of a cost to that of the first size
    #[arg(long, default_value_t = 2.0)]
    ratio_max: f64,
}

/// The processes and clients of one size.
struct Side {
    resources: usize,
    server: Server,
    author: Author,
    mirror: Mirror,
    heartbeats: Heartbeats,
    generation: u64,
    turns: Vec<Turn>,
}

/// The costs in one turn. Times are microseconds of CPU.
#[derive(Debug, Clone, Copy, Serialize)]
struct Turn {
    /// The server, per poll for all clusters.
    poll_all_us: f64,
    /// The server, per poll for the endpoints of one cluster.
    poll_one_us: f64,
    /// The mirror, per changed endpoints.
    mirror_us: f64,
    /// Bytes that the mirror wrote per changed endpoints.
    mirror_bytes: f64,
    /// Files that changed per changed endpoints.
    mirror_files: f64,
    /// The mirror, per changed cluster.
    listing_us: f64,
    /// Bytes that the mirror wrote per changed cluster.
    listing_bytes: f64,
    /// Bytes of a heartbeat in the response stream.
    heartbeat_bytes: f64,
    /// Heartbeats with a body.
    bodies: u64,
}

/// A cost, with its name and its unit.
struct Cost {
    name: &'static str,
    of: fn(&Turn) -> f64,
    /// The name of the gate on its ratio; `None` if the cost may grow.
    gate: Option<&'static str>,
}

const COSTS: [Cost; 8] = [
    Cost {
        name: "server CPU per current poll for all clusters, µs",
        of: |it| it.poll_all_us,
        gate: Some("CPU per current poll for all clusters, ratio to the first size, median"),
    },
    Cost {
        name: "server CPU per current poll for one name, µs",
        of: |it| it.poll_one_us,
        gate: Some("CPU per current poll for one name, ratio to the first size, median"),
    },
    Cost {
        name: "mirror CPU per changed endpoints, µs",
        of: |it| it.mirror_us,
        gate: Some("CPU of the mirror per changed endpoints, ratio to the first size, median"),
    },
    Cost {
        name: "bytes that the mirror writes per changed endpoints",
        of: |it| it.mirror_bytes,
        gate: Some("bytes of the mirror per changed endpoints, ratio to the first size, median"),
    },
    Cost {
        name: "files that change per changed endpoints",
        of: |it| it.mirror_files,
        gate: Some("files per changed endpoints, ratio to the first size, median"),
    },
    Cost {
        name: "bytes of a heartbeat",
        of: |it| it.heartbeat_bytes,
        gate: Some("bytes of a heartbeat, ratio to the first size, median"),
    },
    Cost {
        name: "mirror CPU per changed cluster (one file), µs",
        of: |it| it.listing_us,
        gate: None,
    },
    Cost {
        name: "bytes that the mirror writes per changed cluster",
        of: |it| it.listing_bytes,
        gate: None,
    },
];

impl Args {
    pub(crate) async fn run(&self, common: &Common, dir: &Path) -> Result<Findings> {
        ensure!(
            self.resources.iter().all(|n| *n > self.changes) && !self.resources.is_empty(),
            "each size of --resources must be above --changes"
        );
        ensure!(
            self.rounds > 0 && self.changes > 0 && self.polls > 0,
            "--rounds, --changes and --polls must be above 0"
        );
        let mut sides = Vec::new();
        for (at, resources) in self.resources.iter().enumerate() {
            sides.push(Side::start(common, &dir.join(at.to_string()), *resources).await?);
            say!("{resources} resources: the mirror has written them");
        }
        for round in 1..=self.rounds {
            for side in &mut sides {
                let turn = self.turn(side).await?;
                side.turns.push(turn);
            }
            say!("round {round} of {}", self.rounds);
        }
        self.findings(&sides)
    }

    async fn turn(&self, side: &mut Side) -> Result<Turn> {
        let files = side.mirror.files()?;
        let before = Usage::of(side.mirror.process())?;
        for _ in 0..self.changes {
            side.change_endpoints().await?;
        }
        let mirror = Usage::of(side.mirror.process())?.per(before, self.changes);
        let changed = side.mirror.files()?.difference(&files).count();
        let poll_all_us = self.polls(side, "clusters", None).await?;
        // The first endpoints never change.
        let poll_one_us = self.polls(side, "endpoints", Some(&resource::endpoints_name(0))).await?;
        let before = Usage::of(side.mirror.process())?;
        side.change_cluster().await?;
        let listing = Usage::of(side.mirror.process())?.per(before, 1);
        let pause = Duration::from_secs_f64(self.heartbeat_seconds);
        let heartbeats = side.heartbeats.count(pause).await?;
        Ok(Turn {
            poll_all_us,
            poll_one_us,
            mirror_us: mirror.0,
            mirror_bytes: mirror.1,
            mirror_files: float(count(changed)) / float(count(self.changes)),
            listing_us: listing.0,
            listing_bytes: listing.1,
            heartbeat_bytes: heartbeats.bytes_each,
            bodies: heartbeats.bodies,
        })
    }

    /// Returns the CPU of the server per poll of a client that is current, in microseconds.
    async fn polls(&self, side: &Side, path: &str, name: Option<&str>) -> Result<f64> {
        // The server closes a connection without requests.
        let mut poller = Poller::follow(side.server.xds, path, name).await?;
        let before = Usage::of(side.server.process())?;
        for _ in 0..self.polls {
            poller.poll_current().await?;
        }
        Ok(Usage::of(side.server.process())?.per(before, self.polls).0)
    }

    fn findings(&self, sides: &[Side]) -> Result<Findings> {
        let first = sides.first().context("no sizes")?;
        let (mut text, mut gates) = (String::new(), Vec::new());
        let mut rows = Vec::new();
        writeln!(text, "{} rounds; median (min to max)", self.rounds)?;
        for side in sides {
            writeln!(text, "\n{} clusters and endpoints", side.resources)?;
            for Cost { name, of, gate } in &COSTS {
                let values: Vec<f64> = side.turns.iter().map(of).collect();
                let pairs = side.turns.iter().zip(&first.turns);
                let ratios: Vec<f64> = pairs.map(|(turn, base)| of(turn) / of(base)).collect();
                let (cost, ratio) = (Spread::of(&values), Spread::of(&ratios));
                let (cost, ratio) = cost.zip(ratio).context("no turns")?;
                writeln!(text, "  {name:<50} {cost:.1}")?;
                if side.resources != first.resources {
                    writeln!(text, "  {:<50} {ratio:.2}", "  ratio to the first size, by round")?;
                    let limit = |what| Gate::at_most(what, ratio.median, self.ratio_max);
                    gates.extend(gate.map(limit));
                }
                rows.push(json!({"resources": side.resources, "cost": name, "value": cost, "ratio": ratio}));
            }
        }
        let turns = || sides.iter().flat_map(|side| &side.turns);
        gates.push(Gate::none("heartbeats with a body", turns().map(|it| it.bodies).sum()));
        // The mirror touches the file of the changed resource, and no other.
        let files = turns().map(|it| it.mirror_files).fold(0.0, f64::max);
        gates.push(Gate::at_most("files per changed endpoints, maximum", files, 1.0));
        Ok(Findings { text, data: json!({"rounds": self.rounds, "costs": rows}), gates })
    }
}

impl Side {
    async fn start(common: &Common, dir: &Path, resources: usize) -> Result<Self> {
        let launch = Launch::new(&common.binary, dir, common.pinning.server, CONFIG)?;
        let server = launch.start().await?;
        let mut author = Author::connect(server.admin).await?;
        for start in (0..resources).step_by(BATCH) {
            let numbers = start..resources.min(start + BATCH);
            let pair = |n| [eds_cluster(n, 0), resource::endpoints(n, 0)];
            let manifest = resource::manifest(resource::SCOPE, numbers.flat_map(pair).collect());
            author.apply(&[manifest]).await.context("publish clusters and endpoints")?;
        }
        let renewed = json!({"resource": resource::cluster(RENEWED, 0), "ttl": "1s"});
        author.apply(&[resource::manifest(resource::SCOPE, vec![renewed])]).await?;
        let mirror = Mirror::start(&common.binary, dir, server.xds, resources).await?;
        let heartbeats = Heartbeats::connect(server.xds, &resource::name(RENEWED)).await?;
        let (generation, turns) = (0, Vec::new());
        Ok(Self { resources, server, author, mirror, heartbeats, generation, turns })
    }

    /// Changes the endpoints of one cluster, and waits for their file.
    async fn change_endpoints(&mut self) -> Result<()> {
        self.generation += 1;
        // The changes visit all endpoints except the first, because 7919 is prime.
        let generation = usize::try_from(self.generation).unwrap_or(usize::MAX);
        let n = 1 + generation.wrapping_mul(7919) % (self.resources - 1);
        self.apply(resource::endpoints(n, self.generation)).await?;
        let path = format!("eds/{}.json", resource::endpoints_name(n));
        let address = format!("10.0.{}.{}\"", self.generation / 256 % 256, self.generation % 256);
        self.mirror.wait_for(&path, &address).await
    }

    /// Changes one cluster, and waits for the file of all clusters.
    async fn change_cluster(&mut self) -> Result<()> {
        self.generation += 1;
        self.apply(eds_cluster(1, self.generation)).await?;
        self.mirror.wait_for("cds.json", &mark(self.generation)).await
    }

    async fn apply(&mut self, changed: Value) -> Result<()> {
        let manifest = resource::manifest(resource::SCOPE, vec![changed]);
        let written = self.author.apply(&[manifest]).await.context("change a resource")?;
        ensure!(written.changed == 1, "a change changed {} resources", written.changed);
        Ok(())
    }
}

/// The CPU time of a process in microseconds, and the bytes that it has written.
#[derive(Debug, Clone, Copy)]
struct Usage(f64, f64);

impl Usage {
    fn of(process: Process) -> Result<Self> {
        let (run, _) = process.run_and_wait()?;
        let path = format!("/proc/{}/io", process.id());
        let io = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let bytes = io.lines().find_map(|line| line.strip_prefix("wchar: "));
        let bytes: u64 = bytes.context("no wchar")?.parse()?;
        Ok(Self(run.as_secs_f64() * 1e6, float(bytes)))
    }

    fn per(self, earlier: Self, n: usize) -> (f64, f64) {
        let n = float(count(n));
        ((self.0 - earlier.0) / n, (self.1 - earlier.1) / n)
    }
}

fn mark(generation: u64) -> String {
    format!("generation-{generation}.")
}

/// Returns cluster `n`, whose endpoints are separate.
fn eds_cluster(n: usize, generation: u64) -> Value {
    json!({
        "@type": chancery_model::types::CLUSTER,
        "name": resource::name(n),
        "type": "EDS",
        "alt_stat_name": mark(generation),
        "eds_cluster_config": {
            "service_name": resource::endpoints_name(n),
            "eds_config": {"path_config_source": {"path": "unused"}},
        },
    })
}
