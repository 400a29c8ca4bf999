//! The contact of the replica with its cluster, on which the renewal of lifetimes depends.
//!
//! Authors give a resource a lifetime so that clients drop it when nobody can change it. A replica
//! without contact to the majority receives no changes. It continues to serve its last state, but
//! stops renewing lifetimes after `renewals_stop_after` (TTL-11, OPS-06).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{metrics, replica::freshness::Fresh, turn::clock::Now};

/// The time of a contact that cannot be lost.
const ALWAYS: u64 = u64::MAX;

/// The maximum interval between two checks.
const CHECK_INTERVAL_MAX: Duration = Duration::from_secs(5);

/// The last time at which the replica had applied all commits of its cluster.
#[derive(Debug)]
pub(crate) struct Contact {
    stop_after: Duration,
    /// The time in the protocol's milliseconds.
    confirmed_at: AtomicU64,
}

impl Contact {
    /// Creates the contact of a single replica, which is never lost.
    pub(crate) fn new(stop_after: Duration) -> Self {
        Self { stop_after, confirmed_at: AtomicU64::new(ALWAYS) }
    }

    /// Returns whether lifetimes may be renewed.
    pub(crate) fn is_recent(&self, now: Now) -> bool {
        let confirmed_at = self.confirmed_at.load(Ordering::Relaxed);
        let passed = Duration::from_millis(now.ms.saturating_sub(confirmed_at));
        confirmed_at == ALWAYS || passed <= self.stop_after
    }

    /// Records that the replica had applied all commits at this time.
    pub(crate) fn confirm(&self, at: Now) {
        self.confirmed_at.store(at.ms, Ordering::Relaxed);
    }

    /// Checks the contact periodically. `start` is the time at which the protocol's clock is 0.
    pub(crate) async fn watch(
        self: Arc<Self>,
        fresh: Arc<dyn Fresh>,
        start: Instant,
        cancel: CancellationToken,
    ) {
        let now = || Now::since(start, Instant::now());
        let interval = (self.stop_after / 6).min(CHECK_INTERVAL_MAX);
        self.confirm(now());
        loop {
            // The confirmation covers only the commits before this time.
            let asked_at = now();
            let check = async {
                if fresh.confirm().await {
                    self.confirm(asked_at);
                }
                metrics::set_renewals_paused(!self.is_recent(now()));
                tokio::time::sleep(interval).await;
            };
            if cancel.run_until_cancelled(check).await.is_none() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::Future, pin::Pin, sync::atomic::AtomicBool};

    use super::*;

    #[derive(Debug, Default)]
    struct Leader(AtomicBool);

    impl Fresh for Leader {
        fn confirm(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
            Box::pin(std::future::ready(self.0.load(Ordering::Relaxed)))
        }
    }

    /// TTL-11: the contact ends after the configured time without a confirmation, and returns with the
    /// next one.
    #[tokio::test(start_paused = true)]
    async fn contact_ends_without_confirmation_and_returns() {
        let stop_after = Duration::from_secs(6);
        let (start, cancel) = (Instant::now(), CancellationToken::new());
        let leader = Arc::new(Leader(AtomicBool::new(true)));
        let contact = Arc::new(Contact::new(stop_after));
        let now = || Now::since(start, Instant::now());
        assert!(contact.is_recent(Now { ms: 1 << 40, ..now() }), "a replica without others");
        let fresh = Arc::clone(&leader) as Arc<dyn Fresh>;
        let watch = tokio::spawn(Arc::clone(&contact).watch(fresh, start, cancel.clone()));
        for (is_up, wait, is_recent) in
            [(true, 60_000, true), (false, 4_500, true), (false, 2_000, false), (true, 1_500, true)]
        {
            leader.0.store(is_up, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(wait)).await;
            assert_eq!(contact.is_recent(now()), is_recent, "after {wait} ms");
        }
        cancel.cancel();
        watch.await.unwrap();
    }
}
