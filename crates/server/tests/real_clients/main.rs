//! Tests of the whole server with real clients under continuous load: Envoy 1.40, C-core (grpcio),
//! grpc-js and grpc-go.
//!
//! Each test starts its own `chancery` binary, upstreams and client, on its own ports and in its
//! own directory. `cargo xtask setup` installs the clients; without them a test fails and says so.
//! Every wait has a deadline, and all processes end with their test.

mod bootstraps;
mod connection_life;
mod envoy_churn;
mod envoy_descriptors;
mod envoy_drain;
mod envoy_external;
mod envoy_files;
mod envoy_filter_chains;
mod envoy_freeze;
mod envoy_guards;
mod envoy_leds;
mod envoy_life;
mod envoy_lifetimes;
mod envoy_moves;
mod envoy_nack;
mod envoy_node_parameters;
mod envoy_on_demand;
mod envoy_order;
mod envoy_references;
mod envoy_renames;
mod envoy_resolve;
mod envoy_rest;
mod envoy_restart;
mod envoy_routes;
mod envoy_scalars;
mod envoy_secret_nack;
mod envoy_slow;
mod envoy_types;
mod envoy_views;
mod envoy_wedge;
mod fleet_freeze;
mod fleet_situations;
mod grpc_federation;
mod grpc_guards;
mod grpc_life;
mod grpc_streams;
mod lb_policies;
mod lb_verdicts;
mod load_reports;
mod mcp_sinks;
mod mcp_source;
#[path = "../cli/network.rs"]
#[expect(clippy::unwrap_used, reason = "a test ends where it fails")]
mod network;
mod quick_start;
mod resource_errors;
#[path = "../cli/scripted.rs"]
#[expect(
    clippy::unwrap_used,
    dead_code,
    reason = "a test ends where it fails, and uses a part of this"
)]
mod scripted;
mod support;
mod tls;
mod tokens;
