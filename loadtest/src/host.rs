//! The machine of a measurement, and its use by other processes.

use std::{
    fmt, fs,
    io::{Seek as _, SeekFrom, Write as _},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

use crate::{
    process::{CpuTime, ticks},
    stats::{Latencies, float},
};

/// A CPU, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cpu(usize);

/// The assignment of processes to CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pinning {
    /// The CPU of the server.
    pub(crate) server: Option<Cpu>,
    /// The CPUs that this process could use before.
    allowed: Option<CpuSet>,
}

/// The properties of the machine.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Host {
    pub(crate) cpus: usize,
    pub(crate) cpu_model: String,
    pub(crate) memory_gib: u64,
    pub(crate) kernel: String,
    /// The load average of one minute at the start of the run. It shows whether other processes
    /// were active.
    pub(crate) load_average: f64,
    /// The time of `fdatasync` after a write of 4 KiB to the directory of the data.
    pub(crate) fdatasync: Option<Latencies>,
}

/// The busy time of all CPUs together, as the kernel counts it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostTime {
    at: Instant,
    busy: Duration,
}

impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Pinning {
    /// No assignment: the kernel chooses the CPUs.
    pub(crate) const NONE: Self = Self { server: None, allowed: None };

    /// Assigns the first allowed CPU to the server, and moves this process to the second. Call this
    /// before the process has other threads, because they inherit the affinity.
    pub(crate) fn apart() -> Result<Self> {
        let allowed = sched_getaffinity(None).context("read the CPUs that are allowed")?;
        let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
        let (Some(first), Some(second)) = (cpus.next(), cpus.next()) else {
            bail!("cannot separate server and clients: there is only one CPU; pass --no-pin");
        };
        let mut own = CpuSet::new();
        own.set(second);
        sched_setaffinity(None, &own).with_context(|| format!("move to CPU {second}"))?;
        Ok(Self { server: Some(Cpu(first)), allowed: Some(allowed) })
    }

    /// Lets this thread, and the processes that it starts from now on, use all CPUs again.
    pub(crate) fn undo(self) -> Result<()> {
        match self.allowed {
            Some(allowed) => sched_setaffinity(None, &allowed).context("use all CPUs again"),
            None => Ok(()),
        }
    }
}

impl Host {
    /// Reads the properties of the machine, and measures the disk of `dir`.
    pub(crate) fn look(dir: &Path) -> Result<Self> {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").context("read /proc/cpuinfo")?;
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
        let meminfo = fs::read_to_string("/proc/meminfo").context("read /proc/meminfo")?;
        let memory = meminfo.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok());
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").context("read osrelease")?;
        let load = fs::read_to_string("/proc/loadavg").context("read /proc/loadavg")?;
        let load = load.split_whitespace().next().and_then(|load| load.parse().ok());
        Ok(Self {
            cpus: cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
            cpu_model: model.unwrap_or("unknown").trim_start_matches([' ', '\t', ':']).to_owned(),
            memory_gib: memory.unwrap_or(0) >> 20,
            kernel: kernel.trim().to_owned(),
            load_average: load.context("/proc/loadavg has no number")?,
            fdatasync: Latencies::of(fdatasync(dir, Place::Over)?),
        })
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpus, cpu_model, memory_gib, kernel, load_average, fdatasync } = self;
        write!(
            f,
            "{cpus} CPUs ({cpu_model}), {memory_gib} GiB, Linux {kernel}, load average {load_average:.2}"
        )?;
        match fdatasync {
            Some(times) => write!(f, "\nfdatasync of 4 KiB: {times}"),
            None => Ok(()),
        }
    }
}

impl HostTime {
    pub(crate) fn now() -> Result<Self> {
        let stat = fs::read_to_string("/proc/stat").context("read /proc/stat")?;
        let busy =
            busy_ticks(&stat).context("/proc/stat does not begin with the times of all CPUs")?;
        Ok(Self { at: Instant::now(), busy: ticks(busy) })
    }

    /// Returns the mean number of CPUs that other processes have used since `earlier`. The CPU time
    /// in `ours` does not count.
    pub(crate) fn others_since(self, earlier: Self, ours: &[CpuTime]) -> f64 {
        let ours: Duration = ours.iter().map(|time| time.total()).sum();
        let busy = self.busy.saturating_sub(earlier.busy).saturating_sub(ours);
        busy.as_secs_f64() / (self.at - earlier.at).as_secs_f64().max(1e-9)
    }
}

/// Returns the sum of user, nice, system, interrupt, soft interrupt and stolen time, without idle
/// time and I/O wait.
fn busy_ticks(stat: &str) -> Option<u64> {
    let times = stat.lines().next()?.strip_prefix("cpu ")?;
    let times: Vec<u64> = times.split_whitespace().map_while(|it| it.parse().ok()).collect();
    [0, 1, 2, 5, 6, 7].into_iter().map(|at| times.get(at)).sum()
}

/// The place in the file at which a block is written before a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Over existing blocks, so that the file keeps its length.
    Over,
    /// At the end of the file, as in a log.
    Append,
}

/// Measures `fdatasync` after each of 200 blocks of 4 KiB.
pub(crate) fn fdatasync(dir: &Path, place: Place) -> Result<Vec<Duration>> {
    const WRITES: usize = 200;
    const PLACES: u64 = 64;
    let mut file = tempfile::tempfile_in(dir).context("create a file to sync")?;
    let block = [7_u8; 4096];
    (0..WRITES)
        .map(|n| {
            if place == Place::Over {
                file.seek(SeekFrom::Start(crate::stats::count(n) % PLACES * 4096))?;
            }
            file.write_all(&block)?;
            let start = Instant::now();
            file.sync_data()?;
            Ok(start.elapsed())
        })
        .collect::<std::io::Result<Vec<_>>>()
        .context("write and sync a file")
}

/// Converts bytes to MB.
pub(crate) fn mb(bytes: u64) -> f64 {
    float(bytes) / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_iowait_time_is_not_counted_as_busy() {
        let stat = "cpu  1 2 4 800 1600 8 16 32 64 0\ncpu0 1 2 3\n";
        assert_eq!(busy_ticks(stat), Some(63));
        assert_eq!(busy_ticks("cpu  1 2\n"), None);
    }

    #[test]
    fn host_information_is_available() {
        let host = Host::look(&std::env::temp_dir()).unwrap();
        assert!(host.cpus >= 1 && host.memory_gib >= 1 && !host.kernel.is_empty(), "{host}");
    }
}
