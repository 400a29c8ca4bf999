//! Clients that all connect at once, on a thread of their own.
//!
//! The thread can have a lower priority. That makes it hold locks of the process (the allocator's, the
//! kernel's for its memory) for longer, which the clients whose latency is measured then wait for.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use chancery_model::types::CLUSTER;
use chancery_proto::discovery::{DeltaDiscoveryRequest, DiscoveryRequest};
use serde_json::{Value, json};
use tokio::{
    runtime::Runtime,
    sync::{mpsc as tokio_mpsc, oneshot},
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    resource,
    scan::{Event, Scanner},
    stats::{Latencies, count},
    stream::{self, DELTA, Requests, Responses, SOTW, Windows},
};

/// A client whose reads fall behind stops the server early, so that the kernel does not buffer
/// gigabytes for all clients together.
const WINDOWS: Windows = Windows { stream: 256 << 10, connection: 512 << 10, socket: None };

/// A client whose connection is reset (the kernel's queue of connections may overflow) tries again after this
/// pause, this many times.
const RETRY: Duration = Duration::from_millis(100);
const RETRIES: usize = 20;

/// The requests of the clients of a herd.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) clients: usize,
    pub(super) resources: usize,
    /// Versions of the resources by name, for the clients that resume.
    pub(super) versions: BTreeMap<String, String>,
    /// The `nice` value of the thread.
    pub(super) nice: i32,
    pub(super) patience: Duration,
}

/// The handle to the thread. Dropping it closes all connections.
#[derive(Debug)]
pub(super) struct Herd(tokio_mpsc::Sender<oneshot::Sender<Result<Latencies>>>);

/// How a client begins its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Delta, a wildcard, holding nothing.
    First,
    /// Delta, a wildcard, holding all resources.
    Resume,
    /// Delta, each resource by its name, holding all of them.
    ResumeNames,
    /// State of the world, a wildcard, with a version.
    Sotw,
}

impl Herd {
    /// Starts the thread. No client connects yet.
    pub(super) fn start(xds: SocketAddr, load: Load) -> Result<Self> {
        let (sender, mut storms) = tokio_mpsc::channel::<oneshot::Sender<Result<Latencies>>>(1);
        let (started, start) = mpsc::channel();
        thread::Builder::new().name("herd".to_owned()).spawn(move || {
            let runtime = match runtime(load.nice) {
                Ok(runtime) => runtime,
                Err(error) => return drop(started.send(Err(error))),
            };
            drop(started.send(Ok(())));
            runtime.block_on(async {
                let load = Arc::new(load);
                let mut connected = JoinSet::new();
                while let Some(reply) = storms.recv().await {
                    // Dropping them closes their connections.
                    drop(std::mem::take(&mut connected));
                    drop(reply.send(storm(xds, &load, &mut connected).await));
                }
            });
        })?;
        start.recv().context("the thread of the clients has ended")??;
        Ok(Self(sender))
    }

    /// Closes all connections, connects all clients at once, and waits until all are current. Returns the
    /// times from the start of the storm until each client was current.
    pub(super) async fn storm(&self) -> Result<Latencies> {
        let (reply, answer) = oneshot::channel();
        self.0.send(reply).await.ok().context("the thread of the clients has ended")?;
        answer.await.context("the thread of the clients has ended")?
    }
}

/// Gives this thread its priority, and makes its runtime.
fn runtime(nice: i32) -> Result<Runtime> {
    // Linux changes the priority of the calling thread only.
    rustix::process::setpriority_process(None, nice).context("set the priority of a thread")?;
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

async fn storm(xds: SocketAddr, load: &Arc<Load>, tasks: &mut JoinSet<()>) -> Result<Latencies> {
    let start = Instant::now();
    // A client says that it is current, and that it has ended.
    let (current, mut all) = tokio_mpsc::channel(2 * load.clients);
    for n in 0..load.clients {
        let (load, current) = (Arc::clone(load), current.clone());
        tasks.spawn(async move {
            let is_current = AtomicBool::new(false);
            let on_current = || {
                is_current.store(true, Ordering::Relaxed);
                drop(current.try_send(Ok(start.elapsed())));
            };
            let mut ended = client(xds, n, &load, on_current).await;
            for _ in 0..RETRIES {
                if is_current.load(Ordering::Relaxed) {
                    break;
                }
                sleep(RETRY).await;
                ended = client(xds, n, &load, on_current).await;
            }
            let ended = ended.and_then(|()| bail!("the server has ended it"));
            drop(current.try_send(ended));
        });
    }
    let mut times = Vec::with_capacity(load.clients);
    while times.len() < load.clients {
        let left = load.patience.saturating_sub(start.elapsed());
        match timeout(left, all.recv()).await {
            Ok(Some(time)) => times.push(time.context("a client of the storm")?),
            _ => bail!(
                "{} of {} clients are current after {:?}",
                times.len(),
                load.clients,
                load.patience
            ),
        }
    }
    Latencies::of(times).context("the storm has no clients")
}

/// Connects, takes the first state, and stays until it is aborted.
async fn client(xds: SocketAddr, n: usize, load: &Load, on_current: impl FnOnce()) -> Result<()> {
    let kind = [Kind::First, Kind::Resume, Kind::ResumeNames, Kind::Sotw][n % 4];
    let (sender, connection) = stream::connect(xds, WINDOWS).await?;
    let stream = async {
        let node = Some(stream::node(format!("storm-{n}")));
        let (_sender, requests, responses) = match kind {
            Kind::Sotw => {
                let first = DiscoveryRequest {
                    version_info: "1-0".to_owned(),
                    node,
                    type_url: CLUSTER.to_owned(),
                    ..DiscoveryRequest::default()
                };
                stream::open_with(sender, xds, SOTW, &[first]).await?
            }
            Kind::First | Kind::Resume | Kind::ResumeNames => {
                let mut first = DeltaDiscoveryRequest {
                    node,
                    type_url: CLUSTER.to_owned(),
                    ..DeltaDiscoveryRequest::default()
                };
                if kind != Kind::First {
                    first.initial_resource_versions = load.versions.clone();
                }
                if kind == Kind::ResumeNames {
                    first.resource_names_subscribe = load.versions.keys().cloned().collect();
                }
                stream::open_with(sender, xds, DELTA, &[first]).await?
            }
        };
        read(kind, load, requests, responses, on_current).await
    };
    tokio::select! {
        ended = connection => Ok(ended.context("the connection")?),
        ended = stream => ended,
    }
}

async fn read(
    kind: Kind,
    load: &Load,
    mut requests: Requests,
    responses: Responses,
    on_current: impl FnOnce(),
) -> Result<()> {
    let (mut scanner, mut on_current) = (Scanner::new(), Some(on_current));
    let (mut resources, mut nonces) = (0, Vec::new());
    let read = responses.read(|chunk| {
        scanner.feed(chunk, &mut |event| match event {
            Event::Resource { .. } => resources += 1,
            Event::Removed { .. } => {}
            Event::End { nonce, .. } => nonces.push(String::from_utf8_lossy(nonce).into_owned()),
        })?;
        for nonce in nonces.drain(..) {
            match kind {
                Kind::Sotw => requests.send(&DiscoveryRequest {
                    version_info: "1-0".to_owned(),
                    type_url: CLUSTER.to_owned(),
                    response_nonce: nonce,
                    ..DiscoveryRequest::default()
                })?,
                Kind::First | Kind::Resume | Kind::ResumeNames => requests.ack(nonce)?,
            }
            // A client that holds everything is sent an answer anyway.
            let is_current = matches!(kind, Kind::Resume | Kind::ResumeNames)
                || resources >= count(load.resources);
            if is_current && let Some(on_current) = on_current.take() {
                on_current();
            }
        }
        Ok(())
    });
    read.await
}

/// The number of the first cluster of the storm; the clusters that are updated have lower ones.
pub(super) const FIRST: usize = 1_000_000;
/// The scope that the clients of the storm see.
pub(super) const SCOPE: &str = "loadtest/storm";

/// The assignment of the storm's clients, and their resources in transactions of a size that is taken.
pub(super) fn manifests(resources: usize, batch: usize) -> impl Iterator<Item = Value> {
    let assignment = json!({
        "name": "storm", "priority": 10, "match": {"id": "storm-*"}, "scopes": [SCOPE],
    });
    let clusters = (0..resources).step_by(batch).map(move |from| {
        let clusters =
            (from..(from + batch).min(resources)).map(|n| resource::cluster(FIRST + n, 0));
        resource::manifest(SCOPE, clusters.collect())
    });
    std::iter::once(json!({"assignments": [assignment]})).chain(clusters)
}

/// Whether a cluster is one of the storm's.
pub(super) fn is_of_storm(name: &str) -> bool {
    resource::number(name).is_some_and(|n| usize::try_from(n).is_ok_and(|n| n >= FIRST))
}
