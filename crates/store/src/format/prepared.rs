//! Commands that are prepared before they are applied.
//!
//! A replica applies commands one after the other. Most of the time for a large transaction is spent on decoding it
//! and building its resources. This work depends on the command alone. A thread therefore does it in advance, so
//! that later commands do not wait for it.

use bytes::Bytes;
use chancery_model::{PreparedTransaction, Revision, Upsert};
use parking_lot::{Condvar, Mutex};

use crate::format::{
    codec::{Command, Request, decode_command},
    content::Retention,
};

/// The minimum length of a command that is prepared, in bytes. A shorter command takes at most about a millisecond
/// to apply.
pub(crate) const PREPARED_BYTES_MIN: usize = 128 << 10;

/// A transaction that is ready to be applied.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) transaction: Box<PreparedTransaction>,
    pub(crate) request: Option<Request>,
    pub(crate) retention: Retention,
}

/// The preparation of one command: in progress, done, lent, or empty.
#[derive(Debug)]
pub(crate) struct Preparation {
    step: Mutex<Step>,
    done: Condvar,
}

#[derive(Debug)]
enum Step {
    InProgress,
    Done(Prepared),
    /// The result was taken to apply the command early. [`Preparation::take`] ends this step.
    Lent,
    /// Nothing was prepared, or the result was taken.
    Empty,
}

impl Prepared {
    /// Prepares an encoded command for an expected revision. `open` adds the bodies of sealed drafts. Returns `None` if
    /// the command is not a transaction or cannot be decoded. The state machine reports a decoding error when it applies
    /// the command.
    pub(crate) fn new(
        command: &Bytes,
        revision: Revision,
        open: impl FnOnce(&mut [Upsert]),
    ) -> Option<Self> {
        let Ok(Command::Transact { mut transaction, request, retention }) = decode_command(command)
        else {
            return None;
        };
        open(&mut transaction.upserts);
        let transaction = Box::new(PreparedTransaction::new(*transaction, revision));
        Some(Self { transaction, request, retention })
    }
}

impl Preparation {
    /// Creates a preparation that is complete.
    pub(crate) fn done(prepared: Prepared) -> Self {
        Self { step: Mutex::new(Step::Done(prepared)), done: Condvar::new() }
    }

    /// Creates a preparation that is in progress until [`Preparation::finish`].
    pub(crate) fn in_progress() -> Self {
        Self { step: Mutex::new(Step::InProgress), done: Condvar::new() }
    }

    /// Ends a preparation that was in progress. Without a result, the command is decoded when it is
    /// applied.
    pub(crate) fn finish(&self, prepared: Option<Prepared>) {
        *self.step.lock() = prepared.map_or(Step::Empty, Step::Done);
        self.done.notify_all();
    }

    /// Ends a preparation that is still in progress, without a result.
    pub(crate) fn give_up(&self) {
        let mut step = self.step.lock();
        if matches!(*step, Step::InProgress) {
            *step = Step::Empty;
            self.done.notify_all();
        }
    }

    /// Waits until the preparation is complete, and takes the result.
    pub(crate) fn take(&self) -> Option<Prepared> {
        self.replace(Step::Empty)
    }

    /// Takes the result like [`Preparation::take`], to apply the command early.
    pub(crate) fn lend(&self) -> Option<Prepared> {
        self.replace(Step::Lent)
    }

    fn replace(&self, by: Step) -> Option<Prepared> {
        let mut step = self.step.lock();
        self.done.wait_while(&mut step, |step| matches!(step, Step::InProgress));
        match std::mem::replace(&mut *step, by) {
            Step::Done(prepared) => Some(prepared),
            Step::InProgress | Step::Lent | Step::Empty => None,
        }
    }

    /// Returns whether the entry must stay in memory: its preparation is in progress, done, or lent.
    pub(crate) fn is_held(&self) -> bool {
        !matches!(*self.step.lock(), Step::Empty)
    }
}
