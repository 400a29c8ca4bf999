//! The keys of the database, except those of the state's records (`disk::records`).

use chancery_raft_proto::v1 as pb;

use crate::format::{
    raft::LogId,
    raft_codec::log_id_to_proto,
    record::{self, Family},
};

/// The key of the vote, in [`Family::Meta`].
pub(crate) const VOTE_KEY: &[u8] = b"vote";
/// The key of the purge position, in [`Family::Meta`].
pub(crate) const PURGED_KEY: &[u8] = b"purged";
/// The key of the applied position and the description of the state, in [`Family::Meta`].
pub(crate) const APPLIED_KEY: &[u8] = b"applied";

/// Returns the key under which a record of the state is stored.
pub(crate) fn state_key(generation: u32, key: &[u8]) -> Vec<u8> {
    let mut stored = Vec::with_capacity(size_of::<u32>() + key.len());
    put_state_key(&mut stored, generation, key);
    stored
}

/// Writes such a key in place of the content of `stored`.
pub(crate) fn put_state_key(stored: &mut Vec<u8>, generation: u32, key: &[u8]) {
    stored.clear();
    stored.extend_from_slice(&generation.to_be_bytes());
    stored.extend_from_slice(key);
}

/// Returns key and record of the purge position.
pub(crate) fn purged_record(id: &LogId) -> (&'static [u8], Vec<u8>) {
    let message = pb::PurgedRecord { id: Some(log_id_to_proto(id)) };
    (PURGED_KEY, record::seal(Family::Meta, PURGED_KEY, &message))
}
