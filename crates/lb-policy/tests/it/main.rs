//! The public interface of the crate, and grpc-go as the oracle.

#![expect(clippy::unwrap_used, reason = "a test stops where something is missing")]

mod cluster;
mod converters;
mod oracle;
mod support;
mod tree;
mod typed_struct;
mod walk;
