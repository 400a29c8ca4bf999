//! The effects of events on a session.

use chancery_protocol::{InterestChange, ResumeState};

use crate::{offload::work::Work, placement::placed::ScopeMove};

/// The effect of an event on the shard of a session. The session itself has handled the event.
#[derive(Debug)]
#[must_use = "the index, the queue and the timers follow a session only through its effects"]
pub(crate) enum Effect {
    /// Nothing follows.
    None,
    /// The session has handled a request that changed these interests, and may have something to send.
    Handled { interests: Vec<InterestChange> },
    /// The session has sent a response with `n_items` resources and removals.
    Sent { n_items: usize, schedule: Schedule },
    /// The session has nothing to send at the moment.
    Idle(Schedule),
    /// The session is to be handed over for work on `cost` names.
    Offload { work: Box<Work>, cost: usize },
    /// The session has moved to other scopes with these interests.
    Moved { interests: Vec<InterestChange>, scopes: ScopeMove },
    /// The stream has its end, so the session is to be removed.
    Ended,
    /// The session is to be removed, with its interests from the index.
    Remove { interests: Vec<InterestChange>, resume_state: Option<ResumeState> },
}

/// When and how a session is polled next without an event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schedule {
    /// Whether the session waits in the bulk lane.
    pub(crate) is_bulk: bool,
    /// The next deadline, in milliseconds; `None` if no deadline is pending.
    pub(crate) wake_at: Option<u64>,
}
