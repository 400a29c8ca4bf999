//! Which variant of a resource a client receives, and the removal of replaced variants (DYN-03 to -12).
//!
//! A subscription with parameters is a name of its own ([`located_name`](chancery_model::located_name)).
//! The view finds the variant for each name. [`Interest`] has the names by which a client subscribes to
//! a variant. This file decides about the removal of a variant that another one replaces.

use chancery_model::{Resource, ResourceName};
use chancery_view::TypeView;

use super::{ClientVersion, interest::Interest, kind::Kind};
use crate::Protocol;

/// Returns whether another resource is now visible under a name through which the client had `old`.
pub(crate) fn is_replaced(interest: &Interest, view: &TypeView, old: &Resource) -> bool {
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
    if interest.is_wildcard() {
        takes_its_place(old.base_name())
    } else {
        interest.names_for(old).any(takes_its_place)
    }
}

/// Returns whether the client is sent the removal of a replaced resource. Only a client that reads
/// constraints needs it (DYN-07, DYN-08).
pub(crate) fn tells_replaced(
    kind: &Kind,
    interest: &Interest,
    view: &TypeView,
    old: &Resource,
) -> bool {
    kind.protocol == Protocol::Delta
        && interest.variants().has_locators()
        && !has_elsewhere(interest, view, old)
}

/// Returns whether the client has a resource by another subscription to its name.
pub(crate) fn has_elsewhere(interest: &Interest, view: &TypeView, old: &Resource) -> bool {
    let names = interest.names();
    let is_held = |name: &ResourceName| {
        let held = names.get(name).and_then(ClientVersion::sent);
        held.is_some_and(|held| held.name() == old.name())
    };
    let base = old.base_name().as_str();
    if interest.is_wildcard() {
        // Beside a wildcard, plans do not update the versions of plain names.
        view.has(old) || names.located(base).any(is_held)
    } else {
        names.of_base(base).any(is_held)
    }
}

/// Returns whether `new` replaces `old` under a common name: both are variants of the name, or the name is
/// now an alias of `new`. Clients know a variant by its constraints, so the alias does not replace it in
/// their cache (DYN-08).
pub(crate) fn is_replaced_by(old: &Resource, new: &Resource) -> bool {
    old.name() != new.name() && (old.constraints().is_some() || old.base_name() == new.base_name())
}
