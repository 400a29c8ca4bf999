//! Reads that several pages need.

use chancery_admin_proto::v1 as pb;
use chancery_console::Part;
use futures::TryStreamExt;

use crate::{AdminError, ctx::Call, node_list::NodePages, operations};

/// Returns the pieces of a list of nodes as one message.
pub(super) async fn pieces(pages: NodePages) -> Result<pb::ListNodesResponse, AdminError> {
    let add = |mut all: pb::ListNodesResponse, mut piece: pb::ListNodesResponse| async move {
        all.nodes.append(&mut piece.nodes);
        all.disconnected.append(&mut piece.disconnected);
        all.held.append(&mut piece.held);
        let pb::ListNodesResponse { nodes, disconnected, held, .. } = all;
        Ok(pb::ListNodesResponse { nodes, disconnected, held, ..piece })
    };
    pages.0.try_fold(pb::ListNodesResponse::default(), add).await
}

/// Runs a read with the newest state. If no leader confirms it, reads the state of this replica, and returns a note.
pub(super) async fn or_stale<T, F>(
    run: impl Fn(bool) -> F,
) -> Result<(T, Option<String>), AdminError>
where
    F: Future<Output = Result<T, AdminError>>,
{
    match run(false).await {
        Err(AdminError::Unavailable(reason)) => {
            let reason = reason.split(';').next().unwrap_or_default();
            let note = format!("This is the state of this replica, which may be old: {reason}.");
            Ok((run(true).await?, Some(note)))
        }
        answer => Ok((answer?, None)),
    }
}

/// Returns a part of a page, or the reason why the page lacks it.
pub(super) fn part<T>(answer: Result<T, AdminError>) -> Part<T> {
    answer.map_err(|error| error.to_string())
}

/// Returns how many sessions of all replicas have acknowledged a revision now.
pub(super) async fn acknowledged(call: &Call, revision: u64) -> Result<pb::WaitResult, AdminError> {
    let request = pb::WaitRequest { revision, wait_ms: Some(0), ..pb::WaitRequest::default() };
    operations::wait(call, request).await
}
