//! The operations, once: gRPC and HTTP are two ways to call them.

use std::sync::Arc;

use chancery_fanout::Fanout;
use chancery_store::Replica;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{AdminError, metrics::Metrics};

/// Large pieces of work at a time: inputs that take many times their size while they are read, lists
/// of a whole fleet. Further ones wait.
const LARGE_WORK_MAX: usize = 2;

/// What the admin API works with.
#[derive(Clone)]
pub struct AdminDeps {
    /// The store.
    pub replica: Replica,
    /// The streams.
    pub fanout: Fanout,
    /// Renders the metrics in the text format of Prometheus.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
    /// Cancelled when the replica begins to drain: from then on it is not ready.
    pub drain: CancellationToken,
    /// Largest request, in bytes.
    pub request_bytes_max: u64,
    /// The version of the program.
    pub version: &'static str,
}

impl std::fmt::Debug for AdminDeps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdminDeps")
            .field("request_bytes_max", &self.request_bytes_max)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// The operations of the admin API. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) replica: Replica,
    pub(crate) fanout: Fanout,
    pub(crate) drain: CancellationToken,
    pub(crate) version: &'static str,
    pub(crate) large_work: Arc<Semaphore>,
    pub(crate) metrics: Metrics,
}

impl Service {
    pub(crate) fn new(deps: &AdminDeps) -> Self {
        Self {
            replica: deps.replica.clone(),
            fanout: deps.fanout.clone(),
            drain: deps.drain.clone(),
            version: deps.version,
            large_work: Arc::new(Semaphore::new(LARGE_WORK_MAX)),
            metrics: Metrics::new(),
        }
    }

    /// Runs `work` here if it is small, else on a thread for blocking work: it must not delay the
    /// shards, which share this runtime.
    pub(crate) async fn off_the_loop<T: Send + 'static>(
        &self,
        is_small: bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, AdminError> {
        if is_small {
            return Ok(work());
        }
        let internal = |error: &dyn std::error::Error| AdminError::Internal(error.to_string());
        let _place = self.large_work.acquire().await.map_err(|error| internal(&error))?;
        tokio::task::spawn_blocking(work).await.map_err(|error| internal(&error))
    }

    /// Whether the replica takes streams; if not, why.
    pub(crate) fn readiness(&self) -> Result<(), String> {
        if self.drain.is_cancelled() {
            return Err("the replica is shutting down".to_owned());
        }
        match self.replica.status().failure {
            Some(failure) => Err(format!("the store has failed: {failure}")),
            None => Ok(()),
        }
    }
}
