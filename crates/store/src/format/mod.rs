//! Formats: the bytes on disk and between replicas, and their conversion from and to the model.
//!
//! This layer does no I/O. Its messages are in `/proto/chancery/raft/v1`.

pub(crate) mod access_codec;
pub(crate) mod assignment_codec;
pub(crate) mod codec;
pub(crate) mod content;
pub(crate) mod frames;
pub(crate) mod freeze_codec;
pub(crate) mod history;
pub(crate) mod history_chain;
pub(crate) mod identity;
pub(crate) mod keys;
pub(crate) mod keys_codec;
pub(crate) mod packed;
pub(crate) mod prepared;
pub(crate) mod quota_codec;
pub(crate) mod raft;
pub(crate) mod raft_codec;
pub(crate) mod record;
pub(crate) mod request_id;
pub(crate) mod rules_codec;
