//! A subscription: the names of one type that a stream subscribes to, and what it was sent.

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

/// The maximum number of unanswered responses that are remembered. An answer to an older one counts
/// as stale.
const OUTSTANDING_MAX: usize = 256;

/// The maximum number of unanswered responses whose contents are kept.
const CONTENTS_MAX: usize = 32;

/// The bytes that a name takes besides its text: its entries in the subscription and in the index
/// of its shard.
pub(crate) const NAME_COST_BYTES: usize = 192;

/// The bytes that a pending removal takes besides its text. It may be the only owner of its name
/// and its resource.
pub(crate) const REMOVAL_COST_BYTES: usize = 2 * NAME_COST_BYTES;

/// The name that subscribes to the whole view (SOTW-60, DELTA-30).
const WILDCARD: &str = "*";

/// The client's state of one name, as far as the session knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Held {
    /// The client was sent nothing for the name.
    Nothing,
    /// The resource does not exist. SotW may have no message for this (SOTW-85).
    Absent,
    /// This stream sent nothing, but the client claims to have this version.
    Version(Version),
    /// The client was sent this resource.
    Sent(Arc<Resource>),
}

impl Held {
    /// Returns the version that the client has.
    pub(crate) fn version(&self) -> Option<Version> {
        match self {
            Self::Nothing | Self::Absent => None,
            Self::Version(version) => Some(*version),
            Self::Sent(resource) => Some(resource.version()),
        }
    }
}

/// A resource that no longer exists, until its removal is announced.
#[derive(Debug, Clone)]
pub(crate) struct Lingering {
    /// The resource as the client has it.
    pub(crate) resource: Arc<Resource>,
    /// The revision at which the removal was detected.
    pub(crate) revision: Revision,
    /// The last revision at which the session looked for the resource and found it. The removal
    /// happened later.
    pub(crate) seen: Revision,
    /// The time at which the removal was detected.
    pub(crate) since: u64,
}

/// An unanswered response.
#[derive(Debug, Clone)]
pub(crate) struct Outstanding {
    pub(crate) nonce: u64,
    pub(crate) sent_at: u64,
    pub(crate) version: TypeVersion,
    /// The revision up to which the client has everything once it has this response.
    pub(crate) revision: Revision,
    /// The revision of the first state, if the response is a part of one.
    pub(crate) first_state: Option<Revision>,
    /// The contents; `None` if the response is too old to be kept.
    pub(crate) resources: Option<Resources>,
}

/// The client's answer to a response.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) outstanding: Outstanding,
    /// The rejection, if the answer is a NACK.
    pub(crate) nack: Option<Nack>,
}

/// The state of one type of a stream.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) type_url: TypeUrl,
    pub(crate) properties: &'static Properties,
    pub(crate) protocol: Protocol,
    /// Whether the client subscribes to the whole view.
    pub(crate) wildcard: bool,
    /// Whether a request of the type was processed.
    opened: bool,
    /// Whether the client holds resources from an earlier stream. If so, even its first answer
    /// keeps the order between types.
    pub(crate) resumed: bool,
    /// Whether a non-empty list was received. After that, an empty list is no longer a wildcard
    /// (SOTW-62).
    named: bool,
    /// The names that the client subscribes to.
    pub(crate) names: BTreeMap<ResourceName, Held>,
    /// The total length of `names`, in bytes.
    pub(crate) names_bytes: usize,
    /// The view that a wildcard was last planned from. `None` before the first plan, and for named
    /// subscriptions. Those remember what was sent per name, so that they do not keep an old state
    /// alive for a few resources.
    pub(crate) base: Option<TypeView>,
    /// The resources that the client claims to hold when it subscribes to everything; the first
    /// plan consumes them. A version of `None` is unknown, or was never assigned by this cluster.
    pub(crate) known: BTreeMap<ResourceName, Option<Version>>,
    /// The total length of the names from which `known` was built, in bytes.
    pub(crate) known_bytes: usize,
    /// Names that the next plan answers even if they did not change.
    pub(crate) pending: BTreeSet<ResourceName>,
    /// Names that are sent again because a resource that refers to them was sent (ADS-11).
    pub(crate) again: BTreeSet<ResourceName>,
    /// Delta: names of `again` that are not in the view. The client waits for them. If they
    /// reappear, they are sent even if they did not change.
    pub(crate) unmet: BTreeSet<ResourceName>,
    /// For a wildcard: resources that were sent before all other changes, so that `base` does not
    /// include them. `None` means that the name was reported as absent.
    pub(crate) ahead: BTreeMap<ResourceName, Option<Arc<Resource>>>,
    /// The pending names were just requested, so they do not wait for an ACK.
    pub(crate) urgent: bool,
    /// Names were added by a request that the client sent before it received the last response.
    pub(crate) late: bool,
    /// Whether the opening request gets a response even if the response is empty.
    pub(crate) answer_due: bool,
    /// Whether any resource of the subscription may have changed.
    pub(crate) dirty: bool,
    /// Names that may have changed.
    pub(crate) stale: BTreeSet<ResourceName>,
    /// Removed resources, whose removal waits for the types that refer to them (ADS-08).
    pub(crate) lingering: PendingRemovals,
    /// The version in the client's first request, if resources of its earlier streams are kept for
    /// the type. [`Subscription::take_over`] consumes it.
    came_with: Option<String>,
    /// The resources of that version; the first plan consumes them.
    pub(crate) left: Option<Resources>,
    /// The last accepted response, if it is kept for the client's next stream.
    accepted: Option<(TypeVersion, Resources)>,
    /// The time since which the type waits for the types before it.
    pub(crate) gated_since: Option<u64>,
    /// The planned response, or the rest of it, that is not sent yet.
    pub(crate) train: Option<Train>,
    /// The unanswered responses, oldest first. There is more than one for split responses, after
    /// timeouts, and if requested names do not wait.
    pub(crate) outstanding: VecDeque<Outstanding>,
    /// Delta: responses that the client skipped by answering a later one. The client may still
    /// reject them (DELTA-19).
    passed: Vec<Outstanding>,
    /// The nonce of the last response; 0 before the first.
    pub(crate) last_nonce: u64,
    pub(crate) last_sent_at: Option<u64>,
    /// The time of the last answer, or of the first response after it. If the client owes an
    /// answer, it has been silent since then.
    silent_since: u64,
    pub(crate) opened_at: u64,
    /// Whether a request that repeats the last one asks for the children again (ADS-12).
    pub(crate) repeat_due: bool,
    pub(crate) sent: Option<TypeVersion>,
    acked: Option<TypeVersion>,
    /// The last rejection, while it applies.
    nack: Option<Nack>,
    /// Resources of rejected responses that are still what the client was last sent.
    pub(crate) rejected: Rejections,
    /// Whether a response was rejected whose contents are unknown or do not matter.
    rejects_state: bool,
    /// Whether a resource that was removed without a message to the client is being sent again.
    pub(crate) returned: bool,
    /// The revision up to which the client has acknowledged everything.
    pub(crate) settled_revision: Revision,
    /// The revision up to which everything is sent once the planned response is sent.
    pub(crate) planned_revision: Revision,
    /// The revision up to which all changes were checked.
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

    /// Clears the requests for resources that a response delivers now. The client requested them
    /// after the response was planned.
    pub(crate) fn on_departed(&mut self, resources: &Resources) {
        if self.pending.is_empty() && self.again.is_empty() {
            return;
        }
        for resource in resources.iter() {
            for name in std::iter::once(resource.name()).chain(resource.aliases()) {
                self.again.remove(name);
                if self.pending.remove(name) && self.names.contains_key(name) {
                    // The resource may have changed since the plan. If the client unsubscribed in
                    // between, the mark of that change was lost.
                    self.names.insert(name.clone(), Held::Sent(Arc::clone(resource)));
                    self.stale.insert(name.clone());
                }
            }
        }
        self.urgent &= self.answer_due || !self.pending.is_empty();
    }

    /// Clears the requests for names that a response reports as absent or removed.
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

    /// Removes from the planned response what the client has unsubscribed from since (SOTW-46,
    /// DELTA-28). Returns `false` if nothing is left.
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

    /// Returns whether resources are kept for the client's next stream: its removals may have to
    /// wait for other types, and the client does not report what it holds.
    fn is_remembered(&self) -> bool {
        self.is_full_state() && !self.properties.referrers.is_empty()
    }

    /// Returns whether the first answer depends on the resources of an earlier stream.
    pub(crate) fn asks_for_remains(&self) -> bool {
        self.came_with.is_some()
    }

    /// Finds the resources of the client's version among those of its earlier streams. Of equal
    /// versions, the last one is used.
    pub(crate) fn take_over(&mut self, remains: &[Arc<Remains>]) {
        let Some(version) = self.came_with.take() else { return };
        let mut all = remains.iter().flat_map(|remains| &remains.0).rev();
        let left = all.find(|left| left.type_url == self.type_url && left.version == version);
        self.left = left.map(|left| left.resources.clone());
    }

    /// Returns the resources that the client may hold when the stream ends.
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

    /// Records a sent response.
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
        // The contents of a response keep its resources alive.
        if let Some(old) = self.outstanding.iter_mut().rev().nth(CONTENTS_MAX) {
            old.resources = None;
        }
        self.outstanding.push_back(sent);
    }

    /// Returns the contents of the response with this nonce, if it is unanswered and its contents
    /// are still kept.
    pub(crate) fn contents_of(&self, nonce: u64) -> Option<&Resources> {
        let mut unanswered = self.outstanding.iter().chain(&self.passed);
        unanswered.find(|sent| sent.nonce == nonce)?.resources.as_ref()
    }

    /// Iterates over the contents of all such responses, newest first.
    pub(crate) fn unanswered_contents(&self) -> impl Iterator<Item = &Resources> {
        let unanswered = self.outstanding.iter().chain(&self.passed).rev();
        unanswered.filter_map(|sent| sent.resources.as_ref())
    }

    pub(crate) fn nack(&self) -> Option<&Nack> {
        self.nack.as_ref()
    }

    /// Returns whether there may be something to send. It compares no resources.
    pub(crate) fn has_work(&self) -> bool {
        self.has_changes() || self.train.is_some()
    }

    /// Returns whether there may be something to plan.
    pub(crate) fn has_changes(&self) -> bool {
        let named = !(self.stale.is_empty() && self.pending.is_empty() && self.again.is_empty());
        self.dirty || self.answer_due || named
    }

    /// Returns whether the client has requested something that is not planned yet.
    pub(crate) fn is_asked(&self) -> bool {
        self.answer_due || !self.pending.is_empty()
    }

    /// Returns whether the last response is unanswered and the ACK timeout has not passed.
    pub(crate) fn awaits_answer(&self, config: &Config, now: u64) -> bool {
        self.outstanding.back().is_some_and(|sent| sent.sent_at + config.ack_timeout_ms > now)
    }

    /// Returns whether everything was sent, and was answered or has timed out.
    pub(crate) fn is_quiet(&self, config: &Config, now: u64) -> bool {
        !self.has_work() && !self.awaits_answer(config, now)
    }

    /// Returns the revision up to which the client has everything, or had the time to take it.
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

    /// Returns whether a removed resource may have reappeared. SotW cannot express the removal
    /// (SOTW-85), so the client may have the old resource until the new one was sent.
    fn may_return(&self) -> bool {
        let gone = |held: Option<&Held>| held == Some(&Held::Absent);
        self.protocol == Protocol::Sotw
            && match self.dirty {
                true => self.names.values().any(|held| gone(Some(held))),
                false => self.stale.iter().any(|name| gone(self.names.get(name))),
            }
    }

    /// Returns the time since which the client has not answered; `None` if it owes no answer. The
    /// client owes none if it subscribes to nothing: gRPC ignores such a response (CLI-G-13).
    pub(crate) fn silent_since(&self) -> Option<u64> {
        let asks = self.wildcard || !self.names.is_empty();
        (asks && !self.outstanding.is_empty()).then_some(self.silent_since)
    }

    /// Returns whether the client was sent the resource of this name, or claims to have it.
    pub(crate) fn holds(&self, name: &ResourceName) -> bool {
        let covered = self.wildcard
            && self.base.as_ref().is_some_and(|base| base.get(name.as_str()).is_some());
        covered || matches!(self.names.get(name), Some(Held::Sent(_) | Held::Version(_)))
    }

    /// Returns the number of names that the limit on names counts: the maximum of the subscribed
    /// names and those whose unsubscription or claimed version is not answered yet. A client that
    /// does not read gets no answers.
    pub(crate) fn n_remembered(&self) -> usize {
        let given_up = self.train.as_ref().map_or(0, |train| train.given_up.len());
        self.names.len().max(self.pending.len()).max(self.known.len()).max(given_up)
    }

    /// Returns the bytes of all names that are kept for the client or are on their way to it.
    pub(crate) fn retained_bytes(&self) -> usize {
        let known = if self.known.is_empty() { 0 } else { self.known_bytes };
        let train = self.train.as_ref();
        let given_up = train.map_or(0, |train| train.given_up.len());
        let names = self.names.len().max(self.pending.len()) + self.known.len() + given_up;
        let removals = self.lingering.len() * REMOVAL_COST_BYTES + 2 * self.lingering.text_bytes();
        let leaving = train.map_or(0, |train| train.names_bytes);
        names * NAME_COST_BYTES + self.names_bytes + known + removals + leaving
    }

    /// Returns the number of names and removals that are freed with the subscription. Lists of
    /// resources are shared with other streams and do not count.
    pub(crate) fn n_kept(&self) -> usize {
        let train = self.train.as_ref();
        let leaving = train
            .map_or(0, |train| train.removed.len() + train.absent.len() + train.given_up.len());
        self.names.len().max(self.pending.len()) + self.known.len() + self.lingering.len() + leaving
    }

    /// Returns the number of resources in the unanswered responses.
    pub(crate) fn n_sent(&self) -> usize {
        self.outstanding.iter().filter_map(|sent| Some(sent.resources.as_ref()?.len())).sum()
    }

    /// Returns the maximum number of names and resources that a plan visits, except those of a
    /// wildcard's view.
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

    /// Returns whether the client subscribes to the resource, by its name or by an alias.
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
