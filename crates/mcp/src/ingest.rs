//! Commits the messages of a source.

use std::time::SystemTime;

use chancery_model::{
    Expectation, Outcome, Precondition, Refusal, ResourceKey, ResourceName, State, Transaction,
    TransactionMeta, Upsert,
};
use chancery_proto::istio::mcp::v1alpha1::RequestResources;
use chancery_store::{Replica, TransactError};

use crate::{
    message::Resources,
    sink::{Change, Failure, Settings, Sink, Step},
};

/// Messages with more bytes are checked without blocking other tasks.
const SMALL_BYTES_MAX: usize = 256 << 10;
/// The number of attempts of a commit while other authors change the scope.
const ATTEMPTS_MAX: usize = 10;

const RESOURCE_EXHAUSTED: i32 = 8;
const ABORTED: i32 = 10;
const UNAVAILABLE: i32 = 14;

/// The answer to a message.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) request: RequestResources,
    /// Whether the stream ends after the answer. The source does not repeat a rejected message (MCP-45), so only
    /// a new stream repeats a commit that failed for a reason outside the message.
    pub(crate) ends_stream: bool,
}

/// Checks and commits a message. A message that changes nothing commits nothing.
///
/// # Errors
/// If the message cannot be answered.
pub(crate) async fn ingest(
    sink: &mut Sink,
    replica: &Replica,
    message: &Resources,
) -> Result<Answer, String> {
    let removed = message.removed_resources.iter().map(|name| name.len() + 32);
    let len: usize = message.resources.iter().map(|body| body.len() + 32).chain(removed).sum();
    for _ in 0..ATTEMPTS_MAX {
        let state = replica.state();
        let mut check = || sink.on_message(message, &state);
        let step = if len > SMALL_BYTES_MAX { tokio::task::block_in_place(check) } else { check() };
        let change = match step {
            Step::Commit(change) => change,
            Step::Reject(request) => return Ok(Answer { request, ends_stream: false }),
            Step::Close(reason) => return Err(reason),
        };
        let outcome = if change.is_empty() {
            Ok(())
        } else {
            let transaction = transaction(sink.settings(), change, message, &state);
            match replica.transact(transaction).await {
                Ok(Outcome::Committed(_)) => Ok(()),
                // Another author changed a resource. Compare the message with the new state.
                Ok(Outcome::Refused(Refusal::Resource { .. })) => continue,
                Ok(Outcome::Refused(refusal)) => Err(Failure::invalid(refusal.to_string())),
                Err(error) => Err(failure(&error)),
            }
        };
        let ends_stream = matches!(&outcome, Err(failure) if failure.code == UNAVAILABLE);
        return Ok(Answer { request: sink.on_outcome(message, outcome), ends_stream });
    }
    let text = format!(
        "cannot commit: other authors changed the scope {:?} during all {ATTEMPTS_MAX} attempts",
        sink.settings().scope.as_str()
    );
    let request = sink.on_outcome(message, Err(Failure { code: ABORTED, text }));
    Ok(Answer { request, ends_stream: true })
}

/// Returns the transaction of a change. It takes effect only if the resources are as in the state with which the message
/// was compared.
fn transaction(
    settings: &Settings,
    change: Change,
    message: &Resources,
    state: &State,
) -> Transaction {
    let Change { collection, upserts, deletes, .. } = change;
    let scope = &settings.scope;
    let key = |name| ResourceKey { type_url: collection.clone(), name };
    let stored = state.collection(scope, &collection);
    let precondition = |name: &ResourceName| {
        let resource = stored.and_then(|stored| stored.resources.get(name));
        let expectation = resource
            .map_or(Expectation::Absent, |resource| Expectation::Version(resource.version()));
        Precondition::Resource { scope: scope.clone(), key: key(name.clone()), expectation }
    };
    let names = upserts.iter().map(|draft| &draft.key.name).chain(&deletes);
    let preconditions = names.map(precondition).collect();
    let upserts = upserts.into_iter().map(|draft| Upsert { scope: scope.clone(), draft });
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Transaction {
        preconditions,
        deletes: deletes.into_iter().map(|name| (scope.clone(), key(name))).collect(),
        upserts: upserts.collect(),
        meta: TransactionMeta {
            author: format!("mcp/{}", settings.source),
            reason: reason(message),
            time_ms: u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX),
            ..TransactionMeta::default()
        },
        ..Transaction::default()
    }
}

/// Returns the reason that the history shows.
fn reason(message: &Resources) -> String {
    let kind = if message.incremental { "an incremental response" } else { "a full state" };
    format!("{kind} of the collection {}", message.collection)
}

fn failure(error: &TransactError) -> Failure {
    let code = match error {
        TransactError::TooLarge { .. } => RESOURCE_EXHAUSTED,
        TransactError::DiskFull { .. }
        | TransactError::LeaderDiskFull { .. }
        | TransactError::Forgotten
        | TransactError::Reused { .. }
        | TransactError::Timeout(_)
        | TransactError::Failed(_)
        | TransactError::ShutDown
        | TransactError::NoLeader
        | TransactError::Behind(_)
        | TransactError::Busy(_)
        | TransactError::NotSent(_)
        | TransactError::Secrets(_) => UNAVAILABLE,
    };
    let hint = match error {
        TransactError::TooLarge { .. } => " (store.transaction_bytes_max)",
        _ => "",
    };
    Failure { code, text: format!("{error}{hint}") }
}
