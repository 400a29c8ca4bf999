//! What clients and the one who restarts replicas know together.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::Notify;

use super::client::Taken;
use crate::{random::Random, stats::count};

/// Words about streams that ended otherwise; the others are counted.
const WORDS_MAX: usize = 5;
const NOBODY: usize = usize::MAX;

/// What a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Protocol {
    Delta,
    Sotw,
}

/// What has happened so far, of one protocol.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    /// Streams that were opened by clients that had one before.
    pub(crate) resumed: u64,
    /// Streams that were ended because their replica was asked to end.
    pub(crate) moved: u64,
    /// Streams that broke off because their replica was killed.
    pub(crate) cut: u64,
    /// Streams that ended for any other reason.
    pub(crate) ended_otherwise: u64,
    /// Versions older than what the client had.
    pub(crate) backwards: u64,
    /// Resources with other bytes than the client had under the same version.
    pub(crate) other_bytes: u64,
    /// By type: resources that were sent, and those sent on a resumed stream that the client had as they
    /// are.
    pub(crate) types: BTreeMap<&'static str, Sent>,
}

/// Resources of a type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Sent {
    pub(crate) resources: u64,
    pub(crate) needlessly: u64,
}

/// Shared by all.
#[derive(Debug)]
pub(crate) struct Board {
    xds: Vec<SocketAddr>,
    /// The replica that is being restarted.
    down: AtomicUsize,
    /// Whether it was killed.
    killed: AtomicBool,
    is_over: AtomicBool,
    over: Notify,
    progress: Notify,
    counts: Mutex<BTreeMap<Protocol, Counts>>,
    words: Mutex<Vec<String>>,
}

impl Board {
    pub(crate) fn new(xds: Vec<SocketAddr>) -> Self {
        Self {
            xds,
            down: AtomicUsize::new(NOBODY),
            killed: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            over: Notify::new(),
            progress: Notify::new(),
            counts: Mutex::default(),
            words: Mutex::default(),
        }
    }

    pub(crate) fn replicas(&self) -> usize {
        self.xds.len()
    }

    pub(crate) fn xds(&self, at: usize) -> SocketAddr {
        self.xds[at % self.xds.len()]
    }

    /// Where one goes who was there: to any of the others.
    pub(crate) fn next(&self, at: usize, random: &mut Random) -> usize {
        let others = count(self.xds.len()).saturating_sub(1);
        let steps = usize::try_from(random.below(others)).unwrap_or(0) + 1;
        (at + steps) % self.xds.len()
    }

    /// A replica is about to end.
    pub(crate) fn goes_down(&self, at: usize, how: End) {
        self.killed.store(how == End::Killed, Ordering::SeqCst);
        self.down.store(at, Ordering::SeqCst);
    }

    /// All are up.
    pub(crate) fn all_up(&self) {
        self.down.store(NOBODY, Ordering::SeqCst);
    }

    pub(crate) fn opened(&self, protocol: Protocol, again: bool) {
        self.change(protocol, |counts| counts.resumed += u64::from(again));
    }

    /// A stream to a replica has ended.
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
        let mut words = self.words.lock();
        if words.len() < WORDS_MAX {
            words.push(format!("{protocol:?} at replica {}: {why:#}", at + 1));
        }
    }

    /// What a response came to.
    pub(crate) fn took(&self, protocol: Protocol, type_url: &'static str, taken: &Taken) {
        self.change(protocol, |counts| {
            let sent = counts.types.entry(type_url).or_default();
            sent.resources += taken.resources;
            sent.needlessly += taken.again;
            counts.backwards += taken.backwards;
            counts.other_bytes += taken.other_bytes;
        });
    }

    fn change(&self, protocol: Protocol, with: impl FnOnce(&mut Counts)) {
        with(self.counts.lock().entry(protocol).or_default());
    }

    pub(crate) fn counts(&self) -> BTreeMap<Protocol, Counts> {
        self.counts.lock().clone()
    }

    /// Why the first streams ended that ended otherwise.
    pub(crate) fn words(&self) -> Vec<String> {
        self.words.lock().clone()
    }

    /// A client has got something.
    pub(crate) fn progress(&self) {
        self.progress.notify_one();
    }

    /// Until a client has got something.
    pub(crate) async fn progressed(&self) {
        self.progress.notified().await;
    }

    /// Ends all clients.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.over.notify_waiters();
    }

    /// Until all is over.
    pub(crate) async fn over(&self) {
        let notified = self.over.notified();
        if !self.is_over.load(Ordering::SeqCst) {
            notified.await;
        }
    }
}

/// How a replica ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum End {
    /// By SIGTERM.
    Asked,
    /// By SIGKILL.
    Killed,
}
