//! The status of streams for users: configuration, progress and end.

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use chancery_model::{Node, Revision, TypeUrl, TypeVersion};

/// A shard that has stalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StalledShard {
    /// The number of the shard.
    pub shard: usize,
    /// The number of its streams, which receive no updates.
    pub n_streams: usize,
    /// Whether its task has ended. Only a restart of the replica brings it back.
    pub has_ended: bool,
}

impl fmt::Display for StalledShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shard, n_streams, has_ended } = self;
        if *has_ended {
            return write!(
                f,
                "shard {shard} has ended because of a defect, and serves no streams until the replica restarts"
            );
        }
        write!(f, "shard {shard} does not turn, and serves none of its {n_streams} streams")
    }
}

/// The reason for the end of a stream, as reported to the client (SOTW-110).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndCode {
    /// The client closed its half of the stream and received everything.
    Ok,
    /// The client broke a rule of the protocol.
    InvalidArgument,
    /// The client exceeded a limit.
    ResourceExhausted,
    /// The client used a feature of gRPC that the server does not support.
    Unimplemented,
    /// The replica shuts down, or wants the client to reconnect.
    Unavailable,
    /// The connection has reached its maximum age. The client receives OK, because nothing is wrong
    /// (SOTW-110). grpc-js reports any other status to the calls that wait for a resource.
    Aged,
    /// The client has left a response unanswered for too long. The client receives UNAVAILABLE,
    /// reconnects at once and starts over (CLI-G-15, CLI-G-28).
    Silent,
    /// The request was truncated or damaged below the protocol.
    Internal,
    /// The deadline that the client set has passed.
    DeadlineExceeded,
    /// The client has no credential, or an invalid one.
    Unauthenticated,
    /// The identity of the client may not receive its configuration.
    PermissionDenied,
    /// The rights or the credential of the client have changed or ended. The client receives OK, because it keeps its
    /// configuration until a new stream is refused.
    AccessChanged,
}

impl EndCode {
    /// Returns whether the replica refuses the stream: the client broke a rule or a limit, or has no access. A client
    /// that opens the same stream again receives the same end.
    #[must_use]
    pub fn is_refusal(self) -> bool {
        match self {
            Self::InvalidArgument
            | Self::ResourceExhausted
            | Self::Unimplemented
            | Self::Unauthenticated
            | Self::PermissionDenied
            | Self::Internal => true,
            Self::Ok
            | Self::Unavailable
            | Self::Aged
            | Self::Silent
            | Self::DeadlineExceeded
            | Self::AccessChanged => false,
        }
    }
}

/// The end of a stream: a gRPC status, independent of gRPC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// The reason.
    pub code: EndCode,
    /// A message for the client's log. Empty for [`EndCode::Ok`].
    pub message: Cow<'static, str>,
}

impl End {
    /// Creates an end with a message.
    #[must_use]
    pub fn new(code: EndCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into() }
    }

    /// Creates the regular end.
    #[must_use]
    pub const fn ok() -> Self {
        Self { code: EndCode::Ok, message: Cow::Borrowed("") }
    }
}

/// A client's rejection of a response (SOTW-28). Each stream keeps the last one per type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NackRecord {
    /// The type of the response.
    pub type_url: TypeUrl,
    /// The rejected version.
    pub version: TypeVersion,
    /// The client's code.
    pub code: i32,
    /// The client's message, truncated.
    pub message: String,
    /// The time at which it arrived.
    pub time: SystemTime,
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

/// The progress of this replica's sessions with a change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress {
    /// The sessions that have not acknowledged the change, with one entry for each type of a session.
    pub unsettled: Vec<Unacknowledged>,
    /// The sessions that the change concerns.
    pub asked: HashMap<SessionId, ConcernedSession>,
    /// Whether a shard has not reached the revision of the change: sessions may be missing.
    pub is_behind: bool,
}

/// A session that a change concerns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConcernedSession {
    /// The node of the session.
    pub node: Arc<Node>,
    /// Whether the session has acknowledged everything that the change requires.
    pub has_acknowledged: bool,
}

/// A stream that has not acknowledged its part of a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unacknowledged {
    /// The ID of the node; empty for [`UnacknowledgedState::Behind`].
    pub node: String,
    /// The type; `None` if all types may be concerned.
    pub type_url: Option<TypeUrl>,
    /// The state.
    pub state: UnacknowledgedState,
}

/// The reason why a stream or a shard is unsettled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnacknowledgedState {
    /// The replica has not reached the revision. Has the revision that it has reached.
    Behind(Revision),
    /// A shard of the replica has stalled, so its clients are unknown.
    Stalled(StalledShard),
    /// The client is not known to have accepted the change: the response is to be sent or not answered, or
    /// the client skipped the answer.
    Pending,
    /// The client rejected a response with a change of the revision, with this message. The client may
    /// have accepted a later response since.
    Nacked(String),
    /// The node no longer has an assignment. It receives nothing and keeps its resources.
    Unassigned,
}

impl Unacknowledged {
    pub(crate) fn behind(reached: Revision) -> Self {
        let state = UnacknowledgedState::Behind(reached);
        Self { node: String::new(), type_url: None, state }
    }

    pub(crate) fn stalled(shard: StalledShard) -> Self {
        let state = UnacknowledgedState::Stalled(shard);
        Self { node: String::new(), type_url: None, state }
    }
}
