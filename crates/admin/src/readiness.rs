//! Whether a replica serves clients, or the reason why it does not. `/readyz`, the health service and the service
//! manager use the same answer.

use std::sync::{Arc, OnceLock};

use chancery_fanout::{Fanout, StalledShard};
use chancery_store::{OpenProgress, OpenStage, Replica};
use serde_json::json;
use tokio_util::sync::CancellationToken;

/// The readiness of a replica. Clones share it.
#[derive(Debug, Clone)]
pub struct Readiness(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    progress: OpenProgress,
    /// The replica, once its store is open.
    replica: OnceLock<Opened>,
    /// The shards, once they run.
    shards: OnceLock<Fanout>,
    /// Cancelled when the replica accepts streams.
    started: CancellationToken,
    /// Cancelled when the replica begins to drain.
    drain: CancellationToken,
}

struct Opened(Replica);

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Opened")
    }
}

/// The reason why a replica is not ready.
#[derive(Debug, Clone, PartialEq)]
pub struct NotReady {
    /// The kind of the reason.
    pub reason: NotReadyReason,
    /// The part of the data that is loaded, from 0 to 1; `None` if the replica does not load, or does not know how much
    /// there is.
    pub progress: Option<f64>,
    /// The reason as a sentence.
    pub message: String,
}

/// The kind of a reason why a replica is not ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotReadyReason {
    /// It reads its data.
    Loading,
    /// It has no data, and waits until a cluster admits it.
    Joining,
    /// It has its data, and starts Raft.
    Starting,
    /// It has not caught up with its cluster.
    CatchingUp,
    /// Its log or state differs from that of its cluster.
    Diverged,
    /// Its store has failed.
    StoreFailed,
    /// A shard does not turn, so its streams receive no updates.
    Stalled,
    /// An operator drains it.
    Drained,
    /// It shuts down.
    Draining,
}

impl NotReadyReason {
    /// Returns the name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::Joining => "joining",
            Self::Starting => "starting",
            Self::CatchingUp => "catching_up",
            Self::Diverged => "diverged",
            Self::StoreFailed => "store_failed",
            Self::Stalled => "stalled",
            Self::Drained => "drained",
            Self::Draining => "draining",
        }
    }
}

impl NotReady {
    fn new(reason: NotReadyReason, message: impl Into<String>) -> Self {
        Self { reason, progress: None, message: message.into() }
    }

    /// Returns the body of `/readyz`.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        let mut body =
            json!({"ready": false, "reason": self.reason.name(), "message": self.message});
        if let Some(progress) = self.progress {
            body["progress"] = json!(progress);
        }
        body
    }
}

impl Readiness {
    /// Creates the readiness of a replica that opens its store. The replica is ready after `started` is cancelled, and
    /// before `drain` is.
    #[must_use]
    pub fn new(
        progress: OpenProgress,
        started: CancellationToken,
        drain: CancellationToken,
    ) -> Self {
        Self(Arc::new(Parts {
            progress,
            replica: OnceLock::new(),
            shards: OnceLock::new(),
            started,
            drain,
        }))
    }

    /// Records that the store is open.
    pub fn on_open(&self, replica: Replica) {
        // A second call has no effect: a process opens its store once.
        drop(self.0.replica.set(Opened(replica)));
    }

    /// Records that the shards run.
    pub fn on_shards(&self, shards: Fanout) {
        // A second call has no effect: a process starts its shards once.
        drop(self.0.shards.set(shards));
    }

    /// Returns whether the replica accepts streams. A replica is ready without a leader, because it serves the state
    /// that it has.
    ///
    /// # Errors
    /// Returns the reason why the replica does not accept streams.
    pub fn check(&self) -> Result<(), NotReady> {
        let Parts { progress, replica, shards, started, drain } = &*self.0;
        if drain.is_cancelled() {
            return Err(NotReady::new(NotReadyReason::Draining, "the replica is shutting down"));
        }
        let Some(Opened(replica)) = replica.get() else { return Err(opening(progress.stage())) };
        if let Some(failure) = replica.failure() {
            let reason = match replica.diverged() {
                Some(_) => NotReadyReason::Diverged,
                None => NotReadyReason::StoreFailed,
            };
            return Err(NotReady::new(reason, format!("the store has failed: {failure}")));
        }
        let stalled = shards.get().map(Fanout::stalled).unwrap_or_default();
        if !stalled.is_empty() {
            return Err(NotReady::new(NotReadyReason::Stalled, sentence(&stalled)));
        }
        if shards.get().is_some_and(|shards| shards.drain_orders().get().is_some()) {
            let id = replica.status().replica_id;
            return Err(NotReady::new(NotReadyReason::Drained, drained(id)));
        }
        if started.is_cancelled() {
            return Ok(());
        }
        let message = match replica.leader() {
            Some(_) => "the replica is starting: it has not caught up with its cluster",
            None => {
                "the replica is starting: it has not caught up with its cluster, and knows no leader"
            }
        };
        Err(NotReady::new(NotReadyReason::CatchingUp, message))
    }
}

/// Returns the statement that an operator drains a replica, with the command that ends the drain.
#[must_use]
pub fn drained(replica_id: u64) -> String {
    format!(
        "replica {replica_id} is drained: it accepts no streams; `chancery undrain {replica_id}` ends the drain"
    )
}

fn sentence(stalled: &[StalledShard]) -> String {
    stalled.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn opening(stage: OpenStage) -> NotReady {
    match stage {
        OpenStage::Opening => {
            NotReady::new(NotReadyReason::Loading, "this replica is opening its data directory")
        }
        OpenStage::Reading { read, total } => {
            let percent = percent(read, total);
            let message = format!("this replica is loading its data: {percent} %");
            let progress = Some(f64::from(percent) / 100.0);
            NotReady { progress, ..NotReady::new(NotReadyReason::Loading, message) }
        }
        OpenStage::Joining => NotReady::new(
            NotReadyReason::Joining,
            "this replica has no data, and waits until a cluster admits it",
        ),
        OpenStage::Starting => NotReady::new(
            NotReadyReason::Starting,
            "this replica has loaded its data, and starts to replicate",
        ),
    }
}

/// Returns a part in percent, rounded down: 100 means that everything is read.
fn percent(read: u64, total: u64) -> u8 {
    let percent = u128::from(read) * 100 / u128::from(total.max(1));
    // Nothing to read is read at once.
    if total == 0 { 100 } else { u8::try_from(percent).unwrap_or(100).min(100) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_is_100_only_after_the_last_record() {
        for (read, total, expected) in [
            (0, 3, 0),
            (2, 3, 66),
            (3, 3, 100),
            (0, 0, 100),
            (999, 1000, 99),
            (u64::MAX - 1, u64::MAX, 99),
        ] {
            assert_eq!(percent(read, total), expected, "{read} of {total}");
        }
    }

    #[test]
    fn json_has_reason_progress_and_message() {
        let loading = opening(OpenStage::Reading { read: 63, total: 100 }).to_json();
        let message = "this replica is loading its data: 63 %";
        assert_eq!(
            loading,
            json!({"ready": false, "reason": "loading", "progress": 0.63, "message": message})
        );
        let joining = opening(OpenStage::Joining).to_json();
        assert_eq!((&joining["reason"], joining.get("progress")), (&json!("joining"), None));
    }

    #[test]
    fn replica_that_gets_a_signal_while_it_loads_is_draining() {
        let drain = CancellationToken::new();
        let readiness =
            Readiness::new(OpenProgress::default(), CancellationToken::new(), drain.clone());
        assert_eq!(readiness.check().unwrap_err().reason, NotReadyReason::Loading);
        drain.cancel();
        assert_eq!(readiness.check().unwrap_err().reason, NotReadyReason::Draining);
    }
}
