//! Commits the messages of a source.
//!
//! The task of a source runs on the runtime `chancery`, as the shards do. Work whose time grows with a message or with
//! the stored collection therefore runs on a blocking thread: decoding, checking, comparing and freeing. The task waits
//! for it, so a source uses one blocking thread at a time.

use std::{mem, sync::Arc, time::SystemTime};

use chancery_model::{
    Expectation, Outcome, Precondition, Refusal, ResourceKey, ResourceName, State, Transaction,
    TransactionMeta, Upsert,
};
use chancery_proto::istio::mcp::v1alpha1::RequestResources;
use chancery_store::{Replica, TransactError};
use tokio::task::spawn_blocking;

use crate::{
    message::Resources,
    sink::{Change, Failure, Settings, Sink, Step},
};

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

/// The result of the check of a message.
enum Checked {
    /// The message changes nothing.
    Unchanged,
    Commit(Box<Transaction>),
    Answer(Result<Answer, String>),
}

/// Runs work on a blocking thread.
///
/// # Errors
/// If the work panics: a message that meets a defect ends its stream, and not the task of its source.
pub(crate) async fn off_runtime<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let done = spawn_blocking(work).await;
    done.map_err(|error| format!("cannot handle a message because of a defect: {error}"))
}

/// Runs work with the session on a blocking thread. If the work fails, or the caller is dropped meanwhile, the session
/// starts again, as with a new stream.
///
/// # Errors
/// As [`off_runtime`].
pub(crate) async fn with_sink<T: Send + 'static>(
    sink: &mut Sink,
    work: impl FnOnce(&mut Sink) -> T + Send + 'static,
) -> Result<T, String> {
    let empty = Sink::new(sink.settings().clone());
    let mut moved = mem::replace(sink, empty);
    let work = move || {
        let done = work(&mut moved);
        (moved, done)
    };
    let (returned, done) = off_runtime(work).await?;
    *sink = returned;
    Ok(done)
}

/// Checks and commits a message. A message that changes nothing commits nothing.
///
/// # Errors
/// If the message cannot be answered.
pub(crate) async fn ingest(
    sink: &mut Sink,
    replica: &Replica,
    message: &Arc<Resources>,
) -> Result<Answer, String> {
    for _ in 0..ATTEMPTS_MAX {
        let (state, checked) = (replica.state(), Arc::clone(message));
        let outcome = match with_sink(sink, move |sink| check(sink, &checked, &state)).await? {
            Checked::Answer(answer) => return answer,
            Checked::Unchanged => Ok(()),
            Checked::Commit(transaction) => match replica.transact(*transaction).await {
                Ok(Outcome::Committed(_)) => Ok(()),
                // Another author changed a resource. Compare the message with the new state.
                Ok(Outcome::Refused(Refusal::Resource { .. })) => continue,
                Ok(Outcome::Refused(refusal)) => Err(Failure::invalid(refusal.to_string())),
                Err(error) => Err(failure(&error)),
            },
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

/// Checks a message, and makes the transaction that commits it.
fn check(sink: &mut Sink, message: &Resources, state: &State) -> Checked {
    match sink.on_message(message, state) {
        Step::Commit(change) if change.is_empty() => Checked::Unchanged,
        Step::Commit(change) => {
            Checked::Commit(Box::new(transaction(sink.settings(), change, message, state)))
        }
        Step::Reject(request) => Checked::Answer(Ok(Answer { request, ends_stream: false })),
        Step::Close(reason) => Checked::Answer(Err(reason)),
    }
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

#[cfg(test)]
mod tests {
    use std::future::ready;

    use bytes::Bytes;
    use chancery_model::{ScopeName, TypeUrl};
    use chancery_proto::istio::mcp::v1alpha1::{Metadata, Resource};
    use chancery_store::Config;
    use prost::Message as _;
    use tokio::{runtime::Builder, sync::oneshot};

    use super::*;
    use crate::sink::Guard;

    const COLLECTION: &str = "networking.istio.io/v1alpha3/Gateway";

    fn sink() -> Sink {
        Sink::new(Settings {
            source: "galley".to_owned(),
            sink_id: "chancery".to_owned(),
            scope: ScopeName::new("mesh").unwrap(),
            collections: vec![TypeUrl::new(COLLECTION).unwrap()],
            incremental: false,
            guard: Guard::default(),
        })
    }

    /// A full state with one resource of about `len` bytes, or none.
    fn message(len: Option<usize>) -> Arc<Resources> {
        let resource = |len| {
            let description = [("note".to_owned(), "x".repeat(len))].into();
            let metadata = Metadata {
                name: "a/b".to_owned(),
                annotations: description,
                ..Metadata::default()
            };
            let body = prost_types::Any { type_url: "x.y/a.B".to_owned(), value: Vec::new() };
            let resource = Resource { metadata: Some(metadata), body: Some(body) };
            Bytes::from(resource.encode_to_vec())
        };
        Arc::new(Resources {
            collection: COLLECTION.to_owned(),
            nonce: "n".to_owned(),
            resources: len.map(resource).into_iter().collect(),
            ..Resources::default()
        })
    }

    #[tokio::test]
    async fn panic_of_a_check_is_the_error_of_its_stream() {
        let mut sink = sink();
        let error = with_sink(&mut sink, |_| panic!("on purpose")).await.map(|(): ()| ());
        assert!(error.unwrap_err().contains("cannot handle a message because of a defect"));
        let collections = with_sink(&mut sink, |sink| sink.settings().collections.len()).await;
        assert_eq!(collections, Ok(1), "the next stream has a session");
    }

    /// The task waits for the only blocking thread, so the thread of the runtime did not check the message. A check that
    /// blocks the thread of the runtime ends in the first poll, or panics in `block_in_place`.
    #[test]
    fn messages_of_any_size_are_checked_on_a_blocking_thread() {
        let directory = tempfile::tempdir().unwrap();
        let data_dir = directory.path().to_owned();
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
        runtime.unwrap().block_on(async {
            let config = Config { data_dir, free_bytes_min: 0, ..Config::default() };
            let replica = Replica::open(config).await.unwrap();
            let mut sink = sink();
            for message in [message(None), message(Some(100)), message(Some(300 << 10))] {
                let (release, occupied) = oneshot::channel::<()>();
                let occupied = spawn_blocking(move || occupied.blocking_recv());
                {
                    let mut ingested = std::pin::pin!(ingest(&mut sink, &replica, &message));
                    tokio::select! {
                        biased;
                        _ = &mut ingested => panic!("the thread of the runtime checked a message"),
                        () = ready(()) => {}
                    }
                    release.send(()).unwrap();
                    let answer = ingested.await.unwrap();
                    assert_eq!(answer.request.error_detail, None);
                }
                occupied.await.unwrap().unwrap();
                let stored = replica.state();
                let stored =
                    stored.collection(&sink.settings().scope, &sink.settings().collections[0]);
                let n_stored = stored.map_or(0, |stored| stored.resources.len());
                assert_eq!(n_stored, message.resources.len());
            }
            replica.shutdown().await.unwrap();
        });
    }
}
