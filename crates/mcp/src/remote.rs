//! A remote source, and the confirmations for its task.

use std::net::SocketAddr;

use tokio::sync::oneshot;

use crate::sink::{ConfirmError, Settings};

/// A configured source.
#[derive(Debug, Clone)]
pub struct Remote {
    /// The side that opens the stream.
    pub direction: Direction,
    /// The names of which the certificate of a source that connects needs one: SPIFFE IDs, and DNS names in lower case.
    /// If the list is empty, any certificate of the CAs is accepted (MCP-67).
    pub peer_names: Vec<String>,
    /// The maximum size of a message in bytes.
    pub message_bytes_max: usize,
    /// The settings of the sink.
    pub sink: Settings,
}

/// The side that opens the stream, with the address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Direction {
    /// Chancery connects to the source at this address, as `HOST:PORT`.
    Connect(String),
    /// The source connects to Chancery at this address.
    Listen(SocketAddr),
}

/// The confirmation of a held deletion.
#[derive(Debug)]
pub(crate) struct Confirmation {
    pub(crate) collection: String,
    pub(crate) token: String,
    /// Receives the result.
    pub(crate) reply: oneshot::Sender<Result<(), ConfirmRefusal>>,
}

/// The reason why a confirmation has no effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfirmRefusal {
    /// No source has this name.
    #[error("there is no source {0:?}")]
    UnknownSource(String),
    /// Another replica has the stream to the source.
    #[error("this replica does not lead, so it has no stream to the source; {}", asked(*.0))]
    NotLeader(Option<u64>),
    /// The collection has no such deletion.
    #[error(transparent)]
    Refused(#[from] ConfirmError),
    /// The replica shuts down.
    #[error("the replica shuts down")]
    ShutDown,
}

fn asked(leader: Option<u64>) -> String {
    match leader {
        Some(id) => format!("ask replica {id}"),
        None => "no leader is known".to_owned(),
    }
}
