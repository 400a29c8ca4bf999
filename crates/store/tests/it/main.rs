//! Tests of the store from outside: the guarantees of a replica under all kinds of faults.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod backup;
mod child;
mod cluster;
mod damage;
mod directory;
mod full_disk;
mod golden;
mod kill;
mod log;
mod members;
mod past;
mod questions;
mod quotas;
mod raw_calls;
mod replica;
mod slow_snapshot;
mod strangers;
mod support;
mod tls;
