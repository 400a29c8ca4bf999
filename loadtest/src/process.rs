//! CPU time and memory of a process, as the kernel counts them.

use std::{fs, ops::Sub, time::Duration};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};

use crate::stats::float;

/// A process, by its id.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process(u32);

/// The CPU time of all threads so far, including threads that have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CpuTime {
    user_ticks: u64,
    system_ticks: u64,
}

/// Memory in RAM, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    /// The resident set size.
    pub(crate) rss: u64,
    /// The part of it without a file behind it, which excludes the program itself.
    pub(crate) anonymous: u64,
}

impl Process {
    pub(crate) fn new(pid: u32) -> Self {
        Self(pid)
    }

    pub(crate) fn own() -> Self {
        Self(std::process::id())
    }

    /// Returns the process ID.
    pub(crate) fn id(self) -> u32 {
        self.0
    }

    /// Returns the CPU time so far. Linux scales `utime` and `stime` so that their sum is the time
    /// that the scheduler measured. The sum is exact to one tick of 10 ms, independently of timer
    /// interrupts.
    pub(crate) fn cpu_time(self) -> Result<CpuTime> {
        let stat = self.read("stat")?;
        cpu_time(&stat).with_context(|| format!("read /proc/{}/stat: {stat:?}", self.0))
    }

    /// Returns the memory in RAM.
    pub(crate) fn memory(self) -> Result<Memory> {
        let status = self.read("status")?;
        memory(&status).with_context(|| format!("no memory in /proc/{}/status", self.0))
    }

    /// Returns two times of all threads: the time on a CPU, and the time runnable without a CPU.
    pub(crate) fn run_and_wait(self) -> Result<(Duration, Duration)> {
        let (mut run, mut wait) = (Duration::ZERO, Duration::ZERO);
        let path = format!("/proc/{}/task", self.0);
        for thread in fs::read_dir(&path).with_context(|| format!("read {path}"))? {
            // Threads that have ended meanwhile are skipped.
            let Ok(text) = fs::read_to_string(thread?.path().join("schedstat")) else { continue };
            let mut nanos = text.split_whitespace().map(|it| it.parse().unwrap_or(0));
            run += Duration::from_nanos(nanos.next().unwrap_or(0));
            wait += Duration::from_nanos(nanos.next().unwrap_or(0));
        }
        Ok((run, wait))
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(self) -> Result<()> {
        let pid = i32::try_from(self.0).ok().and_then(Pid::from_raw);
        let pid = pid.with_context(|| format!("{} is not a process ID", self.0))?;
        kill_process(pid, Signal::TERM)
            .with_context(|| format!("send SIGTERM to process {}", self.0))
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

/// Converts ticks of the kernel's clock to a duration.
pub(crate) fn ticks(n: u64) -> Duration {
    Duration::from_secs_f64(float(n) / float(rustix::param::clock_ticks_per_second().max(1)))
}

fn cpu_time(stat: &str) -> Option<CpuTime> {
    // The program name is in parentheses and may contain any character.
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
    fn cpu_time_is_parsed_after_any_program_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 1 0 5 6 7";
        let time = cpu_time(stat).unwrap();
        assert_eq!((time.user_ticks, time.system_ticks), (250, 50));
        assert_eq!(cpu_time("7 (a) S 1"), None);
    }

    #[test]
    fn busy_process_uses_time_and_memory() {
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
