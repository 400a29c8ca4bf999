//! A source of MCP: the requests of a sink, and the responses to them.
#![expect(clippy::unwrap_used, reason = "a panic is how a test reports a failure")]

mod model;
mod rules;
mod world;
