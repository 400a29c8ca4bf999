//! Times pieces of work by what this thread has been on a CPU: what else the machine does costs it
//! the caches, and no more.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// What a stopwatch has measured of one case: all of its time, by its operations.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    nanos: f64,
    ops: f64,
}

/// Knows what reading the clock takes, and leaves it out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopwatch {
    overhead: f64,
}

impl Tally {
    /// Nanoseconds per operation; `None` if there were none.
    pub(crate) fn per_op(self) -> Option<f64> {
        (self.ops > 0.0).then(|| self.nanos / self.ops)
    }

    /// Counts operations whose number is known only afterwards.
    pub(crate) fn add_ops(&mut self, ops: f64) {
        self.ops += ops;
    }
}

impl Stopwatch {
    /// Finds out what reading the clock takes.
    pub(crate) fn calibrated() -> Self {
        const READINGS: usize = 10_000;
        let empty = || {
            let start = on_cpu();
            nanos(on_cpu().saturating_sub(start))
        };
        let mut readings: Vec<f64> = (0..READINGS).map(|_| empty()).collect();
        readings.sort_by(f64::total_cmp);
        Self { overhead: readings[READINGS / 2] }
    }

    /// Nanoseconds between two readings with nothing between them.
    pub(crate) fn overhead(self) -> f64 {
        self.overhead
    }

    /// Does the work, and counts it as so many operations.
    pub(crate) fn time<T>(self, tally: &mut Tally, ops: usize, work: impl FnOnce() -> T) -> T {
        let start = on_cpu();
        let out = work();
        let elapsed = nanos(on_cpu().saturating_sub(start));
        tally.nanos += (elapsed - self.overhead).max(0.0);
        tally.ops += float(ops);
        out
    }
}

/// Time of this thread on a CPU so far.
fn on_cpu() -> Duration {
    // A time on a CPU is not negative.
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

fn nanos(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9
}

/// A count as a number to compute with.
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
pub(crate) fn float(n: usize) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_divided_by_operations_and_the_clock_left_out() {
        let watch = Stopwatch { overhead: 1e15 };
        let mut tally = Tally::default();
        assert_eq!(tally.per_op(), None);
        assert_eq!(watch.time(&mut tally, 4, || 7), 7);
        assert_eq!(tally.per_op(), Some(0.0));
        let tally = Tally { nanos: 10.0, ops: 4.0 };
        assert_eq!(tally.per_op(), Some(2.5));
        let overhead = Stopwatch::calibrated().overhead();
        assert!(overhead > 0.0 && overhead < 1e6, "{overhead}");
    }
}
