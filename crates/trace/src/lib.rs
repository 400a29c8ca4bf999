//! Traces of writes: from the request of an author to the acknowledgment of the connected clients.
//!
//! Invariants:
//! - Without a receiver, [`Tracer::start`] is one comparison and allocates nothing.
//! - A write never waits for a receiver. If the queue is full, the tracer counts the span and drops it.
//! - There is one trace per sampled write, and none per client or stream.
//! - A span has names, counts and revisions, and never the content of a resource.

mod exporter;
mod metrics;
mod parent;
mod settings;
mod span;
mod tracer;

pub use metrics::{METRICS, register_metrics};
pub use parent::TraceParent;
pub use settings::Settings;
pub use span::{Attribute, Kind, Span};
pub use tracer::{Trace, Tracer};
