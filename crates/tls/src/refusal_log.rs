//! The log of failed handshakes, at a limited rate, because anyone who reaches a port can cause them.

use std::{net::SocketAddr, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    handshake::{HandshakeError, HandshakeResult},
    material::TlsPort,
};

/// The minimum time between two log messages with the same result.
const INTERVAL: Duration = Duration::from_secs(10);

/// The times of the last messages.
#[derive(Debug, Default)]
pub(crate) struct RefusalLog {
    /// By [`HandshakeResult`]: the time of the last message, and the number of suppressed ones since.
    last: Mutex<[(Option<Instant>, u64); HandshakeResult::ALL.len()]>,
}

impl RefusalLog {
    /// Logs a failed handshake, unless one with the same result was logged within [`INTERVAL`].
    pub(crate) fn write(&self, port: TlsPort, peer: SocketAddr, error: &HandshakeError) {
        let Some(left_out) = self.take(error.result) else { return };
        let (port, result, explanation) = (port.label(), error.result.label(), error.explanation());
        match error.result {
            // Health checks and port scanners connect and close.
            HandshakeResult::Closed => {
                tracing::debug!(port, %peer, result, left_out, "TLS handshake failed: {explanation}");
            }
            _ => {
                tracing::warn!(port, %peer, result, left_out, "TLS handshake failed: {explanation}")
            }
        }
    }

    /// Returns the number of messages that were suppressed since the last one; `None` if this one is to be
    /// suppressed, too.
    fn take(&self, result: HandshakeResult) -> Option<u64> {
        let mut all = self.last.lock();
        let (last, left_out) = &mut all[result as usize];
        if last.is_some_and(|last| last.elapsed() < INTERVAL) {
            *left_out += 1;
            return None;
        }
        *last = Some(Instant::now());
        Some(std::mem::take(left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_message_per_interval_and_result() {
        let log = RefusalLog::default();
        assert_eq!(log.take(HandshakeResult::Expired), Some(0));
        assert_eq!(log.take(HandshakeResult::Expired), None);
        assert_eq!(log.take(HandshakeResult::Expired), None);
        assert_eq!(log.take(HandshakeResult::Protocol), Some(0));
        tokio::time::advance(INTERVAL).await;
        assert_eq!(log.take(HandshakeResult::Expired), Some(2));
        assert_eq!(log.take(HandshakeResult::Expired), None);
    }
}
