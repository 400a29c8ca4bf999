//! A subscription: the state of one type of a stream.
//!
//! Each part of the state has a type of its own:
//! - [`Names`] and [`Wildcard`]: the names and versions of the client;
//! - [`Work`]: the changes that are not planned yet;
//! - [`Delivery`]: the responses on their way;
//! - [`PendingRemovals`], [`Rejections`] and [`Resumption`]: what delays or follows responses.
//!
//! This file has the methods that use several parts.

use std::sync::Arc;

use chancery_model::{
    Resource, ResourceName, Revision, TypeUrl, TypeVersion,
    types::{EXTENSION, Properties, ROUTE, properties},
};
use chancery_view::{Resources, TypeView};

use crate::{Config, Nack, Protocol, SubscriptionStatus, SyncState, spelling::Spellings};

mod acceptance;
mod agreement;
mod answers;
mod causes;
mod contents;
mod delivery;
mod globs;
mod held_back;
mod interest;
mod mcp;
mod members;
mod orphans;
mod parameters;
mod part;
mod rejections;
mod removals;
mod renewals;
mod requests;
mod resumption;
mod variants;
mod work;

pub use acceptance::Acceptance;
use acceptance::RejectedRevisions;
use agreement::Agreement;
pub(crate) use answers::Answer;
use delivery::Delivery;
pub(crate) use delivery::{CarriedRevisions, Pace, PendingResponse, SentResponse};
use globs::Globs;
use interest::Requests;
pub(crate) use interest::{ClientVersion, Names, Wildcard, is_located};
use orphans::Orphans;
use parameters::Variants;
pub(crate) use rejections::{Rejections, Retried};
pub(crate) use removals::{PendingRemoval, PendingRemovals, UnnamedRemovals};
use renewals::Renewals;
pub(crate) use renewals::{Refresh, SENT_ALONE_MAX};
pub(crate) use requests::{RequestContext, parse_nonce};
pub use resumption::ResumeState;
use resumption::{KeptResponse, Resumption};
pub(crate) use variants::is_replaced_by;
use work::Work;
pub(crate) use work::{Changed, Urgency};

/// The bytes that a name takes besides its text: its entries in the subscription and in the index
/// of its shard.
pub(crate) const NAME_COST_BYTES: usize = 192;

/// The bytes that a pending removal takes besides its text. It may be the only owner of its name
/// and its resource.
pub(crate) const REMOVAL_COST_BYTES: usize = 2 * NAME_COST_BYTES;

/// The state of one type of a stream.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) type_url: TypeUrl,
    pub(crate) properties: &'static Properties,
    pub(crate) protocol: Protocol,
    pub(crate) opened_at: u64,
    requests: Requests,
    /// `None` if the client subscribes to names only.
    pub(crate) wildcard: Option<Wildcard>,
    pub(crate) names: Names,
    pub(crate) globs: Globs,
    /// The client's spellings of its names.
    pub(crate) spellings: Spellings,
    pub(crate) work: Work,
    pub(crate) delivery: Delivery,
    /// Removed resources, whose removal waits for the types that refer to them (ADS-08).
    pub(crate) removals: PendingRemovals,
    pub(crate) orphans: Orphans,
    /// Rejected resources for which the client has not accepted a replacement.
    pub(crate) rejections: Rejections,
    /// The revisions whose changes the client has rejected, even if it was sent a replacement.
    rejected_revisions: RejectedRevisions,
    pub(crate) resumption: Resumption,
    pub(crate) renewals: Renewals,
    /// Whether the client is sent errors for names that do not exist (ERR-14).
    pub(crate) sends_errors: bool,
    pub(crate) variants: Variants,
    /// MCP: the form of the next response.
    agreement: Agreement,
}

impl Subscription {
    pub(crate) fn new(type_url: TypeUrl, protocol: Protocol, config: &Config, now: u64) -> Self {
        let properties = properties(&type_url);
        // SOTW-76: the clients of the other types reject a response without their resource.
        let may_be_empty = protocol == Protocol::Delta || properties.announce_removal;
        Self {
            properties,
            type_url,
            protocol,
            opened_at: now,
            requests: Requests::None,
            wildcard: None,
            names: Names::default(),
            globs: Globs::default(),
            spellings: Spellings::default(),
            work: Work::default(),
            delivery: Delivery::new(now),
            removals: PendingRemovals::default(),
            orphans: Orphans::default(),
            rejections: Rejections::new(config.first_state_listed_max),
            rejected_revisions: RejectedRevisions::default(),
            resumption: Resumption::default(),
            renewals: Renewals::new(now),
            sends_errors: config.resource_errors && may_be_empty && protocol != Protocol::Mcp,
            variants: Variants::default(),
            agreement: Agreement::default(),
        }
    }

    /// Returns whether the client subscribes to the whole view.
    pub(crate) fn is_wildcard(&self) -> bool {
        self.wildcard.is_some()
    }

    /// Returns the view that was last planned for a wildcard.
    pub(crate) fn base(&self) -> Option<&TypeView> {
        self.wildcard.as_ref()?.base.as_ref()
    }

    /// Returns whether the client subscribes to anything.
    pub(crate) fn is_subscribed(&self) -> bool {
        self.is_wildcard() || !self.names.is_empty()
    }

    /// Returns whether each response contains all subscribed resources (SOTW-70).
    pub(crate) fn is_full_state(&self) -> bool {
        self.protocol == Protocol::Sotw && self.properties.full_state
    }

    /// Clears the requests for resources that a response delivers now. The client requested them
    /// after the response was planned.
    pub(crate) fn on_resources_sent(&mut self, resources: &Resources, version: &TypeVersion) {
        if self.work.requested.is_empty() && self.work.resent.is_empty() {
            return;
        }
        let version = Arc::new(version.clone());
        for resource in resources.iter() {
            let is_marked = |name: &&ResourceName| {
                self.work.requested.contains(*name) || self.work.resent.contains(*name)
            };
            let names: Vec<ResourceName> =
                self.names_for(resource).filter(is_marked).cloned().collect();
            for name in &names {
                self.work.resent.remove(name);
                if self.work.requested.remove(name) && self.names.contains(name.as_str()) {
                    // The resource may have changed since the plan. If the client unsubscribed in
                    // between, the mark of that change was lost.
                    self.names.insert(name.clone(), ClientVersion::sent_in(resource, &version));
                    self.work.changed.insert(name.clone());
                    if self.is_wildcard() && self.base().is_none() {
                        // DELTA-52: the first plan of the wildcard does not repeat it.
                        self.resumption.claim(resource.name().clone(), Some(resource.version()));
                    }
                }
            }
        }
        self.work.review_urgency();
    }

    /// Clears the requests for names that a response reports as absent or removed.
    pub(crate) fn on_absence_sent<'a>(&mut self, names: impl Iterator<Item = &'a ResourceName>) {
        if self.work.requested.is_empty() {
            return;
        }
        for name in names {
            if self.work.requested.remove(name) && self.names.contains(name.as_str()) {
                self.names.insert(name.clone(), ClientVersion::Absent);
                self.work.changed.insert(name.clone());
            }
        }
        self.work.review_urgency();
    }

    /// Records a name without a resource, if the client keeps the resource that it had. `is_resumed` means that
    /// the client holds resources of any type from an earlier stream.
    pub(crate) fn note_orphan(&mut self, name: &ResourceName, is_resumed: bool, now: u64) {
        if ![ROUTE, EXTENSION].contains(&self.type_url.as_str()) {
            return;
        }
        let is_first = self.delivery.last_nonce == 0;
        let was_sent = self.names.get(name).is_some_and(|version| version.sent().is_some());
        // SotW clients do not report what they hold. Delta clients do not list a table whose removal was announced.
        // They subscribe to it for as long as its listener drains.
        let may_hold = is_first
            && match self.protocol {
                Protocol::Sotw => self.resumption.has_resources,
                Protocol::Delta => is_resumed,
                Protocol::Mcp => false,
            };
        let claims = self.names.get(name).is_some_and(|version| version.version().is_some())
            || self.resumption.claimed.contains_key(name);
        let (seen, since) = match was_sent {
            true => (self.delivery.checked, now),
            false if may_hold || claims => (Revision(0), self.opened_at),
            false => return,
        };
        self.orphans.add(name, seen, since);
    }

    /// Removes names and resources from the planned response that the client has since unsubscribed
    /// from (SOTW-46, DELTA-28). Returns `false` if nothing is left.
    pub(crate) fn drop_unsubscribed(&mut self) -> bool {
        let has_unsubscribed = |pending: &mut PendingResponse| !pending.unsubscribed.is_empty();
        let Some(mut pending) = self.delivery.pending.take_if(has_unsubscribed) else {
            return true;
        };
        let mut rest = Resources::default();
        let covered = pending.resources.iter().filter(|resource| self.covers(resource));
        covered.for_each(|resource| rest.push(Arc::clone(resource)));
        pending.resources = rest;
        let mut rest = Resources::default();
        let covered = pending.heartbeats.iter().filter(|resource| self.covers(resource));
        covered.for_each(|resource| rest.push(Arc::clone(resource)));
        pending.heartbeats = rest;
        let unsubscribed = std::mem::take(&mut pending.unsubscribed);
        let first = pending.removed.iter().take(pending.n_removed_first);
        pending.n_removed_first = first.filter(|name| !unsubscribed.contains(*name)).count();
        pending.removed.retain(|name| !unsubscribed.contains(name));
        pending.absent.retain(|name| !unsubscribed.contains(name));
        pending.errors.retain(|name| !unsubscribed.contains(name));
        if pending.is_empty() {
            self.on_nothing_left(pending.covers);
            return false;
        }
        self.delivery.pending = Some(pending);
        true
    }

    /// Returns whether resources are kept for the client's next stream: its removals may have to
    /// wait for other types, and the client does not report what it holds.
    fn is_remembered(&self) -> bool {
        self.is_full_state() && !self.properties.referrers.is_empty()
    }

    /// Returns the resources that the client may hold when the stream ends.
    pub(crate) fn take_resume_state(&mut self) -> Vec<KeptResponse> {
        if !self.is_remembered() {
            return Vec::new();
        }
        let unanswered = self.delivery.unanswered.drain(..);
        let unanswered = unanswered.filter_map(|sent| Some((sent.version, sent.resources?)));
        let kept = |(version, resources): (TypeVersion, Resources)| KeptResponse {
            type_url: self.type_url.clone(),
            version: version.to_string(),
            resources,
        };
        self.resumption.accepted.take().into_iter().chain(unanswered).map(kept).collect()
    }

    pub(crate) fn nack(&self) -> Option<&Nack> {
        self.rejections.nack()
    }

    /// Returns whether there may be something to send. It compares no resources.
    pub(crate) fn has_work(&self) -> bool {
        self.work.has_changes() || self.delivery.pending.is_some()
    }

    /// Returns whether everything was sent, and was answered or has timed out.
    pub(crate) fn is_quiet(&self, config: &Config, now: u64) -> bool {
        !self.has_work() && !self.delivery.awaits_answer(config.ack_timeout_ms, now)
    }

    /// Returns the revision up to which the client has acknowledged everything, or has let the ACK
    /// timeout pass.
    pub(crate) fn reached(&self, config: &Config, now: u64) -> Revision {
        let delivery = &self.delivery;
        if self.is_quiet(config, now) && self.removals.none_waits() {
            Revision(u64::MAX)
        } else if self.may_return() {
            Revision(0)
        } else if delivery.pending.is_some() || delivery.awaits_answer(config.ack_timeout_ms, now) {
            if delivery.returned { Revision(0) } else { delivery.settled }
        } else {
            delivery.planned
        }
    }

    /// Returns whether a removed resource may have reappeared. SotW cannot express the removal
    /// (SOTW-85), so the client may have the old resource until the new one was sent.
    fn may_return(&self) -> bool {
        let is_absent = |version: &ClientVersion| *version == ClientVersion::Absent;
        self.protocol == Protocol::Sotw
            && match &self.work.changed {
                Changed::All => self.names.values().any(is_absent),
                Changed::Names(names) => {
                    names.iter().filter_map(|name| self.names.get(name)).any(is_absent)
                }
            }
    }

    /// Returns the time since which the client has not answered; `None` if it owes no answer. A
    /// client without subscriptions owes no answer: gRPC ignores responses of a type that it no
    /// longer subscribes to (CLI-G-13).
    pub(crate) fn silent_since(&self) -> Option<u64> {
        let owes_answer = self.is_subscribed() && !self.delivery.unanswered.is_empty();
        owes_answer.then_some(self.delivery.silent_since)
    }

    /// Returns whether the client was sent the resource of this name, or claims to have it.
    pub(crate) fn holds(&self, name: &ResourceName) -> bool {
        self.base().is_some_and(|base| base.get(name.as_str()).is_some())
            || self.names.get(name).is_some_and(|version| version.version().is_some())
    }

    /// Returns the number of names for the limit: the maximum of the subscribed, the claimed, and
    /// the unsubscribed names. The last two count until the next response is built, so a client
    /// that does not read cannot exceed the limit.
    pub(crate) fn n_remembered(&self) -> usize {
        let pending = self.delivery.pending.as_ref();
        let unsubscribed = pending.map_or(0, |pending| pending.unsubscribed.len());
        // Members of glob collections are no names of the client.
        let names = self.n_names() - self.globs.n_members();
        names.max(self.resumption.claimed.len()).max(unsubscribed)
    }

    /// Returns the number of subscribed names, or of requested names that have no response yet,
    /// whichever is larger.
    fn n_names(&self) -> usize {
        self.names.len().max(self.work.requested.len())
    }

    /// Returns the bytes of all names that are kept for the client or are on their way to it, and of the
    /// messages of its rejections.
    pub(crate) fn retained_bytes(&self) -> usize {
        let pending = self.delivery.pending.as_ref();
        let unsubscribed = pending.map_or(0, |pending| pending.unsubscribed.len());
        let names = self.n_names() + self.resumption.claimed.len() + unsubscribed;
        let names = names + self.spellings.len() + self.globs.n_members();
        let text_bytes = self.names.text_bytes() + self.spellings.text_bytes();
        let names = names * NAME_COST_BYTES + text_bytes;
        let removals = self.removals.len() * REMOVAL_COST_BYTES + 2 * self.removals.text_bytes();
        let pending = pending.map_or(0, |pending| pending.names_bytes);
        let orphans = self.orphans.len() * NAME_COST_BYTES + self.orphans.text_bytes();
        let claimed = self.resumption.claimed_bytes();
        names + claimed + removals + orphans + pending + self.rejection_bytes()
    }

    /// Returns the bytes of the messages of the client's rejections.
    pub(crate) fn rejection_bytes(&self) -> usize {
        self.rejected_revisions.text_bytes() + self.nack().map_or(0, |nack| nack.message.len())
    }

    /// Returns the number of names and removals that are freed with the subscription. Lists of
    /// resources are shared with other streams and do not count.
    pub(crate) fn n_kept(&self) -> usize {
        let pending = self.delivery.pending.as_ref().map_or(0, PendingResponse::n_names);
        self.n_names() + self.resumption.claimed.len() + self.removals.len() + pending
    }

    /// Returns the maximum number of names and resources that a plan visits, except those of a
    /// wildcard's view.
    pub(crate) fn cost_of_plan(&self) -> usize {
        let all = self.work.changed.is_all() || (self.is_full_state() && !self.is_wildcard());
        let names = if all && self.work.has_changes() { self.names.len() } else { 0 };
        let sent_early = self.wildcard.as_ref().map_or(0, |wildcard| wildcard.sent_early.len());
        let pending = self.delivery.pending.as_ref();
        let unsubscribed =
            pending.filter(|pending| !pending.unsubscribed.is_empty()).map_or(0, |pending| {
                pending.resources.len() + pending.heartbeats.len() + pending.n_names()
            });
        // A delta response has only the changed members, which are marked.
        let repeats = self.protocol == Protocol::Sotw && self.work.has_changes();
        let members = if repeats { self.globs.n_members() } else { 0 };
        let marked = self.work.n_names() + sent_early + self.resumption.claimed.len() + members;
        names + self.globs.n_asked() + marked + self.removals.len() + unsubscribed
    }

    /// Returns whether the client subscribes to the resource, by its name or by an alias.
    pub(crate) fn covers(&self, resource: &Resource) -> bool {
        self.is_wildcard()
            || self.names_for(resource).any(|name| self.names.contains(name.as_str()))
    }

    pub(crate) fn status(&self) -> SubscriptionStatus {
        let state = match self.nack() {
            Some(_) if self.delivery.unanswered.is_empty() => SyncState::Nacked,
            _ if self.has_work() || !self.delivery.unanswered.is_empty() => SyncState::Pending,
            _ if self.delivery.acked_version.is_some() => SyncState::Synced,
            _ => SyncState::Idle,
        };
        SubscriptionStatus {
            type_url: self.type_url.clone(),
            wildcard: self.is_wildcard(),
            n_names: self.names.len(),
            sent: self.delivery.sent_version.clone(),
            acked: self.delivery.acked_version.clone(),
            state,
            nack: self.nack().cloned(),
            n_pending_removals: self.removals.len(),
        }
    }
}
