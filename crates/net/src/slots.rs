//! The connection slots of a port: their number, the share of one peer, and eviction.
//!
//! A connection without a slot may still have its socket open: it was evicted and ends, or it receives the reason of
//! its rejection. [`Slots::room`] bounds these sockets, too, so a port leaves file descriptors for the store and the
//! other ports.
//!
//! A peer is an IPv4 address, or the /64 of an IPv6 address, because one host can usually use a whole
//! /64. `Taken::peers` has an entry per connected peer, so the number of connections bounds it.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use metrics::Gauge;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::timeout};

use crate::activity::Activity;
#[cfg(test)]
use crate::activity::WAITING_MIN;

/// The maximum number of sockets without a slot, for any number of slots.
const SPARE_MAX: usize = 128;
/// The number of connections up to which all peers count as equal when a connection is evicted: a peer with few
/// connections need not be the cause of a full port.
const FEW: usize = 4;
/// The interval at which connections without a slot are asked again to close, while the port has no room.
const PRESS_INTERVAL: Duration = Duration::from_millis(5);

/// Returns the maximum number of open sockets of a port with this number of slots. A few connections may be without a
/// slot: evicted ones that end, and rejected ones that receive the reason.
#[must_use]
pub fn sockets_max(connections_max: usize) -> usize {
    let connections_max = connections_max.max(1);
    connections_max.saturating_add((connections_max / 8 + 4).min(SPARE_MAX))
}

/// Returns the largest number of slots whose port has at most this number of open sockets, but at least 1.
#[must_use]
pub fn connections_for(sockets: usize) -> usize {
    let spare = (sockets.saturating_sub(4) / 9 + 4).min(SPARE_MAX);
    let slots = sockets.saturating_sub(spare).max(1);
    // The division above rounds down.
    if sockets_max(slots) > sockets { slots.saturating_sub(1).max(1) } else { slots }
}

/// The limits of a port.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The maximum number of connections.
    pub connections_max: usize,
    /// The maximum number of connections from one peer.
    pub per_peer_max: usize,
    /// The choice of a connection that loses its slot to a new one.
    pub eviction: Eviction,
}

/// The choice of a connection that loses its slot to a new one when all slots are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eviction {
    /// No connection loses its slot. The new one is rejected.
    Never,
    /// A connection without an open request, or whose responses wait for something to happen
    /// ([`RequestGuard::wait`](crate::RequestGuard::wait)), of the peer that has the most connections, if it has more
    /// than a few. Connections without an open request come first, and of these the ones that never had a request.
    /// Among equals, the longest time decides. If requests of all connections are served, the new one is rejected.
    LongestIdle,
    /// A connection without a first request ([`Activity::begin`]): the oldest one of the peer that has the most of
    /// them. If all connections have had a request, the new one is rejected.
    OldestWithoutRequest,
    /// The connection with the least progress: no preface, then no request, then others. Among equals,
    /// the one silent for longest.
    LeastProgress,
}

/// The limit that left a connection without a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotLimit {
    /// All slots are taken.
    Connections,
    /// The peer has its share of the slots.
    Peer,
}

/// The slots of a port.
#[derive(Debug)]
pub struct Slots {
    limits: Limits,
    connections: Gauge,
    taken: Mutex<Taken>,
    /// The number of open sockets, with and without a slot.
    n_open: AtomicUsize,
    /// Woken when a socket is closed.
    closed: Notify,
    /// Woken when connections without a slot must close at once.
    pressed: Notify,
}

/// An open socket of a port. Drop it after the socket.
#[derive(Debug)]
pub struct OpenSocket(Arc<Slots>);

impl Drop for OpenSocket {
    fn drop(&mut self) {
        self.0.n_open.fetch_sub(1, Ordering::AcqRel);
        self.0.closed.notify_one();
    }
}

#[derive(Debug, Default)]
struct Taken {
    /// The number of the next slot.
    next: u64,
    connections: BTreeMap<u64, Arc<Activity>>,
    without_request: WithoutRequest,
    /// The number of connections of each peer.
    peers: HashMap<IpAddr, usize>,
}

/// The connections that may never have had a request, for [`Eviction::OldestWithoutRequest`]. A connection leaves the set
/// at its end, or when its turn comes, so an eviction costs O(log of all connections).
#[derive(Debug, Default)]
struct WithoutRequest {
    of_peer: HashMap<IpAddr, BTreeSet<u64>>,
    /// The peers by their number of such connections, and then by their oldest one.
    order: BTreeSet<(usize, Reverse<u64>, IpAddr)>,
}

impl WithoutRequest {
    fn insert(&mut self, peer: IpAddr, number: u64) {
        self.change(peer, |numbers| {
            numbers.insert(number);
        });
    }

    fn remove(&mut self, peer: IpAddr, number: u64) {
        self.change(peer, |numbers| {
            numbers.remove(&number);
        });
    }

    fn change(&mut self, peer: IpAddr, change: impl FnOnce(&mut BTreeSet<u64>)) {
        let place =
            |numbers: &BTreeSet<u64>| Some((numbers.len(), Reverse(*numbers.first()?), peer));
        let mut numbers = self.of_peer.remove(&peer).unwrap_or_default();
        if let Some(place) = place(&numbers) {
            self.order.remove(&place);
        }
        change(&mut numbers);
        if let Some(place) = place(&numbers) {
            self.order.insert(place);
            self.of_peer.insert(peer, numbers);
        }
    }

    /// Returns the oldest connection of the peer with the most connections, so one peer displaces only its own.
    fn next(&self) -> Option<(IpAddr, u64)> {
        self.order.last().map(|(_, Reverse(number), peer)| (*peer, *number))
    }
}

impl Taken {
    /// Returns the next connection without a request to evict.
    fn oldest_without_request(&mut self) -> Option<u64> {
        loop {
            let (peer, number) = self.without_request.next()?;
            match self.connections.get(&number) {
                Some(activity) if !activity.has_had_request() => return Some(number),
                _ => self.without_request.remove(peer, number),
            }
        }
    }
}

/// The slot of one connection. Dropping it frees the slot. Drop it after the socket, which it counts as open.
#[derive(Debug)]
pub struct Slot {
    number: u64,
    slots: Arc<Slots>,
    activity: Arc<Activity>,
    has_evicted: bool,
    _socket: OpenSocket,
}

impl Slots {
    /// Creates the slots. A `connections_max` of 0 counts as 1. The gauge shows the number of taken
    /// slots.
    #[must_use]
    pub fn new(limits: Limits, connections: Gauge) -> Arc<Self> {
        let (taken, n_open) = (Mutex::default(), AtomicUsize::new(0));
        let (closed, pressed) = (Notify::new(), Notify::new());
        Arc::new(Self { limits, connections, taken, n_open, closed, pressed })
    }

    /// Returns the maximum number of connections.
    #[must_use]
    pub fn connections_max(&self) -> usize {
        self.limits.connections_max.max(1)
    }

    /// Counts an open socket until the returned value is dropped.
    #[must_use]
    pub fn open_socket(self: &Arc<Self>) -> OpenSocket {
        self.n_open.fetch_add(1, Ordering::AcqRel);
        OpenSocket(Arc::clone(self))
    }

    /// Waits until the port may open another socket. While it may not, connections without a slot must close at once
    /// ([`Slot::pressed`]). Only the accept loop may wait.
    pub async fn room(&self) {
        while self.n_open.load(Ordering::Acquire) >= sockets_max(self.limits.connections_max) {
            self.pressed.notify_waiters();
            // A connection may begin to wait for the pressure only after this notification.
            drop(timeout(PRESS_INTERVAL, self.closed.notified()).await);
        }
    }

    /// Returns the number of taken slots.
    #[must_use]
    pub fn n_taken(&self) -> usize {
        self.taken.lock().connections.len()
    }

    /// Takes a slot for a connection.
    ///
    /// # Errors
    /// Returns the limit that the connection would exceed.
    pub fn take(self: &Arc<Self>, peer: SocketAddr) -> Result<Slot, SlotLimit> {
        let activity = Activity::new(peer);
        let mut taken = self.taken.lock();
        let n_open = taken.peers.get(&peer_of(peer)).copied().unwrap_or_default();
        let is_full = taken.connections.len() >= self.limits.connections_max.max(1);
        if n_open >= self.limits.per_peer_max {
            return Err(SlotLimit::Peer);
        }
        if is_full && !self.evict(&mut taken) {
            return Err(SlotLimit::Connections);
        }
        let number = taken.next;
        taken.next += 1;
        taken.connections.insert(number, Arc::clone(&activity));
        if self.limits.eviction == Eviction::OldestWithoutRequest {
            taken.without_request.insert(peer_of(peer), number);
        }
        *taken.peers.entry(peer_of(peer)).or_default() += 1;
        self.connections.increment(1.0);
        drop(taken);
        Ok(Slot {
            number,
            slots: Arc::clone(self),
            activity,
            has_evicted: is_full,
            _socket: self.open_socket(),
        })
    }

    /// Evicts a connection. Returns false if all connections keep their slots.
    fn evict(&self, taken: &mut Taken) -> bool {
        while let Some(number) = self.eviction_candidate(taken) {
            let Some(activity) = taken.connections.get(&number) else { return false };
            let is_evicted = match self.limits.eviction {
                // The first request may have arrived meanwhile.
                Eviction::OldestWithoutRequest => activity.evict_without_request(),
                _ => {
                    activity.evict();
                    true
                }
            };
            if is_evicted {
                self.free(taken, number);
                return true;
            }
        }
        false
    }

    /// Returns the connection to evict.
    fn eviction_candidate(&self, taken: &mut Taken) -> Option<u64> {
        match self.limits.eviction {
            Eviction::Never => None,
            Eviction::OldestWithoutRequest => taken.oldest_without_request(),
            Eviction::LongestIdle => {
                let idle = taken.connections.iter().filter_map(|(number, activity)| {
                    let of_peer = taken.peers.get(&peer_of(activity.peer()));
                    let n_of_peer = of_peer.copied().unwrap_or_default().max(FEW);
                    let had = activity.has_had_request();
                    let (waits, since) = activity.evictable_since()?;
                    Some((Reverse(n_of_peer), waits, had, since, *number))
                });
                idle.min().map(|(.., number)| number)
            }
            Eviction::LeastProgress => {
                let least = taken.connections.iter().min_by_key(|(_, activity)| {
                    let state = activity.state.lock();
                    (state.progress, state.last_received_at)
                });
                least.map(|(number, _)| *number)
            }
        }
    }

    /// Frees a slot, unless it is free already.
    fn free(&self, taken: &mut Taken, number: u64) -> Option<Arc<Activity>> {
        let activity = taken.connections.remove(&number)?;
        let peer = peer_of(activity.peer());
        taken.without_request.remove(peer, number);
        if let Some(n_open) = taken.peers.get_mut(&peer) {
            *n_open = n_open.saturating_sub(1);
            if *n_open == 0 {
                taken.peers.remove(&peer);
            }
        }
        self.connections.decrement(1.0);
        Some(activity)
    }
}

impl Slot {
    /// Returns the activity of the connection.
    #[must_use]
    pub fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    /// Returns whether another connection was evicted for this one.
    #[must_use]
    pub fn has_evicted(&self) -> bool {
        self.has_evicted
    }

    /// Waits until the port has no room for another socket. An evicted connection must then close at once, whatever it
    /// does.
    pub async fn pressed(&self) {
        self.slots.pressed.notified().await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        drop(self.slots.free(&mut self.slots.taken.lock(), self.number));
    }
}

fn peer_of(address: SocketAddr) -> IpAddr {
    match address.ip().to_canonical() {
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    fn slots(connections_max: usize, per_peer_max: usize, eviction: Eviction) -> Arc<Slots> {
        Slots::new(Limits { connections_max, per_peer_max, eviction }, Gauge::noop())
    }

    fn take(slots: &Arc<Slots>, address: &str) -> Result<Slot, SlotLimit> {
        slots.take((address.parse::<IpAddr>().unwrap(), 1).into())
    }

    fn evicted<const N: usize>(slots: [&Slot; N]) -> [bool; N] {
        slots.map(|slot| slot.activity.is_evicted())
    }

    /// OPS-11, T7: a peer at its limit takes no connections from another peer, and leaves nothing
    /// behind.
    #[test]
    fn peer_at_its_limit_takes_no_slots_of_others() {
        let slots = slots(100, 2, Eviction::Never);
        let take = |address| take(&slots, address);
        let first = take("10.0.0.1").unwrap();
        // The same address, as a dual-stack socket reports it.
        let second = take("::ffff:10.0.0.1").unwrap();
        assert_eq!(take("10.0.0.1").unwrap_err(), SlotLimit::Peer);
        assert!(take("10.0.0.2").is_ok());
        drop(first);
        let first = take("10.0.0.1").unwrap();
        let v6 = [take("2001:db8::1").unwrap(), take("2001:db8::ffff:0:0:2").unwrap()];
        assert!(take("2001:db8::3").is_err(), "a network of 64 bits is one peer");
        assert!(take("2001:db8:0:1::3").is_ok());
        drop((first, second, v6));
        assert!(slots.taken.lock().peers.is_empty());
    }

    #[test]
    fn new_connection_evicts_the_one_with_least_progress() {
        let slots = slots(3, usize::MAX, Eviction::LeastProgress);
        let take = || take(&slots, "10.0.0.1").unwrap();
        let start = Instant::now();
        let set_last_received = |slot: &Slot, at| {
            slot.activity.state.lock().last_received_at = start + Duration::from_secs(at);
        };
        let [replica, with_preface, new] = [(); 3].map(|()| take());
        drop(replica.activity.begin());
        with_preface.activity.on_preface();
        for (slot, at) in [(&replica, 10), (&with_preface, 20), (&new, 30)] {
            set_last_received(slot, at);
        }
        // The connection with the least progress goes first, regardless of its last bytes.
        let next = take();
        assert!(next.has_evicted() && !new.has_evicted());
        assert_eq!(evicted([&replica, &with_preface, &new, &next]), [false, false, true, false]);
        drop(next.activity.begin());
        let last = take();
        assert_eq!(evicted([&replica, &with_preface, &next, &last]), [false, true, false, false]);
        // With equal progress, the connection that was silent longest goes.
        let _busy = last.activity.begin();
        for (slot, at) in [(&replica, 30), (&next, 10), (&last, 20)] {
            set_last_received(slot, at);
        }
        let another = take();
        assert_eq!(evicted([&replica, &next, &last, &another]), [false, true, false, false]);
        drop((new, with_preface, next));
        assert_eq!(slots.n_taken(), 3, "an evicted connection has no slot to free");
        drop(replica);
        assert!(!take().has_evicted());
    }

    /// Attack 69: connections that have had a request keep their slots, also without requests later.
    #[test]
    fn new_connection_evicts_the_oldest_without_a_request() {
        let slots = slots(3, usize::MAX, Eviction::OldestWithoutRequest);
        let take = || take(&slots, "10.0.0.1");
        let [client, first, second] = [(); 3].map(|()| take().unwrap());
        drop(client.activity.begin());
        first.activity.on_preface();
        let third = take().unwrap();
        assert!(third.has_evicted());
        assert_eq!(evicted([&client, &first, &second]), [false, true, false]);
        let _stream = second.activity.begin();
        let fourth = take().unwrap();
        assert_eq!(evicted([&client, &second, &third]), [false, false, true]);
        drop(fourth.activity.begin());
        assert_eq!(take().unwrap_err(), SlotLimit::Connections);
        assert!(!fourth.activity.evict_without_request());
        drop((first, third, fourth));
        assert!(!take().unwrap().has_evicted());
        drop((client, second));
        let taken = slots.taken.lock();
        assert!(taken.connections.is_empty() && taken.without_request.of_peer.is_empty());
    }

    /// Attack 69: a peer with many connections without a request displaces its own, and not those of others.
    #[test]
    fn peer_without_requests_displaces_its_own_connections() {
        let slots = slots(4, usize::MAX, Eviction::OldestWithoutRequest);
        let client = take(&slots, "10.0.0.1").unwrap();
        let mut flood: Vec<_> = (0..3).map(|_| take(&slots, "10.0.0.2").unwrap()).collect();
        for _ in 0..100 {
            flood.push(take(&slots, "10.0.0.2").unwrap());
            assert!(flood.remove(0).activity.is_evicted());
        }
        assert!(!client.activity.is_evicted());
        // Other clients get in, too.
        let other = take(&slots, "10.0.0.3").unwrap();
        assert_eq!(evicted([&client, &other, &flood[0], &flood[1]]), [false, false, true, false]);
    }

    /// Attack 69: an unauthenticated client that makes a request on each connection displaces its own connections.
    #[tokio::test(start_paused = true)]
    async fn peer_with_most_connections_displaces_its_own_idle_ones() {
        let slots = slots(10, usize::MAX, Eviction::LongestIdle);
        let operator = take(&slots, "10.0.0.1").unwrap();
        drop(operator.activity.begin());
        let mut flood = Vec::new();
        for n in 0..100 {
            tokio::time::advance(Duration::from_millis(1)).await;
            let slot = take(&slots, "10.0.0.2").unwrap();
            drop(slot.activity.begin());
            flood.push(slot);
            assert!(n < 9 || flood[n - 9].activity.is_evicted());
        }
        assert!(!operator.activity.is_evicted());
        let silent = take(&slots, "10.0.0.3").unwrap();
        let probe = take(&slots, "10.0.0.1").unwrap();
        assert_eq!(evicted([&operator, &silent, &probe]), [false; 3]);
    }

    /// Attack 69: responses that wait for something to happen, such as those of a watch, do not keep others out.
    #[tokio::test(start_paused = true)]
    async fn waiting_responses_do_not_take_all_slots() {
        let slots = slots(3, usize::MAX, Eviction::LongestIdle);
        let held: Vec<_> = (1..4).map(|n| take(&slots, &format!("10.0.0.{n}")).unwrap()).collect();
        let mut requests: Vec<_> = held.iter().map(|slot| slot.activity.begin()).collect();
        requests[1].wait();
        tokio::time::advance(WAITING_MIN - Duration::from_millis(1)).await;
        requests[2].wait();
        assert_eq!(take(&slots, "10.0.0.9").unwrap_err(), SlotLimit::Connections);
        tokio::time::advance(Duration::from_millis(1)).await;
        let probe = take(&slots, "10.0.0.9").unwrap();
        assert_eq!(evicted([&held[0], &held[1], &held[2]]), [false, true, false]);
        // A response that goes on is served again.
        tokio::time::advance(WAITING_MIN).await;
        requests[2].serve();
        let answer = probe.activity.begin();
        assert_eq!(take(&slots, "10.0.0.9").unwrap_err(), SlotLimit::Connections);
        drop((requests, answer));
        assert!(!held[2].activity.evictable_since().unwrap().0);
    }

    #[tokio::test(start_paused = true)]
    async fn new_connection_evicts_the_one_that_was_idle_longest() {
        let slots = slots(2, usize::MAX, Eviction::LongestIdle);
        let first = take(&slots, "10.0.0.1").unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        let second = take(&slots, "10.0.0.1").unwrap();
        let busy = first.activity.begin();
        let third = take(&slots, "10.0.0.2").unwrap();
        assert_eq!(evicted([&first, &second, &third]), [false, true, false]);
        let also_busy = third.activity.begin();
        assert_eq!(take(&slots, "10.0.0.1").unwrap_err(), SlotLimit::Connections);
        drop((busy, also_busy));
        let _fourth = take(&slots, "10.0.0.1").unwrap();
        assert_eq!(evicted([&first, &third]), [true, false]);
    }

    /// Attack 69: sockets without a slot are bounded, and those of evicted connections are asked to close.
    #[tokio::test(start_paused = true)]
    async fn port_without_room_waits_for_sockets_without_a_slot() {
        for sockets in 1..2000 {
            let slots = connections_for(sockets);
            assert!(sockets_max(slots) <= sockets.max(5), "{sockets}: {slots}");
            assert!(sockets < 6 || sockets_max(slots + 1) > sockets, "{sockets}: {slots}");
        }
        let slots = slots(8, usize::MAX, Eviction::LongestIdle);
        let mut held: Vec<Slot> = (0..13).map(|_| take(&slots, "10.0.0.1").unwrap()).collect();
        let has_room = async || timeout(Duration::from_secs(60), slots.room()).await.is_ok();
        assert_eq!((slots.n_taken(), has_room().await), (8, false));
        // A rejected connection has a socket, too.
        held.remove(0);
        let refused = slots.open_socket();
        assert!(!has_room().await);
        drop(refused);
        assert!(has_room().await);
        held.push(take(&slots, "10.0.0.1").unwrap());
        let evicted = held.remove(0);
        assert!(evicted.activity.is_evicted());
        let ending = async move {
            evicted.pressed().await;
            drop(evicted);
        };
        let (room, ()) = tokio::join!(has_room(), ending);
        assert!(room);
    }

    #[tokio::test]
    async fn evicted_connection_is_woken() {
        let slots = slots(1, usize::MAX, Eviction::LeastProgress);
        let slot = take(&slots, "10.0.0.1").unwrap();
        let woken = tokio::spawn(async move { slot.activity.evicted().await });
        let _next = take(&slots, "10.0.0.1").unwrap();
        woken.await.unwrap();
    }
}
