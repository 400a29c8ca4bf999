//! Client texts in the log.
//!
//! Invariants:
//! - A client's text stays one short line, and cannot pass for a line of the server.
//! - A shard writes a limited number of lines per second about client texts. An unlimited log would
//!   fill the disk, and writing it would delay the shard.
//! - A client that is refused again and again gets one line per minute.

use std::{borrow::Cow, collections::HashSet, net::SocketAddr};

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{debug, warn};

/// The maximum number of lines of one kind that are written per second.
const LINES_PER_SECOND: u32 = 10;

/// The maximum number of bytes of a name in the log.
const NAME_BYTES_MAX: usize = 256;

/// Returns the name of a node or a type for the log. A long name is truncated, and ends with its original length. The log
/// quotes and escapes the values of fields.
pub(crate) fn logged_name(text: &str) -> Cow<'_, str> {
    let shown = &text[..text.floor_char_boundary(NAME_BYTES_MAX)];
    if shown.len() < text.len() {
        format!("{shown}… ({} bytes)", text.len()).into()
    } else {
        shown.into()
    }
}

/// Limits the lines of one kind: only the first ones of each second are written.
#[derive(Debug, Default)]
pub struct RateLimitedLog {
    second: u64,
    written: u32,
    left_out: u64,
}

impl RateLimitedLog {
    /// Creates a limit that has left out no line.
    #[must_use]
    pub const fn new() -> Self {
        Self { second: 0, written: 0, left_out: 0 }
    }

    /// Returns `None` if the line must not be written in this second, or else the number of lines left out since
    /// the last one. Seconds count from any fixed time.
    pub fn take(&mut self, second: u64) -> Option<u64> {
        if second != self.second {
            (self.second, self.written) = (second, 0);
        }
        if self.written == LINES_PER_SECOND {
            self.left_out += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// The lines about refused streams and polls of a replica: at most one per client and minute.
#[derive(Debug)]
pub(crate) struct RefusalLog {
    start: Instant,
    limits: Mutex<RefusalLimits>,
}

#[derive(Debug, Default)]
struct RefusalLimits {
    minute: u64,
    /// The clients with a line in this minute. The limit of lines per second bounds their number.
    clients: HashSet<Box<str>>,
    lines: RateLimitedLog,
}

// === impl RefusalLog ===

impl RefusalLog {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), limits: Mutex::default() }
    }

    /// Returns `None` if no line must be written about a client, or else the number of lines left out since the last
    /// one. A client is the ID of a node, or an address if the node is unknown.
    pub(crate) fn take(&self, node: &str, peer: SocketAddr) -> Option<u64> {
        let second = self.start.elapsed().as_secs();
        let client = match node {
            "" => peer.ip().to_string(),
            node => logged_name(node).into_owned(),
        };
        let mut limits = self.limits.lock();
        let RefusalLimits { minute, clients, lines } = &mut *limits;
        if *minute != second / 60 {
            *minute = second / 60;
            clients.clear();
        }
        if clients.contains(&*client) {
            lines.left_out += 1;
            return None;
        }
        let left_out = lines.take(second)?;
        clients.insert(client.into());
        Some(left_out)
    }

    /// Logs that a stream or a poll is refused: as a warning, or for debugging if the client has had its line. `node` may
    /// be empty.
    pub(crate) fn log(&self, node: &str, peer: SocketAddr, error: &str) {
        let left_out = self.take(node, peer);
        let node = &*logged_name(node);
        match left_out {
            Some(left_out) => warn!(node, %peer, error, left_out, "client refused"),
            None => debug!(node, %peer, error, "client refused"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_name_is_truncated() {
        let long = "é".repeat(500_000);
        let shown = logged_name(&long);
        assert!(shown.len() < 300 && shown.ends_with("… (1000000 bytes)"), "{shown}");
    }

    /// T9: a flood writes a few lines per second, and the next line reports how many were left out.
    #[test]
    fn log_flood_is_limited_to_a_few_lines_per_second() {
        let mut log = RateLimitedLog::default();
        let written = (0..1_000).filter(|_| log.take(5).is_some()).count();
        assert_eq!(written, 10);
        assert_eq!(log.take(6), Some(990));
        assert_eq!(log.take(6), Some(0));
    }

    /// OPS-20: a client that is refused again and again gets one line per minute, and does not use up the lines of other clients.
    #[tokio::test(start_paused = true)]
    async fn refused_client_gets_one_line_per_minute() {
        let (log, here) = (RefusalLog::new(), ([192, 0, 2, 1], 1).into());
        assert_eq!(log.take("a", here), Some(0));
        let again = (0..1_000).filter(|_| log.take("a", here).is_some()).count();
        assert_eq!(again, 0);
        assert_eq!(log.take("b", here), Some(1_000));
        // Without a node, the address is the client. Its ports do not matter.
        assert_eq!(log.take("", here), Some(0));
        assert_eq!(log.take("", ([192, 0, 2, 1], 2).into()), None);
        assert_eq!(log.take("", ([192, 0, 2, 2], 1).into()), Some(1));
        // A fleet writes a limited number of lines per second, and is remembered only as far as it has lines.
        let fleet = (0..10_000).filter(|n| log.take(&format!("n{n}"), here).is_some()).count();
        assert_eq!(fleet, 6);
        assert_eq!(log.limits.lock().clients.len(), 10);
        tokio::time::advance(std::time::Duration::from_secs(60)).await;
        assert_eq!(log.take("a", here), Some(9_994));
        assert_eq!(log.limits.lock().clients.len(), 1);
    }
}
