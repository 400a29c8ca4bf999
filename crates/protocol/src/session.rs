//! The session: all types of one stream and the order between them.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use chancery_model::{Resource, ResourceName, Revision, TypeUrl, TypeVersion};
use chancery_view::{Differ, Resources, View};

use crate::{
    Config, Nack, Protocol, ProtocolError, Remains, Request, Response, StreamKind,
    SubscriptionStatus,
    plan::{Moment, Pace, Which},
    response::{absent_len, removed_len, size_of},
    subscription::{Names, Outstanding, Subscription, parse_nonce},
};

mod cost;
mod order;
mod watch;

use order::Gate;
pub use watch::Overdue;

/// A change of the names that the session watches: see [`Session::on_change`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Interest {
    /// Starts watching one name.
    Name(TypeUrl, ResourceName),
    /// Stops watching this name.
    NoName(TypeUrl, ResourceName),
    /// Starts watching all names of a type.
    Wildcard(TypeUrl),
    /// Stops watching all names of a type. Names from [`Interest::Name`] remain.
    NoWildcard(TypeUrl),
}

impl Interest {
    pub(crate) fn wildcard(type_url: &TypeUrl, on: bool) -> Self {
        match on {
            true => Self::Wildcard(type_url.clone()),
            false => Self::NoWildcard(type_url.clone()),
        }
    }
}

/// The client's answer to a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The client accepted the response.
    Ack {
        /// The revision that the response was built from.
        revision: Revision,
        /// The time between response and answer, in milliseconds.
        waited_ms: u64,
    },
    /// The client rejected the response.
    Nack {
        /// The version of the rejected response.
        version: TypeVersion,
        /// The client's code.
        code: i32,
        /// The client's message, truncated to the limit.
        message: String,
    },
}

/// The result of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The type of the request.
    pub type_url: TypeUrl,
    /// The answer to a response, if the request has one.
    pub verdict: Option<Verdict>,
    /// The kind of the request.
    pub kind: RequestKind,
}

/// The kind of a request: the first variant that applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// The request accepts a response, whatever else it does.
    Ack,
    /// The request rejects a response.
    Nack,
    /// The request has no nonce, or changes the subscription.
    Subscribe,
    /// The request does not name the last response, and does not change the subscription (SOTW-34).
    Stale,
    /// The request names the last response, which is already answered, and does not change the
    /// subscription.
    Repeat,
}

/// The protocol state of one stream.
#[derive(Debug)]
pub struct Session {
    kind: StreamKind,
    config: Arc<Config>,
    /// The subscriptions in the order of sending (ADS-04).
    subscriptions: Vec<Subscription>,
    interest: RefCell<Vec<Interest>>,
    /// Secrets that are sent again after these endpoints, because Envoy requests the secrets of a
    /// cluster when it has the endpoints of the cluster (ADS-19).
    secrets_waiting: BTreeMap<ResourceName, BTreeSet<ResourceName>>,
    last_nonce: u64,
}

/// The responses of other types that must precede a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ahead {
    /// There are none.
    Nothing,
    /// New responses, which were just planned.
    Planned,
    /// The rest of older responses, which the session must send before it can plan new ones.
    Underway,
}

/// The result of checking one type.
enum Turn {
    /// A response to send.
    Send(Response),
    /// There is nothing to send, but other types may have waited for this result.
    Settled,
    /// An earlier type is to be sent now.
    Again,
    /// There is nothing to do.
    Idle,
}

impl Session {
    /// Creates the state of a new stream.
    #[must_use]
    pub fn new(kind: StreamKind, config: Arc<Config>) -> Self {
        Self {
            kind,
            config,
            subscriptions: Vec::new(),
            interest: RefCell::default(),
            secrets_waiting: BTreeMap::new(),
            last_nonce: 0,
        }
    }

    /// Processes a request. `view` is the current view of the node; `None` if no assignment matches
    /// the node.
    ///
    /// # Errors
    /// Fails if the stream must end. The error has the status code.
    pub fn on_request(
        &mut self,
        mut request: Request,
        view: Option<&View>,
        now: u64,
    ) -> Result<Receipt, ProtocolError> {
        let (protocol, type_url, error) = match &mut request {
            Request::Sotw(r) => (Protocol::Sotw, &r.type_url, &mut r.error_detail),
            Request::Delta(r) => (Protocol::Delta, &r.type_url, &mut r.error_detail),
        };
        if protocol != self.kind.protocol {
            return Err(ProtocolError::Variant);
        }
        let type_url = self.type_of(type_url)?;
        if let Some(error) = error {
            cut(&mut error.message, self.config.nack_message_bytes_max);
        }
        let at = self.subscription_of(&type_url, now)?;
        let others: usize = self.subscriptions.iter().map(Subscription::n_remembered).sum();
        let names = Names {
            view: view.map(|view| view.of_type(&type_url)),
            others: others - self.subscriptions[at].n_remembered(),
            max: self.config.names_max,
            interest: &self.interest,
        };
        let subscription = &mut self.subscriptions[at];
        let known = self.interest.borrow().len();
        let (answer, nonce) = match &request {
            Request::Sotw(r) => (subscription.on_sotw(r, &names, now)?, &r.response_nonce),
            Request::Delta(r) => (subscription.on_delta(r, &names, now)?, &r.response_nonce),
        };
        let kind = match &answer {
            Some(answer) if answer.nack.is_none() => RequestKind::Ack,
            Some(_) => RequestKind::Nack,
            None if nonce.is_empty() || self.interest.borrow().len() > known => {
                RequestKind::Subscribe
            }
            None if *nonce != subscription.last_nonce.to_string() => RequestKind::Stale,
            None => RequestKind::Repeat,
        };
        let verdict = answer.map(|answer| match answer.nack {
            Some(Nack { version, code, message, .. }) => Verdict::Nack { version, code, message },
            None => Verdict::Ack {
                revision: answer.outstanding.revision,
                waited_ms: now.saturating_sub(answer.outstanding.sent_at),
            },
        });
        Ok(Receipt { type_url, verdict, kind })
    }

    /// Returns the type and the contents of the response that `request` answers, or `None` if the
    /// session does not know them.
    #[must_use]
    pub fn answered_contents(&self, request: &Request) -> Option<(&TypeUrl, &Resources)> {
        let (type_url, nonce) = match request {
            Request::Sotw(r) => (&r.type_url, &r.response_nonce),
            Request::Delta(r) => (&r.type_url, &r.response_nonce),
        };
        let type_url = self.type_of(type_url).ok()?;
        let subscription = self.subscriptions.iter().find(|s| s.type_url == type_url)?;
        Some((&subscription.type_url, subscription.contents_of(parse_nonce(nonce)?)?))
    }

    /// Iterates over the types and the contents of all responses that are unanswered, or that a
    /// later answer skipped.
    pub fn unanswered_contents(&self) -> impl Iterator<Item = (&TypeUrl, &Resources)> {
        self.subscriptions.iter().flat_map(|subscription| {
            let contents = subscription.unanswered_contents();
            contents.map(move |contents| (&subscription.type_url, contents))
        })
    }

    /// Returns the type of a request (SVC-06 to -10).
    fn type_of(&self, text: &str) -> Result<TypeUrl, ProtocolError> {
        match &self.kind.type_url {
            Some(only) if text.is_empty() || text == only.as_str() => Ok(only.clone()),
            Some(only) => Err(ProtocolError::TypeForeign {
                expected: only.to_string(),
                found: text.to_owned(),
            }),
            None if text.is_empty() => Err(ProtocolError::TypeMissing),
            None => match self.subscriptions.iter().find(|s| s.type_url.as_str() == text) {
                Some(known) => Ok(known.type_url.clone()),
                None => TypeUrl::new(text).map_err(ProtocolError::Type),
            },
        }
    }

    /// Returns the index of the subscription of a type, and opens the subscription if necessary.
    fn subscription_of(&mut self, type_url: &TypeUrl, now: u64) -> Result<usize, ProtocolError> {
        if let Some(at) = self.subscriptions.iter().position(|s| s.type_url == *type_url) {
            return Ok(at);
        }
        if self.subscriptions.len() >= self.config.types_max {
            return Err(ProtocolError::TypesTooMany { max: self.config.types_max });
        }
        let new = Subscription::new(type_url.clone(), self.kind.protocol, &self.config, now);
        let place = (new.properties.order, &new.type_url);
        let at = self.subscriptions.partition_point(|s| (s.properties.order, &s.type_url) < place);
        self.subscriptions.insert(at, new);
        Ok(at)
    }

    /// Returns the next response to send now, built from `view`, or `None`.
    ///
    /// The caller calls it when the stream can take a response, and repeats the call until it
    /// returns `None`. `view` must not be older than in the previous call.
    pub fn poll(&mut self, view: Option<&View>, differ: &Differ, now: u64) -> Option<Response> {
        // OPS-05: an unknown view is not an empty view.
        let view = view?;
        loop {
            let mut settled = false;
            for at in 0..self.subscriptions.len() {
                match self.turn(at, view, differ, now) {
                    Turn::Send(response) => return Some(response),
                    Turn::Settled => settled = true,
                    Turn::Again => {
                        settled = true;
                        break;
                    }
                    Turn::Idle => {}
                }
            }
            if !settled {
                return None;
            }
        }
    }

    fn turn(&mut self, at: usize, view: &View, differ: &Differ, now: u64) -> Turn {
        let subscription = &self.subscriptions[at];
        let waiting = subscription.awaits_answer(&self.config, now);
        if let Some(train) = &subscription.train {
            // SOTW-36: at most one response is unacknowledged. The parts of a delta response follow
            // each other without waiting.
            if waiting && train.pace == Pace::Wait && subscription.protocol == Protocol::Sotw {
                return Turn::Idle;
            }
            // ADS-06: types before this one go first if the client requested names of them after
            // this response was planned. Their other later changes keep their own order.
            let before = [subscription.properties.after, &[]];
            return match self.plan_ahead(at, before, order::asked, view, differ, now) {
                Ahead::Nothing => self.send_part(at, now),
                Ahead::Planned | Ahead::Underway => Turn::Again,
            };
        }
        // A shortcut for the most common case: the state of the other types does not matter.
        if !subscription.has_work() && subscription.lingering.is_empty() {
            return self.rest(at);
        }
        let release = self.release(at, now);
        let releases = subscription.lingering.values().any(|held| release.allows(held));
        if !subscription.has_work() && !releases {
            return self.rest(at);
        }
        if waiting && !subscription.urgent {
            return Turn::Idle;
        }
        let gate = self.gate(at, now);
        let subscription = &mut self.subscriptions[at];
        if gate != Gate::Open {
            subscription.gated_since = subscription.gated_since.or(Some(now));
        }
        let properties = subscription.properties;
        let (ahead, last): (&[_], &[_]) = match gate {
            Gate::Closed => return Turn::Idle,
            Gate::Asked | Gate::AskedAndAgain => (properties.after, &[]),
            Gate::Open => (properties.after, properties.behind),
        };
        let types = [ahead, last];
        match self.plan_ahead(at, types, order::changes, view, differ, now) {
            Ahead::Nothing => self.plan(at, gate, view, differ, now),
            Ahead::Planned => {
                self.plan(at, gate, view, differ, now);
                return Turn::Again;
            }
            Ahead::Underway => return Turn::Again,
        }
        match self.subscriptions[at].train.is_some() {
            true => self.send_part(at, now),
            false => Turn::Settled,
        }
    }

    /// Ends the wait of a type that has nothing to send. Later changes start a new wait.
    fn rest(&mut self, at: usize) -> Turn {
        self.subscriptions[at].gated_since = None;
        Turn::Idle
    }

    /// Plans the next response of a type, as far as the gate allows.
    fn plan(&mut self, at: usize, gate: Gate, view: &View, differ: &Differ, now: u64) {
        let release = self.release(at, now);
        let subscription = &mut self.subscriptions[at];
        let of_type = view.of_type(&subscription.type_url);
        let moment = Moment { view: &of_type, revision: view.revision(), now };
        let touched = match gate {
            Gate::Closed => return,
            Gate::Asked => subscription.plan_asked(moment, Which::Asked),
            Gate::AskedAndAgain => subscription.plan_asked(moment, Which::AskedAndAgain),
            Gate::Open => subscription.plan(moment, release, differ),
        };
        if gate == Gate::Open {
            subscription.gated_since = None;
        }
        // If the stream has only one type, there are no children to send again.
        if self.kind.type_url.is_none() && self.subscriptions.len() > 1 {
            self.resend_children(at, &touched);
        }
    }

    /// Sends the rest of older responses of `types` before the type at `at`, without waiting for an
    /// ACK. Returns whether any response is left.
    fn hurry(&mut self, at: usize, types: &[&[&str]]) -> bool {
        let before = self.subscriptions[..at].iter_mut();
        let before =
            before.filter(|s| types.iter().any(|types| types.contains(&s.type_url.as_str())));
        let trains = before.filter_map(|s| s.train.as_mut());
        trains.map(|train| train.pace = Pace::AtOnce).count() > 0
    }

    /// Plans the due responses of `types`, which the type at `at` depends on or must follow
    /// (ADS-06, ADS-07). They do not wait for the answer to their last response. Either the wait of
    /// the type at `at` has ended (ADS-22), or the client just requested the type (ADS-26).
    ///
    /// All responses are planned from the view of the type at `at`, and are sent later. Planning
    /// each one only after sending the previous one would starve the last type if commits arrive
    /// faster than the transport takes responses.
    fn plan_ahead(
        &mut self,
        at: usize,
        types: [&[&str]; 2],
        due: fn(&Subscription) -> Gate,
        view: &View,
        differ: &Differ,
        now: u64,
    ) -> Ahead {
        if self.hurry(at, &types) {
            return Ahead::Underway;
        }
        let mut found = Ahead::Nothing;
        for other in 0..at {
            let s = &mut self.subscriptions[other];
            let is_ahead = types.iter().any(|types| types.contains(&s.type_url.as_str()));
            let gate = due(s);
            if !is_ahead || gate == Gate::Closed {
                continue;
            }
            self.plan(other, gate, view, differ, now);
            if let Some(train) = &mut self.subscriptions[other].train {
                train.pace = Pace::AtOnce;
                found = Ahead::Planned;
            }
        }
        found
    }

    /// Sends the next part of the pending response. Full states cannot be split (SOTW-70).
    fn send_part(&mut self, at: usize, now: u64) -> Turn {
        let subscription = &mut self.subscriptions[at];
        if !subscription.drop_given_up() {
            return Turn::Settled;
        }
        let Some(mut train) = subscription.train.take() else { return Turn::Idle };
        let protocol = subscription.protocol;
        let target = match subscription.is_full_state() {
            true => usize::MAX,
            false => self.config.response_bytes_target,
        };
        let resources = match subscription.properties.absent_as_alias {
            true => take_distinct(&mut train.resources, target, size_of(protocol)),
            false => train.resources.take_front(target, size_of(protocol)),
        };
        subscription.on_departed(&resources);
        self.last_nonce += 1;
        let mut response = Response {
            protocol,
            type_url: subscription.type_url.clone(),
            version: train.version.clone(),
            nonce: self.last_nonce,
            resources,
            removed: vec![],
            absent: vec![],
            revision: train.revision,
        };
        subscription.on_sent(Outstanding {
            nonce: self.last_nonce,
            sent_at: now,
            version: train.version.clone(),
            revision: train.covers,
            first_state: train.first_state.then_some(train.revision),
            resources: Some(response.resources.clone()),
        });
        if train.resources.is_empty() {
            // DELTA-53: additions precede removals. OPS-12: names count towards the size, too.
            let used = response.resources.iter().map(|r| size_of(protocol)(r)).sum();
            let mut left = target.saturating_sub(used);
            let alone = response.resources.is_empty();
            response.removed = take_names(&mut train.removed, &mut left, alone, removed_len);
            if train.removed.is_empty() {
                let alone = alone && response.removed.is_empty();
                response.absent = take_names(&mut train.absent, &mut left, alone, absent_len);
            }
            subscription.on_departed_absent(response.removed.iter().chain(&response.absent));
        }
        if !train.is_empty() {
            if train.pace == Pace::FirstAtOnce {
                train.pace = Pace::Wait;
            }
            subscription.train = Some(train);
        }
        Turn::Send(response)
    }

    /// Returns the time of the next poll that is necessary even without further events. `None`
    /// means that no deadline is pending.
    #[must_use]
    pub fn wake_at(&self, now: u64) -> Option<u64> {
        let busy = |s: &Subscription| s.has_work() || !s.lingering.is_empty();
        if !self.subscriptions.iter().any(busy) {
            return None;
        }
        let timeout = self.config.ack_timeout_ms;
        let deadlines = self.subscriptions.iter().flat_map(|s| {
            let held =
                (!s.lingering.is_empty()).then_some(s.opened_at + self.config.resume_hold_ms);
            [
                s.outstanding.back().map(|sent| sent.sent_at + timeout),
                s.last_sent_at.map(|sent| sent + timeout),
                s.gated_since.map(|since| since + timeout),
                s.lingering.oldest().map(|since| since + 3 * timeout),
                held,
            ]
        });
        deadlines.flatten().filter(|deadline| *deadline > now).min()
    }

    /// Ends the session and returns the resources that the client holds, if the client does not
    /// report them when it reconnects. The caller passes them to the client's next stream with
    /// [`Session::take_over`].
    pub fn take_remains(&mut self) -> Option<Remains> {
        // On a stream of one type, nothing waits for other types (ADS-24).
        if self.kind.type_url.is_some() {
            return None;
        }
        let left: Vec<_> =
            self.subscriptions.iter_mut().flat_map(Subscription::take_remains).collect();
        (!left.is_empty()).then_some(Remains(left))
    }

    /// Returns whether the client resumed a type without reporting its resources, and the session
    /// needs them. The caller then calls [`Session::take_over`].
    #[must_use]
    pub fn asks_for_remains(&self, type_url: &TypeUrl) -> bool {
        let of_type = self.subscriptions.iter().find(|s| s.type_url == *type_url);
        self.kind.type_url.is_none() && of_type.is_some_and(Subscription::asks_for_remains)
    }

    /// Adds the resources that the client holds from its earlier streams.
    pub fn take_over(&mut self, type_url: &TypeUrl, remains: &[Arc<Remains>]) {
        if let Some(s) = self.subscriptions.iter_mut().find(|s| s.type_url == *type_url) {
            s.take_over(remains);
        }
    }

    /// Returns the changes of the watched names since the last call.
    #[must_use]
    pub fn drain_interest(&mut self) -> Vec<Interest> {
        std::mem::take(self.interest.get_mut())
    }

    /// Returns everything that the session watches.
    #[must_use]
    pub fn interest(&self) -> Vec<Interest> {
        let mut all = Vec::new();
        for s in &self.subscriptions {
            if s.wildcard {
                all.push(Interest::Wildcard(s.type_url.clone()));
            }
            all.extend(s.names.keys().map(|n| Interest::Name(s.type_url.clone(), n.clone())));
        }
        all
    }

    /// Returns the status of each type, in the order of sending.
    #[must_use]
    pub fn status(&self) -> Vec<SubscriptionStatus> {
        self.subscriptions.iter().map(Subscription::status).collect()
    }

    /// Iterates over the types that the client has not acknowledged up to `revision`. The caller
    /// must have marked all changes up to that revision.
    pub fn unsettled(&self, revision: Revision) -> impl Iterator<Item = SubscriptionStatus> {
        let open = self.subscriptions.iter().filter(move |s| {
            let idle = !s.has_work() && s.outstanding.is_empty() && s.lingering.is_empty();
            s.nack().is_some() || !(idle || s.settled_revision >= revision)
        });
        open.map(Subscription::status)
    }
}

/// Takes resources for one response of a type with aliases. If two resources have a name in common,
/// the second one waits for the next response (DELTA-47).
fn take_distinct(
    resources: &mut Resources,
    bytes: usize,
    size: impl Fn(&Resource) -> usize,
) -> Resources {
    let seen = RefCell::new(BTreeSet::new());
    resources.take_front(bytes, |resource| {
        let mut names = std::iter::once(resource.name()).chain(resource.aliases());
        let mut seen = seen.borrow_mut();
        match names.any(|name| seen.contains(name)) {
            // A size that does not fit beside another resource.
            true => bytes.max(1),
            false => {
                seen.extend(std::iter::once(resource.name()).chain(resource.aliases()).cloned());
                size(resource)
            }
        }
    })
}

/// Takes names from the front while they fit into the bytes that are `left` in a response. If the
/// first name does not fit but would be alone in the response, it is taken anyway.
fn take_names(
    names: &mut VecDeque<ResourceName>,
    left: &mut usize,
    alone: bool,
    size: impl Fn(&ResourceName) -> usize,
) -> Vec<ResourceName> {
    let mut n = 0;
    for name in names.iter() {
        match left.checked_sub(size(name)) {
            Some(rest) => *left = rest,
            None if alone && n == 0 => *left = 0,
            None => break,
        }
        n += 1;
    }
    names.drain(..n).collect()
}

/// Truncates text to at most `max` bytes, at a character boundary.
fn cut(text: &mut String, max: usize) {
    if text.len() > max {
        let mut end = max;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
}
