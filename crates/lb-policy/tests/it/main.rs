//! The public interface of the crate.

#![expect(clippy::unwrap_used, reason = "a test stops where something is missing")]

mod cluster;
mod converters;
mod support;
mod tree;
mod typed_struct;
mod walk;
