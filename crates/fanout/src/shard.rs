//! A shard: the only owner of its sessions, and the loop that drives them.
//!
//! There is no queue per session, and no queue of commits. A shard compares the newest state with the
//! previous one, and marks the affected sessions ([`Marking`]). It polls a marked session for its next
//! response when the transport can take one. That response has all changes that happened meanwhile.
//!
//! A turn is a bounded piece of work, after which other tasks run: at most `turn_work_max` steps of
//! each kind. A step with many names or resources counts as several. The cause of a wake-up does not
//! matter: each turn checks everything that may have changed.
//!
//! There are two classes of work ([`Lane`]). Commits, requests and polls of established sessions, and
//! queries of the admin API go first. New and resuming streams, large requests and responses, and the
//! removal of ended streams are bulk. Each turn does one kind of bulk work ([`Bulk`]) within a small
//! budget ([`Budget::of_bulk`]). Bulk work therefore lengthens a turn by at most that budget, and
//! always progresses.
//!
//! Rejected: a channel of commits per shard. It has to be bounded. Then either a slow shard delays the
//! store, or commits are lost and the shard has to compare states anyway.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use chancery_model::{Revision, ScopeName, State};
use chancery_view::{Differ, changed_collections_of};
use slab::Slab;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::{
    Config,
    log_limit::{RateLimitedLog, RefusalLog},
    messages::event::{Event, Events, Sent},
    messages::status::{End, EndCode},
    metrics::{ShardMetrics, Suppressed, gauge_value},
    offload::large::LargeWork,
    placement::access::IdentityStreams,
    placement::access_changes::AccessChanges,
    placement::resume_cache::ResumeCache,
    placement::views::Views,
    replica::arrivals::Arrivals,
    replica::contact::Contact,
    sessions::entry::{Entry, SinceSent},
    sessions::index::{Index, Key, key, place},
    sessions::marking::{MARKS_PER_STEP, Mark, Marking},
    sessions::queue::{Lane, Queue},
    sessions::timers::Timers,
    sessions::unanswered::UnansweredClients,
    stream::handles::Stopped,
    stream::memory::SubscriptionMemory,
    stream::slot::{Call, ReadyList, StreamSlot},
    turn::budget::{Budget, cost_of},
    turn::clock::Now,
};

/// The number of calls from transports that the shard handles for the cost of one poll.
const CALLS_PER_STEP: usize = 8;

/// The number of entries of ended sessions that may stay in a queue, in addition to twice the number of
/// sessions.
const LEFT_OVER_MAX: usize = 1024;

/// The kinds of bulk work. Each turn does one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bulk {
    /// Requests of new streams, and large requests.
    Events,
    /// Polls of new streams, and of streams with much to send.
    Polls,
    /// Removal of ended streams.
    Ends,
}

/// The order of the kinds. A client that reconnects finds its resume data once its old stream is
/// removed, so removals have twice as many turns as requests or polls.
const BULK_ORDER: [Bulk; 4] = [Bulk::Events, Bulk::Ends, Bulk::Polls, Bulk::Ends];

/// The next action of a shard after a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Runs another turn: there is more to do.
    Again,
    /// Waits for an event, or until the time in milliseconds.
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
    /// The sessions to be polled.
    pub(crate) queue: Queue,
    /// The marking for the latest state change; `None` once all affected sessions are marked.
    pub(crate) marking: Option<Marking>,
    /// The number of the latest state change that the shard has taken.
    pub(crate) step: u64,
    pub(crate) timers: Timers,
    /// The times at which clients become overdue. Each session has at most one entry, which may be too
    /// early: the time only moves later, and the shard checks it again.
    pub(crate) closing: Timers,
    pub(crate) unanswered: UnansweredClients,
    arrivals: Arc<Arrivals>,
    /// The resume data of ended streams of all shards.
    pub(crate) resume_cache: Arc<ResumeCache>,
    pub(crate) metrics: ShardMetrics,
    /// The limits for log lines about rejections, clients that do not answer, and clients without access.
    pub(crate) rejection_log: RateLimitedLog,
    pub(crate) silence_log: RateLimitedLog,
    pub(crate) refusal_log: Arc<RefusalLog>,
    /// The streams of identities whose access rule limits them, of all shards.
    pub(crate) identity_streams: IdentityStreams,
    /// The slab index of the next session to reassign after a change of the assignments or access rules.
    pub(crate) reassign_from: Option<usize>,
    /// The first revision that may contain such a change, while sessions remain to be reassigned.
    pub(crate) reassign_since: Revision,
    /// The changes of the access rules that caused this; `None` if the assignments changed, too.
    pub(crate) access_changes: Option<AccessChanges>,
    /// The sessions that are not indexed under their new scopes yet, by the revision of the
    /// assignments that may have moved them.
    moving: BTreeSet<(Revision, Key)>,
    /// Streams with a call that the shard has not handled yet.
    called: VecDeque<Arc<StreamSlot>>,
    /// Sessions whose names are being registered or removed.
    pub(crate) indexing: VecDeque<Key>,
    pub(crate) large: LargeWork,
    pub(crate) memory: Arc<SubscriptionMemory>,
    pub(crate) contact: Arc<Contact>,
    /// Streams whose sessions are to be removed, each with its call.
    leaving: VecDeque<(Arc<StreamSlot>, Call)>,
    /// The kind of bulk work of this turn; `None` if no bulk work waited when it started.
    bulk: Option<Bulk>,
    /// The place in [`BULK_ORDER`] from which the next turn chooses.
    bulk_from: usize,
}

/// The inputs of a shard.
#[derive(Debug)]
pub(crate) struct Inputs {
    /// Dropped before the inboxes, so that nobody takes a question that they drop for one that a shutdown drops.
    pub(crate) _end: ShardEnd,
    /// Events from the readers of established streams and from the admin API. Bounded: senders wait
    /// while it is full.
    pub(crate) inbox: mpsc::Receiver<Sent>,
    /// Events from the readers of new streams, and large requests. Bounded in the same way.
    pub(crate) bulk_inbox: mpsc::Receiver<Sent>,
    /// Calls of the streams' transports.
    pub(crate) ready_list: Arc<ReadyList>,
    /// The newest state. When its sender is gone, the store has stopped and the last state stays.
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
        resume_cache: Arc<ResumeCache>,
        n: usize,
    ) -> Self {
        Self {
            protocol: Arc::new(config.session.clone()),
            memory: SubscriptionMemory::new(config.subscriptions_bytes_max),
            contact: Arc::new(Contact::new(config.renewals_stop_after)),
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
            unanswered: UnansweredClients::default(),
            arrivals,
            resume_cache,
            metrics: ShardMetrics::new(n),
            rejection_log: RateLimitedLog::default(),
            silence_log: RateLimitedLog::default(),
            refusal_log: Arc::new(RefusalLog::new()),
            identity_streams: IdentityStreams::default(),
            reassign_from: None,
            reassign_since: Revision(0),
            access_changes: None,
            moving: BTreeSet::new(),
            called: VecDeque::new(),
            indexing: VecDeque::new(),
            large: LargeWork::default(),
            leaving: VecDeque::new(),
            bulk: None,
            bulk_from: 0,
        }
    }

    /// Sets the parts that all shards of a replica share.
    pub(crate) fn sharing(
        mut self,
        large: LargeWork,
        memory: Arc<SubscriptionMemory>,
        contact: Arc<Contact>,
        identity_streams: IdentityStreams,
        refusal_log: Arc<RefusalLog>,
    ) -> Self {
        (self.large, self.memory, self.contact) = (large, memory, contact);
        (self.identity_streams, self.refusal_log) = (identity_streams, refusal_log);
        self
    }

    /// Runs turns until the shard is canceled or all senders of events are gone.
    pub(crate) async fn run(mut self, mut inputs: Inputs, cancel: CancellationToken) {
        let most = self.config.turn_work_max;
        let mut events = Events::default();
        let mut store_runs = true;
        let mut flow = Flow::Again;
        // The next full second, at which the shard updates the metric of silent clients.
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
                        () = inputs.ready_list.notify.notified() => {}
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
            // Read after the events, so that an event that was sent after a state was published sees
            // that state.
            let state = Arc::clone(&inputs.state.borrow_and_update());
            self.on_state(&state, now);
            let full = events.updates.len() == most || events.bulk.len() == most;
            self.on_events(&mut events, now);
            self.on_calls(&inputs.ready_list, now);
            self.on_back(&inputs.ready_list, now);
            let waiting = inputs.ready_list.has_back();
            flow = match self.turn(now) {
                Flow::Wait(_) if full || waiting || !events.is_empty() => Flow::Again,
                flow => flow,
            };
            inputs.ready_list.turns.on_end();
            tick = self.unanswered.next_tick(now.ms);
            self.metrics.turn_seconds.record(started.elapsed().as_secs_f64());
        }
    }

    /// Handles as many events as fit into a turn. The rest stays.
    pub(crate) fn on_events(&mut self, events: &mut Events, now: Now) {
        self.choose_bulk(events);
        let most = self.config.turn_work_max;
        self.on_lane(&mut events.updates, Lane::Updates, Budget::new(most), now);
        self.on_lane(&mut events.bulk, Lane::Bulk, self.bulk_budget(Bulk::Events), now);
    }

    /// Chooses the kind of bulk work for a turn: the next one in order that has work.
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

    /// Returns the budget for a kind of bulk work in this turn. It is 0 if the turn does another
    /// kind.
    fn bulk_budget(&self, kind: Bulk) -> Budget {
        match self.bulk {
            Some(other) if other != kind => Budget::new(0),
            Some(_) | None => Budget::of_bulk(self.config.turn_work_max),
        }
    }

    fn on_lane(&mut self, events: &mut VecDeque<Sent>, lane: Lane, mut budget: Budget, now: Now) {
        // Queries of the admin API would hide that requests wait.
        if let Some(Sent { at, .. }) = events.iter().find(|sent| sent.event.slot().is_some()) {
            let waited = now.instant.saturating_duration_since(*at);
            self.metrics.inbox_wait_seconds(lane).record(waited.as_secs_f64());
        }
        while !budget.is_spent()
            && let Some(Sent { event, .. }) = events.pop_front()
        {
            budget.spend(event.cost(self.config.turn_work_max) + event.cost_of_text());
            let slot = event.slot().map(Arc::clone);
            self.handle(event, now);
            if let Some(slot) = slot {
                slot.on_handled();
            }
        }
    }

    /// Handles one event without waiting. Tests call it directly.
    pub(crate) fn handle(&mut self, event: Event, now: Now) {
        match event {
            Event::Request { slot, request, node, permit } => {
                self.on_request(&slot, request, node, permit, now);
            }
            Event::HalfClose { slot } => self.on_half_close(&slot, now),
            // The receiver of the reply may be gone.
            Event::Status { from, reply } => drop(reply.send(self.status_page(from))),
            Event::Clients { from, reply } => drop(reply.send(self.clients_page(from))),
            Event::Contents { .. } => self.on_contents(event, now),
            Event::Concerned { change, from, reply } => {
                drop(reply.send(self.concerned_page(&change, from)));
            }
        }
    }

    /// Switches to the newest state, and starts to mark the sessions that its changes affect. Costs
    /// O(changes + affected sessions), in bounded steps. The shard takes the next state only after the
    /// marking is complete.
    pub(crate) fn on_state(&mut self, newest: &Arc<State>, now: Now) {
        if self.marking.is_some() || Arc::ptr_eq(newest, self.views.state()) {
            return;
        }
        let old = self.views.advance(Arc::clone(newest));
        self.resume_cache.forget_old(now.instant);
        // The state may arrive before its arrival time is recorded.
        let arrived = self.arrivals.first_after(old.revision).unwrap_or(now.instant);
        if old.placement_changed() != newest.placement_changed() {
            self.on_placement_change(&old, newest);
        }
        self.marking = Some(if newest.follows(&old) {
            let is_seen = |scope: &ScopeName| self.views.sees(scope);
            let changes = changed_collections_of(&self.differ, &old, newest, is_seen);
            Marking::of(changes, old.revision, arrived)
        } else {
            Marking::of_anything(self.sessions.capacity(), old.revision, arrived)
        });
        self.step += 1;
        self.mark_some(now);
    }

    /// Marks some of the affected sessions.
    fn mark_some(&mut self, now: Now) {
        let Some(mut marking) = self.marking.take() else { return };
        let mut budget = Budget::new(self.config.turn_work_max.saturating_mul(MARKS_PER_STEP));
        let Self { index, sessions, queue, step, metrics, .. } = self;
        let arrived = marking.arrived;
        let is_done = marking.advance(index, &mut budget, |key, mark: Option<Mark<'_>>| {
            let Some(entry) = sessions.get_mut(place(key)) else { return };
            // A poll during this marking has already given the session all changes.
            if entry.applied_step == *step {
                return;
            }
            if let Some(away) = &mut entry.away {
                away.miss(mark);
                return;
            }
            if std::mem::replace(&mut entry.marked_step, *step) != *step {
                entry.since_sent = SinceSent::Mark;
                if mark.is_some_and(|mark| entry.session.has_work_of(mark.type_url)) {
                    metrics.on_suppressed(Suppressed::Folded);
                }
            }
            match mark {
                Some(Mark { type_url, type_place, name }) => {
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

    /// Returns the revision up to which all sessions have received the changes.
    pub(crate) fn marked_revision(&self) -> Revision {
        match &self.marking {
            Some(marking) => marking.from,
            None => self.views.state().revision,
        }
    }

    /// Returns the revision up to which all sessions have received the changes and are indexed under
    /// their current scopes.
    pub(crate) fn reached_revision(&self) -> Revision {
        let reassigning = self.reassign_from.map(|_| self.reassign_since);
        let moving = self.moving.first().map(|(since, _)| *since);
        match reassigning.into_iter().chain(moving).min() {
            Some(since) => self.marked_revision().min(Revision(since.0.saturating_sub(1))),
            None => self.marked_revision(),
        }
    }

    /// Records that the session is not indexed under its new scopes yet; `since` is the revision of the
    /// assignments that moved it. `None` means that the session is indexed, or that its stream has
    /// ended.
    pub(crate) fn set_moving(&mut self, at: usize, since: Option<Revision>) {
        let Some(entry) = self.sessions.get_mut(at) else { return };
        // The earliest of several moves counts.
        let since = since.map(|since| entry.moving_since.map_or(since, |known| known.min(since)));
        let before = std::mem::replace(&mut entry.moving_since, since);
        if before != since {
            if let Some(before) = before {
                self.moving.remove(&(before, key(at)));
            }
            self.moving.extend(since.map(|since| (since, key(at))));
        }
    }

    /// Handles some of the calls. Ended streams are set aside: their removal may take long, and it is
    /// not urgent.
    pub(crate) fn on_calls(&mut self, ready_list: &ReadyList, now: Now) {
        if self.called.is_empty() {
            ready_list.swap(&mut self.called);
        }
        let mut budget = Budget::new(self.config.turn_work_max.saturating_mul(CALLS_PER_STEP));
        while !budget.is_spent()
            && let Some(slot) = self.called.pop_front()
        {
            budget.spend(1);
            match slot.answer() {
                call @ (Call::Closed(_) | Call::Ending(_)) => self.leaving.push_back((slot, call)),
                Call::Ready => {
                    if let Some(key) = slot.key() {
                        self.enqueue(place(key), now);
                    }
                }
            }
        }
        self.free_some(now);
    }

    /// Removes some of the ended streams.
    fn free_some(&mut self, now: Now) {
        let mut budget = self.bulk_budget(Bulk::Ends);
        while !budget.is_spent()
            && let Some((slot, call)) = self.leaving.pop_front()
        {
            let freed = slot.key().map_or(0, |key| self.forget(key, now));
            budget.spend(cost_of(freed));
            match call {
                Call::Closed(end) => self.metrics.on_end(end),
                Call::Ending(end) => slot.end(end),
                Call::Ready => {}
            }
        }
    }

    /// Does a bounded part of the pending work.
    pub(crate) fn turn(&mut self, now: Now) -> Flow {
        // A newer state may have arrived during the marking.
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
        if self.queue.is_empty() && !waiting && !is_due { Flow::Wait(next) } else { Flow::Again }
    }

    /// Polls some of the waiting sessions, first those in the updates lane.
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
                // The first session of a lane has waited longest.
                if !std::mem::replace(&mut is_measured, true) {
                    let waited = now.instant.saturating_duration_since(since);
                    self.metrics.queue_wait_seconds(lane).record(waited.as_secs_f64());
                }
                cost = self.poll_session(place(key), now);
            }
            budget.spend(cost);
        }
    }

    /// Drops entries of ended sessions from the queues when they outnumber those of live sessions.
    /// Costs O(1) per ended session.
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

    /// Updates the gauges of the shard.
    fn measure(&self, now: Now) {
        let oldest = self.unanswered.oldest(now.ms).unwrap_or(0);
        self.metrics.unanswered.set(gauge_value(usize::try_from(oldest).unwrap_or(usize::MAX)));
        self.metrics.pending.set(gauge_value(self.queue.len()));
        self.metrics.set_index(self.index.size());
    }

    /// Adds a session to the queue of sessions to poll.
    pub(crate) fn enqueue(&mut self, place: usize, now: Now) {
        if let Some(entry) = self.sessions.get_mut(place)
            && entry.queued.is_none()
        {
            entry.queued = Some(now.instant);
            self.queue.push(key(place), entry.lane);
        }
    }
}

/// Ends all streams when the shard ends for any reason, so that clients reconnect to another replica.
/// Otherwise clients would stay connected and receive no updates.
impl Drop for Shard {
    fn drop(&mut self) {
        for (_, entry) in &self.sessions {
            entry.slot.end(End::new(EndCode::Unavailable, Stopped.to_string()));
        }
    }
}

/// Records that a panic has ended a shard's task.
#[derive(Debug)]
pub(crate) struct ShardEnd {
    shard: usize,
    ready_list: Arc<ReadyList>,
}

impl ShardEnd {
    pub(crate) fn new(shard: usize, ready_list: Arc<ReadyList>) -> Self {
        Self { shard, ready_list }
    }
}

impl Drop for ShardEnd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.ready_list.turns.on_task_end();
            error!(
                shard = self.shard,
                "a shard has ended because of a defect; restart the replica"
            );
        }
    }
}

// === impl Inputs ===

impl Inputs {
    fn now(&self, instant: Instant) -> Now {
        Now::since(self.start, instant)
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

/// The number of open streams of all shards.
pub(crate) type Streams = Arc<AtomicUsize>;

#[cfg(test)]
mod tests;
