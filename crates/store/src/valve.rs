//! In tests: stands between the store and its disk. It shows what has happened before a write, a sync or
//! the next entry is let through, and what happens when the disk fails; no process that is killed and no
//! directory that is copied shows what was not synced.

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

/// Where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Point {
    /// Before a batch is written.
    Write,
    /// Before the write-ahead log is synced.
    Sync,
    /// Before committed entries are applied.
    Apply,
}

/// What it does with what comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Flow {
    /// It goes through.
    #[default]
    Open,
    /// It waits.
    Held,
    /// It fails.
    Broken,
}

/// One for each database.
#[derive(Debug, Default)]
pub(crate) struct Valve(Mutex<[(Flow, usize); 3]>);

/// It stays turned for as long as this lives: also when a test fails, nobody waits for ever.
#[must_use = "dropping it opens the valve"]
pub(crate) struct Turned<'a> {
    valve: &'a Valve,
    point: Point,
}

impl Valve {
    /// What comes waits from now on.
    pub(crate) fn hold(&self, point: Point) -> Turned<'_> {
        self.turn(point, Flow::Held)
    }

    /// What comes fails from now on.
    pub(crate) fn fail(&self, point: Point) -> Turned<'_> {
        self.turn(point, Flow::Broken)
    }

    fn turn(&self, point: Point, flow: Flow) -> Turned<'_> {
        self.0.lock()[point as usize] = (flow, 0);
        Turned { valve: self, point }
    }

    /// To be called where it stands, on a thread that may wait.
    pub(crate) fn pass(&self, point: Point) -> io::Result<()> {
        while self.flow(point) == Flow::Held {
            self.0.lock()[point as usize].1 += 1;
            thread::sleep(POLL_INTERVAL);
        }
        self.broken(point)
    }

    /// The same in a task.
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
            Flow::Broken => Err(io::Error::other("the valve is broken")),
            Flow::Open | Flow::Held => Ok(()),
        }
    }
}

impl Turned<'_> {
    /// Returns when something waits there.
    pub(crate) async fn arrival(&self) {
        let deadline = Instant::now() + DEADLINE;
        while self.valve.0.lock()[self.point as usize].1 == 0 {
            assert!(Instant::now() < deadline, "nothing has come to {:?}", self.point);
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// Is called before each change of a data directory: of the files beside the database, before each write and each
/// sync of the database, and after each sync. An error stands for the end of the process: nothing is changed.
type Watcher = dyn Fn(Step) -> io::Result<()> + Send + Sync;

/// What comes next in a data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// A change.
    Change,
    /// Nothing: a sync of the database has just ended.
    Synced,
}

static WATCHERS: Mutex<Vec<(PathBuf, Arc<Watcher>)>> = Mutex::new(Vec::new());

/// The directory is watched for as long as this lives.
#[must_use = "dropping it ends the watch"]
pub(crate) struct Watched(PathBuf);

/// Watches a data directory that may not be there yet.
pub(crate) fn watch(
    data_dir: &Path,
    watcher: impl Fn(Step) -> io::Result<()> + Send + Sync + 'static,
) -> Watched {
    WATCHERS.lock().push((data_dir.to_owned(), Arc::new(watcher)));
    Watched(data_dir.to_owned())
}

/// To be called where something in a data directory is about to change; `path` is in it.
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

impl Drop for Turned<'_> {
    fn drop(&mut self) {
        self.valve.0.lock()[self.point as usize] = (Flow::Open, 0);
    }
}
