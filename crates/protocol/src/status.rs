//! What a session can say of itself.

use chancery_model::{TypeUrl, TypeVersion};

/// A rejection by the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nack {
    /// The version of the response that was rejected.
    pub version: TypeVersion,
    /// The client's code.
    pub code: i32,
    /// The client's message, cut to a limit.
    pub message: String,
    /// When, by the clock of the caller.
    pub at_ms: u64,
}

/// How far the client is with one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncState {
    /// Nothing was sent, and nothing is waiting to be.
    Idle,
    /// It has acknowledged all there is for it.
    Synced,
    /// Something is to be sent, or is unacknowledged.
    Pending,
    /// It has rejected what it was last sent.
    Nacked,
}

/// One type of a session.
#[derive(Debug, Clone)]
pub struct SubscriptionStatus {
    /// The type.
    pub type_url: TypeUrl,
    /// Whether it asks for all of the view.
    pub wildcard: bool,
    /// Number of names that it asks for.
    pub n_names: usize,
    /// Version of the last response.
    pub sent: Option<TypeVersion>,
    /// Version of the last response that it acknowledged.
    pub acked: Option<TypeVersion>,
    /// How far it is.
    pub state: SyncState,
    /// Its last rejection, until it acknowledges something later.
    pub nack: Option<Nack>,
    /// Removals that are held back until what refers to the resources has moved.
    pub n_held_removals: usize,
}
