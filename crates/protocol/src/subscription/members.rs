//! The members of glob collections, which are subscribed names, as the view shows them.

use chancery_model::ResourceName;
use chancery_view::TypeView;

use super::{
    globs,
    interest::Interest,
    names::ClientVersion,
    resumption::Resumption,
    wildcard::Wildcard,
    work::{Changed, Work},
};

/// The members of glob collections, with the parts of a subscription that follow them.
#[derive(Debug)]
pub(crate) struct Members<'a> {
    pub(crate) interest: &'a mut Interest,
    pub(crate) work: &'a mut Work,
    pub(crate) resumption: &'a Resumption,
}

impl Members<'_> {
    /// Adds the members that the view shows, and replaces a requested collection by its members. An
    /// empty collection stays requested: it is reported as absent (XDSTP-17).
    ///
    /// The cost is O(changes). It is O(members) for a requested collection, or if everything may have
    /// changed.
    pub(crate) fn update(&mut self, view: &TypeView) {
        if self.interest.globs().is_empty() {
            return;
        }
        self.interest.on_members_planned();
        let is_asked = |glob: &&ResourceName| self.work.requested().contains(*glob);
        let asked: Vec<ResourceName> =
            self.interest.globs().iter().filter(is_asked).cloned().collect();
        for glob in asked {
            let members = globs::members(view, &glob);
            if !members.is_empty() {
                self.work.on_answered(&glob);
            }
            for member in members {
                self.request(member, view);
            }
        }
        if self.interest.is_wildcard() {
            return;
        }
        let found: Vec<ResourceName> = match self.work.changed() {
            Changed::All => self.interest.globs().members_in(view),
            Changed::Names(changed) => {
                let names = self.interest.names();
                let is_new = |name: &&ResourceName| !names.contains(name.as_str());
                let is_there = |name: &&ResourceName| {
                    let resource = view.get(name.as_str());
                    resource.is_some_and(|resource| resource.base_name() == *name)
                };
                changed.iter().filter(is_new).filter(is_there).cloned().collect()
            }
        };
        for name in found {
            self.add(name);
        }
        let names = self.interest.names();
        self.work.retain_changed(|name| names.contains(name.as_str()));
    }

    /// Takes over the members that an ended wildcard has sent.
    pub(super) fn take_over(&mut self, wildcard: &Wildcard) {
        if self.interest.globs().is_empty() {
            return;
        }
        for name in self.interest.globs().members_in(&wildcard.base_or_empty()) {
            self.add(name);
        }
        self.work.on_all_changed();
    }

    /// Requests a member of a collection that the client has just subscribed to, unless the client
    /// claims to hold its version (DELTA-58).
    fn request(&mut self, name: ResourceName, view: &TypeView) {
        let version = view.get(name.as_str()).map(|resource| resource.version());
        let claimed = self.resumption.claimed_version(&name);
        if !self.interest.is_wildcard() {
            self.add(name.clone());
        }
        if claimed.is_none() || claimed != version {
            self.work.request(name);
        }
    }

    /// Subscribes to a member.
    fn add(&mut self, name: ResourceName) {
        let claimed = self.resumption.claimed_version(&name);
        let version = claimed.map_or(ClientVersion::Nothing, ClientVersion::Claimed);
        if self.interest.add_member(&name, version) {
            self.work.on_changed(name);
        }
    }
}
