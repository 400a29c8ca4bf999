//! Serves the sessions of a shard: passes each event to its session, and carries out the effects.

use std::sync::Arc;

use chancery_model::{Node, Revision, ScopeName, State};
use chancery_protocol::{Request, ResumeState};
use chancery_view::changed_collections_of;
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use super::{
    Sessions,
    effect::Effect,
    entry::{Context, Entry},
    marking::{MARKS_PER_STEP, Marking},
    parts::{ClientCounts, Parts},
};
use crate::{
    messages::{
        change::{Change, Concerned, QueryPosition},
        event::{Event, SelectStreams},
        page::Page,
        session::{Key, Lane},
        status::{End, EndCode},
    },
    metrics::large_work,
    offload::{
        Handover, Offload,
        away::Outcome,
        work::{Returned, Work},
    },
    placement::Placement,
    queries::{
        concern::concerned_page,
        report::{At, status_page},
    },
    stream::slot::{ReadyList, StreamSlot},
    turn::{
        budget::{Budget, cost_of},
        clock::Now,
    },
};

/// The number of sessions that are compared with a change of the access rules for the cost of one placement.
const COMPARISONS_PER_STEP: usize = 8;

/// The number of names that a shard registers in one turn.
const NAMES_PER_TURN: usize = 1024;

/// The sessions of a shard, with the parts that serve them.
#[derive(Debug)]
pub(crate) struct Service {
    parts: Parts,
    sessions: Sessions,
    placement: Placement,
    offload: Offload,
    clients: ClientCounts,
    /// The marking for the latest state change; `None` once all affected sessions are marked.
    marking: Option<Marking>,
    /// The number of the latest state change that the shard has taken.
    step: u64,
}

impl Service {
    pub(crate) fn new(parts: Parts, placement: Placement, offload: Offload) -> Self {
        Self {
            parts,
            sessions: Sessions::default(),
            placement,
            offload,
            clients: ClientCounts::default(),
            marking: None,
            step: 0,
        }
    }

    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }

    pub(crate) fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    pub(crate) fn clients(&self) -> &ClientCounts {
        &self.clients
    }

    /// Returns whether sessions remain to be marked.
    pub(crate) fn is_marking(&self) -> bool {
        self.marking.is_some()
    }

    /// Returns whether sessions remain to be placed again, or to be registered in the index.
    pub(crate) fn is_moving(&self) -> bool {
        self.placement.next_of_pass().is_some() || self.offload.is_registering()
    }

    // === events ===

    /// Handles one event without waiting.
    pub(crate) fn handle(&mut self, event: Event, now: Now) {
        match event {
            Event::Request { slot, request, node, permit } => {
                self.on_request(&slot, request, node, permit, now);
            }
            Event::HalfClose { slot } => self.on_half_close(&slot, now),
            // The receiver of the reply may be gone.
            Event::Status { select: SelectStreams(select), from, reply } => {
                let max = self.turn_work_max();
                let at = At { clock_ms: now.ms, reached: self.reached_revision() };
                drop(reply.send(status_page(&self.sessions, &*select, from, max, at)));
            }
            Event::Contents { .. } => self.on_contents(event, now),
            Event::Concerned { change, from, reply } => {
                drop(reply.send(self.concerned_page(&change, from)));
            }
        }
    }

    /// Returns one page of the sessions that `change` concerns.
    pub(crate) fn concerned_page(
        &self,
        change: &Change,
        from: QueryPosition,
    ) -> Page<Concerned, QueryPosition> {
        let (state, reached) = (self.placement.state(), self.reached_revision());
        concerned_page(&self.sessions, state, reached, self.turn_work_max(), change, from)
    }

    fn turn_work_max(&self) -> usize {
        self.parts.config.turn_work_max
    }

    fn on_request(
        &mut self,
        slot: &Arc<StreamSlot>,
        request: Request,
        node: Option<Arc<Node>>,
        permit: Option<OwnedSemaphorePermit>,
        now: Now,
    ) {
        // Requests that a stream sent before it ended may arrive later.
        if slot.is_closed() {
            return;
        }
        if let Some(away) = slot.key().and_then(|key| self.sessions.get_mut(key)?.away()) {
            return away.wait(Event::Request { slot: Arc::clone(slot), request, node, permit });
        }
        let key = match (slot.key(), node) {
            (Some(key), None) => key,
            (Some(key), Some(node)) => {
                if let Some(entry) = self.sessions.get_mut(key) {
                    entry.set_node(node);
                }
                key
            }
            (None, Some(node)) => match self.open(slot, node, now) {
                Ok(key) => key,
                Err(end) => return slot.end(end),
            },
            (None, None) => {
                let text = "the first request of the stream has no node";
                self.parts.refusal_log.log("", slot.info.peer, text);
                slot.end(End::new(EndCode::InvalidArgument, text));
                return;
            }
        };
        self.place_again(key, now);
        if slot.is_closed() {
            return;
        }
        if let Some(away) = self.sessions.get_mut(key).and_then(Entry::away) {
            return away.wait(Event::Request {
                slot: Arc::clone(slot),
                request,
                node: None,
                permit,
            });
        }
        self.with(key, now, |entry, context| entry.on_request(request, permit, context));
    }

    fn open(&mut self, slot: &Arc<StreamSlot>, node: Arc<Node>, now: Now) -> Result<Key, End> {
        let placed = self.placement.admit(slot, node)?;
        let key = self.sessions.insert(Entry::new(slot, placed, &self.parts, self.step, now));
        self.parts.metrics.streams(&slot.info.kind).increment(1.0);
        Ok(key)
    }

    /// SOTW-111: ends the stream with OK once nothing more can be sent at the moment.
    fn on_half_close(&mut self, slot: &Arc<StreamSlot>, now: Now) {
        let Some(key) = slot.key() else { return slot.end(End::ok()) };
        if let Some(entry) = self.sessions.get_mut(key) {
            entry.half_close();
        }
        self.sessions.enqueue(key, now);
    }

    /// Answers [`Event::Contents`]. A query for an offloaded session waits until the session is back. A
    /// dropped `reply` means that the stream has ended, or has no such type.
    fn on_contents(&mut self, event: Event, now: Now) {
        let Event::Contents { slot, type_url, after, .. } = &event else { return };
        let entry = slot.key().and_then(|key| self.sessions.get_mut(key));
        let Some(entry) = entry else { return };
        if let Some(away) = entry.away() {
            away.wait(event);
            return;
        }
        let max = self.parts.config.turn_work_max;
        let contents = entry.contents(type_url, after.as_ref(), max, &mut self.placement, now);
        let (Event::Contents { reply, .. }, Some(contents)) = (event, contents) else { return };
        drop(reply.send(contents));
    }

    /// Polls a session whose transport can take a message.
    pub(crate) fn on_ready(&mut self, slot: &StreamSlot, now: Now) {
        if let Some(key) = slot.key() {
            self.sessions.enqueue(key, now);
        }
    }

    /// Removes the session of a stream that has ended (SOTW-111). Returns the number of freed subscriptions.
    pub(crate) fn on_end(&mut self, slot: &StreamSlot, now: Now) -> usize {
        slot.key().map_or(0, |key| self.apply(key, Effect::Ended, now))
    }

    // === effects ===

    /// Passes an event to a session, and carries out the effect.
    fn with(
        &mut self,
        key: Key,
        now: Now,
        handle: impl FnOnce(&mut Entry, &mut Context<'_>) -> Effect,
    ) -> usize {
        let Self { parts, sessions, placement, clients, .. } = self;
        let Some(entry) = sessions.get_mut(key) else { return 0 };
        let effect = handle(entry, &mut Context { key, parts, placement, clients, now });
        self.apply(key, effect, now)
    }

    /// Carries out the effect of an event on a session. Returns the number of names and resources that were handled.
    fn apply(&mut self, key: Key, effect: Effect, now: Now) -> usize {
        match effect {
            Effect::None => {}
            Effect::Handled { interests } => {
                self.sessions.register(key, &interests);
                self.sessions.watch_silence(key);
                self.sessions.enqueue(key, now);
            }
            Effect::Sent { n_items, schedule } => {
                self.sessions.watch_silence(key);
                self.sessions.schedule(key, schedule);
                return n_items;
            }
            Effect::Idle(schedule) => self.sessions.schedule(key, schedule),
            Effect::Offload { work, cost } => self.hand_over(key, *work, cost, now),
            Effect::Moved { interests, scopes } => {
                self.sessions.move_interests(key, &scopes, &interests);
                self.sessions.enqueue(key, now);
                return interests.len();
            }
            Effect::Ended => {
                return self.with(key, now, |entry, context| entry.end(key, context.placement));
            }
            Effect::Remove { interests, resume_state } => {
                self.sessions.unregister(key, &interests);
                self.remove(key, resume_state, now);
                return interests.len();
            }
        }
        0
    }

    /// Removes a session that is no longer in the index.
    fn remove(&mut self, key: Key, resume_state: Option<ResumeState>, now: Now) {
        let Some(entry) = self.sessions.remove(key) else { return };
        let Self { parts, placement, clients, .. } = self;
        entry.release(resume_state, Context { key, parts, placement, clients, now });
    }

    // === placement ===

    /// Places some sessions again after a change of the assignments or access rules. A session that is polled earlier is
    /// placed at that time, so no session is served under old assignments.
    pub(crate) fn place_some(&mut self, now: Now) {
        let Some(mut key) = self.placement.next_of_pass() else { return };
        let most = self.turn_work_max().saturating_mul(COMPARISONS_PER_STEP);
        let (mut budget, end) = (Budget::new(most), self.sessions.end_key());
        while key < end && !budget.is_spent() {
            budget.spend(if self.is_current(key) {
                1
            } else {
                cost_of(self.place_again(key, now)).saturating_mul(COMPARISONS_PER_STEP)
            });
            key += 1;
        }
        self.placement.continue_pass((key < end).then_some(key));
    }

    /// Returns whether a session has the scopes and rights of the newest state.
    fn is_current(&mut self, key: Key) -> bool {
        let Self { sessions, placement, .. } = self;
        sessions.get_mut(key).is_none_or(|entry| entry.is_current(key, placement))
    }

    /// Computes the session's scopes and rights again if the assignments or the access rules have changed, and
    /// updates the index. Ends the stream if the client has other rights. Returns the number of updated
    /// subscriptions.
    fn place_again(&mut self, key: Key, now: Now) -> usize {
        if self.is_current(key) {
            return 0;
        }
        self.with(key, now, |entry, context| entry.place_again(key, context.placement))
    }

    // === marks ===

    /// Switches to the newest state, and starts to mark the sessions that its changes affect. Costs
    /// O(changes + affected sessions), in bounded steps. The shard takes the next state only after the
    /// marking is complete. `arrival` returns the time at which the first change after a revision arrived.
    pub(crate) fn on_state(
        &mut self,
        newest: &Arc<State>,
        arrival: impl FnOnce(Revision) -> Option<Instant>,
        now: Now,
    ) {
        if self.marking.is_some() || Arc::ptr_eq(newest, self.placement.state()) {
            return;
        }
        let old = self.placement.advance(newest, now);
        // The state may arrive before its arrival time is recorded.
        let arrived_at = arrival(old.revision).unwrap_or(now.instant);
        self.step += 1;
        self.marking = Some(if newest.follows(&old) {
            let is_seen = |scope: &ScopeName| self.placement.sees(scope);
            let changes = changed_collections_of(&self.parts.differ, &old, newest, is_seen);
            Marking::of(changes, self.step, old.revision, arrived_at)
        } else {
            Marking::of_anything(self.sessions.end_key(), self.step, old.revision, arrived_at)
        });
        self.mark_some(now);
    }

    /// Marks some of the affected sessions.
    pub(crate) fn mark_some(&mut self, now: Now) {
        let Some(marking) = &mut self.marking else { return };
        let metrics = &self.parts.metrics;
        let most = self.parts.config.turn_work_max.saturating_mul(MARKS_PER_STEP);
        if self.sessions.mark(marking, &mut Budget::new(most), metrics, now) {
            let passed = now.instant.saturating_duration_since(marking.arrived_at());
            metrics.commit_seconds.record(passed.as_secs_f64());
            self.marking = None;
        }
    }

    /// Returns the revision up to which all sessions have received the changes and are indexed under
    /// their current scopes.
    pub(crate) fn reached_revision(&self) -> Revision {
        self.placement.reached_revision(self.marked_revision())
    }

    /// Returns the revision up to which all sessions have received the changes.
    pub(crate) fn marked_revision(&self) -> Revision {
        match &self.marking {
            Some(marking) => marking.from(),
            None => self.placement.state().revision,
        }
    }

    // === polls ===

    /// Polls sessions of a lane that wait, within a budget.
    pub(crate) fn poll_lane(&mut self, lane: Lane, mut budget: Budget, now: Now) {
        let mut is_measured = false;
        while !budget.is_spent()
            && let Some(next) = self.sessions.next_to_poll(lane)
        {
            let mut cost = 1;
            if let Some((key, since)) = next {
                // The first session of a lane has waited longest.
                if !std::mem::replace(&mut is_measured, true) {
                    let waited = now.instant.saturating_duration_since(since);
                    self.parts.metrics.queue_wait_seconds(lane).record(waited.as_secs_f64());
                }
                cost = self.poll_session(key, now);
            }
            budget.spend(cost);
        }
    }

    /// Sends the session's next response, if there is one and the transport can take it. Returns the
    /// cost in steps.
    fn poll_session(&mut self, key: Key, now: Now) -> usize {
        self.place_again(key, now);
        let Self { parts, sessions, placement, clients, marking, .. } = self;
        let Some(entry) = sessions.get_mut(key) else { return 1 };
        let mut context = Context { key, parts, placement, clients, now };
        let effect = entry.poll(marking.as_ref(), &mut context);
        cost_of(self.apply(key, effect, now))
    }

    // === timers ===

    /// Handles at most `n` timers of each kind whose time has come.
    pub(crate) fn on_timers(&mut self, n: usize, now: Now) {
        self.sessions.wake_due(n, now);
        for _ in 0..n {
            let Some(next) = self.sessions.next_overdue(now) else { break };
            if let Some(key) = next {
                self.with(key, now, |entry, context| entry.close_if_overdue(context));
                // The client may have answered meanwhile.
                self.sessions.watch_silence(key);
            }
        }
    }

    /// Drops outdated entries of the queue and the timers.
    pub(crate) fn tidy(&mut self) {
        self.sessions.tidy();
    }

    // === large work ===

    /// Hands a session over for work on `cost` names.
    fn hand_over(&mut self, key: Key, work: Work, cost: usize, now: Now) {
        let Some(entry) = self.sessions.get_mut(key) else { return };
        let view = self.placement.view(entry.placed());
        let Some(session) = entry.leave(&work, now) else { return };
        self.offload.submit(key, entry.slot(), Handover { session, work, view }, cost, now);
    }

    /// Takes back the sessions that have returned.
    pub(crate) fn on_back(&mut self, ready_list: &ReadyList, now: Now) {
        for back in ready_list.take_back(self.turn_work_max()) {
            self.on_returned(back, now);
        }
    }

    pub(crate) fn on_returned(&mut self, Returned { key, done }: Returned, now: Now) {
        large_work().decrement(1.0);
        let Some(entry) = self.sessions.get_mut(key) else { return };
        let Some((session, done)) = done else {
            // The index may still refer to the session, so its key stays taken.
            let text = "the replica could not handle a request of this stream";
            entry.slot().end(End::new(EndCode::Unavailable, text));
            self.apply(key, Effect::Ended, now);
            return;
        };
        // Rights may have changed before the pass over all sessions reached this session. The session must not send a
        // response under its old rights.
        self.with(key, now, |entry, context| entry.check_away(key, context.placement));
        let Some(entry) = self.sessions.get_mut(key) else { return };
        match entry.on_done(session, done) {
            Some(outcome) => self.resume(key, outcome, now),
            None => self.offload.start_registering(key),
        }
    }

    /// Registers some of the names of the sessions that have returned. Consecutive calls serve the
    /// sessions in turn.
    pub(crate) fn register_some(&mut self, now: Now) {
        let Some(key) = self.offload.next_registering() else { return };
        match self.sessions.register_some(key, NAMES_PER_TURN) {
            Some(true) => {
                let away = self.sessions.get_mut(key).and_then(Entry::away);
                if let Some(outcome) = away.and_then(|away| away.take_outcome()) {
                    self.resume(key, outcome, now);
                }
            }
            Some(false) => self.offload.start_registering(key),
            None => {}
        }
    }

    /// Takes a session back, continues with the outcome of its large work, and handles the waiting requests.
    fn resume(&mut self, key: Key, outcome: Outcome, now: Now) {
        if let Outcome::Ended(resume_state) = outcome {
            return self.remove(key, resume_state, now);
        }
        let back = self.sessions.get_mut(key).and_then(|entry| entry.come_back(now));
        let Some(mut back) = back else { return };
        if back.has_ended {
            self.apply(key, Effect::Ended, now);
            return;
        }
        match outcome {
            Outcome::Request(result) => {
                self.with(key, now, |entry, context| entry.on_receipt(result, context));
            }
            Outcome::Response(response, ms) => {
                // A deadline that has passed since the poll is due now.
                let then = Now { ms, ..now };
                self.with(key, then, |entry, context| entry.on_response(response, context));
            }
            Outcome::Moved => {
                let Self { sessions, placement, .. } = self;
                if let Some(entry) = sessions.get_mut(key) {
                    entry.on_moved(key, placement);
                }
                sessions.enqueue(key, now);
            }
            Outcome::Ended(_) => {}
        }
        if let Some(entry) = self.sessions.get_mut(key) {
            entry.settle_memory();
        }
        if back.is_poll_due {
            self.sessions.enqueue(key, now);
        }
        while let Some(event) = back.waiting.pop_front() {
            self.handle(event, now);
            if let Some(away) = self.sessions.get_mut(key).and_then(Entry::away) {
                away.wait_all(&mut back.waiting);
            }
        }
    }
}

/// The accesses of tests.
#[cfg(test)]
impl Service {
    pub(crate) fn parts_mut(&mut self) -> &mut Parts {
        &mut self.parts
    }

    pub(crate) fn sessions_mut(&mut self) -> &mut Sessions {
        &mut self.sessions
    }

    pub(crate) fn placement(&self) -> &Placement {
        &self.placement
    }

    pub(crate) fn offload(&self) -> &Offload {
        &self.offload
    }
}
