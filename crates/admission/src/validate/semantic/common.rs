//! Parts that several kinds of rules share.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::Hash,
};

use crate::validate::{findings::Findings, tree::Message};

/// A function that checks one message.
pub(super) type Check = for<'m, 'a> fn(&'m Message<'a>, &mut Findings<'m>);

/// The type of the HTTP connection manager.
pub(super) const HCM: &str =
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";

/// The type of the filters of the connection manager.
pub(super) const HTTP_FILTER: &str =
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter";

/// Returns the value of a field of type `int32`.
pub(super) fn signed(message: &Message<'_>, field: &str) -> i32 {
    let [a, b, c, d, ..] = message.bits(field).to_le_bytes();
    i32::from_le_bytes([a, b, c, d])
}

/// Returns the position of each item that repeats an earlier one, and that of the first such item.
pub(super) fn repeated<T: Eq + Hash>(items: impl Iterator<Item = T>) -> Vec<(usize, usize)> {
    let mut seen = HashMap::new();
    let mut found = Vec::new();
    for (index, item) in items.enumerate() {
        match seen.entry(item) {
            Entry::Occupied(first) => found.push((index, *first.get())),
            Entry::Vacant(entry) => {
                entry.insert(index);
            }
        }
    }
    found
}
