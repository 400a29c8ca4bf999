//! The scopes and the rights of clients, and the data that depends on them.

pub(crate) mod access;
pub(crate) mod access_changes;
pub(crate) mod past_scopes;
pub(crate) mod reassign;
pub(crate) mod resume_cache;
pub(crate) mod views;
