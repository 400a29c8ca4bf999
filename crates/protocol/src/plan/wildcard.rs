//! The plan of a delta wildcard.

use std::{collections::BTreeSet, sync::Arc};

use chancery_model::{Resource, ResourceName};
use chancery_view::{Differ, TypeView, difference};

use super::{
    content::{Plan, PlanContext},
    exclusion::note_freed,
    names::plan_located,
    planner::{Planner, gone_resource},
};
use crate::subscription::is_replaced;

/// Plans a delta wildcard: the difference to the view last sent, or to the resources that the
/// client claims to hold.
pub(super) fn plan_wildcard(
    planner: &mut Planner<'_>,
    context: PlanContext<'_>,
    differ: &Differ,
) -> Plan {
    let view = context.view;
    let mut plan = Plan::default();
    let (mut removed, mut replaced) = (Vec::new(), Vec::new());
    let base = planner.interest.base();
    let claimed = planner.resumption.claimed();
    match base {
        None if !claimed.is_empty() => {
            plan.resumes = true;
            for resource in view.iter() {
                // TTL-12: the lifetime runs since the client's earlier stream, and a heartbeat is
                // only for a resource that this stream sent (TTL-04).
                let names = [resource.name(), resource.base_name()];
                let version = Some(resource.version());
                let is_claimed = names.iter().any(|name| claimed.get(*name) == Some(&version));
                if !is_claimed || planner.renewals.sends_lifetime(resource) {
                    plan.resources.push(Arc::clone(resource));
                }
            }
            // DELTA-46: the client holds resources that no longer exist. Only their names are
            // known.
            let gone = claimed.iter().filter(|(name, _)| view.get(name.as_str()).is_none());
            removed.extend(gone.map(|(name, v)| gone_resource(&planner.kind.type_url, name, *v)));
        }
        base => {
            plan.first_state = base.is_none();
            let empty = TypeView::empty();
            let change = difference(differ, base.unwrap_or(&empty), view);
            if let Some(base) = base.filter(|_| planner.rejections.nack().is_some()) {
                let old = change.changed.iter().filter_map(|new| base.get(new.name().as_str()));
                let old: Vec<Arc<Resource>> = old.cloned().collect();
                old.iter().for_each(|old| note_freed(planner, old, &mut plan));
                replaced = old;
            }
            (plan.resources, removed) = (change.changed, change.removed);
        }
    }
    replaced.iter().for_each(|old| planner.rejections.on_gone(old));
    if !planner.removals.is_empty() {
        planner.drop_returned(&mut plan.resources);
    }
    if let Some(wildcard) = planner.interest.wildcard_mut() {
        wildcard.settle_sent_early(view, &mut plan.resources, &mut removed);
    }
    plan_located(planner, &mut plan, context);
    plan.touched = plan.resources.clone();
    if !planner.work.requested().is_empty() || !planner.work.resent().is_empty() {
        let mut sent: BTreeSet<ResourceName> =
            plan.resources.iter().map(|resource| resource.name().clone()).collect();
        let asked = planner.work.take_requested();
        for name in asked.union(&planner.work.take_resent()) {
            match view.get(name.as_str()) {
                Some(resource) if sent.insert(resource.name().clone()) => {
                    plan.resources.push(Arc::clone(resource));
                }
                None if asked.contains(name) => planner.report_absent(name, &mut plan, context),
                Some(_) | None => {}
            }
        }
    }
    let said: BTreeSet<&ResourceName> = plan.removed.iter().collect();
    removed.retain(|resource| !said.contains(resource.name()));
    for resource in removed {
        if is_replaced(planner.interest, view, &resource) {
            planner.remove_replaced(vec![resource], &mut plan, view)
        } else {
            planner.hold_removal(resource.name().clone(), resource, context)
        }
    }
    plan
}
