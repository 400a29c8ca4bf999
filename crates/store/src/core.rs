//! What a running replica shares between its handle, its server and its housekeeping.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use openraft::{Instant as _, async_runtime::WatchReceiver, errors::Fatal};
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{Semaphore, watch},
};

use crate::{
    Config, OpenError,
    cluster::{
        client::Peers, digests::Differences, lives::Removal, outbox::Outbox, transfer::Progress,
    },
    digest::Digests,
    failure::Failure,
    identity::Identity,
    log::WeakLogStore,
    log_size::LogSize,
    machine::Published,
    metrics::StoreMetrics,
    open::ELECTION_TIMEOUT_MAX,
    raft::{Peer, Raft, StoredMembership, Types},
    space::Space,
};

/// A running replica.
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) identity: Identity,
    /// A random number of this start of the replica.
    pub(crate) process: u64,
    /// Where other replicas reach this one; empty if they can not.
    pub(crate) address: String,
    pub(crate) raft: Raft,
    /// Who leads, as far as this replica knows.
    pub(crate) leader: watch::Receiver<Option<Leader>>,
    pub(crate) published: Published,
    /// The digests of the newest applied positions.
    pub(crate) digests: Arc<Digests>,
    /// The voters that have another state.
    pub(crate) differences: Mutex<Differences>,
    /// Set when it is known that the state or the log of this replica is wrong: the reason.
    pub(crate) diverged: watch::Sender<Option<Arc<str>>>,
    pub(crate) log: WeakLogStore,
    pub(crate) peers: Peers,
    /// The runtime of the store: what talks to other replicas runs there.
    pub(crate) runtime: Handle,
    pub(crate) size: Arc<Mutex<LogSize>>,
    pub(crate) space: Arc<Space>,
    /// A write was refused here because the disk is full, since it was last looked at.
    pub(crate) refused_full: AtomicBool,
    pub(crate) in_flight: Arc<Semaphore>,
    /// Writes for a leader on another replica.
    pub(crate) outbox: Outbox,
    /// When a leader of the present term, or of a later one, was last heard. Whom Raft takes for the leader
    /// may have been gone for long.
    pub(crate) heard_at: Mutex<Instant>,
    /// How far this replica has come with taking over snapshots.
    pub(crate) snapshot_progress: Progress,
    /// Set when it is known that this replica is no member any more.
    pub(crate) removed: watch::Sender<Option<Removal>>,
    /// The term in which this replica was last seen to lead, and since when.
    pub(crate) leads_since: Mutex<Option<(u64, Instant)>>,
    pub(crate) failure: Failure,
    /// Raft has stopped. openraft logs an error for each call that it gets from then on.
    pub(crate) raft_ended: AtomicBool,
    pub(crate) metrics: StoreMetrics,
}

/// A replica that leads, as far as this one knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Leader {
    /// This one.
    Here,
    /// Another one.
    There {
        /// Its number.
        id: u64,
        /// Where it is.
        address: Arc<str>,
    },
}

impl Leader {
    fn of(raft: &Raft, own: u64) -> Option<Self> {
        let metrics = raft.metrics();
        let metrics = metrics.borrow_watched();
        let id = metrics.current_leader?;
        if id == own {
            return Some(Self::Here);
        }
        let address = metrics.membership_config.get_node(&id)?.address.as_str();
        (!address.is_empty()).then(|| Self::There { id, address: address.into() })
    }

    /// Who leads, from now on. Raft's metrics change with every entry; those who wait for a leader, one for
    /// each write that is on its way, are woken only when it is another one. To be called on the runtime of
    /// the store; ends with Raft. Keeps `peers` up to date as well, which says in each call for whom it is.
    pub(crate) fn watch(raft: &Raft, own: u64, peers: &Peers) -> watch::Receiver<Option<Self>> {
        let mut metrics = raft.metrics();
        peers.update(&metrics.borrow_watched().membership_config);
        let (sender, receiver) = watch::channel(Self::of(raft, own));
        let (raft, peers) = (raft.clone(), peers.clone());
        tokio::spawn(async move {
            while metrics.changed().await.is_ok() {
                peers.update(&metrics.borrow_watched().membership_config);
                let leader = Self::of(&raft, own);
                sender.send_if_modified(|known| {
                    let is_new = *known != leader;
                    *known = leader;
                    is_new
                });
            }
        });
        receiver
    }
}

impl Core {
    /// This replica's number.
    pub(crate) fn id(&self) -> u64 {
        self.identity.replica_id
    }

    /// Returns why Raft has stopped, or `None` if it runs or gives no answer within `patience`: it may wait for
    /// the disk. Asks its task, because the metrics of a task that has panicked say forever that it runs.
    pub(crate) async fn raft_stopped(&self, patience: Duration) -> Option<Fatal<Types>> {
        let answer = self.raft.with_raft_state(|_| ());
        tokio::time::timeout(patience, answer).await.ok()?.err()
    }

    /// The newest membership in the log, committed or not.
    pub(crate) fn membership(&self) -> Arc<StoredMembership> {
        Arc::clone(&self.raft.metrics().borrow_watched().membership_config)
    }

    /// A member of the newest membership.
    pub(crate) fn peer(&self, id: u64) -> Option<Peer> {
        self.membership().get_node(&id).cloned()
    }

    /// Who leads.
    pub(crate) fn leader(&self) -> Option<Leader> {
        self.leader.borrow().clone()
    }

    /// The number of the replica that leads, as long as it is heard; if that is this one, as long as most
    /// voters answer. Raft itself goes on to name the last one, however long ago that was.
    pub(crate) fn present_leader(&self) -> Option<u64> {
        let (leader, answered) = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            (metrics.current_leader?, metrics.last_quorum_acked)
        };
        let silence = if leader != self.id() {
            self.heard_at.lock().elapsed()
        } else if self.is_sole_voter() {
            Duration::ZERO
        } else {
            match answered {
                Some(answered) => answered.elapsed(),
                // It has only just begun to lead, or nobody follows it.
                None => self.leads_for().unwrap_or_default(),
            }
        };
        (silence <= Duration::from_millis(ELECTION_TIMEOUT_MAX)).then_some(leader)
    }

    /// Returns when who leads is another than before.
    pub(crate) async fn leader_changes(&self, before: Option<&Leader>) {
        let mut leader = self.leader.clone();
        if leader.wait_for(|now| now.as_ref() != before).await.is_err() {
            // Raft has stopped; whoever waits has a deadline.
            std::future::pending().await
        }
    }

    /// Whether no other replica votes.
    pub(crate) fn is_sole_voter(&self) -> bool {
        self.membership().voter_ids().all(|id| id == self.id())
    }

    /// How long this replica leads at least; `None` if it does not.
    pub(crate) fn leads_for(&self) -> Option<Duration> {
        let term = self.raft.as_leader().ok()?.term();
        let mut since = self.leads_since.lock();
        match *since {
            Some((known, when)) if known == term => Some(when.elapsed()),
            _ => {
                *since = Some((term, Instant::now()));
                Some(Duration::ZERO)
            }
        }
    }

    /// Why this replica takes no writes: for good, or, if it leads, for lack of space.
    pub(crate) fn refuses_writes(&self) -> Option<String> {
        let failure = self.failure.get().map(str::to_owned);
        failure.or_else(|| match self.leader()? {
            Leader::Here => self.space.full().map(|full| full.to_string()),
            Leader::There { .. } => None,
        })
    }

    /// An error of the start, with the first reason if there is one.
    pub(crate) fn failed(&self, error: &dyn std::fmt::Display) -> OpenError {
        match self.failure.get() {
            Some(reason) => OpenError::Failed(reason.to_owned()),
            None => OpenError::Failed(error.to_string()),
        }
    }

    /// Waits until an entry of the log has been applied here.
    pub(crate) async fn applied(&self, index: u64, timeout: Duration) -> bool {
        tokio::time::timeout(timeout, self.published.wait_applied(index)).await.is_ok()
    }
}
