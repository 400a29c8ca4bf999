//! Which variant of a resource a client receives, and the removal of replaced variants (DYN-03 to -12).
//!
//! A subscription with parameters is a name of its own ([`located_name`](chancery_model::located_name)).
//! The view finds the variant for each name. This file computes the names by which a client
//! subscribes to a variant, and the removal of a variant that another one replaces.

use std::sync::Arc;

use chancery_model::{DynamicParameters, Resource, ResourceName, Revision, parameters_of};
use chancery_view::TypeView;

use super::{Changed, ClientVersion, Subscription, Urgency, parameters::Variants};
use crate::Protocol;

impl Subscription {
    /// Adopts the node's parameters (DYN-11).
    pub(crate) fn set_node_parameters(&mut self, parameters: Option<Arc<DynamicParameters>>) {
        self.change_parameters(|variants| variants.of_node = parameters);
    }

    /// Adopts the parameters in the name of a wildcard subscription.
    pub(super) fn set_wildcard_parameters(&mut self, name: &str) {
        let parameters = parameters_of(name).map(Arc::new);
        self.change_parameters(|variants| variants.of_wildcard = parameters);
    }

    fn change_parameters(&mut self, change: impl FnOnce(&mut Variants)) {
        let before = self.variants.parameters();
        change(&mut self.variants);
        if before != self.variants.parameters() && self.is_subscribed() {
            self.work.changed = Changed::All;
            // A variant that comes into view may be of any revision.
            self.delivery.included = Revision(0);
        }
    }

    /// Records that the client uses locators. The server resends earlier variants with constraints.
    pub(crate) fn use_locators(&mut self) {
        if std::mem::replace(&mut self.variants.has_locators, true) {
            return;
        }
        let held = self.names.iter().filter(|(_, version)| {
            version.sent().is_some_and(|resource| resource.constraints().is_some())
        });
        let mut again: Vec<ResourceName> = held.map(|(name, _)| name.clone()).collect();
        if let Some(base) = self.base().filter(|base| base.has_variants()) {
            let shown = base.iter().filter(|resource| resource.constraints().is_some());
            again.extend(shown.map(|resource| resource.base_name().clone()));
        }
        if !again.is_empty() {
            self.work.requested.extend(again);
            self.work.set_urgency(Urgency::AtOnce);
        }
    }

    /// Iterates over the names by which the client may subscribe to a resource: its name and its
    /// aliases, and the subscribed names with parameters that it matches.
    pub(crate) fn names_for<'a>(
        &'a self,
        resource: &'a Resource,
    ) -> impl Iterator<Item = &'a ResourceName> + 'a {
        let own = std::iter::once(resource.base_name());
        let own = own.filter(|_| self.variants.matches(resource)).chain(resource.aliases());
        let located = self.names.located(resource.base_name().as_str());
        own.chain(
            located.filter(|name| {
                parameters_of(name.as_str()).is_some_and(|own| resource.matches(&own))
            }),
        )
    }

    /// Returns the names under which the client has a resource with this published name.
    pub(crate) fn held_names(&self, name: &ResourceName) -> Vec<ResourceName> {
        let is_shown = self.base().is_some_and(|base| base.get(name.as_str()).is_some());
        let shown = is_shown.then(|| name.clone());
        let has_version = |name: &&ResourceName| {
            self.names.get(name).is_some_and(|version| version.version().is_some())
        };
        let named = self.names.of_base(name.as_str()).filter(has_version);
        let named = named.filter(|named| shown.as_ref() != Some(*named)).cloned();
        shown.clone().into_iter().chain(named).collect()
    }

    /// Returns whether another resource is now visible under a name through which the client had `old`.
    pub(crate) fn is_replaced(&self, view: &TypeView, old: &Resource) -> bool {
        let is_variant = old.constraints().is_some();
        if !is_variant && !view.has_variants() {
            return false;
        }
        let takes_its_place = |name: &ResourceName| {
            view.get(name.as_str()).is_some_and(|new| {
                new.base_name() == old.base_name()
                    && new.name() != old.name()
                    && (is_variant || new.constraints().is_some())
            })
        };
        if self.is_wildcard() {
            takes_its_place(old.base_name())
        } else {
            self.names_for(old).any(takes_its_place)
        }
    }

    /// Returns whether the client is sent the removal of a replaced resource. Only a client that reads
    /// constraints needs it (DYN-07, DYN-08).
    pub(crate) fn tells_replaced(&self, view: &TypeView, old: &Resource) -> bool {
        self.protocol == Protocol::Delta
            && self.variants.has_locators
            && !self.has_elsewhere(view, old)
    }

    /// Returns whether the client has a resource by another subscription to its name.
    pub(crate) fn has_elsewhere(&self, view: &TypeView, old: &Resource) -> bool {
        let is_held = |name: &ResourceName| {
            let held = self.names.get(name).and_then(ClientVersion::sent);
            held.is_some_and(|held| held.name() == old.name())
        };
        let base = old.base_name().as_str();
        if self.is_wildcard() {
            // Beside a wildcard, plans do not update the versions of plain names.
            view.has(old) || self.names.located(base).any(is_held)
        } else {
            self.names.of_base(base).any(is_held)
        }
    }
}

/// Returns whether `new` replaces `old` under a common name: both are variants of the name, or the name is
/// now an alias of `new`. Clients know a variant by its constraints, so the alias does not replace it in
/// their cache (DYN-08).
pub(crate) fn is_replaced_by(old: &Resource, new: &Resource) -> bool {
    old.name() != new.name() && (old.constraints().is_some() || old.base_name() == new.base_name())
}
