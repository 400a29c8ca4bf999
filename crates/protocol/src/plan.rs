//! The content of the next response of a subscription: the difference between what was sent and the
//! view.

use std::{collections::BTreeSet, sync::Arc};

use chancery_view::{Differ, Resources, TypeView};

use crate::{
    Protocol,
    subscription::{
        CarriedRevisions, ClientResources, ClientVersion, Pace, PendingResponse, Release, Wildcard,
    },
};

mod collection;
mod content;
mod errors;
mod exclusion;
mod full_state;
mod names;
mod planner;
mod release;
mod wildcard;

use collection::plan_full_collection;
use content::{Before, Plan};
pub(crate) use content::{PlanContext, Selection, Touched};
use full_state::plan_full_state;
use names::plan_names;
pub(crate) use planner::Planner;
use release::release_removals;
use wildcard::plan_wildcard;

/// Plans the next response from the view and records the subscription as up to date with the
/// view.
pub(crate) fn plan(
    planner: &mut Planner<'_>,
    context: PlanContext<'_>,
    release: Release,
    differ: &Differ,
) -> Touched {
    let carried = planner.delivery.carried(context.revision, planner.work.is_requested());
    let before = planner.interest.wildcard().map(Wildcard::base_or_empty);
    let sent_early = planner.interest.wildcard().is_some_and(|w| w.n_sent_early() > 0);
    let full_state = planner.kind.is_full_state();
    let mut plan = match (full_state, planner.interest.is_wildcard()) {
        (true, _) => plan_full_state(planner, context, release, differ),
        (false, true) => plan_wildcard(planner, context, differ),
        (false, false) => plan_names(planner, context),
    };
    if !full_state {
        let takeovers = exclusion::take_over(planner, &mut plan, context.view, release);
        release_removals(planner, &mut plan, context.view, release, &takeovers);
    }
    if planner.kind.protocol == Protocol::Mcp && !planner.is_incremental {
        plan_full_collection(&mut plan, planner.work.is_answer_due(), context.view, differ);
    }
    exclusion::order_takeovers(planner, &mut plan, before.as_ref());
    plan.is_incremental = planner.is_incremental;
    plan.sent_early = sent_early;
    if let Some(wildcard) = planner.interest.wildcard_mut() {
        wildcard.on_planned(context.view.clone());
    }
    planner.resumption.clear_claims();
    plan.send |= planner.work.take_all();
    // Pending removals are not sent yet.
    let oldest = planner.removals.waits_after();
    planner.delivery.on_planned(oldest.unwrap_or(context.revision), context.revision);
    set_pending(planner, plan, before, carried, context)
}

/// Plans a response to the requested names only. All other changes wait for a later plan.
pub(crate) fn plan_requested(
    planner: &mut Planner<'_>,
    context: PlanContext<'_>,
    selection: Selection,
) -> Touched {
    let mut plan = Plan::default();
    let carried = planner.delivery.carried(context.revision, planner.work.is_requested());
    let (mut sent, mut replaced) = (BTreeSet::new(), Vec::new());
    let version = Arc::new(context.view.version());
    let asked = planner.work.take_requested();
    let again = match selection {
        Selection::Requested => BTreeSet::new(),
        Selection::RequestedAndResent => planner.work.take_resent(),
    };
    for name in asked.union(&again) {
        match context.view.get(name.as_str()) {
            Some(resource) => {
                planner.orphans.remove(name);
                planner.work.forget(name);
                planner.removals.remove(name);
                if !planner.interest.holds(name) {
                    plan.fresh.insert(resource.name().clone());
                }
                replaced.extend(planner.replaced_under(name, resource));
                planner.record(name, ClientVersion::sent_in(resource, &version));
                planner.record_other_names(resource, context.view, &version);
                if sent.insert(resource.name().clone()) {
                    plan.resources.push(Arc::clone(resource));
                }
                if let Some(wildcard) = planner.interest.wildcard_mut()
                    && context.view.has(resource)
                {
                    let sent = Some(Arc::clone(resource));
                    wildcard.on_sent_early(resource.name().clone(), sent);
                }
            }
            None if asked.contains(name) => {
                planner.work.on_change_planned(name);
                planner.report_absent(name, &mut plan, context);
                if let Some(wildcard) = planner.interest.wildcard_mut()
                    && plan.removed.contains(name)
                {
                    wildcard.on_sent_early(name.clone(), None);
                }
            }
            // The removal of the resource is an ordinary change.
            None => {
                planner.work.on_changed(name.clone());
                planner.work.await_name(name.clone());
            }
        }
    }
    planner.remove_replaced(replaced, &mut plan, context.view);
    plan.touched = plan.resources.clone();
    set_pending(planner, plan, None, carried, context)
}

/// Makes the plan the pending response, unless there is nothing to send. `before` is the
/// previous view of a wildcard.
fn set_pending(
    planner: &mut Planner<'_>,
    plan: Plan,
    before: Option<TypeView>,
    carried: CarriedRevisions,
    context: PlanContext<'_>,
) -> Touched {
    let covers = planner.delivery.planned();
    let is_atomic = exclusion::exchanges_keys(planner, &plan, before.as_ref());
    let Plan { resources, removed, absent, errors, send, touched, fresh, .. } = plan;
    let changes = plan.releases || !touched.is_empty() || !removed.is_empty();
    let has_names = !removed.is_empty() || !absent.is_empty() || !errors.is_empty();
    if !resources.is_empty() || has_names || send {
        let mut version = context.view.version();
        if planner.kind.is_full_state() && !planner.removals.is_empty() {
            let held = planner.removals.values().map(|held| &held.resource);
            let interest = &planner.interest;
            let is_whole = interest.is_wildcard() && interest.names().is_empty();
            version = version.holding(is_whole, held.map(|held| (held.name(), held.version())));
        }
        let revision = context.revision;
        let names = removed.iter().chain(&absent).chain(&errors);
        let names_bytes = PendingResponse::bytes_of(names);
        planner.delivery.set_pending(PendingResponse {
            resources,
            heartbeats: Resources::default(),
            removed: removed.into(),
            n_removed_first: plan.n_removed_first,
            announced: plan.announced,
            changes,
            is_atomic,
            absent: absent.into(),
            errors: errors.into(),
            names_bytes,
            version,
            revision,
            covers,
            carried,
            unsubscribed: BTreeSet::new(),
            first_state: plan.first_state,
            repeats: plan.repeats,
            is_incremental: plan.is_incremental,
            is_renewal: false,
            base: before.clone().filter(|_| !plan.sent_early),
            pace: Pace::FirstAtOnce,
        });
    } else {
        planner.delivery.on_nothing_to_send(covers);
    }
    if !planner.rejections.is_empty() {
        touched.iter().for_each(|resource| planner.rejections.touch(resource.name()));
    }
    let client = ClientResources::new(planner.interest, planner.removals);
    planner.rejections.on_event(client, planner.delivery.is_settled());
    Touched { resources: touched, before: before.map_or(Before::AllBut(fresh), Before::View) }
}
