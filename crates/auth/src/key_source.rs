//! The current key set of an issuer, from a file or an address.
//!
//! A set that cannot be read never replaces a usable one. At most one request runs at a time, and at most one starts
//! within [`RETRY_INTERVAL`], whatever tokens arrive.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use chancery_tls::{ClientTls, ClientTlsFiles};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    fetch::{FetchError, fetch},
    key_set::{KeySet, SET_BYTES_MAX},
    metrics::{Fetched, KeyMetrics},
    settings::{IssuerSettings, KeyLocation, KeyUrl, SettingsError},
};

/// The interval at which a key set is requested.
const REFRESH_INTERVAL: Duration = Duration::from_secs(300);
/// The minimum time between two requests.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// The key set of one issuer.
#[derive(Debug)]
pub(crate) struct KeySource {
    issuer: String,
    origin: Origin,
    metrics: KeyMetrics,
    state: Mutex<State>,
    /// Held during a request.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
enum Origin {
    File(PathBuf),
    Url(KeyUrl, Option<ClientTls>),
}

#[derive(Debug, Default)]
struct State {
    keys: Arc<KeySet>,
    /// The number of key sets that were different from the previous one. 0 until the first one is read.
    generation: u64,
    /// The time at which the keys were last known to be current.
    current_at: Option<Instant>,
    /// The time of the last attempt to read them.
    tried_at: Option<Instant>,
    /// Inode, modification time and length of the file at the last attempt.
    stamp: Option<Stamp>,
}

type Stamp = (u64, i64, i64, u64);

impl KeySource {
    /// Opens the key set of an issuer. A file is read at once; an address is requested later, because its server may
    /// be unavailable.
    pub(crate) fn open(settings: &IssuerSettings) -> Result<Self, SettingsError> {
        let issuer = settings.name.clone();
        let origin = match &settings.keys {
            KeyLocation::File(path) => Origin::File(path.clone()),
            KeyLocation::Url { url, .. } if !url.is_tls => Origin::Url(url.clone(), None),
            KeyLocation::Url { url, ca } => {
                let files = ClientTlsFiles { ca: ca.clone(), cert_and_key: None };
                let tls = ClientTls::for_http1(&files)
                    .map_err(|error| SettingsError::Tls { issuer: issuer.clone(), error })?;
                Origin::Url(url.clone(), Some(tls))
            }
        };
        let metrics = KeyMetrics::new(&issuer);
        let source =
            Self { issuer, origin, metrics, state: Mutex::default(), turn: Default::default() };
        if let Origin::File(path) = &source.origin {
            source.read(path).map_err(|reason| SettingsError::KeyFile {
                issuer: source.issuer.clone(),
                path: path.clone(),
                reason,
            })?;
        }
        source.update_gauge();
        Ok(source)
    }

    /// Returns the keys and the generation of the set; `None` until a set is read.
    pub(crate) fn keys(&self) -> Option<(Arc<KeySet>, u64)> {
        let state = self.state.lock();
        (state.generation > 0).then(|| (Arc::clone(&state.keys), state.generation))
    }

    /// Returns the generation of the current set.
    pub(crate) fn generation(&self) -> u64 {
        self.state.lock().generation
    }

    /// Requests the set because a token names a key that is not in it. Waits for a running request. Does nothing if
    /// the last request was less than [`RETRY_INTERVAL`] ago.
    pub(crate) async fn refresh_for_unknown_key(self: &Arc<Self>) {
        if self.is_due(RETRY_INTERVAL) {
            let source = Arc::clone(self);
            // The request goes on if the caller goes away, because others wait for it.
            drop(tokio::spawn(async move { source.request(RETRY_INTERVAL).await }).await);
        } else {
            drop(self.turn.lock().await);
        }
    }

    /// Reads the set again if it is due: a file that has changed, or an address at intervals.
    pub(crate) async fn keep_fresh(self: &Arc<Self>) {
        match &self.origin {
            Origin::File(path) => {
                let (source, path) = (Arc::clone(self), path.clone());
                // The file may be on a disk that does not answer.
                let read = move || source.read_changed(&path);
                drop(tokio::task::spawn_blocking(read).await);
            }
            Origin::Url(..) => {
                let is_current = {
                    let state = self.state.lock();
                    state.current_at.is_some() && state.current_at == state.tried_at
                };
                self.request(if is_current { REFRESH_INTERVAL } else { RETRY_INTERVAL }).await;
            }
        }
        self.update_gauge();
    }

    fn update_gauge(&self) {
        let current_at = self.state.lock().current_at;
        self.metrics.age.set(current_at.map_or(f64::INFINITY, |at| at.elapsed().as_secs_f64()));
    }

    fn is_due(&self, interval: Duration) -> bool {
        matches!(self.origin, Origin::Url(..))
            && self.state.lock().tried_at.is_none_or(|at| at.elapsed() >= interval)
    }

    async fn request(&self, interval: Duration) {
        let _turn = self.turn.lock().await;
        let Origin::Url(url, tls) = &self.origin else { return };
        // Another caller may have made the request in the meantime.
        if !self.is_due(interval) {
            return;
        }
        let start = Instant::now();
        self.state.lock().tried_at = Some(start);
        let invalid = |reason| FetchError { kind: Fetched::Invalid, reason };
        let fetched = fetch(url, tls.as_ref()).await;
        match fetched.and_then(|bytes| KeySet::parse(&bytes).map_err(invalid)) {
            Ok(keys) => self.accept(keys, start),
            Err(FetchError { kind, reason }) => {
                self.metrics.on_fetch(kind);
                let issuer = &self.issuer;
                tracing::error!(issuer, %url, reason, "cannot read the keys of an issuer; the previous keys stay in use");
            }
        }
    }

    fn accept(&self, keys: KeySet, at: Instant) {
        self.metrics.on_fetch(Fetched::Ok);
        let mut state = self.state.lock();
        (state.current_at, state.tried_at) = (Some(at), Some(at));
        if state.generation == 0 || *state.keys != keys {
            state.keys = Arc::new(keys);
            state.generation += 1;
        }
    }

    /// Reads the file again if it has changed.
    fn read_changed(&self, path: &Path) {
        let is_usable = {
            let mut state = self.state.lock();
            let is_unchanged = stamp(path).is_some_and(|stamp| state.stamp == Some(stamp));
            if is_unchanged && state.current_at == state.tried_at {
                let now = Some(Instant::now());
                (state.current_at, state.tried_at) = (now, now);
                return;
            }
            state.current_at == state.tried_at
        };
        // An unusable file is reported once.
        if let Err(reason) = self.read(path)
            && is_usable
        {
            let (issuer, path) = (&self.issuer, path.display());
            tracing::error!(issuer, %path, reason, "cannot read the keys of an issuer; the previous keys stay in use");
        }
    }

    fn read(&self, path: &Path) -> Result<(), String> {
        let now = Instant::now();
        // The stamp comes first, so that a change during the reading is noticed later.
        let new = stamp(path);
        let mut state = self.state.lock();
        (state.stamp, state.tried_at) = (new, Some(now));
        drop(state);
        match read_set(path) {
            Ok(keys) => {
                self.accept(keys, now);
                Ok(())
            }
            Err(reason) => {
                self.metrics.on_fetch(Fetched::Invalid);
                Err(reason)
            }
        }
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.ino(), metadata.mtime(), metadata.mtime_nsec(), metadata.len()))
}

fn read_set(path: &Path) -> Result<KeySet, String> {
    let metadata = fs::metadata(path).map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    if metadata.len() > SET_BYTES_MAX as u64 {
        return Err(format!("it has more than {SET_BYTES_MAX} bytes"));
    }
    KeySet::parse(&fs::read(path).map_err(|error| error.to_string())?)
}

#[cfg(test)]
mod tests;
