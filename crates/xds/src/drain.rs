//! The drain of a listener: at the end of the process, or ordered by an operator. All clients receive GOAWAY at once.
//! Their streams end one connection after the other. The clients therefore do not all request their state from the
//! other replicas at once (T11).

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use chancery_fanout::{DrainOrders, End, EndCode};
use chancery_net::Slots;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::Config;

/// The drain of one listener.
#[derive(Debug, Clone)]
pub(crate) struct Drain {
    /// Cancelled at the end of the process.
    token: CancellationToken,
    orders: DrainOrders,
    slots: Arc<Slots>,
    per_second: u32,
    spread_max: Duration,
    /// The time until all connections have ended. The first connection of the final drain computes it.
    spread: Arc<OnceLock<Duration>>,
}

impl Drain {
    pub(crate) fn new(
        token: CancellationToken,
        orders: DrainOrders,
        slots: Arc<Slots>,
        config: &Config,
    ) -> Self {
        Self {
            token,
            orders,
            slots,
            per_second: config.drain_connections_per_second,
            spread_max: config.drain_spread_max,
            spread: Arc::default(),
        }
    }

    /// Waits until a drain starts.
    pub(crate) async fn begun(&self) {
        let mut orders = self.orders.watch();
        tokio::select! {
            () = self.token.cancelled() => {}
            // The sender lives as long as this.
            _ordered = orders.wait_for(Option::is_some) => {}
        }
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.is_final() || self.orders.get().is_some()
    }

    /// Waits until the process ends.
    pub(crate) async fn ended(&self) {
        self.token.cancelled().await;
    }

    /// Returns whether the process ends.
    pub(crate) fn is_final(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Waits until no operator drains the replica.
    pub(crate) async fn undone(&self) {
        let mut orders = self.orders.watch();
        // The sender lives as long as this.
        drop(orders.wait_for(Option::is_none).await);
    }

    /// Waits while a connection continues its streams. An order that was withdrawn still applies to the connections that
    /// have received GOAWAY.
    pub(crate) async fn turn(&self) {
        let last = async {
            self.token.cancelled().await;
            sleep(self.final_turn()).await;
        };
        tokio::select! {
            () = last => {}
            () = self.ordered_turn() => {}
        }
    }

    /// Waits for the time that the order gives the connection. A later order gives it another time.
    async fn ordered_turn(&self) {
        let mut orders = self.orders.watch();
        let mut at: Option<Instant> = None;
        loop {
            let order = orders.borrow_and_update().clone();
            at = order.map(|order| order.turn(self.slots.n_taken())).or(at);
            let time = match at {
                Some(time) => time,
                // There was no order.
                None if self.is_final() => return std::future::pending().await,
                // The order was withdrawn before it gave the connection a time.
                None => return,
            };
            tokio::select! {
                () = sleep_until(time) => return,
                changed = orders.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Returns the end of the streams of a drain.
    pub(crate) fn end(&self) -> End {
        let text =
            if self.is_final() { "draining: this replica is shutting down" } else { DRAINED };
        End::new(EndCode::Unavailable, text)
    }

    /// Returns a random part of the time of the final drain.
    fn final_turn(&self) -> Duration {
        let open = || spread(self.slots.n_taken(), self.per_second, self.spread_max);
        self.spread.get_or_init(open).mul_f64(fastrand::f64())
    }
}

/// The text for the client of a replica that an operator drains.
pub(crate) const DRAINED: &str =
    "draining: an operator drains this replica; connect to another one";

fn spread(n_open: usize, per_second: u32, max: Duration) -> Duration {
    let n_open = u32::try_from(n_open).unwrap_or(u32::MAX);
    Duration::from_secs_f64(f64::from(n_open) / f64::from(per_second.max(1))).min(max)
}

#[cfg(test)]
mod tests {
    use chancery_net::{Eviction, Limits, Slot};

    use super::*;

    /// OPS-15, T11: few connections end at once, and many end within a bounded time.
    #[test]
    fn drain_duration_grows_with_connections_up_to_its_bound() {
        let max = Duration::from_secs(5);
        assert_eq!(spread(0, 2000, max), Duration::ZERO);
        assert_eq!(spread(20, 2000, max), Duration::from_millis(10));
        assert_eq!(spread(2000, 2000, max), Duration::from_secs(1));
        assert_eq!(spread(100_000, 2000, max), max);
        assert_eq!(spread(usize::MAX, 1, Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn drain_turns_are_spread_over_the_drain_duration() {
        let limits =
            Limits { connections_max: 10_000, per_peer_max: usize::MAX, eviction: Eviction::Never };
        let slots = Slots::new(limits, metrics::Gauge::noop());
        let peer = ([127, 0, 0, 1], 1).into();
        let open: Vec<Slot> = (0..10_000).map(|_| slots.take(peer).unwrap()).collect();
        let config = Config { drain_connections_per_second: 1000, ..Config::default() };
        let orders = DrainOrders::default();
        let drain = Drain::new(CancellationToken::new(), orders, slots, &config);
        let mut turns: Vec<Duration> = (0..1000).map(|_| drain.final_turn()).collect();
        drop(open);
        turns.extend((0..1000).map(|_| drain.final_turn()));
        let early = turns.iter().filter(|turn| **turn < Duration::from_secs(1)).count();
        let late = turns.iter().filter(|turn| **turn >= Duration::from_secs(4)).count();
        assert!(turns.iter().all(|turn| *turn < Duration::from_secs(5)));
        assert!((200..600).contains(&early) && (200..600).contains(&late), "{early}, {late}");
    }

    fn drain(orders: &DrainOrders) -> (CancellationToken, Drain) {
        let limits =
            Limits { connections_max: 100, per_peer_max: usize::MAX, eviction: Eviction::Never };
        let slots = Slots::new(limits, metrics::Gauge::noop());
        let token = CancellationToken::new();
        (token.clone(), Drain::new(token, orders.clone(), slots, &Config::default()))
    }

    /// A later order gives waiting connections another time. The end of an order does not.
    #[tokio::test(start_paused = true)]
    async fn ordered_drain_ends_streams_by_the_newest_order() {
        let orders = DrainOrders::default();
        let (token, drain) = drain(&orders);
        let seconds = Duration::from_secs;
        orders.set(Some(seconds(100)));
        drain.begun().await;
        assert!(drain.has_begun() && !drain.is_final());
        assert_eq!(drain.end().message, DRAINED);
        let start = Instant::now();
        drain.turn().await;
        assert_eq!(start.elapsed(), Duration::ZERO, "the only connection ends first");
        let later = drain.clone();
        let turn = tokio::spawn(async move { later.turn().await });
        sleep(seconds(1)).await;
        orders.set(None);
        sleep(seconds(98)).await;
        assert!(!turn.is_finished());
        sleep(seconds(2)).await;
        assert!(turn.is_finished());

        orders.set(Some(seconds(100)));
        drain.turn().await;
        let later = drain.clone();
        let turn = tokio::spawn(async move { later.turn().await });
        sleep(seconds(1)).await;
        orders.set(Some(Duration::ZERO));
        sleep(seconds(1)).await;
        assert!(turn.is_finished());

        // The end of the process counts more than an order.
        orders.set(Some(seconds(100)));
        drain.turn().await;
        token.cancel();
        let start = Instant::now();
        drain.turn().await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert!(drain.end().message.contains("shutting down"));
    }

    #[tokio::test(start_paused = true)]
    async fn drain_is_undone_when_the_order_ends() {
        let orders = DrainOrders::default();
        let (_token, drain) = drain(&orders);
        orders.set(Some(Duration::ZERO));
        let waiting = drain.clone();
        let undone = tokio::spawn(async move { waiting.undone().await });
        sleep(Duration::from_secs(1)).await;
        assert!(!undone.is_finished());
        orders.set(None);
        undone.await.unwrap();
        assert!(!drain.has_begun());
    }
}
