//! The arrival of each update at each client, with its time.
//!
//! A revision identifies an update, because the test makes all writes, and each write changes one
//! cluster. A response is built from the newest state (latest wins). After a response, a client
//! therefore has all updates up to the newest revision in it. An earlier update has arrived in the
//! response, or a newer one has replaced it. Every update is thus counted for every client, even if
//! it was merged into another.
//!
//! Times are measured from when an update was due, not from when it was written. A late writer
//! makes the update late (no coordinated omission).

use std::time::Instant;

use hdrhistogram::Histogram;
use parking_lot::Mutex;

use crate::stats::count;

/// The maximum time that is recorded, in microseconds. Longer times count as this time.
const TIME_MAX: u64 = 600_000_000;

/// The maximum number of updates in a run. Higher revisions are ignored.
const UPDATES_MAX: usize = 100_000_000;

/// A part of the run, whose updates are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part(usize);

/// All updates of a run.
#[derive(Debug)]
pub(crate) struct Arrivals {
    /// The revision before the first update.
    base: u64,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// The updates by revision, from the first one after `base`.
    updates: Vec<Update>,
    /// The times by part. The first part is not reported.
    times: Vec<Histogram<u64>>,
    current: Part,
}

/// One update. A client may receive it before its author receives the answer.
#[derive(Debug, Default)]
struct Update {
    written: Option<(Instant, Part)>,
    arrivals: u64,
    early: Vec<Instant>,
}

impl Part {
    /// The part that is not reported.
    pub(crate) const IDLE: Self = Self(0);
}

impl Arrivals {
    pub(crate) fn new(base: u64) -> Self {
        let inner = Inner { updates: Vec::new(), times: vec![histogram()], current: Part::IDLE };
        Self { base, inner: Mutex::new(inner) }
    }

    /// Starts a new part.
    pub(crate) fn begin(&self) -> Part {
        let mut inner = self.inner.lock();
        inner.times.push(histogram());
        inner.current = Part(inner.times.len() - 1);
        inner.current
    }

    /// Ends the current part. Updates that become due after this are not reported.
    pub(crate) fn end(&self) {
        self.inner.lock().current = Part::IDLE;
    }

    /// Returns the part of an update that is due now.
    pub(crate) fn current(&self) -> Part {
        self.inner.lock().current
    }

    /// Records that the update of a revision, which was due at `due`, is written.
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

    /// Records that a client with all updates up to revision `from` now has all updates up to `to`.
    /// Returns the number of these updates.
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

    /// Returns the number of updates that did not arrive at exactly `clients` clients.
    pub(crate) fn missing(&self, clients: u64) -> u64 {
        let inner = self.inner.lock();
        count(inner.updates.iter().filter(|it| it.arrivals != clients).count())
    }

    /// Returns the number of written updates of a part that did not arrive at exactly `clients` clients.
    pub(crate) fn missing_of(&self, part: Part, clients: u64) -> u64 {
        let inner = self.inner.lock();
        let of_part = |update: &&Update| update.written.is_some_and(|(_, of)| of == part);
        count(inner.updates.iter().filter(of_part).filter(|it| it.arrivals != clients).count())
    }

    /// Returns the number of written updates.
    pub(crate) fn written(&self) -> u64 {
        count(self.inner.lock().updates.iter().filter(|it| it.written.is_some()).count())
    }

    /// Returns the times of a part.
    pub(crate) fn times(&self, part: Part) -> Histogram<u64> {
        self.inner.lock().times.get(part.0).cloned().unwrap_or_else(histogram)
    }

    /// Returns the index of a revision's update; `None` before the first update or beyond the
    /// maximum.
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

/// Returns an empty histogram of times in microseconds.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, TIME_MAX, 3).expect("the bounds and digits are valid")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_update_is_counted_once_per_client() {
        let arrivals = Arrivals::new(10);
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(arrivals.current(), Part::IDLE);
        let part = arrivals.begin();
        // One client has 11 and 12 before the author knows of 12. The other receives both in one
        // response.
        arrivals.on_written(11, at(0), part);
        assert_eq!(arrivals.on_arrival(10, 11, at(4)), 1);
        assert_eq!(arrivals.on_arrival(11, 12, at(30)), 1);
        assert_eq!(arrivals.missing(2), 2);
        arrivals.on_written(12, at(10), part);
        assert_eq!(arrivals.on_arrival(10, 12, at(50)), 2);
        assert_eq!((arrivals.missing(2), arrivals.written()), (0, 2));
        let times = arrivals.times(part);
        // 4, 20, 50, 40 ms.
        assert_eq!((times.len(), times.max() / 1000, times.min() / 1000), (4, 50, 4));
        assert_eq!(times.value_at_quantile(0.5) / 1000, 20);
    }

    #[test]
    fn parts_are_separate_and_updates_outside_are_not_reported() {
        let arrivals = Arrivals::new(0);
        let now = Instant::now();
        let first = arrivals.begin();
        arrivals.on_written(1, now, arrivals.current());
        arrivals.end();
        arrivals.on_written(2, now, arrivals.current());
        let second = arrivals.begin();
        arrivals.on_written(3, now, arrivals.current());
        assert_eq!(arrivals.on_arrival(0, 3, now), 3);
        assert_eq!(arrivals.on_arrival(3, 3, now), 0);
        // A response from before the first update.
        assert_eq!(arrivals.on_arrival(0, 0, now), 0);
        assert_eq!((arrivals.times(first).len(), arrivals.times(second).len()), (1, 1));
        assert_eq!(arrivals.missing(1), 0);
    }
}
