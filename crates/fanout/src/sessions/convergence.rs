//! The times of changes that a stream has not acknowledged, by type, for measuring convergence.
//!
//! The time runs from the arrival of the change's revision at the replica until the client acknowledges
//! a response with the change. It is measured from the earliest change in the response. Resources that
//! the client just requested do not count as changes.

use tokio::time::Instant;

/// The time of the first change of each type, for changes to be sent and for changes that were sent.
#[derive(Debug, Default)]
pub(crate) struct ConvergenceTimes {
    // There are few types, so a linear search suffices. Empty while no change is pending.
    owed: Vec<(usize, Instant)>,
    sent: Vec<(usize, Instant)>,
}

impl ConvergenceTimes {
    /// Records a change of a type, with the arrival time of its revision.
    pub(crate) fn owe(&mut self, type_index: usize, arrived_at: Instant) {
        keep_first(&mut self.owed, type_index, arrived_at);
    }

    /// Discards all changes to be sent: the client does not see them.
    pub(crate) fn owe_nothing(&mut self) {
        self.owed.clear();
    }

    /// Moves the pending change of a type to the sent changes.
    pub(crate) fn on_sent(&mut self, type_index: usize) {
        if let Some(arrived_at) = take(&mut self.owed, type_index) {
            keep_first(&mut self.sent, type_index, arrived_at);
        }
    }

    /// Returns the arrival time of the first change in the answered responses of a type.
    pub(crate) fn on_answer(&mut self, type_index: usize) -> Option<Instant> {
        take(&mut self.sent, type_index)
    }
}

fn keep_first(times: &mut Vec<(usize, Instant)>, type_index: usize, arrived_at: Instant) {
    match times.iter_mut().find(|(index, _)| *index == type_index) {
        Some((_, first)) => *first = arrived_at.min(*first),
        None => times.push((type_index, arrived_at)),
    }
}

fn take(times: &mut Vec<(usize, Instant)>, type_index: usize) -> Option<Instant> {
    let found = times.iter().position(|(index, _)| *index == type_index)?;
    Some(times.swap_remove(found).1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn convergence_time_starts_at_first_change_in_response() {
        let (mut changes, start) = (ConvergenceTimes::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(changes.on_answer(0), None, "a requested resource is not a change");
        changes.owe(0, at(10));
        changes.owe(0, at(20));
        changes.owe(1, at(30));
        changes.on_sent(0);
        // This change is for the next response.
        changes.owe(0, at(40));
        assert_eq!(changes.on_answer(0), Some(at(10)));
        assert_eq!(changes.on_answer(0), None);
        changes.on_sent(0);
        changes.on_sent(1);
        // This response follows the ACK timeout, so the previous one is still unanswered.
        changes.owe(1, at(50));
        changes.on_sent(1);
        assert_eq!((changes.on_answer(1), changes.on_answer(0)), (Some(at(30)), Some(at(40))));
        changes.owe(1, at(60));
        changes.owe_nothing();
        changes.on_sent(1);
        assert_eq!(changes.on_answer(1), None);
    }
}
