//! The restart of a replica whose disk failed and works again.
//!
//! After a failed write or sync, only another start may use the data: it checks all of it. The process ends in order
//! and replaces itself, so it needs no service manager. Streams of clients move to other replicas, as in every
//! shutdown.

use std::{
    env, io,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

/// The variable with the number of restarts in succession.
const VARIABLE: &str = "CHANCERY_RESTARTS";
/// The time for which the disk has to work before the first restart. It doubles with each restart in succession.
const STEADY: Duration = Duration::from_secs(5);
const STEADY_MAX: Duration = Duration::from_secs(5 * 60);
/// The time after which another failure is not in succession.
const SUCCESSION: Duration = Duration::from_secs(10 * 60);

/// The restarts of this process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Restarts {
    n_in_succession: u32,
    since: Instant,
}

impl Restarts {
    /// Reads the number of earlier restarts.
    pub(super) fn new() -> Self {
        let n = env::var(VARIABLE).ok().and_then(|n| n.parse().ok()).unwrap_or(0);
        Self { n_in_succession: n, since: Instant::now() }
    }

    /// Returns the time for which the disk has to work before a restart.
    pub(super) fn steady(self) -> Duration {
        let n = self.n_before(Instant::now());
        STEADY.saturating_mul(2_u32.saturating_pow(n)).min(STEADY_MAX)
    }

    /// Returns the number of earlier restarts in succession, for a restart at `now`.
    fn n_before(self, now: Instant) -> u32 {
        let is_over = now.duration_since(self.since) >= SUCCESSION;
        if is_over { 0 } else { self.n_in_succession }
    }

    /// Replaces the process by a new one with the same arguments. Returns only if that fails.
    pub(super) fn restart(self) -> io::Error {
        let n = self.n_before(Instant::now()).saturating_add(1);
        // The path, so that the process keeps its name. The file may have been replaced meanwhile.
        let program = env::current_exe().ok().filter(|path| path.exists());
        let program = program.unwrap_or_else(|| PathBuf::from("/proc/self/exe"));
        Command::new(program).args(env::args_os().skip(1)).env(VARIABLE, n.to_string()).exec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_in_succession_wait_longer_up_to_a_bound() {
        let steady = |n_in_succession| {
            Restarts { n_in_succession, since: Instant::now() }.steady().as_secs()
        };
        assert_eq!([0, 1, 2, 3].map(steady), [5, 10, 20, 40]);
        assert_eq!([6, 100, u32::MAX].map(steady), [300; 3]);
        let since = Instant::now();
        let restarts = Restarts { n_in_succession: 3, since };
        assert_eq!([restarts.n_before(since), restarts.n_before(since + SUCCESSION)], [3, 0]);
    }
}
