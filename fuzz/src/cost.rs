//! The cost of decoding, in steps: the processor time of an input, divided by the time that this build takes for a
//! simple step.
//!
//! A step is measured in the same process, so that a bound in steps holds on every machine and for every profile. Only
//! the time of the calling thread counts, and the shortest of several runs. Other processes therefore cause no failure.

use std::{hint::black_box, sync::LazyLock, time::Duration};

use rustix::time::{ClockId, clock_gettime};

/// The processor time of a step in seconds: one byte of a checksum.
static STEP: LazyLock<f64> = LazyLock::new(|| {
    const BYTES: u32 = 64 << 10;
    let input = black_box(vec![b'a'; BYTES as usize]);
    let checksum = || {
        let sum = input.iter().fold(0_u32, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(31));
        black_box(sum);
    };
    let shortest = (0..10).map(|_| time(checksum)).min().unwrap_or_default();
    shortest.as_secs_f64().max(1e-9) / f64::from(BYTES)
});

/// Returns the processor time that a call takes on this thread.
fn time(call: impl FnOnce()) -> Duration {
    let now = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
    };
    let start = now();
    call();
    now().saturating_sub(start)
}

/// Returns the steps that a call takes.
pub(crate) fn steps(call: impl FnOnce()) -> f64 {
    let step = *STEP;
    time(call).as_secs_f64() / step
}
