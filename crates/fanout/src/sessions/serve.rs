//! The operations of a shard on one session: open, requests, responses, scopes, end.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use chancery_model::{Node, Revision, StreamRights, TypeUrl, types::SECRET};
use chancery_protocol::{
    EndpointLists, ErrorKind, LifetimeSupport, Overdue, ProtocolError, Receipt, Request, Response,
    ResumeState, Session, Verdict,
};
use tokio::sync::OwnedSemaphorePermit;
use tracing::{debug, warn};

use crate::{
    log_limit::logged_name,
    messages::client_events::{ClientEvent, ClientEventKind},
    messages::event::Event,
    messages::status::{End, EndCode, NackRecord, SessionId},
    metrics::{Suppressed, access_refused, limit_hit, type_place},
    offload::away::Offloaded,
    offload::work::{Work, next_response},
    placement::access::{CountedStream, Placement},
    placement::past_scopes::PastScopes,
    placement::resume_cache::Kept,
    rejection,
    sessions::convergence::ConvergenceTimes,
    sessions::entry::{Entry, NEW_NODE, SinceSent, scopes_of},
    sessions::index::{key, place},
    sessions::queue::Lane,
    shard::Shard,
    stream::slot::{StreamSlot, Then},
    turn::budget::{INLINE_NAMES_MAX, cost_of},
    turn::clock::Now,
};

/// The interval at which a session checks whether lifetimes may be renewed again, in milliseconds.
const RENEWAL_RETRY_MS: u64 = 1_000;

/// The time that a stream of one type waits for resources that the replica has not opened, in milliseconds. After a
/// rotation, a replica may need a moment to unwrap the new key.
const UNOPENED_WAIT_MS: u64 = 1_000;

/// The text for clients of a type whose resources are not opened.
pub const UNOPENED: &str = "this replica cannot open sealed resources of this type, because it lacks their key; they are \
                            unavailable, not absent; connect to another replica, or retry later";

impl Shard {
    pub(crate) fn on_request(
        &mut self,
        slot: &Arc<StreamSlot>,
        mut request: Request,
        node: Option<Arc<Node>>,
        permit: Option<OwnedSemaphorePermit>,
        now: Now,
    ) {
        // Requests that a stream sent before it ended may arrive later.
        if slot.is_closed() {
            return;
        }
        let wait = |away: &mut Offloaded, request, node, permit| {
            away.wait(Event::Request { slot: Arc::clone(slot), request, node, permit });
        };
        if let Some(away) = slot.key().and_then(|key| self.away_of(place(key))) {
            return wait(away, request, node, permit);
        }
        let at = match (slot.key().map(place), node) {
            (Some(at), None) => at,
            (Some(at), Some(node)) => {
                self.adopt(at, node, now);
                at
            }
            (None, Some(node)) => match self.open(slot, node, now) {
                Ok(at) => at,
                Err(end) => return slot.end(end),
            },
            (None, None) => {
                let text = "the first request of the stream has no node";
                self.refusal_log.log("", slot.info.peer, text);
                slot.end(End::new(EndCode::InvalidArgument, text));
                return;
            }
        };
        self.reassign(at, now);
        if slot.is_closed() {
            return;
        }
        if let Some(away) = self.away_of(at) {
            return wait(away, request, None, permit);
        }
        let Some(entry) = self.sessions.get_mut(at) else { return };
        let bytes = entry.session.retained_bytes_after(&request) + bytes_of(&entry.node);
        if let Err(error) = entry.holding.reserve(slot, bytes) {
            return self.refuse(at, EndCode::ResourceExhausted, &error.to_string(), now);
        }
        let finder = &self.config.secrets;
        let cost = entry.session.cost_of_request(&request)
            + rejection::cost(&request, &entry.session, INLINE_NAMES_MAX);
        if cost > INLINE_NAMES_MAX {
            let work = Work::Take(request, permit, finder.clone());
            return self.offload(at, work, cost, now);
        }
        rejection::clean(&mut request, &entry.session, finder);
        let view = self.view_of(at);
        let Some(entry) = self.sessions.get_mut(at) else { return };
        let result = entry.session.on_request(request, view.as_ref(), now.ms);
        drop(permit);
        self.on_taken(at, result, now);
        self.settle_memory(at);
    }

    fn away_of(&mut self, at: usize) -> Option<&mut Offloaded> {
        self.sessions.get_mut(at)?.away.as_deref_mut()
    }

    /// Updates the counted memory of a stream's subscriptions.
    pub(crate) fn settle_memory(&mut self, at: usize) {
        let Some(entry) = self.sessions.get_mut(at) else { return };
        if entry.away.is_none() {
            let bytes = entry.session.retained_bytes() + bytes_of(&entry.node);
            entry.holding.settle(&entry.slot, bytes);
        }
    }

    /// Continues after the session has accepted or rejected a request.
    pub(crate) fn on_taken(&mut self, at: usize, result: Result<Receipt, ProtocolError>, now: Now) {
        let Some(entry) = self.sessions.get_mut(at) else { return };
        match result {
            Ok(receipt) => {
                self.metrics.on_request(&receipt.type_url, receipt.kind);
                if entry.session.needs_resume_state(&receipt.type_url) {
                    let resume_states = self.resume_states(at, now);
                    if let Some(entry) = self.sessions.get_mut(at) {
                        entry.session.resume_from(&receipt.type_url, &resume_states);
                    }
                }
                if let Some(verdict) = receipt.verdict {
                    self.on_verdict(at, &receipt.type_url, verdict, now);
                }
                self.register_changes(at);
                self.count_standing(at);
                self.enqueue(at, now);
            }
            Err(error) => {
                let code = match error.kind() {
                    ErrorKind::InvalidRequest => EndCode::InvalidArgument,
                    ErrorKind::LimitExceeded => EndCode::ResourceExhausted,
                };
                if let Some(limit) = limit_of(&error) {
                    limit_hit(limit);
                }
                self.refuse(at, code, &error.to_string(), now);
            }
        }
    }

    /// Ends a stream because its client sent an invalid request or exceeded a limit.
    fn refuse(&mut self, at: usize, code: EndCode, text: &str, now: Now) {
        let Some(entry) = self.sessions.get_mut(at) else { return };
        self.refusal_log.log(&entry.node.id, entry.slot.info.peer, text);
        entry.slot.end(End::new(code, text.to_owned()));
        self.forget(key(at), now);
    }

    /// SOTW-111: ends the stream with OK once nothing more can be sent at the moment.
    pub(crate) fn on_half_close(&mut self, slot: &Arc<StreamSlot>, now: Now) {
        match slot.key().map(place) {
            Some(at) => {
                if let Some(entry) = self.sessions.get_mut(at) {
                    entry.half_closed = true;
                }
                self.enqueue(at, now);
            }
            None => slot.end(End::ok()),
        }
    }

    /// Sends the session's next response, if there is one and the transport can take it. Returns the
    /// cost in steps.
    pub(crate) fn poll_session(&mut self, at: usize, now: Now) -> usize {
        self.reassign(at, now);
        let Some(entry) = self.sessions.get_mut(at) else { return 1 };
        if let Some(away) = &mut entry.away {
            away.poll_when_back();
            return 1;
        }
        if !entry.slot.can_take() {
            if entry.blocked.is_none() && entry.session.has_work() {
                entry.blocked = Some(now.instant);
                self.metrics.blocked.increment(1.0);
            }
            return 1;
        }
        if let Some(since) = entry.blocked.take() {
            let waited = now.instant.saturating_duration_since(since);
            self.metrics.transport_wait_seconds.record(waited.as_secs_f64());
            self.metrics.blocked.decrement(1.0);
        }
        if let Some(marking) = self.marking.as_ref().filter(|_| entry.applied_step != self.step) {
            entry.applied_step = self.step;
            let Entry { session, assigned, changes, .. } = entry;
            marking.apply_all(session, scopes_of(assigned), changes);
        }
        let renews = self.contact.is_recent(now);
        let cost_of_renewal = if renews { entry.session.cost_of_renewal(now.ms) } else { 0 };
        let cost = entry.session.cost_of_poll() + cost_of_renewal;
        if cost > INLINE_NAMES_MAX {
            self.offload(at, Work::Poll { renews }, cost, now);
            return 1;
        }
        let view = self.view_of(at);
        let Some(entry) = self.sessions.get_mut(at) else { return 1 };
        let session = &mut entry.session;
        let response = next_response(session, view.as_ref(), &self.differ, renews, now.ms);
        let cost = self.on_polled(at, response, now);
        self.settle_memory(at);
        cost
    }

    /// Continues with the response that the session has planned. Returns the cost in steps.
    pub(crate) fn on_polled(&mut self, at: usize, response: Option<Response>, now: Now) -> usize {
        let Some(entry) = self.sessions.get_mut(at) else { return 1 };
        let mut cost = 1;
        match response {
            Some(response) => {
                cost = cost_of(response.n_resources() + response.n_removed());
                entry.since_sent = SinceSent::Nothing;
                let type_place = type_place(response.type_url());
                if response.type_url().as_str() == SECRET
                    && response.n_resources() > 0
                    && !std::mem::replace(&mut entry.has_secrets, true)
                {
                    self.config.observer.observe(ClientEvent {
                        kind: ClientEventKind::SecretsSent,
                        principal: entry.slot.info.identity.as_deref().map(|one| &one.principal),
                        peer: entry.slot.info.peer,
                        node: &entry.node.id,
                    });
                }
                if !response.is_renewal() {
                    entry.changes.on_sent(type_place);
                }
                let message =
                    self.metrics.on_push(type_place, response, &self.config.control_plane);
                // No deadline implies no pending work.
                let more = entry.half_closed
                    || entry.session.wake_at(now.ms).is_some()
                    || entry.session.renewal_at(now.ms).is_some();
                let then = if more { Then::CallBack } else { Then::Rest };
                entry.slot.put(message, then);
                self.count_standing(at);
            }
            None if entry.is_unavailable(now) => {
                entry.slot.end(End::new(EndCode::Unavailable, UNOPENED));
                return cost_of(self.forget(key(at), now));
            }
            None if entry.half_closed && entry.session.unopened_since().is_none() => {
                entry.slot.end(End::ok());
                return cost_of(self.forget(key(at), now));
            }
            None if !entry.session.has_work() => {
                entry.changes.owe_nothing();
                match std::mem::replace(&mut entry.since_sent, SinceSent::Nothing) {
                    SinceSent::Nothing => {}
                    SinceSent::Mark => self.metrics.on_suppressed(Suppressed::Unchanged),
                    SinceSent::Rejected => self.metrics.on_suppressed(Suppressed::Rejected),
                }
            }
            None => {}
        }
        let Some(entry) = self.sessions.get_mut(at) else { return cost };
        // More long responses usually follow a long one.
        let is_bulk = cost > 1 || !entry.arrived;
        entry.lane = if is_bulk { Lane::Bulk } else { Lane::Updates };
        self.set_timer(at, now);
        cost
    }

    /// Ends a stream whose client has left a response unanswered for too long. If the client has
    /// answered meanwhile, sets a timer for the next possible time.
    pub(crate) fn close_if_overdue(&mut self, at: usize, now: Now) {
        let Some(entry) = self.sessions.get_mut(at) else { return };
        let Some(Overdue { type_url, silent_ms }) = entry.session.overdue(now.ms) else {
            return self.watch_silence(at);
        };
        if let Some(left_out) = self.silence_log.take(now.second()) {
            let (node, peer) = (logged_name(&entry.node.id), entry.slot.info.peer);
            let type_url = logged_name(type_url.as_str());
            warn!(node = &*node, %peer, type_url = &*type_url, silent_ms, left_out, "closing a stream whose client does not answer");
        }
        limit_hit("ack_close_after");
        let seconds = silent_ms / 1000;
        let text = format!(
            "no answer to a response of type {type_url} for {seconds} s (ack_close_after); reconnect"
        );
        entry.slot.end(End::new(EndCode::Silent, text));
        self.forget(key(at), now);
    }

    /// Sets a timer for the time at which the client will have been silent for too long.
    fn watch_silence(&mut self, at: usize) {
        let Some(entry) = self.sessions.get_mut(at) else { return };
        if entry.close_at.is_none()
            && let Some(close_at) = entry.session.overdue_at()
        {
            entry.close_at = Some(close_at);
            self.closing.set(close_at, key(at));
        }
    }

    /// Updates the counts of streams whose clients owe an answer, and of streams on which a rejection
    /// stands.
    fn count_standing(&mut self, at: usize) {
        let Some(entry) = self.sessions.get_mut(at) else { return };
        let silent = entry.session.silent_since().map(|ms| ms / 1000);
        self.unanswered.change(std::mem::replace(&mut entry.silent, silent), silent);
        self.watch_silence(at);
        let Some(entry) = self.sessions.get_mut(at) else { return };
        let rejecting = entry.session.is_rejecting();
        match (std::mem::replace(&mut entry.rejecting, rejecting), rejecting) {
            (false, true) => self.metrics.rejecting.increment(1.0),
            (true, false) => self.metrics.rejecting.decrement(1.0),
            (true, true) | (false, false) => {}
        }
    }

    /// Frees everything that the shard holds for a session (SOTW-111). Returns the number of freed
    /// subscriptions.
    pub(crate) fn forget(&mut self, session: u32, now: Now) -> usize {
        let at = place(session);
        self.set_moving(at, None);
        let Self { sessions, index, .. } = self;
        let Some(entry) = sessions.get_mut(at) else { return 0 };
        if let Some(away) = &mut entry.away {
            away.end();
            return 0;
        }
        let cost = entry.session.cost_of_end();
        if cost > INLINE_NAMES_MAX {
            self.offload(at, Work::End, cost, now);
            return 0;
        }
        let interest = entry.session.interest();
        for interest in &interest {
            index.forget(session, entry.scopes(), interest);
        }
        let resume_state = entry.session.take_resume_state();
        self.remove(session, resume_state, now);
        interest.len()
    }

    /// Removes a session that is no longer in the index.
    pub(crate) fn remove(&mut self, session: u32, resume_state: Option<ResumeState>, now: Now) {
        let Some(entry) = self.sessions.try_remove(place(session)) else { return };
        entry.slot.set_key(None);
        self.metrics.streams(&entry.slot.info.kind).decrement(1.0);
        self.unanswered.change(entry.silent, None);
        if entry.rejecting {
            self.metrics.rejecting.decrement(1.0);
        }
        if entry.blocked.is_some() {
            self.metrics.blocked.decrement(1.0);
        }
        if let Some((state, scopes)) = resume_state.zip(entry.all_scopes()) {
            let identity = entry.slot.info.identity.as_deref();
            let principal = identity.map(|identity| &identity.principal);
            let kept = Kept { state: Arc::new(state), scopes: scopes.into() };
            self.resume_cache.put(principal, &entry.node, kept, now.instant);
        }
        if let Some((_, scopes)) = entry.assigned {
            self.views.release(scopes);
        }
    }

    fn open(&mut self, slot: &Arc<StreamSlot>, node: Arc<Node>, now: Now) -> Result<usize, End> {
        let Placement { assigned, rights } = self.place(slot, &node)?;
        let counted = self.count(slot, &node, rights.as_ref())?;
        let assigned = assigned.map(|(name, scopes)| (name, self.views.intern(scopes)));
        let id = SessionId::next();
        let mut session = Session::new(slot.info.kind.clone(), Arc::clone(&self.protocol));
        session.support_lifetimes(LifetimeSupport::of(&node, id.0));
        session.support_endpoint_lists(EndpointLists::of(&node));
        session.set_dynamic_parameters(&node.dynamic_parameters);
        let entry = Entry {
            id,
            slot: Arc::clone(slot),
            away: None,
            holding: self.memory.holding(),
            session,
            node,
            assigned,
            past: PastScopes::default(),
            rights: rights.map(Arc::new),
            _counted: counted,
            has_secrets: false,
            assigned_at: self.views.state().placement_changed(),
            moved_at: Revision(0),
            moving_since: None,
            opened: now.instant,
            since: SystemTime::now(),
            nacks: Vec::new(),
            queued: None,
            lane: Lane::Bulk,
            arrived: false,
            // The first responses are from this state or a later one.
            applied_step: self.step,
            marked_step: self.step,
            since_sent: SinceSent::Nothing,
            changes: ConvergenceTimes::default(),
            blocked: None,
            silent: None,
            rejecting: false,
            half_closed: false,
            wake_at: None,
            close_at: None,
        };
        debug!(node = &*logged_name(&entry.node.id), peer = %slot.info.peer, assignment = ?entry.assigned.as_ref().map(|(name, _)| name), "stream opened");
        let at = self.sessions.insert(entry);
        slot.set_key(Some(key(at)));
        self.metrics.streams(&slot.info.kind).increment(1.0);
        Ok(at)
    }

    /// Counts a stream of an identity whose access rule limits the number of streams.
    fn count(
        &self,
        slot: &StreamSlot,
        node: &Node,
        rights: Option<&StreamRights>,
    ) -> Result<Option<CountedStream>, End> {
        let limit =
            rights.and_then(|rights| rights.quota.streams).zip(slot.info.identity.as_deref());
        let Some((max, identity)) = limit else { return Ok(None) };
        let counted = self.identity_streams.take(&identity.principal, max);
        counted.map(Some).ok_or_else(|| {
            limit_hit("streams_per_identity");
            access_refused("streams");
            self.config.observer.observe(ClientEvent {
                kind: ClientEventKind::Refused("streams"),
                principal: Some(&identity.principal),
                peer: slot.info.peer,
                node: &node.id,
            });
            let text = format!(
                "the identity {} already has {max} streams on this replica (quota.streams of its access rule)",
                identity.principal
            );
            self.refusal_log.log(&node.id, slot.info.peer, &text);
            End::new(EndCode::ResourceExhausted, text)
        })
    }

    /// Replaces the node of the session (SOTW-03).
    fn adopt(&mut self, at: usize, node: Arc<Node>, now: Now) {
        let Some(entry) = self.sessions.get_mut(at) else { return };
        entry.session.support_lifetimes(LifetimeSupport::of(&node, entry.id.0));
        entry.session.support_endpoint_lists(EndpointLists::of(&node));
        entry.session.set_dynamic_parameters(&node.dynamic_parameters);
        entry.node = node;
        entry.assigned_at = NEW_NODE;
        self.reassign(at, now);
    }

    /// Returns the view of a session. The only place where a stream gets a view.
    pub(crate) fn view_of(&mut self, at: usize) -> Option<chancery_view::View> {
        let entry = self.sessions.get(at)?;
        let (_, scopes) = entry.assigned.as_ref()?;
        let view = self.views.of(scopes).with_node(Arc::clone(&entry.node));
        Some(match &entry.rights {
            Some(rights) => view.with_secrets(Some(Arc::clone(&rights.secrets))),
            None => view,
        })
    }

    /// Updates the index with the subscriptions that the last request changed.
    fn register_changes(&mut self, at: usize) {
        let Some(entry) = self.sessions.get_mut(at) else { return };
        for interest in entry.session.drain_interest() {
            self.index.note(key(at), entry.scopes(), &interest);
        }
    }

    fn on_verdict(&mut self, at: usize, type_url: &TypeUrl, verdict: Verdict, now: Now) {
        let Some(entry) = self.sessions.get_mut(at) else { return };
        // The client has answered the responses to its first requests.
        if !entry.arrived && !entry.session.has_work() && entry.session.silent_since().is_none() {
            entry.arrived = true;
            entry.slot.arrive();
            if !entry.session.is_rejecting() {
                let passed = now.instant.saturating_duration_since(entry.opened);
                self.metrics.first_sync_seconds.record(passed.as_secs_f64());
            }
        }
        let type_place = type_place(type_url);
        // For a response in parts, the answer to the last part counts.
        let arrived = if entry.session.is_under_way(type_url) {
            None
        } else {
            entry.changes.on_answer(type_place)
        };
        match verdict {
            Verdict::Ack { waited_ms, .. } => {
                self.metrics.of(type_place).acks.increment(1);
                self.metrics.ack_seconds.record(Duration::from_millis(waited_ms).as_secs_f64());
                if let Some(arrived) = arrived {
                    let passed = now.instant.saturating_duration_since(arrived);
                    self.metrics.convergence_seconds.record(passed.as_secs_f64());
                }
            }
            Verdict::Nack { version, code, message } => {
                self.metrics.of(type_place).nacks.increment(1);
                entry.since_sent = SinceSent::Rejected;
                if let Some(left_out) = self.rejection_log.take(now.second()) {
                    let (node, peer) = (logged_name(&entry.node.id), entry.slot.info.peer);
                    let (type_url, text) = (logged_name(type_url.as_str()), message.as_str());
                    warn!(node = &*node, %peer, type_url = &*type_url, %version, code, text, left_out, "client rejected a response");
                }
                let time = SystemTime::now();
                entry.record(NackRecord {
                    type_url: type_url.clone(),
                    version,
                    code,
                    message,
                    time,
                });
            }
        }
    }

    /// Sets a timer for the session's next deadline. An earlier timer stays.
    fn set_timer(&mut self, at: usize, now: Now) {
        let Some(entry) = self.sessions.get_mut(at) else { return };
        let renewal = entry
            .session
            .renewal_at(now.ms)
            .map(|due| if due <= now.ms { now.ms + RENEWAL_RETRY_MS } else { due });
        let wake_at = entry.session.wake_at(now.ms);
        if let Some(wake_at) = wake_at.into_iter().chain(renewal).min()
            && entry.wake_at.is_none_or(|known| wake_at < known)
        {
            entry.wake_at = Some(wake_at);
            self.timers.set(wake_at, key(at));
        }
    }
}

impl Entry {
    /// Returns whether the only type of a stream has waited for too long for resources to be opened. A stream of all
    /// types goes on with its other types.
    fn is_unavailable(&self, now: Now) -> bool {
        let has_one_type = self.half_closed || self.slot.info.kind.type_url.is_some();
        let waited = |(_, since): (&TypeUrl, u64)| now.ms.saturating_sub(since) >= UNOPENED_WAIT_MS;
        has_one_type && self.session.unopened_since().is_some_and(waited)
    }
}

/// Returns the number of bytes that a stream holds for its client's node.
fn bytes_of(node: &Node) -> usize {
    /// The number of bytes of an entry besides its texts.
    const EACH: usize = 96;
    let metadata = node.metadata.iter().map(|(path, text)| EACH + path.len() + text.len());
    let features = node.client_features.iter().map(|feature| EACH + feature.len());
    let parameters = node.dynamic_parameters.iter().flat_map(|(type_url, all)| {
        let texts = all.iter().map(|(key, value)| EACH + key.len() + value.len());
        texts.chain([EACH + type_url.len()])
    });
    let texts = [&node.id, &node.cluster, &node.user_agent].map(String::len);
    metadata.chain(features).chain(parameters).chain(texts).sum()
}

/// Returns the limit that a request exceeds, as the metric names it.
fn limit_of(error: &ProtocolError) -> Option<&'static str> {
    match error {
        ProtocolError::TypesTooMany { .. } => Some("types"),
        ProtocolError::NamesTooMany { .. } => Some("names"),
        ProtocolError::Name(_) => Some("name_bytes"),
        ProtocolError::TypeMissing
        | ProtocolError::Type(_)
        | ProtocolError::TypeForeign { .. }
        | ProtocolError::Variant
        | ProtocolError::Collection(_) => None,
    }
}
