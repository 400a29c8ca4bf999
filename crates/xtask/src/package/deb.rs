//! The Debian package: an `ar` archive of two compressed archives, and scripts from `deploy/debian`.

use std::fs;

use anyhow::{Context as _, Result};
use md5::{Digest as _, Md5};

use super::{archive::Tree, release::Release};
use crate::paths::Paths;

const SOURCES: &str = "deploy/debian";
/// The scripts that dpkg runs.
const SCRIPTS: &[&str] = &["postinst", "prerm", "postrm"];
/// The Debian revision: it counts the packages of one version.
const REVISION: u32 = 1;

/// Returns the name of the file.
pub(super) fn file_name(release: &Release) -> String {
    format!("chancery_{}_amd64.deb", version(release))
}

fn version(release: &Release) -> String {
    format!("{}-{REVISION}", release.version)
}

/// Returns the package with these files. Paths are relative to the root directory.
pub(super) fn write(paths: &Paths, release: &Release, data: &Tree) -> Result<Vec<u8>> {
    let source = |name: &str| {
        let path = paths.root.join(SOURCES).join(name);
        fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    };
    let kib = data.files().map(|(_, content)| content.len().div_ceil(1024)).sum::<usize>();
    let mut control = Tree::default();
    let fields = source("control")?.replace("{{VERSION}}", &version(release));
    control.file("control", 0o644, fields.replace("{{SIZE}}", &kib.to_string()));
    control.file("conffiles", 0o644, source("conffiles")?);
    let settings: Vec<_> = source("conffiles")?.lines().map(str::to_owned).collect();
    control.file("md5sums", 0o644, md5sums(data, &settings));
    for script in SCRIPTS {
        control.file(script, 0o755, source(script)?);
    }
    let members = [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", control.tar_gz("", release.epoch)?),
        ("data.tar.gz", data.tar_gz("", release.epoch)?),
    ];
    ar(&members, release.epoch)
}

/// Returns the checksums with which `dpkg --verify` finds changed files. dpkg itself records those of settings.
fn md5sums(data: &Tree, settings: &[String]) -> String {
    let files = data.files().filter(|(path, _)| !settings.contains(&format!("/{path}")));
    files
        .map(|(path, content)| format!("{}  {path}\n", hex::encode(Md5::digest(content))))
        .collect()
}

/// Returns an archive in the format of `ar`.
fn ar(members: &[(&str, Vec<u8>)], epoch: u64) -> Result<Vec<u8>> {
    let mut archive = ar::Builder::new(Vec::new());
    for (name, content) in members {
        let mut header = ar::Header::new(name.as_bytes().to_vec(), content.len() as u64);
        header.set_mtime(epoch);
        header.set_mode(0o100_644);
        archive.append(&header, content.as_slice()).with_context(|| format!("add {name}"))?;
    }
    archive.into_inner().context("finish an archive")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_cover_all_files_except_settings() {
        let mut data = Tree::default();
        data.file("etc/default/a", 0o644, "x");
        data.file("usr/bin/a", 0o755, "message digest");
        let sums = md5sums(&data, &["/etc/default/a".to_owned()]);
        assert_eq!(sums, "f96b697d7cb7938d525a2f31aaf161d0  usr/bin/a\n");
    }
}
