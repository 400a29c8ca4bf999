//! Resources that exclude each other at a client ([`Exclusion`]).
//!
//! Three rules keep the client in sync and its traffic served (ADR 4):
//! - A removal goes out in one response with the resource that takes its key. It does not wait for other types: the
//!   key stays in use.
//! - If the client rejects that response as a whole, it still has the removed resource. The removal is then pending
//!   again, and is not sent without a resource that takes the key.
//! - If a change frees a key that a rejected resource needs, the rejected resource is sent again with that change.
//!   So are all others that were rejected with it, because the client has none of them. Each change does this once.

use std::{collections::BTreeSet, sync::Arc};

use chancery_model::{Resource, ResourceName, types::Exclusion};
use chancery_view::{Resources, TypeView};

use super::{Plan, Release};
use crate::subscription::{PendingRemoval, Subscription};

/// The keys of several resources.
#[derive(Debug, Default)]
struct Keys {
    known: BTreeSet<u64>,
    /// Whether the keys of a resource are unknown.
    has_unknown: bool,
    is_empty: bool,
}

impl Keys {
    fn of<'a>(by: Exclusion, resources: impl Iterator<Item = &'a Arc<Resource>>) -> Self {
        let mut all = Self { is_empty: true, ..Self::default() };
        for resource in resources {
            all.is_empty = false;
            match resource.exclusive_keys(by) {
                Some(keys) => all.known.extend(keys),
                None => all.has_unknown = true,
            }
        }
        all
    }

    /// Returns whether a resource has one of the keys. A resource with unknown keys may have any.
    fn meets(&self, by: Exclusion, resource: &Resource) -> bool {
        match resource.exclusive_keys(by) {
            _ if self.is_empty => false,
            None => true,
            Some(keys) => self.has_unknown || keys.iter().any(|key| self.known.contains(key)),
        }
    }
}

/// The removals for which the other resources of their type matter.
#[derive(Debug, Default)]
pub(super) struct Takeovers {
    /// The removals that go out with this plan, whether or not their referrers have moved.
    now: BTreeSet<ResourceName>,
    /// The removals that wait for a resource that the client accepts in their place.
    kept: BTreeSet<ResourceName>,
}

impl Takeovers {
    pub(super) fn are_now(&self, name: &ResourceName) -> bool {
        self.now.contains(name)
    }

    /// Returns whether a removal may be announced.
    pub(super) fn allow(
        &self,
        name: &ResourceName,
        removal: &PendingRemoval,
        release: Release,
    ) -> bool {
        self.now.contains(name) || (release.allows(removal) && !self.kept.contains(name))
    }
}

impl Subscription {
    /// Records that the plan replaces a resource that the client rejects or that excludes one.
    pub(super) fn note_freed(&self, old: &Arc<Resource>, plan: &mut Plan) {
        if self.properties.exclusion != Exclusion::None && self.nack().is_some() {
            plan.freed.push(Arc::clone(old));
        }
    }

    /// Finds the pending removals whose keys other resources need, and adds the rejected resources whose rejection
    /// may have lost its cause to the plan.
    ///
    /// The cost is O(pending removals + planned resources), and O(resources of the view) while the client rejects a
    /// large first state.
    pub(super) fn take_over(
        &mut self,
        plan: &mut Plan,
        view: &TypeView,
        release: Release,
    ) -> Takeovers {
        let by = self.properties.exclusion;
        let is_due = std::mem::take(&mut self.rejections.retry_due);
        let mut found = Takeovers::default();
        if !is_due && (by == Exclusion::None || (self.removals.is_empty() && plan.freed.is_empty()))
        {
            return found;
        }
        if self.nack().is_some() {
            self.retry(plan, view, release, is_due);
        }
        if self.removals.is_empty() || by == Exclusion::None {
            return found;
        }
        let planned = Keys::of(by, plan.resources.iter());
        let tried = self.removals.values().any(|removal| removal.is_tried);
        let rejected = if tried { self.rejected_in(view) } else { Vec::new() };
        let names: BTreeSet<&ResourceName> =
            plan.resources.iter().map(|resource| resource.name()).collect();
        let unplanned = rejected.iter().filter(|one| !names.contains(one.name()));
        let rejected = Keys::of(by, unplanned);
        for (name, removal) in self.removals.iter() {
            let is_kept = removal.is_tried
                && (rejected.meets(by, &removal.resource)
                    || (planned.is_empty && self.rejects_present()));
            // A removal with unknown keys may belong to the rejected resources.
            let is_unknown = removal.resource.exclusive_keys(by).is_none();
            let is_needed = planned.meets(by, &removal.resource) && !(is_kept && is_unknown);
            if is_needed || (removal.is_tried && !is_kept) {
                found.now.insert(name.clone());
            } else if is_kept {
                found.kept.insert(name.clone());
            }
        }
        found
    }

    /// Adds rejected resources to the plan if the plan, or a removal, may end the cause of their rejection.
    /// `is_due` means that another type did.
    fn retry(&mut self, plan: &mut Plan, view: &TypeView, release: Release, is_due: bool) {
        let by = self.properties.exclusion;
        let planned: BTreeSet<ResourceName> =
            plan.resources.iter().map(|resource| resource.name().clone()).collect();
        let mut rejected = self.rejected_in(view);
        rejected.retain(|resource| !planned.contains(resource.name()));
        if rejected.is_empty() {
            return;
        }
        let needed = Keys::of(by, rejected.iter());
        let taken = Keys::of(by, plan.resources.iter());
        let is_cause = |old: &Arc<Resource>| {
            needed.meets(by, old) || (by.rejects_whole() && self.rejections.is_rejected(old))
        };
        let mut freed: Vec<Arc<Resource>> =
            plan.freed.iter().filter(|old| is_cause(old)).cloned().collect();
        let mut tried = Vec::new();
        for (name, removal) in self.removals.iter().filter(|(_, removal)| !removal.is_tried) {
            // A removal that frees a key goes out with the resource that needs it.
            if needed.meets(by, &removal.resource) {
                freed.push(Arc::clone(&removal.resource));
            } else if (release.allows(removal) || taken.meets(by, &removal.resource))
                && is_cause(&removal.resource)
            {
                freed.push(Arc::clone(&removal.resource));
                tried.push(name.clone());
            }
        }
        if !is_due && freed.is_empty() {
            return;
        }
        tried.iter().for_each(|name| self.removals.set_tried(name));
        if !by.rejects_whole() && !is_due {
            let freed = Keys::of(by, freed.iter());
            rejected.retain(|resource| freed.meets(by, resource));
        }
        plan.first_state |= self.rejections.forget_first();
        for resource in rejected {
            plan.touched.push(Arc::clone(&resource));
            plan.resources.push(resource);
        }
    }

    /// Returns whether resources of a plan may exchange keys, or take keys of removed resources. No response with
    /// only a part of them may be valid. `before` is the previous view of a wildcard.
    pub(super) fn exchanges_keys(&self, plan: &Plan, before: Option<&TypeView>) -> bool {
        let by = self.properties.exclusion;
        if !by.rejects_whole() || plan.first_state {
            return false;
        }
        let is_held = |one: &Arc<Resource>| match before {
            Some(before) => plan.resumes || before.get(one.name().as_str()).is_some(),
            None => !plan.fresh.contains(one.name()),
        };
        let has_keys =
            |one: &Arc<Resource>| one.exclusive_keys(by).is_none_or(|keys| !keys.is_empty());
        plan.n_removed_first > 0 || plan.resources.iter().any(|one| is_held(one) && has_keys(one))
    }

    /// Returns the rejected resources that are in the view as the client was sent them.
    fn rejected_in(&self, view: &TypeView) -> Vec<Arc<Resource>> {
        let listed = self.rejections.listed();
        let is_there = |one: &Arc<Resource>| view.get(one.name().as_str()) == Some(one);
        let mut all: Vec<Arc<Resource>> = listed.filter(|one| is_there(one)).cloned().collect();
        if self.rejections.has_first() {
            let names: BTreeSet<ResourceName> = all.iter().map(|one| one.name().clone()).collect();
            let of_first = view
                .iter()
                .filter(|one| !names.contains(one.name()) && self.rejections.is_rejected(one));
            all.extend(of_first.cloned());
        }
        all
    }

    /// Returns whether the client rejects anything but resources that are being removed.
    fn rejects_present(&self) -> bool {
        let is_removed = |one: &Arc<Resource>| {
            self.removals.get(one.name()).is_some_and(|removal| removal.resource == *one)
        };
        self.rejections.rejects_unknown() || self.rejections.listed().any(|one| !is_removed(one))
    }

    /// Returns whether pending removals may be announced without any other change. A removal that the client has
    /// rejected waits while the client rejects another resource.
    pub(crate) fn has_releasable(&self, release: Release) -> bool {
        let mut allowed = self.removals.values().filter(|removal| release.allows(removal));
        allowed.any(|removal| !removal.is_tried || !self.rejects_present())
    }

    /// Handles the rejection of a response. If the client applies nothing of such a response, its removals are
    /// pending again. If a later response may have ended the cause, the resources are sent again.
    pub(crate) fn restore_removals(
        &mut self,
        removed: Vec<(ResourceName, PendingRemoval)>,
        nonce: u64,
    ) {
        let rejects_whole = self.properties.exclusion.rejects_whole() && !self.is_full_state();
        let is_last = nonce == self.delivery.last_nonce;
        if self.rejections.has_cause_ended(nonce) && is_last || rejects_whole && !is_last {
            self.retry_rejected();
        }
        if !rejects_whole {
            return;
        }
        if !self.removals.is_empty() {
            self.work.changed.set_all();
        }
        for (name, removal) in removed {
            self.removals.add(name.clone(), removal);
            self.removals.set_tried(&name);
        }
    }

    /// Handles an accepted response of another type, which may have ended the cause of rejections before it.
    pub(crate) fn on_cause_ended(&mut self, nonce: u64) {
        self.rejections.end_cause(nonce);
        let is_quiet = self.delivery.is_settled() && self.delivery.last_nonce < nonce;
        if self.nack().is_some() && is_quiet && self.rejects_present() {
            self.retry_rejected();
        }
    }

    /// Sends the rejected resources again with the next plan.
    fn retry_rejected(&mut self) {
        match self.is_full_state() {
            true => self.work.answer_due = true,
            false => {
                self.rejections.retry_due = true;
                self.work.changed.set_all();
            }
        }
    }
}

/// Finds the removals whose keys the planned resources of a full state need.
pub(super) fn full_state_takeovers(
    subscription: &Subscription,
    changed: &Resources,
    view: &TypeView,
) -> BTreeSet<ResourceName> {
    let by = subscription.properties.exclusion;
    if by == Exclusion::None || subscription.removals.is_empty() {
        return BTreeSet::new();
    }
    // The contents of a rejected state are not kept.
    let keys = match subscription.nack() {
        Some(_) => Keys::of(by, view.iter()),
        None => Keys::of(by, changed.iter()),
    };
    let removals = subscription.removals.iter();
    let found = removals.filter(|(_, removal)| keys.meets(by, &removal.resource));
    found.map(|(name, _)| name.clone()).collect()
}
