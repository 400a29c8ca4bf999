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
    Config, Nack, Protocol, Remains, SubscriptionStatus, SyncState, plan::Train, remains::Left,
    removals::PendingRemovals,
};

mod answers;
mod rejections;
mod requests;

use rejections::Rejections;
pub(crate) use requests::{Names, parse_nonce};

/// Most unanswered responses that are remembered; an answer to an older one is taken for a stale one.
const OUTSTANDING_MAX: usize = 256;

/// Of so many unanswered responses it is remembered what is in them.
const CONTENTS_MAX: usize = 32;

/// Bytes that a name takes beside its text: its places in the subscription and in the index of its shard.
pub(crate) const NAME_COST_BYTES: usize = 192;

/// Bytes that a removal takes beside its text while it waits. Nothing else may know its name and its resource.
pub(crate) const REMOVAL_COST_BYTES: usize = 2 * NAME_COST_BYTES;

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
    /// The revision at which it was last looked for and found: it is gone since some revision after that.
    pub(crate) seen: Revision,
    /// When it was found to be gone.
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
    /// The revision of the first state of which this is a part, if it is one.
    pub(crate) first_state: Option<Revision>,
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
    /// Bytes of the texts of `names`.
    pub(crate) names_bytes: usize,
    /// The view that a wildcard was brought to; `None` before the first time, and for names, of which
    /// each remembers what it was sent: so that no old state is kept for a few of its resources.
    pub(crate) base: Option<TypeView>,
    /// What a client said it holds when it asked for everything; used up by the first plan. `None` as
    /// a version: one that this cluster never gave.
    pub(crate) known: BTreeMap<ResourceName, Option<Version>>,
    /// Bytes of the texts that `known` was made from.
    pub(crate) known_bytes: usize,
    /// Names that are answered whether or not they changed.
    pub(crate) pending: BTreeSet<ResourceName>,
    /// Names that are sent again because what refers to them was sent (ADS-11).
    pub(crate) again: BTreeSet<ResourceName>,
    /// Delta: names of `again` that are gone from the view. The client waits for them: if they come back, they are sent,
    /// changed or not.
    pub(crate) unmet: BTreeSet<ResourceName>,
    /// Told ahead of all other changes to a wildcard, which `base` does not know of; `None`: that there is
    /// none.
    pub(crate) ahead: BTreeMap<ResourceName, Option<Arc<Resource>>>,
    /// The pending names were just asked for: they do not wait for an ACK.
    pub(crate) urgent: bool,
    /// Names were added by a request that the client sent before it had the last response.
    pub(crate) late: bool,
    /// The opening request is answered even with nothing.
    pub(crate) answer_due: bool,
    /// Anything it is interested in may have changed.
    pub(crate) dirty: bool,
    /// Names that may have changed.
    pub(crate) stale: BTreeSet<ResourceName>,
    /// Resources that are gone, whose removal waits for what refers to them (ADS-08).
    pub(crate) lingering: PendingRemovals,
    /// The version that the client came with, if the type is remembered for it; used up by
    /// [`Subscription::take_over`].
    came_with: Option<String>,
    /// What is in that version; used up by the first plan.
    pub(crate) left: Option<Resources>,
    /// The last response that was accepted, if the type is remembered for the client's next stream.
    accepted: Option<(TypeVersion, Resources)>,
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
    /// The last answer, or the first response after it: since then the client is silent, if it owes an
    /// answer.
    silent_since: u64,
    pub(crate) opened_at: u64,
    /// A request that repeats the last one asks for children again (ADS-12).
    pub(crate) repeat_due: bool,
    pub(crate) sent: Option<TypeVersion>,
    acked: Option<TypeVersion>,
    /// The last rejection, as long as it stands.
    nack: Option<Nack>,
    /// Resources that were in rejected responses, and are still what the client was last sent.
    pub(crate) rejected: Rejections,
    /// A response was rejected of which it does not matter, or is not known, what was in it.
    rejects_state: bool,
    /// Something that was gone, which the client was not told, is on its way again.
    pub(crate) returned: bool,
    /// The client has acknowledged everything up to here.
    pub(crate) settled_revision: Revision,
    /// The client was sent everything up to here.
    pub(crate) planned_revision: Revision,
    /// All changes up to here were looked at.
    pub(crate) seen_revision: Revision,
}

impl Subscription {
    pub(crate) fn new(type_url: TypeUrl, protocol: Protocol, config: &Config, now: u64) -> Self {
        Self {
            properties: properties(&type_url),
            type_url,
            protocol,
            wildcard: false,
            opened: false,
            resumed: false,
            named: false,
            names: BTreeMap::new(),
            names_bytes: 0,
            base: None,
            known: BTreeMap::new(),
            known_bytes: 0,
            pending: BTreeSet::new(),
            again: BTreeSet::new(),
            unmet: BTreeSet::new(),
            ahead: BTreeMap::new(),
            urgent: false,
            late: false,
            answer_due: false,
            dirty: false,
            stale: BTreeSet::new(),
            lingering: PendingRemovals::default(),
            came_with: None,
            left: None,
            accepted: None,
            gated_since: None,
            train: None,
            outstanding: VecDeque::new(),
            passed: Vec::new(),
            last_nonce: 0,
            last_sent_at: None,
            silent_since: now,
            opened_at: now,
            repeat_due: false,
            sent: None,
            acked: None,
            nack: None,
            rejected: Rejections::new(config.first_state_listed_max),
            rejects_state: false,
            returned: false,
            settled_revision: Revision(0),
            planned_revision: Revision(0),
            seen_revision: Revision(0),
        }
    }

    /// What is on its way now need not be sent again, though it was asked for since it was planned.
    pub(crate) fn on_departed(&mut self, resources: &Resources) {
        if self.pending.is_empty() && self.again.is_empty() {
            return;
        }
        for resource in resources.iter() {
            for name in std::iter::once(resource.name()).chain(resource.aliases()) {
                self.again.remove(name);
                if self.pending.remove(name) && self.names.contains_key(name) {
                    // It may have changed since, and the mark be gone with the name.
                    self.names.insert(name.clone(), Held::Sent(Arc::clone(resource)));
                    self.stale.insert(name.clone());
                }
            }
        }
        self.urgent &= self.answer_due || !self.pending.is_empty();
    }

    /// The same for names that it says do not exist.
    pub(crate) fn on_departed_absent<'a>(&mut self, names: impl Iterator<Item = &'a ResourceName>) {
        if self.pending.is_empty() {
            return;
        }
        for name in names {
            if self.pending.remove(name) && self.names.contains_key(name) {
                self.names.insert(name.clone(), Held::Absent);
                self.stale.insert(name.clone());
            }
        }
        self.urgent &= self.answer_due || !self.pending.is_empty();
    }

    /// SOTW-46, DELTA-28: takes off the train what was given up since. Says whether anything is left of it.
    pub(crate) fn drop_given_up(&mut self) -> bool {
        let Some(mut train) = self.train.take_if(|train| !train.given_up.is_empty()) else {
            return true;
        };
        let mut rest = Resources::default();
        let asked = train.resources.iter().filter(|resource| self.asks_for(resource));
        asked.for_each(|resource| rest.push(Arc::clone(resource)));
        train.resources = rest;
        let given_up = std::mem::take(&mut train.given_up);
        train.removed.retain(|name| !given_up.contains(name));
        train.absent.retain(|name| !given_up.contains(name));
        if train.is_empty() {
            self.on_nothing_left(train.covers);
            return false;
        }
        self.train = Some(train);
        true
    }

    /// Whether its removals have to wait for others although its client does not say what it holds.
    fn is_remembered(&self) -> bool {
        self.is_full_state() && !self.properties.referrers.is_empty()
    }

    /// Whether its first answer depends on what the client was left with.
    pub(crate) fn asks_for_remains(&self) -> bool {
        self.came_with.is_some()
    }

    /// Finds what the client says it has among what it was left with. Of equal versions the last one
    /// counts.
    pub(crate) fn take_over(&mut self, remains: &[Arc<Remains>]) {
        let Some(version) = self.came_with.take() else { return };
        let mut all = remains.iter().flat_map(|remains| &remains.0).rev();
        let left = all.find(|left| left.type_url == self.type_url && left.version == version);
        self.left = left.map(|left| left.resources.clone());
    }

    /// What the client is left with when the stream ends.
    pub(crate) fn take_remains(&mut self) -> Vec<Left> {
        if !self.is_remembered() {
            return Vec::new();
        }
        let unanswered = self.outstanding.drain(..);
        let unanswered = unanswered.filter_map(|sent| Some((sent.version, sent.resources?)));
        let left = |(version, resources): (TypeVersion, Resources)| Left {
            type_url: self.type_url.clone(),
            version: version.to_string(),
            resources,
        };
        self.accepted.take().into_iter().chain(unanswered).map(left).collect()
    }

    /// Records that a response was sent.
    pub(crate) fn on_sent(&mut self, sent: Outstanding) {
        if self.outstanding.is_empty() {
            self.passed.clear();
            self.silent_since = sent.sent_at;
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

    /// The contents of the response with this nonce, if it is unanswered and its contents are still known.
    pub(crate) fn contents_of(&self, nonce: u64) -> Option<&Resources> {
        let mut unanswered = self.outstanding.iter().chain(&self.passed);
        unanswered.find(|sent| sent.nonce == nonce)?.resources.as_ref()
    }

    /// The contents of all such responses, newest first.
    pub(crate) fn unanswered_contents(&self) -> impl Iterator<Item = &Resources> {
        let unanswered = self.outstanding.iter().chain(&self.passed).rev();
        unanswered.filter_map(|sent| sent.resources.as_ref())
    }

    pub(crate) fn nack(&self) -> Option<&Nack> {
        self.nack.as_ref()
    }

    /// Something is to be sent, as far as is known without looking.
    pub(crate) fn has_work(&self) -> bool {
        self.has_changes() || self.train.is_some()
    }

    /// Something has yet to be planned.
    pub(crate) fn has_changes(&self) -> bool {
        let named = !(self.stale.is_empty() && self.pending.is_empty() && self.again.is_empty());
        self.dirty || self.answer_due || named
    }

    /// The client has asked for something that has yet to be planned.
    pub(crate) fn is_asked(&self) -> bool {
        self.answer_due || !self.pending.is_empty()
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
        } else if self.may_return() {
            Revision(0)
        } else if self.train.is_some() || self.awaits_answer(config, now) {
            if self.returned { Revision(0) } else { self.settled_revision }
        } else {
            self.planned_revision
        }
    }

    /// Whether a name that was gone may be there again. SotW has no word for its being gone (SOTW-85): until
    /// what is there now has been sent, the client may have what was there before.
    fn may_return(&self) -> bool {
        let gone = |held: Option<&Held>| held == Some(&Held::Absent);
        self.protocol == Protocol::Sotw
            && match self.dirty {
                true => self.names.values().any(|held| gone(Some(held))),
                false => self.stale.iter().any(|name| gone(self.names.get(name))),
            }
    }

    /// Since when the client has not answered; `None` if it owes no answer. Of a type that it asks
    /// nothing of any more it owes none: gRPC ignores such a response (CLI-G-13).
    pub(crate) fn silent_since(&self) -> Option<u64> {
        let asks = self.wildcard || !self.names.is_empty();
        (asks && !self.outstanding.is_empty()).then_some(self.silent_since)
    }

    /// Whether the client was sent the resource of this name, or says that it has it.
    pub(crate) fn holds(&self, name: &ResourceName) -> bool {
        let covered = self.wildcard
            && self.base.as_ref().is_some_and(|base| base.get(name.as_str()).is_some());
        covered || matches!(self.names.get(name), Some(Held::Sent(_) | Held::Version(_)))
    }

    /// Names that are remembered for the client: those it asks for, or, if they are more, those it gave
    /// up or says it holds and has yet to be answered on. A client that does not read is not answered.
    pub(crate) fn n_remembered(&self) -> usize {
        let given_up = self.train.as_ref().map_or(0, |train| train.given_up.len());
        self.names.len().max(self.pending.len()).max(self.known.len()).max(given_up)
    }

    /// Bytes of the names that are remembered for the client, or are on their way to it.
    pub(crate) fn retained_bytes(&self) -> usize {
        let known = if self.known.is_empty() { 0 } else { self.known_bytes };
        let train = self.train.as_ref();
        let given_up = train.map_or(0, |train| train.given_up.len());
        let names = self.names.len().max(self.pending.len()) + self.known.len() + given_up;
        let removals = self.lingering.len() * REMOVAL_COST_BYTES + 2 * self.lingering.text_bytes();
        let leaving = train.map_or(0, |train| train.names_bytes);
        names * NAME_COST_BYTES + self.names_bytes + known + removals + leaving
    }

    /// Names and removals that are freed with the subscription. Lists of resources are shared by streams.
    pub(crate) fn n_kept(&self) -> usize {
        let train = self.train.as_ref();
        let leaving = train
            .map_or(0, |train| train.removed.len() + train.absent.len() + train.given_up.len());
        self.names.len().max(self.pending.len()) + self.known.len() + self.lingering.len() + leaving
    }

    /// Resources in the responses that are not answered yet.
    pub(crate) fn n_sent(&self) -> usize {
        self.outstanding.iter().filter_map(|sent| Some(sent.resources.as_ref()?.len())).sum()
    }

    /// Names and resources that a plan looks at, beside those of a wildcard's view.
    pub(crate) fn cost_of_plan(&self) -> usize {
        let all = self.dirty || (self.is_full_state() && !self.wildcard);
        let names = if all && self.has_changes() { self.names.len() } else { 0 };
        let marked = self.stale.len() + self.pending.len() + self.again.len() + self.ahead.len();
        let given_up = self.train.as_ref().filter(|train| !train.given_up.is_empty());
        let given_up = given_up.map_or(0, |train| {
            train.resources.len() + train.removed.len() + train.absent.len() + train.given_up.len()
        });
        names + marked + self.known.len() + self.lingering.len() + given_up
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
