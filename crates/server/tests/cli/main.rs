//! Tests of the binary as a user runs it: its output and its exit codes.

#![expect(clippy::unwrap_used, reason = "a test ends where it fails")]

mod access;
mod audit;
mod backup;
mod bootstraps;
mod cluster;
mod conformance;
mod connections;
mod contexts;
mod debug_bundle;
mod diverged;
mod doctor;
mod early;
mod fleet;
mod fleet_answers;
mod fleet_wait;
mod guards;
mod identities;
mod lb_policy;
mod leaderless;
mod lifecycle;
mod lint;
mod logs;
mod manual;
mod mcp;
mod metrics;
mod mirror;

mod open_files;
mod quotas;
mod recorder;
mod recovery;
mod references;
mod retries;
mod screens;
mod secrets;
mod space;
mod strangers;
mod structured_names;
mod support;
mod tls;
mod tls_ports;
mod tokens;
mod traces;
mod unix_socket;
mod usage;
mod variants;
mod walk;
mod writes;
