//! The binary as a user meets it: what it prints, where, and how it exits.

#![expect(clippy::unwrap_used, reason = "a test ends where it fails")]

mod backup;
mod cluster;
mod connections;
mod diverged;
mod leaderless;
mod lifecycle;
mod metrics;
mod recovery;
mod retries;
mod space;
mod strangers;
mod support;
mod tls;
mod usage;
mod writes;
