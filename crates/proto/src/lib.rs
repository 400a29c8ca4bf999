//! The descriptors of the Envoy API, and the messages of discovery and of MCP.
//!
//! - [`google`] and [`istio`]: the messages, clients and servers of MCP.
//! - [`csds`] and [`lrs`]: hand-written messages of client status and of load reports.
//! - [`discovery`] and [`node`]: hand-written transport messages of xDS. They share the bytes of a
//!   request, and decode `Node` only on demand.
//! - [`ENVOY_DESCRIPTORS`]: the descriptors of the whole Envoy API, for reading and writing JSON.
//!
//! Envoy's messages have no generated types. The store holds bytes (SVC-18), and code that inspects
//! a message uses descriptors.

pub mod csds;
pub mod discovery;
pub mod lrs;
pub mod node;

mod descriptors;

pub use descriptors::{add_descriptor_sets, envoy_pool, with_descriptor_sets};

/// The output of the build script.
#[expect(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::too_many_lines,
    missing_docs,
    reason = "generated code"
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/own.rs"));
}

pub use generated::{google, istio};

/// The descriptors of MCP and their imports.
pub static MCP_DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/own.fds"));

/// The descriptors of the whole Envoy API, including its validation rules.
pub static ENVOY_DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/envoy.fds"));
