//! In tests: stands between the store and its disk. It shows what has happened before a write, a sync or
//! the next entry is let through, and what happens when the disk fails; no process that is killed and no
//! directory that is copied shows what was not synced.

use std::{
    io, thread,
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

impl Drop for Turned<'_> {
    fn drop(&mut self) {
        self.valve.0.lock()[self.point as usize] = (Flow::Open, 0);
    }
}
