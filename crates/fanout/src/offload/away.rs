//! The record of a session that is away from its shard.

use std::{collections::VecDeque, vec};

use chancery_model::{ResourceName, ScopeName, TypeUrl};
use chancery_protocol::{Interest, ProtocolError, Receipt, ResumeState, SubscriptionStatus};

use crate::{messages::event::Event, sessions::marking::Mark};

/// The maximum number of changes that are recorded one by one for a session that is away.
const MISSED_MAX: usize = 256;

/// The record of an absent session in its shard.
#[derive(Debug)]
pub(crate) struct Offloaded {
    /// The names still to be registered or removed after the large work.
    pub(crate) indexing: Option<Indexing>,
    pub(crate) missed: PendingChanges,
    /// The time at which the session left, if it left to handle a request.
    pub(crate) since: Option<u64>,
    /// Requests that arrived meanwhile. Their number is bounded by the inbox, because readers wait.
    pub(crate) waiting: VecDeque<Event>,
    /// The status of the session when it left.
    pub(crate) status: Vec<SubscriptionStatus>,
    /// Whether the stream has ended. The session is then removed when it is back.
    pub(crate) is_over: bool,
    /// Whether the session was to be polled meanwhile.
    pub(crate) is_poll_due: bool,
}

/// The changes for a session that is away.
#[derive(Debug)]
pub(crate) enum PendingChanges {
    Some(Vec<(TypeUrl, Option<ResourceName>)>),
    Anything,
}

/// Names to be removed from some scopes and registered under others, step by step.
#[derive(Debug)]
pub(crate) struct Indexing {
    pub(crate) interests: vec::IntoIter<Interest>,
    pub(crate) gone: Vec<ScopeName>,
    pub(crate) come: Vec<ScopeName>,
    pub(crate) then: After,
}

#[derive(Debug)]
pub(crate) enum After {
    Taken(Result<Receipt, ProtocolError>),
    Moved,
    Over(Option<ResumeState>),
}

impl PendingChanges {
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Some(missed) if missed.is_empty())
    }
}

impl Offloaded {
    /// Records a change for the time when the session is back.
    pub(crate) fn miss(&mut self, mark: Option<Mark<'_>>) {
        match (&mut self.missed, mark) {
            (PendingChanges::Some(missed), Some(mark)) if missed.len() < MISSED_MAX => {
                missed.push((mark.type_url.clone(), mark.name.cloned()));
            }
            (missed, _) => *missed = PendingChanges::Anything,
        }
    }

    /// Keeps a request for the time when the session is back.
    pub(crate) fn wait(&mut self, event: Event) {
        self.waiting.push_back(event);
    }

    pub(crate) fn end(&mut self) {
        self.is_over = true;
    }

    /// Returns whether the stream has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Requests a poll for the time when the session is back.
    pub(crate) fn poll_when_back(&mut self) {
        self.is_poll_due = true;
    }
}
