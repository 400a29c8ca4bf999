//! Telling of calls that are refused: those to this replica, and its own to others.
//!
//! A replica calls the others many times a second, and one that is refused goes on; whoever reads the log has to
//! find the reason, and not much of it. So each reason is told, and again after a while.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// A reason is told again after this time.
const SAY_AGAIN: Duration = Duration::from_secs(600);
/// Reasons that are known at a time: whoever reaches the port can make up more. One more is not told.
const REASONS_MAX: usize = 64;

/// What has been told lately, and when.
#[derive(Default)]
pub(crate) struct Refusals(Mutex<HashMap<String, Instant>>);

impl Refusals {
    /// Tells of a refusal, unless it was told lately.
    pub(crate) fn tell(&self, text: &str) {
        if self.is_due(text, Instant::now()) {
            tracing::warn!("{text}");
        }
    }

    fn is_due(&self, text: &str, now: Instant) -> bool {
        let mut told = self.0.lock();
        told.retain(|_, when| now.saturating_duration_since(*when) < SAY_AGAIN);
        if told.contains_key(text) || told.len() >= REASONS_MAX {
            return false;
        }
        told.insert(text.to_owned(), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_told_once_in_a_while_and_not_too_many_are() {
        let (refusals, start) = (Refusals::default(), Instant::now());
        assert!(refusals.is_due("a", start));
        assert!(!refusals.is_due("a", start + SAY_AGAIN / 2));
        assert!(refusals.is_due("b", start + SAY_AGAIN / 2));
        assert!(refusals.is_due("a", start + SAY_AGAIN));
        let n_told = (0..1000).filter(|n| refusals.is_due(&format!("{n}"), start)).count();
        assert_eq!(n_told, REASONS_MAX - 2);
    }
}
