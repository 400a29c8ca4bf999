//! A symmetric key of 256 bits.

use std::fmt;

use aws_lc_rs::rand;
use zeroize::Zeroizing;

/// The length of a key in bytes.
pub(crate) const KEY_BYTES: usize = 32;

/// The reason why bytes cannot be sealed or opened. The texts say nothing about the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The system has no random numbers.
    #[error("the system has no random numbers")]
    Random,
    /// The body is too long.
    #[error("a sealed resource is limited to 4 GiB")]
    Long,
    /// The bytes do not have the format of this release.
    #[error("it is not in the sealed format of this release")]
    Format,
    /// The key, the path or the bytes are not those that were sealed.
    #[error(
        "it does not open with its key: it was changed, or belongs to another resource or cluster"
    )]
    Authentic,
}

/// A key. It is overwritten when it is dropped, and never shown.
#[derive(Clone)]
pub(crate) struct Key(Zeroizing<[u8; KEY_BYTES]>);

impl Key {
    /// Creates a random key.
    pub(crate) fn random() -> Result<Self, SealError> {
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        rand::fill(&mut bytes[..]).map_err(|_| SealError::Random)?;
        Ok(Self(bytes))
    }

    /// Creates a key from its bytes; `None` if their number is another one.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: [u8; KEY_BYTES] = bytes.try_into().ok()?;
        Some(Self(Zeroizing::new(bytes)))
    }

    pub(crate) fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}
