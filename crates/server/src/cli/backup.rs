//! `backup` and `restore`.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use chancery_model::{Revision, TransactionMeta};
use chancery_proto::admin::v1::{self as pb, backup_service_client::BackupServiceClient};
use chancery_store::{Backup, BackupCheck, BackupInfo, BackupSource, RestoreOptions};
use serde_json::json;

use super::{
    Answer, Failure, args,
    args::Output,
    client::{Servers, refusal},
    count,
    time::timestamp,
};

/// A file that has its name only when it is whole.
struct Pending {
    path: PathBuf,
    temporary: PathBuf,
    file: File,
    bytes: u64,
    check: BackupCheck,
    done: bool,
}

impl Pending {
    fn create(path: &Path, force: bool) -> Result<Self, Failure> {
        if path.is_dir() {
            return Err(Failure::new(format_args!("{} is a directory", path.display())));
        }
        refuse_existing(path, force)?;
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".tmp");
        let temporary = PathBuf::from(temporary);
        // It has all secrets of the fleet.
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary);
        let file = file.map_err(|error| failed("create", &temporary, &error))?;
        let check = BackupCheck::default();
        Ok(Self { path: path.to_owned(), temporary, file, bytes: 0, check, done: false })
    }

    /// Writes the next bytes, if they are those of a backup.
    fn write(&mut self, data: &[u8]) -> Result<(), Failure> {
        self.check
            .push(data)
            .map_err(|error| Failure::new(format_args!("what came is not a backup: {error}")))?;
        self.file.write_all(data).map_err(|error| failed("write", &self.temporary, &error))?;
        self.bytes += data.len() as u64;
        Ok(())
    }

    /// Gives the file its name, if all of it is there.
    fn finish(mut self, force: bool) -> Result<(BackupInfo, u64), Failure> {
        let check = std::mem::take(&mut self.check);
        let info = check.finish().map_err(|error| {
            Failure::new(format_args!("what came is not a whole backup: {error}"))
        })?;
        self.file.sync_all().map_err(|error| failed("sync", &self.temporary, &error))?;
        refuse_existing(&self.path, force)?;
        let renamed = fs::rename(&self.temporary, &self.path);
        renamed.map_err(|error| failed("rename", &self.temporary, &error))?;
        self.done = true;
        let parent = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let synced = File::open(parent).and_then(|directory| directory.sync_all());
        synced.map_err(|error| failed("sync", parent, &error))?;
        Ok((info, self.bytes))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.done {
            // The command has failed already, and has said why.
            drop(fs::remove_file(&self.temporary));
        }
    }
}

fn refuse_existing(path: &Path, force: bool) -> Result<(), Failure> {
    match !force && path.symlink_metadata().is_ok() {
        true => Err(Failure::new(format_args!(
            "{} is there already; --force takes its place",
            path.display()
        ))),
        false => Ok(()),
    }
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
            pending.finish(backup.force)?
        }
        None => fetch(servers, backup).await?,
    };
    let file = backup.file.display().to_string();
    if answer.output == Output::Text {
        let (revision, when) = (info.revision, timestamp(info.time_ms));
        let resources = count(info.n_resources, "resource");
        writeln!(answer.out, "{file}: revision {revision}, {resources}, {bytes} bytes, {when}")?;
        let what = match info.source {
            BackupSource::Current => return Ok(()),
            BackupSource::Stale => "what this replica has; others may have more".to_owned(),
            BackupSource::Directory => format!(
                "all that the log of replica {} has, up to entry {} of term {}; of several replicas take the \
                 one with the greatest term, and of those the one with the greatest entry",
                info.replica_id, info.position.1, info.position.0
            ),
        };
        writeln!(answer.out, "it is {what}")?;
        return Ok(());
    }
    let mut value = describe(&info);
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
    pending.finish(backup.force)
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
        writeln!(
            answer.out,
            "{data_dir}: {resources} of revision {} ({}), from now on revision {}",
            from.revision,
            timestamp(from.time_ms),
            restored.revision
        )?;
        writeln!(
            answer.out,
            "replica {} is the first of the new cluster {}; others join it with empty directories",
            options.replica_id, restored.cluster_id
        )?;
        return Ok(());
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
