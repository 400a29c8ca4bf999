//! The policy file, which is read again when it changes.

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::{Mutex, RwLock};

use crate::{
    chain::Hash,
    event::Event,
    policy::{Level, Policy},
};

/// The maximum size of a policy file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The reason why a policy file is unusable.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The content of the file is invalid.
    #[error("{}:{line}: {message}", path.display())]
    Invalid {
        /// The path of the file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// The reason.
        message: String,
    },
}

/// Checks that a policy file is usable.
///
/// # Errors
/// Fails if the file cannot be read, or is invalid.
pub fn check_policy_file(path: &Path) -> Result<(), PolicyError> {
    read(path).map(drop)
}

/// The policy in force.
#[derive(Debug)]
pub(crate) struct PolicySource {
    /// `None` without a policy file.
    path: Option<PathBuf>,
    current: RwLock<Arc<Policy>>,
    stamp: Mutex<Option<Stamp>>,
}

/// The device, inode, size and time of change of a file. A changed file has another stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp([i64; 5]);

/// The result of reading a changed file.
pub(crate) enum Reread {
    /// The file is unchanged.
    Unchanged,
    /// The new policy is in force. The hash identifies the content of the file.
    Changed(Hash),
    /// The file is unusable. The previous policy stays in force.
    Unusable(PolicyError),
}

impl PolicySource {
    /// Reads the file, if there is one.
    pub(crate) fn open(path: Option<PathBuf>) -> Result<Self, PolicyError> {
        // The stamp comes first, so that a change during the reading is noticed later.
        let stamp = path.as_deref().and_then(stamp);
        let policy = path.as_deref().map(read).transpose()?.map(|(policy, _)| policy);
        let current = RwLock::new(Arc::new(policy.unwrap_or_default()));
        Ok(Self { path, current, stamp: Mutex::new(stamp) })
    }

    /// Returns the level of an event.
    pub(crate) fn level(&self, event: &Event) -> Level {
        let policy = Arc::clone(&self.current.read());
        policy.level(event)
    }

    /// Reads the file again if it has changed.
    pub(crate) fn reread(&self) -> Reread {
        let Some(path) = &self.path else { return Reread::Unchanged };
        let now = stamp(path);
        if std::mem::replace(&mut *self.stamp.lock(), now) == now {
            return Reread::Unchanged;
        }
        match read(path) {
            Ok((policy, hash)) => {
                *self.current.write() = Arc::new(policy);
                Reread::Changed(hash)
            }
            Err(error) => Reread::Unusable(error),
        }
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let data = std::fs::metadata(path).ok()?;
    let number = |number: u64| i64::from_ne_bytes(number.to_ne_bytes());
    Some(Stamp([
        number(data.dev()),
        number(data.ino()),
        number(data.size()),
        data.mtime(),
        data.mtime_nsec(),
    ]))
}

fn read(path: &Path) -> Result<(Policy, Hash), PolicyError> {
    let unreadable = |source| PolicyError::Read { path: path.to_owned(), source };
    // Opening a named pipe would wait for its writer.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(unreadable(io::Error::other("it is not a regular file")));
    }
    let mut text = String::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let reason = format!("the file is larger than {FILE_BYTES_MAX} bytes");
        return Err(unreadable(io::Error::other(reason)));
    }
    let policy = toml::from_str(&text).map_err(|error: toml::de::Error| {
        let at = error.span().map_or(0, |span| span.start.min(text.len()));
        PolicyError::Invalid {
            path: path.to_owned(),
            line: 1 + text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count(),
            message: error.message().replace('\n', "; "),
        }
    })?;
    Ok((policy, Hash::of(text.as_bytes())))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::event::Port;

    #[test]
    fn invalid_file_is_reported_with_file_and_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit-policy.toml");
        let error = check_policy_file(&path).unwrap_err().to_string();
        assert!(
            error.starts_with("cannot read ") && error.contains("audit-policy.toml"),
            "{error}"
        );
        for (text, line, why) in [
            ("default = \"none\"\n\n[[rules]]\nlevel = \"none\"\nuser = [\"a\"]\n", 5, "user"),
            ("default = \"all\"\n", 1, "all"),
            ("[[rules]]\nlevel = \"none\"\nnames = [\"ok\",\n\"a*b\"]\n", 3, "a*b"),
            ("a b\n", 1, "expected"),
        ] {
            fs::write(&path, text).unwrap();
            let error = check_policy_file(&path).unwrap_err().to_string();
            let place = format!("audit-policy.toml:{line}: ");
            assert!(error.contains(&place) && error.contains(why), "{text}: {error}");
        }
        fs::write(&path, "# x\n".repeat(1 << 19)).unwrap();
        let error = check_policy_file(&path).unwrap_err().to_string();
        assert!(error.contains("larger than 1048576 bytes"), "{error}");
    }

    #[test]
    fn changed_file_takes_effect_and_broken_file_keeps_previous_policy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policy.toml");
        // A file that replaces another one always has another inode.
        let put = |text: &str| {
            fs::write(dir.path().join("new"), text).unwrap();
            fs::rename(dir.path().join("new"), &path).unwrap();
        };
        put("default = \"none\"");
        let source = PolicySource::open(Some(path.clone())).unwrap();
        let level = || source.level(&Event::new(Port::Admin, "apply"));
        assert_eq!(level(), Level::None);
        assert!(matches!(source.reread(), Reread::Unchanged));
        put("default = \"request\"");
        assert!(matches!(source.reread(), Reread::Changed(_)));
        assert_eq!(level(), Level::Request);
        put("default = \"everything\"");
        assert!(matches!(source.reread(), Reread::Unusable(PolicyError::Invalid { .. })));
        assert!(matches!(source.reread(), Reread::Unchanged), "it is reported once");
        assert_eq!(level(), Level::Request);
        fs::remove_file(&path).unwrap();
        assert!(matches!(source.reread(), Reread::Unusable(PolicyError::Read { .. })));
        assert_eq!(level(), Level::Request);
        put("default = \"metadata\"");
        assert!(matches!(source.reread(), Reread::Changed(_)));
        assert_eq!(level(), Level::Metadata);
    }
}
