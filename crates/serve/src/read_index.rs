//! The check with the leader that this replica has everything that the cluster has committed.

use std::{future::Future, pin::Pin, time::Duration};

use chancery_fanout::Fresh;
use chancery_store::Replica;

/// Asks the leader, for at most `timeout`.
#[derive(Debug)]
pub(super) struct LeaderReadIndex {
    pub(super) replica: Replica,
    pub(super) timeout: Duration,
}

impl Fresh for LeaderReadIndex {
    fn confirm(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        Box::pin(async { self.replica.read_barrier(self.timeout).await.is_ok() })
    }
}
