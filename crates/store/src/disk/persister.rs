//! Writes the records of the state to the database, behind the state that is published.
//!
//! The log has an entry before it is applied, and a restart applies it again. So the state may be published before
//! its records are written. That matters for a large change: the entries behind it take effect while its records
//! are encoded and written. All other changes are written first and published then, as it costs little.
//!
//! Invariants:
//! - Records are written in the order of the log, each batch together with the position in the log.
//! - The tally and the digests follow from the records, so they belong to the stored image. Snapshots and backups
//!   are made of it. Raft purges no entry that it lacks.
//! - At most [`WAITING_BYTES_MAX`] bytes of changes wait to be written. Beyond it, applying waits.

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

/// The size of a change that is published before its records are written, in bytes.
pub(crate) const LARGE_BYTES: usize = 512 << 10;
/// The maximum size of the entries whose records wait to be written, in bytes. A larger entry waits until no other
/// one does.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// The size that each entry counts in addition, in bytes.
const ENTRY_BYTES: usize = 1 << 10;

/// Writes the records of the state. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Persister(Arc<Inner>);

/// The parts that a persister reports to.
pub(crate) struct Parts {
    pub(crate) published: Published,
    pub(crate) digests: Arc<Digests>,
    pub(crate) failure: Failure,
}

struct Inner {
    parts: Parts,
    writer: StateWriter,
    waiting: Mutex<Waiting>,
    /// Notified when a job is done.
    done: Condvar,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    /// The size of the jobs that wait, and of the one in progress.
    bytes: usize,
    /// Whether a thread writes the jobs.
    is_running: bool,
    has_failed: bool,
}

/// Entries that have been applied, to be stored together.
pub(crate) struct Job {
    /// The image after them, except for its tally.
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
        let (waiting, done) = (Mutex::default(), Condvar::new());
        Self(Arc::new(Inner { parts, writer, waiting, done }))
    }

    /// Writes a job, or returns it if its image is to be published first. The caller then passes it to
    /// [`Persister::persist_later`]. Waits while too much waits to be written.
    pub(crate) fn persist(&self, job: Job) -> io::Result<Option<Job>> {
        {
            let mut waiting = self.0.waiting.lock();
            let cost = job.cost();
            self.0.done.wait_while(&mut waiting, |waiting| {
                !waiting.has_failed && waiting.bytes > 0 && waiting.bytes + cost > WAITING_BYTES_MAX
            });
            self.check(&waiting)?;
            if job.is_large || waiting.bytes > 0 {
                return Ok(Some(job));
            }
        }
        self.write(job).inspect_err(|error| self.fail_io(error))?;
        Ok(None)
    }

    /// Writes a job after those that wait, on a thread for blocking work.
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

    /// Writes the jobs that wait.
    fn run(&self) {
        let _panics = FailOnPanic(self);
        loop {
            let job = {
                let mut waiting = self.0.waiting.lock();
                let Some(job) = waiting.jobs.pop_front() else {
                    waiting.is_running = false;
                    return;
                };
                job
            };
            let cost = job.cost();
            if let Err(error) = self.write(job) {
                self.fail_io(&error);
                return;
            }
            self.0.waiting.lock().bytes -= cost;
            self.0.done.notify_all();
        }
    }

    fn check(&self, waiting: &Waiting) -> io::Result<()> {
        if !waiting.has_failed {
            return Ok(());
        }
        let reason = self.0.parts.failure.get().unwrap_or_default();
        Err(io::Error::other(reason.to_owned()))
    }

    /// Drops the jobs that wait. Nothing is written from here on, because a later batch must not be stored without
    /// the ones before it.
    fn fail(&self, report: impl FnOnce(&Failure)) {
        let mut waiting = self.0.waiting.lock();
        // Whoever knows of the failure can add no job.
        report(&self.0.parts.failure);
        *waiting = Waiting { has_failed: true, ..Waiting::default() };
        self.0.done.notify_all();
    }

    fn fail_io(&self, error: &io::Error) {
        self.fail(|failure| failure.set_io("the state cannot be written", error));
    }

    fn write(&self, job: Job) -> io::Result<()> {
        let Job { mut image, steps, is_large, .. } = job;
        let Parts { published, digests, .. } = &self.0.parts;
        image.tally = published.stored().tally;
        let pieces = if is_large { Pieces::Several } else { Pieces::One };
        self.0.writer.write(&mut image, &steps, pieces, digests)?;
        published.set_stored(image);
        self.0.writer.settle()
    }

    /// Replaces the stored image. Waits until no job does; the caller adds none meanwhile.
    pub(crate) fn install(&self, image: &Image, progress: &Progress) -> io::Result<()> {
        let mut waiting = self.0.waiting.lock();
        self.0.done.wait_while(&mut waiting, |waiting| waiting.bytes > 0);
        self.check(&waiting)?;
        drop(waiting);
        self.0.writer.install(image, progress)?;
        self.0.parts.digests.note(image);
        self.0.parts.published.set_stored(image.clone());
        Ok(())
    }
}

/// Records a panic of the thread that writes, so that nobody waits for it.
struct FailOnPanic<'a>(&'a Persister);

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let reason = "the state cannot be written: its thread has panicked";
            self.0.fail(|failure| failure.set(reason));
        }
    }
}
