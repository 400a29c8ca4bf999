//! Clients that connect at once, in a worker process.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use chancery_fleet_load::{
    scan::{self, End, Event, Scanner},
    stream::{self, DELTA, Requests, Responses, SOTW, Target, Windows},
};
use chancery_model::types::CLUSTER;
use chancery_proto::discovery::{DeltaDiscoveryRequest, DiscoveryRequest};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    author::Author,
    certificates::ClientFiles,
    resource,
    stats::{Latencies, count},
};

/// The maximum duration of a storm.
const PATIENCE: Duration = Duration::from_secs(120);
/// The number of resources in one transaction.
const BATCH: usize = 1000;

/// The windows of a client. A client whose reads fall behind stops the server early, so that the
/// kernel does not buffer gigabytes for all clients together.
const WINDOWS: Windows = Windows { stream: 256 << 10, connection: 512 << 10, socket: None };

/// The pause before a client whose connection was reset connects again. The kernel resets connections
/// when its queue of new connections overflows.
const RETRY: Duration = Duration::from_millis(100);
/// The maximum number of such attempts.
const RETRIES: usize = 20;

/// The clients of a storm, and the resources that they request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) xds: SocketAddr,
    /// The files of the clients if they use TLS.
    pub(crate) tls: Option<ClientFiles>,
    pub(crate) clients: usize,
    pub(crate) resources: usize,
    /// Versions of the resources by name, for the clients that resume.
    pub(crate) versions: BTreeMap<String, String>,
    pub(crate) patience: Duration,
}

/// Connected clients. Dropping this value closes their connections.
#[derive(Debug, Default)]
pub(crate) struct StormClients(JoinSet<()>);

/// The ways in which a client starts its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A delta wildcard, without resources.
    First,
    /// A delta wildcard, with all resources.
    Resume,
    /// Delta, with each resource by its name, and with all resources.
    ResumeNames,
    /// A SotW wildcard, with a version.
    Sotw,
}

impl StormClients {
    /// Closes all connections, connects all clients at once, and waits until all are current. Returns the
    /// times from the start of the storm until each client was current.
    pub(crate) async fn storm(&mut self, load: Load) -> Result<Latencies> {
        // Dropping the tasks closes their connections.
        drop(std::mem::take(&mut self.0));
        storm(&Arc::new(load), &mut self.0).await
    }
}

async fn storm(load: &Arc<Load>, tasks: &mut JoinSet<()>) -> Result<Latencies> {
    let files = load.tls.as_ref().map(ClientFiles::tls);
    let target = Target::new(load.xds, files.as_ref())?;
    let start = Instant::now();
    // Each client reports when it is current and when it has ended.
    let (current, mut all) = mpsc::channel(2 * load.clients);
    for n in 0..load.clients {
        let (load, current, target) = (Arc::clone(load), current.clone(), target.clone());
        tasks.spawn(async move {
            let is_current = AtomicBool::new(false);
            let on_current = || {
                is_current.store(true, Ordering::Relaxed);
                drop(current.try_send(Ok(start.elapsed())));
            };
            let mut ended = client(n, &load, &target, on_current).await;
            for _ in 0..RETRIES {
                if is_current.load(Ordering::Relaxed) {
                    break;
                }
                sleep(RETRY).await;
                ended = client(n, &load, &target, on_current).await;
            }
            let ended = ended.and_then(|()| bail!("the server ended the stream"));
            drop(current.try_send(ended));
        });
    }
    let mut times = Vec::with_capacity(load.clients);
    while times.len() < load.clients {
        let left = load.patience.saturating_sub(start.elapsed());
        match timeout(left, all.recv()).await {
            Ok(Some(time)) => times.push(time.context("a client of the storm failed")?),
            _ => bail!(
                "only {} of {} clients are current after {:?}",
                times.len(),
                load.clients,
                load.patience
            ),
        }
    }
    Latencies::of(times).context("the storm has no clients")
}

/// Connects, receives the first state, and stays until it is aborted.
async fn client(n: usize, load: &Load, target: &Target, on_current: impl FnOnce()) -> Result<()> {
    let xds = target.at;
    let kind = [Kind::First, Kind::Resume, Kind::ResumeNames, Kind::Sotw][n % 4];
    let (sender, connection) = stream::connect(target.clone(), WINDOWS).await?;
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
        ended = connection => Ok(ended.context("the connection failed")?),
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
    let (mut scanner, mut on_current) =
        (Scanner::new(scan::Responses::DeltaNames), Some(on_current));
    let (mut resources, mut nonces) = (0, Vec::new());
    let read = responses.read(|chunk| {
        scanner.feed(chunk, &mut |event| match event {
            Event::Resource { .. } => resources += 1,
            Event::Removed { .. } => {}
            Event::End(End { nonce, .. }) => {
                nonces.push(String::from_utf8_lossy(nonce).into_owned())
            }
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
            // The server also answers a client that has everything.
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

/// The number of the first cluster of the storm. The clusters with updates have lower numbers.
const FIRST: usize = 1_000_000;
/// The scope that the clients of the storm see.
const SCOPE: &str = "loadtest/storm";

impl Load {
    /// Publishes the resources of the clients, and returns the load of a storm.
    pub(crate) async fn publish(
        author: &mut Author,
        xds: SocketAddr,
        clients: usize,
        resources: usize,
    ) -> Result<Self> {
        for manifest in manifests(resources, BATCH) {
            author.apply(&[manifest]).await.context("publish the resources of the storm")?;
        }
        let all = author.versions().await?.into_iter();
        let versions = all.filter(|(name, _)| is_of_storm(name)).collect();
        Ok(Self { xds, tls: None, clients, resources, versions, patience: PATIENCE })
    }
}

/// Returns the assignment of the storm's clients, and their resources in transactions of `batch`
/// resources.
fn manifests(resources: usize, batch: usize) -> impl Iterator<Item = Value> {
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

/// Returns whether a cluster belongs to the storm.
fn is_of_storm(name: &str) -> bool {
    resource::number(name).is_some_and(|n| usize::try_from(n).is_ok_and(|n| n >= FIRST))
}
