//! Large work on one session, and its result.

use chancery_protocol::{
    InterestChange, ProtocolError, Receipt, Request, Response, ResumeState, Session,
};
use chancery_view::{Differ, View};
use tokio::sync::OwnedSemaphorePermit;

use crate::{SecretFinder, messages::session::Key, placement::placed::ScopeMove, rejection};

/// Large work on a session.
#[derive(Debug)]
pub(crate) enum Work {
    /// Removes the secrets that the finder finds from the text of a rejection, and handles the request. The permit is
    /// held as long as the request's bytes.
    Take(Request, Option<OwnedSemaphorePermit>, SecretFinder),
    /// Plans the next response. `renews` allows one that renews lifetimes.
    Poll { renews: bool },
    /// Lists the subscriptions, to move the session from some scopes to others.
    Move(ScopeMove),
    /// Frees the session.
    End,
}

/// A session that returns.
#[derive(Debug)]
pub(crate) struct Returned {
    pub(crate) key: Key,
    /// `None` if the work failed.
    pub(crate) done: Option<(Option<Session>, Done)>,
}

#[derive(Debug)]
pub(crate) enum Done {
    Taken(Result<Receipt, ProtocolError>, Vec<InterestChange>),
    /// Has the time of the poll, in the protocol's milliseconds.
    Polled(Option<Response>, u64),
    Moved(Vec<InterestChange>, ScopeMove),
    Ended(Vec<InterestChange>, Option<ResumeState>),
}

impl Work {
    pub(crate) fn run(
        self,
        mut session: Session,
        view: Option<&View>,
        differ: &Differ,
        now: u64,
    ) -> (Option<Session>, Done) {
        let done = match self {
            Self::Take(mut request, permit, finder) => {
                rejection::clean(&mut request, &session, &finder);
                let result = session.handle_request(request, view, now);
                drop(permit);
                let interests = session.drain_interest();
                Done::Taken(result, interests)
            }
            Self::Poll { renews } => {
                Done::Polled(next_response(&mut session, view, differ, renews, now), now)
            }
            Self::Move(scopes) => Done::Moved(session.interest(), scopes),
            Self::End => {
                let interests = session.interest();
                return (None, Done::Ended(interests, session.take_resume_state()));
            }
        };
        (Some(session), done)
    }
}

/// Returns the next response of a session. `renews` allows the renewal of lifetimes.
pub(crate) fn next_response(
    session: &mut Session,
    view: Option<&View>,
    differ: &Differ,
    renews: bool,
    now: u64,
) -> Option<Response> {
    let renewal = if renews { session.renew(differ, now) } else { None };
    renewal.or_else(|| session.poll(view, differ, now))
}
