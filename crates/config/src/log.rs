//! The section `[log]`: the log on standard error.

use super::{
    bounds::words,
    section::{one_of, section},
};

section! {
    /// The section `[log]`: the log on standard error.
    pub struct Log {
        /// The log level: error, warn, info, debug, trace or off; also per module:
        /// info,chancery_xds=debug. `chancery log level` changes it while the replica runs.
        level: String = "info".into();
        /// The log format: text or json, with one object per line. The log goes to standard error.
        /// Text has colors on a terminal, unless NO_COLOR is set.
        format: LogFormat = LogFormat::Text, words(LogFormat::WORDS);
    }
}

one_of! {
    /// The format of a log line.
    pub enum LogFormat {
        Text = "text",
        Json = "json",
    }
}
