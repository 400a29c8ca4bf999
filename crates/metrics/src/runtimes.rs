//! The state of the tokio runtimes of the process.
//!
//! A component that starts a runtime registers it. The names are those of the threads in `docs/ARCHITECTURE.md`.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeMetrics};

use crate::{Metric, MetricKind, Sample, sample};

/// The metrics of the runtimes.
pub const METRICS: &[Metric] = &[
    Metric::new("chancery_runtime_workers", MetricKind::Gauge, "Worker threads of a runtime"),
    Metric::new(
        "chancery_runtime_alive_tasks",
        MetricKind::Gauge,
        "Tasks of a runtime that have not ended",
    ),
    Metric::new(
        "chancery_runtime_queued_tasks",
        MetricKind::Gauge,
        "Tasks that wait in the global queue of a runtime for a worker thread",
    ),
    Metric::new(
        "chancery_runtime_busy_seconds_total",
        MetricKind::Counter,
        "Time in which the worker threads of a runtime were busy, over all threads",
    ),
];

/// The runtimes by name. A runtime that starts again replaces the earlier one.
static RUNTIMES: Mutex<BTreeMap<&'static str, RuntimeMetrics>> = Mutex::new(BTreeMap::new());

/// Adds a runtime to the metrics of the process.
pub fn register_runtime(name: &'static str, runtime: &Handle) {
    RUNTIMES.lock().insert(name, runtime.metrics());
}

/// Returns the samples of all runtimes.
#[must_use]
pub fn runtime_samples() -> Vec<Sample> {
    RUNTIMES.lock().iter().flat_map(|(name, metrics)| of_runtime(name, metrics)).collect()
}

fn of_runtime(name: &'static str, metrics: &RuntimeMetrics) -> [Sample; 4] {
    let workers = 0..metrics.num_workers();
    let busy = workers.map(|worker| metrics.worker_total_busy_duration(worker).as_secs_f64()).sum();
    [
        sample!("chancery_runtime_workers", "runtime" => name, float(metrics.num_workers())),
        sample!("chancery_runtime_alive_tasks", "runtime" => name, float(metrics.num_alive_tasks())),
        sample!("chancery_runtime_queued_tasks", "runtime" => name, float(metrics.global_queue_depth())),
        sample!("chancery_runtime_busy_seconds_total", "runtime" => name, busy),
    ]
}

#[expect(clippy::cast_precision_loss, reason = "a process has fewer than 2^52 tasks")]
const fn float(n: usize) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn registered_runtime_shows_its_threads_tasks_and_busy_time() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(3).build().unwrap();
        register_runtime("test", runtime.handle());
        let value = |metric: &str| {
            let name = format!("chancery_runtime_{metric}");
            let samples = runtime_samples();
            let own =
                samples.iter().find(|s| s.name == name && s.label == Some(("runtime", "test")));
            own.map(|sample| sample.value)
        };
        assert_eq!(value("workers"), Some(3.0));
        assert_eq!(value("alive_tasks"), Some(0.0));
        let waiting = runtime.spawn(std::future::pending::<()>());
        assert_eq!(value("alive_tasks"), Some(1.0));
        let eventually = |is_right: &dyn Fn() -> bool| {
            let start = Instant::now();
            while !is_right() {
                assert!(start.elapsed() < Duration::from_secs(20), "{:?}", runtime_samples());
                std::thread::yield_now();
            }
        };
        // The task waits in the queue until a worker polls it.
        eventually(&|| value("queued_tasks") == Some(0.0));
        waiting.abort();
        let work = runtime.spawn(async {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(20) {}
        });
        runtime.block_on(work).unwrap();
        // A worker counts its busy time when it parks.
        eventually(&|| value("busy_seconds_total") >= Some(0.02));
    }
}
