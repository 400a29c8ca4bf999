//! The state that all connections share.

use chancery_fanout::Fanout;
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
