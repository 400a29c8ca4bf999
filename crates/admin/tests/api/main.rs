//! Tests of the admin API with a real store and real shards, but without sockets.
#![expect(clippy::unwrap_used, reason = "a test ends where it fails")]

mod access;
mod analyze;
mod attacks;
mod audit;
mod cluster;
mod console;
mod csds;
mod external;
mod freezes;
mod golden;
mod grpc;
mod guards;
mod history;
mod http;
mod listeners;
mod load;
mod mcp;
mod nodes;
mod openapi;
mod pages;
mod profiles;
mod quotas;
mod references;
mod resolve;
mod revocation;
mod support;
mod variants;
mod ways_back;
