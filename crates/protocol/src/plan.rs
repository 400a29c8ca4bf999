//! What a subscription is to be sent now: the difference between what it was sent and the view.

use std::{collections::BTreeSet, sync::Arc};

use chancery_model::{Resource, ResourceName, Revision, TypeVersion};
use chancery_view::{Differ, Resources, TypeView, difference};

use crate::{
    Protocol,
    subscription::{Held, Subscription},
};

/// A named subscription of up to this many names is compared name by name; a larger one by the
/// difference of the views, which costs what has changed.
const COMPARED_MAX: usize = 32;

/// The label that tells a full state with removed resources in it from the one without them: no two
/// contents share a version (SOTW-15, ADS-08).
const HELD_LABEL: &str = "held";

/// What is to be sent; what does not fit into one response follows in others.
#[derive(Debug)]
pub(crate) struct Train {
    pub(crate) resources: Resources,
    pub(crate) removed: Vec<ResourceName>,
    pub(crate) absent: Vec<ResourceName>,
    pub(crate) version: TypeVersion,
    pub(crate) revision: Revision,
}

/// What a plan comes to.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    resources: Resources,
    removed: Vec<ResourceName>,
    absent: Vec<ResourceName>,
    /// A response goes out even if it has nothing in it.
    send: bool,
    /// Resources that changed for the client, of which the children may have to be sent again.
    pub(crate) touched: Resources,
}

/// Whether removals may be announced now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Removals {
    /// They may.
    Announce,
    /// What refers to the resources has not moved yet.
    Hold,
}

impl Subscription {
    /// Brings the subscription to `view`: what is to be sent is put on the train, everything else is
    /// remembered as told. Returns the resources that changed for the client.
    pub(crate) fn plan(
        &mut self,
        view: &TypeView,
        revision: Revision,
        removals: Removals,
        differ: &Differ,
    ) -> Resources {
        let full_state = self.protocol == Protocol::Sotw && self.properties.full_state;
        let mut plan = match (full_state, self.wildcard) {
            (true, _) => self.plan_full_state(view, removals, differ),
            (false, true) => self.plan_wildcard(view, differ),
            (false, false) => self.plan_names(view, differ),
        };
        if !full_state && removals == Removals::Announce {
            self.release(&mut plan);
        }
        self.base = Some(view.clone());
        self.known.clear();
        self.pending.clear();
        (self.dirty, self.urgent) = (false, false);
        let answer_due = std::mem::take(&mut self.answer_due);
        let content =
            !plan.resources.is_empty() || !plan.removed.is_empty() || !plan.absent.is_empty();
        if content || plan.send || answer_due {
            let mut version = view.version();
            if full_state && !self.lingering.is_empty() {
                version.label = Some(HELD_LABEL.into());
            }
            let Plan { resources, removed, absent, .. } = plan;
            self.train = Some(Train { resources, removed, absent, version, revision });
        } else if self.outstanding.is_empty() {
            self.settled_revision = self.settled_revision.max(revision);
        }
        plan.touched
    }

    /// SotW of a full-state type: if anything changed, all of it (SOTW-70).
    fn plan_full_state(&mut self, view: &TypeView, removals: Removals, differ: &Differ) -> Plan {
        let mut plan =
            Plan { send: !self.pending.is_empty() || self.answer_due, ..Plan::default() };
        let (changed, removed) = self.changes(view, differ);
        if !self.lingering.is_empty() {
            changed.iter().for_each(|resource| drop(self.lingering.remove(resource.name())));
        }
        plan.send |= !changed.is_empty();
        plan.touched = changed;
        let announced = !removed.is_empty() || !self.lingering.is_empty();
        self.lingering.extend(removed.into_iter().map(|r| (r.name().clone(), r)));
        if removals == Removals::Announce {
            plan.send |= announced;
            self.lingering.clear();
        }
        if !(plan.send || self.answer_due) {
            return plan;
        }
        if self.wildcard {
            plan.resources = difference(differ, &TypeView::empty(), view).changed;
        } else {
            let mut seen = BTreeSet::new();
            for resource in self.names.keys().filter_map(|name| view.get(name.as_str())) {
                if seen.insert(resource.name().clone()) {
                    plan.resources.push(Arc::clone(resource));
                }
            }
        }
        self.lingering.values().for_each(|resource| plan.resources.push(Arc::clone(resource)));
        plan
    }

    /// Resources that changed for the client and those that are gone, of all it asks for.
    fn changes(&self, view: &TypeView, differ: &Differ) -> (Resources, Vec<Arc<Resource>>) {
        let empty = TypeView::empty();
        if self.wildcard {
            let change = difference(differ, self.base.as_ref().unwrap_or(&empty), view);
            return (change.changed, change.removed);
        }
        let (mut changed, mut removed) = (Resources::default(), Vec::new());
        let Some(base) = &self.base else { return (changed, removed) };
        for name in self.changed_names(base, view, differ) {
            match (base.get(name.as_str()), view.get(name.as_str())) {
                (Some(old), Some(new)) if old == new => {}
                (_, Some(new)) => changed.push(Arc::clone(new)),
                (Some(old), None) => removed.push(Arc::clone(old)),
                (None, None) => {}
            }
        }
        (changed, removed)
    }

    /// The names asked for that may show something else now. O(d log names), or O(names) if they are
    /// few.
    fn changed_names(
        &self,
        base: &TypeView,
        view: &TypeView,
        differ: &Differ,
    ) -> Vec<ResourceName> {
        if base.is_same(view) {
            return vec![];
        }
        if self.names.len() <= COMPARED_MAX {
            return self.names.keys().cloned().collect();
        }
        let change = difference(differ, base, view);
        let mut names = BTreeSet::new();
        let mut add = |resource: &Resource| {
            let all = std::iter::once(resource.name()).chain(resource.aliases());
            names.extend(
                all.filter_map(|name| self.names.get_key_value(name)).map(|(n, _)| n.clone()),
            );
        };
        for resource in change.changed.iter() {
            add(resource);
            // A name may have been an alias of what the resource was before.
            if let Some(old) = base.get(resource.name().as_str()) {
                add(old);
            }
        }
        change.removed.iter().for_each(|resource| add(resource));
        names.into_iter().collect()
    }

    /// Delta of a wildcard: the difference to the view last sent, or to what the client says it holds.
    fn plan_wildcard(&mut self, view: &TypeView, differ: &Differ) -> Plan {
        let mut plan = Plan::default();
        let mut removed = Vec::new();
        match &self.base {
            None if !self.known.is_empty() => {
                for resource in view.iter() {
                    if self.known.get(resource.name()) != Some(&Some(resource.version())) {
                        plan.resources.push(Arc::clone(resource));
                    }
                }
                // DELTA-46: what it holds and is gone. There is nothing left of it but the name.
                let gone = self.known.keys().filter(|name| view.get(name.as_str()).is_none());
                removed.extend(gone.map(|name| Arc::new(gone_resource(name, self))));
            }
            base => {
                let empty = TypeView::empty();
                let change = difference(differ, base.as_ref().unwrap_or(&empty), view);
                (plan.resources, removed) = (change.changed, change.removed);
            }
        }
        if !self.lingering.is_empty() {
            self.drop_returned(&mut plan.resources);
        }
        plan.touched = plan.resources.clone();
        if !self.pending.is_empty() {
            let mut sent: BTreeSet<ResourceName> =
                plan.resources.iter().map(|resource| resource.name().clone()).collect();
            for name in std::mem::take(&mut self.pending) {
                match view.get(name.as_str()) {
                    Some(resource) if sent.insert(resource.name().clone()) => {
                        plan.resources.push(Arc::clone(resource));
                    }
                    Some(_) => {}
                    None => self.say_absent(&name, &mut plan),
                }
            }
        }
        let said: BTreeSet<&ResourceName> = plan.removed.iter().collect();
        removed.retain(|resource| !said.contains(resource.name()));
        self.lingering.extend(removed.into_iter().map(|r| (r.name().clone(), r)));
        plan
    }

    /// Resources that come back before their removal was announced: the client still has them, and
    /// needs them only if they are others now.
    fn drop_returned(&mut self, resources: &mut Resources) {
        let mut rest = Resources::default();
        for resource in resources.iter() {
            match self.lingering.remove(resource.name()) {
                Some(held) if held == *resource => {}
                _ => rest.push(Arc::clone(resource)),
            }
        }
        *resources = rest;
    }

    /// Named subscriptions: what changed of the names, and what was asked for.
    fn plan_names(&mut self, view: &TypeView, differ: &Differ) -> Plan {
        let mut plan = Plan::default();
        let mut names: BTreeSet<ResourceName> = match &self.base {
            Some(base) if self.dirty => {
                self.changed_names(base, view, differ).into_iter().collect()
            }
            // Nothing was sent yet: whatever it asks for is pending or held already.
            None if self.dirty => self.names.keys().cloned().collect(),
            _ => BTreeSet::new(),
        };
        names.extend(self.pending.iter().cloned());
        let mut sent = BTreeSet::new();
        for name in names {
            let asked = self.pending.contains(&name);
            let held = self.names.get(&name).copied().unwrap_or(Held::Nothing);
            match (view.get(name.as_str()), held) {
                (Some(resource), Held::Version(version))
                    if version == resource.version() && !asked =>
                {
                    self.lingering.remove(&name);
                }
                (Some(resource), _) => {
                    self.lingering.remove(&name);
                    if sent.insert(resource.name().clone()) {
                        plan.resources.push(Arc::clone(resource));
                        plan.touched.push(Arc::clone(resource));
                    }
                    self.hold(&name, Held::Version(resource.version()));
                }
                (None, _) if asked => self.say_absent(&name, &mut plan),
                (None, Held::Version(_)) if self.protocol == Protocol::Sotw => {
                    // SOTW-85: no message; coming back is a change (SOTW-86).
                    self.hold(&name, Held::Absent);
                }
                (None, Held::Version(_)) => {
                    let old = self.base.as_ref().and_then(|base| base.get(name.as_str())).cloned();
                    let old = old.unwrap_or_else(|| Arc::new(gone_resource(&name, self)));
                    self.lingering.insert(name, old);
                }
                (None, Held::Nothing | Held::Absent) => {}
            }
        }
        // DELTA-46, for what is listed but not asked for.
        let unasked = self.known.keys().filter(|name| !self.names.contains_key(*name));
        let gone: Vec<ResourceName> =
            unasked.filter(|name| view.get(name.as_str()).is_none()).cloned().collect();
        gone.iter().for_each(|name| self.say_absent(name, &mut plan));
        plan
    }

    fn hold(&mut self, name: &ResourceName, held: Held) {
        if let Some(entry) = self.names.get_mut(name) {
            *entry = held;
        }
    }

    /// Tells that a name that was asked for does not exist (DELTA-40). SotW has no way to say so
    /// (SOTW-78).
    fn say_absent(&mut self, name: &ResourceName, plan: &mut Plan) {
        self.lingering.remove(name);
        self.hold(name, Held::Absent);
        match self.protocol {
            Protocol::Sotw => {}
            Protocol::Delta if self.properties.absent_as_alias => plan.absent.push(name.clone()),
            Protocol::Delta => plan.removed.push(name.clone()),
        }
    }

    /// Announces the removals that were held back. Once (DELTA-44).
    fn release(&mut self, plan: &mut Plan) {
        for name in std::mem::take(&mut self.lingering).into_keys() {
            self.hold(&name, Held::Absent);
            if self.properties.announce_removal {
                plan.removed.push(name);
            }
        }
    }
}

/// Stands for a resource of which only the name is known, until its removal is announced.
fn gone_resource(name: &ResourceName, subscription: &Subscription) -> Resource {
    let key =
        chancery_model::ResourceKey { type_url: subscription.type_url.clone(), name: name.clone() };
    let draft = chancery_model::ResourceDraft::new(key, bytes::Bytes::new());
    Resource::publish(&draft, Revision(0))
}
