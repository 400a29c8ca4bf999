//! The state of the replica: its freshness, its contact to the cluster, and the arrival of its revisions.

pub(crate) mod arrivals;
pub(crate) mod contact;
pub(crate) mod freshness;
