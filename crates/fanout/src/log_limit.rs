//! Client texts in the log.
//!
//! Invariants:
//! - A client's text stays one short line, and cannot pass for a line of the server.
//! - A shard writes a limited number of lines per second about client texts. An unlimited log would
//!   fill the disk, and writing it would delay the shard.

use std::fmt;

use chancery_model::Printable;

use crate::clock::Now;

/// The maximum number of lines of one kind that a shard writes per second.
const LINES_PER_SECOND: u32 = 10;

/// The maximum number of bytes of a name in the log.
const NAME_BYTES_MAX: usize = 256;

/// A client's text. Unprintable characters are escaped, and long names are truncated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EscapedText<'a> {
    text: &'a str,
    bytes_max: usize,
}

impl<'a> EscapedText<'a> {
    /// Creates the text for the name of a node or a type.
    pub(crate) fn name(text: &'a str) -> Self {
        Self { text, bytes_max: NAME_BYTES_MAX }
    }

    /// Creates the text for a message that is already truncated.
    pub(crate) fn text(text: &'a str) -> Self {
        Self { text, bytes_max: usize::MAX }
    }
}

impl fmt::Display for EscapedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.text[..self.text.floor_char_boundary(self.bytes_max)];
        write!(f, "{}", Printable(shown))?;
        match shown.len() < self.text.len() {
            true => write!(f, "… ({} bytes)", self.text.len()),
            false => Ok(()),
        }
    }
}

/// Limits the lines of one kind: only the first ones of each second are written.
#[derive(Debug, Default)]
pub(crate) struct RateLimitedLog {
    second: u64,
    written: u32,
    left_out: u64,
}

impl RateLimitedLog {
    /// Returns `None` if the line must not be written, or else the number of lines left out since the
    /// last one.
    pub(crate) fn take(&mut self, now: Now) -> Option<u64> {
        let second = now.ms / 1000;
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
    use tokio::time::Instant;

    use super::*;

    /// T9: a client's text cannot end a line of the log, nor color the lines after it.
    #[test]
    fn client_text_in_log_is_one_short_line() {
        let forged = "a\n2026-01-01 INFO all is well\r\u{1b}[2J é";
        assert_eq!(
            EscapedText::name(forged).to_string(),
            r"a\n2026-01-01 INFO all is well\r\u{1b}[2J é"
        );
        // Line separators and bidirectional controls reorder or break what a viewer shows.
        let turned = "a\u{2028}b\u{202e}c\u{200b}d\u{85}e";
        assert_eq!(EscapedText::text(turned).to_string(), r"a\u{2028}b\u{202e}c\u{200b}d\u{85}e");
        let long = "é".repeat(500_000);
        let shown = EscapedText::name(&long).to_string();
        assert!(shown.len() < 300 && shown.ends_with("… (1000000 bytes)"), "{shown}");
        assert_eq!(EscapedText::text("é\n").to_string(), "é\\n");
        assert_eq!(EscapedText::text(&long).to_string(), long);
    }

    /// T9: a flood writes a few lines per second, and the next line reports how many were left out.
    #[test]
    fn log_flood_is_limited_to_a_few_lines_per_second() {
        let mut log = RateLimitedLog::default();
        let at = |ms| Now { instant: Instant::now(), ms };
        let written = (0..1_000).filter(|_| log.take(at(5_999)).is_some()).count();
        assert_eq!(written, 10);
        assert_eq!(log.take(at(6_000)), Some(990));
        assert_eq!(log.take(at(6_001)), Some(0));
    }
}
