//! Raft on this replica, and what this replica knows from it: the leader, the members, and the members that
//! answer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use openraft::{Instant as _, async_runtime::WatchReceiver, errors::Fatal};
use parking_lot::Mutex;
use tokio::{sync::watch, task::JoinError};

use crate::{
    disk::machine::Raft,
    format::raft::{LogId, Peer, StoredMembership, Types},
    replication::{
        divergence::Divergence,
        peers::Peers,
        raft_settings::{ELECTION_TIMEOUT_MAX, SILENCE},
    },
};

/// The maximum number of log entries that a learner lacks when it counts as caught up.
const LAG_MAX: u64 = 256;

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

/// Raft, and the knowledge of this replica about its leader and its members.
pub(crate) struct RaftNode {
    id: u64,
    pub(crate) raft: Raft,
    leader: watch::Receiver<Option<Leader>>,
    /// The time of the last message from a leader of the current term or a later one. The leader
    /// that Raft names may have been gone for long.
    heard_at: Mutex<Instant>,
    /// The term in which this replica was last seen to lead, and the start of that leadership.
    leads_since: Mutex<Option<(u64, Instant)>>,
    divergence: Divergence,
    /// Whether Raft has stopped. Afterwards openraft logs an error for each call that it gets.
    has_ended: AtomicBool,
    /// Held while Raft is asked whether it runs and while it is ended, so that nobody asks a Raft that was ended.
    asks: tokio::sync::Mutex<()>,
}

impl Leader {
    fn of(raft: &Raft, own: u64) -> Option<Self> {
        let metrics = raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let id = metrics.current_leader?;
        if id == own {
            return Some(Self::Here);
        }
        let address = metrics.membership_config.get_node(&id)?.address.as_str();
        (!address.is_empty()).then(|| Self::There { id, address: address.into() })
    }

    /// Watches for leader changes, until Raft stops.
    ///
    /// These metrics change with the vote, the server state, the leader and the members, not with every entry. The
    /// watch wakes its waiters, such as the writes in flight, only when the leader changes. The task also keeps
    /// `peers` up to date, which supplies the callee of each call.
    fn watch(raft: &Raft, own: u64, peers: &Peers) -> watch::Receiver<Option<Self>> {
        let mut metrics = raft.server_metrics();
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

impl RaftNode {
    /// Watches Raft on the replica `id`. Must be called on the runtime of the store.
    pub(crate) fn new(id: u64, raft: Raft, peers: &Peers, divergence: Divergence) -> Self {
        let leader = Leader::watch(&raft, id, peers);
        Self {
            id,
            raft,
            leader,
            heard_at: Mutex::new(Instant::now()),
            leads_since: Mutex::default(),
            divergence,
            has_ended: AtomicBool::new(false),
            asks: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the ID of this replica.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns why Raft has stopped. Returns `None` if Raft runs, or does not answer within
    /// `patience`, for instance because it waits for the disk. Asks Raft's task, because the
    /// metrics of a task that has panicked show a running state forever.
    pub(crate) async fn stopped(&self, patience: Duration) -> Option<Fatal<Types>> {
        let _asks = self.asks.lock().await;
        if self.has_ended() {
            return Some(Fatal::Stopped);
        }
        let answer = self.raft.with_raft_state(|_| ());
        tokio::time::timeout(patience, answer).await.ok()?.err()
    }

    /// Ends Raft. A second call does nothing.
    ///
    /// # Errors
    /// Fails if the task of Raft has panicked.
    pub(crate) async fn shutdown(&self) -> Result<(), JoinError> {
        let _asks = self.asks.lock().await;
        let ended = self.raft.shutdown().await;
        self.set_ended();
        ended
    }

    /// Records that Raft has stopped.
    pub(crate) fn set_ended(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// Returns whether Raft is known to have stopped.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Returns whether this replica takes no part in its cluster: it has diverged, or Raft has
    /// stopped.
    pub(crate) fn has_stopped(&self) -> bool {
        self.divergence.has_diverged() || self.has_ended()
    }

    // === the leader ===

    /// Returns the leader, as far as this replica knows.
    pub(crate) fn leader(&self) -> Option<Leader> {
        self.leader.borrow().clone()
    }

    /// Returns whether this replica is the leader, as far as it knows.
    pub(crate) fn leads(&self) -> bool {
        *self.leader.borrow() == Some(Leader::Here)
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
        let silence = if leader != self.id {
            self.leader_silence()
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

    /// Returns when the leader is no longer `before`.
    pub(crate) async fn leader_changes(&self, before: Option<&Leader>) {
        let mut leader = self.leader.clone();
        if leader.wait_for(|now| now.as_ref() != before).await.is_err() {
            // Raft has stopped; the caller has a deadline.
            std::future::pending().await
        }
    }

    /// Records a message of a leader of `term`.
    pub(crate) fn note_leader(&self, term: u64) {
        // A former leader that does not know of its replacement does not count as a leader.
        if term >= self.raft.metrics().borrow_watched().current_term {
            *self.heard_at.lock() = Instant::now();
        }
    }

    /// Returns the time since the last message of a leader.
    pub(crate) fn leader_silence(&self) -> Duration {
        self.heard_at.lock().elapsed()
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

    // === the members ===

    /// Returns the newest membership in the log, committed or not.
    pub(crate) fn membership(&self) -> Arc<StoredMembership> {
        Arc::clone(&self.raft.metrics().borrow_watched().membership_config)
    }

    /// Returns a member of the newest membership.
    pub(crate) fn peer(&self, id: u64) -> Option<Peer> {
        self.membership().get_node(&id).cloned()
    }

    /// Returns whether no other replica votes.
    pub(crate) fn is_sole_voter(&self) -> bool {
        self.membership().voter_ids().all(|id| id == self.id)
    }

    /// Waits until the metrics of Raft show the membership of a log entry. Raft answers a change before its
    /// metrics show it.
    pub(crate) async fn membership_shown(&self, id: LogId) {
        let mut metrics = self.raft.metrics();
        while *metrics.borrow_watched().membership_config.log_id() < Some(id) {
            if metrics.changed().await.is_err() {
                return;
            }
        }
    }

    /// Returns whether a replica has answered within [`SILENCE`]. Only the leader knows this.
    pub(crate) fn is_alive(&self, id: u64) -> bool {
        id == self.id || self.silence(id).is_some_and(|silence| silence < SILENCE)
    }

    /// Returns the time since the last answer of a replica; `None` if it never answered this leader.
    pub(crate) fn silence(&self, id: u64) -> Option<Duration> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let heard = metrics.heartbeat.as_ref()?.get(&id)?.as_ref()?;
        Some(heard.elapsed())
    }

    /// Returns whether a replica has nearly all entries of the log. Only the leader knows this.
    pub(crate) fn has_caught_up(&self, id: u64) -> bool {
        let (matched, last) = (self.matched(id), self.last_index());
        matched
            .is_some_and(|matched| last.is_none_or(|last| last.saturating_sub(matched) <= LAG_MAX))
    }

    /// Returns the index of the last entry that a replica is known to have. Only the leader knows this.
    pub(crate) fn matched(&self, id: u64) -> Option<u64> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.replication.as_ref()?.get(&id)?.map(|id| id.index)
    }

    /// Returns the index of the last entry in the log.
    pub(crate) fn last_index(&self) -> Option<u64> {
        self.raft.metrics().borrow_watched().last_log_index
    }
}
