//! Large work: the thread for requests and responses that would take a shard too long.
//!
//! A client may name a million resources in one request. Handling that request takes a second, and so
//! does planning the response. A shard hands over such a session together with the work, and continues
//! with its other sessions. The session returns through the shard's ready list.
//!
//! One thread works for all shards, so that large work uses at most one core. The thread has a low
//! priority. It ends when it has been idle for a while, which returns its memory to the system.
//!
//! Each job is queued with the time at which it would end if it started at its turn, and jobs run in this order. Short
//! jobs therefore go first, and long jobs do not wait forever. The turns of one address are some time apart, so that a
//! client with many jobs delays its own.
//!
//! The number of streams bounds the queue: a session is queued at most once.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

/// The time after which a thread without work ends.
const IDLE: Duration = Duration::from_secs(1);

/// The priority of the thread, as of `nice`.
const NICE: i32 = 10;

/// The time between two turns of one address.
const TURN_INTERVAL: Duration = Duration::from_millis(5);
/// The number of addresses from which those without a later turn are forgotten.
const ADDRESSES_MAX: usize = 1024;

/// The approximate number of names that the thread handles in a millisecond.
const NAMES_PER_MS: usize = 1000;

/// A piece of work. Dropping it without running it must be harmless.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The handle to the thread. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct LargeWork(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    /// The jobs, by the time at which each would end, and by number.
    jobs: BTreeMap<(Instant, u64), Job>,
    /// The last turn of each address.
    turns: HashMap<IpAddr, Instant>,
    last: u64,
    runs: bool,
}

impl LargeWork {
    /// Queues a job that handles `cost` names for a client at an address.
    pub(crate) fn submit(&self, address: IpAddr, cost: usize, job: Job) {
        let ms = u64::try_from(cost / NAMES_PER_MS).unwrap_or(u64::MAX).min(60_000);
        let mut queue = self.0.queue.lock();
        queue.last += 1;
        let turn = queue.turn_of(address, Instant::now());
        let order = (turn + Duration::from_millis(ms), queue.last);
        queue.jobs.insert(order, job);
        if std::mem::replace(&mut queue.runs, true) {
            self.0.wake.notify_one();
            return;
        }
        let shared = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("large-work".to_owned());
        if let Err(error) = thread.spawn(move || shared.run()) {
            // Without a thread, the caller does the work.
            tracing::warn!(%error, "cannot start a thread for large work; the shard does the work");
            queue.runs = false;
            let jobs = std::mem::take(&mut queue.jobs);
            drop(queue);
            jobs.into_values().for_each(run);
        }
    }
}

impl Queue {
    /// Returns the turn of a new job of an address.
    fn turn_of(&mut self, address: IpAddr, now: Instant) -> Instant {
        if self.turns.len() >= ADDRESSES_MAX {
            self.turns.retain(|_, turn| *turn > now);
        }
        let next = self.turns.get(&address).map(|last| *last + TURN_INTERVAL);
        let turn = next.map_or(now, |next| next.max(now));
        self.turns.insert(address, turn);
        turn
    }
}

impl Shared {
    fn run(&self) {
        // If the system denies it, the priority stays as it is.
        let _: Result<(), _> = rustix::process::setpriority_process(None, NICE);
        loop {
            let mut queue = self.queue.lock();
            if queue.jobs.is_empty() {
                self.wake.wait_for(&mut queue, IDLE);
            }
            let Some((_, job)) = queue.jobs.pop_first() else {
                queue.runs = false;
                return;
            };
            drop(queue);
            run(job);
        }
    }
}

fn run(job: Job) {
    // A job that panics is dropped, and the drop notifies the shard.
    if catch_unwind(AssertUnwindSafe(job)).is_err() {
        tracing::error!("large work panicked");
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("jobs", &self.jobs.len()).field("runs", &self.runs).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A short job overtakes waiting long jobs. A panic ends only its own job.
    #[test]
    fn short_job_overtakes_long_job_and_panic_ends_only_its_job() {
        let work = LargeWork::default();
        let (sender, done) = mpsc::sync_channel(2);
        let (go, gate) = mpsc::sync_channel::<()>(1);
        let address = |n| IpAddr::from([10, 0, 0, n]);
        work.submit(address(1), 1, Box::new(move || gate.recv().unwrap_or_default()));
        work.submit(address(1), 1, Box::new(|| panic!("on purpose")));
        for (name, cost) in [("long", 10_000_000), ("short", 20_000)] {
            let sender = sender.clone();
            work.submit(address(2), cost, Box::new(move || sender.send(name).unwrap()));
        }
        go.send(()).unwrap();
        let order: Vec<&str> = done.iter().take(2).collect();
        assert_eq!(order, ["short", "long"]);
    }

    /// Attack 69: many jobs of one client delay those of another client by one job.
    #[test]
    fn address_with_many_jobs_delays_its_own() {
        let (now, one) = (Instant::now(), TURN_INTERVAL);
        let mut queue = Queue::default();
        let [greedy, other] = [1, 2].map(|n| IpAddr::from([10, 0, 0, n]));
        let turns: Vec<_> = (0..3).map(|_| queue.turn_of(greedy, now)).collect();
        assert_eq!(turns, [now, now + one, now + one * 2]);
        assert_eq!(queue.turn_of(other, now), now);
        assert_eq!(queue.turn_of(greedy, now + one * 9), now + one * 9, "it has no job left");
        for n in 0..10_000_u32 {
            queue.turn_of(IpAddr::from(n.to_be_bytes()), now + one * n);
        }
        assert!(queue.turns.len() <= ADDRESSES_MAX);
    }
}
