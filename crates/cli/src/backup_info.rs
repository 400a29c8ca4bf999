//! The description of a backup.

use std::io::{self, Write};

use chancery_store::{BackupInfo, BackupSource};
use serde_json::json;

use super::{text::plain, time::timestamp};

/// Returns the description of a backup as JSON.
pub(crate) fn describe(info: &BackupInfo) -> serde_json::Value {
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
        "diverged": info.diverged,
    })
}

/// Warns if the replica of a backup had diverged.
pub(crate) fn warn_of_divergence(info: &BackupInfo, out: &mut dyn Write) -> io::Result<()> {
    let Some(reason) = &info.diverged else { return Ok(()) };
    let (id, reason) = (info.replica_id, plain(reason));
    writeln!(
        out,
        "warning: replica {id} had diverged when the backup was made, so the state may be wrong: {reason}"
    )
}
