//! When the shard got to know of the latest revisions: for measuring convergence.

use std::collections::VecDeque;

use chancery_model::Revision;
use tokio::time::Instant;

/// Revisions that are remembered. An acknowledgment of an older one is not measured.
const KEPT_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Commits(VecDeque<(Revision, Instant)>);

impl Commits {
    pub(crate) fn note(&mut self, revision: Revision, at: Instant) {
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
}
