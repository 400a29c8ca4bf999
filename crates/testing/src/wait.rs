//! Waiting for a state, without a guessed time.

use std::{
    thread,
    time::{Duration, Instant},
};

/// A limit for steps that take well under a second on a quiet machine.
pub const DEADLINE: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_millis(10);

/// Calls `probe` until it returns a value. Blocks the thread.
///
/// # Panics
/// Panics with `what` if there is no value within [`DEADLINE`].
pub fn eventually<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(start.elapsed() < DEADLINE, "not within {DEADLINE:?}: {what}");
        thread::sleep(INTERVAL);
    }
}
