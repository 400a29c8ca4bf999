//! `chancery.admin.v1.BackupService`: the state as the bytes of a file.

use std::{pin::Pin, time::Duration};

use chancery_proto::admin::v1::{self as pb, backup_service_server::BackupService};
use chancery_store::{Backup, BackupError, ReadError};
use futures::Stream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::{AdminError, service::Service};

/// How long a replica may take to know that it has all that was committed.
const BARRIER_TIMEOUT: Duration = Duration::from_secs(10);
/// Pieces that wait for the network; making them waits when there are so many.
const PIECES_WAITING: usize = 4;

/// The service.
#[derive(Clone)]
pub(crate) struct GrpcBackup(pub(crate) Service);

#[tonic::async_trait]
impl BackupService for GrpcBackup {
    type BackupStream =
        Pin<Box<dyn Stream<Item = Result<pb::BackupResponse, Status>> + Send + 'static>>;

    async fn backup(
        &self,
        request: Request<pb::BackupRequest>,
    ) -> Result<Response<Self::BackupStream>, Status> {
        let replica = &self.0.replica;
        let backup = match request.into_inner().stale {
            true => replica.backup_stale(),
            false => replica.backup(BARRIER_TIMEOUT).await,
        };
        let backup = backup.map_err(|error| Status::from(refusal(&error)))?;
        tracing::info!(revision = backup.info().revision.0, "a backup is read");
        Ok(Response::new(Box::pin(pieces(backup))))
    }
}

fn refusal(error: &BackupError) -> AdminError {
    match error {
        BackupError::NotCurrent(reason @ ReadError::Diverged(_)) => {
            AdminError::Unavailable(reason.to_string())
        }
        BackupError::NotCurrent(reason) => AdminError::Unavailable(format!(
            "{reason}; `chancery backup --stale` gives what this replica has"
        )),
        error => AdminError::Unavailable(error.to_string()),
    }
}

/// Made as they are sent, on a thread that may take its time. Ends when nobody reads any more.
fn pieces(backup: Backup) -> impl Stream<Item = Result<pb::BackupResponse, Status>> + Send {
    let (sender, receiver) = mpsc::channel(PIECES_WAITING);
    tokio::task::spawn_blocking(move || {
        for data in backup.pieces() {
            if sender.blocking_send(Ok(pb::BackupResponse { data })).is_err() {
                return;
            }
        }
    });
    ReceiverStream::new(receiver)
}
