//! The section `[log]`: the log on standard error.

use serde::{Deserialize, Serialize};

use super::{bounds::words, section::section};

section! {
    /// The section `[log]`: the log on standard error.
    pub(crate) struct Log {
        /// The log level: error, warn, info, debug, trace or off; also per module:
        /// info,chancery_xds=debug. `chancery log level` changes it while the replica runs.
        level: String = "info".into();
        /// The log format: text or json, with one object per line. The log goes to standard error.
        /// Text has colors on a terminal, unless NO_COLOR is set.
        format: LogFormat = LogFormat::Text, words(&["text", "json"]);
    }
}

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    Text,
    Json,
}
