//! Why a replica has stopped writing.

use std::{
    io,
    sync::{Arc, OnceLock},
};

/// Set once, by whatever fails first; what fails after it is a consequence. Reads and serving go on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Failure(Arc<OnceLock<String>>);

/// What to do about an error, if that is known: the rest of the sentence.
pub(crate) fn way_back(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => {
            "; free space on the disk of the data directory, then start it again: nothing that was \
             acknowledged is lost"
        }
        _ => "",
    }
}

impl Failure {
    /// Records that the operating system refused, and what to do then.
    pub(crate) fn set_io(&self, what: &str, error: &io::Error) {
        self.set(format!("{what}: {error}{}", way_back(error)));
    }

    /// Records a failure, and logs it.
    pub(crate) fn set(&self, reason: impl ToString) {
        let reason = reason.to_string();
        if self.0.set(reason.clone()).is_ok() {
            tracing::error!(%reason, "the replica has failed and takes no more writes");
        }
    }

    /// The reason, if there is one.
    pub(crate) fn get(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}
