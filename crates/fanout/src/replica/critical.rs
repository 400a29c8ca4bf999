//! Tasks beside the shards without which the replica would look healthy and lack a part.
//!
//! A shard that panics is reported as ended ([`crate::StalledShard`]), and needs no watch.

use tokio::sync::watch;
use tokio_util::task::TaskTracker;

/// Spawns tasks, and reports the first one that panics.
#[derive(Debug, Clone)]
pub(crate) struct CriticalTasks {
    tracker: TaskTracker,
    /// The name of a task that has panicked.
    failed: watch::Sender<Option<&'static str>>,
}

/// Reports that its task panics.
struct Report {
    name: &'static str,
    failed: watch::Sender<Option<&'static str>>,
}

impl CriticalTasks {
    pub(crate) fn new(tracker: TaskTracker) -> Self {
        Self { tracker, failed: watch::Sender::new(None) }
    }

    /// Spawns a task. `name` is its name in the log, with an article.
    pub(crate) fn spawn(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let report = Report { name, failed: self.failed.clone() };
        self.tracker.spawn(async move {
            let _report = report;
            task.await;
        });
    }

    /// Waits until a task panics. Returns its name.
    pub(crate) async fn until_failed(&self) -> &'static str {
        let mut failed = self.failed.subscribe();
        let name = failed.wait_for(Option::is_some).await.ok().and_then(|name| *name);
        match name {
            Some(name) => name,
            // This handle has a sender, so the channel is open.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.failed.send_replace(Some(self.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    #[tokio::test]
    async fn panic_of_a_task_is_reported_and_its_end_is_not() {
        let tasks = CriticalTasks::new(TaskTracker::new());
        tasks.spawn("the short task", ready(()));
        tasks.tracker.close();
        tasks.tracker.wait().await;
        assert_eq!(*tasks.failed.borrow(), None);
        tasks.spawn("the broken task", async { panic!("on purpose") });
        assert_eq!(tasks.clone().until_failed().await, "the broken task");
    }
}
