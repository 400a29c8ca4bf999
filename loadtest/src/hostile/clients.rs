//! Healthy clients, and clients with a fault.

use std::{
    net::SocketAddr,
    ops::Sub,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use chancery_fleet_load::{
    scan::{self, End, Event, Scanner},
    stream::{self, Target, Windows},
};
use chancery_model::Version;
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::arrivals::Arrivals;
use crate::{random::Random, stats::count};

/// The maximum number of complaints that are kept. Further complaints are only counted.
const COMPLAINTS_MAX: usize = 5;
/// The receive buffer of a client that reads nothing: as small as the kernel allows.
const SOCKET_BYTES: u32 = 2048;
/// Windows with space for the headers of the response, and for little of its content.
const SHUT: Windows = Windows { stream: 512, connection: 65_535, socket: None };
/// The pause before a disconnected client connects again.
const AGAIN: Duration = Duration::from_secs(1);
/// The minimum time until a client that does not read its socket connects again. It cannot detect
/// that it was disconnected. The maximum is twice this time.
const BLIND: Duration = Duration::from_secs(45);
const HANDSHAKE: Duration = Duration::from_secs(30);

/// The faults of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The client reads, but acknowledges nothing.
    Ack,
    /// The client never enlarges its stream's window, but still answers HTTP/2 control frames.
    Window,
    /// The client no longer reads its socket.
    Socket,
}

/// The traffic to many clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    pub(crate) responses: u64,
    pub(crate) resources: u64,
    /// Updates that arrived in a response, or that a newer update replaced.
    pub(crate) updates: u64,
}

impl Sub for Counts {
    type Output = Self;
    fn sub(self, earlier: Self) -> Self {
        Self {
            responses: self.responses - earlier.responses,
            resources: self.resources - earlier.resources,
            updates: self.updates - earlier.updates,
        }
    }
}

/// Clients of one kind. Dropping them closes their connections.
#[derive(Debug)]
pub(crate) struct Clients {
    shared: Arc<Shared>,
    /// The number of clients that read.
    readers: u64,
    /// The number of all clients.
    all: u64,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    /// The record of arrivals; `None` for clients whose arrivals do not matter.
    arrivals: Option<Arc<Arrivals>>,
    resources_wanted: u64,
    synced: AtomicU64,
    responses: AtomicU64,
    resources: AtomicU64,
    updates: AtomicU64,
    /// The number of connections so far.
    connects: AtomicU64,
    wrong: AtomicU64,
    complaints: Mutex<Vec<String>>,
    progress: Notify,
}

/// Whether a client acknowledges responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answers {
    All,
    None,
}

/// The state of one client.
#[derive(Debug, Default)]
struct Holds {
    /// The number of resources received for the first state.
    resources: u64,
    is_synced: bool,
    /// The newest revision that the client has.
    newest: u64,
}

impl Clients {
    fn new(arrivals: Option<Arc<Arrivals>>, resources: usize) -> Self {
        let shared = Shared {
            arrivals,
            resources_wanted: count(resources),
            synced: AtomicU64::new(0),
            responses: AtomicU64::new(0),
            resources: AtomicU64::new(0),
            updates: AtomicU64::new(0),
            connects: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            complaints: Mutex::default(),
            progress: Notify::new(),
        };
        Self { shared: Arc::new(shared), readers: 0, all: 0, tasks: JoinSet::new() }
    }

    /// Connects clients that read and acknowledge everything, each on its own connection.
    pub(crate) async fn healthy(
        target: impl Into<Target>,
        arrivals: &Arc<Arrivals>,
        n: usize,
        resources: usize,
    ) -> Result<Self> {
        let mut clients = Self::new(Some(Arc::clone(arrivals)), resources);
        let target = target.into();
        for n in 0..n {
            clients.reader(target.clone(), format!("healthy-{n}"), Answers::All).await?;
        }
        Ok(clients)
    }

    /// Starts clients with these faults.
    pub(crate) async fn faulty(
        xds: SocketAddr,
        faults: impl Iterator<Item = Fault>,
        resources: usize,
        random: &mut Random,
    ) -> Result<Self> {
        let mut clients = Self::new(None, resources);
        for (n, fault) in faults.enumerate() {
            let node = format!("faulty-{n}");
            if fault == Fault::Ack {
                clients.reader(xds.into(), node, Answers::None).await?;
                continue;
            }
            clients.all += 1;
            let shared = Arc::clone(&clients.shared);
            let mut random = Random::new(random.number());
            clients.tasks.spawn(async move {
                loop {
                    // The server may disconnect the client, which is an error here.
                    drop(neglect(xds, &node, fault, &shared, &mut random).await);
                    sleep(AGAIN).await;
                }
            });
        }
        Ok(clients)
    }

    /// Connects a client that reads.
    async fn reader(&mut self, target: Target, node: String, answers: Answers) -> Result<()> {
        let xds = target.at;
        let (sender, connection) = stream::connect(target, Windows::ENVOY).await?;
        self.shared.connects.fetch_add(1, Ordering::Relaxed);
        (self.readers, self.all) = (self.readers + 1, self.all + 1);
        let shared = Arc::clone(&self.shared);
        self.tasks.spawn(async move {
            if let Err(error) = connection.await {
                shared.complain(format!("a connection failed: {error}"));
            }
        });
        let (sender, mut requests, responses) = stream::open(sender, xds, node).await?;
        let shared = Arc::clone(&self.shared);
        self.tasks.spawn(async move {
            let _sender = sender;
            let (mut scanner, mut holds) =
                (Scanner::new(scan::Responses::DeltaNames), Holds::default());
            let (mut resources, mut newest) = (0, 0);
            let mut nonces = Vec::new();
            let read = responses.read(|chunk| {
                let mut bad_version = false;
                scanner.feed(chunk, &mut |event| match event {
                    Event::Resource { version, .. } => {
                        resources += 1;
                        let version = std::str::from_utf8(version).ok().and_then(Version::parse);
                        bad_version |= version.is_none();
                        newest = newest.max(version.map_or(0, |version| version.revision.0));
                    }
                    Event::Removed { .. } => bad_version = true,
                    Event::End(End { nonce, .. }) => {
                        shared.take(&mut holds, std::mem::take(&mut resources), newest);
                        nonces.push(String::from_utf8_lossy(nonce).into_owned());
                    }
                })?;
                if bad_version {
                    bail!("a resource has an invalid version or was removed");
                }
                for nonce in nonces.drain(..) {
                    if answers == Answers::All {
                        requests.ack(nonce)?;
                    }
                }
                Ok(())
            });
            if let Err(error) = read.await {
                shared.complain(format!("a stream failed: {error:#}"));
            }
        });
        Ok(())
    }

    /// Waits until all clients that read have all resources, and all others have their streams.
    pub(crate) async fn synced(&self, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        while self.synced_so_far() < self.readers || self.connects() < self.all {
            let complaints = self.complaints();
            if !complaints.is_empty() {
                bail!("{}", complaints.join("; "));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            timeout(left, self.shared.progress.notified()).await.with_context(|| {
                format!(
                    "{} of {} clients have all resources, and {} of {} have connected, after {patience:?}",
                    self.synced_so_far(),
                    self.readers,
                    self.connects(),
                    self.all
                )
            })?;
        }
        Ok(())
    }

    pub(crate) fn counts(&self) -> Counts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            responses: of(&self.shared.responses),
            resources: of(&self.shared.resources),
            updates: of(&self.shared.updates),
        }
    }

    fn synced_so_far(&self) -> u64 {
        self.shared.synced.load(Ordering::Relaxed)
    }

    /// Returns the number of connections so far.
    pub(crate) fn connects(&self) -> u64 {
        self.shared.connects.load(Ordering::Relaxed)
    }

    /// Returns the number of failures of clients that read: ended streams or connections, and
    /// invalid responses.
    pub(crate) fn wrong(&self) -> u64 {
        self.shared.wrong.load(Ordering::Relaxed)
    }

    /// Returns the first complaints.
    pub(crate) fn complaints(&self) -> Vec<String> {
        self.shared.complaints.lock().clone()
    }
}

impl Shared {
    /// Processes a response with `resources` resources, which brings the client up to revision
    /// `newest`.
    fn take(&self, holds: &mut Holds, resources: u64, newest: u64) {
        self.responses.fetch_add(1, Ordering::Relaxed);
        self.resources.fetch_add(resources, Ordering::Relaxed);
        if holds.is_synced {
            if let Some(arrivals) = &self.arrivals {
                let updates = arrivals.on_arrival(holds.newest, newest, Instant::now());
                self.updates.fetch_add(updates, Ordering::Relaxed);
            }
        } else {
            holds.resources += resources;
            holds.is_synced = holds.resources >= self.resources_wanted;
            if holds.is_synced {
                self.synced.fetch_add(1, Ordering::Relaxed);
                self.progress.notify_one();
            }
        }
        holds.newest = newest;
    }

    fn complain(&self, complaint: String) {
        self.wrong.fetch_add(1, Ordering::Relaxed);
        let mut complaints = self.complaints.lock();
        if complaints.len() < COMPLAINTS_MAX {
            complaints.push(complaint);
        }
        self.progress.notify_one();
    }
}

/// Subscribes to all clusters and reads no response, until the server disconnects or a time is
/// over.
async fn neglect(
    xds: SocketAddr,
    node: &str,
    fault: Fault,
    shared: &Shared,
    random: &mut Random,
) -> Result<()> {
    let windows = match fault {
        Fault::Socket => Windows { socket: Some(SOCKET_BYTES), ..Windows::ENVOY },
        Fault::Window | Fault::Ack => SHUT,
    };
    let (sender, connection) = stream::connect(xds, windows).await?;
    let mut connection = pin!(connection);
    let opening = async {
        let (sender, requests, responses) = stream::open(sender, xds, node.to_owned()).await?;
        let body = responses.body().await?;
        anyhow::Ok((sender, requests, body))
    };
    let _kept = tokio::select! {
        opened = timeout(HANDSHAKE, opening) => opened??,
        ended = &mut connection => return Ok(ended?),
    };
    shared.connects.fetch_add(1, Ordering::Relaxed);
    shared.progress.notify_one();
    match fault {
        Fault::Window | Fault::Ack => connection.await?,
        Fault::Socket => sleep(BLIND + random.time(BLIND)).await,
    }
    Ok(())
}
