//! Reproducible archives: sorted entries, one time for all, owners as numbers, and no names of users.

use std::{collections::BTreeMap, io::Write as _};

use anyhow::{Context as _, Result};
use flate2::{Compression, GzBuilder};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

/// The owner of a file: the number of a user, which is also the number of its group.
const ROOT: u64 = 0;

/// The files of an archive, by path. Paths are relative and contain no `..`.
#[derive(Debug, Default)]
pub(super) struct Tree(BTreeMap<String, Entry>);

#[derive(Debug)]
struct Entry {
    content: Content,
    mode: u32,
    owner: u64,
}

#[derive(Debug)]
enum Content {
    Dir,
    File(Vec<u8>),
}

impl Tree {
    /// Adds a directory of root.
    pub(super) fn dir(&mut self, path: &str, mode: u32) {
        self.add(path, Content::Dir, mode, ROOT);
    }

    /// Adds a directory of another user.
    pub(super) fn dir_of(&mut self, path: &str, mode: u32, owner: u64) {
        self.add(path, Content::Dir, mode, owner);
    }

    /// Adds a file of root, and the directories above it.
    pub(super) fn file(&mut self, path: &str, mode: u32, content: impl Into<Vec<u8>>) {
        for (at, _) in path.match_indices('/') {
            if !self.0.contains_key(&path[..at]) {
                self.dir(&path[..at], 0o755);
            }
        }
        self.add(path, Content::File(content.into()), mode, ROOT);
    }

    fn add(&mut self, path: &str, content: Content, mode: u32, owner: u64) {
        self.0.insert(path.to_owned(), Entry { content, mode, owner });
    }

    /// Returns the files with their contents, in the order of their paths.
    pub(super) fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().filter_map(|(path, entry)| match &entry.content {
            Content::File(content) => Some((path.as_str(), content.as_slice())),
            Content::Dir => None,
        })
    }

    /// Returns the archive. All files have the time `epoch`, and paths begin with `prefix`.
    pub(super) fn tar(&self, prefix: &str, epoch: u64) -> Result<Vec<u8>> {
        let mut builder = Builder::new(Vec::new());
        for (path, entry) in &self.0 {
            let mut header = Header::new_gnu();
            header.set_mode(entry.mode);
            header.set_uid(entry.owner);
            header.set_gid(entry.owner);
            header.set_mtime(epoch);
            let path = format!("{prefix}{path}");
            let added = match &entry.content {
                Content::Dir => {
                    header.set_entry_type(EntryType::Directory);
                    header.set_size(0);
                    builder.append_data(&mut header, format!("{path}/"), &[][..])
                }
                Content::File(content) => {
                    header.set_entry_type(EntryType::Regular);
                    header.set_size(content.len() as u64);
                    builder.append_data(&mut header, &path, content.as_slice())
                }
            };
            added.with_context(|| format!("add {path} to an archive"))?;
        }
        builder.into_inner().context("finish an archive")
    }

    /// Returns the compressed archive.
    pub(super) fn tar_gz(&self, prefix: &str, epoch: u64) -> Result<Vec<u8>> {
        gzip(&self.tar(prefix, epoch)?)
    }
}

/// Compresses with gzip, without a name or a time in the header.
pub(super) fn gzip(content: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::default());
    encoder.write_all(content).and_then(|()| encoder.finish()).context("compress")
}

/// Returns the SHA-256 of the content in hexadecimal.
pub(super) fn sha256(content: &[u8]) -> String {
    hex::encode(Sha256::digest(content))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// Returns the archive of two files, which are added in the given order.
    fn archive(names: [&str; 2]) -> Vec<u8> {
        let mut tree = Tree::default();
        for name in names {
            tree.file(name, 0o644, name);
        }
        tree.tar_gz("top/", 951_782_400).unwrap()
    }

    #[test]
    fn archive_does_not_depend_on_order() {
        assert_eq!(archive(["etc/b", "etc/a"]), archive(["etc/a", "etc/b"]));
        assert_eq!(sha256(b""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }

    #[test]
    fn entries_have_owner_mode_and_time() {
        let mut tree = Tree::default();
        tree.file("etc/passwd", 0o644, "x");
        tree.dir_of("data", 0o700, 65532);
        let bytes = tree.tar("", 951_782_400).unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let entries: Vec<_> = (archive.entries().unwrap())
            .map(|entry| {
                let mut entry = entry.unwrap();
                let mut text = String::new();
                entry.read_to_string(&mut text).unwrap();
                let header = entry.header();
                let path = entry.path().unwrap().display().to_string();
                assert_eq!(header.mtime().unwrap(), 951_782_400);
                (path, header.mode().unwrap(), header.uid().unwrap(), text)
            })
            .collect();
        let expected =
            [("data/", 0o700, 65532, ""), ("etc/", 0o755, 0, ""), ("etc/passwd", 0o644, 0, "x")];
        let expected = expected
            .map(|(path, mode, owner, text)| (path.to_owned(), mode, owner, text.to_owned()));
        assert_eq!(entries, expected);
    }
}
