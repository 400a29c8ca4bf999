//! A shard: the one owner of its sessions, and the loop that drives them.
//!
//! Nothing is queued per session and no commit is queued at all. A shard looks at the newest state,
//! finds out what differs from the one it knew, and marks the sessions that care; a marked session is
//! asked for its next response when its transport can take one. Whatever happened in between is in
//! that one response (design 4.6).
//!
//! A turn is a bounded piece of work, after which other tasks run. What wakes the shard does not
//! matter: each turn looks at everything that may have changed.
//!
//! Rejected: a channel of commits per shard. It has to be bounded, and then either a slow shard
//! holds up the store, or commits are lost and the shard has to compare states after all.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use chancery_model::{Node, Revision, State};
use chancery_protocol::Request;
use chancery_view::{Differ, changed_collections};
use slab::Slab;
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc, oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    Config,
    commits::Commits,
    entry::Entry,
    index::{Index, Key},
    line::{Call, Line, Mailbox, Stopped},
    metrics::ShardMetrics,
    report::Page,
    status::{End, EndCode, StreamStatus, Unsettled},
    timers::Timers,
    views::Views,
};

/// What happens to a shard.
#[derive(Debug)]
pub(crate) enum Event {
    /// A client's message. The first one of a line makes its session.
    Request {
        /// Of which stream.
        line: Arc<Line>,
        /// What it says.
        request: Request,
        /// Who the client is; there in the first request, and when it has changed.
        node: Option<Arc<Node>>,
        /// What it takes of a bound of the transport's, until it has been handled.
        room: Option<OwnedSemaphorePermit>,
    },
    /// The client will send no more.
    HalfClose {
        /// On which stream.
        line: Arc<Line>,
    },
    /// Somebody wants to know how the streams stand.
    Status {
        /// The streams from this place on.
        from: usize,
        /// Gets a page of them.
        reply: oneshot::Sender<Page<StreamStatus>>,
    },
    /// Somebody wants to know who has not acknowledged a revision.
    Unsettled {
        /// The revision.
        revision: Revision,
        /// The streams from this place on.
        from: usize,
        /// Gets a page of them.
        reply: oneshot::Sender<Page<Unsettled>>,
    },
}

/// One reading of the clock, for a whole turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    pub(crate) instant: Instant,
    /// Since the start of the fan-out; what the protocol counts in.
    pub(crate) ms: u64,
}

/// How a shard goes on after a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    /// There is more to do at once.
    Again,
    /// Until something happens, or until the time.
    Wait(Option<u64>),
}

#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) config: Arc<Config>,
    pub(crate) protocol: Arc<chancery_protocol::Config>,
    pub(crate) differ: Arc<Differ>,
    pub(crate) views: Views,
    pub(crate) sessions: Slab<Entry>,
    pub(crate) index: Index,
    /// Sessions to be polled; each at most once, by [`Entry::queued`].
    pub(crate) queue: VecDeque<Key>,
    pub(crate) timers: Timers,
    pub(crate) commits: Commits,
    pub(crate) metrics: ShardMetrics,
    /// The place from which sessions are still to be given their scopes anew, after the assignments
    /// have changed.
    reassign_from: Option<usize>,
    called: Vec<Arc<Line>>,
}

/// Where a shard hears from.
#[derive(Debug)]
pub(crate) struct Inputs {
    /// From the streams' readers and from admin. Bounded: they wait when it is full.
    pub(crate) inbox: mpsc::Receiver<Event>,
    /// Calls of the streams' writers.
    pub(crate) mailbox: Arc<Mailbox>,
    /// The newest state; when its sender is gone the store has stopped, and the last state stays.
    pub(crate) state: watch::Receiver<Arc<State>>,
    /// The time at which the protocol's clock is 0.
    pub(crate) start: Instant,
}

// === impl Shard ===

impl Shard {
    pub(crate) fn new(
        config: Arc<Config>,
        state: Arc<State>,
        differ: Arc<Differ>,
        n: usize,
    ) -> Self {
        Self {
            protocol: Arc::new(config.session.clone()),
            config,
            differ,
            views: Views::new(state),
            sessions: Slab::new(),
            index: Index::default(),
            queue: VecDeque::new(),
            timers: Timers::default(),
            commits: Commits::default(),
            metrics: ShardMetrics::new(n),
            reassign_from: None,
            called: Vec::new(),
        }
    }

    /// Takes turns until it is canceled or nobody is left who could send an event.
    pub(crate) async fn run(mut self, mut inputs: Inputs, cancel: CancellationToken) {
        let most = self.config.turn_work_max;
        let mut events = Vec::with_capacity(most);
        let mut store_runs = true;
        let mut flow = Flow::Again;
        let mut canceled = std::pin::pin!(cancel.cancelled());
        let mut sleep = std::pin::pin!(tokio::time::sleep_until(inputs.start));
        loop {
            match flow {
                Flow::Again => tokio::task::yield_now().await,
                Flow::Wait(at) => {
                    if let Some(at) = at.map(|ms| inputs.start + Duration::from_millis(ms))
                        && at != sleep.deadline()
                    {
                        sleep.as_mut().reset(at);
                    }
                    tokio::select! {
                        biased;
                        () = &mut canceled => return,
                        n = inputs.inbox.recv_many(&mut events, most) => if n == 0 { return },
                        () = inputs.mailbox.notify.notified() => {}
                        changed = inputs.state.changed(), if store_runs => store_runs = changed.is_ok(),
                        () = &mut sleep, if at.is_some() => {}
                    }
                }
            }
            if cancel.is_cancelled() {
                return;
            }
            let started = Instant::now();
            let now = inputs.now(started);
            let state = Arc::clone(&inputs.state.borrow_and_update());
            self.on_state(state, now);
            while events.len() < most
                && let Ok(event) = inputs.inbox.try_recv()
            {
                events.push(event);
            }
            let more = events.len() == most;
            for event in events.drain(..) {
                self.handle(event, now);
            }
            self.on_calls(&inputs.mailbox);
            flow = match self.turn(now) {
                Flow::Wait(_) if more => Flow::Again,
                flow => flow,
            };
            self.metrics.turn_seconds.record(started.elapsed().as_secs_f64());
        }
    }

    /// Handles one event. Decides and never waits; this is what tests call.
    pub(crate) fn handle(&mut self, event: Event, now: Now) {
        match event {
            Event::Request { line, request, node, room } => {
                self.on_request(&line, request, node, now);
                drop(room);
            }
            Event::HalfClose { line } => self.on_half_close(&line),
            // Who asked may have gone away.
            Event::Status { from, reply } => drop(reply.send(self.status_page(from))),
            Event::Unsettled { revision, from, reply } => {
                drop(reply.send(self.unsettled_page(revision, from)));
            }
        }
    }

    /// Compares the newest state with the one known so far, and marks the sessions that care:
    /// O(changes + sessions that care).
    pub(crate) fn on_state(&mut self, state: Arc<State>, now: Now) {
        if Arc::ptr_eq(&state, self.views.state()) {
            return;
        }
        let old = self.views.advance(state);
        let new = Arc::clone(self.views.state());
        self.commits.note(new.revision, now.instant);
        if old.assignments.changed != new.assignments.changed {
            self.reassign_from = Some(0);
        }
        if old.incarnation != new.incarnation || old.revision > new.revision {
            // Another history: nothing that was known of the old one says what changed.
            for (_, entry) in &mut self.sessions {
                entry.session.on_new_view();
            }
            let all: Vec<usize> = self.sessions.iter().map(|(key, _)| key).collect();
            all.into_iter().for_each(|key| self.enqueue(key));
            return;
        }
        let Self { index, sessions, queue, .. } = self;
        for delta in changed_collections(&self.differ, &old, &new) {
            let type_url = delta.type_url();
            index.interested(delta.scope(), type_url, delta.names(), |key, name| {
                if let Some(entry) = sessions.get_mut(place(key)) {
                    entry.session.on_change(type_url, name);
                    if !std::mem::replace(&mut entry.queued, true) {
                        queue.push_back(key);
                    }
                }
            });
        }
    }

    /// Answers the lines that called.
    pub(crate) fn on_calls(&mut self, mailbox: &Mailbox) {
        let mut called = std::mem::take(&mut self.called);
        mailbox.take(&mut called);
        for line in called.drain(..) {
            match line.answer() {
                Call::Closed(end) => {
                    self.metrics.on_end(end);
                    if let Some(key) = line.key() {
                        self.forget(key);
                    }
                }
                Call::Hungry => {
                    if let Some(key) = line.key() {
                        self.enqueue(place(key));
                    }
                }
            }
        }
        self.called = called;
    }

    /// Does a bounded part of what there is to do.
    pub(crate) fn turn(&mut self, now: Now) -> Flow {
        let most = self.config.turn_work_max;
        self.reassign_some(most);
        for _ in 0..most {
            let Some((at, key)) = self.timers.due(now.ms) else { break };
            if let Some(entry) = self.sessions.get_mut(place(key))
                && entry.wake_at == Some(at)
            {
                entry.wake_at = None;
                self.enqueue(place(key));
            }
        }
        for _ in 0..most {
            let Some(key) = self.queue.pop_front() else { break };
            if let Some(entry) = self.sessions.get_mut(place(key))
                && std::mem::take(&mut entry.queued)
            {
                self.poll_session(place(key), now);
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "a gauge, and no queue is that long")]
        self.metrics.pending.set(self.queue.len() as f64);
        let next = self.timers.next();
        let due = next.is_some_and(|at| at <= now.ms);
        match self.queue.is_empty() && self.reassign_from.is_none() && !due {
            true => Flow::Wait(next),
            false => Flow::Again,
        }
    }

    /// Puts a session into the queue of those to be polled.
    pub(crate) fn enqueue(&mut self, place: usize) {
        if let Some(entry) = self.sessions.get_mut(place)
            && !std::mem::replace(&mut entry.queued, true)
        {
            self.queue.push_back(key(place));
        }
    }

    /// Gives the scopes anew to some of the sessions. A session that is polled before its turn is
    /// looked at then, so none is ever served under old assignments.
    fn reassign_some(&mut self, most: usize) {
        let Some(from) = self.reassign_from else { return };
        let to = (from + most).min(self.sessions.capacity());
        for place in from..to {
            if self.sessions.contains(place) {
                self.reassign(place);
            }
        }
        self.reassign_from = (to < self.sessions.capacity()).then_some(to);
    }
}

/// However a shard ends, its clients go to another replica: a stream that nobody serves would keep
/// them here with what they have.
impl Drop for Shard {
    fn drop(&mut self) {
        for (_, entry) in &self.sessions {
            entry.line.end(End::new(EndCode::Unavailable, Stopped.to_string()));
        }
    }
}

// === impl Inputs ===

impl Inputs {
    fn now(&self, instant: Instant) -> Now {
        Now::since(self.start, instant)
    }
}

impl Now {
    pub(crate) fn since(start: Instant, instant: Instant) -> Self {
        let ms = instant.saturating_duration_since(start).as_millis();
        Self { instant, ms: u64::try_from(ms).unwrap_or(u64::MAX) }
    }
}

/// A key as a place in the slab.
pub(crate) fn place(key: Key) -> usize {
    usize::try_from(key).unwrap_or(usize::MAX)
}

/// A place in the slab as a key. There are fewer than 2³² streams: `streams_max` is checked.
pub(crate) fn key(place: usize) -> Key {
    Key::try_from(place).unwrap_or(Key::MAX)
}

/// Number of open streams, of all shards.
pub(crate) type Streams = Arc<AtomicUsize>;

#[cfg(test)]
mod tests;
