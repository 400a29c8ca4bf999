//! The reason why a replica has stopped writing.

use std::{
    io,
    sync::{Arc, OnceLock},
};

/// The first failure. Later failures are its consequences, and are not recorded. Reads and streams
/// continue.
#[derive(Debug, Clone, Default)]
pub(crate) struct Failure(Arc<OnceLock<Recorded>>);

#[derive(Debug)]
struct Recorded {
    reason: String,
    /// Whether the operating system reported an error that may pass.
    is_of_disk: bool,
}

/// Returns the remedy for an error, if one is known, as the end of an error text.
pub(crate) fn way_back(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => {
            "; free space on the disk of the data directory, and start the replica again if it has \
             stopped: no acknowledged write is lost"
        }
        _ => "",
    }
}

impl Failure {
    /// Records an error of the operating system, with its remedy. After an error that may pass, the replica starts
    /// again by itself when the disk works.
    pub(crate) fn set_io(&self, what: &str, error: &io::Error) {
        // These errors are damage, which does not pass.
        let is_of_disk =
            !matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::NotFound);
        self.record(format!("{what}: {error}{}", way_back(error)), is_of_disk);
    }

    /// Records a failure that lasts, and logs it.
    pub(crate) fn set(&self, reason: impl ToString) {
        self.record(reason.to_string(), false);
    }

    fn record(&self, reason: String, is_of_disk: bool) {
        if self.0.set(Recorded { reason: reason.clone(), is_of_disk }).is_ok() {
            tracing::error!(%reason, "the replica has failed and accepts no more writes");
        }
    }

    /// Returns the reason, if there is one.
    pub(crate) fn get(&self) -> Option<&str> {
        self.0.get().map(|recorded| recorded.reason.as_str())
    }

    /// Returns whether the operating system reported an error of the disk that may pass.
    pub(crate) fn is_of_disk(&self) -> bool {
        self.0.get().is_some_and(|recorded| recorded.is_of_disk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_the_operating_system_may_pass() {
        let of = |kind: io::ErrorKind| {
            let failure = Failure::default();
            failure.set_io("the log cannot be synced", &io::Error::from(kind));
            failure.set("a consequence");
            failure.is_of_disk()
        };
        assert!(of(io::ErrorKind::Other) && of(io::ErrorKind::StorageFull));
        assert!(!of(io::ErrorKind::InvalidData) && !of(io::ErrorKind::NotFound));
        let failure = Failure::default();
        assert!(!failure.is_of_disk());
        failure.set("it was removed from its cluster");
        assert!(!failure.is_of_disk());
    }
}
