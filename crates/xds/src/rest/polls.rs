//! The state that all polls share.

use std::sync::Arc;

use chancery_net::Bucket;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{json::JsonResponses, repeats::Repeats};
use crate::Config;

/// The maximum number of lines per second about resources without a JSON form and about rejections.
const LINES_PER_SECOND: u32 = 10;

/// The state that all polls share.
#[derive(Debug)]
pub(crate) struct Polls {
    pub(crate) responses: Arc<JsonResponses>,
    pub(crate) repeats: Repeats,
    /// Limits the lines in the log.
    failures: Mutex<Bucket>,
}

impl Polls {
    pub(crate) fn new(config: &Config, control_plane: &str) -> Self {
        let (json, bytes_max) = (config.json.clone(), config.poll_bytes_max);
        Self {
            responses: JsonResponses::new(json, control_plane, bytes_max),
            repeats: Repeats::default(),
            failures: Mutex::new(Bucket::new(LINES_PER_SECOND, LINES_PER_SECOND)),
        }
    }

    /// Returns whether a line about a failure may be written now.
    pub(crate) fn may_log(&self) -> bool {
        self.failures.lock().take(Instant::now(), 1)
    }
}
