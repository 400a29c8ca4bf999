//! Generated code and descriptors: our own APIs, the Envoy API, the discovery messages.
//!
//! - [`admin`], [`raft`] and the rest of what is under `/proto`: messages, clients and servers. A new
//!   file there needs no change here.
//! - [`discovery`] and [`node`]: the transport messages of xDS, written by hand so that requests are
//!   read without copying and `Node` is decoded only when it has to be.
//! - [`ENVOY_DESCRIPTORS`]: the whole Envoy API as data, for reading and writing JSON.
//!
//! No message of Envoy's has a generated type: the store holds bytes (SVC-18), and what has to look
//! inside them does so through descriptors.

pub mod discovery;
pub mod node;

mod descriptors;

pub use descriptors::{envoy_pool, own_pool};

/// What the build script made. Its lints are not ours to fix.
#[expect(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    missing_docs,
    reason = "generated code"
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/own.rs"));
}

pub use generated::*;

/// Descriptors of our own APIs and of what they import, for reflection and JSON.
pub static FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/own.fds"));

/// Descriptors of the whole Envoy API, with its validation rules.
pub static ENVOY_DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/envoy.fds"));
