//! The messages of a case, for the report of a failure.

use std::sync::{Arc, Mutex, PoisonError};

/// The maximum number of lines of a case's log.
const LOG_LINES_MAX: usize = 200;

/// The messages of a case, for the report of a failure.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn add(&self, line: String) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() < LOG_LINES_MAX {
            lines.push(line);
        }
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
