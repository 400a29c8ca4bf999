//! Connection slots. When all are taken, a new connection displaces the least important one.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Instant,
};

use futures::task::AtomicWaker;
use metrics::Gauge;
use parking_lot::Mutex;

/// The slots of a port.
pub(crate) struct Slots {
    max: usize,
    since: Instant,
    connections: Gauge,
    taken: Mutex<Taken>,
}

/// The progress of a connection; 0 for a new one. A connection with less progress is displaced first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress_ {
    /// It has sent the HTTP/2 preface.
    Greeted = 1,
    /// It has made a call.
    Caller = 2,
}

/// The connection on which a call arrived.
#[derive(Clone)]
pub(crate) struct Caller(Arc<Seat>);

/// Whether a slot was free, or a connection was displaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freed {
    Before,
    ByForce,
}

#[derive(Default)]
struct Taken {
    /// The number of the next slot.
    next: u64,
    seats: BTreeMap<u64, Arc<Seat>>,
}

/// The slot of one connection. Dropping it frees the slot.
pub(crate) struct Place {
    number: u64,
    seat: Arc<Seat>,
    places: Weak<Slots>,
    since: Instant,
}

#[derive(Default)]
struct Seat {
    /// A [`Progress_`], or 0.
    standing: AtomicU8,
    /// The time of the last received bytes, in milliseconds since the port was opened.
    heard: AtomicU64,
    /// Whether another connection has the slot now.
    lost: AtomicBool,
    waker: AtomicWaker,
}

impl Slots {
    /// Creates `max` slots, at least one. The gauge shows the number of taken slots.
    pub(crate) fn new(max: usize, connections: Gauge) -> Arc<Self> {
        let (max, since) = (max.max(1), Instant::now());
        Arc::new(Self { max, since, connections, taken: Mutex::default() })
    }

    /// Takes a slot. If none is free, displaces a connection: among those with the least progress, the
    /// one that was silent longest.
    pub(crate) fn take(self: &Arc<Self>) -> (Place, Freed) {
        let since = self.since;
        let seat = Arc::new(Seat { heard: AtomicU64::new(millis(since)), ..Seat::default() });
        let mut taken = self.taken.lock();
        let number = taken.next;
        taken.next += 1;
        let mut freed = Freed::Before;
        if taken.seats.len() >= self.max {
            let needed = |seat: &Seat| {
                (seat.standing.load(Ordering::Relaxed), seat.heard.load(Ordering::Relaxed))
            };
            let least = taken.seats.iter().min_by_key(|(_, seat)| needed(seat));
            let least = least.map(|(number, _)| *number);
            if let Some(seat) = least.and_then(|number| taken.seats.remove(&number)) {
                seat.lose();
                freed = Freed::ByForce;
            }
        }
        taken.seats.insert(number, Arc::clone(&seat));
        self.show(&taken);
        (Place { number, seat, places: Arc::downgrade(self), since }, freed)
    }

    fn show(&self, taken: &Taken) {
        let n = u32::try_from(taken.seats.len()).unwrap_or(u32::MAX);
        self.connections.set(f64::from(n));
    }
}

impl Seat {
    fn rise(&self, standing: Progress_) {
        self.standing.fetch_max(standing as u8, Ordering::Relaxed);
    }

    fn lose(&self) {
        self.lost.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl Place {
    /// Records that the connection has sent the preface.
    pub(crate) fn greeted(&self) {
        self.seat.rise(Progress_::Greeted);
        self.heard();
    }

    /// Returns the handle by which calls on this connection are recorded.
    pub(crate) fn caller(&self) -> Caller {
        Caller(Arc::clone(&self.seat))
    }

    /// Records that the connection has sent something.
    pub(crate) fn heard(&self) {
        self.seat.heard.store(millis(self.since), Ordering::Relaxed);
    }

    /// Returns ready if the connection was displaced. Otherwise wakes the task when that happens.
    pub(crate) fn poll_lost(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.seat.waker.register(cx.waker());
        match self.seat.lost.load(Ordering::Acquire) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Waits until the connection is displaced.
    pub(crate) async fn lost(&self) {
        std::future::poll_fn(|cx| self.poll_lost(cx)).await;
    }
}

impl Caller {
    /// Records that the connection has made a call.
    pub(crate) fn calls(&self) {
        self.0.rise(Progress_::Caller);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(places) = self.places.upgrade() else { return };
        let mut taken = places.taken.lock();
        taken.seats.remove(&self.number);
        places.show(&taken);
    }
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_lost(place: &Place) -> bool {
        place.poll_lost(&mut Context::from_waker(std::task::Waker::noop())).is_ready()
    }

    #[test]
    fn one_too_many_takes_the_place_that_is_needed_least() {
        let places = Slots::new(3, Gauge::noop());
        let heard = |place: &Place, at| place.seat.heard.store(at, Ordering::Relaxed);
        let [replica, greeted, new] = [(); 3].map(|()| places.take().0);
        replica.caller().calls();
        greeted.greeted();
        for (place, at) in [(&replica, 10), (&greeted, 20), (&new, 30)] {
            heard(place, at);
        }
        // The connection with the least progress goes first, regardless of its last bytes.
        let (next, freed) = places.take();
        assert_eq!(freed, Freed::ByForce);
        assert_eq!([&replica, &greeted, &new, &next].map(is_lost), [false, false, true, false]);
        next.caller().calls();
        let (last, _) = places.take();
        assert_eq!([&replica, &greeted, &next, &last].map(is_lost), [false, true, false, false]);
        // With equal progress, the connection that was silent longest goes.
        last.caller().calls();
        for (place, at) in [(&replica, 30), (&next, 10), (&last, 20)] {
            heard(place, at);
        }
        let (another, _) = places.take();
        assert_eq!([&replica, &next, &last, &another].map(is_lost), [false, true, false, false]);
    }

    #[test]
    fn a_place_is_free_again_when_its_connection_has_ended() {
        let places = Slots::new(2, Gauge::noop());
        let ((one, _), (two, _)) = (places.take(), places.take());
        drop(one);
        let (three, freed) = places.take();
        assert_eq!(freed, Freed::Before);
        assert!(!is_lost(&two) && !is_lost(&three));
        assert_eq!(places.taken.lock().seats.len(), 2);
    }

    #[tokio::test]
    async fn displaced_connection_is_woken() {
        let places = Slots::new(1, Gauge::noop());
        let (place, _) = places.take();
        let woken = tokio::spawn(async move { place.lost().await });
        let _next = places.take();
        woken.await.unwrap();
    }
}
