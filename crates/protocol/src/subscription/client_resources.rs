//! The resources that a client was last sent.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use chancery_model::{LifetimeClass, Resource, ResourceName};
use chancery_view::{Differ, Resources, TypeView, difference};

use super::{
    interest::Interest,
    names::{Names, is_located},
    removals::PendingRemovals,
};

/// The resources that a client was last sent. Until a removal is announced, the client has the removed resource.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientResources<'a> {
    interest: &'a Interest,
    removals: &'a PendingRemovals,
}

impl<'a> ClientResources<'a> {
    pub(crate) fn new(interest: &'a Interest, removals: &'a PendingRemovals) -> Self {
        Self { interest, removals }
    }

    /// Returns whether the client subscribes to anything.
    pub(crate) fn is_subscribed(self) -> bool {
        self.interest.is_subscribed()
    }

    /// Returns the view that was last planned for a wildcard.
    pub(crate) fn base(self) -> Option<&'a TypeView> {
        self.interest.base()
    }

    /// Returns the subscribed names with the client's versions.
    pub(crate) fn names(self) -> &'a Names {
        self.interest.names()
    }

    /// Returns the resource that the client was last sent in place of `resource`.
    pub(crate) fn sent_of(self, resource: &Resource) -> Option<&'a Arc<Resource>> {
        let all = self.names();
        let mut names = self.interest.names_for(resource);
        let mut located = all.located(resource.base_name().as_str());
        let sent = |name: &ResourceName| all.get(name)?.sent();
        let shown = match self.base() {
            // A name with parameters may select another variant than the wildcard.
            Some(base) => base.get(resource.name().as_str()).or_else(|| {
                located.find_map(|name| sent(name).filter(|sent| sent.name() == resource.name()))
            }),
            None => names.find_map(sent),
        };
        // Until the removal is sent, the client has the old resource.
        shown.or_else(|| Some(&self.removals.get(resource.name())?.resource))
    }

    /// Returns the resource that the client holds in place of `resource`.
    pub(crate) fn held(self, resource: &Resource) -> Option<&'a Arc<Resource>> {
        let wildcard = self.interest.wildcard();
        match wildcard.and_then(|wildcard| wildcard.sent_early(resource.name())) {
            Some(early) => early,
            None => self.sent_of(resource),
        }
    }

    /// Returns all resources that a full-state client was last sent (TTL-06).
    pub(crate) fn full_state(self, differ: &Differ) -> Resources {
        let names = self.names();
        let mut all = match self.base() {
            Some(base) => {
                let mut all = difference(differ, &TypeView::empty(), base).changed;
                let located = names.all_located();
                let sent = located.filter_map(|name| names.get(name)?.sent());
                let hidden = sent.filter(|resource| !base.has(resource));
                let distinct: BTreeMap<_, _> = hidden.map(|one| (one.name(), one)).collect();
                distinct.into_values().for_each(|resource| all.push(Arc::clone(resource)));
                all
            }
            None => {
                let mut all = Resources::default();
                let sent = names.values().filter_map(|version| version.sent());
                let distinct: BTreeMap<_, _> = sent.map(|one| (one.name(), one)).collect();
                distinct.into_values().for_each(|resource| all.push(Arc::clone(resource)));
                all
            }
        };
        self.removals.values().for_each(|removal| all.push(Arc::clone(&removal.resource)));
        all
    }

    /// Returns the classes of the lifetimes that the client may have.
    pub(crate) fn classes(self) -> BTreeSet<LifetimeClass> {
        let shown = self.base().into_iter().flat_map(TypeView::lifetimes);
        let is_named = !self.interest.is_wildcard() || self.names().has_located();
        let named = self.names().lifetimes().classes().filter(|_| is_named);
        shown.chain(named).chain(self.removals.lifetimes().classes()).collect()
    }

    /// Iterates over the resources of a class that the client was sent, also if their removal is not
    /// announced yet.
    pub(crate) fn with_lifetime(
        self,
        class: LifetimeClass,
    ) -> impl Iterator<Item = &'a Arc<Resource>> {
        let wildcard = self.interest.wildcard();
        let base = wildcard.and_then(|wildcard| wildcard.base());
        let shown = base.into_iter().flat_map(move |base| base.with_lifetime(class));
        let shown = shown.filter_map(move |resource| {
            wildcard?.sent_early(resource.name()).unwrap_or(Some(resource))
        });
        let named = self.named_with_lifetime(class);
        let removed = self.removals.lifetimes().names(class);
        let removed = removed.filter_map(move |name| Some(&self.removals.get(name)?.resource));
        shown.chain(named).chain(removed).filter(|resource| resource.ttl().is_some())
    }

    /// Iterates over the resources of a class that were sent for a name: for all names, or beside a
    /// wildcard for those with parameters that select another variant.
    fn named_with_lifetime(self, class: LifetimeClass) -> impl Iterator<Item = &'a Arc<Resource>> {
        let (is_wildcard, base) = (self.interest.is_wildcard(), self.base());
        let is_named = !is_wildcard || self.names().has_located();
        let names = is_named.then(|| self.names().lifetimes().names(class));
        let names = names.into_iter().flatten();
        let names = names.filter(move |name| !is_wildcard || is_located(name));
        let sent = names.filter_map(move |name| self.names().get(name)?.sent());
        sent.filter(move |resource| !base.is_some_and(|base| base.has(resource)))
    }

    /// Returns the number of resources of a class that the client was sent.
    pub(crate) fn n_with_lifetime(self, class: LifetimeClass) -> usize {
        let shown = self.base().map_or(0, |base| base.n_with_lifetime(class));
        let named = if self.interest.is_wildcard() {
            self.named_with_lifetime(class).count()
        } else {
            self.names().lifetimes().n_names(class)
        };
        shown + named + self.removals.lifetimes().n_names(class)
    }
}
