//! When the replica got to know of the latest revisions: for measuring how long they take to clients.

use std::{collections::VecDeque, sync::Arc};

use chancery_model::{Revision, State};
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

/// Revisions that are remembered. The oldest is dropped for a new one: a shard that is so far behind is
/// taken for a little less so.
const KEPT_MAX: usize = 1024;

/// Revisions, oldest first, with the time at which a state of that revision was first there. Noted as
/// soon as the state is published, however busy the shards are.
#[derive(Debug, Default)]
pub(crate) struct Arrivals(Mutex<VecDeque<(Revision, Instant)>>);

impl Arrivals {
    pub(crate) fn note(&self, revision: Revision, at: Instant) {
        let mut noted = self.0.lock();
        // A state of another history begins anew.
        while noted.back().is_some_and(|(known, _)| *known >= revision) {
            noted.pop_back();
        }
        if noted.len() == KEPT_MAX {
            noted.pop_front();
        }
        noted.push_back((revision, at));
    }

    /// When the first revision after this one was here; `None` if none has been noted.
    pub(crate) fn first_after(&self, revision: Revision) -> Option<Instant> {
        let noted = self.0.lock();
        let at = noted.partition_point(|(known, _)| *known <= revision);
        noted.get(at).map(|(_, arrival)| *arrival)
    }

    /// Notes each state that is published until `cancel`.
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
    fn the_first_of_several_revisions_counts() {
        let (arrivals, start) = (Arrivals::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(arrivals.first_after(Revision(0)), None);
        for revision in 1..=KEPT_MAX as u64 + 10 {
            arrivals.note(Revision(revision), at(revision));
        }
        assert_eq!(arrivals.0.lock().len(), KEPT_MAX);
        assert_eq!(arrivals.first_after(Revision(500)), Some(at(501)));
        assert_eq!(arrivals.first_after(Revision(0)), Some(at(11)), "the oldest that is known");
        assert_eq!(arrivals.first_after(Revision(KEPT_MAX as u64 + 10)), None);
        // Another history, with fewer revisions.
        arrivals.note(Revision(1), at(5000));
        assert_eq!(arrivals.first_after(Revision(0)), Some(at(5000)));
    }

    /// However many states are published before anybody looks, the first one's time is known.
    #[tokio::test(start_paused = true)]
    async fn states_are_noted_when_they_are_published() {
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
