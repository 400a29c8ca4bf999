//! The turns of a shard, and whether it has stalled: it has work, and does not end its turn.
//!
//! Turns are bounded, so a shard stalls only because of a defect, or because its thread gets no processor. Nobody may
//! wait for a stalled shard: it gets no new streams, queries leave it out, and the replica is not ready. The shard is
//! well again as soon as it ends a turn. A shard whose task has ended, such as by a panic, is a stalled shard from then
//! on.

use std::{
    future::Future,
    pin::pin,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

/// The interval at which a waiting task checks whether the shard has ended a turn.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The number of intervals without the end of a turn after which a shard has stalled. Counting intervals instead of
/// reading a clock keeps a shard well whose process was suspended.
const STALLED_AFTER: u32 = 50;

/// The turns of a shard.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// The number of turns that have ended.
    ended: AtomicU64,
    /// Whether the task of the shard has ended before its replica.
    has_ended: AtomicBool,
    last_stall: Mutex<Option<Stall>>,
}

/// An observation that the shard has stalled.
#[derive(Debug, Clone, Copy)]
struct Stall {
    /// The number of turns that had ended.
    ended: u64,
    /// The last time at which the shard was found stalled, or a query left it out.
    at: Instant,
}

impl Turns {
    /// Records the end of a turn.
    pub(crate) fn on_end(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Records that the task of the shard has ended.
    pub(crate) fn on_task_end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// Returns whether the task of the shard has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Returns whether the shard has stalled, and has not ended a turn since.
    pub(crate) fn is_stalled(&self) -> bool {
        self.has_ended() || self.last_stall.lock().is_some_and(|stall| stall.ended == self.ended())
    }

    /// Returns whether the shard has stalled, was found stalled since an earlier time, or was left out since then.
    pub(crate) fn has_stalled_since(&self, since: Instant) -> bool {
        let ended = self.ended();
        let is_recent = |stall: Stall| stall.ended == ended || stall.at >= since;
        self.has_ended() || self.last_stall.lock().is_some_and(is_recent)
    }

    /// Wakes the shard, and waits until it ends a turn.
    pub(crate) async fn next(&self, wake: impl FnOnce()) {
        // The shard may end its turn before the call of `wake` returns.
        let ended = self.ended();
        wake();
        let mut intervals = 0;
        loop {
            sleep(CHECK_INTERVAL).await;
            if self.ended() != ended {
                return;
            }
            intervals += 1;
            if intervals == STALLED_AFTER {
                self.record_stall(ended);
            }
        }
    }

    /// Waits for an answer of the shard. Returns `None` if the shard has stalled, or stalls meanwhile. A shard that
    /// shuts down drops the question, so that `answer` returns `None`.
    pub(crate) async fn answer<T>(
        &self,
        answer: impl Future<Output = Option<T>>,
    ) -> Option<Option<T>> {
        let mut answer = pin!(answer);
        let (mut ended, mut intervals) = (self.ended(), 0);
        while !self.is_stalled() {
            tokio::select! {
                biased;
                answer = &mut answer => match answer {
                    None if self.has_ended() => break,
                    answer => return Some(answer),
                },
                () = sleep(CHECK_INTERVAL) => {}
            }
            intervals += 1;
            if self.ended() != ended {
                (ended, intervals) = (self.ended(), 0);
            } else if intervals == STALLED_AFTER {
                self.record_stall(ended);
            }
        }
        // The shard may end its turn before the caller says that it was not asked.
        if let Some(stall) = &mut *self.last_stall.lock() {
            stall.at = Instant::now();
        }
        None
    }

    fn record_stall(&self, ended: u64) {
        *self.last_stall.lock() = Some(Stall { ended, at: Instant::now() });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::oneshot;

    use super::*;

    async fn pass(seconds: f64) {
        sleep(Duration::from_secs_f64(seconds)).await;
    }

    /// A query waits while the shard turns, however long the answer takes, and not for a stalled shard.
    #[tokio::test(start_paused = true)]
    async fn query_waits_for_a_turning_shard_and_not_for_a_stalled_one() {
        let turns = Arc::new(Turns::default());
        let (reply, answer) = oneshot::channel();
        let shard = Arc::clone(&turns);
        let works = tokio::spawn(async move {
            for _ in 0..10 {
                pass(4.5).await;
                shard.on_end();
            }
            reply.send(7).unwrap();
        });
        assert_eq!(turns.answer(async { answer.await.ok() }).await, Some(Some(7)));
        works.await.unwrap();
        let start = Instant::now();
        assert!(turns.answer(std::future::pending::<Option<()>>()).await.is_none());
        assert_eq!(start.elapsed(), Duration::from_secs(5));
        pass(1.0).await;
        let later = Instant::now();
        assert!(turns.answer(async { Some(()) }).await.is_none(), "nobody asks a stalled shard");
        assert_eq!(later.elapsed(), Duration::ZERO);
        assert!(turns.is_stalled() && turns.has_stalled_since(later));
        turns.on_end();
        assert!(!turns.is_stalled() && turns.has_stalled_since(later), "a query left it out");
        pass(1.0).await;
        assert!(!turns.has_stalled_since(Instant::now()));
        assert_eq!(turns.answer(async { Some(8) }).await, Some(Some(8)));
    }

    /// A turn that ends at once counts: an idle shard has no other one.
    #[tokio::test(start_paused = true)]
    async fn turn_that_ends_before_the_wait_begins_is_no_stall() {
        let turns = Turns::default();
        turns.next(|| turns.on_end()).await;
        assert!(!turns.is_stalled());
    }

    /// A watcher finds a stall within five seconds, and waits on until the shard turns again.
    #[tokio::test(start_paused = true)]
    async fn watcher_finds_a_stall_and_its_end() {
        let turns = Arc::new(Turns::default());
        let watched = Arc::clone(&turns);
        let watcher = tokio::spawn(async move { watched.next(|| {}).await });
        pass(4.95).await;
        assert!(!turns.is_stalled());
        pass(0.1).await;
        assert!(turns.is_stalled() && !watcher.is_finished());
        turns.on_end();
        pass(0.2).await;
        assert!(!turns.is_stalled() && watcher.is_finished());
    }
}
