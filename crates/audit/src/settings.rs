//! The settings of the audit log.

use std::{path::PathBuf, str::FromStr, time::Duration};

use crate::rotation::Rotation;

/// The socket of the system's log.
const SYSLOG: &str = "/dev/log";

/// The destination of records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SinkSettings {
    /// A file, which is rotated by size: `file:PATH`.
    File(PathBuf),
    /// The standard output: `stdout`.
    Stdout,
    /// A UNIX datagram socket that takes messages of RFC 5424: `syslog` or `syslog:PATH`.
    Syslog(PathBuf),
}

/// A text is not a sink.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a sink; use file:PATH, stdout, syslog, or syslog:PATH")]
pub struct SinkSettingsError(String);

impl FromStr for SinkSettings {
    type Err = SinkSettingsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == "stdout" => Ok(Self::Stdout),
            None if text == "syslog" => Ok(Self::Syslog(SYSLOG.into())),
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.into())),
            Some(("syslog", path)) if !path.is_empty() => Ok(Self::Syslog(path.into())),
            _ => Err(SinkSettingsError(text.to_owned())),
        }
    }
}

impl SinkSettings {
    /// Returns the kind of the sink, which is its label in metrics.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::File(_) => "file",
            Self::Stdout => "stdout",
            Self::Syslog(_) => "syslog",
        }
    }
}

/// The treatment of a record that no sink takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The operation continues, and the record waits. Records that find the queue full are dropped.
    Async,
    /// The operation is refused if no sink takes its record within this time.
    Strict {
        /// The maximum time.
        timeout: Duration,
    },
}

/// The settings of the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The sinks, at most one of each kind. Without sinks, the audit log is off.
    pub sinks: Vec<SinkSettings>,
    /// The treatment of a record that no sink takes.
    pub mode: Mode,
    /// The policy file. Without one, the metadata of all events are recorded.
    pub policy_file: Option<PathBuf>,
    /// The maximum number of records that wait for a sink.
    pub queue_max: usize,
    /// The rotation of a file.
    pub rotation: Rotation,
    /// The maximum time until a written record is on disk. If it is zero, a file has taken a record only when
    /// the record is on disk.
    pub sync_interval: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            sinks: Vec::new(),
            mode: Mode::Async,
            policy_file: None,
            queue_max: 4096,
            rotation: Rotation::default(),
            sync_interval: Duration::from_secs(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_sink_is_read() {
        let sink = |text: &str| text.parse::<SinkSettings>();
        assert_eq!(sink("file:/a:b"), Ok(SinkSettings::File("/a:b".into())));
        assert_eq!(sink("stdout"), Ok(SinkSettings::Stdout));
        assert_eq!(sink("syslog"), Ok(SinkSettings::Syslog("/dev/log".into())));
        assert_eq!(sink("syslog:/run/log"), Ok(SinkSettings::Syslog("/run/log".into())));
        for text in ["", "file", "file:", "syslog:", "stdout:", "otlp:x"] {
            assert_eq!(sink(text), Err(SinkSettingsError(text.to_owned())));
        }
    }
}
