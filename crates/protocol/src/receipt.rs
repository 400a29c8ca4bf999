//! The results of a request: its kind, the answer that it contains, and the names that it watches.

use chancery_model::{ResourceName, Revision, TypeUrl, TypeVersion};

/// A change of the names that the session watches: see
/// [`Session::handle_change`](crate::Session::handle_change).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InterestChange {
    /// Starts watching one name.
    Name(TypeUrl, ResourceName),
    /// Stops watching this name.
    NoName(TypeUrl, ResourceName),
    /// Starts watching all names of a type.
    Wildcard(TypeUrl),
    /// Stops watching all names of a type. Names from [`InterestChange::Name`] remain.
    NoWildcard(TypeUrl),
}

impl InterestChange {
    pub(crate) fn wildcard(type_url: &TypeUrl, on: bool) -> Self {
        if on { Self::Wildcard(type_url.clone()) } else { Self::NoWildcard(type_url.clone()) }
    }
}

/// The client's answer to a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The client accepted the response.
    #[non_exhaustive]
    Ack {
        /// The revision that the response was built from.
        revision: Revision,
        /// The time between response and answer, in milliseconds.
        waited_ms: u64,
    },
    /// The client rejected the response.
    #[non_exhaustive]
    Nack {
        /// The version of the rejected response.
        version: TypeVersion,
        /// The client's code.
        code: i32,
        /// The client's message, truncated to the limit.
        message: String,
    },
}

/// The result of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receipt {
    /// The type of the request.
    pub type_url: TypeUrl,
    /// The answer to a response, if the request has one.
    pub verdict: Option<Verdict>,
    /// The kind of the request.
    pub kind: RequestKind,
}

/// The kind of a request: the first variant that applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// The request accepts a response, whatever else it does.
    Ack,
    /// The request rejects a response.
    Nack,
    /// The request has no nonce, or changes the subscription.
    Subscribe,
    /// The request does not name the last response, and does not change the subscription (SOTW-34).
    Stale,
    /// The request names the last response, which is already answered, and does not change the
    /// subscription.
    Repeat,
}
