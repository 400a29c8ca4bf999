//! The sealing of secrets on the replica that takes a write, before anything of them leaves it.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use chancery_model::{Keys, Transaction, TransactionMeta, Upsert};
use chancery_secrets::{KeysError, Secrets};
use futures::future::BoxFuture;

use crate::{
    TransactError,
    replication::{command::run_sized, core::Core},
};

/// The author of the keys of a cluster in its history.
const AUTHOR: &str = "chancery";
/// The time within which the keys are tried before a replica serves without them.
const KEYS_TIMEOUT: Duration = Duration::from_secs(10);

fn failed(error: &KeysError) -> TransactError {
    TransactError::Secrets(error.to_string())
}

/// Waits until the replica has tried to unwrap its keys and to open its secrets, for a bounded time.
pub(super) async fn keys_tried(core: &Core) {
    let mut tried = core.storage.has_tried_keys.clone();
    // Without keys, the replica serves everything else.
    drop(tokio::time::timeout(KEYS_TIMEOUT, tried.wait_for(|tried| *tried)).await);
}

fn keys(core: &Core) -> Arc<Keys> {
    Arc::clone(&core.storage.published.state().keys)
}

/// Seals the bodies with secrets that are not sealed yet. Costs nothing if the cluster seals nothing. `create_keys` runs
/// only if the cluster has no keys.
pub(super) async fn seal<'a>(
    core: &Core,
    transaction: Transaction,
    create_keys: impl FnOnce() -> BoxFuture<'a, Result<(), TransactError>>,
) -> Result<Transaction, TransactError> {
    let (cluster_keys, secrets) = (keys(core), &core.config.secrets);
    if transaction.upserts.is_empty() || !secrets.may_seal(&cluster_keys) {
        return Ok(transaction);
    }
    let (transaction, sealed) = seal_with(secrets, cluster_keys, transaction).await?;
    let Err(error) = sealed else { return Ok(transaction) };
    if !secrets.has_source() {
        return Err(failed(&error));
    }
    // The first secret of the cluster, or a key that another replica has just added.
    if !keys(core).exist() {
        create_keys().await?;
    }
    // Almost no write needs this future, and all would move it.
    Box::pin(secrets.refresh(&keys(core))).await;
    let (transaction, sealed) = seal_with(secrets, keys(core), transaction).await?;
    sealed.map(|()| transaction).map_err(|error| failed(&error))
}

async fn seal_with(
    secrets: &Secrets,
    keys: Arc<Keys>,
    mut transaction: Transaction,
) -> Result<(Transaction, Result<(), KeysError>), TransactError> {
    let secrets = secrets.clone();
    let bytes = transaction.upserts.iter().map(|upsert: &Upsert| upsert.draft.body.len()).sum();
    run_sized(bytes, move || {
        let sealed = secrets.seal_all(&keys, &mut transaction.upserts);
        (transaction, sealed)
    })
    .await
}

/// Returns why this replica would refuse to seal a transaction.
pub(super) fn refusal(core: &Core, transaction: &Transaction) -> Option<TransactError> {
    let refusal = core.config.secrets.refusal(&keys(core), &transaction.upserts);
    refusal.map(|error| failed(&error))
}

/// Returns the transaction that creates the keys of the cluster.
pub(super) async fn keys_creation(secrets: &Secrets) -> Result<Transaction, TransactError> {
    let create = secrets.create().await.map_err(|error| failed(&error))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let meta = TransactionMeta {
        author: AUTHOR.to_owned(),
        reason: "create the keys of secrets".to_owned(),
        time_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
        ..TransactionMeta::default()
    };
    Ok(Transaction { keys: vec![create], meta, ..Transaction::default() })
}
