//! What a shard holds of one stream.

use std::{sync::Arc, time::SystemTime};

use chancery_model::{Node, Revision, ScopeName};
use chancery_protocol::{Session, SyncState};
use tokio::time::Instant;

use crate::{
    away::Away,
    changes::Changes,
    line::Line,
    memory::Holding,
    queue::Lane,
    status::{NackRecord, SessionId, StreamStatus, Unsettled, UnsettledState},
};

/// Scopes that a node sees, in layers; one list per shard for all nodes with equal ones.
pub(crate) type ScopeList = Arc<[ScopeName]>;

/// A stream that has sent its first request.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: SessionId,
    pub(crate) line: Arc<Line>,
    pub(crate) session: Session,
    /// The session is away for large work, and `session` stands in for it.
    pub(crate) away: Option<Box<Away>>,
    /// The stream's part of the memory for subscriptions.
    pub(crate) holding: Holding,
    pub(crate) node: Arc<Node>,
    /// The assignment that holds for the node, with its scopes; `None` if none does: such a node has
    /// no view, which is not the same as an empty one (OPS-05).
    pub(crate) assigned: Option<(Arc<str>, ScopeList)>,
    /// The revision of the assignments that `assigned` was found in.
    pub(crate) assigned_at: Revision,
    /// The revision of the assignments that gave the session other scopes than it had before; 0 if none did.
    pub(crate) moved_at: Revision,
    pub(crate) opened: Instant,
    pub(crate) since: SystemTime,
    /// The last refusal of each type: bounded by the types that the session may have.
    pub(crate) nacks: Vec<NackRecord>,
    /// Since when it is in the queue of those to be polled; `None` if it is not.
    pub(crate) queued: Option<Instant>,
    /// Where it queues.
    pub(crate) lane: Lane,
    /// Once it has answered all that it was sent, and there was no more.
    pub(crate) arrived: bool,
    /// The last step ([`crate::shard::Shard::step`]) of which it was told everything at once.
    pub(crate) told: u64,
    /// The last step of which it was told something.
    pub(crate) touched: u64,
    /// What has happened to it since it was last sent something, or had nothing to be sent.
    pub(crate) since_sent: SinceSent,
    /// Since when it has been owed changes.
    pub(crate) changes: Changes,
    /// Since when something waits for its transport.
    pub(crate) blocked: Option<Instant>,
    /// The second since which its client has owed an answer, as counted in [`crate::silence`].
    pub(crate) silent: Option<u64>,
    /// Whether a rejection stands, as counted.
    pub(crate) rejecting: bool,
    /// The client will send no more: to be ended when nothing can be sent.
    pub(crate) half_closed: bool,
    /// The time of its current entry in the timers.
    pub(crate) wake_at: Option<u64>,
    /// The time of its entry among those that may be overdue.
    pub(crate) close_at: Option<u64>,
}

/// What may turn out to need no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SinceSent {
    /// Nothing.
    Nothing,
    /// It was told of a change.
    Told,
    /// It rejected a response.
    Rejected,
}

impl Entry {
    pub(crate) fn scopes(&self) -> &[ScopeName] {
        self.assigned.as_ref().map_or(&[], |(_, scopes)| scopes)
    }

    /// Keeps a refusal in the place of the last one of its type.
    pub(crate) fn record(&mut self, nack: NackRecord) {
        match self.nacks.iter_mut().find(|known| known.type_url == nack.type_url) {
            Some(known) => *known = nack,
            None => self.nacks.push(nack),
        }
    }

    /// What the client has not acknowledged up to a revision that the shard has seen.
    pub(crate) fn unsettled(&self, revision: Revision, out: &mut Vec<Unsettled>) {
        // A node without a view should have nothing.
        if self.assigned.is_none() {
            return;
        }
        if let Some(away) = &self.away {
            let types = away.status.iter().map(|status| Some(status.type_url.clone()));
            let types = types.chain(away.status.is_empty().then_some(None));
            let (node, state) = (&self.node.id, UnsettledState::Pending);
            let pending =
                |type_url| Unsettled { node: node.clone(), type_url, state: state.clone() };
            return out.extend(types.map(pending));
        }
        out.extend(self.session.unsettled(revision).map(|status| Unsettled {
            node: self.node.id.clone(),
            type_url: Some(status.type_url),
            state: match (status.state, status.nack) {
                (SyncState::Nacked, Some(nack)) => UnsettledState::Nacked(nack.message),
                _ => UnsettledState::Pending,
            },
        }));
    }

    pub(crate) fn status(&self) -> StreamStatus {
        let info = &self.line.info;
        StreamStatus {
            node: Arc::clone(&self.node),
            peer: info.peer,
            protocol: info.kind.protocol,
            type_url: info.kind.type_url.clone(),
            assignment: self.assigned.as_ref().map(|(name, _)| Arc::clone(name)),
            scopes: self.scopes().to_vec(),
            since: self.since,
            subscriptions: match &self.away {
                Some(away) => away.status.clone(),
                None => self.session.status(),
            },
            nacks: self.nacks.clone(),
        }
    }
}
