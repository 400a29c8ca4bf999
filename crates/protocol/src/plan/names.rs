//! The plan of names: those of a named subscription, and those with parameters beside a wildcard.

use std::{collections::BTreeSet, sync::Arc};

use chancery_model::{Resource, ResourceName, TypeVersion};

use super::{
    content::{Plan, PlanContext},
    exclusion::note_freed,
    planner::{Planner, gone_resource},
};
use crate::{Protocol, subscription::ClientVersion};

/// The results of a plan of names, besides the plan itself.
#[derive(Debug, Default)]
struct Found {
    /// The names of the planned resources.
    sent: BTreeSet<ResourceName>,
    /// The resources that others replace.
    replaced: Vec<Arc<Resource>>,
    /// The members of collections that no longer exist.
    lost: Vec<ResourceName>,
}

/// Plans a named subscription: the changes of its names, and the requested names.
pub(super) fn plan_names(planner: &mut Planner<'_>, context: PlanContext<'_>) -> Plan {
    let view = context.view;
    let (mut plan, mut found) = (Plan::default(), Found::default());
    let mut names = planner.names_to_check();
    names.extend(planner.work.requested().union(planner.work.resent()).cloned());
    let version = Arc::new(view.version());
    for name in names {
        plan_name(planner, name, &version, &mut plan, &mut found, context);
    }
    planner.remove_replaced(found.replaced, &mut plan, view);
    plan.touched = plan.resources.clone();
    let repeated = match planner.kind.protocol {
        Protocol::Delta => Vec::new(),
        Protocol::Sotw | Protocol::Mcp => {
            planner.interest.globs().repeated_members(view, &found.lost, &found.sent)
        }
    };
    for resource in repeated.iter().filter_map(|name| view.get(name.as_str())) {
        planner.record(resource.name(), ClientVersion::sent_in(resource, &version));
        plan.resources.push(Arc::clone(resource));
    }
    // DELTA-46, for names that the client lists but does not subscribe to.
    if planner.kind.properties.announce_removal {
        let (claimed, names) = (planner.resumption.claimed().keys(), planner.interest.names());
        let unasked = claimed.filter(|name| !names.has_base(name.base()));
        plan.removed.extend(unasked.filter(|name| view.get(name.as_str()).is_none()).cloned());
    }
    plan
}

/// Plans the names with parameters beside a wildcard. They may select variants that the parameters of
/// the wildcard do not (DYN-10). The cost is O(names with parameters).
pub(super) fn plan_located(planner: &mut Planner<'_>, plan: &mut Plan, context: PlanContext<'_>) {
    let names: Vec<ResourceName> = planner.interest.names().all_located().cloned().collect();
    if names.is_empty() {
        return;
    }
    let sent = plan.resources.iter().map(|resource| resource.name().clone()).collect();
    let mut found = Found { sent, ..Found::default() };
    let version = Arc::new(context.view.version());
    for name in names {
        plan_name(planner, name.clone(), &version, plan, &mut found, context);
        planner.work.on_answered(&name);
        planner.work.on_resent(&name);
    }
    planner.remove_replaced(found.replaced, plan, context.view);
}

/// Plans one name: its change, or the response to the request for it.
fn plan_name(
    planner: &mut Planner<'_>,
    name: ResourceName,
    version: &Arc<TypeVersion>,
    plan: &mut Plan,
    found: &mut Found,
    context: PlanContext<'_>,
) {
    let asked = planner.work.requested().contains(&name);
    let again = planner.work.resent().contains(&name);
    let wanted = asked || again || planner.work.is_awaited(&name);
    let held = planner.interest.names().get(&name).cloned().unwrap_or(ClientVersion::Nothing);
    let resource = context.view.get(name.as_str());
    if resource.is_none()
        && held.version().is_some()
        && planner.interest.globs().has_member(name.as_str())
    {
        found.lost.push(name.clone());
    }
    match resource {
        Some(_) => planner.orphans.remove(&name),
        None => planner.note_orphan(&name, context.is_resumed, context.now),
    }
    match (resource, held) {
        (Some(resource), held)
            if held.version() == Some(resource.version())
                && !wanted
                // TTL-12: see `plan_wildcard`.
                && (held.sent().is_some() || !planner.renewals.runs_at_client(resource)) =>
        {
            planner.removals.remove(&name);
            let sent_in = held.sent_version().unwrap_or(version);
            planner.record(&name, ClientVersion::sent_in(resource, sent_in));
        }
        (Some(resource), held) => {
            planner.removals.remove(&name);
            planner.work.end_await(&name);
            if held.version().is_none() {
                plan.fresh.insert(resource.name().clone());
            }
            if found.sent.insert(resource.name().clone()) {
                plan.resources.push(Arc::clone(resource));
            }
            found.replaced.extend(planner.replaced_under(&name, resource));
            if let Some(old) = held.sent().filter(|old| *old != resource) {
                note_freed(planner, old, plan);
            }
            planner.record(&name, ClientVersion::sent_in(resource, version));
        }
        (None, _) if asked => planner.report_absent(&name, plan, context),
        (None, ClientVersion::Claimed(_) | ClientVersion::Sent(..))
            if planner.kind.protocol == Protocol::Sotw && !planner.kind.sends_errors =>
        {
            // SOTW-85: the client gets no message. If the resource reappears, that is a
            // change (SOTW-86).
            planner.record(&name, ClientVersion::Absent);
        }
        (None, ClientVersion::Sent(old, _)) => {
            if again {
                planner.work.await_name(name.clone());
            }
            planner.hold_removal(name, old, context);
        }
        (None, ClientVersion::Claimed(version)) => {
            let old = gone_resource(&planner.kind.type_url, &name, Some(version));
            planner.hold_removal(name, old, context);
        }
        (None, ClientVersion::Nothing | ClientVersion::Absent) => {}
    }
}
