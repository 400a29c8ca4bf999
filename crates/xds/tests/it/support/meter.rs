//! What a server counts in one test. Tests run in threads of their own, and everything of a test in its
//! one thread, so that a recorder of the thread sees its test and no other.

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
    /// Counts what is counted in this thread from now on.
    pub(crate) fn start() -> Self {
        let cells = Cells::default();
        // It lives as long as its test's process; there are not many.
        let recorder: &'static Cells = Box::leak(Box::new(cells.clone()));
        Self { cells, _guard: metrics::set_default_local_recorder(recorder) }
    }

    /// A counter, summed over what its labels leave open.
    pub(crate) fn counter(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        self.cells.matching(name, labels).iter().sum()
    }

    /// A gauge, summed over its labels.
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
