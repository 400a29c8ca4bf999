//! The answers of a shard to queries about its streams.

pub(crate) mod concern;
pub(crate) mod report;
