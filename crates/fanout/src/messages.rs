//! The messages between a replica's parts: events, queries, answers and the status of streams. Data only.

pub(crate) mod change;
pub(crate) mod client_events;
pub(crate) mod client_log;
pub(crate) mod event;
pub(crate) mod page;
pub(crate) mod session;
pub(crate) mod status;
pub(crate) mod stream_status;
