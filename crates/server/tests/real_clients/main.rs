//! The whole server against real clients, under continuous load: Envoy 1.40, C-core (grpcio), grpc-js,
//! grpc-go.
//!
//! Each test starts the `chancery` binary, upstreams and a client of its own, on ports and in a
//! directory of its own. The clients come from `cargo xtask setup`; without them a test fails and
//! says so. Nothing here waits without a deadline, and all that was started ends with its test.

mod connection_life;
mod envoy_churn;
mod envoy_life;
mod envoy_nack;
mod envoy_on_demand;
mod envoy_references;
mod envoy_restart;
mod envoy_routes;
mod envoy_secret_nack;
mod envoy_types;
mod envoy_views;
mod envoy_wedge;
mod grpc_life;
mod grpc_streams;
mod support;
