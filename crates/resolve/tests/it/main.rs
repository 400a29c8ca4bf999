//! Tests of the walk: each case is a set of resources, requests, and the ends as text.

#![expect(clippy::unwrap_used, reason = "a test ends where it fails")]

mod connections;
mod routes;
mod support;
mod tables;
