//! Clients that see all clusters, and what they are owed.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use chancery_model::Version;
use parking_lot::Mutex;
use tokio::{task::JoinSet, time::sleep};

use crate::{
    scan::{Event, Scanner},
    stream::{self, Requests, Responses, Windows},
};

/// Complaints that are kept.
const COMPLAINTS_MAX: usize = 5;
/// What a slow client takes at a time.
const SLOW: Windows = Windows { stream: 4096, connection: 1 << 20, socket: None };
/// How long it then pauses.
const SLOW_PAUSE: Duration = Duration::from_millis(100);
/// Between two looks at what clients have.
const POLL: Duration = Duration::from_millis(20);

/// How fast a client reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// As fast as it can.
    Fast,
    /// A few resources at a time, with pauses.
    Slow,
}

/// What all clients have, and should have.
#[derive(Debug)]
pub(super) struct Board {
    resources: u64,
    /// The revision of the last round.
    newest: AtomicU64,
    streams: Mutex<Vec<Arc<Held>>>,
    streams_max: usize,
}

/// What one client has.
#[derive(Debug)]
struct Held {
    pace: Pace,
    /// The newest revision of which it has something, and how many resources of it.
    revision: AtomicU64,
    resources: AtomicU64,
}

impl Board {
    /// Nobody has anything yet.
    pub(super) fn new(resources: u64, streams_max: usize) -> Self {
        let (newest, streams) = (AtomicU64::new(0), Mutex::default());
        Self { resources, newest, streams, streams_max }
    }

    /// From now on everybody is owed all resources of this revision.
    pub(super) fn owe(&self, revision: u64) {
        self.newest.fetch_max(revision, Ordering::SeqCst);
    }

    /// Deliveries that have not arrived: of each stream, resources that it does not have as they are now.
    pub(super) fn owed(&self) -> u64 {
        let newest = self.newest.load(Ordering::SeqCst);
        self.streams
            .lock()
            .iter()
            .map(|held| self.resources - held.of(newest, self.resources))
            .sum()
    }

    /// Waits until all clients of a pace have everything.
    pub(super) async fn wait_for(&self, pace: Pace, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            let newest = self.newest.load(Ordering::SeqCst);
            let behind = {
                let streams = self.streams.lock();
                let of_pace = streams.iter().filter(|held| held.pace == pace);
                of_pace.filter(|held| held.of(newest, self.resources) < self.resources).count()
            };
            if behind == 0 {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "{behind} {pace:?} clients do not have everything after {patience:?}"
            );
            sleep(POLL).await;
        }
    }

    fn join(&self, pace: Pace) -> Result<Arc<Held>> {
        let (revision, resources) = (AtomicU64::new(0), AtomicU64::new(0));
        let held = Arc::new(Held { pace, revision, resources });
        let mut streams = self.streams.lock();
        ensure!(streams.len() < self.streams_max, "there are more streams than were asked for");
        streams.push(Arc::clone(&held));
        Ok(held)
    }
}

impl Held {
    /// Resources that it has of a revision, or of a later one.
    fn of(&self, revision: u64, most: u64) -> u64 {
        match self.revision.load(Ordering::SeqCst) >= revision {
            true => self.resources.load(Ordering::SeqCst).min(most),
            false => 0,
        }
    }

    /// One resource has arrived.
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

/// Connected clients. Dropping it closes all connections.
#[derive(Debug)]
pub(super) struct Clients {
    board: Arc<Board>,
    /// The first things that went wrong.
    complaints: Arc<Mutex<Vec<String>>>,
    tasks: JoinSet<()>,
}

impl Clients {
    pub(super) fn new(board: Arc<Board>) -> Self {
        Self { board, complaints: Arc::default(), tasks: JoinSet::new() }
    }

    /// Opens streams, so many on each connection.
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
                    self.spawn(async move { connection.await.context("a connection") });
                    sender
                }
            };
            let node = format!("pressure-{xds}-{pace:?}-{n}");
            let (sender, requests, responses) = stream::open(sender, xds, node).await?;
            connected = Some(sender.clone());
            let held = self.board.join(pace)?;
            self.spawn(async move {
                // As long as somebody could open streams the connection stays open.
                let _sender = sender;
                read(&held, requests, responses).await
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

    /// The first of them.
    pub(super) fn complaints(&self) -> Vec<String> {
        self.complaints.lock().clone()
    }
}

/// Reads a stream and acknowledges what comes, for ever.
async fn read(held: &Held, mut requests: Requests, responses: Responses) -> Result<()> {
    let mut scanner = Scanner::new();
    let mut body = responses.body().await?;
    let mut nonces = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        let mut taken = Ok(());
        scanner.feed(&chunk, &mut |event| match event {
            Event::Resource { version, .. } => {
                let version = std::str::from_utf8(version).ok().and_then(Version::parse);
                let one = version.context("a resource has a version that is none");
                let one = one.and_then(|version| held.take(version.revision.0));
                if taken.is_ok() {
                    taken = one;
                }
            }
            Event::Removed { .. } => {}
            Event::End { nonce, .. } => nonces.push(String::from_utf8_lossy(nonce).into_owned()),
        })?;
        taken?;
        for nonce in nonces.drain(..) {
            requests.ack(nonce)?;
        }
        if held.pace == Pace::Slow {
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
    fn what_a_client_has_of_the_newest_revision_is_not_owed_to_it() {
        let board = Board::new(3, 2);
        let (one, two) = (board.join(Pace::Fast).unwrap(), board.join(Pace::Slow).unwrap());
        assert!(board.join(Pace::Fast).is_err());
        board.owe(5);
        assert_eq!(board.owed(), 6);
        for _ in 0..3 {
            one.take(5).unwrap();
        }
        two.take(4).unwrap();
        assert_eq!(board.owed(), 3);
        two.take(5).unwrap();
        assert_eq!(board.owed(), 2);
        // It has a part of the next round before that is known to be acknowledged.
        one.take(6).unwrap();
        board.owe(6);
        assert_eq!(board.owed(), 5);
        assert!(one.take(5).is_err(), "never backwards");
    }
}
