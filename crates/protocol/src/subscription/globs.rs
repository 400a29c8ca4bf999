//! Glob collections: subscriptions to all structured names below one parent (XDSTP-15 to -18).
//!
//! A glob is a subscribed name that no resource has. Its members are subscribed names, too, so all rules
//! for names hold for members. The index of the shard has only the glob: a change of a member marks the
//! sessions that subscribe to its collection. While a wildcard is active, it covers the members, and
//! the subscription does not list them.

use std::collections::BTreeSet;

use chancery_model::{ResourceName, StructuredName, is_structured};
use chancery_view::TypeView;

/// The glob collections of a subscription.
#[derive(Debug, Default)]
pub(crate) struct Globs {
    /// The names of the subscribed collections.
    names: BTreeSet<ResourceName>,
    /// The names that the client subscribes to only through a collection.
    members: BTreeSet<ResourceName>,
    /// The maximum number of members of the collections that are requested and not planned yet.
    asked: usize,
}

impl Globs {
    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Iterates over the names of the subscribed collections.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &ResourceName> {
        self.names.iter()
    }

    /// Returns the number of names that the client subscribes to only through a collection.
    pub(crate) fn n_members(&self) -> usize {
        self.members.len()
    }

    /// Returns the maximum number of members that the next plan adds for requested collections.
    pub(crate) fn n_asked(&self) -> usize {
        self.asked
    }

    /// Returns whether this is the name of a subscribed collection.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Returns whether the client subscribes to the name only through a collection.
    pub(crate) fn has_member(&self, name: &str) -> bool {
        self.members.contains(name)
    }

    /// Returns whether a resource of this name is a member of a subscribed collection.
    pub(crate) fn covers(&self, name: &str) -> bool {
        !self.is_empty()
            && is_structured(name)
            && StructuredName::parse(name)
                .is_ok_and(|parsed| !parsed.is_glob() && self.contains(&parsed.collection()))
    }

    /// Returns the names of the members of all subscribed collections in a view.
    pub(crate) fn members_in(&self, view: &TypeView) -> Vec<ResourceName> {
        self.names.iter().flat_map(|glob| members(view, glob)).collect()
    }

    /// Records that the client names `name`, which may be a collection. Returns whether the client subscribed to
    /// the name only through a collection before.
    pub(super) fn on_named(&mut self, name: &ResourceName, view: Option<&TypeView>) -> bool {
        if is_glob(name) {
            self.names.insert(name.clone());
            self.asked += view.map_or(0, TypeView::n_resources);
        }
        self.members.remove(name)
    }

    /// Records that the next plan has no further members to add.
    pub(super) fn on_planned(&mut self) {
        self.asked = 0;
    }

    /// Records that the client no longer names `name`, which is a member if a collection covers it. Returns
    /// whether there is such a collection.
    pub(super) fn on_unnamed(&mut self, name: &ResourceName) -> bool {
        let is_covered = self.covers(name.as_str());
        if is_covered {
            self.members.insert(name.clone());
        }
        is_covered
    }

    pub(super) fn add_member(&mut self, name: ResourceName) {
        self.members.insert(name);
    }

    /// Removes a name from the members. Returns whether it was one.
    pub(super) fn remove_member(&mut self, name: &ResourceName) -> bool {
        self.members.remove(name)
    }

    /// Removes all members.
    pub(super) fn take_members(&mut self) -> BTreeSet<ResourceName> {
        std::mem::take(&mut self.members)
    }

    /// Removes a collection and its members. Returns the collection and the members; `None` if the client does not
    /// subscribe to such a collection.
    pub(super) fn remove<'n>(
        &mut self,
        name: &'n ResourceName,
    ) -> Option<(StructuredName<'n>, Vec<ResourceName>)> {
        if !self.names.remove(name) {
            return None;
        }
        let glob = StructuredName::parse(name.as_str()).ok()?;
        let left = |member: &&ResourceName| glob.has_member(member.as_str());
        let gone: Vec<ResourceName> = self.members.iter().filter(left).cloned().collect();
        for member in &gone {
            self.members.remove(member);
        }
        Some((glob, gone))
    }

    /// Returns the members that a SotW response must repeat: a client deletes the members of a
    /// collection that are missing from a response with others of them (XDSTP-19). `sent` are those in
    /// the response, and `lost` are those that the client has and that no longer exist.
    ///
    /// The cost is O(changes), and O(members of a collection) for each collection with a change.
    pub(crate) fn repeated_members(
        &self,
        view: &TypeView,
        lost: &[ResourceName],
        sent: &BTreeSet<ResourceName>,
    ) -> Vec<ResourceName> {
        if self.is_empty() {
            return Vec::new();
        }
        let touched = lost.iter().chain(sent).filter_map(collection_of);
        let touched: BTreeSet<String> = touched.collect();
        let touched = touched.iter().filter_map(|glob| self.names.get(glob.as_str()));
        let now = touched.flat_map(|glob| members(view, glob));
        // A variant follows its published name in the order of names.
        let is_sent = |name: &ResourceName| {
            sent.range::<ResourceName, _>(name..)
                .next()
                .is_some_and(|next| next.base() == name.as_str())
        };
        now.filter(|name| !is_sent(name)).collect()
    }
}

/// Returns the names of the members of a collection in a view.
pub(super) fn members(view: &TypeView, glob: &ResourceName) -> Vec<ResourceName> {
    match StructuredName::parse(glob.as_str()) {
        Ok(glob) => view.members(&glob).map(|member| member.base_name().clone()).collect(),
        Err(_) => Vec::new(),
    }
}

/// Returns whether a name is that of a glob collection.
fn is_glob(name: &ResourceName) -> bool {
    is_structured(name.as_str())
        && StructuredName::parse(name.as_str()).is_ok_and(|parsed| parsed.is_glob())
}

/// Returns the name of the collection of a structured name.
fn collection_of(name: &ResourceName) -> Option<String> {
    let parsed = is_structured(name.base()).then(|| StructuredName::parse(name.base()).ok());
    parsed.flatten().map(|parsed| parsed.collection())
}
