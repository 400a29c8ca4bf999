//! The discovery services, as gRPC streams and REST-JSON polls, and the load reporting service.
//!
//! The crate runs hyper's HTTP/2 and HTTP/1.1 itself, without generated services. A path is a row of the type table.
//! A request is decoded from the bytes that the connection read. A response refers to the bytes of the
//! resources, which all streams share, and HTTP/2 writes them without a copy.
//!
//! Invariants:
//! - The response headers are sent before anything else.
//! - Reading never waits for writing. A client that does not read delays only its own stream.
//! - The answer to invalid input is a status on the same stream. No input ends another stream, the
//!   accept loop or the process.

mod body;
mod caller;
mod config;
mod connection;
mod dial;
mod drain;
mod driver;
mod framing;
#[doc(hidden)]
pub mod fuzz;
mod grpc;
mod lrs;
mod memory_budget;
mod methods;
mod metrics;
mod node;
mod opening;
mod reader;
mod reason;
mod refusal_delays;
mod refuse;
mod rest;
mod serve;
mod service;
mod shared;
mod until;

pub use config::{Config, ConfigError};
pub use dial::{RemoteSink, serve_remote_sink};
pub use metrics::METRICS;
pub use rest::BodyEncoder;
pub use serve::{register_metrics, serve};

/// Returns all paths that the port serves, for tests of access.
#[doc(hidden)]
#[must_use]
pub fn served_paths() -> Vec<String> {
    let mut paths: Vec<String> = methods::Methods::new(true).paths().collect();
    paths.sort();
    paths
}
