//! The start of traces, and the choice of the writes that are traced.

use std::{sync::Arc, time::Duration};

use opentelemetry_proto::tonic::trace::v1 as otlp;
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Settings, TraceParent,
    exporter::{Exporter, LAST_EXPORT_TIMEOUT},
    metrics::Counters,
    span::{Place, Span, to_otlp},
};

/// The maximum number of spans that wait to be sent. Further spans are dropped.
const QUEUE_MAX: usize = 2048;

/// The source of traces. A clone is cheap.
#[derive(Clone, Default)]
pub struct Tracer(Option<Arc<Inner>>);

struct Inner {
    sample_percent: u8,
    queue: mpsc::Sender<otlp::Span>,
    counters: Arc<Counters>,
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tracer").field(&self.is_on()).finish()
    }
}

impl Tracer {
    /// Starts a task that sends spans. The task ends when `stop` is cancelled, after one attempt to send the spans in the
    /// queue.
    ///
    /// # Errors
    /// Returns the reason if the endpoint is not a URL.
    pub fn start_exporter(
        settings: &Settings,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Result<Self, String> {
        Self::start_exporter_until(settings, tasks, stop, LAST_EXPORT_TIMEOUT)
    }

    /// Starts a task that sends spans. After `stop` is cancelled, the task sends the remaining spans for at most `last`.
    pub(crate) fn start_exporter_until(
        settings: &Settings,
        tasks: &TaskTracker,
        stop: CancellationToken,
        last: Duration,
    ) -> Result<Self, String> {
        let (queue, spans) = mpsc::channel(QUEUE_MAX);
        let counters = Arc::new(Counters::new());
        let exporter = Exporter::new(settings, spans, Arc::clone(&counters))?;
        tasks.spawn(exporter.run(stop, last));
        let sample_percent = settings.sample_percent;
        Ok(Self(Some(Arc::new(Inner { sample_percent, queue, counters }))))
    }

    /// Returns whether a receiver is configured.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Starts the trace of a write, or continues that of its caller. Returns `None` for a write that is not traced.
    #[must_use]
    pub fn start(&self, parent: Option<TraceParent>) -> Option<Trace> {
        let inner = self.0.as_ref()?;
        let is_sampled = match parent {
            Some(parent) => parent.is_sampled,
            None => fastrand::u8(0..100) < inner.sample_percent,
        };
        let trace_id = parent.map_or_else(random_id, |parent| parent.trace_id);
        let parent = parent.map(|parent| parent.span_id);
        let root = Place { trace_id, span_id: random_id(), parent };
        is_sampled.then(|| Trace { inner: Arc::clone(inner), root })
    }
}

/// An ID that is not zero.
fn random_id<const N: usize>() -> [u8; N] {
    let mut id = [0; N];
    fastrand::fill(&mut id);
    if id == [0; N] {
        id[0] = 1;
    }
    id
}

/// The trace of one write. A clone is cheap.
#[derive(Clone)]
pub struct Trace {
    inner: Arc<Inner>,
    root: Place,
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Trace {
    /// Sends the span of the whole write.
    pub fn end(&self, span: Span) {
        self.send(self.root, span);
    }

    /// Sends the span of a part of the write.
    pub fn child(&self, span: Span) {
        let place = Place { span_id: random_id(), parent: Some(self.root.span_id), ..self.root };
        self.send(place, span);
    }

    fn send(&self, place: Place, span: Span) {
        if self.inner.queue.try_send(to_otlp(place, span)).is_err() {
            self.inner.counters.dropped.increment(1);
        }
    }

    /// Returns the ID of the trace as text, for the log.
    #[must_use]
    pub fn id(&self) -> String {
        hex::encode(self.root.trace_id)
    }
}
