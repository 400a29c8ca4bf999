//! A session in its shard, or the record of its absence.

use std::{collections::VecDeque, vec};

use chancery_model::{ResourceName, ScopeName, TypeUrl};
use chancery_protocol::{
    InterestChange, ProtocolError, Receipt, Response, ResumeState, Session, SubscriptionStatus,
};

use super::work::{Done, Work};
use crate::{
    messages::{event::Event, session::Mark},
    placement::placed::ScopeMove,
};

/// The maximum number of changes that are recorded one by one for a session that is away.
const MISSED_MAX: usize = 256;

/// A session in its shard, or the record of its absence.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "almost every session is in its shard")]
pub(crate) enum Presence {
    /// The session is in its shard.
    Here(Session),
    /// The session is on the thread for large work, or its names are being registered.
    Away(Box<Away>),
}

/// The record of a session that is away from its shard.
#[derive(Debug)]
pub(crate) struct Away {
    /// The session, once the large work is done.
    session: Option<Session>,
    /// The names still to be registered or removed after the large work.
    registration: Option<Registration>,
    missed: Missed,
    /// The time at which the session left, if it left to handle a request.
    left_at: Option<u64>,
    /// Requests that arrived meanwhile. Their number is bounded by the inbox, because readers wait.
    waiting: VecDeque<Event>,
    /// The status of the session when it left.
    status: Vec<SubscriptionStatus>,
    /// Whether the stream has ended. The session is then removed when it is back.
    has_ended: bool,
    /// Whether the session was to be polled meanwhile.
    is_poll_due: bool,
}

/// The changes for a session that is away.
#[derive(Debug)]
enum Missed {
    Some(Vec<(TypeUrl, Option<ResourceName>)>),
    Anything,
}

/// Names to be removed from some scopes and registered under others, step by step.
#[derive(Debug)]
pub(crate) struct Registration {
    interests: vec::IntoIter<InterestChange>,
    scopes: ScopeMove,
    outcome: Outcome,
}

/// The result of large work, with which the shard continues when all names are registered.
#[derive(Debug)]
#[must_use = "the session stays away until its shard continues with the outcome"]
pub(crate) enum Outcome {
    /// The session has accepted or rejected a request.
    Request(Result<Receipt, ProtocolError>),
    /// The session has planned a response. Has the time of the poll, in the protocol's milliseconds.
    Response(Option<Response>, u64),
    /// The session is indexed under its new scopes.
    Moved,
    /// The session no longer exists.
    Ended(Option<ResumeState>),
}

/// The pending requests and reasons of a session that is back.
#[derive(Debug)]
#[must_use = "requests that arrived meanwhile wait"]
pub(crate) struct Return {
    /// Whether the stream has ended meanwhile.
    pub(crate) has_ended: bool,
    /// Whether there is a reason to poll the session. Without a reason the session is not polled again. Otherwise one
    /// large poll that finds nothing to send would follow another while an answer is awaited.
    pub(crate) is_poll_due: bool,
    /// The requests that arrived meanwhile, in order.
    pub(crate) waiting: VecDeque<Event>,
}

impl Presence {
    /// Returns the session, unless it is away.
    pub(crate) fn session(&self) -> Option<&Session> {
        match self {
            Self::Here(session) => Some(session),
            Self::Away(_) => None,
        }
    }

    /// Returns the session, unless it is away.
    pub(crate) fn session_mut(&mut self) -> Option<&mut Session> {
        match self {
            Self::Here(session) => Some(session),
            Self::Away(_) => None,
        }
    }

    /// Returns the record of a session that is away.
    pub(crate) fn away(&self) -> Option<&Away> {
        match self {
            Self::Here(_) => None,
            Self::Away(away) => Some(away),
        }
    }

    /// Returns the record of a session that is away.
    pub(crate) fn away_mut(&mut self) -> Option<&mut Away> {
        match self {
            Self::Here(_) => None,
            Self::Away(away) => Some(away),
        }
    }

    /// Returns the session; its subscriptions at its departure if it is away.
    pub(crate) fn session_or_status(&self) -> Result<&Session, &[SubscriptionStatus]> {
        match self {
            Self::Here(session) => Ok(session),
            Self::Away(away) => Err(&away.status),
        }
    }

    /// Returns the subscriptions of the session; those at its departure if it is away.
    pub(crate) fn status(&self) -> Vec<SubscriptionStatus> {
        match self {
            Self::Here(session) => session.status(),
            Self::Away(away) => away.status.clone(),
        }
    }

    /// Takes the session for large work. Returns `None` if it is already away.
    pub(crate) fn leave(&mut self, work: &Work, now: u64) -> Option<Session> {
        let away = Away {
            session: None,
            registration: None,
            missed: Missed::Some(Vec::new()),
            left_at: matches!(work, Work::Take(..)).then_some(now),
            waiting: VecDeque::new(),
            status: self.session()?.status(),
            has_ended: matches!(work, Work::End),
            is_poll_due: false,
        };
        match std::mem::replace(self, Self::Away(Box::new(away))) {
            Self::Here(session) => Some(session),
            Self::Away(_) => None,
        }
    }

    /// Takes the session back, with the changes that it missed. Returns `None` unless its large work is done.
    pub(crate) fn come_back(&mut self, now: u64) -> Option<Return> {
        let session = self.away_mut()?.session.take()?;
        let Self::Away(away) = std::mem::replace(self, Self::Here(session)) else { return None };
        let Away { missed, left_at, waiting, has_ended, is_poll_due, .. } = *away;
        let is_poll_due = is_poll_due || !missed.is_empty();
        let session = self.session_mut()?;
        if let Some(left_at) = left_at {
            session.taken_at(left_at, now);
        }
        match missed {
            _ if has_ended => {}
            Missed::Some(missed) => {
                for (type_url, name) in missed {
                    session.handle_change(&type_url, name.as_ref());
                }
            }
            Missed::Anything => session.handle_new_view(),
        }
        Some(Return { has_ended, is_poll_due, waiting })
    }
}

impl Missed {
    fn is_empty(&self) -> bool {
        matches!(self, Self::Some(missed) if missed.is_empty())
    }
}

impl Away {
    /// Records a change for the time when the session is back.
    pub(crate) fn miss(&mut self, mark: Option<Mark<'_>>) {
        match (&mut self.missed, mark) {
            (Missed::Some(missed), Some(mark)) if missed.len() < MISSED_MAX => {
                missed.push((mark.type_url.clone(), mark.name.cloned()));
            }
            (missed, _) => *missed = Missed::Anything,
        }
    }

    /// Keeps a request for the time when the session is back.
    pub(crate) fn wait(&mut self, event: Event) {
        self.waiting.push_back(event);
    }

    /// Keeps several requests for the time when the session is back.
    pub(crate) fn wait_all(&mut self, events: &mut VecDeque<Event>) {
        self.waiting.append(events);
    }

    /// Records that the stream has ended.
    pub(crate) fn end(&mut self) {
        self.has_ended = true;
    }

    /// Returns whether the stream has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Requests a poll for the time when the session is back.
    pub(crate) fn poll_when_back(&mut self) {
        self.is_poll_due = true;
    }

    /// Takes the result of the large work, for a session that sees `scopes`. Returns the outcome, unless names have to
    /// be registered first.
    pub(crate) fn on_done(
        &mut self,
        session: Option<Session>,
        done: Done,
        scopes: &[ScopeName],
    ) -> Option<Outcome> {
        self.session = session;
        let (interests, scopes, outcome) = match done {
            Done::Polled(response, ms) => return Some(Outcome::Response(response, ms)),
            Done::Taken(result, interests) if interests.is_empty() => {
                return Some(Outcome::Request(result));
            }
            Done::Taken(result, interests) => {
                let joined = ScopeMove { left: Vec::new(), joined: scopes.to_vec() };
                (interests, joined, Outcome::Request(result))
            }
            Done::Moved(interests, scopes) => (interests, scopes, Outcome::Moved),
            Done::Ended(interests, resume_state) => {
                let left = ScopeMove { left: scopes.to_vec(), joined: Vec::new() };
                (interests, left, Outcome::Ended(resume_state))
            }
        };
        self.registration =
            Some(Registration { interests: interests.into_iter(), scopes, outcome });
        None
    }

    /// Returns the names that are to be registered.
    pub(crate) fn registration(&mut self) -> Option<&mut Registration> {
        self.registration.as_mut()
    }

    /// Returns the outcome of the large work, after the last name was registered.
    pub(crate) fn take_outcome(&mut self) -> Option<Outcome> {
        Some(self.registration.take()?.outcome)
    }
}

impl Registration {
    /// Passes at most `n` names and the scopes of the move to `register`. Returns whether no name remains.
    pub(crate) fn advance(
        &mut self,
        n: usize,
        mut register: impl FnMut(&ScopeMove, &InterestChange),
    ) -> bool {
        for interest in self.interests.by_ref().take(n) {
            register(&self.scopes, &interest);
        }
        self.interests.len() == 0
    }
}
