//! What people are told about streams: how each stands, who lags, how it ended.

use std::{
    borrow::Cow,
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use chancery_model::{Node, Revision, ScopeName, TypeUrl, TypeVersion};
use chancery_protocol::{Protocol, SubscriptionStatus};

/// Why a stream ended, as far as clients are told apart by it (SOTW-110).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndCode {
    /// The client closed its half, and was served.
    Ok,
    /// The client broke a rule of the protocol.
    InvalidArgument,
    /// The client exceeded a limit.
    ResourceExhausted,
    /// The client used something of gRPC that is not served.
    Unimplemented,
    /// The replica goes away, or wants the client to come back.
    Unavailable,
    /// The connection has reached its age. To the client, that is "ok": nothing is wrong (SOTW-110), and
    /// grpc-js tells any other status to its calls that wait for a resource.
    Aged,
    /// The client has left a response unanswered for too long. To it, that is "unavailable" too: it
    /// comes back at once and begins anew (CLI-G-15, CLI-G-28).
    Silent,
    /// The request was cut off or damaged below the protocol.
    Internal,
    /// The time is up that the client itself had set.
    DeadlineExceeded,
}

/// The end of a stream: a gRPC status without gRPC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// The kind.
    pub code: EndCode,
    /// A sentence for the client's log; empty for [`EndCode::Ok`].
    pub message: Cow<'static, str>,
}

impl End {
    /// An end with a message.
    #[must_use]
    pub fn new(code: EndCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into() }
    }

    /// The good end.
    #[must_use]
    pub const fn ok() -> Self {
        Self { code: EndCode::Ok, message: Cow::Borrowed("") }
    }
}

/// A client's refusal of a response (SOTW-28): the last one per type is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NackRecord {
    /// The type of the response.
    pub type_url: TypeUrl,
    /// The version that was refused.
    pub version: TypeVersion,
    /// The client's code.
    pub code: i32,
    /// The client's message, cut.
    pub message: String,
    /// When it arrived.
    pub time: SystemTime,
}

/// How one stream stands.
#[derive(Debug, Clone)]
pub struct StreamStatus {
    /// Who the client says it is.
    pub node: Arc<Node>,
    /// Where it connects from.
    pub peer: SocketAddr,
    /// Which protocol it speaks.
    pub protocol: Protocol,
    /// The type of the stream; `None` if it is aggregated.
    pub type_url: Option<TypeUrl>,
    /// The assignment that holds for the node; `None` if none does.
    pub assignment: Option<Arc<str>>,
    /// The scopes it sees.
    pub scopes: Vec<ScopeName>,
    /// When its first request arrived.
    pub since: SystemTime,
    /// What it subscribed to, by type.
    pub subscriptions: Vec<SubscriptionStatus>,
    /// The last refusal of each type.
    pub nacks: Vec<NackRecord>,
}

/// The identity of a session. No two sessions of a process have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId(pub u64);

impl SessionId {
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The progress of the sessions of this replica with a change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settlement {
    /// The sessions that have not acknowledged: one entry for each type of a session.
    pub unsettled: Vec<Unsettled>,
    /// The sessions that the change concerns.
    pub asked: HashMap<SessionId, Asked>,
    /// Whether a shard has not come to the revision of the change: sessions may be missing.
    pub is_behind: bool,
}

/// A session that a change concerns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The node of the session.
    pub node: Arc<Node>,
    /// Whether the session has acknowledged all that it should have.
    pub has_acknowledged: bool,
}

/// A stream that has not acknowledged what it should have of a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsettled {
    /// Which node; empty for [`UnsettledState::Behind`].
    pub node: String,
    /// Which type; `None` for [`UnsettledState::Behind`].
    pub type_url: Option<TypeUrl>,
    /// What is known.
    pub state: UnsettledState,
}

/// Why something is not settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnsettledState {
    /// The replica has not come to the revision yet; it is at this one.
    Behind(Revision),
    /// The response is on its way, or the client has not answered it.
    Pending,
    /// The client refused the response, with this message.
    Nacked(String),
}

impl Unsettled {
    pub(crate) fn behind(reached: Revision) -> Self {
        let state = UnsettledState::Behind(reached);
        Self { node: String::new(), type_url: None, state }
    }
}
