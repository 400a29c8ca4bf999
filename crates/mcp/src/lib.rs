//! MCP as a sink: stores collections of remote sources in scopes.
//!
//! - [`Sink`] is the protocol state of a sink, without I/O: it checks each message of a source, compares the message
//!   with the stored collection, and makes the requests. The exchange does not depend on the side that connects (MCP-03).
//! - [`Guard`] holds messages that would delete most of a collection, until an operator confirms the deletion.
//! - [`Sources`] keeps a stream to each configured source, on the leader only (MCP-70), and commits what the sources
//!   send. Chancery connects to a source, or the source connects to a [`SinkService`].
//!
//! Invariant: a sink answers each message exactly once, and accepts it only after its commit (MCP-55, MCP-56).

mod dial;
mod ingest;
mod listen;
mod message;
mod metrics;
mod remote;
mod requests;
mod sink;
mod sources;
mod status;
mod task;

pub use listen::SinkService;
pub use message::Resources;
pub use metrics::METRICS;
pub use remote::{ConfirmRefusal, Direction, Remote};
pub use sink::{Change, ConfirmError, Deletion, Failure, Guard, Settings, Sink, Step};
pub use sources::Sources;
pub use status::{CollectionStatus, Connection, HeldDeletion, SourceStatus};
