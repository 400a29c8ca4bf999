//! A stream between its transport and its shard.

pub(crate) mod handles;
pub(crate) mod memory;
pub(crate) mod slot;
