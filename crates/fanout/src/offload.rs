//! Large work: sessions that leave their shard, and the thread that works on them.

pub(crate) mod away;
pub(crate) mod large;
pub(crate) mod machine;
pub(crate) mod work;
