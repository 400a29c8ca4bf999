//! The command `backup`.

mod files;
mod keep;

use std::{
    fs::{File, Permissions},
    io::{self, IsTerminal, Write},
    num::NonZeroUsize,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use chancery_admin_proto::v1::{self as pb, backup_service_client::BackupServiceClient};
use chancery_store::{BackupCheck, BackupInfo, BackupSource};
use clap::Args;
use serde_json::json;
use tempfile::NamedTempFile;

use files::{failed, parent};
use keep::{Series, cluster_of};

use super::client::{Servers, refusal};
use crate::{
    answer::{Answer, Output},
    backup_info::{describe, warn_of_divergence},
    failure::Failure,
    text::{count, plain},
    time::timestamp,
};

/// The arguments of `backup`.
#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// Write the backup to this file, or to standard output (-)
    ///
    /// The file is written atomically and synced. For standard output, only exit code 0 means that
    /// the backup is complete.
    #[arg(value_name = "FILE|-")]
    file: PathBuf,
    /// Read the data directory of a stopped replica instead of contacting a server
    ///
    /// Use this to save the remaining state of a cluster that has lost its majority. Not allowed with
    /// --stale.
    #[arg(long, value_name = "DIR", conflicts_with = "stale")]
    data_dir: Option<PathBuf>,
    /// Accept the data directory of a replica that diverged from its cluster
    ///
    /// Its state may be wrong. Use this only if no other replica is left. Requires --data-dir.
    #[arg(long, requires = "data_dir")]
    allow_diverged: bool,
    /// Save the replica's own state, even if it is outdated; works without a leader
    #[arg(long)]
    stale: bool,
    /// Replace an existing regular file
    #[arg(long)]
    force: bool,
    /// Delete older backups afterwards, so that at most N remain in the directory of FILE
    ///
    /// The name of FILE must contain a number that grows, such as the date in `edge-20260131.bak`. Only its last
    /// number counts: `2026-01-31.bak` starts a new series each month. A file is an older backup if its name
    /// differs from FILE only by a lower number, and if it contains a backup of the same cluster.
    #[arg(long, value_name = "N")]
    keep: Option<NonZeroUsize>,
}

/// The argument that selects standard output.
const STANDARD_OUTPUT: &str = "-";

/// A backup that is being written, and checked at the same time.
struct Pending {
    target: Target,
    bytes: u64,
    check: BackupCheck,
}

enum Target {
    /// A temporary file with a unique name in the directory of `path`. It is renamed when the
    /// backup is complete, and removed otherwise.
    File { path: PathBuf, force: bool, file: NamedTempFile },
    /// Standard output. Only the exit code shows whether the backup is complete.
    Out(io::Stdout),
}

impl Pending {
    fn create(path: &Path, force: bool) -> Result<Self, Failure> {
        let target = if !is_standard_output(path) {
            refuse_existing(path, force)?;
            // Only the owner may read it: a backup contains all secrets of the fleet.
            let file = tempfile::Builder::new()
                .prefix(".chancery-backup-")
                .suffix(".tmp")
                .permissions(Permissions::from_mode(0o600))
                .tempfile_in(parent(path))
                .map_err(|error| failed("create a file for", path, &error))?;
            Target::File { path: path.to_owned(), force, file }
        } else if io::stdout().is_terminal() {
            return Err(Failure::new(
                "cannot write the backup to a terminal; redirect the output, or name a file",
            ));
        } else {
            Target::Out(io::stdout())
        };
        Ok(Self { target, bytes: 0, check: BackupCheck::default() })
    }

    /// Checks and writes the next bytes of the backup.
    fn write(&mut self, data: &[u8]) -> Result<(), Failure> {
        self.check.push(data).map_err(|error| {
            Failure::new(format_args!("the data is not a valid backup: {error}"))
        })?;
        match &mut self.target {
            Target::File { path, file, .. } => {
                file.as_file_mut()
                    .write_all(data)
                    .map_err(|error| failed("write", path, &error))?;
            }
            Target::Out(out) => out.write_all(data).map_err(|error| not_written(&error))?,
        }
        self.bytes += data.len() as u64;
        Ok(())
    }

    /// Checks that the backup is complete, and renames the file.
    fn finish(self) -> Result<(BackupInfo, u64), Failure> {
        let info = self.check.finish().map_err(|error| {
            Failure::new(format_args!("the data is not a complete backup: {error}"))
        })?;
        match self.target {
            Target::File { path, force, file } => give_name(&path, force, file)?,
            Target::Out(mut out) => out.flush().map_err(|error| not_written(&error))?,
        }
        Ok((info, self.bytes))
    }
}

/// Returns the failure to write to standard output. It is also a failure if the reader closed the
/// pipe, because the backup is then incomplete.
fn not_written(error: &io::Error) -> Failure {
    Failure::new(format_args!("cannot write the backup to standard output: {error}"))
}

fn is_standard_output(path: &Path) -> bool {
    path == Path::new(STANDARD_OUTPUT)
}

fn give_name(path: &Path, force: bool, file: NamedTempFile) -> Result<(), Failure> {
    file.as_file().sync_all().map_err(|error| failed("sync", path, &error))?;
    // Another process may have created the file since the first check.
    refuse_existing(path, force)?;
    let renamed = if force { file.persist(path) } else { file.persist_noclobber(path) };
    renamed.map_err(|refused| match refused.error.kind() {
        io::ErrorKind::AlreadyExists => there_already(path),
        _ => failed("rename the temporary file to", path, &refused.error),
    })?;
    let parent = parent(path);
    let synced = File::open(parent).and_then(|directory| directory.sync_all());
    synced.map_err(|error| failed("sync", parent, &error))
}

/// Fails if `path` exists, unless it is a regular file and `force` is set.
fn refuse_existing(path: &Path, force: bool) -> Result<(), Failure> {
    if is_standard_output(path) {
        return Ok(());
    }
    let kind = match path.symlink_metadata() {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("create", path, &error)),
    };
    if kind.is_dir() {
        return Err(Failure::new(format_args!("{} is a directory", path.display())));
    }
    if !kind.is_file() {
        return Err(Failure::new(format_args!(
            "{} already exists and is not a regular file; give another name, or - for standard output",
            path.display()
        )));
    }
    if force { Ok(()) } else { Err(there_already(path)) }
}

fn there_already(path: &Path) -> Failure {
    Failure::new(format_args!("{} already exists; use --force to replace it", path.display()))
}

/// Saves the state of the cluster to a file or to standard output.
pub(super) async fn run(
    backup: &Backup,
    servers: &Servers,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let series = backup.keep.map(|keep| Series::of(&backup.file, keep)).transpose()?;
    let (info, bytes) = match &backup.data_dir {
        Some(data_dir) => {
            refuse_existing(&backup.file, backup.force)?;
            let state = chancery_store::Backup::of_directory(data_dir).map_err(Failure::new)?;
            if let Some(reason) = state.info().diverged.as_ref().filter(|_| !backup.allow_diverged)
            {
                return Err(Failure::new(format_args!(
                    "cannot back up {}: its replica has diverged, so its state may be wrong: {reason}; back up \
                     another replica, or use --allow-diverged if no other replica is left",
                    data_dir.display()
                )));
            }
            let mut pending = Pending::create(&backup.file, backup.force)?;
            for piece in state.pieces() {
                pending.write(&piece)?;
            }
            pending.finish()?
        }
        None => fetch(servers, backup).await?,
    };
    if is_standard_output(&backup.file) {
        // Standard output carries the backup, so the summary goes to standard error.
        let mut out = io::stderr();
        let answer = &mut Answer::new(&mut out, answer.output);
        return show(&info, bytes, backup, &[], answer);
    }
    let (deleted, problems) = match (series, backup.keep) {
        (Some(series), Some(keep)) => {
            series.delete_older(keep, |path| cluster_of(path) == Some(info.cluster_id))
        }
        _ => (Vec::new(), Vec::new()),
    };
    show(&info, bytes, backup, &deleted, answer)?;
    // The backup is complete, so the command succeeds.
    for problem in problems {
        drop(writeln!(io::stderr(), "warning: {}", plain(&problem)));
    }
    Ok(())
}

fn show(
    info: &BackupInfo,
    bytes: u64,
    backup: &Backup,
    deleted: &[PathBuf],
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let file = backup.file.display().to_string();
    if answer.output == Output::Text {
        let (revision, when) = (info.revision, timestamp(info.time_ms));
        let resources = count(info.n_resources, "resource");
        let what = match info.source {
            BackupSource::Current => None,
            BackupSource::Stale => Some(
                "the state of this replica; other replicas may have newer revisions".to_owned(),
            ),
            BackupSource::Directory => Some(format!(
                "the whole log of replica {}, up to entry {} of term {}; of several such backups, use the one with \
                 the greatest term, and within that term the one with the greatest entry",
                info.replica_id, info.position.1, info.position.0
            )),
        };
        let file = plain(&file);
        return answer.text(|out| {
            writeln!(out, "{file}: revision {revision}, {resources}, {bytes} bytes, {when}")?;
            what.iter().try_for_each(|what| writeln!(out, "it is {what}"))?;
            for older in deleted {
                writeln!(out, "deleted the older backup {}", plain(&older.display().to_string()))?;
            }
            warn_of_divergence(info, out)
        });
    }
    let mut value = describe(info);
    value["file"] = json!(file);
    value["bytes"] = json!(bytes);
    if backup.keep.is_some() {
        let deleted: Vec<String> = deleted.iter().map(|path| path.display().to_string()).collect();
        value["deleted"] = json!(deleted);
    }
    answer.json(&value)
}

async fn fetch(servers: &Servers, backup: &Backup) -> Result<(BackupInfo, u64), Failure> {
    let mut pending = Pending::create(&backup.file, backup.force)?;
    let client = BackupServiceClient::new(servers.any_channel().await?);
    let mut client = client.max_decoding_message_size(usize::MAX);
    let request = pb::BackupRequest { stale: backup.stale };
    let response = client.backup(request).await.map_err(|status| refusal(&status))?;
    let mut pieces = response.into_inner();
    while let Some(piece) = pieces.message().await.map_err(|status| refusal(&status))? {
        pending.write(&piece.data)?;
    }
    pending.finish()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Concurrent commands do not write to the same file, and the first file to get the name keeps
    /// it.
    #[test]
    fn concurrent_backups_do_not_share_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let create = || match Pending::create(&path, false).unwrap().target {
            Target::File { file, .. } => file,
            Target::Out(_) => panic!("the target is standard output"),
        };
        let (mut first, mut second) = (create(), create());
        first.write_all(b"first").unwrap();
        second.write_all(b"second, longer").unwrap();
        give_name(&path, false, first).unwrap();
        let refused = give_name(&path, false, second).unwrap_err();
        assert!(refused.lines[0].ends_with("already exists; use --force to replace it"));
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(
            fs::read_dir(directory.path()).unwrap().count(),
            1,
            "the temporary file of the other command is removed"
        );

        let mut third = create_anyway(&path);
        third.write_all(b"third").unwrap();
        give_name(&path, true, third).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"third");
    }

    fn create_anyway(path: &Path) -> NamedTempFile {
        match Pending::create(path, true).unwrap().target {
            Target::File { file, .. } => file,
            Target::Out(_) => panic!("the target is standard output"),
        }
    }
}
