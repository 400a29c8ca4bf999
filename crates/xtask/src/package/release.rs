//! The identity of a release: version, commit and time.

use std::{env, fs, process::Command};

use anyhow::{Context as _, Result};
use chrono::{DateTime, SecondsFormat};

use crate::{paths::Paths, proc};

/// The values that packages contain besides files.
#[derive(Debug)]
pub(super) struct Release {
    /// The version of the workspace.
    pub(super) version: String,
    /// The commit.
    pub(super) revision: String,
    /// The time of all files: `SOURCE_DATE_EPOCH`, or the time of the commit, in seconds since 1970.
    pub(super) epoch: u64,
}

impl Release {
    /// Reads the version from the manifest, and the rest from git.
    pub(super) fn of(paths: &Paths) -> Result<Self> {
        let manifest =
            fs::read_to_string(paths.root.join("Cargo.toml")).context("read Cargo.toml")?;
        let git = |args: &[&str]| {
            let mut git = Command::new("git");
            // The files of a container often belong to another user.
            git.current_dir(&paths.root).args(["-c", "safe.directory=*"]).args(args);
            Ok::<_, anyhow::Error>(proc::output(&mut git)?.trim().to_owned())
        };
        let epoch = match env::var("SOURCE_DATE_EPOCH") {
            Ok(epoch) => epoch,
            Err(_) => git(&["log", "-1", "--format=%ct"])?,
        };
        Ok(Self {
            version: version(&manifest)?.to_owned(),
            revision: git(&["rev-parse", "HEAD"])?,
            epoch: epoch.parse().with_context(|| {
                format!("SOURCE_DATE_EPOCH: {epoch:?} is not a number of seconds since 1970")
            })?,
        })
    }

    /// Returns the time of the release in the format of RFC 3339. A time that chrono cannot represent becomes that of 1970.
    pub(super) fn created(&self) -> String {
        let time = DateTime::from_timestamp(self.epoch.cast_signed(), 0).unwrap_or_default();
        time.to_rfc3339_opts(SecondsFormat::Secs, true)
    }
}

/// Returns the version in the section `workspace.package`.
pub(super) fn version(manifest: &str) -> Result<&str> {
    let section = manifest.split_once("[workspace.package]").map(|(_, rest)| rest);
    section
        .and_then(|rest| rest.lines().find_map(|line| line.strip_prefix("version = \"")))
        .and_then(|rest| rest.strip_suffix('"'))
        .context("Cargo.toml has no version of the workspace")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_has_format_of_rfc_3339() {
        let created =
            |epoch| Release { version: String::new(), revision: String::new(), epoch }.created();
        assert_eq!(created(0), "1970-01-01T00:00:00Z");
        assert_eq!(created(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(created(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(created(1_795_717_953), "2026-11-26T18:32:33Z");
    }

    #[test]
    fn version_is_that_of_the_workspace() {
        let manifest = "[workspace]\nversion = \"9\"\n[workspace.package]\nversion = \"0.1.0\"\n";
        assert_eq!(version(manifest).unwrap(), "0.1.0");
        assert!(version("[package]\nversion = \"1\"\n").is_err());
    }
}
