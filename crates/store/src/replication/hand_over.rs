//! Transfers leadership away from a leader that refuses writes for lack of disk space.
//!
//! A voter takes over only if it has more space above its `free_bytes_min`. If all voters lack space,
//! the leader therefore stays.

use std::{sync::Arc, time::Duration};

use crate::replication::core::Core;

/// The interval between checks of the disk.
const INTERVAL: Duration = Duration::from_millis(200);
/// The time after a transfer during which this replica makes no further one.
const REPEAT_INTERVAL: Duration = Duration::from_secs(5);
/// The time between two attempts while no voter can take over.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The task that transfers leadership for lack of space.
pub(crate) struct HandOver {
    pub(crate) core: Arc<Core>,
}

impl HandOver {
    /// Checks the disk every [`INTERVAL`], until the runtime ends.
    pub(crate) async fn run(self) {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut is_reported = false;
        loop {
            ticks.tick().await;
            if !self.is_due() {
                is_reported = false;
                continue;
            }
            let headroom = self.core.storage.space.headroom().unwrap_or_default();
            let wait = match self.core.members.hand_over(headroom).await {
                Ok(text) => {
                    tracing::warn!("{text}, because this replica lacks disk space");
                    REPEAT_INTERVAL
                }
                Err(error) => {
                    if !std::mem::replace(&mut is_reported, true) {
                        tracing::warn!(%error, "this leader lacks disk space, and no other voter can take over");
                    }
                    RETRY_INTERVAL
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Returns whether this replica leads and lacks the space for a write: for the smallest one, or for
    /// one that it has refused since the last call.
    fn is_due(&self) -> bool {
        let Core { node, storage, forwarder, .. } = &*self.core;
        let has_refused = forwarder.take_refused();
        node.leads()
            && !node.has_stopped()
            && !node.is_sole_voter()
            && (has_refused || storage.space.full().is_some())
    }
}
