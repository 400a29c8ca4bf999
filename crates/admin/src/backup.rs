//! `chancery.admin.v1.BackupService`: the state as the bytes of a backup file.

use std::{pin::Pin, time::Duration};

use chancery_model::{Target, Verb};
use chancery_proto::admin::v1::{self as pb, backup_service_server::BackupService};
use chancery_store::{Backup, BackupError, ReadError};
use futures::Stream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::{AdminError, audited::Operation, service::Service};

/// The maximum time for a replica to confirm that it has everything that was committed.
const BARRIER_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of pieces that wait for the network. The producer waits when it is reached.
const PIECES_WAITING: usize = 4;

/// The backup service.
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
        let service = self.0.of(request.extensions());
        let replica = &service.replica;
        let stale = request.into_inner().stale;
        let take = async {
            service.authorize(Verb::Backup, Target::Cluster)?;
            let backup =
                if stale { replica.backup_stale() } else { replica.backup(BARRIER_TIMEOUT).await };
            backup.map_err(|error| refusal(&error))
        };
        // A backup contains all secrets.
        let operation = Operation::new("backup").detail("stale", stale);
        let backup = service.audited(operation, take).await?;
        tracing::info!(revision = backup.info().revision.0, "sending a backup");
        Ok(Response::new(Box::pin(pieces(backup))))
    }
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

/// Returns the pieces of a backup. A thread for blocking work encodes them while they are sent, and
/// stops when the client is gone.
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
