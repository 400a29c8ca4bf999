//! What one stream asks for of one type, and what it was sent.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use chancery_model::{
    Resource, ResourceName, Revision, TypeUrl, TypeVersion, Version,
    types::{Properties, properties},
};
use chancery_view::{Resources, TypeView};

use crate::{
    Config, DeltaRequest, ErrorDetail, Interest, Nack, Protocol, ProtocolError, SotwRequest,
    SubscriptionStatus, SyncState, plan::Train,
};

/// Most unanswered responses that are remembered; an answer to an older one is taken for a stale one.
const OUTSTANDING_MAX: usize = 256;

/// Of so many unanswered responses it is remembered what is in them.
const CONTENTS_MAX: usize = 32;

/// The name that asks for everything (SOTW-60, DELTA-30).
const WILDCARD: &str = "*";

/// What the client was last told of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Held {
    /// Nothing yet.
    Nothing,
    /// That there is no such resource.
    Absent,
    /// Nothing on this stream; it says that it has this version.
    Version(Version),
    /// This resource.
    Sent(Arc<Resource>),
}

impl Held {
    /// The version that the client has.
    pub(crate) fn version(&self) -> Option<Version> {
        match self {
            Self::Nothing | Self::Absent => None,
            Self::Version(version) => Some(*version),
            Self::Sent(resource) => Some(resource.version()),
        }
    }
}

/// A resource that is gone, until its removal is announced.
#[derive(Debug, Clone)]
pub(crate) struct Lingering {
    /// As the client has it.
    pub(crate) resource: Arc<Resource>,
    /// The revision at which it was found to be gone.
    pub(crate) revision: Revision,
    /// When that was.
    pub(crate) since: u64,
}

/// A response that was not answered yet.
#[derive(Debug, Clone)]
pub(crate) struct Outstanding {
    pub(crate) nonce: u64,
    pub(crate) sent_at: u64,
    pub(crate) version: TypeVersion,
    /// With it, the client has everything up to this revision.
    pub(crate) revision: Revision,
    /// What it carries; `None` if that is too long ago to be remembered.
    pub(crate) resources: Option<Resources>,
}

/// The client's word on a response.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) outstanding: Outstanding,
    /// The rejection, if it is one.
    pub(crate) nack: Option<Nack>,
}

/// What one stream asks for of one type, and what it was sent.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) type_url: TypeUrl,
    pub(crate) properties: &'static Properties,
    pub(crate) protocol: Protocol,
    /// It asks for all of the view.
    pub(crate) wildcard: bool,
    /// A request was taken.
    opened: bool,
    /// The client holds something from an earlier stream, so that even its first answer keeps the
    /// order between types.
    pub(crate) resumed: bool,
    /// A non-empty list was seen, so that an empty one means nothing from now on (SOTW-62).
    named: bool,
    /// The names it asks for.
    pub(crate) names: BTreeMap<ResourceName, Held>,
    /// The view that a wildcard was brought to; `None` before the first time, and for names, of which
    /// each remembers what it was sent: so that no old state is kept for a few of its resources.
    pub(crate) base: Option<TypeView>,
    /// What a client said it holds when it asked for everything; used up by the first plan. `None` as
    /// a version: one that this cluster never gave.
    pub(crate) known: BTreeMap<ResourceName, Option<Version>>,
    /// Names that are answered whether or not they changed.
    pub(crate) pending: BTreeSet<ResourceName>,
    /// The pending names were just asked for: they do not wait for an ACK.
    pub(crate) urgent: bool,
    /// The opening request is answered even with nothing.
    pub(crate) answer_due: bool,
    /// Anything it is interested in may have changed.
    pub(crate) dirty: bool,
    /// Names that may have changed.
    pub(crate) stale: BTreeSet<ResourceName>,
    /// Resources that are gone, whose removal waits for what refers to them (ADS-08).
    pub(crate) lingering: BTreeMap<ResourceName, Lingering>,
    /// Since when it waits for types that come before it.
    pub(crate) gated_since: Option<u64>,
    /// The rest of a state that did not fit into one response.
    pub(crate) train: Option<Train>,
    /// Oldest first. More than one only for the parts of a train, and after timeouts.
    pub(crate) outstanding: VecDeque<Outstanding>,
    /// Parts of the last delta state that the client passed over: it acknowledged a later one. It may
    /// still reject them (DELTA-19).
    passed: Vec<Outstanding>,
    /// The nonce of the last response; 0 before the first.
    pub(crate) last_nonce: u64,
    pub(crate) last_sent_at: Option<u64>,
    pub(crate) opened_at: u64,
    /// A request that repeats the last one asks for children again (ADS-12).
    pub(crate) repeat_due: bool,
    pub(crate) sent: Option<TypeVersion>,
    acked: Option<TypeVersion>,
    /// The last rejection, as long as it stands.
    nack: Option<Nack>,
    /// Resources that were in rejected responses, and are still what the client was last sent.
    rejected: Vec<Arc<Resource>>,
    /// A response was rejected of which it does not matter, or is not known, what was in it.
    rejects_state: bool,
    /// The client has acknowledged everything up to here.
    pub(crate) settled_revision: Revision,
    /// The client was sent everything up to here.
    pub(crate) planned_revision: Revision,
}

impl Subscription {
    pub(crate) fn new(type_url: TypeUrl, protocol: Protocol, now: u64) -> Self {
        Self {
            properties: properties(&type_url),
            type_url,
            protocol,
            wildcard: false,
            opened: false,
            resumed: false,
            named: false,
            names: BTreeMap::new(),
            base: None,
            known: BTreeMap::new(),
            pending: BTreeSet::new(),
            urgent: false,
            answer_due: false,
            dirty: false,
            stale: BTreeSet::new(),
            lingering: BTreeMap::new(),
            gated_since: None,
            train: None,
            outstanding: VecDeque::new(),
            passed: Vec::new(),
            last_nonce: 0,
            last_sent_at: None,
            opened_at: now,
            repeat_due: false,
            sent: None,
            acked: None,
            nack: None,
            rejected: Vec::new(),
            rejects_state: false,
            settled_revision: Revision(0),
            planned_revision: Revision(0),
        }
    }

    /// Whether the type can be asked for as a whole (SOTW-68). A type without a SotW method is opaque
    /// there (SVC-05).
    fn wildcard_allowed(&self) -> bool {
        let service = self.properties.service.as_ref();
        self.properties.wildcard
            && (self.protocol == Protocol::Delta || service.is_some_and(|s| s.sotw.is_some()))
    }

    // === requests ===

    /// Takes a state-of-the-world request.
    pub(crate) fn on_sotw(
        &mut self,
        request: &SotwRequest,
        shared: &Names<'_>,
        now: u64,
    ) -> Result<Option<Answer>, ProtocolError> {
        let first = !std::mem::replace(&mut self.opened, true);
        let nonce = parse_nonce(&request.response_nonce);
        // SOTW-34: a request with an older nonce gets no response of its own. Its names are taken all
        // the same (SOTW-35): the client's later ACK repeats them, and then nothing is new in it.
        let current = nonce == Some(self.last_nonce);
        let (added, removed) = self.set_names(&request.resource_names, shared)?;
        // The last response answers for those before it; an earlier one may still be rejected.
        let at = self.outstanding.iter().position(|sent| Some(sent.nonce) == nonce && !first);
        let answer = match at {
            Some(_) if current => self.outstanding.drain(..).next_back(),
            Some(at) => self.outstanding.remove(at),
            None => None,
        };
        let repeated = current && answer.is_none() && !added && !removed;
        if repeated && request.error_detail.is_none() && std::mem::take(&mut self.repeat_due) {
            self.pending.extend(self.names.keys().cloned());
        }
        if first {
            let asks = self.wildcard || !self.names.is_empty();
            self.answer_due |= self.properties.answer_empty && asks;
            self.resumed = !request.version_info.is_empty();
        }
        // SOTW-37: an empty nonce is a fresh subscription, not a stale one.
        self.urgent |= added && (current || first || request.response_nonce.is_empty());
        let answer = answer.map(|sent| self.on_answer(sent, request.error_detail.as_ref(), now));
        self.review_rejections();
        Ok(answer)
    }

    /// Replaces the list of names (SOTW-40, SOTW-60 to -67). Says whether some were added, and whether
    /// some were removed.
    fn set_names(
        &mut self,
        list: &[String],
        shared: &Names<'_>,
    ) -> Result<(bool, bool), ProtocolError> {
        let legacy = list.is_empty() && !self.named;
        self.named |= !list.is_empty();
        let asked = legacy || list.iter().any(|name| name == WILDCARD);
        let wildcard = self.wildcard_allowed() && asked;
        let started = wildcard && !self.wildcard;
        if self.wildcard && !wildcard {
            self.remember_names();
        }
        if wildcard != self.wildcard {
            self.wildcard = wildcard;
            shared.note(Interest::wildcard(&self.type_url, wildcard));
        }
        if started {
            (self.base, self.answer_due, self.dirty) = (None, true, true);
        }
        if !wildcard {
            self.base = None;
            self.lingering.retain(|name, _| list.iter().any(|wanted| wanted == name.as_str()));
        }
        let mut fresh = BTreeSet::new();
        let mut kept = 0;
        for name in list.iter().filter(|name| !name.is_empty() && *name != WILDCARD) {
            if self.names.contains_key(name.as_str()) {
                kept += 1;
            } else {
                fresh.insert(shared.name(name)?);
            }
        }
        let mut removed = false;
        // Repeated names only make the search below needless work, never wrong.
        if kept < self.names.len() || !fresh.is_empty() {
            let wanted: BTreeSet<&str> = list.iter().map(String::as_str).collect();
            let gone: Vec<ResourceName> =
                self.names.keys().filter(|n| !wanted.contains(n.as_str())).cloned().collect();
            removed = !gone.is_empty();
            for name in &gone {
                self.forget(name, shared);
            }
        }
        let added = started || !fresh.is_empty();
        for name in fresh {
            self.ask(name, shared);
        }
        if !self.wildcard && self.names.is_empty() {
            self.answer_due = false;
        }
        shared.check_count(self.names.len())?;
        Ok((added, removed))
    }

    /// Takes a delta request.
    pub(crate) fn on_delta(
        &mut self,
        request: &DeltaRequest,
        shared: &Names<'_>,
        now: u64,
    ) -> Result<Option<Answer>, ProtocolError> {
        let first = !std::mem::replace(&mut self.opened, true);
        let named = |list: &[String], star: bool| {
            list.iter().any(|name| (name == WILDCARD) == star && !name.is_empty())
        };
        let lists_empty = request.subscribe.is_empty() && request.unsubscribe.is_empty();
        // DELTA-20: of `*` in both lists, unsubscribe wins.
        let star_off = named(&request.unsubscribe, true);
        let star_on = (named(&request.subscribe, true) || (first && lists_empty))
            && !star_off
            && self.wildcard_allowed();
        let subscribe: Vec<ResourceName> = (request.subscribe.iter())
            .filter(|name| !name.is_empty() && *name != WILDCARD)
            .map(|name| shared.name(name))
            .collect::<Result<_, _>>()?;
        // The wildcard first: a name that is given up for it is given up beside it.
        if star_off && self.wildcard {
            self.end_wildcard(shared);
        }
        if star_on && !self.wildcard {
            self.start_wildcard(shared);
        }
        for name in request.unsubscribe.iter().filter(|name| *name != WILDCARD) {
            let Some((name, _)) = self.names.get_key_value(name.as_str()) else { continue };
            let name = name.clone();
            self.forget(&name, shared);
            if self.wildcard {
                // DELTA-24: the client does not know whether the wildcard still covers it.
                self.pending.insert(name);
                self.urgent = true;
            }
        }
        if first {
            self.take_initial_versions(request, shared)?;
        }
        for name in subscribe {
            self.ask(name, shared);
            self.urgent = true;
        }
        let nonce = parse_nonce(&request.response_nonce).filter(|_| !first);
        let answered = self.take_answered(nonce, request.error_detail.is_some());
        let answer = answered.map(|sent| self.on_answer(sent, request.error_detail.as_ref(), now));
        self.review_rejections();
        shared.check_count(self.names.len())?;
        Ok(answer)
    }

    /// Takes what the client says it holds (DELTA-22, -46, -57 to -59).
    fn take_initial_versions(
        &mut self,
        request: &DeltaRequest,
        shared: &Names<'_>,
    ) -> Result<(), ProtocolError> {
        let versions = &request.initial_resource_versions;
        // A client may list what it wants only there (`clients.md` rule 7): names it would otherwise
        // have to subscribe to, in a type that has no wildcard.
        let implied = request.subscribe.is_empty()
            && request.unsubscribe.is_empty()
            && !self.wildcard_allowed();
        shared.check_count(self.names.len() + versions.len())?;
        self.resumed = !versions.is_empty();
        for (name, version) in versions.iter().filter(|(name, _)| !name.is_empty()) {
            let name = shared.name(name)?;
            let version = Version::parse(version);
            if implied {
                shared.note(Interest::Name(self.type_url.clone(), name.clone()));
                let held = version.map_or(Held::Nothing, Held::Version);
                let check = if held == Held::Nothing { &mut self.pending } else { &mut self.stale };
                check.insert(name.clone());
                self.names.insert(name.clone(), held);
            }
            self.known.insert(name, version);
        }
        Ok(())
    }

    fn start_wildcard(&mut self, shared: &Names<'_>) {
        self.wildcard = true;
        shared.note(Interest::wildcard(&self.type_url, true));
        let held = self.names.iter();
        let held = held.filter_map(|(name, held)| Some((name.clone(), Some(held.version()?))));
        self.known.extend(held);
        (self.base, self.answer_due, self.dirty) = (None, self.properties.answer_empty, true);
    }

    /// DELTA-36: named resources stay, and what the wildcard brought of them is remembered.
    fn end_wildcard(&mut self, shared: &Names<'_>) {
        self.wildcard = false;
        shared.note(Interest::wildcard(&self.type_url, false));
        self.answer_due = false;
        self.remember_names();
        self.base = None;
        // The client drops what it does not name, and with it what it said it holds.
        self.lingering.retain(|name, _| self.names.contains_key(name));
        self.known.retain(|name, _| self.names.contains_key(name));
        self.pending.retain(|name| self.names.contains_key(name));
        // A state that was not sent to its end: what is left of it is no longer asked for.
        if self.train.take().is_some() {
            self.pending.extend(self.names.keys().cloned());
        }
    }

    /// What the wildcard brought of the names that stay.
    fn remember_names(&mut self) {
        let Self { names, base, lingering, .. } = self;
        for (name, held) in names {
            let resource = base.as_ref().and_then(|base| base.get(name.as_str()));
            let resource = resource.or_else(|| Some(&lingering.get(name)?.resource));
            if let Some(resource) = resource {
                *held = Held::Sent(Arc::clone(resource));
            }
        }
    }

    fn ask(&mut self, name: ResourceName, shared: &Names<'_>) {
        if !self.names.contains_key(&name) {
            shared.note(Interest::Name(self.type_url.clone(), name.clone()));
            self.names.insert(name.clone(), Held::Nothing);
        }
        self.pending.insert(name);
    }

    /// Drops a name and all that was remembered of it, so that asking again sends it again (SOTW-44,
    /// DELTA-27).
    fn forget(&mut self, name: &ResourceName, shared: &Names<'_>) {
        shared.note(Interest::NoName(self.type_url.clone(), name.clone()));
        self.names.remove(name);
        self.pending.remove(name);
        self.stale.remove(name);
        if let Some(train) = &mut self.train {
            train.shrunk = true;
        }
        if !self.wildcard {
            self.known.remove(name);
            self.lingering.remove(name);
        }
    }

    // === answers ===

    /// The delta response that a nonce names. Clients take responses in order: what comes before it
    /// counts as answered too, unless it is still rejected (DELTA-19).
    fn take_answered(&mut self, nonce: Option<u64>, rejects: bool) -> Option<Outstanding> {
        if let Some(at) = self.outstanding.iter().position(|sent| Some(sent.nonce) == nonce) {
            let over = self.outstanding.drain(..at).filter(|sent| sent.resources.is_some());
            self.passed.extend(over);
            let excess = self.passed.len().saturating_sub(CONTENTS_MAX);
            self.passed.drain(..excess);
            return self.outstanding.pop_front();
        }
        let at = self.passed.iter().position(|sent| Some(sent.nonce) == nonce)?;
        let sent = self.passed.swap_remove(at);
        rejects.then_some(sent)
    }

    /// Records an ACK or a NACK (SOTW-20, SOTW-28).
    fn on_answer(&mut self, sent: Outstanding, error: Option<&ErrorDetail>, now: u64) -> Answer {
        let Some(error) = error else {
            self.acked = Some(sent.version.clone());
            self.rejects_state = false;
            if self.outstanding.is_empty() {
                self.settled_revision = self.settled_revision.max(sent.revision);
            }
            return Answer { outstanding: sent, nack: None };
        };
        let nack = Nack {
            version: sent.version.clone(),
            code: error.code,
            message: error.message.clone(),
            at_ms: now,
        };
        self.nack = Some(nack.clone());
        let full_state = self.protocol == Protocol::Sotw && self.properties.full_state;
        match &sent.resources {
            Some(resources) if !full_state && !resources.is_empty() => {
                self.rejected.extend(resources.iter().cloned());
            }
            _ => self.rejects_state = true,
        }
        Answer { outstanding: sent, nack: Some(nack) }
    }

    /// Drops rejections that stand no longer. One stands until the client has acknowledged what replaces
    /// it, or it has been deleted or given up.
    pub(crate) fn review_rejections(&mut self) {
        if self.nack.is_none() {
            return;
        }
        let mut rejected = std::mem::take(&mut self.rejected);
        rejected.retain(|resource| {
            let sent = self.sent_of(resource);
            let unanswered = self.train.is_some() || !self.outstanding.is_empty();
            sent.is_some_and(|sent| sent == resource || unanswered)
        });
        self.rejected = rejected;
        let asks = self.wildcard || !self.names.is_empty();
        if !asks || (self.rejected.is_empty() && !self.rejects_state) {
            (self.nack, self.rejects_state) = (None, false);
        }
    }

    /// What the client was last sent in the place of a resource.
    fn sent_of(&self, resource: &Resource) -> Option<&Arc<Resource>> {
        if self.wildcard {
            return self.base.as_ref()?.get(resource.name().as_str());
        }
        let mut names = std::iter::once(resource.name()).chain(resource.aliases());
        names.find_map(|name| match self.names.get(name)? {
            Held::Sent(sent) => Some(sent),
            Held::Nothing | Held::Absent | Held::Version(_) => None,
        })
    }

    /// Records that a response was sent.
    pub(crate) fn on_sent(&mut self, sent: Outstanding) {
        if self.outstanding.is_empty() {
            self.passed.clear();
        }
        self.last_nonce = sent.nonce;
        self.last_sent_at = Some(sent.sent_at);
        self.sent = Some(sent.version.clone());
        if self.outstanding.len() == OUTSTANDING_MAX {
            self.outstanding.pop_front();
        }
        // Remembering what is in a response keeps its resources alive.
        if let Some(old) = self.outstanding.iter_mut().rev().nth(CONTENTS_MAX) {
            old.resources = None;
        }
        self.outstanding.push_back(sent);
    }

    pub(crate) fn nack(&self) -> Option<&Nack> {
        self.nack.as_ref()
    }

    // === what it is waiting for ===

    /// Something is to be sent, as far as is known without looking.
    pub(crate) fn has_work(&self) -> bool {
        self.dirty
            || self.answer_due
            || !self.stale.is_empty()
            || !self.pending.is_empty()
            || self.train.is_some()
    }

    /// An answer is being waited for, and not for too long yet.
    pub(crate) fn awaits_answer(&self, config: &Config, now: u64) -> bool {
        self.outstanding.back().is_some_and(|sent| sent.sent_at + config.ack_timeout_ms > now)
    }

    /// All there is for the client has been sent and answered, or was given up on.
    pub(crate) fn is_quiet(&self, config: &Config, now: u64) -> bool {
        !self.has_work() && !self.awaits_answer(config, now)
    }

    /// The client has, or was given time to take, everything up to this revision.
    pub(crate) fn reached(&self, config: &Config, now: u64) -> Revision {
        if self.is_quiet(config, now) && self.lingering.is_empty() {
            Revision(u64::MAX)
        } else if self.train.is_some() || self.awaits_answer(config, now) {
            self.settled_revision
        } else {
            self.planned_revision
        }
    }

    /// Whether the client was sent the resource of this name.
    pub(crate) fn holds(&self, name: &ResourceName) -> bool {
        let covered = self.wildcard
            && self.base.as_ref().is_some_and(|base| base.get(name.as_str()).is_some());
        covered || matches!(self.names.get(name), Some(Held::Sent(_)))
    }

    /// Whether the client asks for the resource, by its name or by an alias.
    pub(crate) fn asks_for(&self, resource: &Resource) -> bool {
        let mut all = std::iter::once(resource.name()).chain(resource.aliases());
        self.wildcard || all.any(|name| self.names.contains_key(name))
    }

    pub(crate) fn status(&self) -> SubscriptionStatus {
        let state = match &self.nack {
            Some(_) if self.outstanding.is_empty() => SyncState::Nacked,
            _ if self.has_work() || !self.outstanding.is_empty() => SyncState::Pending,
            _ if self.acked.is_some() => SyncState::Synced,
            _ => SyncState::Idle,
        };
        SubscriptionStatus {
            type_url: self.type_url.clone(),
            wildcard: self.wildcard,
            n_names: self.names.len(),
            sent: self.sent.clone(),
            acked: self.acked.clone(),
            state,
            nack: self.nack.clone(),
            n_held_removals: self.lingering.len(),
        }
    }
}

/// A nonce as this program writes it. Anything else names no response of ours.
fn parse_nonce(text: &str) -> Option<u64> {
    let nonce = text.parse().ok().filter(|nonce| *nonce > 0)?;
    (text == u64::to_string(&nonce)).then_some(nonce)
}

/// What taking a request needs beside the subscription: names that are shared with the view's, the
/// limit on their number, and where changes of interest are noted.
pub(crate) struct Names<'a> {
    pub(crate) view: Option<TypeView>,
    pub(crate) others: usize,
    pub(crate) max: usize,
    pub(crate) interest: &'a std::cell::RefCell<Vec<Interest>>,
}

impl Names<'_> {
    /// The name as the view has it, so that a subscription holds no copy of it.
    fn name(&self, name: &str) -> Result<ResourceName, ProtocolError> {
        let resource = self.view.as_ref().and_then(|view| view.get(name));
        match resource.filter(|resource| resource.name().as_str() == name) {
            Some(resource) => Ok(resource.name().clone()),
            None => ResourceName::requested(name).map_err(ProtocolError::Name),
        }
    }

    fn check_count(&self, names: usize) -> Result<(), ProtocolError> {
        let found = self.others + names;
        if found > self.max {
            return Err(ProtocolError::NamesTooMany { found, max: self.max });
        }
        Ok(())
    }

    fn note(&self, interest: Interest) {
        self.interest.borrow_mut().push(interest);
    }
}
