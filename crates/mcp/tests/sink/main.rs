//! A sink of MCP: the messages of a source, and the answers to them.
#![expect(clippy::unwrap_used, reason = "a panic is how a test reports a failure")]

mod guard;
mod hostile;
mod model;
mod rules;
mod world;
