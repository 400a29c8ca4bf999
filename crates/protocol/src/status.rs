//! The status of a session, for introspection.

use chancery_model::{ResourceName, TypeUrl, TypeVersion};

/// A rejection by the client.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Nack {
    /// The version of the rejected response.
    pub version: TypeVersion,
    /// The client's code.
    pub code: i32,
    /// The client's message, truncated to the limit.
    pub message: String,
    /// The time of the rejection, in milliseconds of the caller's clock.
    pub at_ms: u64,
}

/// The synchronization state of one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncState {
    /// No response was sent, and none is pending.
    Idle,
    /// The client has acknowledged everything.
    Synced,
    /// A response is to be sent, or is unacknowledged.
    Pending,
    /// The client rejected the last response.
    Nacked,
}

/// The synchronization of one type of a session: a part of its status that costs a few reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Synchronization {
    /// [`SubscriptionStatus::state`].
    pub state: SyncState,
    /// [`SubscriptionStatus::n_missing`].
    pub n_missing: usize,
    /// [`SubscriptionStatus::unanswered_since`].
    pub unanswered_since: Option<u64>,
}

/// The status of one type of a session.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SubscriptionStatus {
    /// The type.
    pub type_url: TypeUrl,
    /// Whether the client subscribes to the whole view.
    pub wildcard: bool,
    /// The number of names that the client subscribes to.
    pub n_names: usize,
    /// The version of the last response.
    pub sent: Option<TypeVersion>,
    /// The version of the last response that the client acknowledged.
    pub acked: Option<TypeVersion>,
    /// The synchronization state.
    pub state: SyncState,
    /// The last rejection, until it no longer applies.
    pub nack: Option<Nack>,
    /// The number of subscribed names whose resource does not exist. 0 for a wildcard, and for a type whose clients
    /// request names that need not exist, such as virtual hosts.
    pub n_missing: usize,
    /// The first of these names, if it is among the first 1000 subscribed names.
    pub missing: Option<ResourceName>,
    /// The time since which the client owes an answer, in milliseconds of the caller's clock; `None` if it owes none.
    pub unanswered_since: Option<u64>,
    /// The number of removals that are held back until the referrers of the resources have moved.
    pub n_pending_removals: usize,
}

impl SubscriptionStatus {
    /// Returns the synchronization.
    #[must_use]
    pub fn synchronization(&self) -> Synchronization {
        let Self { state, n_missing, unanswered_since, .. } = *self;
        Synchronization { state, n_missing, unanswered_since }
    }
}
