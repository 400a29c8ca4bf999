//! The operations, once: gRPC and HTTP are two ways to call them.

use std::{sync::Arc, time::Duration};

use chancery_fanout::Fanout;
use chancery_model::State;
use chancery_store::{ReadError, Replica};
use tokio_util::sync::CancellationToken;

use crate::{AdminError, metrics::Metrics, wait::Waits, work::Work};

/// A read waits so long at most for what has been committed.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// How new what is read has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// All that had been committed when the request came.
    Current,
    /// Whatever this replica has.
    Stale,
}

impl Freshness {
    /// What a request says with `stale`.
    pub(crate) fn of(stale: bool) -> Self {
        if stale { Self::Stale } else { Self::Current }
    }
}

/// What the admin API works with.
#[derive(Clone)]
pub struct AdminDeps {
    /// The store.
    pub replica: Replica,
    /// The streams.
    pub fanout: Fanout,
    /// Renders the metrics in the text format of Prometheus.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
    /// Cancelled when the replica takes streams: until then it is not ready.
    pub started: CancellationToken,
    /// Cancelled when the replica begins to drain: from then on it is not ready.
    pub drain: CancellationToken,
    /// Largest request, in bytes.
    pub request_bytes_max: u64,
    /// Names under which the HTTP API answers, besides IP addresses and `localhost`.
    pub hosts: Vec<String>,
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
    pub(crate) started: CancellationToken,
    pub(crate) drain: CancellationToken,
    pub(crate) version: &'static str,
    pub(crate) work: Work,
    pub(crate) waits: Waits,
    pub(crate) metrics: Metrics,
}

impl Service {
    pub(crate) fn new(deps: &AdminDeps) -> Self {
        Self {
            replica: deps.replica.clone(),
            fanout: deps.fanout.clone(),
            started: deps.started.clone(),
            drain: deps.drain.clone(),
            version: deps.version,
            work: Work::new(),
            waits: Waits::default(),
            metrics: Metrics::new(),
        }
    }

    /// The state to read from.
    pub(crate) async fn state(&self, freshness: Freshness) -> Result<Arc<State>, AdminError> {
        self.catch_up(freshness).await?;
        Ok(self.replica.state())
    }

    /// Returns when what this replica has is as new as it has to be.
    pub(crate) async fn catch_up(&self, freshness: Freshness) -> Result<(), AdminError> {
        let read = match freshness {
            Freshness::Stale => self.replica.check_diverged(),
            Freshness::Current => self.replica.read_barrier(READ_TIMEOUT).await,
        };
        read.map_err(|error| {
            AdminError::Unavailable(match error {
                ReadError::Diverged(_) => error.to_string(),
                _ => format!("{error}; --stale (stale=true) reads the state of this replica"),
            })
        })
    }

    /// Whether the replica takes streams; if not, why. Who leads, and whether anybody does, makes no
    /// difference: what a replica has it serves (design 4.10).
    pub(crate) fn readiness(&self) -> Result<(), String> {
        if self.drain.is_cancelled() {
            return Err("the replica is shutting down".to_owned());
        }
        match self.replica.failure() {
            Some(failure) => Err(format!("the store has failed: {failure}")),
            None if self.started.is_cancelled() => Ok(()),
            None => {
                Err("the replica is starting: it has not caught up with its cluster".to_owned())
            }
        }
    }
}
