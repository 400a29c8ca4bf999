//! A stopwatch for the CPU time of this thread. Other work on the machine affects the measurement only
//! through the caches.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The total time and the number of operations of one case.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    nanos: f64,
    ops: f64,
}

/// A stopwatch that subtracts the time for reading the clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopwatch {
    overhead: f64,
}

impl Tally {
    /// Returns the nanoseconds per operation, or `None` without operations.
    pub(crate) fn per_op(self) -> Option<f64> {
        (self.ops > 0.0).then(|| self.nanos / self.ops)
    }

    /// Adds operations whose number is known only after the measurement.
    pub(crate) fn add_ops(&mut self, ops: f64) {
        self.ops += ops;
    }
}

impl Stopwatch {
    /// Creates a stopwatch and measures the time for reading the clock.
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

    /// Returns the nanoseconds between two consecutive clock readings.
    pub(crate) fn overhead(self) -> f64 {
        self.overhead
    }

    /// Measures `work` and counts it as `ops` operations.
    pub(crate) fn time<T>(self, tally: &mut Tally, ops: usize, work: impl FnOnce() -> T) -> T {
        let start = on_cpu();
        let out = work();
        let elapsed = nanos(on_cpu().saturating_sub(start));
        tally.nanos += (elapsed - self.overhead).max(0.0);
        tally.ops += float(ops);
        out
    }
}

/// Returns the CPU time that this thread has used.
fn on_cpu() -> Duration {
    // CPU times are not negative.
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

fn nanos(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9
}

/// Converts a count to a floating-point number.
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
pub(crate) fn float(n: usize) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn per_op_divides_by_operations_and_excludes_overhead() {
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
