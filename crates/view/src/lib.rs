//! What a node sees of the state, and what has changed in it.
//!
//! A view is layered, never merged: it is the list of its scopes' collections, the earlier over the
//! later. Views over one scope share that scope's collection, and a commit to it is compared once
//! for all of them (design 4.3): [`Differ`] keeps the differences of collections, and
//! [`difference`] puts those of a view's layers together, resolving by name only what more than one
//! layer holds.
//!
//! Pure: no async, clock, randomness or I/O.
//!
//! Invariants:
//! - A view and a [`TypeView`] never change; holding one keeps what it shows alive, and only that.
//! - `from` changed by `difference(from, to)` shows what `to` shows.
//! - Cost: O(layers) to resolve, O(d log M) per difference of a collection, once.

mod differ;
mod difference;
mod resources;
mod view;

pub use differ::{Differ, LayerDelta};
pub use difference::{Difference, changed_collections, difference};
pub use resources::{Resources, ResourcesIter};
pub use view::{TypeView, View};
