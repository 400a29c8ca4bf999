//! The session against a model: a naive reference of the resources and responses, clients with the
//! habits of real ones, and rules that are checked at every step.
//!
//! A case is a list of random events, derived from a seed: commits, requests, ACKs, NACKs, silence,
//! time, broken streams, and transports without room. After each response, `laws` and `order` check
//! their rules against the `ledger`. When the server has nothing more to send, `rest` checks its
//! rules. At the end, the client answers everything and must hold exactly the resources of the
//! naive view.
//!
//! Each test prints its amount of work and its seed. `CHANCERY_TEST_SEED=<seed>` repeats those
//! cases, and `CHANCERY_TEST_SEED=<seed>:<case>` repeats one of them. `CHANCERY_TEST_LONG=1` runs
//! many more cases from a new seed. A run fails if it exercised something too rarely (`cover`).
//! `CHANCERY_TEST_COVER=1` prints the counts.

mod any;
mod client;
mod cover;
mod errors;
mod globs;
mod habits;
mod laws;
mod ledger;
mod lifetimes;
mod naive;
mod order;
mod rest;
mod rng;
mod run;
mod script;
mod walk;
mod world;

use script::Profile;

/// SOTW-92, ADS-08, ADS-11, ADS-12, CLI-E-01: Envoy, SotW.
#[test]
fn envoy_sotw_converges_without_violations() {
    run::all(Profile::EnvoySotw, 600, 22_000);
}

/// DELTA-52, ADS-08, ADS-11, CLI-E-20, CLI-E-26: Envoy, delta.
#[test]
fn envoy_delta_converges_without_violations() {
    run::all(Profile::EnvoyDelta, 600, 22_000);
}

/// SOTW-92, ADS-08, CLI-G-02, CLI-G-07, CLI-G-09: gRPC.
#[test]
fn grpc_converges_without_violations() {
    run::all(Profile::Grpc, 600, 22_000);
}

/// SOTW-34 to -37, SOTW-40 to -50, SOTW-60 to -68, SOTW-100: a SotW client with arbitrary requests.
#[test]
fn any_sotw_client_converges_without_violations() {
    run::all(Profile::AnySotw, 600, 22_000);
}

/// DELTA-14, DELTA-20 to -38, DELTA-40 to -58: a delta client with arbitrary requests.
#[test]
fn any_delta_client_converges_without_violations() {
    run::all(Profile::AnyDelta, 600, 22_000);
}

/// SOTW-92, DELTA-52, REST-12: clients of SotW, delta and REST with the same subscriptions end in the same
/// state.
#[test]
fn clients_of_all_doors_hold_the_same_resources() {
    walk::all(100);
}
