//! Full-state SotW types, whose responses contain all subscribed resources (SOTW-70).

use std::{collections::BTreeSet, sync::Arc};

use chancery_model::{Resource, ResourceName};
use chancery_view::{Differ, Resources, TypeView, difference};

use super::{Moment, Plan, Release};
use crate::subscription::{Held, Subscription};

impl Subscription {
    /// Plans a full-state SotW response: all resources, if any of them changed.
    pub(super) fn plan_full_state(
        &mut self,
        moment: Moment<'_>,
        release: Release,
        differ: &Differ,
    ) -> Plan {
        let mut plan =
            Plan { send: !self.pending.is_empty() || self.answer_due, ..Plan::default() };
        let (mut changed, mut removed) = match self.wildcard {
            true => {
                let empty = TypeView::empty();
                let base = self.base.as_ref().unwrap_or(&empty);
                let change = difference(differ, base, moment.view);
                (change.changed, change.removed)
            }
            false => self.changed_names(moment.view, &mut plan.fresh),
        };
        if let Some(left) = self.left.take() {
            // ADS-08: resources that the client holds from an earlier stream and subscribes to, and
            // that no longer exist.
            let gone = left.iter().filter(|resource| {
                self.asks_for(resource) && moment.view.get(resource.name().as_str()).is_none()
            });
            removed.extend(gone.cloned());
        }
        if !self.lingering.is_empty() {
            self.drop_returned(&mut changed);
        }
        plan.send |= !changed.is_empty();
        plan.touched = changed;
        for resource in removed {
            self.linger(resource.name().clone(), resource, moment);
        }
        let before = self.lingering.len();
        let Self { lingering, names, rejected, .. } = self;
        lingering.retain(|name, held| {
            let stays = !release.allows(held);
            if !stays {
                rejected.touch(name);
                if let Some(entry) = names.get_mut(name) {
                    *entry = Held::Absent;
                }
            }
            stays
        });
        plan.send |= self.lingering.len() < before;
        if !plan.send {
            return plan;
        }
        if self.wildcard {
            plan.resources = difference(differ, &TypeView::empty(), moment.view).changed;
        } else {
            let mut seen = BTreeSet::new();
            for resource in self.names.keys().filter_map(|name| moment.view.get(name.as_str())) {
                if seen.insert(resource.name().clone()) {
                    plan.resources.push(Arc::clone(resource));
                }
            }
        }
        let held = self.lingering.values().map(|lingering| &lingering.resource);
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
        for name in self.names_to_check() {
            let Some(held) = self.names.get_mut(&name) else { continue };
            match (view.get(name.as_str()), &*held) {
                (Some(new), _) if held.version() == Some(new.version()) => {}
                (Some(new), _) => {
                    if held.version().is_none() {
                        fresh.insert(new.name().clone());
                    }
                    changed.push(Arc::clone(new));
                    if let Held::Sent(before) = &*held {
                        self.rejected.touch(before.name());
                    }
                    *held = Held::Sent(Arc::clone(new));
                }
                (None, Held::Sent(old)) => {
                    removed.push(Arc::clone(old));
                    *held = Held::Absent;
                }
                (None, _) => {}
            }
        }
        (changed, removed)
    }
}
