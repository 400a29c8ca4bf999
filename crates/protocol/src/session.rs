//! A session: all types of one stream, and the order between them.

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

/// Something that the session wants to be told of, or no longer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Interest {
    /// One name.
    Name(TypeUrl, ResourceName),
    /// That name no longer.
    NoName(TypeUrl, ResourceName),
    /// All of a type.
    Wildcard(TypeUrl),
    /// All of a type no longer; names that were asked for beside it stay.
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

/// The client's word on a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It was accepted.
    Ack {
        /// The revision that the response was built from.
        revision: Revision,
        /// The time between response and answer, in milliseconds.
        waited_ms: u64,
    },
    /// It was rejected.
    Nack {
        /// The version that was rejected.
        version: TypeVersion,
        /// The client's code.
        code: i32,
        /// The client's message, cut to the limit.
        message: String,
    },
}

/// What a request was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The type that it was for.
    pub type_url: TypeUrl,
    /// What it says of a response, if it answers one.
    pub verdict: Option<Verdict>,
    /// What it is, in one word.
    pub kind: RequestKind,
}

/// What a request is, in one word: the first of these that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// It accepts a response, whatever else it does.
    Ack,
    /// It rejects a response.
    Nack,
    /// It changes what the stream asks for, or opens a type.
    Subscribe,
    /// It names another response than the last one, and changes nothing (SOTW-34).
    Stale,
    /// It says nothing new.
    Repeat,
}

/// The protocol state of one stream.
#[derive(Debug)]
pub struct Session {
    kind: StreamKind,
    config: Arc<Config>,
    /// In the order of sending (ADS-04).
    subscriptions: Vec<Subscription>,
    interest: RefCell<Vec<Interest>>,
    /// Secrets that are sent again when these endpoints have been sent, because Envoy asks for the secrets of a
    /// cluster when it has its endpoints (ADS-19).
    secrets_waiting: BTreeMap<ResourceName, BTreeSet<ResourceName>>,
    last_nonce: u64,
}

/// The work that goes before a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ahead {
    /// Nothing.
    Nothing,
    /// Changes, which are planned now.
    Planned,
    /// The rest of an older state, which has to be sent before anything can be planned.
    Underway,
}

/// What looking at one type came to.
enum Turn {
    /// A response.
    Send(Response),
    /// Nothing to send, but others may have waited for that to be known.
    Settled,
    /// A type before it is to be sent now.
    Again,
    /// Nothing.
    Idle,
}

impl Session {
    /// The state of a stream that has just been opened.
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

    /// Takes a request. `view` is what the node sees now; `None` if no assignment holds for it.
    ///
    /// # Errors
    /// If the stream has to be ended; the error says with what code.
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

    /// The type and the contents of the response that `request` answers. `None` if the session does not know
    /// them.
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

    /// The types and the contents of all responses of this stream that are unanswered, or were passed over by a later
    /// answer.
    pub fn unanswered_contents(&self) -> impl Iterator<Item = (&TypeUrl, &Resources)> {
        self.subscriptions.iter().flat_map(|subscription| {
            let contents = subscription.unanswered_contents();
            contents.map(move |contents| (&subscription.type_url, contents))
        })
    }

    /// The type of a request (SVC-06 to -10).
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

    /// The place of a type's subscription, which is opened if it is not yet there.
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

    /// The next response that may be sent now, built from `view`. To be called again until there is
    /// none, and only when the stream can take one. `view` is never older than that of the call before.
    pub fn poll(&mut self, view: Option<&View>, differ: &Differ, now: u64) -> Option<Response> {
        // OPS-05: an unknown view is not an empty one.
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
            // SOTW-36: one unacknowledged response at most; delta parts may follow each other.
            if waiting && train.pace == Pace::Wait && subscription.protocol == Protocol::Sotw {
                return Turn::Idle;
            }
            // ADS-06: of the types before it, what was asked for since this was planned. Their changes since then keep
            // their own order.
            let before = [subscription.properties.after, &[]];
            return match self.plan_ahead(at, before, order::asked, view, differ, now) {
                Ahead::Nothing => self.send_part(at, now),
                Ahead::Planned | Ahead::Underway => Turn::Again,
            };
        }
        // Most types, most of the time: what others are waiting for does not matter.
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

    /// Nothing of a type waits any more. What comes later has its own time to wait.
    fn rest(&mut self, at: usize) -> Turn {
        self.subscriptions[at].gated_since = None;
        Turn::Idle
    }

    /// Brings a type to the view, as far as the gate lets it.
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
        // Of a first type nothing else has been sent yet.
        if self.kind.type_url.is_none() && self.subscriptions.len() > 1 {
            self.resend_children(at, &touched);
        }
    }

    /// Lets what is left of older states of `types` go before the type at `at`, without waiting for an ACK. Says
    /// whether there is anything left of them.
    fn hurry(&mut self, at: usize, types: &[&[&str]]) -> bool {
        let before = self.subscriptions[..at].iter_mut();
        let before =
            before.filter(|s| types.iter().any(|types| types.contains(&s.type_url.as_str())));
        let trains = before.filter_map(|s| s.train.as_mut());
        trains.map(|train| train.pace = Pace::AtOnce).count() > 0
    }

    /// Plans what is due of `types`, on which the type at `at` depends and which are to be written before it
    /// (ADS-06, ADS-07). They do not wait for the answer to their last response: the type at `at` has waited
    /// for that as long as it may (ADS-22), or the client has just asked for it (ADS-26).
    ///
    /// All are planned from the view that the type at `at` is planned from, and then only sent. If each was
    /// planned when the one before it was sent, commits that come faster than the transport takes responses
    /// would keep the last one from ever being sent.
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

    /// Sends the front of the train. Full states can not be cut (SOTW-70).
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
            // DELTA-53: additions before removals. OPS-12: names count, too.
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

    /// When to poll again though nothing has happened until then.
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

    /// What the client is left with, if it does not say so itself when it comes back: to be given to its
    /// next stream by [`Session::take_over`]. The session is over with this.
    pub fn take_remains(&mut self) -> Option<Remains> {
        // On a stream of one type nothing waits for other types (ADS-24).
        if self.kind.type_url.is_some() {
            return None;
        }
        let left: Vec<_> =
            self.subscriptions.iter_mut().flat_map(Subscription::take_remains).collect();
        (!left.is_empty()).then_some(Remains(left))
    }

    /// Whether the client has just asked again for a type of which it matters what it holds, and does
    /// not say what that is.
    #[must_use]
    pub fn asks_for_remains(&self, type_url: &TypeUrl) -> bool {
        let of_type = self.subscriptions.iter().find(|s| s.type_url == *type_url);
        self.kind.type_url.is_none() && of_type.is_some_and(Subscription::asks_for_remains)
    }

    /// Takes over what earlier streams of the same client have left it with.
    pub fn take_over(&mut self, type_url: &TypeUrl, remains: &[Arc<Remains>]) {
        if let Some(s) = self.subscriptions.iter_mut().find(|s| s.type_url == *type_url) {
            s.take_over(remains);
        }
    }

    /// What the session has become interested in since the last call, or no longer is.
    #[must_use]
    pub fn drain_interest(&mut self) -> Vec<Interest> {
        std::mem::take(self.interest.get_mut())
    }

    /// All that the session is interested in.
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

    /// How far the client is, by type, in the order of sending.
    #[must_use]
    pub fn status(&self) -> Vec<SubscriptionStatus> {
        self.subscriptions.iter().map(Subscription::status).collect()
    }

    /// The types that the client has not acknowledged up to `revision`. The caller has marked all
    /// changes up to there.
    pub fn unsettled(&self, revision: Revision) -> impl Iterator<Item = SubscriptionStatus> {
        let open = self.subscriptions.iter().filter(move |s| {
            let idle = !s.has_work() && s.outstanding.is_empty() && s.lingering.is_empty();
            s.nack().is_some() || !(idle || s.settled_revision >= revision)
        });
        open.map(Subscription::status)
    }
}

/// Takes resources for one response of a type that is asked for by aliases. Of two that have a name in
/// common the second goes with the next response (DELTA-47).
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
            // More than fits beside another.
            true => bytes.max(1),
            false => {
                seen.extend(std::iter::once(resource.name()).chain(resource.aliases()).cloned());
                size(resource)
            }
        }
    })
}

/// Takes names from the front as long as they fit into the bytes that are left of a response; the first one also
/// where it does not fit, if it would be alone in the response.
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

/// Cuts text to at most `max` bytes, between characters.
fn cut(text: &mut String, max: usize) {
    if text.len() > max {
        let mut end = max;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
}
