//! The conformance kit: behaviors of the xDS protocol, checked on any server from outside.
//!
//! A [`Case`] is one behavior. It opens streams or polls as a client does, tells the server through an [`Adapter`] what
//! to publish, and compares what arrives with what the requirements demand. [`run`] runs cases and returns a [`Report`].
//!
//! Invariants:
//! - Each case has a node and resource names of its own, and removes its resources at its end.
//! - Nothing is published before the server has accepted a connection and the credentials.
//! - Every wait has a deadline. That nothing more arrives is checked for a bounded time, [`Target::quiet`].
//! - A case that the server cannot run is skipped. It never counts as passed.
//! - The kit shares no code with Chancery's server except the messages of the wire.

mod adapter;
mod case;
mod cases;
mod client;
mod ctx;
mod kind;
mod located;
mod log;
mod outcome;
mod preflight;
mod reply;
mod report;
mod rest;
mod run;
mod state;
mod stream;
mod transport;

pub use adapter::{Adapter, Chancery, Command, Publishing};
pub use case::{Basis, Case};
pub use cases::all;
pub use ctx::Target;
pub use outcome::Failed;
pub use preflight::prepare;
pub use report::{Entry, Report, Verdict};
pub use run::run;
pub use state::State;
pub use transport::{Connecting, Connection, HttpVersion, Plain, Transport};
