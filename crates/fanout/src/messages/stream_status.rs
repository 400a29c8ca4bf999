//! The status of one stream, as the admin API reports it.

use std::{net::SocketAddr, sync::Arc, time::SystemTime};

use chancery_model::{Identity, Node, Revision, ScopeName, TypeUrl};
use chancery_protocol::{
    Acceptance, ContentsPage, Protocol, Session, SubscriptionStatus, Synchronization,
};

use crate::{
    messages::status::{End, NackRecord, SessionId},
    stream::slot::StreamSlot,
};

/// A handle to a stream, for further queries about it.
#[derive(Debug, Clone)]
pub struct StreamRef(pub(crate) Arc<StreamSlot>);

impl StreamRef {
    /// Ends the stream after its shard has removed the session. Only the first end of a stream has an effect.
    pub fn end(&self, end: End) {
        self.0.end_in_order(end);
    }
}

/// A stream as a query selects it. Its shard builds nothing for it.
#[derive(Debug, Clone, Copy)]
pub struct LiveStream<'a> {
    /// The node that the client claims to be.
    pub node: &'a Node,
    /// The address of the client.
    pub peer: SocketAddr,
    /// The type of the stream; `None` if it is aggregated.
    pub type_url: Option<&'a TypeUrl>,
    /// The assignment that applies to the node; `None` if no assignment matches.
    pub assignment: Option<&'a Arc<str>>,
    /// The time at which the first request of the stream arrived.
    pub since: SystemTime,
    /// The present time, in milliseconds of the clock of the subscriptions' times.
    pub clock_ms: u64,
    /// The revision that the shard has reached.
    pub(crate) reached: Revision,
    /// The session; its subscriptions at its departure if it is away from its shard.
    pub(crate) session: Result<&'a Session, &'a [SubscriptionStatus]>,
}

impl LiveStream<'_> {
    /// Iterates over the synchronization of the types of the stream.
    pub fn synchronization(&self) -> impl Iterator<Item = Synchronization> {
        let here = self.session.into_iter().flat_map(Session::synchronization);
        here.chain(
            self.session.err().into_iter().flatten().map(SubscriptionStatus::synchronization),
        )
    }

    /// Returns whether the client has not acknowledged all changes up to `revision`. A rejection of an earlier one counts
    /// while it applies. An offloaded session does not count as behind, because its answers are not
    /// known.
    #[must_use]
    pub fn is_behind(&self, revision: Revision) -> bool {
        let has_open = |session: &Session| {
            session.acceptance_until(revision).any(|(_, one)| one != Acceptance::Accepted)
        };
        self.reached < revision || self.session.is_ok_and(has_open)
    }
}

/// Selects the streams of a query. It runs on the shards, so it must be fast.
pub type SelectStream = Arc<dyn Fn(&LiveStream<'_>) -> bool + Send + Sync>;

/// A page of the resources of a stream.
#[derive(Debug)]
pub struct StreamContents {
    /// The page.
    pub page: ContentsPage,
    /// The scopes from which its resources may come: those of the node, and earlier ones. `None` if not all of
    /// them are known.
    pub scopes: Option<Vec<ScopeName>>,
}

/// The status of one stream.
#[derive(Debug, Clone)]
pub struct StreamStatus {
    /// The stream.
    pub stream: StreamRef,
    /// The ID of the session.
    pub id: SessionId,
    /// The node that the client claims to be.
    pub node: Arc<Node>,
    /// The address of the client.
    pub peer: SocketAddr,
    /// The authenticated identity of the client; `None` for a connection that this replica opens, such as to a remote
    /// MCP sink.
    pub identity: Option<Arc<Identity>>,
    /// The protocol variant of the stream.
    pub protocol: Protocol,
    /// The type of the stream; `None` if it is aggregated.
    pub type_url: Option<TypeUrl>,
    /// The assignment that applies to the node; `None` if no assignment matches.
    pub assignment: Option<Arc<str>>,
    /// The scopes that the node receives.
    pub scopes: Vec<ScopeName>,
    /// The time at which the first request of the stream arrived.
    pub since: SystemTime,
    /// The time of the answer, in milliseconds of the clock of the subscriptions' times.
    pub clock_ms: u64,
    /// The subscriptions by type.
    pub subscriptions: Vec<SubscriptionStatus>,
    /// The last rejection of each type.
    pub nacks: Vec<NackRecord>,
}
