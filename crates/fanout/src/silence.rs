//! For how long clients have owed an answer: the oldest of all, without looking at all.
//!
//! Sessions are counted by the second since which their client is silent. One comes and one goes per
//! response, in a map that has few entries while clients answer, and at most one per session.

use std::collections::BTreeMap;

/// Numbers of sessions, by the second since which their clients have owed an answer.
#[derive(Debug, Default)]
pub(crate) struct Silence(BTreeMap<u64, usize>);

impl Silence {
    /// A session's client owes an answer since another time, or no longer.
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

    /// For how many seconds the one that has been silent the longest has owed an answer; `None` if no
    /// client owes one.
    pub(crate) fn oldest(&self, now_ms: u64) -> Option<u64> {
        let (second, _) = self.0.first_key_value()?;
        Some((now_ms / 1000).saturating_sub(*second))
    }

    /// The next full second, in milliseconds; `None` if nothing changes then.
    pub(crate) fn next_tick(&self, now_ms: u64) -> Option<u64> {
        (!self.0.is_empty()).then(|| (now_ms / 1000 + 1) * 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_known_whoever_comes_and_goes() {
        let mut silence = Silence::default();
        assert_eq!(silence.oldest(5_000), None);
        silence.change(None, Some(3));
        silence.change(None, Some(2));
        silence.change(None, Some(2));
        assert_eq!(silence.oldest(5_999), Some(3));
        silence.change(Some(2), None);
        assert_eq!(silence.oldest(6_000), Some(4));
        silence.change(Some(2), Some(6));
        assert_eq!(silence.oldest(6_000), Some(3));
        silence.change(Some(3), None);
        silence.change(Some(6), None);
        assert_eq!(silence.oldest(6_000), None);
        assert!(silence.0.is_empty());
    }
}
