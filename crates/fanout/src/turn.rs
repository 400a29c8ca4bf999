//! A turn of a shard: its clock, its budget, and the count of turns.

pub(crate) mod budget;
pub(crate) mod clock;
pub(crate) mod cost;
pub(crate) mod turns;
