//! The latest list of the clients that are connected.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use chancery_admission::ConnectedClients;

/// With more streams than `INLINE_STREAMS_MAX`, the clients are listed again after this time.
const CLIENTS_AGE_MAX: Duration = Duration::from_secs(10);

/// The clients of each scope in the latest list.
#[derive(Clone, Default)]
pub(crate) struct KnownClients(Arc<Mutex<Option<Listed>>>);

/// The time of a list, and its clients.
type Listed = (Instant, Arc<ConnectedClients>);

impl KnownClients {
    /// Returns the clients of the latest list, unless it is too old.
    pub(crate) fn recent(&self) -> Option<Arc<ConnectedClients>> {
        let known = self.0.lock().ok()?;
        let (time, clients) = known.as_ref()?;
        (time.elapsed() <= CLIENTS_AGE_MAX).then(|| Arc::clone(clients))
    }

    pub(crate) fn put(&self, clients: &Arc<ConnectedClients>) {
        if let Ok(mut known) = self.0.lock() {
            *known = Some((Instant::now(), Arc::clone(clients)));
        }
    }
}
