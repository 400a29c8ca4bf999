//! The members of glob collections, which are subscribed names.

use std::collections::BTreeSet;

use chancery_model::{ResourceName, StructuredName, is_structured};
use chancery_view::TypeView;

use super::{Changed, ClientVersion, Subscription, Urgency, Wildcard, globs::is_glob};
use crate::Protocol;

/// Returns the names of the members of a collection in a view.
fn members(view: &TypeView, glob: &ResourceName) -> Vec<ResourceName> {
    match StructuredName::parse(glob.as_str()) {
        Ok(glob) => view.members(&glob).map(|member| member.base_name().clone()).collect(),
        Err(_) => Vec::new(),
    }
}

/// Returns the name of the collection of a structured name.
fn collection_of(name: &ResourceName) -> Option<String> {
    let parsed = is_structured(name.base()).then(|| StructuredName::parse(name.base()).ok());
    parsed.flatten().map(|parsed| parsed.collection())
}

impl Subscription {
    /// Returns whether the client has named this name itself.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.names.contains(name) && !self.globs.has_member(name)
    }

    /// Records that the client names `name`. Returns whether it had not named it before.
    pub(super) fn name_explicitly(&mut self, name: &ResourceName, view: Option<&TypeView>) -> bool {
        if is_glob(name) {
            self.globs.names.insert(name.clone());
            self.globs.asked += view.map_or(0, TypeView::n_resources);
        }
        self.globs.members.remove(name) || !self.names.contains(name.as_str())
    }

    /// Handles the end of the subscription to a name that a collection still covers. Returns whether
    /// there is such a collection.
    pub(super) fn keep_as_member(&mut self, name: &ResourceName) -> bool {
        if self.is_wildcard() || !self.globs.covers(name.as_str()) {
            return false;
        }
        self.globs.members.insert(name.clone());
        if self.protocol == Protocol::Delta {
            // XDSTP-18, like DELTA-24: the client may have dropped the resource.
            self.work.requested.insert(name.clone());
            self.work.set_urgency(Urgency::AtOnce);
        }
        true
    }

    /// Ends the subscription to a collection, if `name` is one. Members that another collection covers
    /// stay. Those that the client names itself are sent again (XDSTP-18).
    pub(super) fn forget_collection(&mut self, name: &ResourceName) {
        if !self.globs.names.remove(name) {
            return;
        }
        let Ok(glob) = StructuredName::parse(name.as_str()) else { return };
        let left = |member: &&ResourceName| glob.has_member(member.as_str());
        let gone: Vec<ResourceName> = self.globs.members.iter().filter(left).cloned().collect();
        for member in gone {
            self.globs.members.remove(&member);
            self.drop_name(&member);
        }
        if let Changed::Names(changed) = &mut self.work.changed {
            let (names, globs) = (&self.names, &self.globs);
            changed.retain(|name| names.contains(name.as_str()) || globs.covers(name.as_str()));
        }
        if self.protocol == Protocol::Delta && !self.is_wildcard() {
            let named = self.names.keys().filter(left).cloned();
            let named: Vec<ResourceName> = named.collect();
            if !named.is_empty() {
                self.work.requested.extend(named);
                self.work.set_urgency(Urgency::AtOnce);
            }
        }
    }

    /// Marks a changed name. Returns whether the client subscribes to it, or to its collection.
    pub(crate) fn on_changed_name(&mut self, name: &ResourceName) -> bool {
        let mut is_known = false;
        for known in self.names.of_base(name.as_str()) {
            self.work.changed.insert(known.clone());
            is_known = true;
        }
        if !is_known && self.globs.covers(name.as_str()) {
            self.work.changed.insert(name.clone());
            is_known = true;
        }
        is_known
    }

    /// Adds the members that the view shows, and replaces a requested collection by its members. An
    /// empty collection stays requested: it is reported as absent (XDSTP-17).
    ///
    /// The cost is O(changes). It is O(members) for a requested collection, or if everything may have
    /// changed.
    pub(crate) fn update_members(&mut self, view: &TypeView) {
        if self.globs.is_empty() {
            return;
        }
        self.globs.asked = 0;
        let is_asked = |glob: &&ResourceName| self.work.requested.contains(*glob);
        let asked: Vec<ResourceName> = self.globs.names.iter().filter(is_asked).cloned().collect();
        for glob in asked {
            let members = members(view, &glob);
            if !members.is_empty() {
                self.work.requested.remove(&glob);
            }
            for member in members {
                self.request_member(member, view);
            }
        }
        if self.is_wildcard() {
            return;
        }
        let found: Vec<ResourceName> = match &self.work.changed {
            Changed::All => self.globs.names.iter().flat_map(|glob| members(view, glob)).collect(),
            Changed::Names(changed) => {
                let is_new = |name: &&ResourceName| !self.names.contains(name.as_str());
                let is_there = |name: &&ResourceName| {
                    let resource = view.get(name.as_str());
                    resource.is_some_and(|resource| resource.base_name() == *name)
                };
                changed.iter().filter(is_new).filter(is_there).cloned().collect()
            }
        };
        for name in found {
            self.add_member(name);
        }
        if let Changed::Names(changed) = &mut self.work.changed {
            changed.retain(|name| self.names.contains(name.as_str()));
        }
    }

    /// Requests a member of a collection that the client has just subscribed to, unless the client
    /// claims to hold its version (DELTA-58).
    fn request_member(&mut self, name: ResourceName, view: &TypeView) {
        let version = view.get(name.as_str()).map(|resource| resource.version());
        let claimed = self.resumption.claimed.get(&name).copied().flatten();
        if !self.is_wildcard() {
            self.add_member(name.clone());
        }
        if claimed.is_none() || claimed != version {
            self.work.requested.insert(name);
        }
    }

    /// Subscribes to a member.
    fn add_member(&mut self, name: ResourceName) {
        if self.names.contains(name.as_str()) {
            return;
        }
        let claimed = self.resumption.claimed.get(&name).copied().flatten();
        let version = claimed.map_or(ClientVersion::Nothing, ClientVersion::Claimed);
        self.names.insert(name.clone(), version);
        self.work.changed.insert(name.clone());
        self.globs.members.insert(name);
    }

    /// Drops a member that no longer exists.
    pub(crate) fn drop_absent_member(&mut self, name: &ResourceName) {
        if self.globs.members.remove(name) {
            self.names.remove(name);
            // The absence is reported now, and not again for the claim (DELTA-44).
            self.resumption.claimed.remove(name);
        }
    }

    /// Leaves all members to a wildcard that starts.
    pub(super) fn leave_members_to_wildcard(&mut self) {
        for member in std::mem::take(&mut self.globs.members) {
            self.names.remove(&member);
            self.work.forget(&member);
        }
    }

    /// Takes over the members that an ended wildcard has sent.
    pub(super) fn take_members_of(&mut self, wildcard: &Wildcard) {
        if self.globs.is_empty() {
            return;
        }
        let base = wildcard.base_or_empty();
        let sent: Vec<ResourceName> =
            self.globs.names.iter().flat_map(|glob| members(&base, glob)).collect();
        for name in sent {
            self.add_member(name);
        }
        self.work.changed = Changed::All;
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
        if self.protocol == Protocol::Delta || self.globs.is_empty() {
            return Vec::new();
        }
        let touched = lost.iter().chain(sent).filter_map(collection_of);
        let touched: BTreeSet<String> = touched.collect();
        let touched = touched.iter().filter_map(|glob| self.globs.names.get(glob.as_str()));
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
