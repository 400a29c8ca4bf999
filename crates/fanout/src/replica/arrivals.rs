//! The arrival times of the latest revisions at the replica, for measuring the delay until clients have
//! them.

use std::{collections::VecDeque, sync::Arc};

use chancery_model::{Revision, State};
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

/// The maximum number of recorded revisions. Beyond it the oldest is dropped, so a shard that is
/// further behind measures a shorter delay.
const KEPT_MAX: usize = 1024;

/// Revisions, oldest first, with the time at which the first state of that revision was published. A
/// separate task records them, so busy shards do not affect the times.
#[derive(Debug, Default)]
pub(crate) struct Arrivals(Mutex<VecDeque<(Revision, Instant)>>);

impl Arrivals {
    pub(crate) fn note(&self, revision: Revision, at: Instant) {
        let mut noted = self.0.lock();
        // A state of another history replaces the newer revisions.
        while noted.back().is_some_and(|(known, _)| *known >= revision) {
            noted.pop_back();
        }
        if noted.len() == KEPT_MAX {
            noted.pop_front();
        }
        noted.push_back((revision, at));
    }

    /// Returns the arrival time of the first recorded revision after `revision`, if there is one.
    pub(crate) fn first_after(&self, revision: Revision) -> Option<Instant> {
        let noted = self.0.lock();
        let newer = noted.partition_point(|(known, _)| *known <= revision);
        noted.get(newer).map(|(_, arrival)| *arrival)
    }

    /// Records each published state until `cancel`.
    pub(crate) async fn watch(
        self: Arc<Self>,
        mut state: watch::Receiver<Arc<State>>,
        cancel: CancellationToken,
    ) {
        loop {
            let revision = state.borrow_and_update().revision;
            self.note(revision, Instant::now());
            tokio::select! {
                () = cancel.cancelled() => return,
                changed = state.changed() => if changed.is_err() { return },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn arrival_of_first_newer_revision_is_returned() {
        let (arrivals, start) = (Arrivals::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(arrivals.first_after(Revision(0)), None);
        for revision in 1..=KEPT_MAX as u64 + 10 {
            arrivals.note(Revision(revision), at(revision));
        }
        assert_eq!(arrivals.0.lock().len(), KEPT_MAX);
        assert_eq!(arrivals.first_after(Revision(500)), Some(at(501)));
        assert_eq!(arrivals.first_after(Revision(0)), Some(at(11)), "the oldest recorded one");
        assert_eq!(arrivals.first_after(Revision(KEPT_MAX as u64 + 10)), None);
        // Another history, with smaller revisions.
        arrivals.note(Revision(1), at(5000));
        assert_eq!(arrivals.first_after(Revision(0)), Some(at(5000)));
    }

    /// The watcher records the time of the first of several states, even if nobody reads it meanwhile.
    #[tokio::test(start_paused = true)]
    async fn state_arrival_time_is_recorded_at_publication() {
        let state = |revision| {
            let state = State::new(chancery_model::Incarnation(1));
            Arc::new(State { revision: Revision(revision), ..state })
        };
        let (sender, receiver) = watch::channel(state(1));
        let (arrivals, cancel) = (Arc::new(Arrivals::default()), CancellationToken::new());
        let task = tokio::spawn(Arc::clone(&arrivals).watch(receiver, cancel.clone()));
        let mut expected = None;
        for revision in 2..5 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            sender.send_replace(state(revision));
            expected.get_or_insert_with(Instant::now);
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(arrivals.first_after(Revision(1)), expected);
        cancel.cancel();
        task.await.unwrap();
    }
}
