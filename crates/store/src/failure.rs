//! Why a replica has stopped writing.

use std::sync::{Arc, OnceLock};

/// Set once, by whatever fails first; what fails after it is a consequence. Reads and serving go on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Failure(Arc<OnceLock<String>>);

impl Failure {
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
