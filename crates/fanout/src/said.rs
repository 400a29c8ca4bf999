//! What clients have said, as the log has it.
//!
//! Invariants: whatever a client says stays one line, a short one, and can not pass for a line of ours;
//! and however much it says, a shard writes so many lines per second about it and no more: a log that is
//! written without end fills a disk, and who writes it waits.

use std::fmt;

use chancery_model::Printable;

use crate::shard::Now;

/// Lines of one kind that a shard writes per second.
const LINES_PER_SECOND: u32 = 10;

/// Bytes of a name that are shown.
const NAME_BYTES_MAX: usize = 256;

/// Text of a client: unprintable characters are escaped, and what is longer than a name is cut.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Said<'a> {
    text: &'a str,
    bytes_max: usize,
}

impl<'a> Said<'a> {
    /// A name, of a node or a type.
    pub(crate) fn name(text: &'a str) -> Self {
        Self { text, bytes_max: NAME_BYTES_MAX }
    }

    /// A text that has been cut already.
    pub(crate) fn text(text: &'a str) -> Self {
        Self { text, bytes_max: usize::MAX }
    }
}

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.text[..self.text.floor_char_boundary(self.bytes_max)];
        write!(f, "{}", Printable(shown))?;
        match shown.len() < self.text.len() {
            true => write!(f, "… ({} bytes)", self.text.len()),
            false => Ok(()),
        }
    }
}

/// Which lines of one kind are written: the first ones of each second.
#[derive(Debug, Default)]
pub(crate) struct Sparing {
    second: u64,
    written: u32,
    left_out: u64,
}

impl Sparing {
    /// Whether a line may be written; with how many were left out since the last one.
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

    /// T9: a client's text can not end a line of the log, nor color what comes after it.
    #[test]
    fn what_a_client_says_stays_one_short_line() {
        let forged = "a\n2026-01-01 INFO all is well\r\u{1b}[2J é";
        assert_eq!(Said::name(forged).to_string(), r"a\n2026-01-01 INFO all is well\r\u{1b}[2J é");
        // Line separators and bidirectional controls reorder or break what a viewer shows.
        let turned = "a\u{2028}b\u{202e}c\u{200b}d\u{85}e";
        assert_eq!(Said::text(turned).to_string(), r"a\u{2028}b\u{202e}c\u{200b}d\u{85}e");
        let long = "é".repeat(500_000);
        let shown = Said::name(&long).to_string();
        assert!(shown.len() < 300 && shown.ends_with("… (1000000 bytes)"), "{shown}");
        assert_eq!(Said::text("é\n").to_string(), "é\\n");
        assert_eq!(Said::text(&long).to_string(), long);
    }

    /// T9: floods are written about now and then, and how many lines are missing is not lost.
    #[test]
    fn a_flood_is_a_few_lines_per_second() {
        let mut sparing = Sparing::default();
        let at = |ms| Now { instant: Instant::now(), ms };
        let written = (0..1_000).filter(|_| sparing.take(at(5_999)).is_some()).count();
        assert_eq!(written, 10);
        assert_eq!(sparing.take(at(6_000)), Some(990));
        assert_eq!(sparing.take(at(6_001)), Some(0));
    }
}
