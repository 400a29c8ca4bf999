//! When the replica got to know of the latest revisions: for measuring how long they take to clients.

use std::{collections::VecDeque, sync::Arc};

use chancery_model::{Revision, State};
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

/// Revisions that are remembered; the oldest is dropped for a new one, and an acknowledgment of it is
/// not measured.
const KEPT_MAX: usize = 1024;

/// Revisions, oldest first, with the time at which a state of that revision was first there.
#[derive(Debug, Default, Clone)]
pub(crate) struct Commits(VecDeque<(Revision, Instant)>);

/// The same for the whole replica: noted as soon as the state is published, however busy the shards
/// are. A shard copies what is new when it comes to look at a state.
#[derive(Debug, Default)]
pub(crate) struct Arrivals(Mutex<Commits>);

impl Commits {
    pub(crate) fn note(&mut self, revision: Revision, at: Instant) {
        // A state of another history begins anew.
        while self.0.back().is_some_and(|(known, _)| *known >= revision) {
            self.0.pop_back();
        }
        if self.0.len() == KEPT_MAX {
            self.0.pop_front();
        }
        self.0.push_back((revision, at));
    }

    /// When a state with this revision was first here; `None` if that is long ago.
    pub(crate) fn arrival(&self, revision: Revision) -> Option<Instant> {
        let at = self.0.partition_point(|(known, _)| *known < revision);
        // The oldest that is kept may stand for ones before it.
        let (known, arrival) = *self.0.get(at)?;
        (at > 0 || known == revision).then_some(arrival)
    }

    /// Takes over what the replica has noted up to a revision, which is noted as of now if the replica has
    /// not come to it yet. Says when that revision was first here.
    pub(crate) fn follow(&mut self, arrivals: &Arrivals, to: Revision, now: Instant) -> Instant {
        let noted = arrivals.0.lock();
        let known = self.0.back().map_or(Revision(0), |(known, _)| *known);
        let from = noted.0.partition_point(|(revision, _)| *revision <= known);
        for (revision, at) in noted.0.range(from..).take_while(|(revision, _)| *revision <= to) {
            self.note(*revision, *at);
        }
        drop(noted);
        match self.0.back() {
            Some((known, at)) if *known == to => *at,
            _ => {
                self.note(to, now);
                now
            }
        }
    }
}

impl Arrivals {
    pub(crate) fn note(&self, revision: Revision, at: Instant) {
        self.0.lock().note(revision, at);
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
    fn an_arrival_is_that_at_the_replica_and_not_that_at_the_shard() {
        let (arrivals, start) = (Arrivals::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        for revision in 1..=3 {
            arrivals.note(Revision(revision), at(revision));
        }
        let mut commits = Commits::default();
        assert_eq!(commits.follow(&arrivals, Revision(2), at(50)), at(2));
        assert_eq!(commits.arrival(Revision(1)), Some(at(1)));
        // The shard was faster.
        assert_eq!(commits.follow(&arrivals, Revision(4), at(60)), at(60));
        assert_eq!(commits.arrival(Revision(3)), Some(at(3)));
        arrivals.note(Revision(4), at(61));
        assert_eq!(commits.follow(&arrivals, Revision(4), at(70)), at(60), "the first time counts");
        assert_eq!(commits.arrival(Revision(5)), None);
    }

    #[test]
    fn a_revision_of_long_ago_is_not_known() {
        let (mut commits, now) = (Commits::default(), Instant::now());
        for revision in 1..=KEPT_MAX as u64 + 10 {
            commits.note(Revision(revision), now);
        }
        assert_eq!(commits.0.len(), KEPT_MAX);
        assert_eq!(commits.arrival(Revision(10)), None);
        assert_eq!(commits.arrival(Revision(11)), Some(now));
        // Another history, with fewer revisions.
        commits.note(Revision(1), now);
        assert_eq!(commits.0.len(), 1);
    }
}
