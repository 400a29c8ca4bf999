//! Client texts in the log.
//!
//! Invariants:
//! - A client's text stays one short line, and cannot pass for a line of the server.
//! - A shard writes a limited number of lines per second about client texts. An unlimited log would
//!   fill the disk, and writing it would delay the shard.

use std::borrow::Cow;

/// The maximum number of lines of one kind that are written per second.
const LINES_PER_SECOND: u32 = 10;

/// The maximum number of bytes of a name in the log.
const NAME_BYTES_MAX: usize = 256;

/// Returns the name of a node or a type for the log. A long name is truncated, and ends with its original length. The log
/// quotes and escapes the values of fields.
pub(crate) fn logged_name(text: &str) -> Cow<'_, str> {
    let shown = &text[..text.floor_char_boundary(NAME_BYTES_MAX)];
    match shown.len() < text.len() {
        true => format!("{shown}… ({} bytes)", text.len()).into(),
        false => shown.into(),
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
}
