//! The section `[audit]`: the audit log.

use std::{collections::BTreeSet, path::PathBuf};

use chancery_audit::{
    Mode, PolicyError, Rotation, Settings, SinkSettings, SinkSettingsError, check_policy_file,
};

use super::{
    bounds::{GIB, HOUR, KIB, MINUTE, bytes, count, time, words},
    section::section,
    units::{ByteSize, Span},
};

section! {
    /// The section `[audit]`.
    pub struct Audit {
        let settings = Settings::default();

        /// The destinations of the audit log: file:PATH, stdout, syslog, or syslog:PATH, at most
        /// one of each kind. An empty list turns the audit log off.
        sinks: Vec<String>;
        /// async: operations never wait for the audit log, and records that find its queue full are
        /// dropped. strict: an operation is refused if no sink takes its record.
        mode: String = ASYNC.to_owned(), words(&[ASYNC, STRICT]);
        /// The maximum time that an operation waits for a sink in mode strict.
        strict_timeout: Span = Span::seconds(2), time(10, MINUTE);
        /// The file with the rules that select what is recorded (TOML). Without it, all events are
        /// recorded without details. The file is read again when it changes.
        policy_file: String;
        /// The maximum number of records that wait for each sink.
        queue_max: usize = settings.queue_max, count(1, 1_000_000);
        /// The maximum size of a file of the audit log. A larger file is renamed to PATH.SEQ, where
        /// SEQ is the number of its first record.
        file_bytes_max: ByteSize = ByteSize::new(settings.rotation.bytes_max), bytes(64 * KIB, 64 * GIB);
        /// The maximum number of files of the audit log, including the one that is written. The
        /// oldest is deleted.
        files_max: usize = settings.rotation.files_max, count(2, 100_000);
        /// The maximum time until a record is on disk. With 0s, a file has taken a record only when
        /// the record is on disk.
        sync_interval: Span = Span::new(settings.sync_interval), time(1, HOUR).or_zero();
    }
}

/// The values of `mode`.
const ASYNC: &str = "async";
const STRICT: &str = "strict";

impl Audit {
    /// Returns the key and the rule of each value that is not valid.
    pub(crate) fn rules(&self) -> Vec<(&'static str, String)> {
        let mut broken = Vec::new();
        let mut kinds = BTreeSet::new();
        for sink in &self.sinks {
            match sink.parse::<SinkSettings>() {
                Ok(parsed) if !kinds.insert(parsed.kind()) => {
                    let kind = parsed.kind();
                    broken
                        .push(("sinks", format!("{sink:?} is the second sink of the kind {kind}")));
                }
                Ok(_) => {}
                Err(error) => broken.push(("sinks", error.to_string())),
            }
        }
        if ![ASYNC, STRICT].contains(&self.mode.as_str()) {
            broken.push(("mode", format!("must be {ASYNC} or {STRICT}")));
        } else if self.mode == STRICT && self.sinks.is_empty() {
            broken.push(("mode", "strict needs a sink; set audit.sinks".to_owned()));
        }
        broken
    }

    /// Checks the policy file.
    pub(crate) fn unusable_policy(&self) -> Option<PolicyError> {
        self.policy().and_then(|path| check_policy_file(&path).err())
    }

    fn policy(&self) -> Option<PathBuf> {
        (!self.policy_file.is_empty()).then(|| PathBuf::from(&self.policy_file))
    }

    /// Returns the settings of the audit log.
    ///
    /// # Errors
    /// Fails if a sink is invalid. The rules of the configuration exclude that.
    pub fn settings(&self) -> Result<Settings, SinkSettingsError> {
        Ok(Settings {
            sinks: self.sinks.iter().map(|sink| sink.parse()).collect::<Result<_, _>>()?,
            mode: match self.mode.as_str() {
                STRICT => Mode::Strict { timeout: self.strict_timeout.duration() },
                _ => Mode::Async,
            },
            policy_file: self.policy(),
            queue_max: self.queue_max,
            rotation: Rotation {
                bytes_max: self.file_bytes_max.bytes(),
                files_max: self.files_max,
            },
            sync_interval: self.sync_interval.duration(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_sinks_and_modes_are_named() {
        let section = |sinks: &[&str], mode: &str| Audit {
            sinks: sinks.iter().map(|sink| (*sink).to_owned()).collect(),
            mode: mode.to_owned(),
            ..Audit::default()
        };
        let broken = |sinks: &[&str], mode| section(sinks, mode).rules();
        assert_eq!(broken(&[], "async"), []);
        assert_eq!(broken(&["file:/a", "stdout", "syslog"], "strict"), []);
        let rules = broken(&["file:/a", "file:/b", "otlp"], "sometimes");
        assert_eq!(
            rules[0],
            ("sinks", "\"file:/b\" is the second sink of the kind file".to_owned())
        );
        assert!(rules[1].1.starts_with("\"otlp\" is not a sink; use file:PATH"), "{rules:?}");
        assert_eq!(rules[2], ("mode", "must be async or strict".to_owned()));
        let alone = broken(&[], "strict");
        assert_eq!(alone, [("mode", "strict needs a sink; set audit.sinks".to_owned())]);
    }

    #[test]
    fn settings_are_those_of_the_keys() {
        let section = Audit {
            sinks: vec!["file:/var/log/audit.jsonl".to_owned()],
            mode: STRICT.to_owned(),
            policy_file: "/policy".to_owned(),
            ..Audit::default()
        };
        let settings = section.settings().unwrap();
        assert_eq!(settings.sinks, [SinkSettings::File("/var/log/audit.jsonl".into())]);
        assert_eq!(settings.mode, Mode::Strict { timeout: std::time::Duration::from_secs(2) });
        assert_eq!(settings.policy_file, Some("/policy".into()));
        assert_eq!(Audit::default().settings().unwrap(), Settings::default());
        let error = section.unusable_policy().unwrap().to_string();
        assert!(error.starts_with("cannot read /policy: "), "{error}");
    }
}
