//! The server's memory, sampled every second.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::task::JoinHandle;

use crate::{
    process::Process,
    stats::{Spread, float, slope},
};

const EVERY: Duration = Duration::from_secs(1);

/// A task that reads RSS every second, until it is dropped.
#[derive(Debug)]
pub(crate) struct Sampler {
    samples: Arc<Mutex<Vec<(Instant, u64)>>>,
    task: JoinHandle<Result<()>>,
}

/// The course of RSS over some time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Course {
    pub(crate) seconds: f64,
    pub(crate) mib: Spread,
    /// The slope of the regression line through all samples.
    pub(crate) mib_per_hour: f64,
    /// The rise of the line, in percent of its start.
    pub(crate) growth_percent: f64,
    /// The median of each started minute.
    pub(crate) by_minute: Vec<f64>,
}

impl Sampler {
    pub(crate) fn start(process: Process) -> Self {
        let samples = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&samples);
        let task = tokio::spawn(async move {
            loop {
                let rss = process.memory()?.rss;
                into.lock().push((Instant::now(), rss));
                tokio::time::sleep(EVERY).await;
            }
        });
        Self { samples, task }
    }

    /// Returns the course between two times, or `None` if there are too few samples.
    pub(crate) fn course(&self, from: Instant, to: Instant) -> Option<Course> {
        let samples = self.samples.lock();
        let within = samples.iter().filter(|(at, _)| (from..=to).contains(at));
        let points: Vec<(f64, f64)> = within
            .map(|(at, rss)| {
                (at.duration_since(from).as_secs_f64(), float(*rss) / f64::from(1 << 20))
            })
            .collect();
        Course::of(&points)
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Course {
    /// Computes the course of points in seconds and MiB.
    fn of(points: &[(f64, f64)]) -> Option<Self> {
        let values: Vec<f64> = points.iter().map(|point| point.1).collect();
        let mib = Spread::of(&values)?;
        let seconds = points.last()?.0 - points.first()?.0;
        let per_second = slope(points)?;
        // The line passes through the mean of all points.
        let middle = values.iter().sum::<f64>() / float(crate::stats::count(values.len()));
        let (rise, begin) = (per_second * seconds, middle - per_second * seconds / 2.0);
        let growth_percent = 100.0 * rise / begin.max(1e-9);
        let minute = |point: &(f64, f64)| (point.0 / 60.0).floor();
        let by_minute = points
            .chunk_by(|a, b| minute(a) == minute(b))
            .filter_map(|points| {
                let values: Vec<f64> = points.iter().map(|point| point.1).collect();
                Some(Spread::of(&values)?.median)
            })
            .collect();
        let mib_per_hour = per_second * 3600.0;
        Some(Self { seconds, mib, mib_per_hour, growth_percent, by_minute })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_the_fitted_line_relative_to_its_start() {
        let points: Vec<(f64, f64)> =
            (0..=100).map(|n| (f64::from(n), 50.0 + f64::from(n) / 20.0)).collect();
        let course = Course::of(&points).unwrap();
        assert!((course.mib_per_hour - 180.0).abs() < 1e-6, "{course:?}");
        assert!((course.growth_percent - 10.0).abs() < 1e-6, "{course:?}");
        assert_eq!((course.seconds, course.mib.min, course.mib.max), (100.0, 50.0, 55.0));
        assert_eq!(course.by_minute, [51.475, 54.0]);
        assert_eq!(Course::of(&points[..1]), None);
    }
}
