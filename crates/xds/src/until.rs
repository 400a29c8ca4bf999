//! The time after which a stream ends: the client's timeout, or the end of its credential.

use std::time::Duration;

use chancery_fanout::{End, EndCode};

/// The time after which a stream ends, and its end.
#[derive(Debug)]
pub(crate) struct Until {
    pub(crate) after: Duration,
    pub(crate) end: End,
}

impl Until {
    /// Returns the earlier of the client's timeout and the end of its credential.
    pub(crate) fn first(timeout: Option<Duration>, credential: Option<Duration>) -> Option<Self> {
        let timeout = timeout.map(|after| {
            let text = format!("the grpc-timeout of {} s has expired", after.as_secs_f64());
            Self { after, end: End::new(EndCode::DeadlineExceeded, text) }
        });
        let credential = credential.map(|after| {
            let text = "the credential of the client is about to expire; reconnect with a new one";
            Self { after, end: End::new(EndCode::AccessChanged, text) }
        });
        timeout.into_iter().chain(credential).min_by_key(|until| until.after)
    }
}
