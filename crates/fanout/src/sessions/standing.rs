//! The standing of a client: its rejections, and what is open between it and its shard, as the metrics count it.

use chancery_protocol::Session;
use tokio::time::Instant;

use super::unanswered::UnansweredClients;
use crate::{messages::status::NackRecord, metrics::ShardMetrics, turn::clock::Now};

/// The standing of a client: its rejections, and what is open between it and its shard.
#[derive(Debug)]
pub(crate) struct Standing {
    opened_at: Instant,
    /// Whether the stream is established: the client has answered the responses to its first requests.
    is_established: bool,
    /// The last rejection of each type. Bounded by the types that the session may have.
    nacks: Vec<NackRecord>,
    /// The second since which the client has owed an answer, as counted in [`UnansweredClients`].
    silent_since: Option<u64>,
    /// Whether a rejection stands.
    is_rejecting: bool,
    /// The time since which something waits for the transport; `None` if nothing does.
    blocked_since: Option<Instant>,
}

impl Standing {
    /// Creates the standing of a new stream.
    pub(crate) fn new(now: Now) -> Self {
        Self {
            opened_at: now.instant,
            is_established: false,
            nacks: Vec::new(),
            silent_since: None,
            is_rejecting: false,
            blocked_since: None,
        }
    }

    /// Returns whether the stream is established.
    pub(crate) fn is_established(&self) -> bool {
        self.is_established
    }

    /// Records that the client has answered a response. Returns whether the stream is established with this answer.
    pub(crate) fn establish(
        &mut self,
        session: &Session,
        now: Now,
        metrics: &ShardMetrics,
    ) -> bool {
        if self.is_established || session.has_work() || session.silent_since().is_some() {
            return false;
        }
        self.is_established = true;
        if !session.is_rejecting() {
            let passed = now.instant.saturating_duration_since(self.opened_at);
            metrics.first_sync_seconds.record(passed.as_secs_f64());
        }
        true
    }

    /// Returns the last rejection of each type.
    pub(crate) fn nacks(&self) -> &[NackRecord] {
        &self.nacks
    }

    /// Records a rejection, and replaces the previous one of the same type.
    pub(crate) fn record(&mut self, nack: NackRecord) {
        match self.nacks.iter_mut().find(|known| known.type_url == nack.type_url) {
            Some(known) => *known = nack,
            None => self.nacks.push(nack),
        }
    }

    /// Returns whether a rejection stands.
    pub(crate) fn is_rejecting(&self) -> bool {
        self.is_rejecting
    }

    /// Returns whether something waits for the transport.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked_since.is_some()
    }

    /// Updates the counts of streams whose clients owe an answer, and of streams on which a rejection stands. Returns
    /// whether the last rejection has ended.
    pub(crate) fn update(
        &mut self,
        session: &Session,
        unanswered: &mut UnansweredClients,
        metrics: &ShardMetrics,
    ) -> bool {
        let silent = session.silent_since().map(|ms| ms / 1000);
        unanswered.change(std::mem::replace(&mut self.silent_since, silent), silent);
        let is_rejecting = session.is_rejecting();
        let was_rejecting = std::mem::replace(&mut self.is_rejecting, is_rejecting);
        match (was_rejecting, is_rejecting) {
            (false, true) => metrics.rejecting.increment(1.0),
            (true, false) => metrics.rejecting.decrement(1.0),
            (true, true) | (false, false) => {}
        }
        was_rejecting && !is_rejecting
    }

    /// Records that something waits for the transport.
    pub(crate) fn block(&mut self, now: Now, metrics: &ShardMetrics) {
        self.blocked_since = Some(now.instant);
        metrics.blocked.increment(1.0);
    }

    /// Records that the transport can take a message.
    pub(crate) fn unblock(&mut self, now: Now, metrics: &ShardMetrics) {
        if let Some(since) = self.blocked_since.take() {
            let waited = now.instant.saturating_duration_since(since);
            metrics.transport_wait_seconds.record(waited.as_secs_f64());
            metrics.blocked.decrement(1.0);
        }
    }

    /// Removes an ended stream from the counts.
    pub(crate) fn remove(self, unanswered: &mut UnansweredClients, metrics: &ShardMetrics) {
        unanswered.change(self.silent_since, None);
        if self.is_rejecting {
            metrics.rejecting.decrement(1.0);
        }
        if self.blocked_since.is_some() {
            metrics.blocked.decrement(1.0);
        }
    }
}
