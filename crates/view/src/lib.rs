//! Views, which are the parts of the state that nodes see, and the differences between views.
//!
//! A view is a list of layers: the collections of its scopes, in which an earlier layer shadows a
//! later one. Layers are never merged, so all views over one scope share its collection. The
//! process compares two versions of a collection once for all these views:
//!
//! - [`Differ`] caches the differences of collections.
//! - [`difference`] combines the differences of a view's layers. It looks up only the names that
//!   occur in more than one layer.
//!
//! The crate is pure: it has no async, clock, randomness or I/O.
//!
//! Invariants:
//! - A [`View`] and a [`TypeView`] are immutable. Each keeps its own resources alive, and no others.
//! - Applying `difference(from, to)` to the resources of `from` gives the resources of `to`.
//! - Resolving a view costs O(layers). Each difference of a collection costs O(d log M), once.

mod differ;
mod difference;
mod resources;
mod retained;
mod view;

pub use differ::{Differ, LayerDelta};
pub use difference::{Difference, changed_collections, changed_collections_of, difference};
pub use resources::{Resources, ResourcesIter};
pub use retained::Retained;
pub use view::{TypeView, View};
