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
    collections::VecDeque,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use chancery_model::State;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::{
    messages::event::{Events, Sent},
    messages::session::Lane,
    metrics::{ShardMetrics, gauge_value},
    replica::arrivals::Arrivals,
    sessions::service::Service,
    stream::slot::{Call, ReadyList, StreamSlot},
    turn::{
        budget::{Budget, cost_of},
        clock::Now,
        cost::{cost_of_event, cost_of_text},
    },
};

/// The number of calls from transports that the shard handles for the cost of one poll.
const CALLS_PER_STEP: usize = 8;

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

/// A shard: the loop, the order of the work in a turn, and the streams that wait for it.
#[derive(Debug)]
pub(crate) struct Shard {
    service: Service,
    arrivals: Arc<Arrivals>,
    /// Streams with a call that the shard has not handled yet.
    called: VecDeque<Arc<StreamSlot>>,
    /// Streams whose sessions are to be removed, each with its call.
    leaving: VecDeque<(Arc<StreamSlot>, Call)>,
    /// The kind of bulk work of this turn; `None` if no bulk work waited when it started.
    bulk: Option<Bulk>,
    /// The index in [`BULK_ORDER`] from which the next turn chooses.
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
    pub(crate) fn new(service: Service, arrivals: Arc<Arrivals>) -> Self {
        Self {
            service,
            arrivals,
            called: VecDeque::new(),
            leaving: VecDeque::new(),
            bulk: None,
            bulk_from: 0,
        }
    }

    fn turn_work_max(&self) -> usize {
        self.service.parts().config.turn_work_max
    }

    fn metrics(&self) -> &ShardMetrics {
        &self.service.parts().metrics
    }

    /// Runs turns until the shard is canceled or all senders of events are gone.
    pub(crate) async fn run(mut self, mut inputs: Inputs, cancel: CancellationToken) {
        let most = self.turn_work_max();
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
            self.service.on_back(&inputs.ready_list, now);
            let waiting = inputs.ready_list.has_back();
            flow = match self.turn(now) {
                Flow::Wait(_) if full || waiting || !events.is_empty() => Flow::Again,
                flow => flow,
            };
            inputs.ready_list.turns.on_end();
            tick = self.service.clients().unanswered.next_tick(now.ms);
            self.metrics().turn_seconds.record(started.elapsed().as_secs_f64());
        }
    }

    /// Handles as many events as fit into a turn. The rest stays.
    pub(crate) fn on_events(&mut self, events: &mut Events, now: Now) {
        self.choose_bulk(events);
        let most = self.turn_work_max();
        self.on_lane(&mut events.updates, Lane::Updates, Budget::new(most), now);
        self.on_lane(&mut events.bulk, Lane::Bulk, self.bulk_budget(Bulk::Events), now);
    }

    /// Chooses the kind of bulk work for a turn: the next one in order that has work.
    fn choose_bulk(&mut self, events: &Events) {
        let has_work = |kind| match kind {
            Bulk::Events => !events.bulk.is_empty(),
            Bulk::Polls => self.service.sessions().has_bulk(),
            Bulk::Ends => !self.leaving.is_empty(),
        };
        let mut order = (self.bulk_from..).take(BULK_ORDER.len()).map(|n| n % BULK_ORDER.len());
        let chosen = order.find(|n| has_work(BULK_ORDER[*n]));
        self.bulk = chosen.map(|n| BULK_ORDER[n]);
        self.bulk_from = chosen.map_or(0, |n| n + 1);
    }

    /// Returns the budget for a kind of bulk work in this turn. It is 0 if the turn does another
    /// kind.
    fn bulk_budget(&self, kind: Bulk) -> Budget {
        match self.bulk {
            Some(other) if other != kind => Budget::new(0),
            Some(_) | None => Budget::of_bulk(self.turn_work_max()),
        }
    }

    fn on_lane(&mut self, events: &mut VecDeque<Sent>, lane: Lane, mut budget: Budget, now: Now) {
        // Queries of the admin API would hide that requests wait.
        if let Some(Sent { sent_at, .. }) = events.iter().find(|sent| sent.event.slot().is_some()) {
            let waited = now.instant.saturating_duration_since(*sent_at);
            self.metrics().inbox_wait_seconds(lane).record(waited.as_secs_f64());
        }
        while !budget.is_spent()
            && let Some(Sent { event, .. }) = events.pop_front()
        {
            budget.spend(cost_of_event(&event, self.turn_work_max()) + cost_of_text(&event));
            let slot = event.slot().map(Arc::clone);
            self.service.handle(event, now);
            if let Some(slot) = slot {
                slot.remove_waiting();
            }
        }
    }

    /// Switches to the newest state, unless the marking for the previous one is under way.
    pub(crate) fn on_state(&mut self, newest: &Arc<State>, now: Now) {
        self.service.on_state(newest, |revision| self.arrivals.first_after(revision), now);
    }

    /// Handles some of the calls. Ended streams are set aside: their removal may take long, and it is
    /// not urgent.
    pub(crate) fn on_calls(&mut self, ready_list: &ReadyList, now: Now) {
        if self.called.is_empty() {
            ready_list.swap(&mut self.called);
        }
        let mut budget = Budget::new(self.turn_work_max().saturating_mul(CALLS_PER_STEP));
        while !budget.is_spent()
            && let Some(slot) = self.called.pop_front()
        {
            budget.spend(1);
            match slot.answer() {
                call @ (Call::Closed(_) | Call::Ending(_)) => self.leaving.push_back((slot, call)),
                Call::Ready => self.service.on_ready(&slot, now),
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
            budget.spend(cost_of(self.service.on_end(&slot, now)));
            match call {
                Call::Closed(end) => self.metrics().on_end(end),
                Call::Ending(end) => slot.end(end),
                Call::Ready => {}
            }
        }
    }

    /// Does a bounded part of the pending work.
    pub(crate) fn turn(&mut self, now: Now) -> Flow {
        // A newer state may have arrived during the marking.
        let was_marking = self.service.is_marking();
        self.service.mark_some(now);
        self.service.place_some(now);
        self.service.register_some(now);
        self.service.on_timers(self.turn_work_max(), now);
        self.poll_some(now);
        self.service.tidy();
        self.measure(now);
        let next = self.service.sessions().next_timer();
        let is_due = next.is_some_and(|at| at <= now.ms);
        let is_waiting = was_marking
            || self.service.is_moving()
            || !self.called.is_empty()
            || !self.leaving.is_empty()
            || self.service.sessions().n_queued() > 0;
        if is_waiting || is_due { Flow::Again } else { Flow::Wait(next) }
    }

    /// Polls some of the waiting sessions, first those in the updates lane.
    fn poll_some(&mut self, now: Now) {
        self.service.poll_lane(Lane::Updates, Budget::new(self.turn_work_max()), now);
        self.service.poll_lane(Lane::Bulk, self.bulk_budget(Bulk::Polls), now);
    }

    /// Updates the gauges of the shard.
    fn measure(&self, now: Now) {
        let oldest = self.service.clients().unanswered.oldest(now.ms).unwrap_or(0);
        let metrics = self.metrics();
        metrics.unanswered.set(gauge_value(usize::try_from(oldest).unwrap_or(usize::MAX)));
        metrics.pending.set(gauge_value(self.service.sessions().n_queued()));
        metrics.set_index(self.service.sessions().index().size());
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
