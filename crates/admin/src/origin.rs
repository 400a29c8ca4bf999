//! The origin of a request, for records of the audit log and for traces.

use std::net::SocketAddr;

use axum::extract::ConnectInfo;
use chancery_audit::{Event, source_text};
use chancery_trace::TraceParent;
use http::{Extensions, HeaderMap, header};

/// The header of W3C Trace Context.
const TRACEPARENT: &str = "traceparent";

/// The origin of a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Origin {
    source: Option<SocketAddr>,
    user_agent: String,
    /// The trace of the caller, which a write continues.
    traceparent: Option<TraceParent>,
}

impl Origin {
    /// Returns the origin of a request. The server that accepted the connection adds its address.
    pub(crate) fn of(extensions: &Extensions, headers: &HeaderMap) -> Self {
        let source = extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0);
        let user_agent = headers.get(header::USER_AGENT);
        let user_agent = user_agent.map(|value| String::from_utf8_lossy(value.as_bytes()));
        let user_agent = user_agent.unwrap_or_default().into_owned();
        // Several headers contradict each other.
        let mut parents = headers.get_all(TRACEPARENT).iter();
        let traceparent = match (parents.next(), parents.next()) {
            (Some(parent), None) => parent.to_str().ok().and_then(TraceParent::parse),
            _ => None,
        };
        Self { source, user_agent, traceparent }
    }

    /// Adds the origin to an event.
    pub(crate) fn add_to(&self, event: Event) -> Event {
        Event { source: self.source, user_agent: self.user_agent.clone(), ..event }
    }

    /// Returns the trace of the caller.
    pub(crate) fn traceparent(&self) -> Option<TraceParent> {
        self.traceparent
    }

    /// Returns the address of the caller; empty if it has none.
    pub(crate) fn source(&self) -> String {
        self.source.map(source_text).unwrap_or_default()
    }
}
