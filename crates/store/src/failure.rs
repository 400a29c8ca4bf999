//! The reason why a replica has stopped writing.

use std::{
    io,
    sync::{Arc, OnceLock},
};

/// The first failure. Later failures are its consequences, and are not recorded. Reads and streams
/// continue.
#[derive(Debug, Clone, Default)]
pub(crate) struct Failure(Arc<OnceLock<String>>);

/// Returns the remedy for an error, if one is known, as the end of an error text.
pub(crate) fn way_back(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => {
            "; free space on the disk of the data directory, then start the replica again: no \
             acknowledged write is lost"
        }
        _ => "",
    }
}

impl Failure {
    /// Records an error of the operating system, with its remedy.
    pub(crate) fn set_io(&self, what: &str, error: &io::Error) {
        self.set(format!("{what}: {error}{}", way_back(error)));
    }

    /// Records a failure and logs it.
    pub(crate) fn set(&self, reason: impl ToString) {
        let reason = reason.to_string();
        if self.0.set(reason.clone()).is_ok() {
            tracing::error!(%reason, "the replica has failed and accepts no more writes");
        }
    }

    /// Returns the reason, if there is one.
    pub(crate) fn get(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}
