//! The state that a shard keeps for one stream. Its methods handle what the client sends, and what the client receives.
//! Each returns an [`Effect`]: the changes that the shard makes to its index, queue and timers.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use chancery_model::{Node, ResourceName, TypeUrl, types::SECRET};
use chancery_protocol::{
    EndpointLists, ErrorKind, LifetimeSupport, Overdue, ProtocolError, Receipt, Request, Response,
    ResumeState, Session, Verdict,
};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};
use tracing::debug;

use super::{
    effect::{Effect, Schedule},
    limits::{bytes_of, limit_of},
    marking::Marking,
    marks::Marks,
    parts::{ClientCounts, Parts},
    standing::Standing,
};
use crate::{
    log_limit::logged_name,
    messages::{
        client_events::{ClientEvent, ClientEventKind},
        client_log::LoggedKind,
        session::{Key, Mark},
        status::{End, EndCode, NackRecord, SessionId},
        stream_status::StreamContents,
    },
    metrics::{ShardMetrics, limit_hit, type_index},
    offload::{
        away::{Away, Outcome, Presence, Registration, Return},
        work::{Done, Work, next_response},
    },
    placement::{Placement, Replacement, placed::Placed},
    rejection,
    stream::{
        memory::Holding,
        slot::{StreamSlot, Then},
    },
    turn::{
        budget::{INLINE_NAMES_MAX, cost_of},
        clock::Now,
    },
};

/// The interval at which a session checks whether lifetimes may be renewed again, in milliseconds.
const RENEWAL_RETRY_MS: u64 = 1_000;

/// The time that a stream of one type waits for resources that the replica has not opened, in milliseconds. After a
/// rotation, a replica may need a moment to unwrap the new key.
const UNOPENED_WAIT_MS: u64 = 1_000;

/// The text for clients of a type whose resources are not opened.
pub const UNOPENED: &str = "this replica cannot open sealed resources of this type, because it lacks their key; they are \
                            unavailable, not absent; connect to another replica, or retry later";

/// A stream that has sent its first request.
#[derive(Debug)]
pub(crate) struct Entry {
    id: SessionId,
    slot: Arc<StreamSlot>,
    /// The session, or the record of its absence for large work.
    presence: Presence,
    /// The stream's part of the memory for subscriptions.
    holding: Holding,
    placed: Placed,
    marks: Marks,
    standing: Standing,
    since: SystemTime,
    /// Whether the client has received secrets on this stream.
    has_secrets: bool,
    /// The client has closed its half of the stream. The shard ends the stream when it has nothing to
    /// send.
    is_half_closed: bool,
}

/// The parts of a shard that a session uses while it handles an event.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) key: Key,
    pub(crate) parts: &'a Parts,
    pub(crate) placement: &'a mut Placement,
    pub(crate) clients: &'a mut ClientCounts,
    pub(crate) now: Now,
}

impl Entry {
    /// Creates the entry of a new stream. Its first responses are from the state of `step` or a later one.
    pub(crate) fn new(
        slot: &Arc<StreamSlot>,
        placed: Placed,
        parts: &Parts,
        step: u64,
        now: Now,
    ) -> Self {
        let id = SessionId::next();
        let mut session = Session::new(slot.info.kind.clone(), Arc::clone(&parts.protocol));
        adapt(&mut session, placed.node(), id);
        parts.client_log.record(LoggedKind::Connected, placed.node(), slot.info.peer, None);
        debug!(node = &*logged_name(&placed.node().id), peer = %slot.info.peer, assignment = ?placed.assignment(), "stream opened");
        Self {
            id,
            slot: Arc::clone(slot),
            presence: Presence::Here(session),
            holding: parts.memory.holding(),
            placed,
            marks: Marks::new(step),
            standing: Standing::new(now),
            since: SystemTime::now(),
            has_secrets: false,
            is_half_closed: false,
        }
    }

    // === state ===

    pub(crate) fn id(&self) -> SessionId {
        self.id
    }

    pub(crate) fn slot(&self) -> &Arc<StreamSlot> {
        &self.slot
    }

    /// Returns the time at which the first request of the stream arrived.
    pub(crate) fn since(&self) -> SystemTime {
        self.since
    }

    pub(crate) fn presence(&self) -> &Presence {
        &self.presence
    }

    pub(crate) fn placed(&self) -> &Placed {
        &self.placed
    }

    /// Returns the record of a session that is away.
    pub(crate) fn away(&mut self) -> Option<&mut Away> {
        self.presence.away_mut()
    }

    pub(crate) fn standing(&self) -> &Standing {
        &self.standing
    }

    /// Returns the time at which the client will have been silent for too long.
    pub(crate) fn overdue_at(&self) -> Option<u64> {
        self.presence.session()?.overdue_at()
    }

    /// Updates the counted memory of the stream's subscriptions.
    pub(crate) fn settle_memory(&mut self) {
        if let Some(session) = self.presence.session() {
            let bytes = session.retained_bytes() + bytes_of(self.placed.node());
            self.holding.settle(&self.slot, bytes);
        }
    }

    // === placement ===

    /// Replaces the node of the session (SOTW-03).
    pub(crate) fn set_node(&mut self, node: Arc<Node>) {
        if let Some(session) = self.presence.session_mut() {
            adapt(session, &node, self.id);
        }
        self.placed.set_node(node);
    }

    /// Returns whether the session has the scopes and rights of the newest state. A session that is away may have to
    /// move: its return places it again.
    pub(crate) fn is_current(&mut self, key: Key, placement: &mut Placement) -> bool {
        self.presence.session().is_some() && placement.is_current(key, &self.slot, &mut self.placed)
    }

    /// Computes the scopes and rights again. Ends the stream if the client has other rights.
    pub(crate) fn place_again(&mut self, key: Key, placement: &mut Placement) -> Effect {
        let Some(session) = self.presence.session_mut() else {
            return self.check_away(key, placement);
        };
        let scopes = match placement.place_again(&self.slot, &mut self.placed) {
            Replacement::Kept => {
                placement.set_moving(key, &mut self.placed, None);
                return Effect::None;
            }
            Replacement::Ended(end) => {
                self.slot.end(end);
                return Effect::Ended;
            }
            Replacement::Moved(scopes) => scopes,
        };
        let cost = session.n_names();
        if cost > INLINE_NAMES_MAX {
            let since = self.placed.placed_at();
            placement.set_moving(key, &mut self.placed, Some(since));
            return Effect::Offload { work: Box::new(Work::Move(scopes)), cost };
        }
        let interests = session.interest();
        session.handle_new_view();
        placement.set_moving(key, &mut self.placed, None);
        Effect::Moved { interests, scopes }
    }

    /// Checks the rights of a session that is away. Ends the stream if its client has other rights.
    pub(crate) fn check_away(&mut self, key: Key, placement: &mut Placement) -> Effect {
        let Some(away) = self.presence.away_mut().filter(|away| !away.has_ended()) else {
            return Effect::None;
        };
        if self.placed.placed_at() == placement.state().placement_changed() {
            return Effect::None;
        }
        match placement.check_away(key, &self.slot, &mut self.placed) {
            Ok(()) => {
                // This poll places the session again.
                away.poll_when_back();
                Effect::None
            }
            Err(end) => {
                self.slot.end(end);
                Effect::Ended
            }
        }
    }

    /// Records that the session sees other scopes, and is indexed under them.
    pub(crate) fn on_moved(&mut self, key: Key, placement: &mut Placement) {
        if let Some(session) = self.presence.session_mut() {
            session.handle_new_view();
        }
        placement.on_indexed(key, &mut self.placed);
    }

    // === input ===

    /// Passes one change of the marking `step` to the session. Returns whether the session is to be polled.
    pub(crate) fn mark(
        &mut self,
        mark: Option<Mark<'_>>,
        step: u64,
        arrived_at: Instant,
        metrics: &ShardMetrics,
    ) -> bool {
        // A poll during this marking has already given the session all changes.
        if self.marks.has_applied(step) {
            return false;
        }
        match &mut self.presence {
            Presence::Here(session) => {
                self.marks.mark(session, mark, step, arrived_at, metrics);
                true
            }
            Presence::Away(away) => {
                away.miss(mark);
                false
            }
        }
    }

    /// Handles a request of a session that is not away.
    pub(crate) fn on_request(
        &mut self,
        mut request: Request,
        permit: Option<OwnedSemaphorePermit>,
        context: &mut Context<'_>,
    ) -> Effect {
        let Some(session) = self.presence.session_mut() else { return Effect::None };
        let bytes = session.retained_bytes_after(&request) + bytes_of(self.placed.node());
        if let Err(error) = self.holding.reserve(&self.slot, bytes) {
            return self.refuse(EndCode::ResourceExhausted, error.to_string(), context.parts);
        }
        let finder = &context.parts.config.secrets;
        let cost = session.cost_of_request(&request)
            + rejection::cost(&request, session, INLINE_NAMES_MAX);
        if cost > INLINE_NAMES_MAX {
            let work = Work::Take(request, permit, finder.clone());
            return Effect::Offload { work: Box::new(work), cost };
        }
        rejection::clean(&mut request, session, finder);
        let view = context.placement.view(&self.placed);
        let result = session.handle_request(request, view.as_ref(), context.now.ms);
        drop(permit);
        let effect = self.on_receipt(result, context);
        self.settle_memory();
        effect
    }

    /// Continues after the session has accepted or rejected a request.
    pub(crate) fn on_receipt(
        &mut self,
        result: Result<Receipt, ProtocolError>,
        context: &mut Context<'_>,
    ) -> Effect {
        let receipt = match result {
            Ok(receipt) => receipt,
            Err(error) => {
                let code = match error.kind() {
                    ErrorKind::InvalidRequest => EndCode::InvalidArgument,
                    ErrorKind::LimitExceeded => EndCode::ResourceExhausted,
                };
                if let Some(limit) = limit_of(&error) {
                    limit_hit(limit);
                }
                return self.refuse(code, error.to_string(), context.parts);
            }
        };
        let Context { key, parts, placement, now, .. } = context;
        let Some(session) = self.presence.session_mut() else { return Effect::None };
        parts.metrics.on_request(&receipt.type_url, receipt.kind);
        if session.needs_resume_state(&receipt.type_url) {
            let states = placement.resume_states(*key, &self.slot, &mut self.placed, *now);
            session.resume_from(&receipt.type_url, &states);
            let view = session.unknown_version(&receipt.type_url).and_then(|version| {
                let of = (&receipt.type_url, version);
                placement.view_of_version(*key, &self.slot, &mut self.placed, of, *now)
            });
            if let Some(view) = view {
                session.resume_from_view(&receipt.type_url, &view);
            }
        }
        if let Some(verdict) = receipt.verdict {
            self.on_verdict(receipt.type_url, verdict, context);
        }
        let Some(session) = self.presence.session_mut() else { return Effect::None };
        let interests = session.drain_interest();
        let ClientCounts { unanswered, .. } = &mut *context.clients;
        if self.standing.update(session, unanswered, &context.parts.metrics) {
            self.log(LoggedKind::Recovered, context.parts);
        }
        Effect::Handled { interests }
    }

    /// Ends the stream because its client sent an invalid request or exceeded a limit.
    fn refuse(&self, code: EndCode, text: String, parts: &Parts) -> Effect {
        parts.refusal_log.log(&self.placed.node().id, self.slot.info.peer, &text);
        self.slot.end(End::new(code, text));
        Effect::Ended
    }

    fn on_verdict(&mut self, type_url: TypeUrl, verdict: Verdict, context: &mut Context<'_>) {
        let Some(session) = self.presence.session() else { return };
        let Context { parts: Parts { metrics, client_log, .. }, clients, now, .. } = context;
        if self.standing.establish(session, *now, metrics) {
            self.slot.establish();
        }
        let type_index = type_index(&type_url);
        // For a response in parts, the answer to the last part counts.
        let changed_at =
            if session.is_under_way(&type_url) { None } else { self.marks.on_answer(type_index) };
        match verdict {
            Verdict::Ack { waited_ms, .. } => {
                metrics.of(type_index).acks.increment(1);
                metrics.ack_seconds.record(Duration::from_millis(waited_ms).as_secs_f64());
                if let Some(changed_at) = changed_at {
                    let passed = now.instant.saturating_duration_since(changed_at);
                    metrics.convergence_seconds.record(passed.as_secs_f64());
                }
            }
            Verdict::Nack { version, code, message, .. } => {
                metrics.of(type_index).nacks.increment(1);
                self.marks.on_rejected();
                let nack = NackRecord { type_url, version, code, message, time: SystemTime::now() };
                clients.log_rejection(&self.placed.node().id, self.slot.info.peer, &nack, *now);
                let rejected = Some((&nack.type_url, nack.message.as_str()));
                let (node, peer) = (self.placed.node(), self.slot.info.peer);
                client_log.record(LoggedKind::Rejected, node, peer, rejected);
                self.standing.record(nack);
            }
        }
    }

    /// Adds an event to the log of the newest events of clients.
    fn log(&self, kind: LoggedKind, parts: &Parts) {
        parts.client_log.record(kind, self.placed.node(), self.slot.info.peer, None);
    }

    /// SOTW-111: ends the stream with OK once nothing more can be sent at the moment.
    pub(crate) fn half_close(&mut self) {
        self.is_half_closed = true;
    }

    // === output ===

    /// Sends the session's next response, if there is one and the transport can take it.
    pub(crate) fn poll(&mut self, marking: Option<&Marking>, context: &mut Context<'_>) -> Effect {
        let Context { parts, placement, now, .. } = context;
        let session = match &mut self.presence {
            Presence::Here(session) => session,
            Presence::Away(away) => {
                away.poll_when_back();
                return Effect::None;
            }
        };
        if !self.slot.can_take() {
            if !self.standing.is_blocked() && session.has_work() {
                self.standing.block(*now, &parts.metrics);
            }
            return Effect::None;
        }
        self.standing.unblock(*now, &parts.metrics);
        if let Some(marking) = marking.filter(|marking| !self.marks.has_applied(marking.step())) {
            self.marks.complete(session, self.placed.scopes(), marking);
        }
        let renews = parts.contact.is_recent(*now);
        let cost_of_renewal = if renews { session.cost_of_renewal(now.ms) } else { 0 };
        let cost = session.cost_of_poll() + cost_of_renewal;
        if cost > INLINE_NAMES_MAX {
            return Effect::Offload { work: Box::new(Work::Poll { renews }), cost };
        }
        let view = placement.view(&self.placed);
        let response = next_response(session, view.as_ref(), &parts.differ, renews, now.ms);
        let effect = self.on_response(response, context);
        self.settle_memory();
        effect
    }

    /// Continues with the response that the session has planned.
    pub(crate) fn on_response(
        &mut self,
        response: Option<Response>,
        context: &mut Context<'_>,
    ) -> Effect {
        let now = context.now;
        let Some(session) = self.presence.session() else { return Effect::None };
        let Some(response) = response else {
            let end = if self.is_unavailable(session, now) {
                End::new(EndCode::Unavailable, UNOPENED)
            } else if self.is_half_closed && session.unopened_since().is_none() {
                End::ok()
            } else {
                let schedule = Schedule {
                    is_bulk: !self.standing.is_established(),
                    wake_at: wake_at(session, now),
                };
                if !session.has_work() {
                    self.marks.on_nothing_to_send(&context.parts.metrics);
                }
                return Effect::Idle(schedule);
            };
            self.slot.end(end);
            return Effect::Ended;
        };
        let wake_at = wake_at(session, now);
        let n_items = response.n_resources() + response.n_removed();
        self.send(response, wake_at, context.parts);
        let Some(session) = self.presence.session() else { return Effect::None };
        let unanswered = &mut context.clients.unanswered;
        if self.standing.update(session, unanswered, &context.parts.metrics) {
            self.log(LoggedKind::Recovered, context.parts);
        }
        // More long responses usually follow a long one.
        let is_bulk = cost_of(n_items) > 1 || !self.standing.is_established();
        Effect::Sent { n_items, schedule: Schedule { is_bulk, wake_at } }
    }

    /// Passes a response to the transport. `wake_at` is the session's next deadline.
    fn send(&mut self, response: Response, wake_at: Option<u64>, parts: &Parts) {
        let type_index = type_index(response.type_url());
        self.marks.on_sent(type_index, response.is_renewal());
        if response.type_url().as_str() == SECRET
            && response.n_resources() > 0
            && !std::mem::replace(&mut self.has_secrets, true)
        {
            parts.config.observer.observe(ClientEvent {
                kind: ClientEventKind::SecretsSent,
                principal: self.slot.info.identity.as_deref().map(|one| &one.principal),
                peer: self.slot.info.peer,
                node: &self.placed.node().id,
            });
        }
        let message = parts.metrics.encode(type_index, response, &parts.config.control_plane);
        // No deadline implies no pending work.
        let has_more = self.is_half_closed || wake_at.is_some();
        self.slot.put(message, if has_more { Then::CallBack } else { Then::Rest });
    }

    /// Returns whether the only type of a stream has waited for too long for resources to be opened. A stream of all
    /// types goes on with its other types.
    fn is_unavailable(&self, session: &Session, now: Now) -> bool {
        let has_one_type = self.is_half_closed || self.slot.info.kind.type_url.is_some();
        let waited = |(_, since): (&TypeUrl, u64)| now.ms.saturating_sub(since) >= UNOPENED_WAIT_MS;
        has_one_type && session.unopened_since().is_some_and(waited)
    }

    /// Ends a stream whose client has left a response unanswered for too long. The client may have answered meanwhile.
    pub(crate) fn close_if_overdue(&self, context: &mut Context<'_>) -> Effect {
        let overdue = self.presence.session().and_then(|session| session.overdue(context.now.ms));
        let Some(Overdue { type_url, silent_ms, .. }) = overdue else { return Effect::None };
        let (node, peer) = (&self.placed.node().id, self.slot.info.peer);
        context.clients.log_silence(node, peer, &type_url, silent_ms, context.now);
        limit_hit("ack_close_after");
        let seconds = silent_ms / 1000;
        let text = format!(
            "no answer to a response of type {type_url} for {seconds} s (ack_close_after); reconnect"
        );
        self.slot.end(End::new(EndCode::Silent, text));
        Effect::Ended
    }

    // === large work ===

    /// Takes the session for large work. Returns `None` if it is already away.
    pub(crate) fn leave(&mut self, work: &Work, now: Now) -> Option<Session> {
        let session = self.presence.leave(work, now.ms)?;
        self.slot.set_away(true);
        Some(session)
    }

    /// Takes the result of large work. Returns the outcome, unless names have to be registered first.
    pub(crate) fn on_done(&mut self, session: Option<Session>, done: Done) -> Option<Outcome> {
        self.presence.away_mut()?.on_done(session, done, self.placed.scopes())
    }

    /// Returns the names that are to be registered before the session is back.
    pub(crate) fn registration(&mut self) -> Option<&mut Registration> {
        self.presence.away_mut()?.registration()
    }

    /// Takes the session back. Returns `None` unless its large work is done.
    pub(crate) fn come_back(&mut self, now: Now) -> Option<Return> {
        let back = self.presence.come_back(now.ms)?;
        self.slot.set_away(false);
        Some(back)
    }

    // === end ===

    /// Prepares the removal of a session whose stream has ended (SOTW-111).
    pub(crate) fn end(&mut self, key: Key, placement: &mut Placement) -> Effect {
        placement.set_moving(key, &mut self.placed, None);
        let session = match &mut self.presence {
            Presence::Here(session) => session,
            Presence::Away(away) => {
                away.end();
                return Effect::None;
            }
        };
        let cost = session.cost_of_end();
        if cost > INLINE_NAMES_MAX {
            return Effect::Offload { work: Box::new(Work::End), cost };
        }
        let interests = session.interest();
        Effect::Remove { interests, resume_state: session.take_resume_state() }
    }

    /// Releases what other parts of the shard hold for a stream that has ended.
    pub(crate) fn release(self, resume_state: Option<ResumeState>, context: Context<'_>) {
        let Context { parts: Parts { metrics, client_log, .. }, placement, clients, now, .. } =
            context;
        metrics.streams(&self.slot.info.kind).decrement(1.0);
        client_log.record(LoggedKind::Disconnected, self.placed.node(), self.slot.info.peer, None);
        self.standing.remove(&mut clients.unanswered, metrics);
        placement.release(&self.slot, self.placed, resume_state, now);
    }

    /// Returns one page of the resources of a type, at most `max`, after the name `after`.
    pub(crate) fn contents(
        &mut self,
        type_url: &TypeUrl,
        after: Option<&ResourceName>,
        max: usize,
        placement: &mut Placement,
        now: Now,
    ) -> Option<StreamContents> {
        let view = placement.view(&self.placed);
        let session = self.presence.session_mut()?;
        let page = session.contents(type_url, view.as_ref(), after, max, now.ms)?;
        Some(StreamContents { page, scopes: self.placed.all_scopes() })
    }
}

/// The accesses of tests.
#[cfg(test)]
impl Entry {
    pub(crate) fn session_mut(&mut self) -> Option<&mut Session> {
        self.presence.session_mut()
    }

    pub(crate) fn placed_mut(&mut self) -> &mut Placed {
        &mut self.placed
    }
}

/// Passes to a session what its node supports.
fn adapt(session: &mut Session, node: &Node, id: SessionId) {
    session.support_lifetimes(LifetimeSupport::of(node, id.0));
    session.support_endpoint_lists(EndpointLists::of(node));
    session.set_dynamic_parameters(&node.dynamic_parameters);
}

/// Returns the next deadline of a session, in milliseconds.
fn wake_at(session: &Session, now: Now) -> Option<u64> {
    let renewal = session
        .renewal_at(now.ms)
        .map(|due| if due <= now.ms { now.ms + RENEWAL_RETRY_MS } else { due });
    session.wake_at(now.ms).into_iter().chain(renewal).min()
}
