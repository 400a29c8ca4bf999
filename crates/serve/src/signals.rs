//! SIGTERM and SIGINT: the first one drains, the second one ends the process at once.
//!
//! If a failure has begun the shutdown, the first signal lets it continue: service managers send a signal to a process
//! that is ending already. SIGHUP never ends the process. It causes a line of the log only, because changed files are
//! read without it.

use std::{io, time::Duration};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::info;

use super::log;

/// The maximum time to write the last lines of the log.
const LOG_TIMEOUT: Duration = Duration::from_millis(100);

/// The signals that a replica handles.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    /// The number of received signals that end a replica.
    n_received: u32,
}

impl Signals {
    /// Installs handlers for the signals. They no longer end the process by themselves.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            n_received: 0,
        })
    }

    /// Returns whether a signal that ends a replica was received.
    pub(crate) fn have_arrived(&self) -> bool {
        self.n_received > 0
    }

    /// Waits for the next signal that ends a replica, and returns its name.
    pub(crate) async fn next(&mut self) -> &'static str {
        let signal = loop {
            tokio::select! {
                _ = self.terminate.recv() => break "SIGTERM",
                _ = self.interrupt.recv() => break "SIGINT",
                _ = self.hangup.recv() => info!(
                    signal = "SIGHUP",
                    "a replica reads changed files without a signal; other settings need a restart"
                ),
            }
        };
        self.n_received += 1;
        signal
    }

    /// Waits during a shutdown for the second signal since the start of the process.
    pub(crate) async fn second(&mut self) {
        while self.n_received < 2 {
            let signal = self.next().await;
            if self.n_received < 2 {
                info!(signal, "the shutdown continues; another signal ends the process at once");
            }
        }
    }
}

/// Ends the process at the second signal.
pub(crate) async fn end_at_second(mut signals: Signals) {
    signals.second().await;
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

#[cfg(test)]
mod tests {
    use std::{future::Future, pin::pin, task::Poll};

    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    async fn is_ready(future: std::pin::Pin<&mut impl Future<Output = ()>>) -> bool {
        let mut future = future;
        std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await
    }

    #[tokio::test]
    async fn first_signal_of_a_shutdown_that_a_failure_began_does_not_end_it() {
        let mut signals = Signals::new().unwrap();
        let mut delivered = signal(SignalKind::terminate()).unwrap();
        let mut send = async || {
            kill_process(getpid(), Signal::TERM).unwrap();
            delivered.recv().await.unwrap();
        };
        {
            let mut second = pin!(signals.second());
            send().await;
            assert!(!is_ready(second.as_mut()).await, "the shutdown continues");
            send().await;
            assert!(is_ready(second.as_mut()).await);
        }
        // A signal that began the shutdown counts.
        let mut signals = Signals::new().unwrap();
        send().await;
        assert_eq!(signals.next().await, "SIGTERM");
        send().await;
        assert!(is_ready(pin!(signals.second())).await);
    }
}
