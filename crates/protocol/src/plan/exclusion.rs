//! Resources that exclude each other at a client ([`Exclusion`]).
//!
//! Three rules keep the client in sync and its traffic served (ADR 4):
//! - A removal goes out in one response with the resource that takes its key. It does not wait for other types: the
//!   key stays in use.
//! - If the client rejects that response as a whole, it still has the removed resource. The removal is then pending
//!   again, and is not sent without a resource that takes the key.
//! - If a change frees a key that a rejected resource needs, the rejected resource is sent again with that change.
//!   So are all others that were rejected with it, because the client has none of them. Each change does this once.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use chancery_model::{Resource, ResourceName, types::Exclusion};
use chancery_view::{Resources, TypeView};

use super::{content::Plan, planner::Planner};
use crate::subscription::{PendingRemoval, Rejections, Release, Retried};

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
        !self.is_empty && self.has_any(resource.exclusive_keys(by).as_deref())
    }

    /// Returns whether one of `keys` is among the keys. `None` stands for unknown keys.
    fn has_any(&self, keys: Option<&[u64]>) -> bool {
        match keys {
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

/// Records the content that the plan replaces, if the client rejects something that may need its keys.
pub(super) fn note_freed(s: &Planner<'_>, old: &Arc<Resource>, plan: &mut Plan) {
    if s.kind.properties.exclusion != Exclusion::None && s.rejections.nack().is_some() {
        plan.freed.push(Arc::clone(old));
    }
}

/// Finds the pending removals whose keys other resources need, and adds the rejected resources whose rejection
/// may have lost its cause to the plan.
///
/// The cost is O(pending removals + planned resources), and O(resources of the view) while the client rejects a
/// large first state.
pub(super) fn take_over(
    s: &mut Planner<'_>,
    plan: &mut Plan,
    view: &TypeView,
    release: Release,
) -> Takeovers {
    let by = s.kind.properties.exclusion;
    let retried = s.rejections.take_retry();
    let mut found = Takeovers::default();
    if retried.is_none()
        && (by == Exclusion::None || (s.removals.is_empty() && plan.freed.is_empty()))
    {
        return found;
    }
    if s.rejections.nack().is_some() {
        retry(s, plan, view, release, retried.as_ref());
    }
    if s.removals.is_empty() || by == Exclusion::None {
        return found;
    }
    let planned = Keys::of(by, plan.resources.iter());
    let tried = s.removals.values().any(|removal| removal.is_tried);
    let rejected = if tried { rejected_in(s.rejections, view) } else { Vec::new() };
    let names: BTreeSet<&ResourceName> =
        plan.resources.iter().map(|resource| resource.name()).collect();
    let unplanned = rejected.iter().filter(|one| !names.contains(one.name()));
    let rejected = Keys::of(by, unplanned);
    let keeps_tried = tried && planned.is_empty && s.rejections.rejects_present(s.removals);
    for (name, removal) in s.removals.iter() {
        let keys = removal.resource.exclusive_keys(by);
        let is_kept = removal.is_tried && (keeps_tried || rejected.has_any(keys.as_deref()));
        // A removal with unknown keys may belong to the rejected resources.
        let is_needed = planned.has_any(keys.as_deref()) && !(is_kept && keys.is_none());
        if is_needed || (removal.is_tried && !is_kept) {
            found.now.insert(name.clone());
        } else if is_kept {
            found.kept.insert(name.clone());
        }
    }
    found
}

/// Adds rejected resources to the plan if the plan, or a removal, may end the cause of their rejection.
/// Adds those of `retried` in any case.
fn retry(
    s: &mut Planner<'_>,
    plan: &mut Plan,
    view: &TypeView,
    release: Release,
    retried: Option<&Retried>,
) {
    let by = s.kind.properties.exclusion;
    let planned: BTreeSet<ResourceName> =
        plan.resources.iter().map(|resource| resource.name().clone()).collect();
    let mut rejected = rejected_in(s.rejections, view);
    rejected.retain(|resource| !planned.contains(resource.name()));
    if rejected.is_empty() {
        return;
    }
    let needed = Keys::of(by, rejected.iter());
    let taken = Keys::of(by, plan.resources.iter());
    let is_cause = |old: &Arc<Resource>| {
        needed.meets(by, old) || (by.rejects_whole() && s.rejections.is_rejected(old))
    };
    let mut freed: Vec<Arc<Resource>> =
        plan.freed.iter().filter(|old| is_cause(old)).cloned().collect();
    let mut tried = Vec::new();
    for (name, removal) in s.removals.iter().filter(|(_, removal)| !removal.is_tried) {
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
    if retried.is_none() && freed.is_empty() {
        return;
    }
    tried.iter().for_each(|name| s.removals.set_tried(name));
    let mut has_first = retried.is_none_or(Retried::has_first);
    if by.rejects_whole() && !freed.is_empty() {
        has_first = true;
    } else {
        let freed = Keys::of(by, freed.iter());
        let is_retried = |one: &Arc<Resource>| {
            retried.is_some_and(|retried| s.rejections.is_retried(one, retried))
        };
        rejected.retain(|one| is_retried(one) || freed.meets(by, one));
    }
    if has_first && by.rejects_whole() {
        plan.first_state |= s.rejections.forget_first();
    } else if has_first {
        plan.repeats = s.rejections.repeat_first();
    }
    for resource in rejected {
        plan.touched.push(Arc::clone(&resource));
        plan.resources.push(resource);
    }
}

/// Orders the resources of a plan such that one that gives up a key precedes the one that takes it. Envoy applies the
/// resources of a response one by one. It rejects a listener whose address another listener still has. For a scope, it
/// removes the old key, even if another scope has just taken it. `before` is the previous view.
///
/// No order helps resources that exchange their keys in a circle. The cost is O(changed resources).
pub(super) fn order_takeovers(s: &Planner<'_>, plan: &mut Plan, before: Option<&TypeView>) {
    let by = s.kind.properties.exclusion;
    let is_ordered = matches!(by, Exclusion::ScopeKey | Exclusion::Address);
    // One changed resource takes no key of another one. Most pushes need no look into the bodies.
    if plan.touched.len() < 2 {
        return;
    }
    let Some(before) = before.filter(|_| is_ordered) else { return };
    let mut taker_of = BTreeMap::new();
    for new in plan.touched.iter() {
        let keys = new.exclusive_keys(by).unwrap_or_default();
        taker_of.extend(keys.into_iter().map(|key| (key, new.name())));
    }
    // The resources that take a key of each resource, and the number of resources whose keys each takes.
    let mut takers: BTreeMap<&ResourceName, Vec<&ResourceName>> = BTreeMap::new();
    let mut n_givers: BTreeMap<&ResourceName, usize> = BTreeMap::new();
    for new in plan.touched.iter() {
        let old = before.get(new.name().as_str()).and_then(|old| old.exclusive_keys(by));
        let keys = old.unwrap_or_default().into_iter();
        for taker in keys.filter_map(|key| taker_of.get(&key)).filter(|one| **one != new.name()) {
            takers.entry(new.name()).or_default().push(taker);
            *n_givers.entry(taker).or_default() += 1;
        }
    }
    if takers.is_empty() {
        return;
    }
    let mut ready: Vec<&ResourceName> =
        takers.keys().filter(|name| !n_givers.contains_key(*name)).copied().collect();
    let mut places: BTreeMap<ResourceName, usize> = BTreeMap::new();
    while let Some(name) = ready.pop() {
        places.insert(name.clone(), places.len() + 1);
        for taker in takers.remove(name).unwrap_or_default() {
            let Some(n) = n_givers.get_mut(taker) else { continue };
            *n -= 1;
            if *n == 0 {
                ready.push(taker);
            }
        }
    }
    let mut all: Vec<Arc<Resource>> = plan.resources.iter().cloned().collect();
    all.sort_by_key(|one| places.get(one.name()).copied().unwrap_or_default());
    plan.resources = Resources::default();
    all.into_iter().for_each(|one| plan.resources.push(one));
}

/// Returns whether resources of a plan may exchange keys, or take keys of removed resources. No response with
/// only a part of them may be valid. `before` is the previous view of a wildcard.
pub(super) fn exchanges_keys(s: &Planner<'_>, plan: &Plan, before: Option<&TypeView>) -> bool {
    let by = s.kind.properties.exclusion;
    if !by.rejects_whole() || plan.first_state {
        return false;
    }
    let is_held = |one: &Arc<Resource>| match before {
        Some(before) => plan.resumes || before.get(one.name().as_str()).is_some(),
        None => !plan.fresh.contains(one.name()),
    };
    let has_keys = |one: &Arc<Resource>| one.exclusive_keys(by).is_none_or(|keys| !keys.is_empty());
    plan.n_removed_first > 0 || plan.resources.iter().any(|one| is_held(one) && has_keys(one))
}

/// Returns the rejected resources that are in the view as the client was sent them.
fn rejected_in(rejections: &Rejections, view: &TypeView) -> Vec<Arc<Resource>> {
    let listed = rejections.listed();
    let is_there = |one: &Arc<Resource>| view.get(one.name().as_str()) == Some(one);
    let mut all: Vec<Arc<Resource>> = listed.filter(|one| is_there(one)).cloned().collect();
    if rejections.has_first() {
        let names: BTreeSet<ResourceName> = all.iter().map(|one| one.name().clone()).collect();
        let of_first =
            view.iter().filter(|one| !names.contains(one.name()) && rejections.is_rejected(one));
        all.extend(of_first.cloned());
    }
    all
}

/// Finds the removals whose keys the planned resources of a full state need.
pub(super) fn full_state_takeovers(
    s: &Planner<'_>,
    changed: &Resources,
    view: &TypeView,
) -> BTreeSet<ResourceName> {
    let by = s.kind.properties.exclusion;
    if by == Exclusion::None || s.removals.is_empty() {
        return BTreeSet::new();
    }
    // The contents of a rejected state are not kept.
    let keys = match s.rejections.nack() {
        Some(_) => Keys::of(by, view.iter()),
        None => Keys::of(by, changed.iter()),
    };
    let removals = s.removals.iter();
    let found = removals.filter(|(_, removal)| keys.meets(by, &removal.resource));
    found.map(|(name, _)| name.clone()).collect()
}
