//! Clients that see all clusters, and the deliveries that they are owed.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use chancery_fleet_load::{
    scan::{self, End, Event, Scanner},
    stream::{self, Requests, Responses, Windows},
};
use chancery_model::Version;
use parking_lot::Mutex;
use tokio::{task::JoinSet, time::sleep};

/// The maximum number of complaints that are kept.
const COMPLAINTS_MAX: usize = 5;
/// The windows of a slow client, which limit how much it reads at a time.
const SLOW: Windows = Windows { stream: 4096, connection: 1 << 20, socket: None };
/// The pause of a slow client after each read.
const SLOW_PAUSE: Duration = Duration::from_millis(100);
/// The interval of checks whether clients are current.
const POLL: Duration = Duration::from_millis(20);

/// The speed at which a client reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// As fast as possible.
    Fast,
    /// A few resources at a time, with pauses.
    Slow,
}

/// The deliveries that all clients have, and those that they are owed.
#[derive(Debug)]
pub(super) struct Deliveries {
    resources: u64,
    /// The revision of the last round.
    newest: AtomicU64,
    streams: Mutex<Vec<Arc<Received>>>,
    streams_max: usize,
}

/// The deliveries that one client has.
#[derive(Debug)]
struct Received {
    pace: Pace,
    /// The newest revision of which the client has a resource.
    revision: AtomicU64,
    /// The number of resources that the client has of this revision.
    resources: AtomicU64,
}

impl Deliveries {
    /// Creates a record without streams.
    pub(super) fn new(resources: u64, streams_max: usize) -> Self {
        let (newest, streams) = (AtomicU64::new(0), Mutex::default());
        Self { resources, newest, streams, streams_max }
    }

    /// Records that all clients are owed all resources of this revision.
    pub(super) fn owe(&self, revision: u64) {
        self.newest.fetch_max(revision, Ordering::SeqCst);
    }

    /// Returns the number of owed deliveries: for each stream, the resources that it does not have
    /// in the newest revision.
    pub(super) fn owed(&self) -> u64 {
        let newest = self.newest.load(Ordering::SeqCst);
        self.streams
            .lock()
            .iter()
            .map(|received| self.resources - received.of(newest, self.resources))
            .sum()
    }

    /// Waits until all clients of a pace have all resources.
    pub(super) async fn wait_for(&self, pace: Pace, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            let newest = self.newest.load(Ordering::SeqCst);
            let behind = {
                let streams = self.streams.lock();
                let of_pace = streams.iter().filter(|received| received.pace == pace);
                of_pace
                    .filter(|received| received.of(newest, self.resources) < self.resources)
                    .count()
            };
            if behind == 0 {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "{behind} {pace:?} clients do not have all resources after {patience:?}"
            );
            sleep(POLL).await;
        }
    }

    fn join(&self, pace: Pace) -> Result<Arc<Received>> {
        let (revision, resources) = (AtomicU64::new(0), AtomicU64::new(0));
        let received = Arc::new(Received { pace, revision, resources });
        let mut streams = self.streams.lock();
        ensure!(streams.len() < self.streams_max, "there are more streams than expected");
        streams.push(Arc::clone(&received));
        Ok(received)
    }
}

impl Received {
    /// Returns the number of resources that the client has of this revision or of a later one.
    fn of(&self, revision: u64, most: u64) -> u64 {
        if self.revision.load(Ordering::SeqCst) >= revision {
            self.resources.load(Ordering::SeqCst).min(most)
        } else {
            0
        }
    }

    /// Records the arrival of one resource.
    fn take(&self, revision: u64) -> Result<()> {
        let newest = self.revision.load(Ordering::SeqCst);
        ensure!(revision >= newest, "revision {revision} came after revision {newest}");
        if revision > newest {
            self.revision.store(revision, Ordering::SeqCst);
            self.resources.store(0, Ordering::SeqCst);
        }
        self.resources.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// Connected clients. Dropping this value closes all connections.
#[derive(Debug)]
pub(super) struct Clients {
    deliveries: Arc<Deliveries>,
    /// The first errors.
    complaints: Arc<Mutex<Vec<String>>>,
    tasks: JoinSet<()>,
}

impl Clients {
    pub(super) fn new(deliveries: Arc<Deliveries>) -> Self {
        Self { deliveries, complaints: Arc::default(), tasks: JoinSet::new() }
    }

    /// Opens `streams` streams, with `per_connection` on each connection.
    pub(super) async fn connect(
        &mut self,
        xds: SocketAddr,
        pace: Pace,
        streams: usize,
        per_connection: usize,
    ) -> Result<()> {
        let windows = match pace {
            Pace::Fast => Windows::ENVOY,
            Pace::Slow => SLOW,
        };
        let mut connected = None;
        for n in 0..streams {
            let sender = match connected.take() {
                Some(sender) if n % per_connection.max(1) != 0 => sender,
                _ => {
                    let (sender, connection) = stream::connect(xds, windows).await?;
                    self.spawn(async move { connection.await.context("a connection failed") });
                    sender
                }
            };
            let node = format!("pressure-{xds}-{pace:?}-{n}");
            let (sender, requests, responses) = stream::open(sender, xds, node).await?;
            connected = Some(sender.clone());
            let received = self.deliveries.join(pace)?;
            self.spawn(async move {
                // The connection stays open as long as a sender exists.
                let _sender = sender;
                read(&received, requests, responses).await
            });
        }
        Ok(())
    }

    fn spawn(&mut self, work: impl Future<Output = Result<()>> + Send + 'static) {
        let complaints = Arc::clone(&self.complaints);
        self.tasks.spawn(async move {
            if let Err(error) = work.await {
                let mut complaints = complaints.lock();
                if complaints.len() < COMPLAINTS_MAX {
                    complaints.push(format!("{error:#}"));
                }
            }
        });
    }

    /// Returns the first errors.
    pub(super) fn complaints(&self) -> Vec<String> {
        self.complaints.lock().clone()
    }
}

/// Reads a stream and acknowledges all responses, without end.
async fn read(received: &Received, mut requests: Requests, responses: Responses) -> Result<()> {
    let mut scanner = Scanner::new(scan::Responses::DeltaNames);
    let mut body = responses.body().await?;
    let mut nonces = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        let mut recorded = Ok(());
        scanner.feed(&chunk, &mut |event| match event {
            Event::Resource { version, .. } => {
                let version = std::str::from_utf8(version).ok().and_then(Version::parse);
                let one = version.context("a resource has an invalid version");
                let one = one.and_then(|version| received.take(version.revision.0));
                if recorded.is_ok() {
                    recorded = one;
                }
            }
            Event::Removed { .. } => {}
            Event::End(End { nonce, .. }) => {
                nonces.push(String::from_utf8_lossy(nonce).into_owned())
            }
        })?;
        recorded?;
        for nonce in nonces.drain(..) {
            requests.ack(nonce)?;
        }
        if received.pace == Pace::Slow {
            sleep(SLOW_PAUSE).await;
        }
        body.flow_control().release_capacity(chunk.len())?;
    }
    bail!("the server has ended a stream")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_newest_revision_is_no_longer_owed() {
        let deliveries = Deliveries::new(3, 2);
        let (one, two) =
            (deliveries.join(Pace::Fast).unwrap(), deliveries.join(Pace::Slow).unwrap());
        assert!(deliveries.join(Pace::Fast).is_err());
        deliveries.owe(5);
        assert_eq!(deliveries.owed(), 6);
        for _ in 0..3 {
            one.take(5).unwrap();
        }
        two.take(4).unwrap();
        assert_eq!(deliveries.owed(), 3);
        two.take(5).unwrap();
        assert_eq!(deliveries.owed(), 2);
        // The client has a part of the next round before the acknowledgment of its write arrives.
        one.take(6).unwrap();
        deliveries.owe(6);
        assert_eq!(deliveries.owed(), 5);
        assert!(one.take(5).is_err(), "never backwards");
    }
}
