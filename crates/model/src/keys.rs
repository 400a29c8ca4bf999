//! The keys of sealed resources. The state has them in wrapped form: encrypted by a key outside of the state.

use std::{fmt, sync::Arc};

use bytes::Bytes;

/// The maximum number of data keys.
pub const DATA_KEYS_MAX: usize = 64;

/// The ID of the keys of a cluster: random bytes that are part of everything that is sealed. A backup keeps it, so that
/// a restored cluster, which has another cluster ID, can open its resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SealingId(pub [u8; 16]);

/// The number of a data key. Numbers rise, and are never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataKeyId(pub u32);

impl fmt::Display for DataKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A key that a key-encryption key encrypts.
#[derive(Clone, PartialEq, Eq)]
pub struct WrappedKey {
    /// The name of the key-encryption key, such as `file:5f2a…`. It is not secret.
    pub kek: Arc<str>,
    /// The encrypted key.
    pub bytes: Bytes,
}

impl fmt::Debug for WrappedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WrappedKey").field("kek", &self.kek).finish_non_exhaustive()
    }
}

/// A key that encrypts bodies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataKey {
    /// The number.
    pub id: DataKeyId,
    /// The key.
    pub wrapped: WrappedKey,
    /// The time of its creation, in milliseconds since 1970.
    pub created_ms: u64,
}

/// The keys of sealed resources.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Keys {
    /// The ID of the keys.
    pub sealing_id: SealingId,
    /// The key of the digests; `None` until the first resource is sealed.
    pub mac: Option<WrappedKey>,
    /// The data keys in ascending order. The last one encrypts new bodies.
    pub data: Vec<DataKey>,
    /// The smallest number that no data key has had.
    pub next: u32,
}

/// The key that an operation replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyTarget {
    /// The key of the digests.
    Mac,
    /// A data key.
    Data(DataKeyId),
}

/// A change of the keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyOp {
    /// Creates the keys of the cluster. Does nothing if they exist.
    Create {
        /// The ID of the keys.
        sealing_id: SealingId,
        /// The key of the digests.
        mac: WrappedKey,
        /// The first data key.
        data: DataKey,
    },
    /// Adds a data key for new bodies.
    Add(DataKey),
    /// Replaces the wrapped form of a key. Does nothing if it is not `from`.
    Rewrap {
        /// The key.
        target: KeyTarget,
        /// The wrapped form that it has.
        from: WrappedKey,
        /// The new wrapped form.
        to: WrappedKey,
    },
    /// Deletes a data key that encrypts no resource.
    Retire(DataKeyId),
}

/// The reason why the keys do not permit a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeysRefusal {
    /// A data key does not exist, or has been retired.
    Unknown(DataKeyId),
    /// The number of a new data key is not the next one: another operator has added a key.
    NotNext(DataKeyId),
    /// The data key encrypts new bodies.
    Newest(DataKeyId),
    /// The data key encrypts resources.
    InUse {
        /// The data key.
        key: DataKeyId,
        /// The number of resources.
        resources: u64,
    },
    /// There would be too many data keys.
    TooMany,
}

impl fmt::Display for KeysRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(key) => {
                write!(f, "data key {key} does not exist, or was retired meanwhile; try again")
            }
            Self::NotNext(key) => {
                write!(
                    f,
                    "data key {key} cannot be added: another key was added meanwhile; try again"
                )
            }
            Self::Newest(key) => write!(
                f,
                "data key {key} cannot be retired: it seals new resources; run `chancery keys rotate` first"
            ),
            Self::InUse { key, resources } => write!(
                f,
                "data key {key} cannot be retired: it still seals {resources} resources; run `chancery keys \
                 reseal` first"
            ),
            Self::TooMany => write!(
                f,
                "there would be more than {DATA_KEYS_MAX} data keys; retire unused ones with `chancery keys retire`"
            ),
        }
    }
}

impl Keys {
    /// Returns whether the keys exist.
    #[must_use]
    pub fn exist(&self) -> bool {
        self.mac.is_some()
    }

    /// Returns the data key for new bodies.
    #[must_use]
    pub fn newest(&self) -> Option<&DataKey> {
        self.data.last()
    }

    /// Returns a data key.
    #[must_use]
    pub fn data_key(&self, id: DataKeyId) -> Option<&DataKey> {
        self.data.iter().find(|key| key.id == id)
    }

    /// Returns the keys after the operations; `None` if nothing changed.
    pub(crate) fn with(&self, ops: &[KeyOp]) -> Option<Self> {
        if ops.is_empty() {
            return None;
        }
        let mut after = self.clone();
        let n_changed = ops.iter().filter(|op| after.change(op)).count();
        (n_changed > 0).then_some(after)
    }

    /// Applies an operation. Returns whether it changed anything.
    fn change(&mut self, op: &KeyOp) -> bool {
        match op {
            KeyOp::Create { sealing_id, mac, data } => {
                if self.exist() {
                    return false;
                }
                let next = data.id.0.saturating_add(1);
                let (mac, data) = (Some(mac.clone()), vec![data.clone()]);
                *self = Self { sealing_id: *sealing_id, mac, data, next };
            }
            KeyOp::Add(key) => {
                self.next = key.id.0.saturating_add(1);
                self.data.push(key.clone());
            }
            KeyOp::Rewrap { target, from, to } => {
                let wrapped = match target {
                    KeyTarget::Mac => self.mac.as_mut(),
                    KeyTarget::Data(id) => {
                        let key = self.data.iter_mut().find(|key| key.id == *id);
                        key.map(|key| &mut key.wrapped)
                    }
                };
                match wrapped.filter(|wrapped| *wrapped == from && from != to) {
                    Some(wrapped) => *wrapped = to.clone(),
                    None => return false,
                }
            }
            KeyOp::Retire(id) => self.data.retain(|key| key.id != *id),
        }
        true
    }
}
