//! Sealed resources: bodies that are stored and replicated in encrypted form only.
//!
//! The state never opens a sealed body. What it has to know about the body comes with the sealed form: a keyed digest
//! to compare bodies and to derive versions, and the length. Replicas with and without the keys therefore apply a
//! transaction to the same result.

use std::fmt;

use bytes::Bytes;

use crate::DataKeyId;

/// The sealed form of a body.
#[derive(Clone, PartialEq, Eq)]
pub struct Sealed {
    /// The data key that encrypts the body.
    pub key: DataKeyId,
    /// HMAC-SHA256 of the body, with its scope, type and name, under a key of the cluster. Equal bodies of one
    /// resource have equal values.
    pub mac: [u8; 32],
    /// The length of the body in bytes.
    pub body_len: u32,
    /// The encrypted body.
    pub bytes: Bytes,
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealed").field("key", &self.key).finish_non_exhaustive()
    }
}
