//! The state of the replica: its freshness, its contact to the cluster, the arrival of its revisions, its recent
//! states, and its critical tasks.

pub(crate) mod arrivals;
pub(crate) mod contact;
pub(crate) mod critical;
pub(crate) mod freshness;
pub(crate) mod recent_states;
