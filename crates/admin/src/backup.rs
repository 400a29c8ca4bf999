//! `chancery.admin.v1.BackupService`: the state as the bytes of a backup file.

use std::time::Duration;

use chancery_admin_proto::v1 as pb;
use chancery_store::{Backup, BackupError, ReadError};
use futures::Stream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::{AdminError, ctx::Ctx, record::Operation};

/// The maximum time for a replica to confirm that it has everything that was committed.
const BARRIER_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of pieces that wait for the network. The producer waits when it is reached.
const PIECES_WAITING: usize = 4;

/// A backup that is sent.
pub(crate) struct BackupPieces(Backup);

/// Returns the record of [`backup`]. A backup contains all secrets.
pub(crate) fn record(request: &pb::BackupRequest) -> Operation {
    Operation::new("backup").detail("stale", request.stale)
}

/// Takes a backup.
pub(crate) async fn backup(
    ctx: &Ctx,
    request: pb::BackupRequest,
) -> Result<BackupPieces, AdminError> {
    let replica = &ctx.deps.replica;
    let backup =
        if request.stale { replica.backup_stale() } else { replica.backup(BARRIER_TIMEOUT).await };
    let backup = backup.map_err(|error| refusal(&error))?;
    tracing::info!(revision = backup.info().revision.0, "sending a backup");
    Ok(BackupPieces(backup))
}

fn refusal(error: &BackupError) -> AdminError {
    match error {
        BackupError::NotCurrent(reason @ ReadError::Diverged(_)) => {
            AdminError::Unavailable(reason.to_string())
        }
        BackupError::NotCurrent(reason) => AdminError::Unavailable(format!(
            "{reason}; `chancery backup --stale` saves the state of this replica"
        )),
        error => AdminError::Unavailable(error.to_string()),
    }
}

impl BackupPieces {
    /// Returns the pieces. A thread for blocking work encodes them while they are sent, and stops when the client is
    /// gone.
    pub(crate) fn into_stream(self) -> impl Stream<Item = pb::BackupResponse> + Send {
        let (sender, receiver) = mpsc::channel(PIECES_WAITING);
        tokio::task::spawn_blocking(move || {
            for data in self.0.pieces() {
                if sender.blocking_send(pb::BackupResponse { data }).is_err() {
                    return;
                }
            }
        });
        ReceiverStream::new(receiver)
    }
}
