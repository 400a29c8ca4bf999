//! The data that a running replica shares between its handle, its server and its maintenance tasks.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
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
    disk::{
        digest::Digests, log::WeakLogStore, log_size::LogSize, machine::Published, space::Space,
    },
    failure::Failure,
    format::{
        identity::Identity,
        raft::{Peer, Raft, StoredMembership, Types},
    },
    metrics::StoreMetrics,
    replication::raft_settings::ELECTION_TIMEOUT_MAX,
    replication::{
        client::Peers, digests::Differences, instance::Removal, outbox::Outbox, transfer::Progress,
    },
};

/// A running replica.
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) identity: Identity,
    /// A random number that identifies this start of the replica.
    pub(crate) process: u64,
    /// The address at which other replicas reach this one; empty if it has none.
    pub(crate) address: String,
    pub(crate) raft: Raft,
    /// The leader, as far as this replica knows.
    pub(crate) leader: watch::Receiver<Option<Leader>>,
    pub(crate) published: Published,
    /// The digests of the newest applied positions.
    pub(crate) digests: Arc<Digests>,
    /// The voters whose state differs.
    pub(crate) differences: Mutex<Differences>,
    /// The reason why the state or the log of this replica is known to be wrong.
    pub(crate) diverged: watch::Sender<Option<Arc<str>>>,
    pub(crate) log: WeakLogStore,
    pub(crate) peers: Peers,
    /// The runtime of the store, on which the tasks for other replicas run.
    pub(crate) runtime: Handle,
    pub(crate) size: Arc<Mutex<LogSize>>,
    pub(crate) space: Arc<Space>,
    /// Whether this replica has refused a write because of a full disk since maintenance last
    /// checked.
    pub(crate) refused_full: AtomicBool,
    pub(crate) in_flight: Arc<Semaphore>,
    /// Writes for a leader on another replica.
    pub(crate) outbox: Outbox,
    /// The time of the last message from a leader of the current term or a later one. The leader
    /// that Raft names may have been gone for long.
    pub(crate) heard_at: Mutex<Instant>,
    /// The progress of this replica in receiving and installing snapshots.
    pub(crate) snapshot_progress: Progress,
    /// The reason why this replica is known to be no longer a member.
    pub(crate) removed: watch::Sender<Option<Removal>>,
    /// The term in which this replica was last seen to lead, and the start of that leadership.
    pub(crate) leads_since: Mutex<Option<(u64, Instant)>>,
    pub(crate) failure: Failure,
    /// Whether Raft has stopped. Afterwards openraft logs an error for each call that it gets.
    pub(crate) raft_ended: AtomicBool,
    pub(crate) metrics: StoreMetrics,
}

/// The leader, as far as this replica knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Leader {
    /// This replica.
    Here,
    /// Another replica.
    There {
        /// The ID of the leader.
        id: u64,
        /// The address of its replication port.
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

    /// Watches for leader changes, until Raft stops. Must be called on the runtime of the store.
    ///
    /// Raft's metrics change with every entry, and each write in flight waits for a leader. The
    /// watch wakes these waiters only when the leader changes. The task also keeps `peers` up to
    /// date, which supplies the callee of each call.
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
    /// Returns the ID of this replica.
    pub(crate) fn id(&self) -> u64 {
        self.identity.replica_id
    }

    /// Returns why Raft has stopped. Returns `None` if Raft runs, or does not answer within
    /// `patience`, for instance because it waits for the disk. Asks Raft's task, because the
    /// metrics of a task that has panicked show a running state forever.
    pub(crate) async fn raft_stopped(&self, patience: Duration) -> Option<Fatal<Types>> {
        let answer = self.raft.with_raft_state(|_| ());
        tokio::time::timeout(patience, answer).await.ok()?.err()
    }

    /// Returns the newest membership in the log, committed or not.
    pub(crate) fn membership(&self) -> Arc<StoredMembership> {
        Arc::clone(&self.raft.metrics().borrow_watched().membership_config)
    }

    /// Returns a member of the newest membership.
    pub(crate) fn peer(&self, id: u64) -> Option<Peer> {
        self.membership().get_node(&id).cloned()
    }

    /// Returns the leader, as far as this replica knows.
    pub(crate) fn leader(&self) -> Option<Leader> {
        self.leader.borrow().clone()
    }

    /// Returns the ID of the leader while this replica receives its messages. If this replica
    /// leads, returns its own ID while most voters answer. Raft itself names the last leader,
    /// however long ago it was heard.
    pub(crate) fn present_leader(&self) -> Option<u64> {
        if self.has_stopped() {
            return None;
        }
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
                // This replica has only just become leader, or nobody follows it.
                None => self.leads_for().unwrap_or_default(),
            }
        };
        (silence <= Duration::from_millis(ELECTION_TIMEOUT_MAX)).then_some(leader)
    }

    /// Returns whether this replica takes no part in its cluster: it has diverged, or Raft has
    /// stopped.
    pub(crate) fn has_stopped(&self) -> bool {
        self.diverged.borrow().is_some() || self.raft_ended.load(Ordering::Relaxed)
    }

    /// Returns when the leader is no longer `before`.
    pub(crate) async fn leader_changes(&self, before: Option<&Leader>) {
        let mut leader = self.leader.clone();
        if leader.wait_for(|now| now.as_ref() != before).await.is_err() {
            // Raft has stopped; the caller has a deadline.
            std::future::pending().await
        }
    }

    /// Returns whether no other replica votes.
    pub(crate) fn is_sole_voter(&self) -> bool {
        self.membership().voter_ids().all(|id| id == self.id())
    }

    /// Returns how long this replica has led at least, or `None` if it does not lead.
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

    /// Returns why this replica accepts no writes: a failure, or lack of disk space on the leader.
    pub(crate) fn refuses_writes(&self) -> Option<String> {
        let failure = self.failure.get().map(str::to_owned);
        failure.or_else(|| match self.leader()? {
            Leader::Here => self.space.full().map(|full| full.to_string()),
            Leader::There { .. } => None,
        })
    }

    /// Returns an error of the start, with the first failure as its reason if there is one.
    pub(crate) fn failed(&self, error: &dyn std::fmt::Display) -> OpenError {
        match self.failure.get() {
            Some(reason) => OpenError::Failed(reason.to_owned()),
            None => OpenError::Failed(error.to_string()),
        }
    }

    /// Waits until this replica has applied a log entry. Returns whether that happened within
    /// `timeout`.
    pub(crate) async fn applied(&self, index: u64, timeout: Duration) -> bool {
        tokio::time::timeout(timeout, self.published.wait_applied(index)).await.is_ok()
    }
}
