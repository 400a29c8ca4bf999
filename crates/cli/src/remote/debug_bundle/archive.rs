//! The archive of a bundle: tar, compressed with gzip. The file is written atomically.

use std::{
    env,
    fs::Permissions,
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use flate2::{Compression, write::GzEncoder};
use tempfile::NamedTempFile;

use crate::time::now;

/// The permissions of the archive and of its files.
const MODE: u32 = 0o600;
/// The directory in the archive.
const ROOT: &str = "chancery-debug";

/// An archive that is being written.
pub(super) struct Archive {
    /// `None` for the standard output.
    path: Option<PathBuf>,
    builder: tar::Builder<GzEncoder<NamedTempFile>>,
}

impl Archive {
    /// Creates a temporary file beside `path`, or, for the standard output, in the directory for temporary files.
    pub(super) fn create(path: Option<&Path>) -> io::Result<Self> {
        if path.is_some_and(|path| path.symlink_metadata().is_ok()) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file exists already"));
        }
        let parent = match path {
            Some(path) => path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty())
                .unwrap_or(Path::new("."))
                .to_owned(),
            None => env::temp_dir(),
        };
        let file = tempfile::Builder::new()
            .prefix(".chancery-debug-")
            .suffix(".tmp")
            .permissions(Permissions::from_mode(MODE))
            .tempfile_in(parent)?;
        let builder = tar::Builder::new(GzEncoder::new(file, Compression::default()));
        Ok(Self { path: path.map(Path::to_owned), builder })
    }

    pub(super) fn add(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(MODE);
        header.set_mtime(now() / 1000);
        self.builder.append_data(&mut header, format!("{ROOT}/{name}"), content)
    }

    /// Completes the temporary file, and renames it or copies it to the standard output.
    pub(super) fn finish(self) -> io::Result<()> {
        let mut file = self.builder.into_inner()?.finish()?;
        file.flush()?;
        let Some(path) = self.path else {
            let mut stdout = io::stdout();
            io::copy(&mut file.reopen()?, &mut stdout)?;
            return stdout.flush();
        };
        file.as_file().sync_all()?;
        file.persist_noclobber(&path).map(drop).map_err(|error| error.error)
    }
}
