//! The keys of a replica, and what it does with them.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use aws_lc_rs::rand;
use bytes::Bytes;
use chancery_model::{
    DataKey, DataKeyId, KeyOp, KeyTarget, Keys, Resource, ResourceKey, ScopeName, Sealed,
    SealingId, TypeUrl, Upsert,
};
use parking_lot::{Mutex, RwLock};

use crate::{
    cipher::{self, Path},
    error::KekError,
    kek::{KekSource, Keks},
    key::{Key, SealError},
    metrics,
    ring::{Ring, wrap_path, wrapped_keys},
};

/// Returns whether a body of this type has secrets.
pub type Finder = fn(&TypeUrl, &[u8]) -> bool;

/// The keys of a replica. Cheap to clone.
#[derive(Clone)]
pub struct Secrets(Arc<Inner>);

struct Inner {
    finder: Finder,
    keks: Keks,
    require: bool,
    ring: RwLock<Ring>,
    /// Rises when the ring has more keys.
    generation: AtomicU64,
    /// The text of the last failure, so that the log has each one once.
    failure: Mutex<Option<String>>,
}

/// The reason why a body cannot be sealed.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The replica has no source of keys, but the cluster seals secrets, or the configuration requires it.
    #[error(
        "cannot store a resource with secrets: this replica has no key to seal it; set secrets.key_file, \
         secrets.credential or secrets.kms_socket, or write through another replica"
    )]
    NoSource,
    /// The replica cannot unwrap the keys of the cluster.
    #[error(
        "cannot store a resource with secrets: this replica cannot unwrap the keys of the cluster ({0}); repair its \
         key, or write through another replica"
    )]
    Locked(String),
    /// The replica cannot unwrap the keys of the cluster, so it must not add one.
    #[error(
        "cannot add a data key: this replica cannot unwrap the keys of the cluster ({0}), and the other replicas could \
         not unwrap the new one; repair its key, or use another replica"
    )]
    Stranger(String),
    /// The key-encryption key failed.
    #[error(transparent)]
    Kek(#[from] KekError),
    /// The encryption failed.
    #[error("cannot seal a resource: {0}")]
    Seal(#[from] SealError),
}

/// The state of a wrapped key on this replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyStatus {
    /// The number of the data key; `None` for the key of digests.
    pub id: Option<DataKeyId>,
    /// The name of the key-encryption key.
    pub kek: String,
    /// Whether this replica has unwrapped the key.
    pub is_unwrapped: bool,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").field("keks", &self.0.keks).finish_non_exhaustive()
    }
}

/// Compares by identity: two replicas never share keys in memory. All that seal nothing are equal.
impl PartialEq for Secrets {
    fn eq(&self, other: &Self) -> bool {
        let seals = |one: &Self| one.has_source() || one.0.require;
        Arc::ptr_eq(&self.0, &other.0) || !seals(self) && !seals(other)
    }
}
impl Eq for Secrets {}

impl Default for Secrets {
    /// Returns the keys of a replica that seals nothing.
    fn default() -> Self {
        Self::new(Vec::new(), false, |_, _| false)
    }
}

impl Secrets {
    /// Creates the keys of a replica. The first source wraps new keys, and all unwrap. Without a source, the replica
    /// seals nothing; with `require`, it then refuses resources with secrets.
    #[must_use]
    pub fn new(sources: Vec<KekSource>, require: bool, finder: Finder) -> Self {
        let keks = Keks::new(sources);
        // The first refresh reports a file that cannot be used.
        drop(keks.reload());
        Self(Arc::new(Inner {
            finder,
            keks,
            require,
            ring: RwLock::default(),
            generation: AtomicU64::new(0),
            failure: Mutex::default(),
        }))
    }

    /// Reads the key files, and reports the first one that cannot be used.
    ///
    /// # Errors
    /// See [`crate::KeyFileError`].
    pub fn check_files(&self) -> Result<(), crate::KeyFileError> {
        self.0.keks.reload()
    }

    /// Returns whether the replica has a source of keys.
    #[must_use]
    pub fn has_source(&self) -> bool {
        !self.0.keks.is_empty()
    }

    /// Returns whether bodies with secrets have to be sealed on a cluster with these keys.
    #[must_use]
    pub fn may_seal(&self, keys: &Keys) -> bool {
        self.has_source() || self.0.require || keys.exist()
    }

    /// Seals the bodies that have secrets and are not sealed yet. The drafts keep their plain bodies in memory.
    ///
    /// # Errors
    /// Fails at the first body that cannot be sealed.
    pub fn seal_all(&self, keys: &Keys, upserts: &mut [Upsert]) -> Result<(), KeysError> {
        if !self.may_seal(keys) {
            return Ok(());
        }
        for Upsert { scope, draft } in upserts {
            if draft.sealed.is_none() && (self.0.finder)(&draft.key.type_url, &draft.body) {
                draft.sealed = Some(self.seal(keys, scope, &draft.key, &draft.body)?);
            }
        }
        Ok(())
    }

    /// Returns a number that rises when more keys are unwrapped.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Acquire)
    }

    fn seal(
        &self,
        keys: &Keys,
        scope: &ScopeName,
        key: &ResourceKey,
        body: &[u8],
    ) -> Result<Sealed, KeysError> {
        let newest = keys.newest().map(|newest| newest.id);
        let ring = self.0.ring.read();
        let unwrapped = newest.and_then(|id| Some((id, ring.data(id)?, ring.mac()?)));
        let Some((id, data, mac)) = unwrapped else {
            return Err(if self.has_source() {
                KeysError::Locked(self.reason())
            } else {
                KeysError::NoSource
            });
        };
        let path = Path { sealing_id: keys.sealing_id, scope, key };
        Ok(Sealed {
            key: id,
            mac: cipher::mac(mac, &path, body),
            body_len: u32::try_from(body.len()).map_err(|_| SealError::Long)?,
            bytes: cipher::seal_body(data, id, &path, body)?,
        })
    }

    /// Returns why a write of these drafts would be refused.
    #[must_use]
    pub fn refusal(&self, keys: &Keys, upserts: &[Upsert]) -> Option<KeysError> {
        let can_seal = if keys.exist() {
            self.has_unwrapped(keys)
        } else {
            // The write creates the keys.
            self.has_source()
        };
        if can_seal || !self.may_seal(keys) {
            return None;
        }
        let is_secret =
            |Upsert { draft, .. }: &Upsert| (self.0.finder)(&draft.key.type_url, &draft.body);
        upserts.iter().any(is_secret).then(|| {
            if self.has_source() { KeysError::Locked(self.reason()) } else { KeysError::NoSource }
        })
    }

    /// Returns whether the replica has the keys for new secrets.
    fn has_unwrapped(&self, keys: &Keys) -> bool {
        let ring = self.0.ring.read();
        ring.mac().is_some() && keys.newest().is_some_and(|newest| ring.data(newest.id).is_some())
    }

    fn reason(&self) -> String {
        self.0.failure.lock().clone().unwrap_or_else(|| "not yet".to_owned())
    }

    /// Opens a sealed body; `None` if this replica lacks the key, or if the body is not the one that was sealed.
    #[must_use]
    pub fn open(
        &self,
        keys: &Keys,
        scope: &ScopeName,
        key: &ResourceKey,
        sealed: &Sealed,
    ) -> Option<Bytes> {
        let ring = self.0.ring.read();
        let (data, mac) = (ring.data(sealed.key)?, ring.mac()?);
        let path = Path { sealing_id: keys.sealing_id, scope, key };
        let body = cipher::open_body(data, sealed.key, &path, &sealed.bytes).ok()?;
        let is_same = cipher::is_same_mac(&cipher::mac(mac, &path, &body), &sealed.mac);
        (is_same && body.len() == sealed.body_len as usize).then_some(body)
    }

    /// Returns the form that a resource should have: sealed by the newest data key. `None` if it has it, has no
    /// secrets, or is not opened.
    ///
    /// # Errors
    /// Fails if the replica has no keys.
    pub fn reseal(
        &self,
        keys: &Keys,
        scope: &ScopeName,
        key: &ResourceKey,
        resource: &Resource,
    ) -> Result<Option<Sealed>, KeysError> {
        let Some(body) = resource.body() else { return Ok(None) };
        let newest = keys.newest().map(|newest| newest.id);
        let is_due = match resource.sealed() {
            Some(sealed) => Some(sealed.key) != newest,
            None => (self.0.finder)(&key.type_url, &body),
        };
        is_due.then(|| self.seal(keys, scope, key, &body)).transpose()
    }

    /// Unwraps the keys whose key-encryption keys are in memory. Does no I/O.
    pub fn refresh_now(&self, keys: &Keys) {
        let missing = self.0.ring.write().missing(keys);
        for one in missing {
            if let Some(key) = self.0.keks.unwrap_now(one.path, &one.wrapped) {
                self.add(&one, key);
            }
        }
    }

    /// Reads changed key files, and unwraps the keys that are missing. The log has each failure once.
    pub async fn refresh(&self, keys: &Keys) {
        metrics::on_keys(keys, now_ms());
        let mut failure = self.0.keks.reload().err().map(KekError::from);
        let missing = self.0.ring.write().missing(keys);
        for one in missing {
            match self.0.keks.unwrap(one.path, &one.wrapped).await {
                Ok(key) => self.add(&one, key),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        // The keys in memory work until the replica restarts.
        let lost = || wrapped_keys(keys).find(|(_, wrapped)| self.0.keks.lacks(&wrapped.kek));
        let failure =
            failure.or_else(|| lost().map(|(_, one)| KekError::Lost(one.kek.to_string())));
        let text = failure.map(|error| error.to_string());
        let before = std::mem::replace(&mut *self.0.failure.lock(), text.clone());
        match text {
            Some(error) if before.as_ref() != Some(&error) => {
                tracing::error!(%error, "keys of secrets are not available");
            }
            None if before.is_some() => tracing::info!("the keys of secrets are available again"),
            Some(_) | None => {}
        }
    }

    fn add(&self, missing: &crate::ring::Missing, key: Key) {
        self.0.ring.write().add(missing, key);
        self.0.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the operation that creates the keys of a cluster.
    ///
    /// # Errors
    /// Fails if the key-encryption key is not available.
    pub async fn create(&self) -> Result<KeyOp, KeysError> {
        let mut sealing_id = SealingId::default();
        rand::fill(&mut sealing_id.0).map_err(|_| SealError::Random)?;
        let (id, mac) = (DataKeyId(1), Key::random()?);
        let path = wrap_path(sealing_id, KeyTarget::Mac);
        let mac = self.0.keks.wrap(path, &mac).await?;
        Ok(KeyOp::Create { sealing_id, mac, data: self.new_data_key(sealing_id, id).await? })
    }

    /// Returns the operation that adds a data key.
    ///
    /// # Errors
    /// Fails if the key-encryption key, or the keys of the cluster, are not available.
    pub async fn rotate(&self, keys: &Keys) -> Result<KeyOp, KeysError> {
        if !self.has_unwrapped(keys) {
            return Err(KeysError::Stranger(self.reason()));
        }
        self.new_data_key(keys.sealing_id, DataKeyId(keys.next)).await.map(KeyOp::Add)
    }

    async fn new_data_key(
        &self,
        sealing_id: SealingId,
        id: DataKeyId,
    ) -> Result<DataKey, KeysError> {
        let key = Key::random()?;
        let path = wrap_path(sealing_id, KeyTarget::Data(id));
        let wrapped = self.0.keks.wrap(path, &key).await?;
        Ok(DataKey { id, wrapped, created_ms: now_ms() })
    }

    /// Returns the operations that wrap all keys with the current key-encryption key.
    ///
    /// # Errors
    /// Fails if a key is neither in memory nor can be unwrapped.
    pub async fn rewrap(&self, keys: &Keys) -> Result<Vec<KeyOp>, KeysError> {
        // A file that was just replaced counts.
        self.0.keks.reload().map_err(KekError::from)?;
        let current = self.0.keks.current().await?;
        let mut ops = Vec::new();
        for (target, from) in wrapped_keys(keys) {
            if *from.kek == *current {
                continue;
            }
            let path = wrap_path(keys.sealing_id, target);
            let unwrapped = self.0.ring.read().key(keys, target);
            let key = match unwrapped {
                Some(key) => key,
                None => self.0.keks.unwrap(path, from).await?,
            };
            let to = self.0.keks.wrap(path, &key).await?;
            ops.push(KeyOp::Rewrap { target, from: from.clone(), to });
        }
        Ok(ops)
    }

    /// Returns the state of each key on this replica, and the reason why some are not available.
    #[must_use]
    pub fn status(&self, keys: &Keys) -> (Vec<KeyStatus>, Option<String>) {
        let ring = self.0.ring.read();
        let status = wrapped_keys(keys).map(|(target, wrapped)| {
            let (id, is_unwrapped) = match target {
                KeyTarget::Mac => (None, ring.mac().is_some()),
                KeyTarget::Data(id) => (Some(id), ring.data(id).is_some()),
            };
            KeyStatus { id, kek: wrapped.kek.to_string(), is_unwrapped }
        });
        (status.collect(), self.0.failure.lock().clone())
    }
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
