//! The sealing of secrets on the replica that takes a write, before anything of them leaves it.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use chancery_model::{Keys, Transaction, TransactionMeta, Upsert};
use chancery_secrets::{KeysError, Secrets};

use super::Replica;
use crate::{TransactError, replication::command::run_sized};

/// The author of the keys of a cluster in its history.
const AUTHOR: &str = "chancery";
/// The time within which the keys are tried before a replica serves without them.
const KEYS_TIMEOUT: Duration = Duration::from_secs(10);

fn failed(error: &KeysError) -> TransactError {
    TransactError::Secrets(error.to_string())
}

impl Replica {
    /// Returns the keys of this replica.
    #[must_use]
    pub fn secrets(&self) -> &Secrets {
        &self.core().config.secrets
    }

    /// Waits until the replica has tried to unwrap its keys and to open its secrets, for a bounded time.
    pub async fn open_secrets(&self) {
        let mut tried = self.core().storage.has_tried_keys.clone();
        // Without keys, the replica serves everything else.
        drop(tokio::time::timeout(KEYS_TIMEOUT, tried.wait_for(|tried| *tried)).await);
    }

    fn keys(&self) -> Arc<Keys> {
        Arc::clone(&self.core().storage.published.state().keys)
    }

    /// Seals the bodies with secrets that are not sealed yet. Costs nothing if the cluster seals nothing.
    pub(super) async fn seal(
        &self,
        transaction: Transaction,
    ) -> Result<Transaction, TransactError> {
        let (keys, secrets) = (self.keys(), self.secrets());
        if transaction.upserts.is_empty() || !secrets.may_seal(&keys) {
            return Ok(transaction);
        }
        let (transaction, sealed) = self.seal_with(keys, transaction).await?;
        let Err(error) = sealed else { return Ok(transaction) };
        if !secrets.has_source() {
            return Err(failed(&error));
        }
        // The first secret of the cluster, or a key that another replica has just added.
        if !self.keys().exist() {
            self.create_keys().await?;
        }
        secrets.refresh(&self.keys()).await;
        let (transaction, sealed) = self.seal_with(self.keys(), transaction).await?;
        sealed.map(|()| transaction).map_err(|error| failed(&error))
    }

    async fn seal_with(
        &self,
        keys: Arc<Keys>,
        mut transaction: Transaction,
    ) -> Result<(Transaction, Result<(), KeysError>), TransactError> {
        let secrets = self.secrets().clone();
        let bytes = transaction.upserts.iter().map(|upsert: &Upsert| upsert.draft.body.len()).sum();
        run_sized(bytes, move || {
            let sealed = secrets.seal_all(&keys, &mut transaction.upserts);
            (transaction, sealed)
        })
        .await
    }

    /// Returns why this replica would refuse to seal a transaction.
    #[must_use]
    pub fn sealing_refusal(&self, transaction: &Transaction) -> Option<TransactError> {
        self.secrets().refusal(&self.keys(), &transaction.upserts).map(|error| failed(&error))
    }

    /// Creates the keys of the cluster, unless another replica does.
    async fn create_keys(&self) -> Result<(), TransactError> {
        let create = self.secrets().create().await.map_err(|error| failed(&error))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let meta = TransactionMeta {
            author: AUTHOR.to_owned(),
            reason: "create the keys of secrets".to_owned(),
            time_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            ..TransactionMeta::default()
        };
        let transaction = Transaction { keys: vec![create], meta, ..Transaction::default() };
        Box::pin(self.transact(transaction)).await.map(drop)
    }
}
