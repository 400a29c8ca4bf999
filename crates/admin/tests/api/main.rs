//! The admin API over a real store and real shards: only the sockets are missing.
#![expect(clippy::unwrap_used, reason = "a test ends where it fails")]

mod cluster;
mod golden;
mod grpc;
mod http;
mod nodes;
mod support;
