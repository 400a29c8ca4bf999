//! Applies large entries early, while the log still writes them.
//!
//! The effect of an entry depends only on the entry and on the image before it. Both are available once the entry is
//! appended and all earlier entries are applied. Writing and replicating a large entry takes longer. Meanwhile, a
//! thread applies the entry to a copy of the image. When the entry is committed and next in log order, the state
//! machine only publishes the result.
//!
//! Invariants:
//! - Readers see the result only after all earlier entries are applied and the entry is committed.
//! - The state machine uses the result only if the published image is still the image to which the entry was applied.
//!   Otherwise, the state machine applies the entry itself.

use std::{collections::BTreeMap, sync::Arc};

use chancery_secrets::Secrets;
use imbl::OrdSet;
use openraft::EntryPayload;
use parking_lot::{Condvar, Mutex};

use crate::{
    disk::{
        effect::Effect,
        image::Image,
        published::{ImageNumber, Published},
    },
    format::raft::{Entry, LogId, Response},
};

/// Applies large entries early, in the background. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Ahead(Arc<Inner>);

struct Inner {
    published: Published,
    secrets: Secrets,
    /// The large prepared entries that are not applied yet, by log index.
    jobs: Mutex<BTreeMap<u64, Job>>,
    /// Notified when a job is done or dropped.
    ended: Condvar,
}

struct Job {
    id: LogId,
    step: Step,
}

enum Step {
    /// The job waits until all earlier entries are applied.
    Waiting,
    InProgress,
    Done(Box<AppliedAhead>),
}

/// The result of applying an entry to a published image.
pub(crate) struct AppliedAhead {
    /// The number of the published image.
    base: ImageNumber,
    /// The image after the entry. `Image::unopened` contains only resources that this entry changed.
    pub(crate) image: Image,
    pub(crate) response: Response,
    pub(crate) effect: Effect,
}

impl Ahead {
    /// Creates a value that applies entries to copies of published images, and opens the sealed resources that are not open
    /// yet.
    pub(crate) fn new(published: Published, secrets: Secrets) -> Self {
        let (jobs, ended) = (Mutex::default(), Condvar::new());
        Self(Arc::new(Inner { published, secrets, jobs, ended }))
    }

    /// Applies a prepared entry that was appended to the log, in the background, after all earlier entries are
    /// applied. `recent` returns the entry if the log still has it in memory.
    pub(crate) fn begin(
        &self,
        entry: &Entry,
        recent: impl FnOnce() -> Option<Entry> + Send + 'static,
    ) {
        let id = entry.log_id;
        let is_prepared =
            matches!(&entry.payload, EntryPayload::Normal(command) if command.is_prepared());
        let Some(previous) = id.index.checked_sub(1).filter(|_| is_prepared) else { return };
        let replaced = self.0.jobs.lock().insert(id.index, Job { id, step: Step::Waiting });
        free(replaced);
        let ahead = self.clone();
        tokio::spawn(async move {
            ahead.0.published.wait_applied(previous).await;
            let run = move || {
                if let Some(entry) = recent().filter(|entry| entry.log_id == id) {
                    ahead.run(&entry);
                }
            };
            // After a panic there is no result, and the state machine applies the entry.
            drop(tokio::task::spawn_blocking(run).await);
        });
    }

    /// Drops the jobs of all entries from an index on: the log removed the entries, or a snapshot replaced the image.
    pub(crate) fn drop_from(&self, from: u64) {
        let dropped = self.0.jobs.lock().split_off(&from);
        self.0.ended.notify_all();
        free(dropped);
    }

    /// Removes and returns the result for the next entry in log order, if it is based on the image with the number
    /// `base`. Blocks while the job is in progress. Drops the jobs of earlier entries.
    pub(crate) fn take(&self, entry: &Entry, base: ImageNumber) -> Option<AppliedAhead> {
        let id = &entry.log_id;
        let mut past = {
            let mut jobs = self.0.jobs.lock();
            let in_progress = |jobs: &mut BTreeMap<u64, Job>| {
                jobs.get(&id.index).is_some_and(|job| matches!(job.step, Step::InProgress))
            };
            self.0.ended.wait_while(&mut jobs, in_progress);
            let later = jobs.split_off(&(id.index + 1));
            std::mem::replace(&mut *jobs, later)
        };
        let job = past.remove(&id.index)?;
        match job.step {
            Step::Done(result) if job.id == *id && result.base == base => {
                release(entry);
                Some(*result)
            }
            Step::Done(_) | Step::Waiting | Step::InProgress => None,
        }
    }

    fn run(&self, entry: &Entry) {
        let id = entry.log_id;
        let (base, mut image) = self.0.published.newest_numbered();
        let _ends = EndOnDrop { ahead: self, id };
        let EntryPayload::Normal(command) = &entry.payload else { return };
        let follows = image.applied.map(|applied| applied.index + 1) == Some(id.index);
        if !follows || self.advance(&id, Step::InProgress).is_some() {
            return;
        }
        // Without a prepared transaction, as after an error, the state machine applies the entry.
        let Some(prepared) = command.lend_prepared() else { return };
        image.unopened = OrdSet::new();
        let (response, effect) = image.advance_prepared(id, prepared);
        // Preparation opened them, unless their keys were not in the published state yet.
        image.open_newest(&self.0.secrets);
        let result = AppliedAhead { base, image, response, effect };
        drop(self.advance(&id, Step::Done(Box::new(result))));
    }

    /// Sets the step of the job of an entry. Returns `step` if the job no longer exists.
    fn advance(&self, id: &LogId, step: Step) -> Option<Step> {
        let mut jobs = self.0.jobs.lock();
        match jobs.get_mut(&id.index).filter(|job| job.id == *id) {
            Some(job) => {
                job.step = step;
                None
            }
            None => Some(step),
        }
    }
}

/// Drops results on a thread for blocking work, because freeing them takes long.
fn free(results: impl Send + 'static) {
    drop(tokio::task::spawn_blocking(move || drop(results)));
}

#[cfg(test)]
impl Ahead {
    /// Returns the state after an entry that is applied early.
    pub(crate) fn state_at(&self, index: u64) -> Option<chancery_model::State> {
        match &self.0.jobs.lock().get(&index)?.step {
            Step::Done(result) => Some(result.image.state.clone()),
            Step::Waiting | Step::InProgress => None,
        }
    }
}

/// Takes the preparation of an entry, so that the log may drop the entry from memory.
fn release(entry: &Entry) {
    if let EntryPayload::Normal(command) = &entry.payload {
        drop(command.take_prepared());
    }
}

/// Removes a job that has no result when it is dropped, even during a panic.
struct EndOnDrop<'a> {
    ahead: &'a Ahead,
    id: LogId,
}

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        let Self { ahead, id } = self;
        let mut jobs = ahead.0.jobs.lock();
        let has_no_result = |job: &Job| job.id == *id && !matches!(job.step, Step::Done(_));
        if jobs.get(&id.index).is_some_and(has_no_result) {
            jobs.remove(&id.index);
        }
        ahead.0.ended.notify_all();
    }
}
