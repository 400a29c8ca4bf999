//! The files of the external validator's inputs. They may contain secrets.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::Path,
};

use rustix::process::geteuid;
use tempfile::NamedTempFile;

/// The names of the files begin and end with these. Some programs choose the format by the extension.
const PREFIX: &str = "chancery-validate-";
const SUFFIX: &str = ".json";

/// Creates a file that only the user of the server can read. It is locked while a server uses it.
pub(super) fn create(directory: &Path) -> io::Result<NamedTempFile> {
    loop {
        let file = tempfile::Builder::new().prefix(PREFIX).suffix(SUFFIX).tempfile_in(directory)?;
        file.as_file().lock()?;
        // Another server may have removed the file before it was locked.
        if file.as_file().metadata()?.nlink() > 0 {
            return Ok(file);
        }
    }
}

/// Removes the files of servers that have ended. Files that cannot be removed stay.
pub(super) fn remove_stale(directory: &Path) {
    let user = geteuid().as_raw();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_own = |name: &str| name.starts_with(PREFIX) && name.ends_with(SUFFIX);
        if !name.to_str().is_some_and(is_own) {
            continue;
        }
        let path = entry.path();
        // The metadata of the entry do not follow links.
        if !entry.metadata().is_ok_and(|found| found.is_file() && found.uid() == user) {
            continue;
        }
        let Ok(file) = File::open(&path) else { continue };
        if file.try_lock().is_ok()
            && let Err(error) = fs::remove_file(&path)
        {
            tracing::warn!(path = %path.display(), %error, "cannot remove an old input of the external validator");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_files_of_ended_servers_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let (used, stale) = (create(directory.path()).unwrap(), create(directory.path()).unwrap());
        // The lock ends with the server.
        let (_, stale) = stale.keep().map(|(file, path)| (drop(file), path)).unwrap();
        let other = directory.path().join("chancery-validate.json");
        fs::write(&other, "").unwrap();
        let link = directory.path().join("chancery-validate-link.json");
        std::os::unix::fs::symlink(&other, &link).unwrap();
        remove_stale(directory.path());
        assert!(!stale.exists());
        assert!(used.path().exists() && other.exists() && link.is_symlink());
    }
}
