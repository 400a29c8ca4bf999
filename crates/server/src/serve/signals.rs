//! SIGTERM and SIGINT: the first one drains, the second one ends the process at once.

use std::{io, time::Duration};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::log;

/// The maximum time to write the last lines of the log.
const LOG_TIMEOUT: Duration = Duration::from_millis(100);

/// The signals that end a replica.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs handlers for the signals. They no longer end the process by themselves.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal and returns its name.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Ends the process at the next signal.
pub(crate) async fn end_at_next(mut signals: Signals) {
    signals.next().await;
    end_now()
}

/// Ends the process at once, without the destructors of libraries. These must not run while the
/// threads of the libraries run. Acknowledged writes are durable.
pub(crate) fn end_now() -> ! {
    log::flush(LOG_TIMEOUT);
    let killed =
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    // A process may always kill itself.
    let _: Result<(), _> = killed;
    std::process::abort()
}
