//! The record of rejected revisions, and the result type of `Subscription::acceptance`, which decides
//! whether the client has accepted the changes of a revision.
//!
//! Each response carries the changes of a range of revisions. A revision is accepted when each
//! response that carries it was acknowledged, and nothing of it is left to send. A rejection of such
//! a response remains known after a later response has replaced the rejected resources.
//!
//! Limits of this knowledge:
//! - An ACK also counts for the earlier unanswered responses: in delta always, in SotW only if it
//!   answers the last response (SOTW-20, DELTA-19). A NACK does not: these responses stay unknown. A
//!   later NACK of a skipped delta response still counts.
//! - A client rejects a whole response. The rejection counts for all revisions that the response
//!   carries.
//! - Only the last [`RECORDS_MAX`] rejections are known one by one. For the whole range of
//!   revisions that older rejections span, the result is `Unknown`.

use std::collections::VecDeque;

use chancery_model::Revision;

use super::delivery::CarriedRevisions;

/// The maximum number of rejections that are kept one by one.
const RECORDS_MAX: usize = 4;

/// The result of [`Session::acceptance`](crate::Session::acceptance).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acceptance<'a> {
    /// The client has acknowledged everything that the revision changed for it, or the revision changed
    /// nothing for it.
    Accepted,
    /// A change is not sent or not answered, a later response was rejected instead, or the
    /// rejections of that time are no longer kept one by one.
    Unknown,
    /// The client has rejected a response with changes of the revision, or still rejects one of the
    /// named resources. The content is the message of the rejection.
    Rejected(&'a str),
}

/// The revisions that the client has rejected. Its size is bounded.
#[derive(Debug, Default)]
pub(crate) struct RejectedRevisions {
    /// The last rejected responses, oldest first.
    last: VecDeque<(CarriedRevisions, String)>,
    /// The range of the older rejections: after the first revision, and up to the second.
    older: Option<(Revision, Revision)>,
}

impl RejectedRevisions {
    /// Records the rejection of a response.
    pub(crate) fn record(&mut self, carried: CarriedRevisions, message: String) {
        if self.last.len() == RECORDS_MAX
            && let Some((dropped, _)) = self.last.pop_front()
        {
            let (after, up_to) = self.older.unwrap_or((dropped.possibly_after, dropped.up_to));
            self.older = Some((after.min(dropped.possibly_after), up_to.max(dropped.up_to)));
        }
        self.last.push_back((carried, message));
    }

    /// Returns the bytes of the messages.
    pub(crate) fn text_bytes(&self) -> usize {
        self.last.iter().map(|(_, message)| message.len()).sum()
    }

    /// Returns the message of the last rejected response that carries the revision.
    pub(crate) fn message(&self, revision: Revision) -> Option<&str> {
        let carries =
            |carried: &CarriedRevisions| carried.after < revision && revision <= carried.up_to;
        let (_, message) = self.last.iter().rev().find(|(carried, _)| carries(carried))?;
        Some(message)
    }

    /// Returns whether the revision may have been in a rejected response, or in an earlier response
    /// that the client skipped.
    pub(crate) fn may_be_rejected(&self, revision: Revision) -> bool {
        self.last.iter().any(|(carried, _)| carried.may_carry(revision))
            || self.older.is_some_and(|(after, up_to)| after < revision && revision <= up_to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(possibly_after: u64, after: u64, up_to: u64) -> CarriedRevisions {
        let [possibly_after, after, up_to] = [possibly_after, after, up_to].map(Revision);
        CarriedRevisions { possibly_after, after, up_to }
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
            (rejected.message(revision), rejected.may_be_rejected(revision))
        };
        assert_eq!(of(1003), (Some("no 100"), true));
        assert_eq!(of(1006), (None, false));
        assert_eq!(of(999), (None, false), "it was accepted between two rejections");
        assert_eq!(of(961), (None, true), "the oldest rejections are merged");
        assert_eq!((of(11), of(10)), ((None, true), (None, false)));
    }

    #[test]
    fn skipped_response_may_be_rejected_with_the_next_one() {
        let mut rejected = RejectedRevisions::default();
        rejected.record(carried(3, 5, 7), "no".to_owned());
        let of = |revision| rejected.message(Revision(revision));
        assert_eq!((of(7), of(6), of(5)), (Some("no"), Some("no"), None));
        assert!(rejected.may_be_rejected(Revision(4)) && !rejected.may_be_rejected(Revision(3)));
    }
}
