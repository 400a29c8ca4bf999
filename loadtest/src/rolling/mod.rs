//! Rolling restarts: replicas are ended and started again one after the other, under load.
//!
//! Clients with wildcard streams are spread over the replicas. When its stream ends, a client
//! continues at another replica with its state. A change that the clients see occurs from time to
//! time. After each restart, all clients must receive another change before the next restart.
//! Writers at all replicas write resources that no client sees, and record the times without an
//! acknowledged write. After the rounds of SIGTERM the leader is killed a few times. This shows the
//! duration of an election without a transfer of leadership.

mod args;
mod client;
mod report;
mod shared;
pub(crate) mod writers;

use std::{
    collections::HashMap,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use chancery_model::{
    Version,
    types::{CLUSTER, ENDPOINT},
};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    author::Author,
    cluster::Cluster,
    common::Common,
    report::{Findings, say},
    resource,
    stats::count,
};
pub(crate) use args::Args;
use client::{Client, ClientVersion};
use report::{Outcome, Step};
use shared::{End, Protocol, SharedState};
use writers::{Writers, Written, longest_pause};

const SYNC: Duration = Duration::from_secs(300);
/// The maximum time until all clients have a change after a restart, for a debug build on a busy
/// machine.
const CURRENT: Duration = Duration::from_secs(60);
/// The maximum number of rounds, even if the leader has not changed often enough.
const ROUNDS_MAX: usize = 10;

/// The resources that a client has at the end, by type.
type ClientState = Vec<(&'static str, HashMap<u32, ClientVersion>)>;

/// The state of a run.
struct Run {
    cluster: Cluster,
    admin: Vec<SocketAddr>,
    shared: Arc<SharedState>,
    seen: Vec<Arc<AtomicU64>>,
    clients: JoinSet<ClientState>,
    generation: u64,
    steps: Vec<Step>,
}

pub(crate) async fn run(args: &Args, common: &Common, dir: &Path) -> Result<Findings> {
    ensure!(
        args.replicas >= 3,
        "--replicas must be at least 3, so that another replica can take over"
    );
    ensure!(
        args.resources > 0 && args.writers > 0 && args.delta > 0,
        "--resources, --writers and --delta must be above 0"
    );
    let cluster = Cluster::start(common, dir, args.replicas, "").await?;
    say!("{} replicas vote", args.replicas);
    let mut run = connect(args, cluster).await?;
    let writers = Writers::start(&run.admin, args.writers, Duration::from_millis(args.pause_ms));
    for round in 0..ROUNDS_MAX {
        if round > 0 && run.leader_changes() >= args.leader_changes {
            break;
        }
        for at in 0..args.replicas {
            step(args, &mut run, at, End::Asked).await?;
        }
        say!("round {}: {} changes of the leader so far", round + 1, run.leader_changes());
    }
    for kill in 0..args.kills {
        let leader = run.cluster.whole().await?;
        step(args, &mut run, leader, End::Killed).await?;
        say!("kill {} of {}", kill + 1, args.kills);
    }
    let written = writers.finish().await?;
    let outcome = finish(args, run, written).await?;
    report::findings(args, &outcome)
}

async fn connect(args: &Args, cluster: Cluster) -> Result<Run> {
    let ports = cluster.ports();
    let admin = ports.first().context("there is no replica")?.admin;
    let mut author = Author::connect(admin).await?;
    author.load(0, args.resources).await?;
    let endpoints: Vec<_> = (0..args.endpoints).map(|n| resource::endpoints(n, 0)).collect();
    if !endpoints.is_empty() {
        author.apply(&[resource::manifest(resource::SCOPE, endpoints)]).await?;
    }
    cluster.whole().await?;
    let shared = Arc::new(SharedState::new(ports.iter().map(|ports| ports.xds).collect()));
    let mut run = Run {
        cluster,
        admin: ports.iter().map(|ports| ports.admin).collect(),
        shared,
        seen: Vec::new(),
        clients: JoinSet::new(),
        generation: 0,
        steps: Vec::new(),
    };
    let start = Instant::now();
    for n in 0..args.delta + args.sotw {
        let protocol = if n < args.delta { Protocol::Delta } else { Protocol::Sotw };
        let seen = Arc::new(AtomicU64::new(0));
        let client = Client::new(n, protocol, args.endpoints, &run.shared, &seen);
        run.seen.push(seen);
        run.clients.spawn(client.run());
    }
    let (delta, sotw) = (args.delta, args.sotw);
    change(args, &mut run, SYNC).await?;
    say!("{delta} delta and {sotw} SotW streams are current after {:.1?}", start.elapsed());
    Ok(run)
}

/// Restarts a replica, and waits until the cluster is whole and all clients have a new change.
async fn step(args: &Args, run: &mut Run, at: usize, end: End) -> Result<()> {
    let was_leader = run.cluster.whole().await? == at;
    run.shared.going_down(at, end);
    let from = Instant::now();
    restart(args, run, at, end).await?;
    let to = Instant::now();
    let current_in = change(args, run, CURRENT).await?;
    run.shared.all_up();
    run.steps.push(Step { end, was_leader, from, to, current_in });
    Ok(())
}

/// Ends a replica and starts it again, and waits until all replicas vote. Changes occur
/// meanwhile, which clients receive when they are connected again.
async fn restart(args: &Args, run: &mut Run, at: usize, end: End) -> Result<()> {
    let Run { cluster, admin, generation, .. } = run;
    let restart = async {
        match end {
            End::Asked => cluster.terminate(at).await?,
            End::Killed => cluster.kill(at).await?,
        }
        cluster.start_again(at).await
    };
    tokio::pin!(restart);
    let every = Duration::from_secs_f64(args.change_seconds.max(0.01));
    let other = (at + 1) % args.replicas;
    loop {
        tokio::select! {
            restarted = &mut restart => return restarted,
            () = sleep(every) => {
                *generation += 1;
                // Without a leader the change may fail. Nothing depends on it.
                let published = publish(args, admin, other, *generation);
                tokio::select! {
                    restarted = &mut restart => return restarted,
                    _ = published => {}
                }
            }
        }
    }
}

/// Changes one cluster, and the endpoints of one name. Returns the revision.
async fn publish(args: &Args, admin: &[SocketAddr], at: usize, generation: u64) -> Result<u64> {
    let mut author = Author::connect(*admin.get(at).context("no such replica")?).await?;
    // The changes visit all resources, because 7919 is prime.
    let nth = usize::try_from(generation)?.wrapping_mul(7919);
    let mut changed = vec![resource::cluster(nth % args.resources, generation)];
    if args.endpoints > 0 {
        changed.push(resource::endpoints(nth % args.endpoints, generation));
    }
    let manifest = resource::manifest(resource::SCOPE, changed);
    Ok(author.apply(&[manifest]).await?.revision)
}

/// Makes a change, and waits until all clients have it. Returns the duration.
async fn change(args: &Args, run: &mut Run, patience: Duration) -> Result<Duration> {
    run.generation += 1;
    let start = Instant::now();
    let at = run.cluster.whole().await?;
    let revision = publish(args, &run.admin, at, run.generation).await?;
    loop {
        let behind = run.seen.iter().filter(|seen| seen.load(Ordering::Relaxed) < revision);
        let behind = behind.count();
        if behind == 0 {
            return Ok(start.elapsed());
        }
        let left = patience.saturating_sub(start.elapsed());
        if timeout(left, run.shared.progressed()).await.is_err() {
            bail!(
                "{behind} of {} clients are not at revision {revision} after {patience:?}; {}",
                run.seen.len(),
                run.shared.reasons().join("; ")
            );
        }
    }
}

/// Ends the clients, and compares their resources with each other and with the replicas.
async fn finish(args: &Args, mut run: Run, written: Vec<Written>) -> Result<Outcome> {
    run.shared.end();
    let mut clients = Vec::new();
    while let Some(client) = run.clients.join_next().await {
        clients.push(client?);
    }
    let mut lost = 0;
    let mut versions = Vec::new();
    for server in run.cluster.servers() {
        let mut author = Author::connect(server.admin).await?;
        let generations = author.generations(writers::SCOPE).await?;
        lost += count(written.iter().filter(|written| !written.is_kept(&generations)).count());
        versions.push(author.versions().await?);
    }
    let replicas_differ = versions.windows(2).filter(|pair| pair[0] != pair[1]).count();
    let first = versions.first().context("no replica is up")?;
    let expected: HashMap<u32, Version> = (0..args.resources)
        .filter_map(|n| {
            Some((u32::try_from(n).ok()?, Version::parse(first.get(&resource::name(n))?)?))
        })
        .collect();
    let clients_differ = differing(&clients, &expected, args.resources, args.endpoints);
    let mut acked: Vec<Instant> =
        written.iter().flat_map(|written| written.acked.iter().copied()).collect();
    acked.sort_unstable();
    ensure!(!acked.is_empty(), "no write was acknowledged");
    Ok(Outcome {
        counts: run.shared.counts(),
        reasons: run.shared.reasons(),
        clients_differ,
        replicas_differ: count(replicas_differ),
        lost,
        pauses: run
            .steps
            .iter()
            .map(|step| (*step, longest_pause(&acked, step.from, step.to)))
            .collect(),
        written,
    })
}

impl Run {
    fn leader_changes(&self) -> usize {
        self.steps.iter().filter(|step| step.was_leader).count()
    }
}

/// Returns the number of clients with wrong resources. The versions must be those of the replicas,
/// and the bytes those of the first client.
fn differing(
    clients: &[ClientState],
    expected: &HashMap<u32, Version>,
    resources: usize,
    endpoints: usize,
) -> u64 {
    let of = |has: &ClientState, type_url: &str| {
        let all = has.iter().find(|(known, _)| *known == type_url);
        all.map(|(_, known)| {
            known.iter().map(|(n, known)| (*n, known.body)).collect::<HashMap<_, _>>()
        })
    };
    let clusters = clients.first().and_then(|has| of(has, CLUSTER));
    let named = clients.iter().find_map(|has| of(has, ENDPOINT));
    let is_right = |has: &ClientState| {
        let right_versions = has.iter().flat_map(|(_, known)| known).all(|(n, known)| {
            known.version.is_none_or(|version| expected.get(n) == Some(&version))
        });
        let right_clusters = of(has, CLUSTER);
        let right_endpoints = of(has, ENDPOINT)
            .is_none_or(|found| found.len() == endpoints && Some(&found) == named.as_ref());
        let complete = right_clusters.as_ref().is_some_and(|found| found.len() == resources);
        right_versions && right_endpoints && complete && right_clusters == clusters
    };
    count(clients.iter().filter(|has| !is_right(has)).count())
}
