//! Long-running work, which never runs on the threads that serve streams, and of which only a
//! limited amount runs at a time.
//!
//! Small work has its own threads: the blocking threads of a runtime that runs nothing else. They
//! process one job after the other without sleeping while jobs wait.
//!
//! Invariant: a job keeps its permit until it is done, even if nobody waits for the result. A
//! client that sends a request and disconnects thus gets no more of the machine than one that
//! waits. A job that checks its stop flag ends soon after the client has left.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::Semaphore,
    task::JoinError,
};
use tokio_util::task::AbortOnDropHandle;

use crate::AdminError;

/// The maximum number of concurrent large jobs: inputs that need many times their size while they
/// are read, and lists of a whole fleet. Further jobs wait.
const LARGE_MAX: usize = 2;
/// The maximum number of concurrent small jobs. It is low because they share the processors with
/// the streams. They have their own threads, so that they do not wait behind large jobs.
const SMALL_MAX: usize = 2;
/// The maximum number of small jobs in the queue of these threads. Further jobs wait.
const SMALL_WAITING_MAX: usize = 64;

/// The expected cost of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// Milliseconds.
    Small,
    /// Seconds, and much memory.
    Large,
}

impl Size {
    pub(crate) fn of(is_small: bool) -> Self {
        if is_small { Self::Small } else { Self::Large }
    }
}

/// The limits and threads for work. A clone is cheap.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    /// The threads for small jobs, if they could be prepared. Small jobs run like large ones otherwise.
    small_threads: Option<Arc<SmallThreads>>,
}

/// A runtime without tasks. Its blocking threads are started when needed, and end when idle.
#[derive(Debug)]
struct SmallThreads(Option<Runtime>);

impl SmallThreads {
    fn start() -> std::io::Result<Self> {
        let mut runtime = Builder::new_current_thread();
        runtime.max_blocking_threads(SMALL_MAX).thread_name("chancery-admit");
        Ok(Self(Some(runtime.build()?)))
    }
}

impl Drop for SmallThreads {
    fn drop(&mut self) {
        // The plain drop of a runtime panics on a thread of another runtime.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Sets the flag when the caller has the result or is gone.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Work {
    pub(crate) fn new() -> Self {
        let small_threads = SmallThreads::start().inspect_err(|error| {
            tracing::warn!(%error, "cannot prepare threads for small requests of the admin port");
        });
        Self {
            small: Arc::new(Semaphore::new(SMALL_WAITING_MAX)),
            large: Arc::new(Semaphore::new(LARGE_MAX)),
            small_threads: small_threads.ok().map(Arc::new),
        }
    }

    /// Runs `work` on another thread when a permit is free. Its flag is set when the caller is
    /// gone.
    pub(crate) async fn run_while_awaited<T: Send + 'static>(
        &self,
        size: Size,
        work: impl FnOnce(&Arc<AtomicBool>) -> T + Send + 'static,
    ) -> Result<T, AdminError> {
        let stop = StopOnDrop(Arc::default());
        let flag = Arc::clone(&stop.0);
        self.run(size, move || work(&flag)).await
    }

    /// Returns the permits for jobs of a size, and the runtime whose blocking threads run them.
    fn permits(&self, size: Size) -> (&Arc<Semaphore>, Handle) {
        let threads = self.small_threads.as_ref().and_then(|threads| threads.0.as_ref());
        match (size, threads) {
            (Size::Small, Some(threads)) => (&self.small, threads.handle().clone()),
            _ => (&self.large, Handle::current()),
        }
    }

    /// Runs `work` on another thread when a permit is free.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        size: Size,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, AdminError> {
        let (permits, threads) = self.permits(size);
        let permit = Arc::clone(permits).acquire_owned().await;
        let permit = permit.map_err(|error| AdminError::Internal(error.to_string()))?;
        let job = move || {
            let done = work();
            drop(permit);
            done
        };
        // A job that still waits when its caller leaves never starts.
        let done = AbortOnDropHandle::new(threads.spawn_blocking(job)).await;
        done.map_err(|_: JoinError| {
            AdminError::Internal("the work for this request has panicked".to_owned())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            atomic::{AtomicUsize, Ordering},
            mpsc,
        },
        thread,
        time::Duration,
    };

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(20);

    /// A manifest of 370 bytes can take long to read, so that its size does not bound the time.
    #[tokio::test]
    async fn work_runs_outside_of_serving_threads() {
        let work = Work::new();
        let here = thread::current().id();
        for size in [Size::Small, Size::Large] {
            let there = work.run(size, || thread::current().id()).await.unwrap();
            assert_ne!(there, here, "{size:?}");
        }
    }

    #[tokio::test]
    async fn work_slot_is_held_until_work_ends_despite_caller_disconnect() {
        for (size, max) in [(Size::Small, SMALL_MAX), (Size::Large, LARGE_MAX)] {
            let work = Work::new();
            let started = Arc::new(AtomicUsize::new(0));
            let (mut gates, mut tasks) = (Vec::new(), Vec::new());
            for _ in 0..20 {
                let (gate, wait) = mpsc::sync_channel::<()>(1);
                gates.push(gate);
                let (work, started) = (work.clone(), Arc::clone(&started));
                tasks.push(tokio::spawn(async move {
                    let job = move || {
                        started.fetch_add(1, Ordering::SeqCst);
                        // The job ends when the gate is dropped.
                        assert!(wait.recv().is_err());
                    };
                    work.run(size, job).await
                }));
            }
            let all_started = async {
                while started.load(Ordering::SeqCst) < max {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::time::timeout(DEADLINE, all_started).await.unwrap();
            for task in tasks {
                task.abort();
                drop(task.await);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert_eq!(started.load(Ordering::SeqCst), max, "{size:?}");
            gates.clear();
            tokio::time::timeout(DEADLINE, work.run(size, || ())).await.unwrap().unwrap();
        }
    }

    /// A reader of 400,000 files continued for 37 s after its caller had left.
    #[tokio::test]
    async fn work_is_stopped_when_its_caller_leaves() {
        for size in [Size::Small, Size::Large] {
            let work = Work::new();
            let (started, has_started) = tokio::sync::oneshot::channel();
            let (ended, has_ended) = tokio::sync::oneshot::channel();
            let waits = work.clone();
            let caller = tokio::spawn(async move {
                let job = move |stop: &Arc<AtomicBool>| {
                    started.send(()).unwrap();
                    let deadline = std::time::Instant::now() + DEADLINE;
                    while !stop.load(Ordering::Relaxed) && std::time::Instant::now() < deadline {
                        thread::sleep(Duration::from_millis(1));
                    }
                    ended.send(stop.load(Ordering::Relaxed)).unwrap();
                };
                waits.run_while_awaited(size, job).await
            });
            has_started.await.unwrap();
            caller.abort();
            assert!(has_ended.await.unwrap(), "{size:?}: the flag is not set");
        }
    }

    #[tokio::test]
    async fn panicked_work_returns_error_and_releases_its_slot() {
        let work = Work::new();
        for size in [Size::Small, Size::Large] {
            for _ in 0..SMALL_WAITING_MAX + LARGE_MAX {
                let panicked = work.run(size, || panic!("as it should")).await;
                assert!(matches!(panicked, Err::<(), _>(AdminError::Internal(_))), "{panicked:?}");
            }
            assert_eq!(work.run(size, || 7).await.unwrap(), 7);
        }
    }

    #[tokio::test]
    async fn small_work_does_not_wait_behind_large_work() {
        let work = Work::new();
        let mut gates = Vec::new();
        let mut tasks = Vec::new();
        for _ in 0..LARGE_MAX + 1 {
            let (gate, wait) = mpsc::sync_channel::<()>(1);
            gates.push(gate);
            let work = work.clone();
            tasks.push(tokio::spawn(async move {
                work.run(Size::Large, move || assert!(wait.recv().is_err())).await
            }));
        }
        tokio::task::yield_now().await;
        tokio::time::timeout(DEADLINE, work.run(Size::Small, || ())).await.unwrap().unwrap();
        gates.clear();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
    }
}
