//! Tests of the discovery services over a real socket, with a real state.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod access;
mod basics;
mod breaks;
mod comeback;
mod crowd;
mod few_files;
mod floods;
mod forbidden;
mod habits;
mod life;
mod lifecycle;
mod limits;
mod lost;
mod lrs;
mod mcp;
mod never_ack;
mod node_binding;
mod ordered_drain;
mod refusal_delays;
mod requests;
mod resource_errors;
mod resource_locators;
mod rest;
mod rest_connections;
mod silent;
mod support;
mod tls;
