//! The status of one stream for users.

use std::{net::SocketAddr, sync::Arc, time::SystemTime};

use chancery_model::{Identity, Node, ScopeName, TypeUrl};
use chancery_protocol::{Protocol, SubscriptionStatus};

use crate::{
    status::{NackRecord, SessionId},
    stream_slot::StreamSlot,
};

/// The stream of a status, for further queries.
#[derive(Debug, Clone)]
pub struct StreamRef(pub(crate) Arc<StreamSlot>);

/// Clients with equal user agents that see the same scopes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientGroup {
    /// The scopes that the nodes see.
    pub scopes: Vec<ScopeName>,
    /// [`Node::user_agent`] of the nodes.
    pub user_agent: String,
}

/// The status of one stream.
#[derive(Debug, Clone)]
pub struct StreamStatus {
    /// The stream.
    pub stream: StreamRef,
    /// The identity of its session.
    pub id: SessionId,
    /// The node that the client claims to be.
    pub node: Arc<Node>,
    /// The address of the client.
    pub peer: SocketAddr,
    /// The authenticated identity of the client; `None` for connections that the operator has configured.
    pub identity: Option<Arc<Identity>>,
    /// The protocol variant of the stream.
    pub protocol: Protocol,
    /// The type of the stream; `None` if it is aggregated.
    pub type_url: Option<TypeUrl>,
    /// The assignment that applies to the node; `None` if no assignment matches.
    pub assignment: Option<Arc<str>>,
    /// The scopes that the node sees.
    pub scopes: Vec<ScopeName>,
    /// The time at which its first request arrived.
    pub since: SystemTime,
    /// The subscriptions by type.
    pub subscriptions: Vec<SubscriptionStatus>,
    /// The last rejection of each type.
    pub nacks: Vec<NackRecord>,
}
