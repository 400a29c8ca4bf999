//! The permanent stop of a replica whose state or log is known to be wrong.
//!
//! Such a replica serves no streams, reads or writes, and takes part in no election. The admin port
//! reports the reason. It does not start again with this data once `DIVERGED` is written.

use std::{path::PathBuf, sync::Arc};

use tokio::{runtime::Handle, sync::watch};

use crate::{
    disk::{directory::mark_diverged, machine::Raft},
    failure::Failure,
    metrics::StoreMetrics,
};

/// The advice about a replica whose state or log is wrong.
const ADVICE: &str = "it has stopped serving; stop it, empty its data directory, and start it with \
                      --join so that it gets its state from the others (docs/cluster.md)";

/// The reason why this replica must stop serving, if there is one. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Divergence {
    reason: watch::Sender<Option<Arc<str>>>,
    data_dir: PathBuf,
    raft: Raft,
    runtime: Handle,
    failure: Failure,
    metrics: StoreMetrics,
}

impl Divergence {
    /// Creates an instance for a replica that is not known to be wrong.
    pub(crate) fn new(
        data_dir: PathBuf,
        raft: Raft,
        runtime: Handle,
        failure: Failure,
        metrics: StoreMetrics,
    ) -> Self {
        Self { reason: watch::Sender::new(None), data_dir, raft, runtime, failure, metrics }
    }

    /// Returns the reason why the state or the log of this replica is wrong; `None` if no fault is known.
    pub(crate) fn reason(&self) -> Option<Arc<str>> {
        self.reason.borrow().clone()
    }

    /// Returns whether the state or the log of this replica is known to be wrong.
    pub(crate) fn has_diverged(&self) -> bool {
        self.reason.borrow().is_some()
    }

    /// Waits until the state or the log of this replica is known to be wrong, and returns the reason.
    pub(crate) async fn wait_until_diverged(&self) -> Arc<str> {
        let mut reason = self.reason.subscribe();
        let reason = reason.wait_for(Option::is_some).await.ok().and_then(|it| it.clone());
        match reason {
            Some(reason) => reason,
            // Unreachable: `self` keeps the sender of the reason.
            None => std::future::pending().await,
        }
    }

    /// Stops this replica permanently, because its state or log differs from that of the cluster.
    pub(crate) fn stop(&self, reason: &str) {
        if self.has_diverged() {
            return;
        }
        let reason = format!("{reason}; {ADVICE}");
        self.failure.set(&reason);
        self.metrics.failed.set(1.0);
        self.metrics.cluster.diverged.set(1.0);
        self.reason.send_replace(Some(reason.as_str().into()));
        let (data_dir, raft) = (self.data_dir.clone(), self.raft.clone());
        self.runtime.spawn(async move {
            let marked = tokio::task::spawn_blocking(move || mark_diverged(&data_dir, &reason));
            // The replica must neither vote nor lead, even while the disk stalls. The only error is that
            // Raft has stopped already.
            drop(raft.shutdown().await);
            if let Ok(Err(error)) = marked.await {
                tracing::error!(%error, "cannot write `DIVERGED` to the data directory; do not start this replica again");
            }
        });
    }
}
