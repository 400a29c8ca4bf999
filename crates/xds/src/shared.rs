//! The state that all connections share.

use chancery_auth::Authenticator;
use chancery_fanout::{AccessControl, Fanout};
use metrics::Counter;

use crate::{Config, framing::Bounds, methods::Methods, rest::polls::Polls};

/// The state that all connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) fanout: Fanout,
    pub(crate) methods: Methods,
    pub(crate) request_bytes: Counter,
    /// The bounds for the requests of every stream.
    pub(crate) bounds: Bounds,
    /// The bounds for load reports, with memory of their own: reports that wait delay no request.
    pub(crate) report_bounds: Bounds,
    pub(crate) polls: Polls,
}

impl Shared {
    /// Returns what authenticates clients; `None` if access rules do not apply.
    pub(crate) fn auth(&self) -> Option<&Authenticator> {
        match self.fanout.access_control() {
            AccessControl::Off => None,
            AccessControl::Enforced => self.config.auth.as_ref(),
        }
    }
}
