//! Rate-limited logging of refused calls: those to this replica, and its own calls to others.
//!
//! A replica calls the others many times a second, and continues when they refuse. The log must show the
//! reason without being flooded. Each reason is therefore logged once per [`REPEAT_INTERVAL`].

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// The time after which the same reason is logged again.
const REPEAT_INTERVAL: Duration = Duration::from_secs(600);
/// The maximum number of remembered reasons, because a caller can invent new ones. Further reasons are not
/// logged.
const REASONS_MAX: usize = 64;

/// The reasons logged within [`REPEAT_INTERVAL`], each with its time.
#[derive(Default)]
pub(crate) struct Refusals(Mutex<HashMap<String, Instant>>);

impl Refusals {
    /// Logs a refusal, unless it was logged within [`REPEAT_INTERVAL`].
    pub(crate) fn log(&self, text: &str) {
        if self.is_due(text, Instant::now()) {
            tracing::warn!("{text}");
        }
    }

    fn is_due(&self, text: &str, now: Instant) -> bool {
        let mut logged = self.0.lock();
        logged.retain(|_, when| now.saturating_duration_since(*when) < REPEAT_INTERVAL);
        if logged.contains_key(text) || logged.len() >= REASONS_MAX {
            return false;
        }
        logged.insert(text.to_owned(), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_logged_once_per_interval_up_to_a_limit() {
        let (refusals, start) = (Refusals::default(), Instant::now());
        assert!(refusals.is_due("a", start));
        assert!(!refusals.is_due("a", start + REPEAT_INTERVAL / 2));
        assert!(refusals.is_due("b", start + REPEAT_INTERVAL / 2));
        assert!(refusals.is_due("a", start + REPEAT_INTERVAL));
        let n_logged = (0..1000).filter(|n| refusals.is_due(&format!("{n}"), start)).count();
        assert_eq!(n_logged, REASONS_MAX - 2);
    }
}
