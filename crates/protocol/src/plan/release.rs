//! The announcement of removals.

use std::collections::BTreeSet;

use chancery_model::ResourceName;
use chancery_view::TypeView;

use super::{content::Plan, exclusion::Takeovers, planner::Planner};
use crate::{
    Protocol,
    subscription::{ClientVersion, Release, has_elsewhere, is_replaced},
};

/// Announces the removals that `release` allows, each once (DELTA-44). A removal waits for the
/// next response if this response has a resource with the name as an alias, or reports the name
/// as absent (DELTA-47).
///
/// Those of `takeovers` go out before the resources of the plan.
pub(super) fn release_removals(
    planner: &mut Planner<'_>,
    plan: &mut Plan,
    view: &TypeView,
    release: Release,
    takeovers: &Takeovers,
) {
    if planner.removals.is_empty() {
        return;
    }
    let aliases = plan.resources.iter().flat_map(|resource| resource.aliases().iter().cloned());
    let absent: BTreeSet<ResourceName> = plan.absent.iter().cloned().collect();
    let aliased: BTreeSet<ResourceName> = aliases.chain(absent.iter().cloned()).collect();
    let mut said: BTreeSet<ResourceName> = plan.removed.iter().cloned().collect();
    let mut first = Vec::new();
    for (name, removal) in std::mem::take(planner.removals) {
        let own = removal.resource.name();
        let is_back =
            |name: &ResourceName| view.get(name.as_str()).is_some_and(|r| r.name() == name);
        if is_back(&name) {
            continue;
        }
        if is_replaced(planner.interest, view, &removal.resource) {
            if view.get(name.as_str()).is_none() {
                planner.record(&name, ClientVersion::Absent);
            }
            planner.remove_replaced(vec![removal.resource], plan, view);
            continue;
        }
        let is_takeover = takeovers.are_now(&name);
        let others = if is_takeover { &absent } else { &aliased };
        let beside = others.contains(&name) || others.contains(own);
        if !takeovers.allow(&name, &removal, release) || beside {
            planner.removals.add(name, removal);
            continue;
        }
        planner.rejections.touch(own);
        // ERR-10: a member of a glob that the client has not named itself has no error.
        let is_named = !planner.interest.globs().has_member(name.as_str());
        planner.record(&name, ClientVersion::Absent);
        if !planner.kind.properties.announce_removal {
            continue;
        }
        if planner.kind.protocol == Protocol::Sotw {
            if is_named {
                plan.errors.push(name);
            }
            continue;
        }
        if removal.resource.constraints().is_some() {
            if said.insert(own.clone()) && !has_elsewhere(planner.interest, view, &removal.resource)
            {
                plan.removed.push(own.clone());
            }
            continue;
        }
        // A client that subscribed by an alias also knows the resource by its own name.
        let own_gone = *own != name && view.get(own.as_str()).is_none();
        let to = if is_takeover { &mut first } else { &mut plan.removed };
        let names = own_gone.then(|| own.clone()).into_iter().chain([name.clone()]);
        to.extend(names.filter(|name| said.insert(name.clone())));
        if planner.kind.properties.exclusion.rejects_whole() {
            plan.announced.push((name, removal));
        }
    }
    plan.n_removed_first = first.len();
    plan.removed.splice(..0, first);
}
