//! `backup` and `restore`.

use std::{
    fs::{File, Permissions},
    io::{self, IsTerminal, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use chancery_model::{Revision, TransactionMeta};
use chancery_proto::admin::v1::{self as pb, backup_service_client::BackupServiceClient};
use chancery_store::{Backup, BackupCheck, BackupInfo, BackupSource, RestoreOptions};
use serde_json::json;
use tempfile::NamedTempFile;

use super::{
    Answer, Failure, args,
    args::Output,
    client::{Servers, refusal},
    count, plain,
    time::timestamp,
};

/// The standard output in place of a file.
const STANDARD_OUTPUT: &str = "-";

/// Where a backup goes. It is checked on its way.
struct Pending {
    target: Target,
    bytes: u64,
    check: BackupCheck,
}

enum Target {
    /// A file that has its name only when it is whole. Until then it has one that no other has, in the
    /// same directory; it is removed if it is not finished.
    File { path: PathBuf, force: bool, file: NamedTempFile },
    /// Whoever reads it learns from the exit code whether it is whole.
    Out(io::Stdout),
}

impl Pending {
    fn create(path: &Path, force: bool) -> Result<Self, Failure> {
        let target = match is_standard_output(path) {
            true if io::stdout().is_terminal() => {
                return Err(Failure::new("a backup is not written to a terminal"));
            }
            true => Target::Out(io::stdout()),
            false => {
                refuse_existing(path, force)?;
                // For its owner alone: it has all secrets of the fleet.
                let file = tempfile::Builder::new()
                    .prefix(".chancery-backup-")
                    .suffix(".tmp")
                    .permissions(Permissions::from_mode(0o600))
                    .tempfile_in(parent(path))
                    .map_err(|error| failed("create a file for", path, &error))?;
                Target::File { path: path.to_owned(), force, file }
            }
        };
        Ok(Self { target, bytes: 0, check: BackupCheck::default() })
    }

    /// Writes the next bytes, if they are those of a backup.
    fn write(&mut self, data: &[u8]) -> Result<(), Failure> {
        self.check
            .push(data)
            .map_err(|error| Failure::new(format_args!("what came is not a backup: {error}")))?;
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

    /// Gives the file its name, if all of it is there.
    fn finish(self) -> Result<(BackupInfo, u64), Failure> {
        let info = self.check.finish().map_err(|error| {
            Failure::new(format_args!("what came is not a whole backup: {error}"))
        })?;
        match self.target {
            Target::File { path, force, file } => give_name(&path, force, file)?,
            Target::Out(mut out) => out.flush().map_err(|error| not_written(&error))?,
        }
        Ok((info, self.bytes))
    }
}

/// A backup of which not all was taken is none, even if nobody reads on.
fn not_written(error: &io::Error) -> Failure {
    Failure::new(format_args!("cannot write the backup to the standard output: {error}"))
}

fn is_standard_output(path: &Path) -> bool {
    path == Path::new(STANDARD_OUTPUT)
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn give_name(path: &Path, force: bool, file: NamedTempFile) -> Result<(), Failure> {
    file.as_file().sync_all().map_err(|error| failed("sync", path, &error))?;
    // Another may have come meanwhile.
    refuse_existing(path, force)?;
    let renamed = if force { file.persist(path) } else { file.persist_noclobber(path) };
    renamed.map_err(|refused| match refused.error.kind() {
        io::ErrorKind::AlreadyExists => there_already(path),
        _ => failed("rename what was written to", path, &refused.error),
    })?;
    let parent = parent(path);
    let synced = File::open(parent).and_then(|directory| directory.sync_all());
    synced.map_err(|error| failed("sync", parent, &error))
}

/// Whatever is there stays, unless it is a file and may go.
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
            "{} is there already, and is not a regular file: give another name, or - for the standard output",
            path.display()
        )));
    }
    if force { Ok(()) } else { Err(there_already(path)) }
}

fn there_already(path: &Path) -> Failure {
    Failure::new(format_args!("{} is there already; --force takes its place", path.display()))
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::new(format_args!("cannot {what} {}: {error}", path.display()))
}

/// Saves the state.
pub(super) async fn backup(
    servers: &Servers,
    backup: &args::Backup,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let (info, bytes) = match &backup.data_dir {
        Some(data_dir) => {
            refuse_existing(&backup.file, backup.force)?;
            let state = Backup::of_directory(data_dir).map_err(Failure::new)?;
            let mut pending = Pending::create(&backup.file, backup.force)?;
            for piece in state.pieces() {
                pending.write(&piece)?;
            }
            pending.finish()?
        }
        None => fetch(servers, backup).await?,
    };
    if is_standard_output(&backup.file) {
        // What is said of it does not go into it.
        let mut out = io::stderr();
        return show(&info, bytes, backup, &mut Answer { out: &mut out, output: answer.output });
    }
    show(&info, bytes, backup, answer)
}

fn show(
    info: &BackupInfo,
    bytes: u64,
    backup: &args::Backup,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let file = backup.file.display().to_string();
    if answer.output == Output::Text {
        let (revision, when) = (info.revision, timestamp(info.time_ms));
        let resources = count(info.n_resources, "resource");
        let what = match info.source {
            BackupSource::Current => None,
            BackupSource::Stale => Some("what this replica has; others may have more".to_owned()),
            BackupSource::Directory => Some(format!(
                "all that the log of replica {} has, up to entry {} of term {}; of several replicas take the \
                 one with the greatest term, and of those the one with the greatest entry",
                info.replica_id, info.position.1, info.position.0
            )),
        };
        let file = plain(&file);
        return answer.text(|out| {
            writeln!(out, "{file}: revision {revision}, {resources}, {bytes} bytes, {when}")?;
            what.iter().try_for_each(|what| writeln!(out, "it is {what}"))
        });
    }
    let mut value = describe(info);
    value["file"] = json!(file);
    value["bytes"] = json!(bytes);
    answer.json(&value)
}

async fn fetch(servers: &Servers, backup: &args::Backup) -> Result<(BackupInfo, u64), Failure> {
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

fn describe(info: &BackupInfo) -> serde_json::Value {
    json!({
        "revision": info.revision.0,
        "resources": info.n_resources,
        "time": timestamp(info.time_ms),
        "source": match info.source {
            BackupSource::Current => "current",
            BackupSource::Stale => "stale",
            BackupSource::Directory => "directory",
        },
        "replica_id": info.replica_id,
        "cluster_id": info.cluster_id.to_string(),
        "incarnation": info.incarnation.to_string(),
        "log_term": info.position.0,
        "log_index": info.position.1,
        "program": info.program,
    })
}

/// Makes a data directory.
pub(super) fn restore(restore: args::Restore, answer: &mut Answer<'_>) -> Result<(), Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let meta = TransactionMeta {
        label: None,
        author: restore.author.unwrap_or_else(|| std::env::var("USER").unwrap_or_default()),
        reason: restore.reason.unwrap_or_default(),
        time_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
    };
    let options = RestoreOptions {
        data_dir: restore.data_dir,
        replica_id: restore.replica_id,
        after: Revision(restore.after_revision),
        meta,
    };
    let restored = chancery_store::restore(&restore.file, &options).map_err(Failure::new)?;
    let data_dir = options.data_dir.display().to_string();
    if answer.output == Output::Text {
        let (from, resources) = (&restored.backup, count(restored.backup.n_resources, "resource"));
        let data_dir = plain(&data_dir);
        return answer.text(|out| {
            writeln!(
                out,
                "{data_dir}: {resources} of revision {} ({}), from now on revision {}",
                from.revision,
                timestamp(from.time_ms),
                restored.revision
            )?;
            writeln!(
                out,
                "replica {} is the first of the new cluster {}; others join it with empty directories",
                options.replica_id, restored.cluster_id
            )
        });
    }
    answer.json(&json!({
        "data_dir": data_dir,
        "replica_id": options.replica_id,
        "cluster_id": restored.cluster_id.to_string(),
        "incarnation": restored.incarnation.to_string(),
        "revision": restored.revision.0,
        "backup": describe(&restored.backup),
    }))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Two commands that write at once do not write into the same file, and what has the name first keeps it.
    #[test]
    fn two_backups_at_once_do_not_touch_each_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let create = || match Pending::create(&path, false).unwrap().target {
            Target::File { file, .. } => file,
            Target::Out(_) => panic!("it goes to the standard output"),
        };
        let (mut first, mut second) = (create(), create());
        first.write_all(b"first").unwrap();
        second.write_all(b"second, longer").unwrap();
        give_name(&path, false, first).unwrap();
        let refused = give_name(&path, false, second).unwrap_err();
        assert!(refused.lines[0].ends_with("is there already; --force takes its place"));
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(
            fs::read_dir(directory.path()).unwrap().count(),
            1,
            "nothing is left of the other"
        );

        let mut third = create_anyway(&path);
        third.write_all(b"third").unwrap();
        give_name(&path, true, third).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"third");
    }

    fn create_anyway(path: &Path) -> NamedTempFile {
        match Pending::create(path, true).unwrap().target {
            Target::File { file, .. } => file,
            Target::Out(_) => panic!("it goes to the standard output"),
        }
    }
}
