//! The metrics of a server in one test. Each test runs in its own thread, including its server. A
//! recorder of the thread therefore sees only that test.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, LocalRecorderGuard, Metadata, Recorder, SharedString,
    Unit,
};
use parking_lot::Mutex;

pub(crate) struct Meter {
    cells: Cells,
    _guard: LocalRecorderGuard<'static>,
}

#[derive(Clone, Default)]
struct Cells(Arc<Mutex<BTreeMap<Name, Arc<AtomicU64>>>>);

/// A metric and its labels.
type Name = (String, BTreeMap<String, String>);

impl Meter {
    /// Records the metrics of this thread from now on.
    pub(crate) fn start() -> Self {
        let cells = Cells::default();
        // The recorder lives as long as the test process. There are few.
        let recorder: &'static Cells = Box::leak(Box::new(cells.clone()));
        Self { cells, _guard: metrics::set_default_local_recorder(recorder) }
    }

    /// Returns a counter, summed over all series that have these labels.
    pub(crate) fn counter(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        self.cells.matching(name, labels).iter().sum()
    }

    /// Returns a gauge, summed over its labels.
    pub(crate) fn gauge(&self, name: &str) -> f64 {
        self.cells.matching(name, &[]).into_iter().map(f64::from_bits).sum()
    }
}

impl Cells {
    fn matching(&self, name: &str, labels: &[(&str, &str)]) -> Vec<u64> {
        let all = self.0.lock();
        let matches = |of: &BTreeMap<String, String>| {
            labels.iter().all(|(key, value)| of.get(*key).is_some_and(|of| of == value))
        };
        (all.iter().filter(|((of, labels), _)| of == name && matches(labels)))
            .map(|(_, cell)| cell.load(Ordering::Relaxed))
            .collect()
    }

    fn cell(&self, key: &Key) -> Arc<AtomicU64> {
        let labels = key.labels().map(|label| (label.key().to_owned(), label.value().to_owned()));
        let key = (key.name().to_owned(), labels.collect());
        Arc::clone(self.0.lock().entry(key).or_default())
    }
}

impl Recorder for Cells {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.cell(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.cell(key))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
