//! Encodes and checks commands. Large commands are processed on a thread for blocking work, so that they do not
//! block the threads of the runtime.

use bytes::Bytes;
use chancery_model::{Reseal, Revision, Transaction};
use chancery_raft_proto::v1 as pb;
use prost::Message;

use crate::{
    TransactError,
    format::{
        access_codec::access_op_to_proto,
        codec::{
            Command, Request, command_from_proto, digest, request_to_proto, transaction_to_proto,
        },
        keys_codec::{key_op_to_proto, sealed_to_proto},
        request_id::RequestId,
    },
};

/// The maximum length in bytes of a command that is encoded or checked on the runtime's own threads.
const INLINE_BYTES_MAX: usize = 64 << 10;
/// The assumed length in bytes of an operation without its body.
const OPERATION_BYTES: usize = 100;

/// Converts a transaction with its request to a command. `request_digest` is set if the transaction depends on
/// the state; otherwise the digest is that of the transaction.
pub(crate) async fn command_of(
    id: RequestId,
    since: Revision,
    request_digest: Option<u64>,
    transaction: Transaction,
) -> Result<pb::Command, TransactError> {
    run_sized(estimated_len(&transaction), move || {
        let transaction = transaction_to_proto(&transaction);
        let digest = request_digest.unwrap_or_else(|| digest(&transaction));
        let request = Request { id, repeated: false, since, digest };
        pb::Command {
            command: Some(pb::command::Command::Transaction(transaction)),
            request: Some(request_to_proto(&request)),
            retention: None,
        }
    })
    .await
}

/// Encodes a command. Returns its bytes and the command.
pub(crate) async fn encode(command: pb::Command) -> Result<(Bytes, pb::Command), TransactError> {
    let encode = |command: pb::Command| (command.encode_to_vec().into(), command);
    run_sized(command.encoded_len(), move || encode(command)).await
}

/// Returns the bytes of a command, or `None` if it cannot be applied. A command that cannot be applied must
/// never enter the log, because it would stop every replica.
pub(crate) async fn encode_checked(command: pb::Command) -> Result<Option<Bytes>, TransactError> {
    run_sized(command.encoded_len(), move || {
        let bytes = command.encode_to_vec().into();
        matches!(command_from_proto(command), Ok(Command::Transact { .. })).then_some(bytes)
    })
    .await
}

/// Estimates the length of the command of a transaction in bytes.
fn estimated_len(transaction: &Transaction) -> usize {
    let Transaction { preconditions, deletes, prune, upserts, assignments, access, .. } =
        transaction;
    let Transaction { keys, reseals, .. } = transaction;
    let operations =
        preconditions.len() + deletes.len() + prune.len() + upserts.len() + assignments.len();
    let access: usize = access.iter().map(|op| access_op_to_proto(op).encoded_len()).sum();
    let keys: usize = keys.iter().map(|op| key_op_to_proto(op).encoded_len()).sum();
    let sealed = |reseal: &Reseal| sealed_to_proto(&reseal.sealed).encoded_len();
    let bodies: usize = upserts.iter().map(|upsert| upsert.draft.body.len()).sum();
    let reseals: usize = reseals.iter().map(|reseal| OPERATION_BYTES + sealed(reseal)).sum();
    bodies + access + keys + reseals + OPERATION_BYTES * operations
}

/// Runs work on a command of `len` bytes before it is sent.
///
/// # Errors
/// [`TransactError::NotSent`] if the work panics or the runtime shuts down.
pub(crate) async fn run_sized<T: Send + 'static>(
    len: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, TransactError> {
    if len <= INLINE_BYTES_MAX {
        return Ok(work());
    }
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| {
        TransactError::NotSent(format!("cannot encode or check a command: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn command_that_cannot_be_encoded_is_not_sent() {
        let done = run_sized(INLINE_BYTES_MAX + 1, || panic!("on purpose")).await;
        let error: TransactError = done.map(|(): ()| ()).unwrap_err();
        let TransactError::NotSent(reason) = &error else { panic!("{error:?}") };
        assert!(reason.contains("cannot encode or check a command"), "{reason}");
    }
}
