//! Which update reached whom, and when.
//!
//! An update is known by its revision: all writes are ours, and each changes one cluster. A client that
//! gets a response has everything up to the newest revision in it, for a response is built from the
//! newest state (latest wins): so what it had not been sent before has arrived now, be it in the response
//! or replaced by something newer. Every update is counted for every client that way, whether or not it
//! was folded into another.
//!
//! Times are from when an update was due, not from when it was written: a writer that is late makes
//! it late (no coordinated omission).

use std::time::Instant;

use hdrhistogram::Histogram;
use parking_lot::Mutex;

use crate::stats::count;

/// Longest time that is told apart from longer ones, in microseconds.
const TIME_MAX: u64 = 600_000_000;

/// Most updates of a run. A revision further on is not of one.
const UPDATES_MAX: usize = 100_000_000;

/// A part of the run whose updates are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part(usize);

/// Updates, from the first to the last.
#[derive(Debug)]
pub(crate) struct Board {
    /// The revision before the first update.
    base: u64,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// By revision, from the first after `base`.
    updates: Vec<Update>,
    /// By part. Of the first nothing is reported.
    times: Vec<Histogram<u64>>,
    current: Part,
}

/// One update. A client may have it before its author has heard that it is written.
#[derive(Debug, Default)]
struct Update {
    written: Option<(Instant, Part)>,
    arrivals: u64,
    early: Vec<Instant>,
}

impl Part {
    /// What is not reported.
    pub(crate) const IDLE: Self = Self(0);
}

impl Board {
    pub(crate) fn new(base: u64) -> Self {
        let inner = Inner { updates: Vec::new(), times: vec![histogram()], current: Part::IDLE };
        Self { base, inner: Mutex::new(inner) }
    }

    /// Begins a new part.
    pub(crate) fn begin(&self) -> Part {
        let mut inner = self.inner.lock();
        inner.times.push(histogram());
        inner.current = Part(inner.times.len() - 1);
        inner.current
    }

    /// Ends the part that has begun: updates that are due from now on are in none.
    pub(crate) fn end(&self) {
        self.inner.lock().current = Part::IDLE;
    }

    /// The part that an update belongs to which is due now.
    pub(crate) fn current(&self) -> Part {
        self.inner.lock().current
    }

    /// An update that was due at `due` is in the revision.
    pub(crate) fn on_written(&self, revision: u64, due: Instant, part: Part) {
        let Some(at) = self.place(revision) else { return };
        let mut inner = self.inner.lock();
        let Inner { updates, times, .. } = &mut *inner;
        let update = place(updates, at);
        update.written = Some((due, part));
        for arrival in std::mem::take(&mut update.early) {
            record(times, part, due, arrival);
        }
    }

    /// A client that had everything up to revision `from` now has everything up to `to`. Says how many
    /// updates that are.
    pub(crate) fn on_arrival(&self, from: u64, to: u64, now: Instant) -> u64 {
        let (Some(first), Some(last)) = (self.place(from + 1), self.place(to)) else { return 0 };
        let mut inner = self.inner.lock();
        let Inner { updates, times, .. } = &mut *inner;
        for at in first..=last {
            let update = place(updates, at);
            update.arrivals += 1;
            match update.written {
                Some((due, part)) => record(times, part, due, now),
                None => update.early.push(now),
            }
        }
        count((last + 1).saturating_sub(first))
    }

    /// Number of updates that were written and that not each of so many clients has.
    pub(crate) fn missing(&self, clients: u64) -> u64 {
        let inner = self.inner.lock();
        count(inner.updates.iter().filter(|it| it.arrivals != clients).count())
    }

    /// Number of updates so far.
    pub(crate) fn written(&self) -> u64 {
        count(self.inner.lock().updates.iter().filter(|it| it.written.is_some()).count())
    }

    /// The times of a part.
    pub(crate) fn times(&self, part: Part) -> Histogram<u64> {
        self.inner.lock().times.get(part.0).cloned().unwrap_or_else(histogram)
    }

    /// The place of a revision's update; `None` for one before the first.
    fn place(&self, revision: u64) -> Option<usize> {
        let at = usize::try_from(revision.checked_sub(self.base + 1)?).ok()?;
        (at < UPDATES_MAX).then_some(at)
    }
}

fn place(updates: &mut Vec<Update>, at: usize) -> &mut Update {
    if updates.len() <= at {
        updates.resize_with(at + 1, Update::default);
    }
    &mut updates[at]
}

fn record(times: &mut [Histogram<u64>], part: Part, due: Instant, arrival: Instant) {
    let micros = arrival.saturating_duration_since(due).as_micros();
    if let Some(times) = times.get_mut(part.0) {
        times.saturating_record(u64::try_from(micros).unwrap_or(TIME_MAX).clamp(1, TIME_MAX));
    }
}

/// Of times in microseconds.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, TIME_MAX, 3).expect("bounds and digits that it can have")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_update_is_counted_for_every_client_however_it_came() {
        let board = Board::new(10);
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(board.current(), Part::IDLE);
        let part = board.begin();
        // One client has 11 and 12 before their author knows of 12; the other has both in one.
        board.on_written(11, at(0), part);
        assert_eq!(board.on_arrival(10, 11, at(4)), 1);
        assert_eq!(board.on_arrival(11, 12, at(30)), 1);
        assert_eq!(board.missing(2), 2);
        board.on_written(12, at(10), part);
        assert_eq!(board.on_arrival(10, 12, at(50)), 2);
        assert_eq!((board.missing(2), board.written()), (0, 2));
        let times = board.times(part);
        // 4, 20, 50, 40 ms.
        assert_eq!((times.len(), times.max() / 1000, times.min() / 1000), (4, 50, 4));
        assert_eq!(times.value_at_quantile(0.5) / 1000, 20);
    }

    #[test]
    fn parts_are_apart_and_what_is_due_in_none_is_not_reported() {
        let board = Board::new(0);
        let now = Instant::now();
        let first = board.begin();
        board.on_written(1, now, board.current());
        board.end();
        board.on_written(2, now, board.current());
        let second = board.begin();
        board.on_written(3, now, board.current());
        assert_eq!(board.on_arrival(0, 3, now), 3);
        assert_eq!(board.on_arrival(3, 3, now), 0);
        // A response from before the first update.
        assert_eq!(board.on_arrival(0, 0, now), 0);
        assert_eq!((board.times(first).len(), board.times(second).len()), (1, 1));
        assert_eq!(board.missing(1), 0);
    }
}
