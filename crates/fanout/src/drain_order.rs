//! The drain that an operator has ordered: the streams of the replica end over a time, and it accepts no new ones.
//!
//! The order is a state of the process, so that a restart ends it.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use crate::metrics;

/// The order to drain, or none. Clones share it.
#[derive(Debug, Clone)]
pub struct DrainOrders(Arc<watch::Sender<Option<Arc<DrainOrder>>>>);

/// An order to drain.
#[derive(Debug)]
pub struct DrainOrder {
    /// The time over which the streams end.
    pub over: Duration,
    begun: Instant,
    /// The number of connections whose streams end.
    n_connections: OnceLock<usize>,
    /// The number of connections that have a turn.
    n_turns: AtomicUsize,
}

impl Default for DrainOrders {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

impl DrainOrders {
    /// Orders the replica to drain over a time, or to drain no longer.
    pub fn set(&self, over: Option<Duration>) {
        let order = over.map(|over| Arc::new(DrainOrder::new(over)));
        metrics::set_drained(order.is_some());
        self.0.send_replace(order);
    }

    /// Returns the present order.
    #[must_use]
    pub fn get(&self) -> Option<Arc<DrainOrder>> {
        self.0.borrow().clone()
    }

    /// Returns a receiver of the present order and of later ones.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Option<Arc<DrainOrder>>> {
        self.0.subscribe()
    }
}

impl DrainOrder {
    fn new(over: Duration) -> Self {
        let (n_connections, n_turns) = (OnceLock::new(), AtomicUsize::new(0));
        Self { over, begun: Instant::now(), n_connections, n_turns }
    }

    /// Returns the time at which the next connection ends its streams. The times of `n` connections are spread evenly over
    /// the drain; the first call decides about `n`.
    pub fn turn(&self, n: usize) -> Instant {
        let n = *self.n_connections.get_or_init(|| n.max(1));
        let at = self.n_turns.fetch_add(1, Ordering::Relaxed).min(n);
        let part = u32::try_from(at).unwrap_or(u32::MAX);
        let all = u32::try_from(n).unwrap_or(u32::MAX);
        self.begun + self.over.mul_f64(f64::from(part) / f64::from(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn turns_are_spread_evenly_over_the_drain() {
        let orders = DrainOrders::default();
        assert!(orders.get().is_none());
        let begun = Instant::now();
        orders.set(Some(Duration::from_secs(10)));
        let order = orders.get().unwrap();
        let turns: Vec<u64> = (0..7).map(|_| (order.turn(5) - begun).as_secs()).collect();
        // Connections that were opened meanwhile end last.
        assert_eq!(turns, [0, 2, 4, 6, 8, 10, 10]);
        orders.set(Some(Duration::ZERO));
        assert_eq!(orders.get().unwrap().turn(0), begun);
        orders.set(None);
        assert!(orders.watch().borrow().is_none());
    }
}
