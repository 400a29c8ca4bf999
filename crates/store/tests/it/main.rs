//! The store from outside: what a replica promises, whatever happens to it.

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
mod raw_calls;
mod replica;
mod slow_snapshot;
mod strangers;
mod support;
mod tls;
