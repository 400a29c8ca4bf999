//! The longest time for which a client has owed an answer, found without a scan of all sessions.
//!
//! Sessions are counted by the second since which their clients have been silent. Each response adds
//! one session and removes one. The map has few entries while clients answer, and at most one per
//! session.

use std::collections::BTreeMap;

/// The numbers of sessions, by the second since which their clients have owed an answer.
#[derive(Debug, Default)]
pub(crate) struct UnansweredClients(BTreeMap<u64, usize>);

impl UnansweredClients {
    /// Records that a session's client has owed an answer since `to` instead of `from`. `None` means
    /// that it owes none.
    pub(crate) fn change(&mut self, from: Option<u64>, to: Option<u64>) {
        if from == to {
            return;
        }
        if let Some(second) = to {
            *self.0.entry(second).or_default() += 1;
        }
        if let Some(second) = from
            && let Some(n) = self.0.get_mut(&second)
        {
            *n -= 1;
            if *n == 0 {
                self.0.remove(&second);
            }
        }
    }

    /// Returns the longest time for which a client has owed an answer, in seconds; `None` if no client
    /// owes one.
    pub(crate) fn oldest(&self, now_ms: u64) -> Option<u64> {
        let (second, _) = self.0.first_key_value()?;
        Some((now_ms / 1000).saturating_sub(*second))
    }

    /// Returns the next full second, in milliseconds; `None` if no client owes an answer.
    pub(crate) fn next_tick(&self, now_ms: u64) -> Option<u64> {
        (!self.0.is_empty()).then(|| (now_ms / 1000 + 1) * 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_unanswered_time_is_correct_after_changes() {
        let mut unanswered = UnansweredClients::default();
        assert_eq!(unanswered.oldest(5_000), None);
        unanswered.change(None, Some(3));
        unanswered.change(None, Some(2));
        unanswered.change(None, Some(2));
        assert_eq!(unanswered.oldest(5_999), Some(3));
        unanswered.change(Some(2), None);
        assert_eq!(unanswered.oldest(6_000), Some(4));
        unanswered.change(Some(2), Some(6));
        assert_eq!(unanswered.oldest(6_000), Some(3));
        unanswered.change(Some(3), None);
        unanswered.change(Some(6), None);
        assert_eq!(unanswered.oldest(6_000), None);
        assert!(unanswered.0.is_empty());
    }
}
