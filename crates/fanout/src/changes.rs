//! Since when a stream has been owed changes, type by type: for measuring convergence.
//!
//! A change counts from the arrival of its revision at the replica until the client has acknowledged a
//! response that tells it. Of changes that one response tells, the first counts: the others took less.
//! What a client is sent because it asks is none.

use tokio::time::Instant;

/// Times of the first change of each type: those that are still to be sent, and those that were.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    // Few types: searched, not hashed. Empty while nothing is owed.
    owed: Vec<(usize, Instant)>,
    sent: Vec<(usize, Instant)>,
}

impl Changes {
    /// A change of a type has come, which arrived at the replica at this time.
    pub(crate) fn owe(&mut self, type_place: usize, arrived: Instant) {
        keep_first(&mut self.owed, type_place, arrived);
    }

    /// There is nothing to be sent: what has come is not to be seen by the client.
    pub(crate) fn owe_nothing(&mut self) {
        self.owed.clear();
    }

    /// A response of a type tells what is owed of it.
    pub(crate) fn on_sent(&mut self, type_place: usize) {
        if let Some(arrived) = take(&mut self.owed, type_place) {
            keep_first(&mut self.sent, type_place, arrived);
        }
    }

    /// The client has answered a response of a type. When the first change that it told had arrived.
    pub(crate) fn on_answer(&mut self, type_place: usize) -> Option<Instant> {
        take(&mut self.sent, type_place)
    }
}

fn keep_first(times: &mut Vec<(usize, Instant)>, type_place: usize, arrived: Instant) {
    match times.iter_mut().find(|(place, _)| *place == type_place) {
        Some((_, first)) => *first = arrived.min(*first),
        None => times.push((type_place, arrived)),
    }
}

fn take(times: &mut Vec<(usize, Instant)>, type_place: usize) -> Option<Instant> {
    let at = times.iter().position(|(place, _)| *place == type_place)?;
    Some(times.swap_remove(at).1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_first_change_that_a_response_tells_counts() {
        let (mut changes, start) = (Changes::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(changes.on_answer(0), None, "what it asked for is no change");
        changes.owe(0, at(10));
        changes.owe(0, at(20));
        changes.owe(1, at(30));
        changes.on_sent(0);
        // For the next response.
        changes.owe(0, at(40));
        assert_eq!(changes.on_answer(0), Some(at(10)));
        assert_eq!(changes.on_answer(0), None);
        changes.on_sent(0);
        changes.on_sent(1);
        // Sent after the timeout, though the one before is not answered.
        changes.owe(1, at(50));
        changes.on_sent(1);
        assert_eq!((changes.on_answer(1), changes.on_answer(0)), (Some(at(30)), Some(at(40))));
        changes.owe(1, at(60));
        changes.owe_nothing();
        changes.on_sent(1);
        assert_eq!(changes.on_answer(1), None);
    }
}
