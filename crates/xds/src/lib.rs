//! The gRPC discovery services.
//!
//! An own accept loop over hyper's HTTP/2, no generated services: a path is a row of the type table,
//! a request is decoded from the bytes that the connection read, and a response is the shared bytes
//! of the state, handed to HTTP/2 by reference (design 4.4, 4.13).
//!
//! Invariants:
//! - Response headers go out before anything else.
//! - Reading never waits for writing. A client that does not read holds up its own stream only.
//! - Whatever a client sends, the answer is a status on that stream; nothing it sends can end
//!   another stream, the accept loop or the process.

mod body;
mod bucket;
mod config;
mod connection;
mod drain;
mod framing;
mod grpc;
mod methods;
mod metrics;
mod node;
mod opening;
mod peers;
mod reader;
mod reason;
mod room;
mod scan;
mod serve;
mod service;
mod watched;

pub use config::{Config, ConfigError};
pub use metrics::METRICS;
pub use serve::{register_metrics, serve};
