//! The state that a shard keeps for one stream.

use std::{sync::Arc, time::SystemTime};

use chancery_model::{Node, ResourceName, Revision, ScopeName, StreamRights, TypeUrl};
use chancery_protocol::{Acceptance, Session};
use tokio::time::Instant;

use crate::{
    messages::status::{NackRecord, SessionId, Unacknowledged, UnacknowledgedState},
    messages::stream_status::{StreamRef, StreamStatus},
    offload::away::Offloaded,
    placement::access::CountedStream,
    placement::past_scopes::PastScopes,
    sessions::convergence::ConvergenceTimes,
    sessions::queue::Lane,
    stream::memory::Holding,
    stream::slot::StreamSlot,
};

/// The scopes that a node sees, in layers. Nodes with equal scopes share one list per shard.
pub(crate) type ScopeList = Arc<[ScopeName]>;

/// The value of `Entry::assigned_at` after a change of the node. It differs from every revision, so the shard
/// computes the scopes again.
pub(crate) const NEW_NODE: Revision = Revision(u64::MAX);

/// A stream that has sent its first request.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: SessionId,
    pub(crate) slot: Arc<StreamSlot>,
    pub(crate) session: Session,
    /// Set while the session is away for large work. Meanwhile `session` is an empty placeholder.
    pub(crate) away: Option<Box<Offloaded>>,
    /// The stream's part of the memory for subscriptions.
    pub(crate) holding: Holding,
    pub(crate) node: Arc<Node>,
    /// The assignment that applies to the node, with its scopes. `None` if no assignment matches: such
    /// a node has no view, which differs from an empty view (OPS-05).
    pub(crate) assigned: Option<(Arc<str>, ScopeList)>,
    /// The scopes that the stream had before.
    pub(crate) past: PastScopes,
    /// The rights of the client; `None` if access rules do not apply. They never change: a client with other
    /// rights gets another stream.
    pub(crate) rights: Option<Arc<StreamRights>>,
    /// The place among the streams of the identity, if an access rule limits them.
    pub(crate) _counted: Option<CountedStream>,
    /// Whether the client has received secrets on this stream.
    pub(crate) has_secrets: bool,
    /// The revision of the assignments and access rules when `assigned` was computed.
    pub(crate) assigned_at: Revision,
    /// The revision of the assignments or access rules that last changed the scopes of the session; 0 if none did.
    pub(crate) moved_at: Revision,
    /// The session's revision in [`crate::shard::Shard::set_moving`].
    pub(crate) moving_since: Option<Revision>,
    pub(crate) opened: Instant,
    pub(crate) since: SystemTime,
    /// The last rejection of each type. Bounded by the types that the session may have.
    pub(crate) nacks: Vec<NackRecord>,
    /// The time at which the session entered the queue of sessions to poll; `None` if it is not queued.
    pub(crate) queued: Option<Instant>,
    /// The lane in which the session is queued.
    pub(crate) lane: Lane,
    /// Whether the stream is established: the client has answered the responses to its first requests.
    pub(crate) arrived: bool,
    /// The last state change ([`crate::shard::Shard::step`]) of which the session received all changes
    /// at once.
    pub(crate) applied_step: u64,
    /// The last state change of which the session received a part.
    pub(crate) marked_step: u64,
    /// The last event since the session last sent a response or had nothing to send.
    pub(crate) since_sent: SinceSent,
    /// The times of the changes that the session has not delivered or the client has not answered.
    pub(crate) changes: ConvergenceTimes,
    /// The time since which something waits for the transport; `None` if nothing does.
    pub(crate) blocked: Option<Instant>,
    /// The second since which the client has owed an answer, as counted in [`crate::unanswered`].
    pub(crate) silent: Option<u64>,
    /// Whether a rejection stands, as counted in the metrics.
    pub(crate) rejecting: bool,
    /// The client has closed its half of the stream. The shard ends the stream when it has nothing to
    /// send.
    pub(crate) half_closed: bool,
    /// The time of the session's current entry in the timers.
    pub(crate) wake_at: Option<u64>,
    /// The time of the session's entry in the timers for overdue clients.
    pub(crate) close_at: Option<u64>,
}

/// The last event that may turn out to need no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SinceSent {
    /// No event.
    Nothing,
    /// The session received a change.
    Mark,
    /// The client rejected a response.
    Rejected,
}

pub(crate) fn scopes_of(assigned: &Option<(Arc<str>, ScopeList)>) -> &[ScopeName] {
    assigned.as_ref().map_or(&[], |(_, scopes)| scopes)
}

impl Entry {
    pub(crate) fn scopes(&self) -> &[ScopeName] {
        self.assigned.as_ref().map_or(&[], |(_, scopes)| scopes)
    }

    /// Returns all scopes from which the client may have resources; `None` if not all of them are known.
    pub(crate) fn all_scopes(&self) -> Option<Vec<ScopeName>> {
        let past = self.past.known()?;
        Some(self.scopes().iter().chain(past).cloned().collect())
    }

    /// Records a rejection, and replaces the previous one of the same type.
    pub(crate) fn record(&mut self, nack: NackRecord) {
        match self.nacks.iter_mut().find(|known| known.type_url == nack.type_url) {
            Some(known) => *known = nack,
            None => self.nacks.push(nack),
        }
    }

    /// Returns the types for which the client is not known to have acknowledged `revision`. The shard
    /// must have reached that revision. `changed` has the changed names of one type; `None` means all
    /// types.
    ///
    /// A node without a view receives nothing, so it cannot acknowledge anything. A session that is away
    /// has not acknowledged, because its answers wait until it is back.
    pub(crate) fn unsettled(
        &self,
        revision: Revision,
        changed: Option<(&TypeUrl, &[ResourceName])>,
    ) -> Vec<Unacknowledged> {
        let unacknowledged = |type_url: Option<&TypeUrl>, state| Unacknowledged {
            node: self.node.id.clone(),
            type_url: type_url.cloned(),
            state,
        };
        if self.assigned.is_none() {
            return vec![unacknowledged(None, UnacknowledgedState::Unassigned)];
        }
        if self.away.is_some() {
            let type_url = changed.map(|(type_url, _)| type_url);
            return vec![unacknowledged(type_url, UnacknowledgedState::Pending)];
        }
        let open = |(type_url, acceptance)| {
            let state = match acceptance {
                Acceptance::Accepted => return None,
                Acceptance::Unknown => UnacknowledgedState::Pending,
                Acceptance::Rejected(message) => UnacknowledgedState::Nacked(message.to_owned()),
            };
            Some(unacknowledged(Some(type_url), state))
        };
        match changed {
            Some((type_url, names)) => {
                let acceptance = self.session.acceptance_of(revision, type_url, names);
                open((type_url, acceptance)).into_iter().collect()
            }
            None => self.session.acceptance(revision).filter_map(open).collect(),
        }
    }

    pub(crate) fn status(&self) -> StreamStatus {
        let info = &self.slot.info;
        StreamStatus {
            stream: StreamRef(Arc::clone(&self.slot)),
            id: self.id,
            node: Arc::clone(&self.node),
            peer: info.peer,
            identity: info.identity.clone(),
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
