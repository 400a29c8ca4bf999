//! Writes the files of a view, step by step.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use chancery_admission::{
    FileEncoding, Options, admit, manifest_of_file, secret_values, write_discovery_response,
};
use chancery_model::{ScopeName, TypeUrl, types};
use tokio::time::Instant;

use super::{
    files::{Directory, Listing, USUAL_MODE},
    names::short,
    plan::{self, File, Step, steps},
    view::{Changes, FULL, View},
};
use crate::failure::Failure;

/// The maximum size of a published file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// The settings of the written files.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub(super) encoding: FileEncoding,
    pub(super) secret_mode: u32,
    /// The time that Envoy gets to apply the files of one type before those of another type change.
    pub(super) pause: Duration,
    /// Whether the view of another cluster may remove resources.
    pub(super) accepts_new_cluster: bool,
}

/// The published files.
pub(super) struct Writer {
    root: PathBuf,
    directory: Directory,
    settings: Settings,
    /// The clusters in the published file.
    clusters: BTreeMap<String, Bytes>,
    listing: Listing,
    /// Whether the listing has changed since it was written.
    is_listing_due: bool,
    /// Whether a directory was missing.
    is_broken: bool,
    /// Whether files of an earlier run that the view does not contain have been removed.
    is_swept: bool,
    /// The type that was written last, and when.
    last: Option<(TypeUrl, Instant)>,
}

/// The result of writing: one line for each changed file, and the problems of files that cannot be written.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) lines: Vec<String>,
    pub(super) problems: Vec<String>,
}

impl Writer {
    /// Opens the directory, and reads what an earlier run has written there.
    pub(super) fn open(root: &Path, settings: Settings) -> Result<Self, Failure> {
        let named = types::KNOWN.iter().filter(|known| !FULL.contains(&known.url));
        let subdirectories: Vec<&str> = named.filter_map(|known| short(known.url)).collect();
        let directory = Directory::open(root, &subdirectories).map_err(|error| {
            Failure::new(format_args!("cannot open the directory {}: {error}", root.display()))
        })?;
        let mut writer = Self {
            root: root.to_owned(),
            settings,
            clusters: BTreeMap::new(),
            listing: directory.listing(),
            directory,
            is_listing_due: true,
            is_broken: false,
            is_swept: false,
            last: None,
        };
        writer.clusters = writer.published(types::CLUSTER);
        Ok(writer)
    }

    /// Returns whether the directory is still there, as far as that is known without a look at each file.
    pub(super) fn is_intact(&self) -> bool {
        // Before the first listing, nothing is published.
        !self.is_broken && (!self.is_swept || self.directory.is_intact())
    }

    /// Opens a directory that was removed or replaced. The caller writes the whole view.
    pub(super) fn reopen(&mut self) -> Result<(), Failure> {
        // The lock would exclude this mirror, too.
        self.directory.unlock();
        self.is_broken = true;
        *self = Self::open(&self.root, self.settings)?;
        Ok(())
    }

    /// Returns the resources of a published file. A file that cannot be read has none: it is replaced.
    fn published(&self, type_url: &str) -> BTreeMap<String, Bytes> {
        let path = self.with_extension(short(type_url).unwrap_or_default());
        let read = || {
            let content = self.directory.read(&path, FILE_BYTES_MAX)?;
            let manifest = manifest_of_file(&path, self.settings.encoding, content).ok()?;
            admit(&[manifest], &Options::new(ScopeName::new("mirror").ok()?)).ok()
        };
        let upserts = read().map(|transaction| transaction.upserts).unwrap_or_default();
        let drafts = upserts.into_iter().map(|upsert| upsert.draft);
        let own = drafts.filter(|draft| draft.key.type_url.as_str() == type_url);
        own.map(|draft| (draft.key.name.as_str().to_owned(), draft.body)).collect()
    }

    /// Returns the reason why no file may change: the view is that of another cluster, and lacks published resources.
    /// A cluster that has lost its data would empty the files.
    pub(super) fn hold(&self, view: &View) -> Option<String> {
        let (before, now) = (self.listing.incarnation.as_deref()?, view.incarnation()?);
        if before == now || self.settings.accepts_new_cluster {
            return None;
        }
        let mut missing: Vec<String> = Vec::new();
        for url in FULL {
            let full = view.full(url);
            let is_missing = |name: &&String| {
                full.is_none_or(|full| !full.resources.contains_key(name.as_str()))
            };
            let short = short(url).unwrap_or_default();
            let names = self.published(url);
            missing.extend(names.keys().filter(is_missing).map(|it| format!("{short} {it:?}")));
        }
        let own = self.own_files(view);
        missing.extend(self.listing.files.keys().filter(|path| !own.contains_key(*path)).cloned());
        let first = missing.first()?;
        let more = match missing.len() - 1 {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        Some(format!(
            "the servers belong to another cluster (incarnation {now}, not {before}), which lacks {first}{more}; no file \
             changes until the resources return, or until the mirror is started with --accept-new-cluster"
        ))
    }

    fn with_extension(&self, path: &str) -> String {
        format!("{path}.{}", self.settings.encoding.extension())
    }

    /// Writes the changes of a complete view. After an error, the caller repeats the call with the same changes.
    pub(super) async fn write(
        &mut self,
        view: &View,
        changes: &Changes,
        report: &mut Report,
    ) -> io::Result<()> {
        let written = self.write_steps(view, changes, report).await;
        self.is_broken =
            written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        written
    }

    async fn write_steps(
        &mut self,
        view: &View,
        changes: &Changes,
        report: &mut Report,
    ) -> io::Result<()> {
        let exists = |path: &str| self.directory.exists(&self.with_extension(path));
        // Later on, only files that have changed are among the changes.
        let is_current = |file: &File| !self.is_swept && self.is_current(file);
        let steps = steps(view, changes, &self.clusters, exists, is_current);
        self.announce(&steps)?;
        for step in steps {
            match step {
                Step::Create(files) => self.write_files(files, report).await?,
                Step::Write(files) => {
                    self.pause(&files).await;
                    let type_url = files.first().map(|file| file.type_url.clone());
                    let n_lines = report.lines.len();
                    self.write_files(files, report).await?;
                    if report.lines.len() > n_lines {
                        self.last = type_url.map(|type_url| (type_url, Instant::now()));
                    }
                }
                Step::Remove(paths) => {
                    let paths: Vec<String> =
                        paths.iter().map(|path| self.with_extension(path)).collect();
                    self.remove(&paths, report)?;
                }
            }
        }
        if !self.is_swept {
            let own = self.own_files(view);
            let is_stale = |path: &&String| !own.contains_key(*path);
            let stale: Vec<String> = self.listing.files.keys().filter(is_stale).cloned().collect();
            self.remove(&stale, report)?;
            let own: Vec<_> =
                own.into_iter().filter(|(path, _)| self.directory.exists(path)).collect();
            own.into_iter().for_each(|(path, listed)| self.list(path, listed));
        }
        let incarnation = view.incarnation().map(str::to_owned);
        self.is_listing_due |= self.listing.incarnation != incarnation;
        self.listing.incarnation = incarnation;
        self.write_listing()?;
        self.is_swept = true;
        Ok(())
    }

    /// Lists new files before they are written, so that a mirror that is killed meanwhile leaves no file that a later
    /// one does not know.
    fn announce(&mut self, steps: &[Step]) -> io::Result<()> {
        let n_files = self.listing.files.len();
        for step in steps {
            let (Step::Create(files) | Step::Write(files)) = step else { continue };
            for file in files {
                let short = short(file.type_url.as_str()).unwrap_or_default();
                let path = self.with_extension(&file.path);
                self.list(path, listed(short, file.name.as_deref()));
            }
        }
        if self.listing.files.len() == n_files { Ok(()) } else { self.write_listing() }
    }

    /// Adds a file to the listing.
    fn list(&mut self, path: String, listed: String) {
        let before = self.listing.files.insert(path, listed.clone());
        self.is_listing_due |= before != Some(listed);
    }

    fn write_listing(&mut self) -> io::Result<()> {
        if self.is_listing_due {
            self.directory.write_listing(&self.listing)?;
            self.is_listing_due = false;
        }
        Ok(())
    }

    /// Returns the entries of the listing for all files of the view.
    fn own_files(&self, view: &View) -> BTreeMap<String, String> {
        let full = FULL.into_iter().filter_map(short).map(|it| (it.to_owned(), listed(it, None)));
        let named = view.named().keys().filter_map(|key| {
            let listed = listed(short(key.type_url.as_str())?, Some(key.name.as_str()));
            Some((plan::path(key)?, listed))
        });
        full.chain(named).map(|(path, listed)| (self.with_extension(&path), listed)).collect()
    }

    fn content(&self, file: &File) -> Result<Vec<u8>, String> {
        let File { version, type_url, resources, .. } = file;
        write_discovery_response(self.settings.encoding, version, type_url, resources)
    }

    fn mode(&self, file: &File) -> u32 {
        if has_secret(file) { self.settings.secret_mode } else { USUAL_MODE }
    }

    fn is_current(&self, file: &File) -> bool {
        let path = self.with_extension(&file.path);
        let content = self.content(file);
        content.is_ok_and(|content| self.directory.is_current(&path, &content, self.mode(file)))
    }

    /// Waits until Envoy has had time to apply the files of another type.
    async fn pause(&self, files: &[File]) {
        if let (Some((type_url, when)), Some(next)) = (&self.last, files.first())
            && *type_url != next.type_url
        {
            tokio::time::sleep_until(*when + self.settings.pause).await;
        }
    }

    async fn write_files(&mut self, files: Vec<File>, report: &mut Report) -> io::Result<()> {
        let mut written = None;
        for file in files {
            let path = self.with_extension(&file.path);
            let content = match self.content(&file) {
                Ok(content) => content,
                Err(problem) => {
                    report.problems.push(format!("cannot write {path}: {problem}"));
                    if !self.directory.exists(&path) {
                        self.unlist(&path);
                    }
                    continue;
                }
            };
            let mode = self.mode(&file);
            let in_words = |error: io::Error| {
                io::Error::new(error.kind(), format!("cannot write {path}: {error}"))
            };
            if self.directory.write(&path, &content, mode).map_err(in_words)? {
                let n = file.resources.len();
                report.lines.push(match &file.name {
                    Some(_) if n == 0 => format!("written {path}: the resource does not exist"),
                    Some(_) => format!("written {path}: version {}", file.version),
                    None => format!("written {path}: version {}, {n} resources", file.version),
                });
                written = Some(path.clone());
            }
            if file.type_url.as_str() == types::CLUSTER && file.name.is_none() {
                self.clusters = file.resources.into_iter().collect();
            }
            // The connection answers the server's pings meanwhile.
            tokio::task::yield_now().await;
        }
        match written {
            Some(path) => self.directory.sync(&path),
            None => Ok(()),
        }
    }

    fn remove(&mut self, paths: &[String], report: &mut Report) -> io::Result<()> {
        for path in paths {
            // A file that the listing does not name belongs to somebody else.
            if self.listing.files.contains_key(path) {
                let in_words =
                    |error: io::Error| io::Error::other(format!("cannot remove {path}: {error}"));
                if self.directory.remove(path).map_err(in_words)? {
                    report.lines.push(format!("removed {path}"));
                }
                self.unlist(path);
            }
        }
        Ok(())
    }

    fn unlist(&mut self, path: &str) {
        self.is_listing_due |= self.listing.files.remove(path).is_some();
    }
}

/// Returns what the listing says of a file.
fn listed(short: &str, name: Option<&str>) -> String {
    format!("{short}\t{}", name.unwrap_or("*"))
}

fn has_secret(file: &File) -> bool {
    let mut found = file.type_url.as_str() == types::SECRET;
    for (_, body) in &file.resources {
        secret_values(&file.type_url, body, &mut |_| found = true);
    }
    found
}
