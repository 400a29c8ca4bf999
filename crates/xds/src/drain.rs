//! The drain of a listener. All clients receive GOAWAY at once. Their streams end one connection after
//! the other. The clients therefore do not all request their state from the other replicas at once
//! (T11).

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use chancery_net::Slots;
use tokio_util::sync::CancellationToken;

use crate::Config;

/// The drain of one listener.
#[derive(Debug, Clone)]
pub(crate) struct Drain {
    token: CancellationToken,
    slots: Arc<Slots>,
    per_second: u32,
    spread_max: Duration,
    /// The time until all connections have ended. The first call of `turn` computes it.
    spread: Arc<OnceLock<Duration>>,
}

impl Drain {
    pub(crate) fn new(token: CancellationToken, slots: Arc<Slots>, config: &Config) -> Self {
        Self {
            token,
            slots,
            per_second: config.drain_connections_per_second,
            spread_max: config.drain_spread_max,
            spread: Arc::default(),
        }
    }

    /// Waits until the drain starts.
    pub(crate) async fn begun(&self) {
        self.token.cancelled().await;
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Returns the time for which a connection continues its streams: a random part of the time for
    /// all.
    pub(crate) fn turn(&self) -> Duration {
        let spread = self
            .spread
            .get_or_init(|| spread(self.slots.n_taken(), self.per_second, self.spread_max));
        spread.mul_f64(fastrand::f64())
    }
}

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
        let drain = Drain::new(CancellationToken::new(), slots, &config);
        let mut turns: Vec<Duration> = (0..1000).map(|_| drain.turn()).collect();
        drop(open);
        turns.extend((0..1000).map(|_| drain.turn()));
        let early = turns.iter().filter(|turn| **turn < Duration::from_secs(1)).count();
        let late = turns.iter().filter(|turn| **turn >= Duration::from_secs(4)).count();
        assert!(turns.iter().all(|turn| *turn < Duration::from_secs(5)));
        assert!((200..600).contains(&early) && (200..600).contains(&late), "{early}, {late}");
    }
}
