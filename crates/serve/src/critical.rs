//! Tasks whose end ends the replica: without them, it would look healthy and lack a part.

use std::{collections::HashMap, future::pending};

use tokio::{
    runtime::Handle,
    task::{Id, JoinSet},
};
use tokio_util::sync::CancellationToken;

/// The tasks of a replica that must not end before they are stopped. Dropping it aborts them.
#[derive(Debug, Default)]
pub(super) struct CriticalTasks {
    tasks: JoinSet<()>,
    kinds: HashMap<Id, Kind>,
}

#[derive(Debug)]
struct Kind {
    name: String,
    /// Cancelled when the task may end.
    stop: CancellationToken,
}

impl CriticalTasks {
    /// Starts a task that runs until `stop`. `name` is its name in the log, with an article.
    pub(super) fn spawn(
        &mut self,
        name: impl Into<String>,
        runtime: &Handle,
        stop: &CancellationToken,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let id = self.tasks.spawn_on(task, runtime).id();
        self.kinds.insert(id, Kind { name: name.into(), stop: stop.clone() });
    }

    /// Waits until a task ends that was not stopped. Returns a sentence with its name and the reason.
    pub(super) async fn until_ended(&mut self) -> String {
        while let Some(ended) = self.tasks.join_next_with_id().await {
            let (id, reason) = match ended {
                Ok((id, ())) => (id, "has ended".to_owned()),
                Err(error) => (error.id(), format!("has failed: {error}")),
            };
            if let Some(Kind { name, stop }) = self.kinds.remove(&id)
                && !stop.is_cancelled()
            {
                return format!("{name} {reason}");
            }
        }
        pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn end_of_a_task_is_reported_unless_it_was_stopped() {
        let (mut tasks, runtime) = (CriticalTasks::default(), Handle::current());
        let (stopped, runs) = (CancellationToken::new(), CancellationToken::new());
        stopped.cancel();
        tasks.spawn("the stopped task", &runtime, &stopped, async {});
        tasks.spawn("the running task", &runtime, &runs, pending());
        tasks.spawn("the broken task", &runtime, &runs, async { panic!("on purpose") });
        let reason = tasks.until_ended().await;
        assert!(reason.starts_with("the broken task has failed: "), "{reason}");
        assert!(reason.contains("on purpose"), "{reason}");
        tasks.spawn("the short task", &runtime, &runs, async {});
        assert_eq!(tasks.until_ended().await, "the short task has ended");
        assert_eq!(tasks.kinds.len(), 1, "only the running task is left");
    }
}
