//! The metrics of the process: CPU time, memory, open files and threads, under the names of Prometheus' client libraries.
//!
//! Only `/proc/self` is read. The files of the whole machine, such as `/proc/stat`, are hidden by `ProcSubset=pid` of the systemd unit.
//! A value that the system does not have is missing.

use std::{
    fs, io,
    sync::OnceLock,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use chancery_metrics::{Metric, MetricKind, Sample, sample};
use rustix::{
    io::Errno,
    param::{clock_ticks_per_second, page_size},
    process::{Resource, getrlimit},
    time::{ClockId, clock_gettime},
};

/// The metrics of the process.
pub(super) const METRICS: &[Metric] = &[
    Metric::new(
        "process_cpu_seconds_total",
        MetricKind::Counter,
        "CPU time of all threads, in user and system mode",
    ),
    Metric::new("process_resident_memory_bytes", MetricKind::Gauge, "Resident memory"),
    Metric::new("process_virtual_memory_bytes", MetricKind::Gauge, "Virtual memory"),
    Metric::new("process_open_fds", MetricKind::Gauge, "Open file descriptors"),
    Metric::new("process_max_fds", MetricKind::Gauge, "The limit of open file descriptors"),
    Metric::new(
        "process_start_time_seconds",
        MetricKind::Gauge,
        "The start of the process, in seconds since 1970",
    ),
    Metric::new("process_threads", MetricKind::Gauge, "Threads of the process"),
];

/// The start of the process since 1970. It is computed once, because each computation rounds differently.
static STARTED: OnceLock<Duration> = OnceLock::new();

/// Returns the current values.
pub(super) fn samples() -> Vec<Sample> {
    let mut samples =
        vec![sample!("process_cpu_seconds_total", now(ClockId::ProcessCPUTime).as_secs_f64())];
    if let Some(stat) =
        fs::read_to_string("/proc/self/stat").ok().and_then(|text| Stat::parse(&text))
    {
        let started = STARTED.get_or_init(|| stat.started());
        samples.extend([
            sample!("process_resident_memory_bytes", float(stat.resident_bytes)),
            sample!("process_virtual_memory_bytes", float(stat.virtual_bytes)),
            sample!("process_start_time_seconds", started.as_secs_f64()),
            sample!("process_threads", float(stat.threads)),
        ]);
    }
    let max = getrlimit(Resource::Nofile).current;
    samples.extend(open_files(max).map(|open| sample!("process_open_fds", float(open))));
    samples.extend(max.map(|max| sample!("process_max_fds", float(max))));
    samples
}

/// The parts of `/proc/self/stat` that are metrics.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    threads: u64,
    /// The time from the start of the machine to the start of the process, in ticks of the kernel.
    start_ticks: u64,
    virtual_bytes: u64,
    resident_bytes: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The second field is the name of the program in parentheses, and may contain spaces and parentheses.
        let (_, fields) = text.rsplit_once(')')?;
        // The first of these is the third field.
        let mut fields = fields.split_whitespace().skip(20 - 3);
        let mut next = || fields.next()?.parse::<u64>().ok();
        let threads = next()?;
        let _interval = next()?;
        let (start_ticks, virtual_bytes, resident_pages) = (next()?, next()?, next()?);
        let page = u64::try_from(page_size()).ok()?;
        let resident_bytes = resident_pages.checked_mul(page)?;
        Some(Self { threads, start_ticks, virtual_bytes, resident_bytes })
    }

    fn started(&self) -> Duration {
        let ticks = clock_ticks_per_second().max(1);
        let after_boot = Duration::from_millis(self.start_ticks.saturating_mul(1000) / ticks);
        let age = now(ClockId::Boottime).saturating_sub(after_boot);
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        since_epoch.saturating_sub(age)
    }
}

/// Returns the number of open files. Counting them needs one, so a process at its limit has as many as the limit.
fn open_files(max: Option<u64>) -> Option<u64> {
    match fs::read_dir("/proc/self/fd") {
        // The directory itself is among the files.
        Ok(files) => u64::try_from(files.count().saturating_sub(1)).ok(),
        Err(error) if is_at_limit(&error) => max,
        Err(_) => None,
    }
}

fn is_at_limit(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::MFILE)
}

fn now(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

#[expect(clippy::cast_precision_loss, reason = "the values are far below 2^52")]
const fn float(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_after_any_name_of_the_program() {
        let fields = "S 1 2 3 0 -1 4194560 100 0 0 0 9 7 0 0 20 0 17 0 4242 1000000 25 184467";
        for name in ["(chancery)", "(a) S 9 (b c)"] {
            let stat = Stat::parse(&format!("77 {name} {fields}\n"));
            let resident_bytes = 25 * page_size() as u64;
            let expected =
                Stat { threads: 17, start_ticks: 4242, virtual_bytes: 1_000_000, resident_bytes };
            assert_eq!(stat, Some(expected));
        }
        for broken in ["", "77 (chancery) S 1", "77 chancery S 1 2 3"] {
            assert_eq!(Stat::parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn values_are_those_of_this_process() {
        let value =
            |name| samples().iter().find(|sample| sample.name == name).map(|sample| sample.value);
        let missing: Vec<_> =
            METRICS.iter().filter(|metric| value(metric.name).is_none()).collect();
        assert!(missing.is_empty(), "{missing:?}");

        let files: Vec<_> = (0..100).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        let (open, max) = (value("process_open_fds").unwrap(), value("process_max_fds").unwrap());
        assert!(open > 100.0 && open < max, "{open} of {max}");
        drop(files);

        // Tests beside this one free memory at any moment, so that a difference would prove nothing.
        let bytes = std::hint::black_box(vec![1_u8; 256 << 20]);
        let resident = value("process_resident_memory_bytes").unwrap();
        assert!((256e6..16e9).contains(&resident), "{resident}");
        assert!(value("process_virtual_memory_bytes") > value("process_resident_memory_bytes"));
        drop(bytes);

        let cpu = value("process_cpu_seconds_total").unwrap();
        while value("process_cpu_seconds_total").unwrap() < cpu + 0.05 {}

        let threads = value("process_threads").unwrap();
        assert!((1.0..10_000.0).contains(&threads), "{threads}");
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let started = value("process_start_time_seconds").unwrap();
        assert!((since_epoch - 3600.0..since_epoch).contains(&started), "{started}, {since_epoch}");
        assert_eq!(value("process_start_time_seconds"), Some(started));
    }

    #[test]
    fn process_at_its_limit_of_files_has_as_many_as_the_limit() {
        assert!(is_at_limit(&io::Error::from(Errno::MFILE)));
        assert!(!is_at_limit(&io::Error::from(Errno::ACCESS)));
    }
}
