//! The core against a model: a naive reference of what there is and what was sent, clients with the habits
//! of real ones, and laws that are checked at every step.
//!
//! A case is a list of events, made from a seed: commits, requests, answers, rejections, silence, time,
//! streams that break, transports without room, in any order. After each response the laws of `laws`
//! and `order` are judged by the books of `ledger`; when the server has nothing more to send, those of
//! `rest`; in the end the client answers everything and has to hold exactly what the naive view shows.
//!
//! Each test says how much it did and its seed. `CHANCERY_TEST_SEED=<seed>` runs those cases again,
//! `CHANCERY_TEST_SEED=<seed>:<case>` one of them; `CHANCERY_TEST_LONG=1` runs many more, of a new
//! seed. A run in which something was hardly exercised fails (`cover`); `CHANCERY_TEST_COVER=1` shows the
//! counts.
#![expect(clippy::unwrap_used, reason = "a test says what it expects by failing")]

mod any;
mod client;
mod cover;
mod habits;
mod laws;
mod ledger;
mod naive;
mod order;
mod rest;
mod rng;
mod run;
mod script;
mod world;

use script::Profile;

/// SOTW-92, ADS-08, ADS-11, ADS-12, CLI-E-01: Envoy, state of the world.
#[test]
fn envoy_sotw_converges_and_no_rule_is_broken_on_the_way() {
    run::all(Profile::EnvoySotw, 600, 22_000);
}

/// DELTA-52, ADS-08, ADS-11, CLI-E-20, CLI-E-26: Envoy, incremental.
#[test]
fn envoy_delta_converges_and_no_rule_is_broken_on_the_way() {
    run::all(Profile::EnvoyDelta, 600, 22_000);
}

/// SOTW-92, ADS-08, CLI-G-02, CLI-G-07, CLI-G-09: gRPC.
#[test]
fn grpc_converges_and_no_rule_is_broken_on_the_way() {
    run::all(Profile::Grpc, 600, 22_000);
}

/// SOTW-34 to -37, SOTW-40 to -50, SOTW-60 to -68, SOTW-100: anything that can be asked for.
#[test]
fn any_sotw_client_converges_and_no_rule_is_broken_on_the_way() {
    run::all(Profile::AnySotw, 600, 22_000);
}

/// DELTA-14, DELTA-20 to -38, DELTA-40 to -58: anything that can be asked for.
#[test]
fn any_delta_client_converges_and_no_rule_is_broken_on_the_way() {
    run::all(Profile::AnyDelta, 600, 22_000);
}
