//! The renewal of the lifetimes that are due.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use chancery_model::{LifetimeClass, Resource, ResourceName};
use chancery_view::{Differ, Resources, TypeView, difference};

use crate::{
    LifetimeSupport,
    encoding::LifetimeForm,
    subscription::{
        CarriedRevisions, Pace, PendingResponse, SENT_ALONE_MAX, Subscription, is_located,
    },
};

impl Subscription {
    /// Sets the support of the client for lifetimes. Virtual hosts have none (TTL-10).
    pub(crate) fn support_lifetimes(&mut self, support: LifetimeSupport) {
        self.renewals.support = support;
        self.renewals.needs_content = support.needs_content(self.protocol);
        self.renewals.form = if self.properties.absent_as_alias {
            LifetimeForm::None
        } else {
            support.form(self.protocol)
        };
        self.schedule_renewal();
    }

    /// Returns whether the client is sent the lifetime of this resource.
    pub(crate) fn sends_lifetime(&self, resource: &Resource) -> bool {
        self.renewals.form != LifetimeForm::None && resource.ttl().is_some()
    }

    /// Returns whether a time of this resource has run at the client since an earlier stream: its lifetime,
    /// or the time after which its endpoints are stale (TTL-12, CLI-E-34).
    pub(crate) fn runs_at_client(&self, resource: &Resource) -> bool {
        self.sends_lifetime(resource) || resource.stale_after().is_some()
    }

    /// Returns the time of the next renewal, unless a response is on its way that is sent first. A
    /// renewal that is due waits for the answer to the last response (SOTW-36).
    pub(crate) fn renewal_at(&self, ack_timeout_ms: u64, now: u64) -> Option<u64> {
        let due = self.renewals.next.filter(|_| self.delivery.pending.is_none())?;
        let last = self.delivery.unanswered.back().filter(|_| due <= now);
        let answer_at = last.map_or(0, |sent| sent.sent_at + ack_timeout_ms);
        Some(if answer_at > now { answer_at } else { due })
    }

    /// Returns the maximum number of resources that a renewal visits.
    pub(crate) fn cost_of_renewal(&self) -> usize {
        let of_class = |class| self.n_with_lifetime(class);
        let due: usize = self.classes().into_iter().map(of_class).sum();
        if self.is_full_state() { due + self.names.len() } else { due }
    }

    /// Records a response, whose resources need no renewal for a while (TTL-13).
    pub(crate) fn on_lifetimes_sent(
        &mut self,
        resources: &Resources,
        of: &PendingResponse,
        now: u64,
    ) {
        if self.renewals.form == LifetimeForm::None {
            return;
        }
        self.renewals.revision = of.revision;
        if self.is_full_state() {
            self.renewals.restart(now);
            self.renewals.received_as = Some(of.version.clone());
        } else if !of.is_renewal {
            let with_lifetime = resources.iter().filter(|resource| resource.ttl().is_some());
            let begins_state = of.first_state && of.revision != self.renewals.origin_revision;
            if begins_state || self.renewals.next.is_none() {
                self.renewals.origin_revision = of.revision;
                self.renewals.restart(now);
            } else {
                for resource in with_lifetime.clone() {
                    let alone = &mut self.renewals.sent_alone;
                    if alone.len() < SENT_ALONE_MAX || alone.contains_key(resource.name()) {
                        alone.insert(resource.name().clone(), (Arc::clone(resource), now));
                    }
                }
            }
            let classes = self.classes();
            let all: usize = classes.into_iter().map(|class| self.n_with_lifetime(class)).sum();
            if with_lifetime.count() == all {
                self.renewals.received_as = Some(of.version.clone());
            }
        }
        self.schedule_renewal();
    }

    /// Plans the renewal of the resources that are due. Resources that the client rejects are not
    /// renewed, nor are those that it was not sent (TTL-04).
    pub(crate) fn plan_renewal(&mut self, differ: &Differ, now: u64) {
        let Some(version) = self.delivery.sent_version.clone() else { return };
        let is_full_state = self.is_full_state();
        let is_received = self.renewals.received_as.as_ref() == Some(&version);
        let is_rejecting = self.nack().is_some();
        // In SotW, a heartbeat has the version of the response. If the client knows a resource by
        // another version, it needs the content with the new one.
        let with_content = self.renewals.needs_content
            || (self.renewals.form == LifetimeForm::Wrapper && (is_rejecting || !is_received));
        let is_unconfirmed = with_content && !self.renewals.needs_content && !is_rejecting;
        let due = self.take_due(is_unconfirmed && !is_full_state, now);
        self.renewals.done = now;
        let is_refused = is_full_state && is_rejecting;
        let is_due = !is_refused && !due.is_empty();
        let (mut resources, mut heartbeats) = (Resources::default(), Resources::default());
        if is_due && is_full_state && with_content {
            resources = self.full_state(differ);
        } else if is_due && is_full_state {
            let last = self.delivery.last_sent_at.unwrap_or(0);
            for resource in self.full_state(differ).iter() {
                match resource.ttl() {
                    Some(_) if !has_ended(resource, last, now) => {
                        heartbeats.push(Arc::clone(resource));
                    }
                    Some(_) | None => resources.push(Arc::clone(resource)),
                }
            }
        } else if is_due {
            for (resource, since) in due.into_values() {
                // A client does not accept a heartbeat for a resource that it has dropped.
                if with_content || has_ended(&resource, since, now) {
                    resources.push(resource)
                } else {
                    heartbeats.push(resource)
                }
            }
            if is_unconfirmed {
                self.renewals.received_as = Some(version.clone());
            }
        }
        self.schedule_renewal();
        if resources.is_empty() && heartbeats.is_empty() {
            return;
        }
        let revision = self.renewals.revision;
        // The response carries no change.
        let carried =
            CarriedRevisions { possibly_after: revision, after: revision, up_to: revision };
        self.delivery.pending = Some(PendingResponse {
            resources,
            heartbeats,
            version,
            revision,
            covers: self.delivery.planned,
            carried,
            removed: [].into(),
            n_removed_first: 0,
            announced: vec![],
            changes: false,
            is_atomic: false,
            absent: [].into(),
            errors: [].into(),
            names_bytes: 0,
            unsubscribed: BTreeSet::new(),
            first_state: false,
            repeats: None,
            is_incremental: false,
            is_renewal: true,
            base: None,
            pace: Pace::FirstAtOnce,
        });
    }

    /// Returns the resources that are due, each with the time since which it was not renewed. `all`
    /// adds those that are not due yet.
    fn take_due(&mut self, all: bool, now: u64) -> BTreeMap<ResourceName, (Arc<Resource>, u64)> {
        let mut due = BTreeMap::new();
        let alone = std::mem::take(&mut self.renewals.sent_alone);
        let renewals = &self.renewals;
        for class in self.classes() {
            let since = renewals.last_due(class, renewals.done);
            if !all && renewals.last_due(class, now) <= since {
                continue;
            }
            let of_class = self.with_lifetime(class);
            for resource in of_class.filter(|resource| !alone.contains_key(resource.name())) {
                due.insert(resource.name().clone(), (Arc::clone(resource), since));
            }
        }
        let mut later = BTreeMap::new();
        for (name, (resource, sent_at)) in alone {
            if !all && renewals.due_alone(&resource, sent_at) > now {
                later.insert(name, (resource, sent_at));
            } else if let Some(held) = self.held(&resource)
                && held.ttl().is_some()
            {
                due.insert(name, (Arc::clone(held), sent_at));
            }
        }
        due.retain(|_, (resource, _)| !self.rejections.is_rejected(resource));
        self.renewals.sent_alone = later;
        due
    }

    /// Computes the time of the next renewal, in O(classes).
    fn schedule_renewal(&mut self) {
        let renewals = &self.renewals;
        if renewals.form == LifetimeForm::None {
            self.renewals.next = None;
            return;
        }
        let by_class = self.classes().into_iter().map(|class| {
            renewals.last_due(class, renewals.done).saturating_add(renewals.interval(class))
        });
        let alone = renewals.sent_alone.values();
        let alone = alone.map(|(resource, sent_at)| renewals.due_alone(resource, *sent_at));
        self.renewals.next = by_class.chain(alone).min();
    }

    /// Returns the classes of the lifetimes that the client may have.
    fn classes(&self) -> BTreeSet<LifetimeClass> {
        let shown = self.base().into_iter().flat_map(TypeView::lifetimes);
        let is_named = !self.is_wildcard() || self.names.has_located();
        let named = self.names.lifetimes().classes().filter(|_| is_named);
        shown.chain(named).chain(self.removals.lifetimes().classes()).collect()
    }

    /// Iterates over the resources of a class that the client was sent, also if their removal is not
    /// announced yet.
    fn with_lifetime(&self, class: LifetimeClass) -> impl Iterator<Item = &Arc<Resource>> {
        let wildcard = self.wildcard.as_ref();
        let base = wildcard.and_then(|wildcard| wildcard.base.as_ref());
        let shown = base.into_iter().flat_map(move |base| base.with_lifetime(class));
        let shown = shown.filter_map(move |resource| {
            let early = wildcard?.sent_early.get(resource.name());
            early.map_or(Some(resource), Option::as_ref)
        });
        let named = self.named_with_lifetime(class);
        let removed = self.removals.lifetimes().names(class);
        let removed = removed.filter_map(|name| Some(&self.removals.get(name)?.resource));
        shown.chain(named).chain(removed).filter(|resource| resource.ttl().is_some())
    }

    /// Iterates over the resources of a class that were sent for a name: for all names, or beside a
    /// wildcard for those with parameters that select another variant.
    fn named_with_lifetime(&self, class: LifetimeClass) -> impl Iterator<Item = &Arc<Resource>> {
        let (is_wildcard, base) = (self.is_wildcard(), self.base());
        let is_named = !is_wildcard || self.names.has_located();
        let names = is_named.then(|| self.names.lifetimes().names(class));
        let names = names.into_iter().flatten();
        let names = names.filter(move |name| !is_wildcard || is_located(name));
        let sent = names.filter_map(|name| self.names.get(name)?.sent());
        sent.filter(move |resource| !base.is_some_and(|base| base.has(resource)))
    }

    fn n_with_lifetime(&self, class: LifetimeClass) -> usize {
        let shown = self.base().map_or(0, |base| base.n_with_lifetime(class));
        let named = if self.is_wildcard() {
            self.named_with_lifetime(class).count()
        } else {
            self.names.lifetimes().n_names(class)
        };
        shown + named + self.removals.lifetimes().n_names(class)
    }

    /// Returns the resource that the client holds in place of `resource`.
    fn held(&self, resource: &Resource) -> Option<&Arc<Resource>> {
        let early = self.wildcard.as_ref().and_then(|w| w.sent_early.get(resource.name()));
        match early {
            Some(early) => early.as_ref(),
            None => self.sent_of(resource),
        }
    }

    /// Returns all resources that a full-state client was last sent (TTL-06).
    fn full_state(&self, differ: &Differ) -> Resources {
        let mut all = match self.base() {
            Some(base) => {
                let mut all = difference(differ, &TypeView::empty(), base).changed;
                let located = self.names.all_located();
                let sent = located.filter_map(|name| self.names.get(name)?.sent());
                let hidden = sent.filter(|resource| !base.has(resource));
                let distinct: BTreeMap<_, _> = hidden.map(|one| (one.name(), one)).collect();
                distinct.into_values().for_each(|resource| all.push(Arc::clone(resource)));
                all
            }
            None => {
                let mut all = Resources::default();
                let sent = self.names.values().filter_map(|version| version.sent());
                let distinct: BTreeMap<_, _> = sent.map(|one| (one.name(), one)).collect();
                distinct.into_values().for_each(|resource| all.push(Arc::clone(resource)));
                all
            }
        };
        self.removals.values().for_each(|removal| all.push(Arc::clone(&removal.resource)));
        all
    }
}

/// Returns whether the lifetime of a resource may have ended at the client.
fn has_ended(resource: &Resource, since: u64, now: u64) -> bool {
    resource.ttl().is_some_and(|ttl| u128::from(now.saturating_sub(since)) >= ttl.as_millis())
}
