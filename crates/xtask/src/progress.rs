//! One line of progress, with an estimate, while a long command runs.

use std::{
    io::{IsTerminal as _, Write as _},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::say::say;

/// The time between two lines where standard error is not a terminal.
const INTERVAL: Duration = Duration::from_secs(30);

/// The completed part of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Done {
    /// The description, such as `3 of 24 files`.
    pub(crate) text: String,
    /// The completed work, in any unit.
    pub(crate) work: u32,
    /// All work, in the same unit.
    pub(crate) total: u32,
}

/// Runs `work`. Meanwhile shows `what`, the result of `done`, the elapsed time and an estimate.
///
/// A terminal shows one line that changes. Other outputs get a new line at each interval.
pub(crate) fn show<T>(what: &str, done: impl Fn() -> Done + Sync, work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let reporter = scope.spawn(|| {
            let start = Instant::now();
            let is_terminal = std::io::stderr().is_terminal();
            let interval = if is_terminal { Duration::from_secs(1) } else { INTERVAL };
            loop {
                thread::park_timeout(interval);
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let line = line(what, &done(), start.elapsed());
                if is_terminal {
                    let mut stderr = std::io::stderr().lock();
                    drop(write!(stderr, "\r\x1b[Kxtask: {line}").and_then(|()| stderr.flush()));
                } else {
                    say!("{line}");
                }
            }
            if is_terminal {
                drop(write!(std::io::stderr().lock(), "\r\x1b[K"));
            }
        });
        let result = work();
        is_over.store(true, Ordering::Relaxed);
        reporter.thread().unpark();
        result
    })
}

/// Returns one line. The estimate assumes that each unit of work takes equally long. It needs a tenth of
/// the work, because the first units say little about the others.
fn line(what: &str, done: &Done, elapsed: Duration) -> String {
    let mut line = format!("{what}: {}, {}", done.text, time(elapsed));
    let missing = done.total.saturating_sub(done.work);
    if done.work > 0 && done.work >= done.total / 10 && missing > 0 {
        line += &format!(", about {} left", time(elapsed * missing / done.work));
    }
    line
}

/// Returns a time in minutes and seconds.
pub(crate) fn time(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{} min {:02} s", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_estimates_remaining_time() {
        let line = |work| {
            let done = Done { text: format!("{work} of 20 files"), work, total: 20 };
            line("compiling", &done, Duration::from_secs(60))
        };
        assert_eq!(line(0), "compiling: 0 of 20 files, 1 min 00 s");
        assert_eq!(line(1), "compiling: 1 of 20 files, 1 min 00 s");
        assert_eq!(line(5), "compiling: 5 of 20 files, 1 min 00 s, about 3 min 00 s left");
        assert_eq!(line(20), "compiling: 20 of 20 files, 1 min 00 s");
    }
}
