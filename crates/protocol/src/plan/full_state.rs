//! Full-state SotW types, whose responses contain all subscribed resources (SOTW-70).

use std::{collections::BTreeSet, sync::Arc};

use chancery_model::{Resource, ResourceName};
use chancery_view::{Differ, Resources, TypeView, difference};

use super::{Plan, PlanContext, Release, exclusion::full_state_takeovers};
use crate::subscription::{ClientVersion, Subscription, UnnamedRemovals};

impl Subscription {
    /// Plans a full-state SotW response: all resources, if any of them changed.
    pub(super) fn plan_full_state(
        &mut self,
        context: PlanContext<'_>,
        release: Release,
        differ: &Differ,
    ) -> Plan {
        if self.resumes_held(context) {
            return Plan::default();
        }
        let mut plan = Plan {
            send: !self.work.requested.is_empty() || self.work.answer_due || self.work.state_due,
            ..Plan::default()
        };
        let (mut changed, mut removed) = match &self.wildcard {
            Some(wildcard) => {
                let change = difference(differ, &wildcard.base_or_empty(), context.view);
                let names = self.names.all_located().cloned().collect();
                let located = self.changed_names(names, context.view, &mut plan.fresh);
                let (mut changed, mut removed) = (change.changed, change.removed);
                located.0.iter().for_each(|resource| changed.push(Arc::clone(resource)));
                removed.extend(located.1);
                (changed, removed)
            }
            None => self.changed_names(self.names_to_check(), context.view, &mut plan.fresh),
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
        removed.retain(|resource| !self.has_elsewhere(context.view, resource));
        let (replaced, removed): (Vec<_>, Vec<_>) =
            removed.into_iter().partition(|resource| self.is_replaced(context.view, resource));
        plan.send |= !replaced.is_empty();
        let returned =
            self.removals.values().filter(|r| self.is_replaced(context.view, &r.resource));
        let returned: Vec<ResourceName> =
            returned.map(|removal| removal.resource.name().clone()).collect();
        returned.iter().for_each(|name| drop(self.removals.remove(name)));
        for resource in removed {
            self.hold_removal(resource.name().clone(), resource, context);
        }
        let released = self.release_full_state(&plan.touched, context.view, release);
        plan.errors = self.errors_of_full_state(context.view, &released);
        let unnamed = self.removals.unnamed();
        let releases_unnamed = unnamed.is_some_and(|unnamed| release.allows_unnamed(unnamed));
        plan.releases = !released.is_empty() || releases_unnamed;
        plan.send |= plan.releases;
        released.iter().for_each(|resource| self.drop_absent_member(resource.name()));
        if !plan.send {
            return plan;
        }
        // The full state cannot contain resources that are not known.
        self.removals.set_unnamed(None);
        plan.resources = self.full_state_of(context.view, differ);
        let held = self.removals.values().map(|removal| &removal.resource);
        held.for_each(|resource| plan.resources.push(Arc::clone(resource)));
        plan
    }

    /// Returns whether the client resumes with the current state and removed resources that this replica does not
    /// know. If so, the client is sent nothing until their removal may be announced, or the state changes (ADS-08).
    fn resumes_held(&mut self, context: PlanContext<'_>) -> bool {
        let is_held = self.resumption.take_is_held(&context.view.version());
        if !is_held || !self.is_wildcard() || self.base().is_some() || !self.names.is_empty() {
            return false;
        }
        self.work.answer_due = false;
        let PlanContext { revision, now, .. } = context;
        self.removals.set_unnamed(Some(UnnamedRemovals { revision, since: now, is_kept: false }));
        true
    }

    /// Removes the pending removals that may be announced. Returns their resources, which the full state omits.
    fn release_full_state(
        &mut self,
        changed: &Resources,
        view: &TypeView,
        release: Release,
    ) -> Vec<Arc<Resource>> {
        let takeovers = full_state_takeovers(self, changed, view);
        let mut released = Vec::new();
        let Self { removals, names, rejections, .. } = self;
        removals.retain(|name, removal| {
            let stays = !release.allows(removal) && !takeovers.contains(name);
            if !stays {
                rejections.touch(name);
                drop(names.set(name, ClientVersion::Absent));
                released.push(Arc::clone(&removal.resource));
            }
            stays
        });
        released
    }

    /// Returns all subscribed resources of a view, each once: those of a wildcard, and those of names
    /// that it does not show (SOTW-67, DYN-10).
    fn full_state_of(&self, view: &TypeView, differ: &Differ) -> Resources {
        let add = |names: &mut dyn Iterator<Item = &ResourceName>, all: &mut Resources| {
            let mut seen = BTreeSet::new();
            for resource in names.filter_map(|name| view.get(name.as_str())) {
                let is_shown = self.is_wildcard() && view.has(resource);
                if !is_shown && seen.insert(resource.name()) {
                    all.push(Arc::clone(resource));
                }
            }
        };
        let mut all = Resources::default();
        if self.is_wildcard() {
            all = difference(differ, &TypeView::empty(), view).changed;
            add(&mut self.names.all_located(), &mut all);
        } else {
            add(&mut self.names.keys(), &mut all);
        }
        all
    }

    /// Returns the changed and the removed resources of a full state by names, and records them as
    /// sent. Adds the names of resources that the client did not have to `fresh`.
    fn changed_names(
        &mut self,
        names: BTreeSet<ResourceName>,
        view: &TypeView,
        fresh: &mut BTreeSet<ResourceName>,
    ) -> (Resources, Vec<Arc<Resource>>) {
        let (mut changed, mut removed) = (Resources::default(), Vec::new());
        let version = Arc::new(view.version());
        for name in names {
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
