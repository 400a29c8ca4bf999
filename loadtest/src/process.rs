//! What the kernel counts of one process.

use std::{fs, ops::Sub, time::Duration};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};

use crate::stats::float;

/// A process, by its id.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process(u32);

/// Time on a CPU so far, of all threads, those that have ended too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CpuTime {
    user_ticks: u64,
    system_ticks: u64,
}

/// Memory in RAM, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    /// All of it.
    pub(crate) rss: u64,
    /// Of it what is no file's: not the program itself.
    pub(crate) anonymous: u64,
}

impl Process {
    pub(crate) fn new(pid: u32) -> Self {
        Self(pid)
    }

    pub(crate) fn own() -> Self {
        Self(std::process::id())
    }

    /// Its number.
    pub(crate) fn id(self) -> u32 {
        self.0
    }

    /// Time on a CPU so far. Linux scales `utime` and `stime` so that their sum is what the scheduler
    /// has measured: it is exact to a tick of 10 ms, whenever the timer interrupt came.
    pub(crate) fn cpu_time(self) -> Result<CpuTime> {
        let stat = self.read("stat")?;
        cpu_time(&stat).with_context(|| format!("read /proc/{}/stat: {stat:?}", self.0))
    }

    /// Memory in RAM.
    pub(crate) fn memory(self) -> Result<Memory> {
        let status = self.read("status")?;
        memory(&status).with_context(|| format!("no memory in /proc/{}/status", self.0))
    }

    /// The time that its threads have spent on a CPU, and the time that they could have run and had none.
    pub(crate) fn run_and_wait(self) -> Result<(Duration, Duration)> {
        let (mut run, mut wait) = (Duration::ZERO, Duration::ZERO);
        let path = format!("/proc/{}/task", self.0);
        for thread in fs::read_dir(&path).with_context(|| format!("read {path}"))? {
            // A thread that has ended meanwhile is left out.
            let Ok(text) = fs::read_to_string(thread?.path().join("schedstat")) else { continue };
            let mut nanos = text.split_whitespace().map(|it| it.parse().unwrap_or(0));
            run += Duration::from_nanos(nanos.next().unwrap_or(0));
            wait += Duration::from_nanos(nanos.next().unwrap_or(0));
        }
        Ok((run, wait))
    }

    /// Asks it to end: SIGTERM.
    pub(crate) fn terminate(self) -> Result<()> {
        let pid = i32::try_from(self.0).ok().and_then(Pid::from_raw);
        let pid = pid.with_context(|| format!("{} is no process id", self.0))?;
        kill_process(pid, Signal::TERM).with_context(|| format!("end process {}", self.0))
    }

    fn read(self, file: &str) -> Result<String> {
        let path = format!("/proc/{}/{file}", self.0);
        fs::read_to_string(&path).with_context(|| format!("read {path}"))
    }
}

impl CpuTime {
    pub(crate) fn user(self) -> Duration {
        ticks(self.user_ticks)
    }

    pub(crate) fn system(self) -> Duration {
        ticks(self.system_ticks)
    }

    pub(crate) fn total(self) -> Duration {
        self.user() + self.system()
    }
}

impl Sub for CpuTime {
    type Output = Self;
    fn sub(self, earlier: Self) -> Self {
        Self {
            user_ticks: self.user_ticks.saturating_sub(earlier.user_ticks),
            system_ticks: self.system_ticks.saturating_sub(earlier.system_ticks),
        }
    }
}

/// Ticks of the kernel's clock, as time.
pub(crate) fn ticks(n: u64) -> Duration {
    Duration::from_secs_f64(float(n) / float(rustix::param::clock_ticks_per_second().max(1)))
}

fn cpu_time(stat: &str) -> Option<CpuTime> {
    // The name of the program is in parentheses and may have any character in it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse().ok();
    Some(CpuTime { user_ticks: next()?, system_ticks: next()? })
}

fn memory(status: &str) -> Option<Memory> {
    let bytes = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kib * 1024)
    };
    Some(Memory { rss: bytes("VmRSS:")?, anonymous: bytes("RssAnon:")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_behind_any_program_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 1 0 5 6 7";
        let time = cpu_time(stat).unwrap();
        assert_eq!((time.user_ticks, time.system_ticks), (250, 50));
        assert_eq!(cpu_time("7 (a) S 1"), None);
    }

    #[test]
    fn a_process_that_works_uses_time_and_memory() {
        let own = Process::own();
        let before = own.cpu_time().unwrap();
        let mut sum = 0_u64;
        while (own.cpu_time().unwrap() - before).total() < Duration::from_millis(30) {
            sum = sum.wrapping_add((0..10_000).sum::<u64>());
        }
        assert!(sum > 0);
        let memory = own.memory().unwrap();
        assert!(memory.rss > 100_000 && memory.anonymous < memory.rss, "{memory:?}");
    }
}
