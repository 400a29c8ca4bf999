//! Writes the records of the state to the database, possibly after the state is published.
//!
//! The log contains an entry before the entry is applied, and a restart can apply the entry again. The state machine
//! may therefore publish a state before the records are written. For a large change, later entries take effect while
//! a thread encodes and writes the records. Other changes are written before they are published, which costs little.
//!
//! Invariants:
//! - Changes are stored in log order. The batch that makes the records of a change effective also stores the applied
//!   position ([`crate::disk::state_writer`]).
//! - The tally and the digests are computed from the records, so they describe the stored image. Snapshots and
//!   backups contain the stored image. Raft purges only entries that the stored image includes.
//! - The queue holds at most [`WAITING_BYTES_MAX`] bytes, or one larger change. [`Persister::persist`] blocks while there
//!   is no space. The limit does not count the change that is being written, so later changes can be queued meanwhile.

use std::{collections::VecDeque, io, sync::Arc, thread};

use parking_lot::{Condvar, Mutex};

use crate::{
    disk::{
        database::Database,
        digest::Digests,
        image::Image,
        progress::Progress,
        published::Published,
        state_writer::{Pieces, StateWriter, Step},
    },
    failure::Failure,
};

/// The size from which a change is large, in bytes. A large change is published before its records are written.
pub(crate) const LARGE_BYTES: usize = 512 << 10;
/// The maximum size of the changes in the queue, in bytes. A larger change waits until the queue is empty.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// The fixed cost of each entry in the queue, in bytes.
const ENTRY_BYTES: usize = 1 << 10;

/// Writes the records of the state. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Persister(Arc<Inner>);

/// The values that a persister updates.
pub(crate) struct Parts {
    pub(crate) published: Published,
    pub(crate) digests: Arc<Digests>,
    pub(crate) failure: Failure,
}

struct Inner {
    parts: Parts,
    writer: StateWriter,
    waiting: Mutex<Waiting>,
    /// Notified when a job leaves the queue, when the writing thread ends, and after a failure.
    advanced: Condvar,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    /// The size of the queued jobs.
    bytes: usize,
    /// Whether a thread writes jobs: there are queued jobs, or one is in progress.
    is_running: bool,
    has_failed: bool,
}

/// Applied entries whose records are written together.
pub(crate) struct Job {
    /// The image after the entries, except for its computed values.
    pub(crate) image: Image,
    pub(crate) steps: Vec<Step>,
    /// The size of the changes.
    pub(crate) bytes: usize,
    /// Whether one of the changes is large.
    pub(crate) is_large: bool,
}

impl Job {
    fn cost(&self) -> usize {
        self.bytes + ENTRY_BYTES * self.steps.len()
    }
}

impl Persister {
    /// Creates a persister of a database whose records of the state are those of `generation`.
    pub(crate) fn new(database: Arc<Database>, generation: u32, parts: Parts) -> Self {
        let writer = StateWriter::new(database, generation);
        let (waiting, advanced) = (Mutex::default(), Condvar::new());
        Self(Arc::new(Inner { parts, writer, waiting, advanced }))
    }

    /// Writes a job and returns `None`. Returns the job if it is large, or if other jobs are not written yet: the caller
    /// then publishes the image, and passes the job to [`Persister::persist_later`]. Blocks while the queue is full.
    pub(crate) fn persist(&self, job: Job) -> io::Result<Option<Job>> {
        {
            let mut waiting = self.0.waiting.lock();
            let cost = job.cost();
            self.0.advanced.wait_while(&mut waiting, |waiting| {
                !waiting.has_failed && waiting.bytes > 0 && waiting.bytes + cost > WAITING_BYTES_MAX
            });
            self.check(&waiting)?;
            if job.is_large || waiting.is_running {
                return Ok(Some(job));
            }
        }
        self.write(job).inspect_err(|error| self.fail_io(error))?;
        Ok(None)
    }

    /// Queues a job. A thread for blocking work writes the queued jobs in order. Drops the job after a failure.
    pub(crate) fn persist_later(&self, job: Job) {
        let mut waiting = self.0.waiting.lock();
        if waiting.has_failed {
            return;
        }
        waiting.bytes += job.cost();
        waiting.jobs.push_back(job);
        if !std::mem::replace(&mut waiting.is_running, true) {
            let persister = self.clone();
            tokio::task::spawn_blocking(move || persister.run());
        }
    }

    /// Writes the queued jobs.
    fn run(&self) {
        let _panics = FailOnPanic(self);
        loop {
            let job = {
                let mut waiting = self.0.waiting.lock();
                self.0.advanced.notify_all();
                let Some(job) = waiting.jobs.pop_front() else {
                    waiting.is_running = false;
                    return;
                };
                waiting.bytes -= job.cost();
                job
            };
            if let Err(error) = self.write(job) {
                self.fail_io(&error);
                return;
            }
        }
    }

    fn check(&self, waiting: &Waiting) -> io::Result<()> {
        if !waiting.has_failed {
            return Ok(());
        }
        let reason = self.0.parts.failure.get().unwrap_or_default();
        Err(io::Error::other(reason.to_owned()))
    }

    /// Drops the queued jobs, and stops writing: a later change must not be stored without the changes before it.
    fn fail(&self, report: impl FnOnce(&Failure)) {
        let mut waiting = self.0.waiting.lock();
        // Reported under the lock, so that no job is added after the failure is known.
        report(&self.0.parts.failure);
        *waiting = Waiting { has_failed: true, ..Waiting::default() };
        self.0.advanced.notify_all();
    }

    fn fail_io(&self, error: &io::Error) {
        self.fail(|failure| failure.set_io("the state cannot be written", error));
    }

    fn write(&self, job: Job) -> io::Result<()> {
        let Job { mut image, steps, is_large, .. } = job;
        let Parts { published, digests, .. } = &self.0.parts;
        image.resume_computed(published.stored());
        let pieces = if is_large { Pieces::Several } else { Pieces::One };
        self.0.writer.write(&mut image, &steps, pieces, digests)?;
        published.set_stored(image);
        self.0.writer.settle()
    }

    /// Replaces the stored image, once all jobs are written. The caller must not add jobs meanwhile.
    pub(crate) fn install(&self, image: &Image, progress: &Progress) -> io::Result<()> {
        let mut waiting = self.0.waiting.lock();
        self.0.advanced.wait_while(&mut waiting, |waiting| waiting.is_running);
        self.check(&waiting)?;
        drop(waiting);
        self.0.writer.install(image, progress)?;
        self.0.parts.digests.note(image);
        self.0.parts.published.set_stored(image.clone());
        Ok(())
    }
}

/// Marks the persister as failed if the writing thread panics, so that no caller blocks forever.
struct FailOnPanic<'a>(&'a Persister);

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let reason = "the state cannot be written: its thread has panicked";
            self.0.fail(|failure| failure.set(reason));
        }
    }
}
