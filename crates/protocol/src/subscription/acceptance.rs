//! Whether the client has accepted what a revision changed for it.
//!
//! Each response carries the changes of a range of revisions. A revision is accepted when each
//! response that carries it was acknowledged, and nothing of it is left to send. A rejection of such
//! a response remains known after a later response has replaced the rejected resources.
//!
//! Limits of this knowledge:
//! - A client answers responses in order. An ACK therefore also accepts the earlier responses that
//!   the client did not answer (SOTW-20, DELTA-19). A NACK does not: these responses stay unknown.
//! - A client rejects a whole response. The rejection counts for all revisions that the response
//!   carries.
//! - Only the last [`RECORDS_MAX`] rejections are known one by one. Older ones make the revisions
//!   from the first to the last of them unknown.

use std::collections::VecDeque;

use chancery_model::Revision;

use super::delivery::Carried;

/// The maximum number of rejections that are kept one by one.
const RECORDS_MAX: usize = 4;

/// Whether the client has accepted what a revision changed for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acceptance<'a> {
    /// The client has acknowledged everything that the revision changed for it.
    Accepted,
    /// Unknown: something is not sent or not answered, or the client skipped the answer.
    Unknown,
    /// The client has rejected a response with changes of the revision, with this message.
    Rejected(&'a str),
}

/// The revisions that the client has rejected. Its size is bounded.
#[derive(Debug, Default)]
pub(crate) struct RejectedRevisions {
    /// The last rejected responses, oldest first.
    last: VecDeque<(Carried, String)>,
    /// The revisions of the older ones: those after the first and up to the second.
    older: Option<(Revision, Revision)>,
}

impl RejectedRevisions {
    /// Records the rejection of a response.
    pub(crate) fn record(&mut self, carried: Carried, message: String) {
        if self.last.len() == RECORDS_MAX
            && let Some((dropped, _)) = self.last.pop_front()
        {
            let (after, upto) = self.older.unwrap_or((dropped.maybe_after, dropped.upto));
            self.older = Some((after.min(dropped.maybe_after), upto.max(dropped.upto)));
        }
        self.last.push_back((carried, message));
    }

    /// Returns the message of the last rejected response that carries the revision.
    pub(crate) fn message(&self, revision: Revision) -> Option<&str> {
        let carries = |carried: &Carried| carried.after < revision && revision <= carried.upto;
        let (_, message) = self.last.iter().rev().find(|(carried, _)| carries(carried))?;
        Some(message)
    }

    /// Returns whether a rejected response may have carried the revision, or an earlier response
    /// that the client did not answer.
    pub(crate) fn is_doubtful(&self, revision: Revision) -> bool {
        self.last.iter().any(|(carried, _)| carried.may_have(revision))
            || self.older.is_some_and(|(after, upto)| after < revision && revision <= upto)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(maybe_after: u64, after: u64, upto: u64) -> Carried {
        let [maybe_after, after, upto] = [maybe_after, after, upto].map(Revision);
        Carried { maybe_after, after, upto }
    }

    #[test]
    fn old_rejections_become_unknown_and_take_no_more_memory() {
        let mut rejected = RejectedRevisions::default();
        for n in 1..=100 {
            rejected.record(carried(10 * n, 10 * n, 10 * n + 5), format!("no {n}"));
        }
        assert_eq!(rejected.last.len(), RECORDS_MAX);
        let of = |revision| {
            let revision = Revision(revision);
            (rejected.message(revision), rejected.is_doubtful(revision))
        };
        assert_eq!(of(1003), (Some("no 100"), true));
        assert_eq!(of(1006), (None, false));
        assert_eq!(of(999), (None, false), "it was accepted between two rejections");
        assert_eq!(of(961), (None, true), "the oldest rejections are merged");
        assert_eq!((of(11), of(10)), ((None, true), (None, false)));
    }

    #[test]
    fn rejected_response_says_nothing_certain_about_skipped_ones() {
        let mut rejected = RejectedRevisions::default();
        rejected.record(carried(3, 5, 7), "no".to_owned());
        let of = |revision| rejected.message(Revision(revision));
        assert_eq!((of(7), of(6), of(5)), (Some("no"), Some("no"), None));
        assert!(rejected.is_doubtful(Revision(4)) && !rejected.is_doubtful(Revision(3)));
    }
}
