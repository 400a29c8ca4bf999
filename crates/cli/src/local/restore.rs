//! The command `restore`.

use std::{
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};

use chancery_model::{Revision, TransactionMeta};
use chancery_store::RestoreOptions;
use clap::Args;
use serde_json::json;

use crate::{
    answer::{Answer, Output},
    backup_info::{describe, warn_of_divergence},
    failure::Failure,
    text::{count, plain},
    time::timestamp,
};

/// The arguments of `restore`.
#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// Backup to restore
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Create this directory; it must be empty or must not exist
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Create the directory for the replica with this ID, at least 1
    #[arg(long, value_name = "N", default_value_t = 1)]
    replica_id: u64,
    /// Use revisions after this one
    ///
    /// If this backup was restored before, give the last revision of the cluster that was created
    /// then.
    #[arg(long, value_name = "REVISION", default_value_t = 0)]
    after_revision: u64,
    /// Record this author in the history [default: $USER, or none if that is unset]
    #[arg(long)]
    author: Option<String>,
    /// Record this reason in the history [default: none]
    #[arg(long)]
    reason: Option<String>,
}

impl Restore {
    /// Creates a data directory from a backup.
    pub(crate) fn run(self, answer: &mut Answer<'_>) -> Result<(), Failure> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let meta = TransactionMeta {
            label: None,
            author: self.author.unwrap_or_else(|| std::env::var("USER").unwrap_or_default()),
            reason: self.reason.unwrap_or_default(),
            time_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            ..TransactionMeta::default()
        };
        let options = RestoreOptions {
            data_dir: self.data_dir,
            replica_id: self.replica_id,
            after: Revision(self.after_revision),
            meta,
        };
        let restored = chancery_store::restore(&self.file, &options).map_err(Failure::new)?;
        let data_dir = options.data_dir.display().to_string();
        if answer.output == Output::Text {
            let (from, resources) =
                (&restored.backup, count(restored.backup.n_resources, "resource"));
            let data_dir = plain(&data_dir);
            return answer.text(|out| {
            writeln!(
                out,
                "{data_dir}: restored {resources} of revision {} ({}) as revision {}",
                from.revision,
                timestamp(from.time_ms),
                restored.revision
            )?;
            writeln!(
                out,
                "replica {} is the first replica of the new cluster {}; other replicas join with empty directories",
                options.replica_id, restored.cluster_id
            )?;
            warn_of_divergence(from, out)
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
}
