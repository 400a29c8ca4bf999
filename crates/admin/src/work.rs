//! Work that takes its time: never on the threads that serve streams, and only so much at once.
//!
//! Invariant: a place is held until its work is done, also if nobody waits for the result any more. A
//! client that sends and hangs up gets no more of the machine than one that waits.

use std::{error::Error, sync::Arc};

use tokio::sync::Semaphore;

use crate::AdminError;

/// Large pieces of work at a time: inputs that take many times their size while they are read, lists
/// of a whole fleet. Further ones wait.
const LARGE_MAX: usize = 2;
/// Small pieces of work at a time. Few: they share the processors with the streams. They have places
/// of their own, so that they do not wait behind large ones. Further ones wait.
const SMALL_MAX: usize = 2;

/// How much a piece of work may take.
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

/// The places for work. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl Work {
    pub(crate) fn new() -> Self {
        Self {
            small: Arc::new(Semaphore::new(SMALL_MAX)),
            large: Arc::new(Semaphore::new(LARGE_MAX)),
        }
    }

    fn places(&self, size: Size) -> &Arc<Semaphore> {
        match size {
            Size::Small => &self.small,
            Size::Large => &self.large,
        }
    }

    /// Runs `work` on a thread for blocking work, as soon as there is a place.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        size: Size,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, AdminError> {
        let internal = |error: &dyn Error| AdminError::Internal(error.to_string());
        let place = Arc::clone(self.places(size))
            .acquire_owned()
            .await
            .map_err(|error| internal(&error))?;
        let work = move || {
            let done = work();
            drop(place);
            done
        };
        tokio::task::spawn_blocking(work).await.map_err(|error| internal(&error))
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

    /// A manifest of 370 bytes can take long to read: its size says nothing about the time.
    #[tokio::test]
    async fn no_work_runs_on_the_threads_that_serve() {
        let work = Work::new();
        let here = thread::current().id();
        for size in [Size::Small, Size::Large] {
            let there = work.run(size, || thread::current().id()).await.unwrap();
            assert_ne!(there, here, "{size:?}");
        }
    }

    #[tokio::test]
    async fn a_place_is_held_until_the_work_is_done_whoever_hangs_up() {
        for (size, max) in [(Size::Small, SMALL_MAX), (Size::Large, LARGE_MAX)] {
            let work = Work::new();
            let started = Arc::new(AtomicUsize::new(0));
            let mut gates = Vec::new();
            for _ in 0..20 {
                let (gate, wait) = mpsc::channel::<()>();
                gates.push(gate);
                let (work, started) = (work.clone(), Arc::clone(&started));
                let task = tokio::spawn(async move {
                    let job = move || {
                        started.fetch_add(1, Ordering::SeqCst);
                        // It ends when the gate is dropped.
                        assert!(wait.recv().is_err());
                    };
                    work.run(size, job).await
                });
                tokio::task::yield_now().await;
                task.abort();
                drop(task.await);
            }
            let all_started = async {
                while started.load(Ordering::SeqCst) < max {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::time::timeout(DEADLINE, all_started).await.unwrap();
            assert_eq!(started.load(Ordering::SeqCst), max, "{size:?}");
            assert_eq!(work.places(size).available_permits(), 0, "{size:?}");
            gates.clear();
            tokio::time::timeout(DEADLINE, work.run(size, || ())).await.unwrap().unwrap();
        }
    }

    #[tokio::test]
    async fn small_work_does_not_wait_behind_large_work() {
        let work = Work::new();
        let mut gates = Vec::new();
        let mut tasks = Vec::new();
        for _ in 0..LARGE_MAX + 1 {
            let (gate, wait) = mpsc::channel::<()>();
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
