//! Full-state SotW types, whose responses contain all subscribed resources (SOTW-70).

use std::{collections::BTreeSet, sync::Arc};

use chancery_model::{Resource, ResourceName};
use chancery_view::{Differ, Resources, TypeView, difference};

use super::{Plan, PlanContext, Release};
use crate::subscription::{ClientVersion, Subscription};

impl Subscription {
    /// Plans a full-state SotW response: all resources, if any of them changed.
    pub(super) fn plan_full_state(
        &mut self,
        context: PlanContext<'_>,
        release: Release,
        differ: &Differ,
    ) -> Plan {
        let mut plan = Plan {
            send: !self.work.requested.is_empty() || self.work.answer_due,
            ..Plan::default()
        };
        let (mut changed, mut removed) = match &self.wildcard {
            Some(wildcard) => {
                let change = difference(differ, &wildcard.base_or_empty(), context.view);
                (change.changed, change.removed)
            }
            None => self.changed_names(context.view, &mut plan.fresh),
        };
        if let Some(earlier) = self.resumption.take_resources() {
            // ADS-08: resources that the client holds from an earlier stream and subscribes to, and
            // that no longer exist.
            let gone = earlier.iter().filter(|resource| {
                self.covers(resource)
                    && context.view.get(resource.name().as_str()).is_none()
                    && !self.is_replaced(context.view, resource)
            });
            removed.extend(gone.cloned());
        }
        if !self.removals.is_empty() {
            self.drop_returned(&mut changed);
        }
        plan.send |= !changed.is_empty();
        plan.touched = changed;
        removed.retain(|resource| !self.is_replaced(context.view, resource));
        let returned =
            self.removals.values().filter(|r| self.is_replaced(context.view, &r.resource));
        let returned: Vec<ResourceName> =
            returned.map(|removal| removal.resource.name().clone()).collect();
        returned.iter().for_each(|name| drop(self.removals.remove(name)));
        for resource in removed {
            self.hold_removal(resource.name().clone(), resource, context);
        }
        let mut released = Vec::new();
        let Self { removals, names, rejections, .. } = self;
        removals.retain(|name, removal| {
            let stays = !release.allows(removal);
            if !stays {
                rejections.touch(name);
                drop(names.set(name, ClientVersion::Absent));
                released.push(Arc::clone(&removal.resource));
            }
            stays
        });
        plan.errors = self.errors_of_full_state(context.view, &released);
        plan.send |= !released.is_empty();
        released.iter().for_each(|resource| self.drop_absent_member(resource.name()));
        if !plan.send {
            return plan;
        }
        if self.is_wildcard() {
            plan.resources = difference(differ, &TypeView::empty(), context.view).changed;
        } else {
            let mut seen = BTreeSet::new();
            for resource in self.names.keys().filter_map(|name| context.view.get(name.as_str())) {
                if seen.insert(resource.name().clone()) {
                    plan.resources.push(Arc::clone(resource));
                }
            }
        }
        let held = self.removals.values().map(|removal| &removal.resource);
        held.for_each(|resource| plan.resources.push(Arc::clone(resource)));
        plan
    }

    /// Returns the changed and the removed resources of a full state by names, and records them as
    /// sent. Adds the names of resources that the client did not have to `fresh`.
    fn changed_names(
        &mut self,
        view: &TypeView,
        fresh: &mut BTreeSet<ResourceName>,
    ) -> (Resources, Vec<Arc<Resource>>) {
        let (mut changed, mut removed) = (Resources::default(), Vec::new());
        let version = Arc::new(view.version());
        for name in self.names_to_check() {
            let Some(held) = self.names.get(&name).cloned() else { continue };
            match (view.get(name.as_str()), held) {
                (Some(new), held) if held.version() == Some(new.version()) => {}
                (Some(new), held) => {
                    if held.version().is_none() {
                        fresh.insert(new.name().clone());
                    }
                    changed.push(Arc::clone(new));
                    if let ClientVersion::Sent(before, _) = held {
                        self.rejections.touch(before.name());
                    }
                    self.names.set(&name, ClientVersion::sent_in(new, &version));
                }
                (None, ClientVersion::Sent(old, _)) => {
                    removed.push(old);
                    self.names.set(&name, ClientVersion::Absent);
                }
                (None, _) => {}
            }
        }
        (changed, removed)
    }
}
