//! Many wildcard clients in one thread, and their kind on aggregated delta streams of clusters.
//!
//! The clients are cheap: a [`Scanner`] reads the responses, and nothing is stored. A client counts
//! the resources that it receives and adds up the hashes of their names. With these two numbers it
//! detects that it has all resources. After that, it checks that each response contains exactly the
//! changed resource. The other kind of client is in `sinks`.

use std::{
    net::SocketAddr,
    ops::{Add, Sub},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use bytes::Bytes;
use chancery_fleet_load::{
    scan::{self, End, Event, Scanner},
    stream::{self, Requests, Responses, Target, Windows},
};
use h2::client::SendRequest;
use parking_lot::Mutex;
use tokio::{sync::Notify, task::JoinSet, time::timeout};

use crate::{
    resource::{self, Content},
    stats::count,
};

/// The maximum number of complaints that are kept. Further complaints are only counted.
const COMPLAINTS_MAX: usize = 5;

/// The resources that every client should have after the first sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) resources: u64,
    /// The sum of the hashes of the names.
    pub(crate) names: u64,
}

/// The traffic to all clients together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Totals {
    pub(crate) responses: u64,
    pub(crate) resources: u64,
    pub(crate) bytes: u64,
    /// Full states that sinks received after their first response.
    pub(crate) full_resends: u64,
    /// The number of complaints, such as unexpected responses.
    pub(crate) wrong: u64,
}

/// Connected clients. Dropping this value closes all connections.
#[derive(Debug)]
pub(crate) struct WildcardClients {
    shared: Arc<Shared>,
    streams: u64,
    tasks: JoinSet<()>,
}

/// State that the clients share with their owner.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) expected: Expected,
    /// The number of clients that have all resources.
    synced: AtomicU64,
    /// The hash of the changed name.
    changed: AtomicU64,
    /// The number of clients that have acknowledged the change.
    acked: AtomicU64,
    responses: AtomicU64,
    resources: AtomicU64,
    bytes: AtomicU64,
    full_resends: AtomicU64,
    wrong: AtomicU64,
    complaints: Mutex<Vec<String>>,
    progress: Notify,
}

struct Client {
    shared: Arc<Shared>,
    requests: Requests,
    is_synced: bool,
    /// The resources received in the first sync.
    held: Expected,
}

/// The contents of one response.
#[derive(Default)]
struct Response {
    resources: u64,
    removed: u64,
    names: u64,
}

impl Expected {
    /// Returns the expectation for clusters `0..n` of a load.
    pub(crate) fn clusters(n: usize) -> Self {
        Self::of(Content::Clusters, n)
    }

    /// Returns the expectation for resources `0..n` of a load.
    pub(crate) fn of(content: Content, n: usize) -> Self {
        Self { resources: count(n), names: content.names_hash(n) }
    }
}

impl Add for Totals {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            responses: self.responses + other.responses,
            resources: self.resources + other.resources,
            bytes: self.bytes + other.bytes,
            full_resends: self.full_resends + other.full_resends,
            wrong: self.wrong + other.wrong,
        }
    }
}

impl Sub for Totals {
    type Output = Self;
    fn sub(self, earlier: Self) -> Self {
        Self {
            responses: self.responses - earlier.responses,
            resources: self.resources - earlier.resources,
            bytes: self.bytes - earlier.bytes,
            full_resends: self.full_resends - earlier.full_resends,
            wrong: self.wrong - earlier.wrong,
        }
    }
}

impl WildcardClients {
    /// Creates the owner of `streams` clients that are not connected yet.
    pub(crate) fn new(streams: usize, expected: Expected) -> Self {
        let shared = Arc::new(Shared {
            expected,
            synced: AtomicU64::new(0),
            changed: AtomicU64::new(0),
            acked: AtomicU64::new(0),
            responses: AtomicU64::new(0),
            resources: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            full_resends: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            complaints: Mutex::default(),
            progress: Notify::new(),
        });
        Self { shared, streams: count(streams), tasks: JoinSet::new() }
    }

    /// Opens `streams` delta streams, with `per_connection` on each connection.
    pub(crate) async fn connect(
        target: impl Into<Target>,
        streams: usize,
        per_connection: usize,
        expected: Expected,
    ) -> Result<Self> {
        let mut clients = Self::new(streams, expected);
        let target = target.into();
        let mut left = streams;
        while left > 0 {
            let n = left.min(per_connection.max(1));
            clients.open(&target, n, streams - left).await?;
            left -= n;
        }
        Ok(clients)
    }

    /// Opens a connection with `n` streams. The IDs of their nodes are numbers from `first` on.
    pub(crate) async fn open(&mut self, target: &Target, n: usize, first: usize) -> Result<()> {
        let mut sender = self.open_connection(target.clone()).await?;
        for n in first..first + n {
            sender = self.open_stream(sender, n, target.at).await?;
        }
        Ok(())
    }

    /// Opens a connection, which lives as long as this value.
    pub(crate) async fn open_connection(
        &mut self,
        target: impl Into<Target>,
    ) -> Result<SendRequest<Bytes>> {
        let (sender, connection) = stream::connect(target, Windows::ENVOY).await?;
        let shared = Arc::clone(&self.shared);
        self.tasks.spawn(async move {
            if let Err(error) = connection.await {
                shared.complain(format!("a connection failed: {error}"));
            }
        });
        Ok(sender)
    }

    async fn open_stream(
        &mut self,
        sender: SendRequest<Bytes>,
        n: usize,
        xds: SocketAddr,
    ) -> Result<SendRequest<Bytes>> {
        let (sender, requests, responses) =
            stream::open(sender, xds, format!("loadtest-{n}")).await?;
        let client = Client {
            shared: Arc::clone(&self.shared),
            requests,
            is_synced: false,
            held: Expected { resources: 0, names: 0 },
        };
        self.spawn(client.run(responses));
        Ok(sender)
    }

    /// Runs a client. A client that fails is a complaint.
    pub(crate) fn spawn(&mut self, client: impl Future<Output = Result<()>> + Send + 'static) {
        let shared = Arc::clone(&self.shared);
        self.tasks.spawn(async move {
            if let Err(error) = client.await {
                shared.complain(format!("a stream failed: {error:#}"));
            }
        });
    }

    /// Returns the state that the clients share.
    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Waits until all clients have acknowledged all resources.
    pub(crate) async fn synced(&self, patience: Duration) -> Result<()> {
        self.n_synced(self.streams, patience).await
    }

    /// Waits until `n` clients have acknowledged all resources.
    pub(crate) async fn n_synced(&self, n: u64, patience: Duration) -> Result<()> {
        let synced = || self.shared.synced.load(Ordering::Relaxed);
        self.wait(n, patience, "hold all resources", synced).await
    }

    /// Sets the changed name, which each client should now receive once.
    pub(crate) fn expect(&self, name: &str) {
        self.shared.changed.store(resource::name_hash(name.as_bytes()), Ordering::Relaxed);
        self.shared.acked.store(0, Ordering::Relaxed);
    }

    /// Waits until all clients have acknowledged the changed name.
    pub(crate) async fn acked(&self, patience: Duration) -> Result<()> {
        let acked = || self.shared.acked.load(Ordering::Relaxed);
        self.wait(self.streams, patience, "have the change", acked).await
    }

    pub(crate) fn totals(&self) -> Totals {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Totals {
            responses: of(&self.shared.responses),
            resources: of(&self.shared.resources),
            bytes: of(&self.shared.bytes),
            full_resends: of(&self.shared.full_resends),
            wrong: of(&self.shared.wrong),
        }
    }

    /// Returns the first complaints.
    pub(crate) fn complaints(&self) -> Vec<String> {
        self.shared.complaints.lock().clone()
    }

    async fn wait(
        &self,
        wanted: u64,
        patience: Duration,
        what: &str,
        n: impl Fn() -> u64,
    ) -> Result<()> {
        let deadline = Instant::now() + patience;
        while n() < wanted {
            let complaints = self.complaints();
            if !complaints.is_empty() {
                bail!("{}", complaints.join("; "));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if timeout(left, self.shared.progress.notified()).await.is_err() {
                bail!("only {} of {wanted} clients {what} after {patience:?}", n());
            }
        }
        Ok(())
    }
}

impl Shared {
    /// Counts a response of `bytes` bytes.
    pub(crate) fn count(&self, resources: u64, bytes: u64) {
        self.responses.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.resources.fetch_add(resources, Ordering::Relaxed);
    }

    /// Records that a client has all resources.
    pub(crate) fn on_synced(&self) {
        self.synced.fetch_add(1, Ordering::Relaxed);
        self.progress.notify_one();
    }

    /// Records a full state that a client already had.
    pub(crate) fn on_full_resend(&self) {
        self.full_resends.fetch_add(1, Ordering::Relaxed);
    }

    /// Checks an acknowledged response after the first sync. `names` is the sum of the hashes.
    pub(crate) fn on_change(&self, resources: u64, names: u64) {
        if resources == 1 && names == self.changed.load(Ordering::Relaxed) {
            self.acked.fetch_add(1, Ordering::Relaxed);
            return self.progress.notify_one();
        }
        self.complain(format!(
            "a response has {resources} resources; only the changed one was expected"
        ));
    }

    pub(crate) fn complain(&self, complaint: String) {
        self.wrong.fetch_add(1, Ordering::Relaxed);
        let mut complaints = self.complaints.lock();
        if complaints.len() < COMPLAINTS_MAX {
            complaints.push(complaint);
        }
        self.progress.notify_one();
    }
}

impl Client {
    async fn run(mut self, responses: Responses) -> Result<()> {
        let mut scanner = Scanner::new(scan::Responses::DeltaNames);
        let mut response = Response::default();
        let mut nonces: Vec<(Response, String)> = Vec::new();
        let read = responses.read(|chunk| {
            let shared = &self.shared;
            scanner.feed(chunk, &mut |event| match event {
                Event::Resource { name, .. } => {
                    response.resources += 1;
                    response.names = response.names.wrapping_add(resource::name_hash(name));
                }
                Event::Removed { .. } => response.removed += 1,
                Event::End(End { nonce, bytes, .. }) => {
                    shared.count(response.resources, bytes);
                    let nonce = String::from_utf8_lossy(nonce).into_owned();
                    nonces.push((std::mem::take(&mut response), nonce));
                }
            })?;
            for (response, nonce) in nonces.drain(..) {
                self.requests.ack(nonce)?;
                self.take(&response);
            }
            Ok(())
        });
        read.await
    }

    /// Checks a response that has been acknowledged.
    fn take(&mut self, response: &Response) {
        let expected = self.shared.expected;
        if response.removed > 0 {
            return self.shared.complain(format!(
                "a response removes {} names; none was expected",
                response.removed
            ));
        }
        if self.is_synced {
            return self.shared.on_change(response.resources, response.names);
        }
        self.held.resources += response.resources;
        self.held.names = self.held.names.wrapping_add(response.names);
        if self.held == expected {
            self.is_synced = true;
            self.shared.on_synced();
        } else if self.held.resources >= expected.resources {
            self.shared.complain(format!(
                "a client received {} resources, which are not the {} expected ones",
                self.held.resources, expected.resources
            ));
        }
    }
}
