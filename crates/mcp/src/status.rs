//! The status of a source, for operators.

use std::net::SocketAddr;

use chancery_model::{ScopeName, TypeUrl};

/// The status of a source, as this replica sees it.
#[derive(Debug, Clone)]
pub struct SourceStatus {
    /// The name of the source.
    pub name: String,
    /// Its address; empty if the source connects to Chancery.
    pub address: String,
    /// The address at which the source connects.
    pub listen: Option<SocketAddr>,
    /// The address of a source that has connected; otherwise empty.
    pub peer: String,
    /// The scope that receives its collections.
    pub scope: ScopeName,
    /// The state of the stream to the source.
    pub connection: Connection,
    /// The reason why the newest connection ended or failed.
    pub last_error: Option<String>,
    /// Its collections, in the order of the configuration.
    pub collections: Vec<CollectionStatus>,
}

/// The connection to a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connection {
    /// This replica does not lead, so it has no stream.
    Follower,
    /// The replica listens, and the source has not opened a stream.
    Waiting,
    /// The replica connects, or waits before it connects again.
    Connecting,
    /// The sink has sent its requests. Some sources accept the stream only with their first message.
    Connected,
}

/// The status of one collection.
#[derive(Debug, Clone)]
pub struct CollectionStatus {
    /// The name of the collection.
    pub name: TypeUrl,
    /// The number of messages that this replica accepted.
    pub n_accepted: u64,
    /// The number of messages that this replica rejected, without those that the guard held.
    pub n_rejected: u64,
    /// The deletion that waits for a confirmation.
    pub held: Option<HeldDeletion>,
    /// The reason of the newest rejection, until a message is accepted.
    pub last_rejection: Option<String>,
}

/// A deletion that waits for a confirmation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldDeletion {
    /// The number of resources to delete.
    pub n_deletions: usize,
    /// The number of stored resources.
    pub n_stored: usize,
    /// The identifier by which an operator confirms the deletion.
    pub token: String,
}

// === impl Connection ===

impl Connection {
    /// Returns the name of the state.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Follower => "follower",
            Self::Waiting => "waiting",
            Self::Connecting => "connecting",
            Self::Connected => "connected",
        }
    }
}
