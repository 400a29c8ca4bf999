//! A shard: the one owner of its sessions, and the loop that drives them.
//!
//! Nothing is queued per session and no commit is queued at all. A shard looks at the newest state,
//! finds out what differs from the one it knew, and marks the sessions that care ([`Marking`]); a marked
//! session is asked for its next response when its transport can take one. Whatever happened in between
//! is in that one response (design 4.6).
//!
//! A turn is a bounded piece of work, after which other tasks run: so many steps of each kind
//! (`turn_work_max`), where a step with many names or resources counts as several. What wakes the shard
//! does not matter: each turn looks at everything that may have changed.
//!
//! Work is of two classes ([`Lane`]). Commits, requests and polls of established sessions, and questions of
//! admin go first. New and resuming streams, large requests and responses, and the freeing of streams that
//! have ended are bulk. Each turn does one kind of bulk ([`Bulk`]) within a small budget
//! ([`Budget::of_bulk`]): a storm makes the turns of the others longer by that budget, and is never starved by
//! them.
//!
//! Rejected: a channel of commits per shard. It has to be bounded, and then either a slow shard
//! holds up the store, or commits are lost and the shard has to compare states after all.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use chancery_model::{Revision, State};
use chancery_view::{Differ, changed_collections};
use slab::Slab;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    Config,
    arrivals::Arrivals,
    budget::{Budget, cost_of},
    departed::Departed,
    entry::{Entry, SinceSent},
    event::{Event, Events, Sent},
    index::{Index, Key},
    large::LargeWork,
    line::{Call, Line, Mailbox, Stopped},
    marking::{MARKS_PER_STEP, Marking, Told},
    memory::SubscriptionMemory,
    metrics::{ShardMetrics, Suppressed, gauge_value},
    queue::{Lane, Queue},
    said::Sparing,
    silence::Silence,
    status::{End, EndCode},
    timers::Timers,
    views::Views,
};

/// Calls of transports that are sorted for the price of one session that is polled.
const CALLS_PER_STEP: usize = 8;

/// What sessions that are gone may leave in a queue, besides as much as there are sessions.
const LEFT_OVER_MAX: usize = 1024;

/// One reading of the clock, for a whole turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    pub(crate) instant: Instant,
    /// Since the start of the fan-out; what the protocol counts in.
    pub(crate) ms: u64,
}

/// The kinds of bulk work, of which each turn does one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bulk {
    /// Requests of new streams, and large requests.
    Events,
    /// Polls of new streams, and of those that have much to send.
    Polls,
    /// Frees streams that have ended.
    Ends,
}

/// The order of the kinds. A client that comes back finds what it was left with once its old stream is freed, so
/// ends have twice as many turns as new streams.
const BULK_ORDER: [Bulk; 4] = [Bulk::Events, Bulk::Ends, Bulk::Polls, Bulk::Ends];

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
    /// Sessions to be polled.
    pub(crate) queue: Queue,
    /// The step to the present state, until all who care have been told.
    pub(crate) marking: Option<Marking>,
    /// Number of the present step, or of the last one.
    pub(crate) step: u64,
    pub(crate) timers: Timers,
    /// When sessions will be overdue; of each one entry at most, for that time only moves later.
    pub(crate) closing: Timers,
    pub(crate) silence: Silence,
    arrivals: Arc<Arrivals>,
    /// What clients were left with whose streams have ended, on any shard.
    pub(crate) departed: Arc<Departed>,
    pub(crate) metrics: ShardMetrics,
    /// Lines about rejections, and about clients that do not answer.
    pub(crate) rejections_said: Sparing,
    pub(crate) silence_said: Sparing,
    /// The place from which sessions are still to be given their scopes anew, after the assignments
    /// have changed.
    reassign_from: Option<usize>,
    /// Lines that called and have not been answered.
    called: VecDeque<Arc<Line>>,
    /// Sessions whose names are being registered, or forgotten.
    pub(crate) indexing: VecDeque<Key>,
    pub(crate) large: LargeWork,
    pub(crate) memory: Arc<SubscriptionMemory>,
    /// Lines whose sessions are to be freed, and the reason why each called.
    leaving: VecDeque<(Arc<Line>, Call)>,
    /// The kind of bulk that this turn does; `None` if no bulk waited when it began.
    bulk: Option<Bulk>,
    /// The place in [`BULK_ORDER`] from which the next turn chooses.
    bulk_from: usize,
}

/// Where a shard hears from.
#[derive(Debug)]
pub(crate) struct Inputs {
    /// From the readers of established streams and from admin. Bounded: they wait when it is full.
    pub(crate) inbox: mpsc::Receiver<Sent>,
    /// From the readers of new streams, and large requests. Bounded in the same way.
    pub(crate) bulk_inbox: mpsc::Receiver<Sent>,
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
        arrivals: Arc<Arrivals>,
        departed: Arc<Departed>,
        n: usize,
    ) -> Self {
        Self {
            protocol: Arc::new(config.session.clone()),
            memory: SubscriptionMemory::new(config.subscriptions_bytes_max),
            config,
            differ,
            views: Views::new(state),
            sessions: Slab::new(),
            index: Index::default(),
            queue: Queue::default(),
            marking: None,
            step: 0,
            timers: Timers::default(),
            closing: Timers::default(),
            silence: Silence::default(),
            arrivals,
            departed,
            metrics: ShardMetrics::new(n),
            rejections_said: Sparing::default(),
            silence_said: Sparing::default(),
            reassign_from: None,
            called: VecDeque::new(),
            indexing: VecDeque::new(),
            large: LargeWork::default(),
            leaving: VecDeque::new(),
            bulk: None,
            bulk_from: 0,
        }
    }

    /// The shard, with what all shards of a replica share.
    pub(crate) fn sharing(mut self, large: LargeWork, memory: Arc<SubscriptionMemory>) -> Self {
        (self.large, self.memory) = (large, memory);
        self
    }

    /// Takes turns until it is canceled or nobody is left who could send an event.
    pub(crate) async fn run(mut self, mut inputs: Inputs, cancel: CancellationToken) {
        let most = self.config.turn_work_max;
        let mut events = Events::default();
        let mut store_runs = true;
        let mut flow = Flow::Again;
        // While a client owes an answer, for how long is told every second.
        let mut tick = None;
        let mut canceled = std::pin::pin!(cancel.cancelled());
        let mut sleep = std::pin::pin!(tokio::time::sleep_until(inputs.start));
        loop {
            match flow {
                Flow::Again => tokio::task::yield_now().await,
                Flow::Wait(at) => {
                    let at = at.into_iter().chain(tick).min();
                    if let Some(at) = at.map(|ms| inputs.start + Duration::from_millis(ms))
                        && at != sleep.deadline()
                    {
                        sleep.as_mut().reset(at);
                    }
                    tokio::select! {
                        biased;
                        () = &mut canceled => return,
                        event = inputs.inbox.recv() => match event {
                            Some(event) => events.updates.push_back(event),
                            None => return,
                        },
                        event = inputs.bulk_inbox.recv() => match event {
                            Some(event) => events.bulk.push_back(event),
                            None => return,
                        },
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
            fill(&mut events.updates, &mut inputs.inbox, most);
            fill(&mut events.bulk, &mut inputs.bulk_inbox, most);
            // After the events: one that was sent because a state had been published is handled with it.
            let state = Arc::clone(&inputs.state.borrow_and_update());
            self.on_state(&state, now);
            let full = events.updates.len() == most || events.bulk.len() == most;
            self.on_events(&mut events, now);
            self.on_calls(&inputs.mailbox, now);
            self.on_back(&inputs.mailbox, now);
            let waiting = inputs.mailbox.has_back();
            flow = match self.turn(now) {
                Flow::Wait(_) if full || waiting || !events.is_empty() => Flow::Again,
                flow => flow,
            };
            tick = self.silence.next_tick(now.ms);
            self.metrics.turn_seconds.record(started.elapsed().as_secs_f64());
        }
    }

    /// Handles as many events as fit into a turn; the others stay.
    pub(crate) fn on_events(&mut self, events: &mut Events, now: Now) {
        self.choose_bulk(events);
        let most = self.config.turn_work_max;
        self.on_lane(&mut events.updates, Lane::Updates, Budget::new(most), now);
        self.on_lane(&mut events.bulk, Lane::Bulk, self.bulk_budget(Bulk::Events), now);
    }

    /// Chooses the kind of bulk for a turn: the next one in order that has work.
    fn choose_bulk(&mut self, events: &Events) {
        let has_work = |kind| match kind {
            Bulk::Events => !events.bulk.is_empty(),
            Bulk::Polls => self.queue.has_bulk(),
            Bulk::Ends => !self.leaving.is_empty(),
        };
        let mut places = (self.bulk_from..).take(BULK_ORDER.len()).map(|at| at % BULK_ORDER.len());
        let place = places.find(|place| has_work(BULK_ORDER[*place]));
        self.bulk = place.map(|place| BULK_ORDER[place]);
        self.bulk_from = place.map_or(0, |place| place + 1);
    }

    /// The budget of a kind of bulk in this turn: nothing if the turn does another kind.
    fn bulk_budget(&self, kind: Bulk) -> Budget {
        match self.bulk {
            Some(other) if other != kind => Budget::new(0),
            Some(_) | None => Budget::of_bulk(self.config.turn_work_max),
        }
    }

    fn on_lane(&mut self, events: &mut VecDeque<Sent>, lane: Lane, mut budget: Budget, now: Now) {
        if let Some(Sent { at, .. }) = events.front() {
            let waited = now.instant.saturating_duration_since(*at);
            self.metrics.inbox_wait_seconds(lane).record(waited.as_secs_f64());
        }
        while !budget.is_spent()
            && let Some(Sent { event, .. }) = events.pop_front()
        {
            budget.spend(event.cost(self.config.turn_work_max));
            let line = event.line().map(Arc::clone);
            self.handle(event, now);
            if let Some(line) = line {
                line.on_handled();
            }
        }
    }

    /// Handles one event. Decides and never waits; this is what tests call.
    pub(crate) fn handle(&mut self, event: Event, now: Now) {
        match event {
            Event::Request { line, request, node, room } => {
                self.on_request(&line, request, node, room, now);
            }
            Event::HalfClose { line } => self.on_half_close(&line, now),
            // Who asked may have gone away.
            Event::Status { from, reply } => drop(reply.send(self.status_page(from))),
            Event::Concerned { change, from, reply } => {
                drop(reply.send(self.concerned_page(&change, from, now)));
            }
        }
    }

    /// Takes over the newest state and begins to tell the sessions that care what differs from the one
    /// known so far: O(changes + sessions that care), in bounded steps. While it is telling them of one
    /// state it does not look at the next.
    pub(crate) fn on_state(&mut self, newest: &Arc<State>, now: Now) {
        if self.marking.is_some() || Arc::ptr_eq(newest, self.views.state()) {
            return;
        }
        let old = self.views.advance(Arc::clone(newest));
        self.departed.forget_old(now.instant);
        // It may be here before it was noted.
        let arrived = self.arrivals.first_after(old.revision).unwrap_or(now.instant);
        if old.assignments.changed != newest.assignments.changed {
            self.reassign_from = Some(0);
        }
        let is_another = old.incarnation != newest.incarnation || old.revision > newest.revision;
        self.marking = Some(match is_another {
            true => Marking::of_anything(self.sessions.capacity(), old.revision, arrived),
            false => {
                let changes = changed_collections(&self.differ, &old, newest);
                Marking::of(changes, old.revision, arrived)
            }
        });
        self.step += 1;
        self.mark_some(now);
    }

    /// Tells some of the sessions that care what has changed.
    fn mark_some(&mut self, now: Now) {
        let Some(mut marking) = self.marking.take() else { return };
        let mut budget = Budget::new(self.config.turn_work_max.saturating_mul(MARKS_PER_STEP));
        let Self { index, sessions, queue, step, metrics, .. } = self;
        let arrived = marking.arrived;
        let is_done = marking.advance(index, &mut budget, |key, told: Option<Told<'_>>| {
            let Some(entry) = sessions.get_mut(place(key)) else { return };
            // It was told everything when it was polled.
            if entry.told == *step {
                return;
            }
            if let Some(away) = &mut entry.away {
                away.miss(told);
                return;
            }
            if std::mem::replace(&mut entry.touched, *step) != *step {
                entry.since_sent = SinceSent::Told;
                if told.is_some_and(|told| entry.session.has_work_of(told.type_url)) {
                    metrics.on_suppressed(Suppressed::Folded);
                }
            }
            match told {
                Some(Told { type_url, type_place, name }) => {
                    entry.session.on_change(type_url, name);
                    entry.changes.owe(type_place, arrived);
                }
                None => entry.session.on_new_view(),
            }
            if entry.queued.is_none() {
                entry.queued = Some(now.instant);
                queue.push(key, entry.lane);
            }
        });
        if is_done {
            let passed = now.instant.saturating_duration_since(marking.arrived);
            self.metrics.commit_seconds.record(passed.as_secs_f64());
        } else {
            self.marking = Some(marking);
        }
    }

    /// The revision up to which every session has been told what has changed.
    pub(crate) fn told_revision(&self) -> Revision {
        match &self.marking {
            Some(marking) => marking.from,
            None => self.views.state().revision,
        }
    }

    /// Answers some of the lines that called. Those that leave are put aside: freeing their sessions may
    /// take long, and nobody waits for it.
    pub(crate) fn on_calls(&mut self, mailbox: &Mailbox, now: Now) {
        if self.called.is_empty() {
            mailbox.swap(&mut self.called);
        }
        let mut budget = Budget::new(self.config.turn_work_max.saturating_mul(CALLS_PER_STEP));
        while !budget.is_spent()
            && let Some(line) = self.called.pop_front()
        {
            budget.spend(1);
            match line.answer() {
                call @ (Call::Closed(_) | Call::Ending(_)) => self.leaving.push_back((line, call)),
                Call::Hungry => {
                    if let Some(key) = line.key() {
                        self.enqueue(place(key), now);
                    }
                }
            }
        }
        self.free_some(now);
    }

    /// Frees the sessions of some of the lines that leave.
    fn free_some(&mut self, now: Now) {
        let mut budget = self.bulk_budget(Bulk::Ends);
        while !budget.is_spent()
            && let Some((line, call)) = self.leaving.pop_front()
        {
            let freed = line.key().map_or(0, |key| self.forget(key, now));
            budget.spend(cost_of(freed));
            match call {
                Call::Closed(end) => self.metrics.on_end(end),
                Call::Ending(end) => line.end(end),
                Call::Hungry => {}
            }
        }
    }

    /// Does a bounded part of what there is to do.
    pub(crate) fn turn(&mut self, now: Now) -> Flow {
        // When all have been told of this state there may be a newer one.
        let was_marking = self.marking.is_some();
        self.mark_some(now);
        self.reassign_some(now);
        self.index_some(now);
        for _ in 0..self.config.turn_work_max {
            let Some((at, key)) = self.timers.due(now.ms) else { break };
            if let Some(entry) = self.sessions.get_mut(place(key))
                && entry.wake_at == Some(at)
            {
                entry.wake_at = None;
                self.enqueue(place(key), now);
            }
        }
        for _ in 0..self.config.turn_work_max {
            let Some((at, key)) = self.closing.due(now.ms) else { break };
            if let Some(entry) = self.sessions.get_mut(place(key))
                && entry.close_at == Some(at)
            {
                entry.close_at = None;
                self.close_if_overdue(place(key), now);
            }
        }
        self.poll_some(now);
        self.tidy();
        self.measure(now);
        let next = self.timers.next().into_iter().chain(self.closing.next()).min();
        let is_due = next.is_some_and(|at| at <= now.ms);
        let waiting = was_marking
            || self.reassign_from.is_some()
            || !self.called.is_empty()
            || !self.indexing.is_empty()
            || !self.leaving.is_empty();
        match self.queue.is_empty() && !waiting && !is_due {
            true => Flow::Wait(next),
            false => Flow::Again,
        }
    }

    /// Polls some of the sessions that wait for it, those in the lane for updates first.
    fn poll_some(&mut self, now: Now) {
        let most = self.config.turn_work_max;
        self.poll_lane(Lane::Updates, Budget::new(most), now);
        self.poll_lane(Lane::Bulk, self.bulk_budget(Bulk::Polls), now);
    }

    fn poll_lane(&mut self, lane: Lane, mut budget: Budget, now: Now) {
        let mut is_measured = false;
        while !budget.is_spent()
            && let Some(key) = self.queue.pop(lane)
        {
            let mut cost = 1;
            if let Some(entry) = self.sessions.get_mut(place(key))
                && let Some(since) = entry.queued.take()
            {
                // The first of a lane has waited the longest.
                if !std::mem::replace(&mut is_measured, true) {
                    let waited = now.instant.saturating_duration_since(since);
                    self.metrics.queue_wait_seconds(lane).record(waited.as_secs_f64());
                }
                cost = self.poll_session(place(key), now);
            }
            budget.spend(cost);
        }
    }

    /// Drops what sessions that are gone have left in queues, when it is more than what there is of
    /// others: O(1) per session that goes.
    fn tidy(&mut self) {
        let Self { sessions, queue, timers, closing, .. } = self;
        let most = 2 * sessions.len() + LEFT_OVER_MAX;
        if queue.len() > most {
            queue
                .retain(|key| sessions.get(place(key)).is_some_and(|entry| entry.queued.is_some()));
        }
        if timers.len() > most {
            timers.retain(|at, key| {
                sessions.get(place(key)).is_some_and(|entry| entry.wake_at == Some(at))
            });
        }
        if closing.len() > most {
            closing.retain(|at, key| {
                sessions.get(place(key)).is_some_and(|entry| entry.close_at == Some(at))
            });
        }
    }

    /// Tells how the shard stands.
    fn measure(&self, now: Now) {
        let oldest = self.silence.oldest(now.ms).unwrap_or(0);
        self.metrics.unanswered.set(gauge_value(usize::try_from(oldest).unwrap_or(usize::MAX)));
        self.metrics.pending.set(gauge_value(self.queue.len()));
        self.metrics.set_index(self.index.size());
    }

    /// Puts a session into the queue of those to be polled.
    pub(crate) fn enqueue(&mut self, place: usize, now: Now) {
        if let Some(entry) = self.sessions.get_mut(place)
            && entry.queued.is_none()
        {
            entry.queued = Some(now.instant);
            self.queue.push(key(place), entry.lane);
        }
    }

    /// Gives the scopes anew to some of the sessions. A session that is polled before its turn is
    /// looked at then, so none is ever served under old assignments.
    fn reassign_some(&mut self, now: Now) {
        let Some(mut at) = self.reassign_from else { return };
        let mut budget = Budget::new(self.config.turn_work_max);
        while at < self.sessions.capacity() && !budget.is_spent() {
            budget.spend(cost_of(self.reassign(at, now)));
            at += 1;
        }
        self.reassign_from = (at < self.sessions.capacity()).then_some(at);
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
    /// The protocol's time in milliseconds at a later instant.
    pub(crate) fn ms_at(self, later: Instant) -> u64 {
        let passed = later.saturating_duration_since(self.instant).as_millis();
        self.ms.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX))
    }

    pub(crate) fn since(start: Instant, instant: Instant) -> Self {
        let ms = instant.saturating_duration_since(start).as_millis();
        Self { instant, ms: u64::try_from(ms).unwrap_or(u64::MAX) }
    }
}

/// Takes events from an inbox until there are `most`.
fn fill(events: &mut VecDeque<Sent>, inbox: &mut mpsc::Receiver<Sent>, most: usize) {
    while events.len() < most
        && let Ok(event) = inbox.try_recv()
    {
        events.push_back(event);
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
