//! The interest of a client: the wildcard, the names and the collections that it subscribes to, as it spells
//! them, with the parameters that select variants.
//!
//! The client's version of each name is stored with the name ([`Names`]), and that of a wildcard in one view
//! ([`Wildcard`]).

use std::{collections::BTreeSet, sync::Arc};

use chancery_model::{DynamicParameters, Resource, ResourceName, StructuredName, parameters_of};
use chancery_view::TypeView;

use super::{
    globs::Globs,
    names::{ClientVersion, Names, is_located},
    parameters::Variants,
    wildcard::Wildcard,
};
use crate::spelling::Spellings;

/// The requests that a subscription has seen, as far as the meaning of an empty list depends on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Requests {
    #[default]
    None,
    /// Requests with empty lists only. In SotW, they subscribe to the wildcard (SOTW-60).
    Unnamed,
    /// A request with names. After that, an empty list is no longer a wildcard (SOTW-62).
    Named,
}

/// The interest of a client in one type.
#[derive(Debug, Default)]
pub(crate) struct Interest {
    requests: Requests,
    /// `None` if the client subscribes to names only.
    wildcard: Option<Wildcard>,
    names: Names,
    globs: Globs,
    /// The client's spellings of its names.
    spellings: Spellings,
    variants: Variants,
}

impl Interest {
    /// Returns the requests that the client has sent.
    pub(crate) fn requests(&self) -> Requests {
        self.requests
    }

    /// Records a request.
    pub(super) fn on_request(&mut self, seen: Requests) {
        self.requests = self.requests.max(seen);
    }

    /// Returns whether the client subscribes to the whole view.
    pub(crate) fn is_wildcard(&self) -> bool {
        self.wildcard.is_some()
    }

    /// Returns whether the client subscribes to anything.
    pub(crate) fn is_subscribed(&self) -> bool {
        self.is_wildcard() || !self.names.is_empty()
    }

    /// Returns the subscription to the whole view.
    pub(crate) fn wildcard(&self) -> Option<&Wildcard> {
        self.wildcard.as_ref()
    }

    pub(crate) fn wildcard_mut(&mut self) -> Option<&mut Wildcard> {
        self.wildcard.as_mut()
    }

    /// Returns the view that was last planned for a wildcard.
    pub(crate) fn base(&self) -> Option<&TypeView> {
        self.wildcard.as_ref()?.base()
    }

    /// Starts a wildcard, or starts it again.
    pub(super) fn start_wildcard(&mut self) {
        self.wildcard = Some(Wildcard::default());
    }

    /// Ends the wildcard, and returns what the client was sent for it.
    pub(super) fn end_wildcard(&mut self) -> Option<Wildcard> {
        self.wildcard.take()
    }

    /// Returns the subscribed names.
    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// Replaces the client's version of a subscribed name, and returns the previous one.
    pub(crate) fn set_version(
        &mut self,
        name: &ResourceName,
        version: ClientVersion,
    ) -> Option<ClientVersion> {
        self.names.set(name, version)
    }

    /// Subscribes to a name that the client itself names. Returns whether it had not named it before.
    pub(super) fn add_named(&mut self, name: &ResourceName, view: Option<&TypeView>) -> bool {
        let is_new = !self.names.contains(name.as_str());
        if is_new {
            self.names.insert(name.clone(), ClientVersion::Nothing);
        }
        self.globs.on_named(name, view) || is_new
    }

    /// Subscribes to a name of which the client claims to have a version, or replaces its version.
    pub(super) fn add_claimed(&mut self, name: ResourceName, version: ClientVersion) {
        self.names.insert(name, version);
    }

    /// Ends the subscription to a name. Returns the version that the client had.
    pub(crate) fn remove(&mut self, name: &ResourceName) -> Option<ClientVersion> {
        self.names.remove(name)
    }

    /// Returns whether the client has named this name itself.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.names.contains(name) && !self.globs.has_member(name)
    }

    /// Iterates over the names that the client itself names.
    pub(crate) fn named(&self) -> impl Iterator<Item = &ResourceName> {
        self.names.keys().filter(|name| !self.globs.has_member(name.as_str()))
    }

    /// Returns the subscribed collections.
    pub(crate) fn globs(&self) -> &Globs {
        &self.globs
    }

    /// Ends the subscription to a collection. Returns the collection and the members that no longer belong to any;
    /// `None` if `name` is no subscribed collection.
    pub(super) fn end_collection<'n>(
        &mut self,
        name: &'n ResourceName,
    ) -> Option<(StructuredName<'n>, Vec<ResourceName>)> {
        self.globs.remove(name)
    }

    /// Handles the end of the subscription to a name that a collection still covers. Returns whether
    /// there is such a collection.
    pub(super) fn keep_as_member(&mut self, name: &ResourceName) -> bool {
        !self.is_wildcard() && self.globs.on_unnamed(name)
    }

    /// Subscribes to a member of a collection. Returns whether the client did not subscribe to the name before.
    pub(super) fn add_member(&mut self, name: &ResourceName, version: ClientVersion) -> bool {
        if self.names.contains(name.as_str()) {
            return false;
        }
        self.names.insert(name.clone(), version);
        self.globs.add_member(name.clone());
        true
    }

    /// Drops a member that no longer exists. Returns whether `name` is a member.
    pub(crate) fn drop_absent_member(&mut self, name: &ResourceName) -> bool {
        let is_member = self.globs.remove_member(name);
        if is_member {
            self.names.remove(name);
        }
        is_member
    }

    /// Leaves all members to a wildcard that starts, and returns them.
    #[must_use]
    pub(super) fn leave_members_to_wildcard(&mut self) -> BTreeSet<ResourceName> {
        let members = self.globs.take_members();
        for member in &members {
            self.names.remove(member);
        }
        members
    }

    /// Records that the members of the collections follow a view.
    pub(super) fn on_members_planned(&mut self) {
        self.globs.on_planned();
    }

    /// Records what an ended wildcard sent of the names that stay subscribed. `removed` finds a resource whose
    /// removal is pending.
    pub(super) fn remember_names<'a>(
        &mut self,
        wildcard: &Wildcard,
        removed: impl Fn(&ResourceName) -> Option<&'a Arc<Resource>>,
    ) {
        let base = wildcard.base();
        let sent_in = Arc::new(wildcard.base_or_empty().version());
        self.names.update(|name| {
            // The plans of the wildcard record what they send of names with parameters.
            if is_located(name) {
                return None;
            }
            let resource = match wildcard.sent_early(name) {
                Some(sent) => sent,
                None => base.and_then(|base| base.get(name.as_str())),
            };
            match resource.or_else(|| removed(name)) {
                Some(resource) => Some(ClientVersion::sent_in(resource, &sent_in)),
                None => base.map(|_| ClientVersion::Absent),
            }
        });
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

    /// Returns whether the client subscribes to the resource, by its name or by an alias.
    pub(crate) fn covers(&self, resource: &Resource) -> bool {
        self.is_wildcard()
            || self.names_for(resource).any(|name| self.names.contains(name.as_str()))
    }

    /// Returns whether the client was sent the resource of this name, or claims to have it.
    pub(crate) fn holds(&self, name: &ResourceName) -> bool {
        self.base().is_some_and(|base| base.get(name.as_str()).is_some())
            || self.names.get(name).is_some_and(|version| version.version().is_some())
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

    /// Returns the dynamic parameters.
    pub(crate) fn variants(&self) -> &Variants {
        &self.variants
    }

    /// Adopts the node's parameters (DYN-11). Returns whether the client may see other resources now.
    #[must_use]
    pub(super) fn set_node_parameters(
        &mut self,
        parameters: Option<Arc<DynamicParameters>>,
    ) -> bool {
        self.variants.set_of_node(parameters) && self.is_subscribed()
    }

    /// Adopts the parameters in the name of a wildcard subscription. Returns whether the client may see other
    /// resources now.
    #[must_use]
    pub(super) fn set_wildcard_parameters(&mut self, name: &str) -> bool {
        self.variants.set_of_wildcard(name) && self.is_subscribed()
    }

    /// Records that the client uses locators. Returns the names of the variants that it was sent without
    /// constraints.
    #[must_use]
    pub(super) fn on_locators(&mut self) -> Vec<ResourceName> {
        if !self.variants.on_locators() {
            return Vec::new();
        }
        let held = self.names.iter().filter(|(_, version)| {
            version.sent().is_some_and(|resource| resource.constraints().is_some())
        });
        let mut again: Vec<ResourceName> = held.map(|(name, _)| name.clone()).collect();
        if let Some(base) = self.base().filter(|base| base.has_variants()) {
            let shown = base.iter().filter(|resource| resource.constraints().is_some());
            again.extend(shown.map(|resource| resource.base_name().clone()));
        }
        again
    }

    /// Returns the client's spellings.
    pub(crate) fn spellings(&self) -> &Spellings {
        &self.spellings
    }

    /// Takes the spellings, which a request may change.
    pub(crate) fn take_spellings(&mut self) -> Spellings {
        std::mem::take(&mut self.spellings)
    }

    pub(crate) fn set_spellings(&mut self, spellings: Spellings) {
        self.spellings = spellings;
    }

    /// Drops the spellings of names that are not subscribed, and for which `is_used` returns `false`.
    pub(super) fn forget_spellings(&mut self, is_used: impl Fn(&ResourceName) -> bool) {
        let names = &self.names;
        self.spellings.retain(|name| names.contains(name.as_str()) || is_used(name));
    }

    /// Returns the bytes of the text of all names and spellings.
    pub(crate) fn text_bytes(&self) -> usize {
        self.names.text_bytes() + self.spellings.text_bytes()
    }
}
