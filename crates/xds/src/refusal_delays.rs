//! Delays for refused streams and polls.
//!
//! Some clients open a stream again at once, for as long as it is refused. Each connection therefore delays the ends of
//! its refused streams, after the first few. The delay concerns only the refused stream. Streams
//! that are served are not delayed, even on the same connection.
//!
//! A delayed refusal occupies little more than its HTTP/2 stream. It takes the place of a stream. Half of the places of a
//! connection remain for other streams. Nothing is delayed when the connection ends.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The number of refusals that are immediate, until [`QUIET`] has passed without a refusal.
const FREE: u32 = 5;
/// The first delay. Each further one is twice as long.
const DELAY_MIN: Duration = Duration::from_secs(1);
/// The longest delay. It is less than the 15 s after which Envoy and gRPC clients treat a resource as absent, so that
/// they receive the reason of the refusal first.
pub(crate) const DELAY_MAX: Duration = Duration::from_secs(10);
/// The longest delay of a poll. Envoy gives up a poll after a second by default.
pub(crate) const POLL_DELAY_MAX: Duration = Duration::from_millis(500);
/// The time without a refusal after which the next refusals are immediate again.
const QUIET: Duration = Duration::from_secs(60);

/// The recent refusals of one connection.
#[derive(Debug, Default)]
pub(crate) struct RefusalDelays {
    n_recent: u32,
    last: Option<Instant>,
    /// The number of refusals that are delayed at the moment.
    n_delayed: usize,
}

/// A refusal that is delayed. Resolves when the client may receive it.
pub(crate) struct Delay(BoxFuture<'static, ()>);

// === impl RefusalDelays ===

impl RefusalDelays {
    /// Counts a delayed refusal, unless there are `max` of them.
    pub(crate) fn begin_delay(&mut self, max: usize) -> bool {
        let may_begin = self.n_delayed < max;
        self.n_delayed += usize::from(may_begin);
        may_begin
    }

    /// Records the end of a delayed refusal.
    pub(crate) fn end_delay(&mut self) {
        self.n_delayed -= 1;
    }

    /// Returns the number of refusals that are delayed at the moment.
    #[cfg(test)]
    pub(crate) fn n_delayed(&self) -> usize {
        self.n_delayed
    }

    /// Counts a refusal. Returns its delay, if it has one.
    pub(crate) fn refuse(&mut self, now: Instant) -> Option<Duration> {
        let is_quiet = self.last.is_none_or(|last| now.saturating_duration_since(last) >= QUIET);
        if is_quiet {
            self.n_recent = 0;
        }
        self.last = Some(now);
        self.n_recent = self.n_recent.saturating_add(1);
        let doublings = self.n_recent.checked_sub(FREE + 1)?;
        let delay = 2_u32.checked_pow(doublings).and_then(|times| DELAY_MIN.checked_mul(times));
        Some(delay.unwrap_or(DELAY_MAX).min(DELAY_MAX))
    }
}

// === impl Delay ===

impl Delay {
    /// Creates a delay that ends early when the connection ends.
    pub(crate) fn new(delay: Duration, over: CancellationToken) -> Self {
        // Clients that are refused at the same time, such as a fleet after a change of its access rules, do not all come
        // back at the same time.
        let delay = delay.mul_f64(0.8 + 0.2 * fastrand::f64());
        let wait = async move {
            // Both outcomes end the delay.
            let _ended = tokio::time::timeout(delay, over.cancelled_owned()).await;
        };
        Self(wait.boxed())
    }

    /// Keeps a value until the end of the delay.
    pub(crate) fn holding(self, held: impl Send + 'static) -> Self {
        Self(self.0.map(|()| drop(held)).boxed())
    }
}

impl Future for Delay {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl std::fmt::Debug for Delay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Delay")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OPS-20: the first refusals are immediate, further ones have growing delays, and a minute of silence ends that.
    #[tokio::test(start_paused = true)]
    async fn delays_grow_after_the_first_refusals_and_end_after_a_minute() {
        let mut refusals = RefusalDelays::default();
        let mut seconds = |n: usize| -> Vec<u64> {
            let refuse = |_| refusals.refuse(Instant::now()).map_or(0, |delay| delay.as_secs());
            (0..n).map(refuse).collect()
        };
        assert_eq!(seconds(12), [0, 0, 0, 0, 0, 1, 2, 4, 8, 10, 10, 10]);
        assert_eq!(seconds(100), [10; 100]);
        tokio::time::advance(QUIET.checked_sub(DELAY_MIN).unwrap()).await;
        assert_eq!(seconds(1), [10]);
        tokio::time::advance(QUIET).await;
        assert_eq!(seconds(6), [0, 0, 0, 0, 0, 1]);
    }
}
