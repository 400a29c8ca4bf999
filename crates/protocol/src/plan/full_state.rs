//! Full-state SotW types, whose responses contain all subscribed resources (SOTW-70).

use std::{collections::BTreeSet, sync::Arc};

use chancery_model::{Resource, ResourceName};
use chancery_view::{Differ, Resources, TypeView, difference};

use super::{
    content::{Plan, PlanContext},
    errors::errors_of_full_state,
    exclusion::full_state_takeovers,
    planner::Planner,
};
use crate::subscription::{ClientVersion, Release, UnnamedRemovals, has_elsewhere, is_replaced};

/// Plans a full-state SotW response: all resources, if any of them changed.
pub(super) fn plan_full_state(
    planner: &mut Planner<'_>,
    context: PlanContext<'_>,
    release: Release,
    differ: &Differ,
) -> Plan {
    if resumes_held(planner, context) {
        return Plan::default();
    }
    let mut plan = Plan {
        send: !planner.work.requested().is_empty() || planner.work.is_state_due(),
        ..Plan::default()
    };
    let (mut changed, mut removed) = match planner.interest.wildcard() {
        Some(wildcard) => {
            let change = difference(differ, &wildcard.base_or_empty(), context.view);
            let names = planner.interest.names().all_located().cloned().collect();
            let located = changed_names(planner, names, context.view, &mut plan.fresh);
            let (mut changed, mut removed) = (change.changed, change.removed);
            located.0.iter().for_each(|resource| changed.push(Arc::clone(resource)));
            removed.extend(located.1);
            (changed, removed)
        }
        None => {
            let names = planner.names_to_check();
            changed_names(planner, names, context.view, &mut plan.fresh)
        }
    };
    let earlier = planner.resumption.take_resources(context.view, differ);
    // ADS-08: resources that the client holds from an earlier stream and subscribes to, and that no
    // longer exist.
    let gone = earlier.iter().filter(|resource| {
        planner.interest.covers(resource)
            && context.view.get(resource.name().as_str()).is_none()
            && !is_replaced(planner.interest, context.view, resource)
    });
    removed.extend(gone.cloned());
    if !planner.removals.is_empty() {
        planner.drop_returned(&mut changed);
    }
    plan.send |= !changed.is_empty();
    plan.touched = changed;
    removed.retain(|resource| !has_elsewhere(planner.interest, context.view, resource));
    let (replaced, removed): (Vec<_>, Vec<_>) = removed
        .into_iter()
        .partition(|resource| is_replaced(planner.interest, context.view, resource));
    plan.send |= !replaced.is_empty();
    let returned = planner
        .removals
        .values()
        .filter(|r| is_replaced(planner.interest, context.view, &r.resource));
    let returned: Vec<ResourceName> =
        returned.map(|removal| removal.resource.name().clone()).collect();
    returned.iter().for_each(|name| drop(planner.removals.remove(name)));
    for resource in removed {
        planner.hold_removal(resource.name().clone(), resource, context);
    }
    let released = release_full_state(planner, &plan.touched, context.view, release);
    plan.errors = errors_of_full_state(planner, context.view, &released);
    let unnamed = planner.removals.unnamed();
    let releases_unnamed = unnamed.is_some_and(|unnamed| release.allows_unnamed(unnamed));
    plan.releases = !released.is_empty() || releases_unnamed;
    plan.send |= plan.releases;
    released.iter().for_each(|resource| planner.drop_absent_member(resource.name()));
    if !plan.send {
        return plan;
    }
    // The full state cannot contain resources that are not known.
    planner.removals.set_unnamed(None);
    plan.resources = full_state_of(planner, context.view, differ);
    let held = planner.removals.values().map(|removal| &removal.resource);
    held.for_each(|resource| plan.resources.push(Arc::clone(resource)));
    plan
}

/// Returns whether the client resumes with the current state and removed resources that this replica does not
/// know. If so, the client is sent nothing until their removal may be announced, or the state changes (ADS-08).
fn resumes_held(planner: &mut Planner<'_>, context: PlanContext<'_>) -> bool {
    let is_held = planner.resumption.take_is_held(&context.view.version());
    let interest = &*planner.interest;
    let is_whole = interest.is_wildcard() && interest.names().is_empty();
    if !is_held || !is_whole || interest.base().is_some() {
        return false;
    }
    planner.work.set_answer_due(false);
    let PlanContext { revision, now, .. } = context;
    planner.removals.set_unnamed(Some(UnnamedRemovals { revision, since: now, is_kept: false }));
    true
}

/// Removes the pending removals that may be announced. Returns their resources, which the full state omits.
fn release_full_state(
    planner: &mut Planner<'_>,
    changed: &Resources,
    view: &TypeView,
    release: Release,
) -> Vec<Arc<Resource>> {
    let takeovers = full_state_takeovers(planner, changed, view);
    let mut released = Vec::new();
    let Planner { removals, interest, rejections, .. } = planner;
    removals.retain(|name, removal| {
        let stays = !release.allows(removal) && !takeovers.contains(name);
        if !stays {
            rejections.touch(name);
            drop(interest.set_version(name, ClientVersion::Absent));
            released.push(Arc::clone(&removal.resource));
        }
        stays
    });
    released
}

/// Returns all subscribed resources of a view, each once: those of a wildcard, and those of names
/// that it does not show (SOTW-67, DYN-10).
fn full_state_of(planner: &Planner<'_>, view: &TypeView, differ: &Differ) -> Resources {
    let add = |names: &mut dyn Iterator<Item = &ResourceName>, all: &mut Resources| {
        let mut seen = BTreeSet::new();
        for resource in names.filter_map(|name| view.get(name.as_str())) {
            let is_shown = planner.interest.is_wildcard() && view.has(resource);
            if !is_shown && seen.insert(resource.name()) {
                all.push(Arc::clone(resource));
            }
        }
    };
    let mut all = Resources::default();
    if planner.interest.is_wildcard() {
        all = difference(differ, &TypeView::empty(), view).changed;
        add(&mut planner.interest.names().all_located(), &mut all);
    } else {
        add(&mut planner.interest.names().keys(), &mut all);
    }
    all
}

/// Returns the changed and the removed resources of a full state by names, and records them as
/// sent. Adds the names of resources that the client did not have to `fresh`.
fn changed_names(
    planner: &mut Planner<'_>,
    names: BTreeSet<ResourceName>,
    view: &TypeView,
    fresh: &mut BTreeSet<ResourceName>,
) -> (Resources, Vec<Arc<Resource>>) {
    let (mut changed, mut removed) = (Resources::default(), Vec::new());
    let version = Arc::new(view.version());
    for name in names {
        let Some(held) = planner.interest.names().get(&name).cloned() else { continue };
        match (view.get(name.as_str()), held) {
            (Some(new), held) if held.version() == Some(new.version()) => {}
            (Some(new), held) => {
                if held.version().is_none() {
                    fresh.insert(new.name().clone());
                }
                changed.push(Arc::clone(new));
                if let ClientVersion::Sent(before, _) = held {
                    planner.rejections.touch(before.name());
                }
                planner.interest.set_version(&name, ClientVersion::sent_in(new, &version));
            }
            (None, ClientVersion::Sent(old, _)) => {
                removed.push(old);
                planner.interest.set_version(&name, ClientVersion::Absent);
            }
            (None, _) => {}
        }
    }
    (changed, removed)
}
