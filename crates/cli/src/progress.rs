//! Progress and interruption of commands that may take long.
//!
//! A command that has worked for a second shows its progress on standard error: a bar on a terminal, and elsewhere
//! lines that begin with `progress: `. Standard output has only results. SIGINT ends the work at its next await. The
//! command then says whether the write took effect, or that it does not know.

use std::{
    cell::{Cell, RefCell},
    fmt::Write as _,
    io::{self, IsTerminal, Write},
    rc::Rc,
    time::Duration,
};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{Instant, MissedTickBehavior, interval_at},
};

use super::{exit::Exit, failure::Failure, text::plain};

/// The time after which progress is shown, and the time between two updates of the bar.
const FIRST: Duration = Duration::from_secs(1);
const UPDATE: Duration = Duration::from_millis(250);
/// The time between two lines if standard error is not a terminal.
const LINE: Duration = Duration::from_secs(10);
/// The length of the bar.
const BAR: usize = 20;

/// A signal that ends a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// SIGINT.
    Interrupted,
    /// SIGTERM. Only commands that run until a signal ends them receive it.
    Terminated,
}

impl Stopped {
    /// Returns the end of a command, with the known part of its outcome.
    pub(crate) fn failure(self, lines: impl IntoIterator<Item = String>) -> Failure {
        let exit = match self {
            Self::Interrupted => Exit::Interrupted,
            Self::Terminated => Exit::Failed,
        };
        Failure::ended(exit, lines)
    }
}

/// The signals that end a command.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Option<Signal>,
}

impl Signals {
    /// Receives SIGINT from now on.
    pub(crate) fn interrupt() -> Result<Self, Failure> {
        Ok(Self { interrupt: receive(SignalKind::interrupt())?, terminate: None })
    }

    /// Receives SIGINT and SIGTERM from now on.
    pub(crate) fn all() -> Result<Self, Failure> {
        let terminate = Some(receive(SignalKind::terminate())?);
        Ok(Self { terminate, ..Self::interrupt()? })
    }

    /// Waits for a signal. Cancel safe.
    pub(crate) async fn next(&mut self) -> Stopped {
        let terminate = async {
            match &mut self.terminate {
                Some(terminate) => drop(terminate.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => Stopped::Interrupted,
            () = terminate => Stopped::Terminated,
        }
    }
}

fn receive(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::new(format_args!("cannot receive signals: {error}")))
}

/// The state of the work, which the work itself updates.
#[derive(Debug, Default)]
pub(crate) struct Stage {
    what: RefCell<String>,
    done: Cell<u64>,
    total: Cell<u64>,
    unit: Cell<&'static str>,
}

impl Stage {
    /// Starts the next part of the work.
    pub(crate) fn begin(&self, what: &str) {
        what.clone_into(&mut self.what.borrow_mut());
        self.set(0, 0, "");
    }

    /// Sets how much of the part is done. A total of 0 is unknown.
    pub(crate) fn set(&self, done: u64, total: u64, unit: &'static str) {
        self.done.set(done);
        self.total.set(total);
        self.unit.set(unit);
    }

    fn line(&self, elapsed: Duration, with_bar: bool) -> String {
        let (done, total, unit) = (self.done.get(), self.total.get(), self.unit.get());
        let mut line = self.what.borrow().clone();
        if with_bar {
            line.push_str(&format!(" {}", bar(done, total, elapsed)));
        }
        // Writing to a string cannot fail.
        let _ = match (unit, total) {
            ("", _) => Ok(()),
            (unit, 0) => write!(line, " {done} {unit}"),
            (unit, total) => write!(line, " {done} of {total} {unit}"),
        };
        let _ = write!(line, ", {} s", elapsed.as_secs());
        plain(&line)
    }
}

/// Returns a bar. Without a total, a mark moves with the time.
fn bar(done: u64, total: u64, elapsed: Duration) -> String {
    let at = |share: u64, of: u64| {
        usize::try_from(share.min(of).saturating_mul(BAR as u64) / of.max(1)).unwrap_or(BAR)
    };
    if total > 0 {
        let full = at(done, total);
        return format!("[{}{}]", "#".repeat(full), "-".repeat(BAR - full));
    }
    let round = u64::try_from(elapsed.as_millis() % 4000).unwrap_or_default();
    let start = at(round, 4000).min(BAR - 1);
    format!("[{}#{}]", "-".repeat(start), "-".repeat(BAR - 1 - start))
}

/// Shows the progress of work, and ends it at a signal.
pub(crate) struct Progress {
    stage: Rc<Stage>,
    signals: Signals,
    is_terminal: bool,
}

impl Progress {
    /// Creates progress for a command that SIGINT ends.
    pub(crate) fn new() -> Result<Self, Failure> {
        Ok(Self::with(Signals::interrupt()?))
    }

    /// Creates progress for a command that these signals end.
    pub(crate) fn with(signals: Signals) -> Self {
        let is_terminal = io::stderr().is_terminal();
        Self { stage: Rc::default(), signals, is_terminal }
    }

    /// The state of the work.
    pub(crate) fn stage(&self) -> Rc<Stage> {
        Rc::clone(&self.stage)
    }

    /// Waits for a signal. Cancel safe.
    pub(crate) async fn signal(&mut self) -> Stopped {
        self.signals.next().await
    }

    /// Runs work until it is done, or until a signal ends it. Work that computes for long has to yield. Dropped work must be harmless at each of its awaits.
    pub(crate) async fn run<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Stopped> {
        let (stage, is_terminal) = (Rc::clone(&self.stage), self.is_terminal);
        let start = Instant::now();
        let mut ticks = interval_at(start + FIRST, if is_terminal { UPDATE } else { LINE });
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut has_shown = false;
        tokio::pin!(work);
        let result = loop {
            tokio::select! {
                biased;
                done = &mut work => break Ok(done),
                stopped = self.signals.next() => break Err(stopped),
                _ = ticks.tick() => {
                    has_shown = true;
                    show(&stage.line(start.elapsed(), is_terminal), is_terminal);
                }
            }
        };
        if has_shown && is_terminal {
            drop(write!(io::stderr(), "\r\x1b[K"));
        }
        result
    }
}

/// Runs a request that only reads until it is answered, and shows how long it takes.
pub(crate) async fn reading<T>(
    what: &str,
    request: impl AsyncFnOnce(&Stage) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut progress = Progress::new()?;
    let stage = progress.stage();
    stage.begin(what);
    let read = progress.run(request(&stage)).await;
    read.map_err(|stopped| stopped.failure(["interrupted: the answer is not complete".to_owned()]))?
}

/// Shows a line. On a terminal, it replaces the line before.
fn show(line: &str, is_terminal: bool) {
    let mut stderr = io::stderr().lock();
    // A failure to write to standard error cannot be reported anywhere.
    if is_terminal {
        drop(write!(stderr, "\r{line}\x1b[K").and_then(|()| stderr.flush()));
    } else {
        drop(writeln!(stderr, "progress: {line}"));
    }
}

/// Runs blocking work, such as reading standard input, on a thread of its own. The process does not wait for the thread
/// if it ends early.
pub(crate) async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let run = move || drop(sender.send(work()));
    let started = std::thread::Builder::new().name("cli-input".to_owned()).spawn(run);
    let failed = |why: &dyn std::fmt::Display| Failure::new(format_args!("cannot read: {why}"));
    started.map_err(|error| failed(&error))?;
    receiver.await.map_err(|_| failed(&"the thread ended"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_has_the_part_the_numbers_and_the_time() {
        let stage = Stage::default();
        stage.begin("export: reading");
        let time = Duration::from_millis(3999);
        assert_eq!(stage.line(time, false), "export: reading, 3 s");
        stage.set(40, 0, "resources");
        assert_eq!(stage.line(time, false), "export: reading 40 resources, 3 s");
        stage.set(40, 80, "files");
        assert_eq!(
            stage.line(time, true),
            "export: reading [##########----------] 40 of 80 files, 3 s"
        );
    }

    #[test]
    fn bar_has_a_fixed_length() {
        for (done, total) in [(0, 0), (0, 1), (1, 1), (7, 3), (u64::MAX, u64::MAX), (5, 1000)] {
            for millis in [0, 1, 1999, 3999, 4000, 10_001] {
                let bar = bar(done, total, Duration::from_millis(millis));
                assert_eq!(bar.len(), BAR + 2, "{bar}");
            }
        }
        assert_eq!(bar(1, 1, Duration::ZERO), format!("[{}]", "#".repeat(BAR)));
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_is_done_ends_the_progress() {
        let mut progress = Progress::new().unwrap();
        let work = tokio::time::sleep(Duration::from_secs(25));
        assert!(progress.run(work).await.is_ok());
    }
}
