//! The content tag: a short hash that is equal on all replicas and in all releases.

use xxhash_rust::xxh3::Xxh3;

/// Hashes a list of fields in order. A length prefix before each field makes the hashed input
/// unambiguous: two different lists never produce the same input.
#[derive(Default)]
pub(crate) struct Tag(Xxh3);

impl Tag {
    pub(crate) fn field(mut self, bytes: &[u8]) -> Self {
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
        self
    }

    /// Returns the upper half of the 64-bit hash.
    pub(crate) fn finish(self) -> u32 {
        (self.digest() >> 32) as u32
    }

    /// Returns the 64-bit hash.
    pub(crate) fn digest(&self) -> u64 {
        self.0.digest()
    }
}
