//! Events of clients that the audit log of a replica records.

use std::{fmt, net::SocketAddr, sync::Arc};

use chancery_model::Principal;

/// An event of a client.
#[derive(Debug, Clone, Copy)]
pub struct ClientEvent<'a> {
    /// The kind.
    pub kind: ClientEventKind,
    /// The identity; `None` if the client has not proved one.
    pub principal: Option<&'a Principal>,
    /// The address of the client.
    pub peer: SocketAddr,
    /// The ID of the node; empty if the client has not sent it.
    pub node: &'a str,
}

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientEventKind {
    /// The client has no valid credential, for this reason.
    Unauthenticated(&'static str),
    /// A stream or a poll of the client was refused, for this reason.
    Refused(&'static str),
    /// The client receives secrets, for the first time on its stream or with a poll.
    SecretsSent,
}

/// Receives the events of clients. It must not block.
#[derive(Clone, Default)]
pub struct ClientObserver(Option<Arc<Observe>>);

type Observe = dyn Fn(ClientEvent<'_>) + Send + Sync;

impl ClientObserver {
    /// Creates an observer.
    #[must_use]
    pub fn new(observe: impl Fn(ClientEvent<'_>) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(observe)))
    }

    /// Passes on an event.
    pub fn observe(&self, event: ClientEvent<'_>) {
        if let Some(observe) = &self.0 {
            observe(event);
        }
    }
}

impl fmt::Debug for ClientObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClientObserver").field(&self.0.is_some()).finish()
    }
}
