//! The trace of a write: `write` with its parts `admission`, `replication`, `apply` and `acknowledgment`.
//!
//! The trace belongs to the task of the request. It has counts and revisions, and no names of nodes.

use std::time::{Duration, SystemTime};

use chancery_audit::Decision;
use chancery_fanout::{Change, Unacknowledged, UnacknowledgedState};
use chancery_proto::admin::v1 as pb;
use chancery_store::ApplyTime;
use chancery_trace::{Kind, Span, Trace};

use crate::{AdminError, service::Service, wait::Waited};

/// The maximum time for which a trace waits for clients.
const ACKNOWLEDGMENT_TIMEOUT: Duration = Duration::from_secs(30);

tokio::task_local! {
    /// The trace of the write that the present task serves.
    static CURRENT: WriteTrace;
}

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

    /// Returns the trace of the present task, if its write is traced.
    pub(crate) fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }

    /// Returns the ID of the trace.
    pub(crate) fn id(&self) -> String {
        self.trace.id()
    }

    /// Runs a write, and sends its span with the outcome.
    pub(crate) async fn around(
        self,
        verb: &'static str,
        run: impl Future<Output = Result<pb::WriteResponse, AdminError>>,
    ) -> Result<pb::WriteResponse, AdminError> {
        let (trace, start) = (self.trace.clone(), self.start);
        let result = CURRENT.scope(self, run).await;
        let span = Span::internal("write", start, SystemTime::now());
        let span = Span { kind: Kind::Server, ..span }.with("chancery.operation", verb);
        trace.end(match &result {
            Ok(done) => span
                .with("chancery.revision", done.revision)
                .with("chancery.changed", done.changed)
                .with("chancery.removed", done.removed),
            Err(error) => Span { error: Some(reason(error).to_owned()), ..span },
        });
        result
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
}

/// Returns the reason of an error from a closed set. Its text may name resources.
fn reason(error: &AdminError) -> &'static str {
    match error.decision() {
        Decision::Refused(reason) | Decision::Failed(reason) | Decision::Unknown(reason) => reason,
        Decision::Pending | Decision::Allowed => "",
    }
}

impl Service {
    /// Waits in the background until the clients of this replica have acknowledged a change, and sends this part of
    /// the trace. The part is missing if too many traced writes wait.
    pub(crate) fn trace_acknowledgment(&self, trace: WriteTrace, change: Change) {
        let Ok(permit) = self.traced_waits.clone().try_acquire_owned() else { return };
        let service = self.clone();
        tokio::spawn(async move {
            let start = SystemTime::now();
            let is_over = || service.drain.is_cancelled();
            let waits = &service.waits;
            let waited = waits.wait(&service.fanout, change, ACKNOWLEDGMENT_TIMEOUT, is_over).await;
            drop(permit);
            let Waited { unsettled, n_asked, n_acknowledged, .. } = waited;
            let is_rejected =
                |one: &&Unacknowledged| matches!(one.state, UnacknowledgedState::Nacked(_));
            let n_rejected = unsettled.iter().filter(is_rejected).count();
            let span = Span::internal("acknowledgment", start, SystemTime::now())
                .with("chancery.sessions", n_asked as u64)
                .with("chancery.acknowledged", n_acknowledged as u64)
                .with("chancery.rejected", n_rejected as u64);
            let error = match unsettled.len() {
                0 => None,
                _ if n_rejected > 0 => Some("rejected".to_owned()),
                _ => Some("not acknowledged in time".to_owned()),
            };
            trace.trace.child(Span { error, ..span });
        });
    }
}
