//! The memory budget for large requests of all streams together.
//!
//! A request takes memory for bytes that have arrived, not for the length that its prefix announces. A
//! client that announces much and sends little therefore delays nobody. The price is that large
//! requests may get stuck halfway, each with a part of the memory and none with enough. A part of the
//! memory is therefore reserved. It suffices for the largest request, and serves one request
//! at a time. A request that finds the pool used up takes the reserve as soon as it is free. It then
//! returns its part of the pool, and never waits again.
//!
//! Invariants:
//! - A request holds memory of the pool or the reserve, never of both, so the total is bounded.
//! - A request with the reserve waits for no memory. A large request must arrive in bounded time, so the
//!   reserve becomes free. Waiting requests get it in the order of arrival, so each of them proceeds.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The unit of the semaphores in bytes.
const UNIT_BYTES: usize = 1024;

/// The memory budget in bytes for the smaller requests of all streams that wait for their shards.
const QUEUE_BYTES: usize = 32 << 20;

/// The memory budget of all streams.
#[derive(Debug, Clone)]
pub(crate) struct MemoryBudget {
    /// In units. The semaphores are never closed.
    pool: Arc<Semaphore>,
    /// Reserved memory for one request, independent of the pool.
    reserve: Arc<Semaphore>,
    /// In units, for smaller requests. A request with memory of this part waits only for its shard.
    queue: Arc<Semaphore>,
}

/// The memory of one request.
#[derive(Debug)]
pub(crate) enum BudgetShare {
    Pool(OwnedSemaphorePermit),
    Reserve(OwnedSemaphorePermit),
}

impl MemoryBudget {
    /// Creates a budget of `bytes` for requests of at most `message_bytes_max` each. One request of
    /// that size always fits.
    pub(crate) fn new(bytes: usize, message_bytes_max: usize) -> Self {
        let reserve_units = units(message_bytes_max).saturating_add(1);
        let pool_units = (bytes / UNIT_BYTES).saturating_sub(reserve_units);
        Self {
            pool: Arc::new(Semaphore::new(pool_units.min(Semaphore::MAX_PERMITS))),
            reserve: Arc::new(Semaphore::new(1)),
            queue: Arc::new(Semaphore::new(QUEUE_BYTES / UNIT_BYTES)),
        }
    }

    /// Waits until there is memory for a smaller request of `bytes` that has been read.
    pub(crate) async fn queue(&self, bytes: usize) -> OwnedSemaphorePermit {
        let units = units(bytes).min(QUEUE_BYTES / UNIT_BYTES);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.queue).acquire_many_owned(units).await;
        permit.expect("the semaphore is never closed")
    }

    /// Waits until `held` covers `bytes`. If the wait is canceled, `held` is unchanged.
    pub(crate) async fn cover(&self, held: &mut Option<BudgetShare>, bytes: usize) {
        let has = match held {
            Some(BudgetShare::Reserve(_)) => return,
            Some(BudgetShare::Pool(permit)) => permit.num_permits(),
            None => 0,
        };
        let more = u32::try_from(units(bytes).saturating_sub(has)).unwrap_or(u32::MAX);
        let grown = tokio::select! {
            biased;
            more = Arc::clone(&self.pool).acquire_many_owned(more) => more.map(BudgetShare::Pool),
            reserve = Arc::clone(&self.reserve).acquire_owned() => reserve.map(BudgetShare::Reserve),
        };
        let grown = grown.expect("neither semaphore is ever closed");
        match (held.as_mut(), grown) {
            (Some(BudgetShare::Pool(held)), BudgetShare::Pool(more)) => held.merge(more),
            // The assignment returns the memory of the pool.
            (_, grown) => *held = Some(grown),
        }
    }

    #[cfg(test)]
    pub(crate) fn free(&self) -> (usize, usize) {
        (self.pool.available_permits(), self.reserve.available_permits())
    }
}

impl BudgetShare {
    /// Returns the permit, to be held until the request has been used.
    pub(crate) fn into_permit(self) -> OwnedSemaphorePermit {
        match self {
            Self::Pool(permit) | Self::Reserve(permit) => permit,
        }
    }
}

fn units(bytes: usize) -> usize {
    bytes.div_ceil(UNIT_BYTES)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    /// Creates a pool of 10 KiB and a reserve of 4 KiB.
    fn budget() -> MemoryBudget {
        MemoryBudget::new(15 << 10, 4 << 10)
    }

    #[test]
    fn received_bytes_reserve_memory() {
        let budget = budget();
        let mut held = None;
        for (bytes, free) in [(1, 9), (1024, 9), (1025, 8), (4096, 6), (100, 6)] {
            budget.cover(&mut held, bytes).now_or_never().expect("there is memory");
            assert_eq!(budget.free(), (free, 1), "for {bytes} bytes");
        }
        drop(held);
        assert_eq!(budget.free(), (10, 1));
    }

    /// T8: requests that each hold a part and need more do not wait for each other forever.
    #[test]
    fn one_of_several_blocked_requests_proceeds_and_releases_memory() {
        let budget = budget();
        let (mut first, mut second, mut third) = (None, None, None);
        for held in [&mut first, &mut second, &mut third] {
            budget.cover(held, 3 << 10).now_or_never().expect("there is memory");
        }
        assert_eq!(budget.free(), (1, 1));
        let mut waiting = Box::pin(budget.cover(&mut second, 5 << 10));
        assert!(waiting.as_mut().now_or_never().is_some(), "the reserve is free");
        drop(waiting);
        assert!(matches!(second, Some(BudgetShare::Reserve(_))));
        assert_eq!(budget.free(), (4, 0), "its part of the pool is free");
        budget
            .cover(&mut second, 4 << 20)
            .now_or_never()
            .expect("a request with the reserve never waits");
        budget.cover(&mut first, 7 << 10).now_or_never().expect("there is memory again");
        assert!(budget.cover(&mut third, 4 << 10).now_or_never().is_none(), "nothing is free");
        assert!(matches!(&third, Some(BudgetShare::Pool(held)) if held.num_permits() == 3));
        drop(second);
        budget.cover(&mut third, 4 << 10).now_or_never().expect("the reserve is free again");
        assert_eq!(budget.free(), (3, 0));
    }

    /// L14: smaller requests have a separate budget while they wait for their shards.
    #[test]
    fn requests_waiting_for_shards_share_one_bound() {
        let budget = budget();
        let held: Vec<_> = (0..128)
            .map(|_| budget.queue(256 << 10).now_or_never().expect("there is memory"))
            .collect();
        assert!(budget.queue(1).now_or_never().is_none());
        assert_eq!(budget.free(), (10, 1), "large requests are not affected");
        drop(held);
        assert!(budget.queue(1).now_or_never().is_some());
    }

    /// OPS-12: the largest request fits, however small the budget is.
    #[test]
    fn largest_request_fits_into_any_budget() {
        let budget = MemoryBudget::new(1, 4 << 10);
        let (mut first, mut second) = (None, None);
        budget.cover(&mut first, 4 << 10).now_or_never().expect("the reserve is free");
        assert!(budget.cover(&mut second, 1).now_or_never().is_none());
        drop(first);
        budget.cover(&mut second, 1).now_or_never().expect("the reserve is free again");
    }
}
