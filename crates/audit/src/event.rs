//! An event, as callers describe it.

use std::{net::SocketAddr, time::SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The port on which an event happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Port {
    /// The port for xDS clients.
    Xds,
    /// The port for authors and operators.
    Admin,
    /// The port for replicas.
    Replication,
    /// The connections to MCP sources and sinks.
    Mcp,
    /// None: the event concerns the replica itself.
    Internal,
}

/// The decision about an operation, or its outcome. The reasons are closed sets of labels, never texts of
/// clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The operation is about to run. Only mode `strict` records this.
    Pending,
    /// The operation was allowed and took place.
    Allowed,
    /// The operation was refused.
    Refused(&'static str),
    /// The operation was allowed and failed.
    Failed(&'static str),
    /// It is unknown whether the operation took place.
    Unknown(&'static str),
}

impl Decision {
    /// Returns the word in a record.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Allowed => "allowed",
            Self::Refused(_) => "refused",
            Self::Failed(_) => "failed",
            Self::Unknown(_) => "unknown",
        }
    }

    /// Returns the reason, if the decision has one.
    pub(crate) fn reason(self) -> Option<&'static str> {
        match self {
            Self::Pending | Self::Allowed => None,
            Self::Refused(reason) | Self::Failed(reason) | Self::Unknown(reason) => Some(reason),
        }
    }
}

/// The object of an operation. An empty text means that the operation names none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Target {
    /// The scope; empty if the operation concerns several.
    pub scope: String,
    /// The scopes of an operation that concerns several; empty otherwise.
    pub scopes: Vec<String>,
    /// The resource type, as the caller wrote it.
    pub type_name: String,
    /// The name of the resource, node, member or other object.
    pub name: String,
}

/// An event. Texts may come from clients: records escape and truncate them.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The time at which the decision was made.
    pub time: SystemTime,
    /// The port on which the request arrived.
    pub port: Port,
    /// The operation, from a closed set.
    pub verb: &'static str,
    /// The decision or the outcome.
    pub decision: Decision,
    /// The authenticated identity.
    pub principal: String,
    /// The address of the peer of the connection.
    pub source: Option<SocketAddr>,
    /// The name that the client gives its program.
    pub user_agent: String,
    /// The ID that the client gave the request.
    pub request_id: String,
    /// The object of the operation.
    pub target: Target,
    /// Further values, which level `request` records. They must not be secret.
    pub details: Map<String, Value>,
}

/// The principal of an event before authentication, and of a port without it.
const ANONYMOUS: &str = "anonymous";

/// Returns the text of an address, in logs and in the history: `unix` for a client of a UNIX socket. Such a client has
/// no address, and its port is 0 here, which no client of TCP has.
#[must_use]
pub fn source_text(source: SocketAddr) -> String {
    if source.port() == 0 {
        return "unix".to_owned();
    }
    // Some systems show IPv4 clients of an IPv6 socket as mapped addresses.
    SocketAddr::new(source.ip().to_canonical(), source.port()).to_string()
}

impl Event {
    /// Creates an event that happens now and was allowed, of an anonymous principal.
    #[must_use]
    pub fn new(port: Port, verb: &'static str) -> Self {
        Self {
            time: SystemTime::now(),
            port,
            verb,
            decision: Decision::Allowed,
            principal: ANONYMOUS.to_owned(),
            source: None,
            user_agent: String::new(),
            request_id: String::new(),
            target: Target::default(),
            details: Map::new(),
        }
    }

    /// Creates an event that a client without a principal caused, and that was refused.
    #[must_use]
    pub fn refused(
        port: Port,
        verb: &'static str,
        source: Option<SocketAddr>,
        reason: &'static str,
    ) -> Self {
        Self { source, decision: Decision::Refused(reason), ..Self::new(port, verb) }
    }

    /// Creates an event of the replica itself.
    #[must_use]
    pub fn internal(verb: &'static str) -> Self {
        Self { principal: "replica".to_owned(), ..Self::new(Port::Internal, verb) }
    }

    /// Returns whether the client has no identity.
    pub(crate) fn is_anonymous(&self) -> bool {
        self.principal == ANONYMOUS
    }

    /// Adds a detail. It must not be secret.
    #[must_use]
    pub fn detail(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.details.insert(key.to_owned(), value.into());
        self
    }
}
