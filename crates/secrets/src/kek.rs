//! Key-encryption keys (KEKs): their sources, and which of them wraps.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use chancery_model::WrappedKey;
use parking_lot::Mutex;

use crate::{
    cipher::{self, WrapPath},
    error::KekError,
    file::{self, KeyFileError, Stamp},
    key::Key,
    kms::Plugin,
};

/// A source of key-encryption keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KekSource {
    /// A file with keys, which only its owner can read. A file of root may be readable by its group.
    File(PathBuf),
    /// The UNIX socket of a Kubernetes KMS plugin (KMSv2).
    Kms(PathBuf),
}

const FILE_PREFIX: &str = "file:";
const KMS_PREFIX: &str = "kms:";

/// The configured sources. The first one wraps, and all unwrap.
#[derive(Debug)]
pub(crate) struct Keks(Vec<Source>);

#[derive(Debug)]
enum Source {
    Keys { path: PathBuf, loaded: Mutex<Loaded> },
    Kms(Plugin),
}

/// The keys of a file. The last usable ones stay in use.
#[derive(Debug, Default)]
struct Loaded {
    stamp: Option<Stamp>,
    keys: Vec<(String, Key)>,
}

impl Keks {
    pub(crate) fn new(sources: Vec<KekSource>) -> Self {
        let source = |source| match source {
            KekSource::File(path) => Source::Keys { path, loaded: Mutex::default() },
            KekSource::Kms(path) => Source::Kms(Plugin(path)),
        };
        Self(sources.into_iter().map(source).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the files that have changed. A file that cannot be used keeps its previous keys.
    pub(crate) fn reload(&self) -> Result<(), KeyFileError> {
        let mut result = Ok(());
        for source in &self.0 {
            if let Source::Keys { path, loaded } = source
                && let Err(error) = loaded.lock().read_again(path)
            {
                result = Err(error);
            }
        }
        result
    }

    /// Returns the name of the key that wraps now.
    pub(crate) async fn current(&self) -> Result<String, KekError> {
        match self.0.first() {
            None => Err(KekError::None),
            Some(Source::Kms(plugin)) => Ok(format!("{KMS_PREFIX}{}", plugin.key_id().await?)),
            Some(Source::Keys { path, loaded }) => first_of(path, loaded).map(|(name, _)| name),
        }
    }

    pub(crate) async fn wrap(&self, path: WrapPath, key: &Key) -> Result<WrappedKey, KekError> {
        match self.0.first() {
            None => Err(KekError::None),
            Some(Source::Kms(plugin)) => {
                let (key_id, bytes) = plugin.wrap(path, key).await?;
                Ok(WrappedKey { kek: format!("{KMS_PREFIX}{key_id}").into(), bytes })
            }
            Some(Source::Keys { path: file, loaded }) => {
                let (name, kek) = first_of(file, loaded)?;
                let bytes: Bytes = cipher::wrap(&kek, path, key)?;
                Ok(WrappedKey { kek: name.into(), bytes })
            }
        }
    }

    /// Unwraps a key whose key-encryption key is in memory.
    pub(crate) fn unwrap_now(&self, path: WrapPath, wrapped: &WrappedKey) -> Option<Key> {
        let kek = self.loaded(&wrapped.kek)?;
        cipher::unwrap(&kek, path, &wrapped.bytes).ok()
    }

    pub(crate) async fn unwrap(
        &self,
        path: WrapPath,
        wrapped: &WrappedKey,
    ) -> Result<Key, KekError> {
        if let Some(kek) = self.loaded(&wrapped.kek) {
            return Ok(cipher::unwrap(&kek, path, &wrapped.bytes)?);
        }
        let is_kms = wrapped.kek.starts_with(KMS_PREFIX);
        let plugin = self.0.iter().find_map(|source| match source {
            Source::Kms(plugin) if is_kms => Some(plugin),
            Source::Kms(_) | Source::Keys { .. } => None,
        });
        match plugin {
            Some(plugin) => plugin.unwrap(path, &wrapped.bytes).await,
            None => Err(KekError::Unknown(wrapped.kek.to_string())),
        }
    }

    /// Returns whether no source has a key-encryption key. A plugin is not asked.
    pub(crate) fn lacks(&self, name: &str) -> bool {
        if name.starts_with(KMS_PREFIX) {
            !self.0.iter().any(|source| matches!(source, Source::Kms(_)))
        } else {
            self.loaded(name).is_none()
        }
    }

    fn loaded(&self, name: &str) -> Option<Key> {
        self.0.iter().find_map(|source| match source {
            Source::Keys { loaded, .. } => {
                let loaded = loaded.lock();
                loaded.keys.iter().find(|(known, _)| known == name).map(|(_, key)| key.clone())
            }
            Source::Kms(_) => None,
        })
    }
}

fn first_of(path: &Path, loaded: &Mutex<Loaded>) -> Result<(String, Key), KekError> {
    let mut loaded = loaded.lock();
    // Without keys, the reason counts. With keys, an unusable new file changes nothing.
    if loaded.keys.is_empty() {
        loaded.stamp = None;
        loaded.read_again(path)?;
    }
    let first = loaded.keys.first().cloned();
    first.ok_or_else(|| KeyFileError::Empty { path: path.to_owned() }.into())
}

impl Loaded {
    fn read_again(&mut self, path: &Path) -> Result<(), KeyFileError> {
        let stamp = Stamp::of(path);
        if stamp.is_some() && stamp == self.stamp {
            return Ok(());
        }
        let keys = file::read(path)?;
        self.stamp = stamp;
        self.keys = keys
            .into_iter()
            .map(|key| (format!("{FILE_PREFIX}{}", cipher::name_of(&key)), key))
            .collect();
        Ok(())
    }
}
