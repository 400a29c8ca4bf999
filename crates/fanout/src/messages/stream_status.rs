//! The status of one stream, as the admin API reports it.

use std::{net::SocketAddr, sync::Arc, time::SystemTime};

use chancery_model::{Identity, Node, ScopeName, TypeUrl};
use chancery_protocol::{ContentsPage, Protocol, SubscriptionStatus};

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
/// Selects the nodes of a query. It runs on the shards, so it must be fast.
pub type SelectNode = Arc<dyn Fn(&Node) -> bool + Send + Sync>;

/// Clients with equal user agents that receive the same scopes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientGroup {
    /// The scopes that these clients receive.
    pub scopes: Vec<ScopeName>,
    /// [`Node::user_agent`] of the nodes.
    pub user_agent: String,
}

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
