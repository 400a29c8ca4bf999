//! Glob collections: subscriptions to all structured names below one parent (XDSTP-15 to -18).
//!
//! A glob is a subscribed name that no resource has. Its members are subscribed names, too, so all rules
//! for names hold for members. The index of the shard has only the glob: a change of a member marks the
//! sessions that subscribe to its collection. While a wildcard is active, it covers the members, and
//! the subscription does not list them.

use std::collections::BTreeSet;

use chancery_model::{ResourceName, StructuredName, is_structured};

/// The glob collections of a subscription.
#[derive(Debug, Default)]
pub(crate) struct Globs {
    /// The names of the subscribed collections.
    pub(super) names: BTreeSet<ResourceName>,
    /// The names that the client subscribes to only through a collection.
    pub(super) members: BTreeSet<ResourceName>,
    /// The maximum number of members of the collections that are requested and not planned yet.
    pub(super) asked: usize,
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
}

/// Returns whether a name is that of a glob collection.
pub(super) fn is_glob(name: &ResourceName) -> bool {
    is_structured(name.as_str())
        && StructuredName::parse(name.as_str()).is_ok_and(|parsed| parsed.is_glob())
}
