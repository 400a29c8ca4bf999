//! The trace of a write: `write` with its parts `admission`, `replication`, `apply` and `acknowledgment`.
//!
//! It has counts and revisions, and no names of nodes.

use std::time::SystemTime;

use chancery_audit::{Decision, Event};
use chancery_store::ApplyTime;
use chancery_trace::{Kind, Span, Trace};
use serde_json::Value;

use crate::wait::Waited;

/// The trace of a write.
#[derive(Debug, Clone)]
pub(crate) struct WriteTrace {
    trace: Trace,
    start: SystemTime,
}

impl WriteTrace {
    /// Creates the trace of a write that starts now.
    pub(crate) fn new(trace: Trace) -> Self {
        Self { trace, start: SystemTime::now() }
    }

    /// Returns the ID of the trace.
    pub(crate) fn id(&self) -> String {
        self.trace.id()
    }

    /// Sends the span of the write, with what its record says about the outcome.
    pub(crate) fn end(&self, event: &Event) {
        let span = Span::internal("write", self.start, SystemTime::now());
        let mut span = Span { kind: Kind::Server, ..span }.with("chancery.operation", event.verb);
        for (key, detail) in [
            ("chancery.revision", "revision"),
            ("chancery.changed", "changed"),
            ("chancery.removed", "removed"),
        ] {
            if let Some(number) = event.details.get(detail).and_then(Value::as_u64) {
                span = span.with(key, number);
            }
        }
        self.trace.end(Span { error: reason(event.decision).map(str::to_owned), ..span });
    }

    /// Sends the parts of a write until it is applied on this replica. Without a time of its revision, the write has
    /// changed nothing, or an earlier request has made the change.
    pub(crate) fn committed(&self, proposed: SystemTime, time: Option<ApplyTime>) {
        self.trace.child(Span::internal("admission", self.start, proposed));
        match time.filter(|time| time.committed >= proposed) {
            Some(ApplyTime { committed, applied }) => {
                self.trace.child(Span::internal("replication", proposed, committed));
                self.trace.child(Span::internal("apply", committed, applied));
            }
            None => self.trace.child(Span::internal("replication", proposed, SystemTime::now())),
        }
    }

    /// Sends the part in which the clients of this replica were awaited.
    pub(crate) fn acknowledged(&self, start: SystemTime, waited: &Waited) {
        let span = Span::internal("acknowledgment", start, SystemTime::now())
            .with("chancery.sessions", waited.n_asked as u64)
            .with("chancery.acknowledged", waited.n_acknowledged as u64)
            .with("chancery.rejected", waited.n_rejected as u64);
        let error = match waited.n_unsettled {
            0 => None,
            _ if waited.n_rejected > 0 => Some("rejected".to_owned()),
            _ => Some("not acknowledged in time".to_owned()),
        };
        self.trace.child(Span { error, ..span });
    }
}

/// Returns the reason of a failure from a closed set. The text of an error may name resources.
fn reason(decision: Decision) -> Option<&'static str> {
    match decision {
        Decision::Refused(reason) | Decision::Failed(reason) | Decision::Unknown(reason) => {
            Some(reason)
        }
        Decision::Pending | Decision::Allowed => None,
    }
}
