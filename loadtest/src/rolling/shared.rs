//! State that the clients share with the task that restarts replicas.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::Notify;

use crate::{random::Random, stats::count};

/// The maximum number of reasons that are kept. Further streams that ended otherwise are only
/// counted.
const REASONS_MAX: usize = 5;
const NOBODY: usize = usize::MAX;

/// The protocol of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Protocol {
    Delta,
    Sotw,
}

/// The counts of one protocol.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    /// Streams opened by clients that had one before.
    pub(crate) resumed: u64,
    /// Streams that ended because their replica received SIGTERM.
    pub(crate) moved: u64,
    /// Streams that ended because their replica was killed.
    pub(crate) cut: u64,
    /// Streams that ended for any other reason.
    pub(crate) ended_otherwise: u64,
    /// Versions older than the client's.
    pub(crate) backwards: u64,
    /// Resources with the client's version, but other bytes.
    pub(crate) other_bytes: u64,
    /// The resources that were sent, by type.
    pub(crate) types: BTreeMap<&'static str, Sent>,
}

/// Resources of a type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Sent {
    pub(crate) resources: u64,
    /// Resources on a resumed stream that the client already had.
    pub(crate) needlessly: u64,
}

/// The effects of one response.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) resources: u64,
    /// Resources that the client already had.
    pub(crate) again: u64,
    /// Versions older than the client's.
    pub(crate) backwards: u64,
    /// Resources with the client's version, but other bytes.
    pub(crate) other_bytes: u64,
}

#[derive(Debug)]
pub(crate) struct SharedState {
    xds: Vec<SocketAddr>,
    /// The replica that is being restarted.
    down: AtomicUsize,
    /// Whether this replica was killed.
    killed: AtomicBool,
    is_over: AtomicBool,
    over: Notify,
    progress: Notify,
    counts: Mutex<BTreeMap<Protocol, Counts>>,
    reasons: Mutex<Vec<String>>,
}

impl SharedState {
    pub(crate) fn new(xds: Vec<SocketAddr>) -> Self {
        Self {
            xds,
            down: AtomicUsize::new(NOBODY),
            killed: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            over: Notify::new(),
            progress: Notify::new(),
            counts: Mutex::default(),
            reasons: Mutex::default(),
        }
    }

    pub(crate) fn replicas(&self) -> usize {
        self.xds.len()
    }

    pub(crate) fn xds(&self, at: usize) -> SocketAddr {
        self.xds[at % self.xds.len()]
    }

    /// Returns the next replica of a client, which is any of the others.
    pub(crate) fn next(&self, at: usize, random: &mut Random) -> usize {
        let others = count(self.xds.len()).saturating_sub(1);
        let steps = usize::try_from(random.below(others)).unwrap_or(0) + 1;
        (at + steps) % self.xds.len()
    }

    /// Records that a replica is about to end.
    pub(crate) fn going_down(&self, at: usize, how: End) {
        self.killed.store(how == End::Killed, Ordering::SeqCst);
        self.down.store(at, Ordering::SeqCst);
    }

    /// Records that all replicas are up.
    pub(crate) fn all_up(&self) {
        self.down.store(NOBODY, Ordering::SeqCst);
    }

    pub(crate) fn opened(&self, protocol: Protocol, again: bool) {
        self.change(protocol, |counts| counts.resumed += u64::from(again));
    }

    /// Records that a stream to a replica has ended.
    pub(crate) fn ended(
        &self,
        protocol: Protocol,
        at: usize,
        is_unavailable: bool,
        why: &anyhow::Error,
    ) {
        let is_down = self.down.load(Ordering::SeqCst) == at;
        if is_down && self.killed.load(Ordering::SeqCst) {
            return self.change(protocol, |counts| counts.cut += 1);
        }
        if is_down && is_unavailable {
            return self.change(protocol, |counts| counts.moved += 1);
        }
        self.change(protocol, |counts| counts.ended_otherwise += 1);
        let mut reasons = self.reasons.lock();
        if reasons.len() < REASONS_MAX {
            reasons.push(format!("{protocol:?} at replica {}: {why:#}", at + 1));
        }
    }

    /// Records the effects of a response.
    pub(crate) fn record(&self, protocol: Protocol, type_url: &'static str, effects: &Effects) {
        self.change(protocol, |counts| {
            let sent = counts.types.entry(type_url).or_default();
            sent.resources += effects.resources;
            sent.needlessly += effects.again;
            counts.backwards += effects.backwards;
            counts.other_bytes += effects.other_bytes;
        });
    }

    fn change(&self, protocol: Protocol, with: impl FnOnce(&mut Counts)) {
        with(self.counts.lock().entry(protocol).or_default());
    }

    pub(crate) fn counts(&self) -> BTreeMap<Protocol, Counts> {
        self.counts.lock().clone()
    }

    /// Returns the reasons of the first streams that ended otherwise.
    pub(crate) fn reasons(&self) -> Vec<String> {
        self.reasons.lock().clone()
    }

    /// Signals that a client has received a response.
    pub(crate) fn progress(&self) {
        self.progress.notify_one();
    }

    /// Waits until a client has received a response.
    pub(crate) async fn progressed(&self) {
        self.progress.notified().await;
    }

    /// Ends all clients.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.over.notify_waiters();
    }

    /// Waits until the run is over.
    pub(crate) async fn over(&self) {
        let notified = self.over.notified();
        if !self.is_over.load(Ordering::SeqCst) {
            notified.await;
        }
    }
}

/// The ways in which a replica ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum End {
    /// By SIGTERM.
    Asked,
    /// By SIGKILL.
    Killed,
}
