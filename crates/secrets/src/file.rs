//! Files with key-encryption keys.
//!
//! Each line is one key: 32 bytes in base64. The first one wraps new keys, and all unwrap. Empty lines and lines that
//! begin with `#` are ignored.

use std::{
    fs,
    io::Read,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use rustix::fs::OFlags;
use zeroize::Zeroizing;

use crate::key::Key;

/// The maximum size of a key file in bytes.
const FILE_BYTES_MAX: usize = 64 << 10;
/// The permissions that nobody except the owner of a key file may have.
const FILE_MODE_EXCESS: u32 = 0o077;
/// The permissions that a key file of root may not have. Kubernetes and systemd let a server read its files by a group.
const ROOT_FILE_MODE_EXCESS: u32 = 0o037;

/// The reason why a key file cannot be used. No text contains a part of the file.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file cannot be read.
    #[error("cannot read the key file `{}`: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// Other users can read the file.
    #[error("cannot use the key file `{}`: its mode is {mode:o}, which lets other users use it; run `chmod 600`", path.display())]
    Mode {
        /// The file.
        path: PathBuf,
        /// The permissions.
        mode: u32,
    },
    /// Another user owns the file.
    #[error("cannot use the key file `{}`: user {owner} owns it; make the user of the server or root its owner", path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// The user.
        owner: u32,
    },
    /// The content is not a list of keys.
    #[error("cannot use the key file `{}`: line {line} is not 32 bytes in base64; `openssl rand -base64 32` makes a key", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
    },
    /// The file has no key.
    #[error("cannot use the key file `{}`: it has no key; `openssl rand -base64 32` makes one", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file is too large.
    #[error("cannot use the key file `{}`: it has {len} bytes, more than the {FILE_BYTES_MAX} of a key file", path.display())]
    Large {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        len: u64,
    },
}

/// Inode, modification time, length, mode and owner of a file, which detect a changed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp(u64, i64, i64, u64, u32, u32);

impl Stamp {
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let file = fs::metadata(path).ok()?;
        let changed = (file.mtime(), file.mtime_nsec());
        Some(Self(file.ino(), changed.0, changed.1, file.len(), file.mode(), file.uid()))
    }
}

/// Reads the keys of a file.
pub(crate) fn read(path: &Path) -> Result<Vec<Key>, KeyFileError> {
    let unreadable = |source| KeyFileError::Read { path: path.to_owned(), source };
    // Opening a named pipe would wait for its writer.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let mut file =
        fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(unreadable)?;
    // Checks the file that is open, because another file may take its name.
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(unreadable(std::io::Error::other("it is not a regular file")));
    }
    let (mode, owner, len) = (metadata.mode() & 0o777, metadata.uid(), metadata.len());
    if mode & mode_excess(owner) != 0 {
        return Err(KeyFileError::Mode { path: path.to_owned(), mode });
    }
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(KeyFileError::Owner { path: path.to_owned(), owner });
    }
    if len > FILE_BYTES_MAX as u64 {
        return Err(KeyFileError::Large { path: path.to_owned(), len });
    }
    // One allocation, so that no copy of the keys remains in memory.
    let mut text = Zeroizing::new(Vec::with_capacity(FILE_BYTES_MAX + 1));
    file.by_ref().take(FILE_BYTES_MAX as u64).read_to_end(&mut text).map_err(unreadable)?;
    parse(path, &text)
}

/// Returns the permissions that a key file of a user may not have.
fn mode_excess(owner: u32) -> u32 {
    if owner == 0 { ROOT_FILE_MODE_EXCESS } else { FILE_MODE_EXCESS }
}

fn parse(path: &Path, text: &[u8]) -> Result<Vec<Key>, KeyFileError> {
    let mut keys = Vec::new();
    for (at, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let bytes = BASE64_STANDARD.decode(line).map(Zeroizing::new).ok();
        let key = bytes.and_then(|bytes| Key::from_bytes(&bytes));
        keys.push(key.ok_or_else(|| KeyFileError::Line { path: path.to_owned(), line: at + 1 })?);
    }
    if keys.is_empty() { Err(KeyFileError::Empty { path: path.to_owned() }) } else { Ok(keys) }
}

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt};

    use super::*;

    const KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

    fn file(text: &str, mode: u32) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        fs::set_permissions(file.path(), Permissions::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn key_file_lists_its_keys_in_order() {
        let text = format!("# the current key\n{KEY}\n\n  {KEY}\n");
        assert_eq!(read(file(&text, 0o600).path()).unwrap().len(), 2);
        assert_eq!(read(file(KEY, 0o400).path()).unwrap().len(), 1);
    }

    #[test]
    fn key_file_that_others_can_read_is_refused() {
        for mode in [0o644, 0o660, 0o604, 0o620, 0o601] {
            let error = read(file(KEY, mode).path()).unwrap_err();
            assert!(matches!(error, KeyFileError::Mode { .. }), "{mode:o}: {error}");
        }
        assert_eq!(mode_excess(0) & 0o440, 0, "Kubernetes and systemd give the group access");
        assert_eq!(mode_excess(1000) & 0o440, 0o040, "the group of a user has other users");
    }

    #[test]
    fn unusable_key_file_is_refused_without_its_content() {
        let short = "c2hvcnQgc2VjcmV0";
        for (text, expected) in [
            (short.to_owned(), "line 1"),
            (format!("{KEY}\nsecret word\n"), "line 2"),
            ("# nothing\n".to_owned(), "no key"),
            ("#".repeat(70_000), "70000 bytes"),
        ] {
            let error = read(file(&text, 0o600).path()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("secret") && !error.contains(short), "{error}");
        }
        let pipe = tempfile::tempdir().unwrap();
        let pipe = pipe.path().join("key");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        for other in [pipe.as_path(), Path::new("/dev/null"), Path::new("/")] {
            let error = read(other).unwrap_err().to_string();
            assert!(error.ends_with(": it is not a regular file"), "{error}");
        }
        let missing = read(Path::new("/nowhere/key")).unwrap_err();
        assert!(matches!(missing, KeyFileError::Read { .. }), "{missing}");
    }
}
