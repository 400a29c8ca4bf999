//! SIGTERM and SIGINT: the first one drains, the second one ends the process at once.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end a replica.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes over the signals. From now on they no longer end the process by themselves.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Ends the process without running anything more: not even the destructors of libraries, which
/// must not run while their threads do. What was acknowledged is durable.
pub(crate) fn end_now() -> ! {
    let killed =
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    // A process may always kill itself.
    let _: Result<(), _> = killed;
    std::process::abort()
}
