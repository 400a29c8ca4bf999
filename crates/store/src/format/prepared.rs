//! Commands that are prepared before their turn.
//!
//! A replica applies commands one after the other. Decoding a large transaction and building its resources takes
//! most of the time of applying it, and depends on the command alone. It is therefore done before the turn of the
//! command, so that the commands behind it do not wait.

use bytes::Bytes;
use chancery_model::{PreparedTransaction, Revision};
use parking_lot::{Condvar, Mutex};

use crate::format::codec::{Command, Request, decode_command};

/// The length of a command from which it is prepared, in bytes. A shorter one takes about a millisecond to apply.
pub(crate) const PREPARED_BYTES_MIN: usize = 128 << 10;

/// A transaction that is ready to be applied.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) transaction: Box<PreparedTransaction>,
    pub(crate) request: Option<Request>,
}

/// The preparation of one command: in progress, held, lent, or taken.
#[derive(Debug)]
pub(crate) struct Preparation {
    step: Mutex<Step>,
    done: Condvar,
}

#[derive(Debug)]
enum Step {
    InProgress,
    Done(Prepared),
    /// The command is applied ahead of its turn.
    Lent,
    /// Nothing was prepared, or it was taken.
    Empty,
}

impl Prepared {
    /// Prepares an encoded command that will probably make the given revision. Returns `None` if it is not a
    /// transaction; applying it reports the reason.
    pub(crate) fn new(command: &Bytes, revision: Revision) -> Option<Self> {
        let Ok(Command::Transact { transaction, request }) = decode_command(command) else {
            return None;
        };
        let transaction = Box::new(PreparedTransaction::new(*transaction, revision));
        Some(Self { transaction, request })
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

    /// Ends a preparation that was in progress. Without a result, the command is decoded in its turn.
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

    /// Takes the result once it is there.
    pub(crate) fn take(&self) -> Option<Prepared> {
        self.replace(Step::Empty)
    }

    /// Takes the result once it is there, to apply the command ahead of its turn.
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

    /// Returns whether there is, or will be, a result that is not taken.
    pub(crate) fn is_held(&self) -> bool {
        !matches!(*self.step.lock(), Step::Empty)
    }
}
