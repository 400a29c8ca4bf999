//! The sessions of a shard: their state, and the index, queue and timers that refer to them.

pub(crate) mod convergence;
pub(crate) mod entry;
pub(crate) mod index;
pub(crate) mod marking;
pub(crate) mod queue;
pub(crate) mod serve;
pub(crate) mod timers;
pub(crate) mod unanswered;
