//! Whether the event loops of the process turn, for `/healthz` and the watchdog of the service manager.
//!
//! A watcher runs a small task on each loop every second. If a loop has not run the task for [`STALLED_AFTER`] seconds, it
//! has stalled. The watchers count ticks of their own runtime instead of reading a clock. A process that was suspended
//! therefore does not look stalled when it continues.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use chancery_admin::Liveness;
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    time::{MissedTickBehavior, interval, sleep},
};
use tokio_util::sync::CancellationToken;

/// The interval between two tasks of a watcher, and the unit in which it counts the wait.
const TICK: Duration = Duration::from_secs(1);
/// The number of ticks after which a loop that has not run the task has stalled.
const STALLED_AFTER: u64 = 30;

/// The event loops of the process. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct EventLoops(Arc<Mutex<Vec<EventLoop>>>);

#[derive(Debug)]
struct EventLoop {
    name: String,
    /// The number of ticks since the watcher gave the loop a task that it has not run.
    silent: Arc<AtomicU64>,
}

impl EventLoops {
    /// Watches a loop until `stop`, on `runtime`. The future of `turn` ends when the loop has run its task.
    pub(super) fn watch<F: Future<Output = ()> + Send + 'static>(
        &self,
        name: String,
        runtime: &Handle,
        stop: &CancellationToken,
        turn: impl Fn() -> F + Send + 'static,
    ) {
        let silent = Arc::new(AtomicU64::new(0));
        self.0.lock().push(EventLoop { name, silent: Arc::clone(&silent) });
        let stop = stop.clone();
        runtime.spawn(async move { stop.run_until_cancelled(watch(&silent, turn)).await });
    }

    /// Returns the check of all loops for the admin port.
    pub(super) fn liveness(&self) -> Liveness {
        let loops = self.clone();
        Arc::new(move || loops.check())
    }

    /// Fails with a sentence that names the loop that has not turned for the longest time, if it has stalled.
    pub(super) fn check(&self) -> Result<(), String> {
        let loops = self.0.lock();
        let waits = loops.iter().map(|one| (one.silent.load(Ordering::Relaxed), &one.name));
        match waits.max_by_key(|(silent, _)| *silent) {
            Some((silent, name)) if silent >= STALLED_AFTER => {
                let time = Duration::from_secs(silent * TICK.as_secs());
                Err(format!("the event loop of {name} has not turned for {time:?}"))
            }
            _ => Ok(()),
        }
    }
}

async fn watch<F: Future<Output = ()>>(silent: &AtomicU64, turn: impl Fn() -> F) {
    loop {
        let turned = turn();
        tokio::pin!(turned);
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick of an interval is immediate.
        ticks.tick().await;
        loop {
            tokio::select! {
                () = &mut turned => break,
                _ = ticks.tick() => silent.fetch_add(1, Ordering::Relaxed),
            };
        }
        silent.store(0, Ordering::Relaxed);
        sleep(TICK).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Notify;

    use super::*;

    async fn pass(seconds: f64) {
        sleep(Duration::from_secs_f64(seconds)).await;
    }

    /// A loop that turns again after a stall is alive, and other loops are not blamed.
    #[tokio::test(start_paused = true)]
    async fn loop_that_does_not_turn_is_named_until_it_turns() {
        let (loops, stop) = (EventLoops::default(), CancellationToken::new());
        let gate = Arc::new(Notify::new());
        let runtime = Handle::current();
        loops.watch("the streams".to_owned(), &runtime, &stop, || async {});
        let shard = Arc::clone(&gate);
        loops.watch("shard 3".to_owned(), &runtime, &stop, move || {
            let shard = Arc::clone(&shard);
            async move { shard.notified().await }
        });
        pass(29.5).await;
        assert_eq!(loops.check(), Ok(()));
        pass(1.0).await;
        let stalled = "the event loop of shard 3 has not turned for 30s";
        assert_eq!(loops.check(), Err(stalled.to_owned()));
        gate.notify_one();
        pass(1.0).await;
        assert_eq!(loops.check(), Ok(()));
        stop.cancel();
    }
}
