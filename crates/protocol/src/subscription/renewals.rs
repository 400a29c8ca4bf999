//! The renewal of lifetimes: which resources are due, and when (TTL-08).
//!
//! A client drops a resource with a lifetime unless the server renews it in time. A subscription
//! keeps one deadline for all of them. The resources that are due follow from what the client was
//! last sent, by classes of similar lifetimes ([`LifetimeClass`]). All resources of a class are due
//! together, in a fixed rhythm of about a third of the lifetime. Nothing is kept per resource, except
//! for the few that were sent in between: they are due a third of their lifetime later (TTL-13).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use chancery_model::{LifetimeClass, Resource, ResourceName, Revision, TypeVersion};
use chancery_view::{Differ, Resources};

use super::{
    client_resources::ClientResources,
    delivery::{CarriedRevisions, Delivery, Pace, PendingResponse},
    kind::Kind,
    rejections::Rejections,
};
use crate::{LifetimeSupport, encoding::LifetimeForm};

/// The minimum interval between two renewals, in milliseconds. Lifetimes below three times this
/// value end between two renewals.
const INTERVAL_MIN_MS: u64 = 100;

/// The part of the interval by which streams differ, in thousandths.
const JITTER: u64 = 100;

/// The maximum number of resources that are remembered after they were sent alone. A further one is
/// renewed with its class, which may be earlier than necessary.
const SENT_ALONE_MAX: usize = 64;

/// The lifetimes of a subscription.
#[derive(Debug)]
pub(crate) struct Renewals {
    support: LifetimeSupport,
    form: LifetimeForm,
    needs_content: bool,
    /// The time at which the rhythm begins: that of the last response with all resources.
    origin: u64,
    /// The revision of the first state that began the rhythm.
    origin_revision: Revision,
    /// The time up to which everything due was renewed.
    done: u64,
    /// Resources that were sent after the rhythm began, with the time.
    sent_alone: BTreeMap<ResourceName, (Arc<Resource>, u64)>,
    /// The time of the next renewal; `None` if the client has no resource with a lifetime.
    next: Option<u64>,
    /// The revision of the last response.
    revision: Revision,
    /// SotW: the version with which the client last received each resource with a lifetime, if it is
    /// the same for all. A heartbeat has this version (CLI-E-45).
    received_as: Option<TypeVersion>,
}

impl Renewals {
    pub(crate) fn new(now: u64) -> Self {
        Self {
            support: LifetimeSupport::default(),
            form: LifetimeForm::None,
            needs_content: false,
            origin: now,
            origin_revision: Revision(0),
            done: now,
            sent_alone: BTreeMap::new(),
            next: None,
            revision: Revision(0),
            received_as: None,
        }
    }

    /// Returns the form in which the client is sent lifetimes.
    pub(crate) fn form(&self) -> LifetimeForm {
        self.form
    }

    /// Returns whether a SotW client accepts resources in a wrapper.
    pub(crate) fn has_wrappers(&self) -> bool {
        self.support.has_wrappers()
    }

    /// Sets the support of the client for lifetimes. Virtual hosts have none (TTL-10).
    pub(super) fn set_support(
        &mut self,
        support: LifetimeSupport,
        kind: &Kind,
        client: ClientResources<'_>,
    ) {
        self.support = support;
        self.needs_content = support.needs_content(kind.protocol);
        self.form = if kind.properties.absent_as_alias {
            LifetimeForm::None
        } else {
            support.form(kind.protocol)
        };
        self.schedule(client);
    }

    /// Returns whether the client is sent the lifetime of this resource.
    pub(crate) fn sends_lifetime(&self, resource: &Resource) -> bool {
        self.form != LifetimeForm::None && resource.ttl().is_some()
    }

    /// Returns whether a time of this resource has run at the client since an earlier stream: its lifetime,
    /// or the time after which its endpoints are stale (TTL-12, CLI-E-34).
    pub(crate) fn runs_at_client(&self, resource: &Resource) -> bool {
        self.sends_lifetime(resource) || resource.stale_after().is_some()
    }

    /// Returns the time of the next renewal, unless a response is on its way that is sent first. A
    /// renewal that is due waits for the answer to the last response (SOTW-36).
    pub(super) fn next_at(
        &self,
        delivery: &Delivery,
        ack_timeout_ms: u64,
        now: u64,
    ) -> Option<u64> {
        let due = self.next.filter(|_| delivery.pending().is_none())?;
        let last = delivery.last_unanswered().filter(|_| due <= now);
        let answer_at = last.map_or(0, |sent| sent.sent_at + ack_timeout_ms);
        Some(if answer_at > now { answer_at } else { due })
    }

    /// Records a response, whose resources need no renewal for a while (TTL-13).
    pub(super) fn on_sent(
        &mut self,
        resources: &Resources,
        of: &PendingResponse,
        kind: &Kind,
        client: ClientResources<'_>,
        now: u64,
    ) {
        if self.form == LifetimeForm::None {
            return;
        }
        self.revision = of.revision;
        if kind.is_full_state() {
            self.restart(now);
            self.received_as = Some(of.version.clone());
        } else if !of.is_renewal {
            let with_lifetime = resources.iter().filter(|resource| resource.ttl().is_some());
            let begins_state = of.first_state && of.revision != self.origin_revision;
            if begins_state || self.next.is_none() {
                self.origin_revision = of.revision;
                self.restart(now);
            } else {
                for resource in with_lifetime.clone() {
                    let alone = &mut self.sent_alone;
                    if alone.len() < SENT_ALONE_MAX || alone.contains_key(resource.name()) {
                        alone.insert(resource.name().clone(), (Arc::clone(resource), now));
                    }
                }
            }
            let classes = client.classes();
            let all: usize = classes.into_iter().map(|class| client.n_with_lifetime(class)).sum();
            if with_lifetime.count() == all {
                self.received_as = Some(of.version.clone());
            }
        }
        self.schedule(client);
    }

    /// Plans the renewal of the resources that are due. Resources that the client rejects are not
    /// renewed, nor are those that it was not sent (TTL-04).
    #[must_use]
    pub(super) fn plan(
        &mut self,
        kind: &Kind,
        client: ClientResources<'_>,
        rejections: &Rejections,
        delivery: &Delivery,
        differ: &Differ,
        now: u64,
    ) -> Option<PendingResponse> {
        let version = delivery.sent_version().cloned()?;
        let is_full_state = kind.is_full_state();
        let is_received = self.received_as.as_ref() == Some(&version);
        let is_rejecting = rejections.nack().is_some();
        // In SotW, a heartbeat has the version of the response. If the client knows a resource by
        // another version, it needs the content with the new one.
        let with_content = self.needs_content
            || (self.form == LifetimeForm::Wrapper && (is_rejecting || !is_received));
        let is_unconfirmed = with_content && !self.needs_content && !is_rejecting;
        let mut due = self.take_due(is_unconfirmed && !is_full_state, client, now);
        due.retain(|_, (resource, _)| !rejections.is_rejected(resource));
        self.done = now;
        let is_refused = is_full_state && is_rejecting;
        let is_due = !is_refused && !due.is_empty();
        let (mut resources, mut heartbeats) = (Resources::default(), Resources::default());
        if is_due && is_full_state && with_content {
            resources = client.full_state(differ);
        } else if is_due && is_full_state {
            let last = delivery.last_sent_at().unwrap_or(0);
            for resource in client.full_state(differ).iter() {
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
                self.received_as = Some(version.clone());
            }
        }
        self.schedule(client);
        if resources.is_empty() && heartbeats.is_empty() {
            return None;
        }
        let revision = self.revision;
        // The response carries no change.
        let carried =
            CarriedRevisions { possibly_after: revision, after: revision, up_to: revision };
        Some(PendingResponse {
            resources,
            heartbeats,
            version,
            revision,
            covers: delivery.planned(),
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
        })
    }

    /// Returns the resources that are due, each with the time since which it was not renewed. `all`
    /// adds those that are not due yet.
    fn take_due(
        &mut self,
        all: bool,
        client: ClientResources<'_>,
        now: u64,
    ) -> BTreeMap<ResourceName, (Arc<Resource>, u64)> {
        let mut due = BTreeMap::new();
        let alone = std::mem::take(&mut self.sent_alone);
        for class in client.classes() {
            let since = self.last_due(class, self.done);
            if !all && self.last_due(class, now) <= since {
                continue;
            }
            let of_class = client.with_lifetime(class);
            for resource in of_class.filter(|resource| !alone.contains_key(resource.name())) {
                due.insert(resource.name().clone(), (Arc::clone(resource), since));
            }
        }
        let mut later = BTreeMap::new();
        for (name, (resource, sent_at)) in alone {
            if !all && self.due_alone(&resource, sent_at) > now {
                later.insert(name, (resource, sent_at));
            } else if let Some(held) = client.held(&resource)
                && held.ttl().is_some()
            {
                due.insert(name, (Arc::clone(held), sent_at));
            }
        }
        self.sent_alone = later;
        due
    }

    /// Computes the time of the next renewal, in O(classes).
    fn schedule(&mut self, client: ClientResources<'_>) {
        if self.form == LifetimeForm::None {
            self.next = None;
            return;
        }
        let by_class = client
            .classes()
            .into_iter()
            .map(|class| self.last_due(class, self.done).saturating_add(self.interval(class)));
        let alone = self.sent_alone.values();
        let alone = alone.map(|(resource, sent_at)| self.due_alone(resource, *sent_at));
        self.next = by_class.chain(alone).min();
    }

    /// Returns the interval of a class: about a third of its lifetime (TTL-08).
    fn interval(&self, class: LifetimeClass) -> u64 {
        spread(self.support.seed(), class.0 / 3, class)
    }

    /// Returns the last time at or before `at` at which a class was due.
    fn last_due(&self, class: LifetimeClass, at: u64) -> u64 {
        let interval = self.interval(class);
        self.origin + at.saturating_sub(self.origin) / interval * interval
    }

    /// Starts the rhythm again: the client has just received all resources.
    fn restart(&mut self, now: u64) {
        (self.origin, self.done) = (now, now);
        self.sent_alone.clear();
    }

    fn due_alone(&self, resource: &Resource, sent_at: u64) -> u64 {
        let class = resource.ttl().map_or(LifetimeClass(u64::MAX), LifetimeClass::of);
        sent_at.saturating_add(self.interval(class))
    }
}

/// Shortens an interval by a small part that depends on the stream, so that not all streams are due at
/// the same time. `seed` is a number that differs between streams.
pub(super) fn spread(seed: u64, interval: u64, class: LifetimeClass) -> u64 {
    let share = mix(seed ^ class.0) % JITTER;
    let jitter = interval / 1000 * share + interval % 1000 * share / 1000;
    (interval - jitter).max(INTERVAL_MIN_MS)
}

/// Returns whether the lifetime of a resource may have ended at the client.
fn has_ended(resource: &Resource, since: u64, now: u64) -> bool {
    resource.ttl().is_some_and(|ttl| u128::from(now.saturating_sub(since)) >= ttl.as_millis())
}

/// Mixes the bits of a number, as the finalizer of `SplitMix64` does.
fn mix(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// TTL-08: the interval is at most a third of the lifetime, and differs between streams.
    #[test]
    fn interval_is_about_a_third_of_the_lifetime() {
        let intervals = |ms: u64| -> BTreeSet<u64> {
            let class = LifetimeClass::of(std::time::Duration::from_millis(ms));
            let of_seed = |seed| {
                let mut renewals = Renewals::new(0);
                let node = chancery_model::Node::default();
                renewals.support = LifetimeSupport::of(&node, seed);
                renewals.interval(class)
            };
            (0..100).map(of_seed).collect()
        };
        for ms in [600, 3_000, 30_000, 86_400_000, u64::MAX / 4] {
            let found = intervals(ms);
            let (Some(min), Some(max)) = (found.first(), found.last()) else { panic!("none") };
            assert!(*max <= ms / 3 && *min >= ms / 3 / 4 * 3, "{ms}: {min} to {max}");
            assert!(found.len() > 10, "{ms}: {} different intervals", found.len());
        }
        assert_eq!(intervals(1), BTreeSet::from([INTERVAL_MIN_MS]));
    }
}
