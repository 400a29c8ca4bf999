//! Test support: blocks or fails the operations between the store and its disk. Tests can then
//! observe the store before a write, a sync or the next entry proceeds, and after a disk error.
//! Killing processes or copying directories does not show which data was not synced.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

const POLL_INTERVAL: Duration = Duration::from_millis(1);
const DEADLINE: Duration = Duration::from_secs(30);

/// A place where a fail point acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Point {
    /// Before a batch is written.
    Write,
    /// Before the write-ahead log is synced.
    Sync,
    /// Before committed entries are applied.
    Apply,
}

/// The effect of a fail point on operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Flow {
    /// The operation proceeds.
    #[default]
    Open,
    /// The operation waits.
    Held,
    /// The operation fails.
    Broken,
}

/// The fail points of one database.
#[derive(Debug, Default)]
pub(crate) struct FailPoints(Mutex<[(Flow, usize); 3]>);

/// Keeps a fail point active until it is dropped, so that no operation waits forever when a test fails.
#[must_use = "dropping it ends the effect"]
pub(crate) struct FailPointGuard<'a> {
    fail_points: &'a FailPoints,
    point: Point,
}

impl FailPoints {
    /// Makes operations wait from now on.
    pub(crate) fn hold(&self, point: Point) -> FailPointGuard<'_> {
        self.turn(point, Flow::Held)
    }

    /// Makes operations fail from now on.
    pub(crate) fn fail(&self, point: Point) -> FailPointGuard<'_> {
        self.turn(point, Flow::Broken)
    }

    fn turn(&self, point: Point, flow: Flow) -> FailPointGuard<'_> {
        self.0.lock()[point as usize] = (flow, 0);
        FailPointGuard { fail_points: self, point }
    }

    /// Applies the fail point to an operation. Must be called on a thread that may block.
    pub(crate) fn pass(&self, point: Point) -> io::Result<()> {
        while self.flow(point) == Flow::Held {
            self.0.lock()[point as usize].1 += 1;
            thread::sleep(POLL_INTERVAL);
        }
        self.broken(point)
    }

    /// Applies the fail point to an operation in a task.
    pub(crate) async fn pass_in_task(&self, point: Point) -> io::Result<()> {
        while self.flow(point) == Flow::Held {
            self.0.lock()[point as usize].1 += 1;
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        self.broken(point)
    }

    fn flow(&self, point: Point) -> Flow {
        self.0.lock()[point as usize].0
    }

    fn broken(&self, point: Point) -> io::Result<()> {
        match self.flow(point) {
            Flow::Broken => Err(io::Error::other("the fail point is broken")),
            Flow::Open | Flow::Held => Ok(()),
        }
    }
}

impl FailPointGuard<'_> {
    /// Returns when an operation waits.
    pub(crate) async fn arrival(&self) {
        let deadline = Instant::now() + DEADLINE;
        while self.fail_points.0.lock()[self.point as usize].1 == 0 {
            assert!(Instant::now() < deadline, "no operation has reached {:?}", self.point);
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// A callback before each change of a data directory: of the files beside the database, before each
/// write and each sync of the database, and after each sync. An error simulates the end of the
/// process: the change does not happen.
type Watcher = dyn Fn(Step) -> io::Result<()> + Send + Sync;

/// The next event in a data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// A change follows.
    Change,
    /// A sync of the database has just ended.
    Synced,
}

static WATCHERS: Mutex<Vec<(PathBuf, Arc<Watcher>)>> = Mutex::new(Vec::new());

/// Watches the directory until it is dropped.
#[must_use = "dropping it ends the watch"]
pub(crate) struct Watched(PathBuf);

/// Watches a data directory, which may not exist yet.
pub(crate) fn watch(
    data_dir: &Path,
    watcher: impl Fn(Step) -> io::Result<()> + Send + Sync + 'static,
) -> Watched {
    WATCHERS.lock().push((data_dir.to_owned(), Arc::new(watcher)));
    Watched(data_dir.to_owned())
}

/// Reports an imminent change in a data directory; `path` is inside it.
pub(crate) fn step(path: &Path, step: Step) -> io::Result<()> {
    let watchers = WATCHERS.lock();
    let watcher = watchers.iter().find(|(dir, _)| path.starts_with(dir));
    let watcher = watcher.map(|(_, watcher)| Arc::clone(watcher));
    drop(watchers);
    watcher.map_or(Ok(()), |watcher| watcher(step))
}

impl Drop for Watched {
    fn drop(&mut self) {
        WATCHERS.lock().retain(|(dir, _)| *dir != self.0);
    }
}

impl Drop for FailPointGuard<'_> {
    fn drop(&mut self) {
        self.fail_points.0.lock()[self.point as usize] = (Flow::Open, 0);
    }
}
