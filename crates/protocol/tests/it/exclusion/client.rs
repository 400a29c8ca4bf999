//! A client that applies nothing of a response with two resources of one key, or with invalid content.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A resource: its key and its content. Content that is divisible by 10 is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) key: u8,
    pub(crate) content: u8,
}

impl Item {
    pub(crate) fn is_bad(self) -> bool {
        self.content.is_multiple_of(10)
    }
}

/// A response of the child type.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) nonce: String,
    pub(crate) version: String,
    pub(crate) resources: Vec<(String, Item, String)>,
    pub(crate) removed: Vec<String>,
    /// The keys of the author's resources when the response was built.
    pub(crate) keys: BTreeSet<u8>,
}

#[derive(Debug, Default)]
pub(crate) struct Client {
    /// The resources in use, with their versions.
    pub(crate) held: BTreeMap<String, (Item, String)>,
    pub(crate) accepted: String,
    /// The unanswered responses of the child type.
    pub(crate) inbox: VecDeque<Reply>,
    /// The unanswered responses of the parent type: nonce, version, validity.
    pub(crate) parents: VecDeque<(String, String, bool)>,
    pub(crate) accepted_parent: String,
}

impl Client {
    /// Processes a response. Returns whether the client accepts it.
    pub(crate) fn take(&mut self, reply: &Reply, is_full_state: bool) -> bool {
        let mut next = if is_full_state { BTreeMap::new() } else { self.held.clone() };
        for name in &reply.removed {
            next.remove(name);
        }
        for (name, item, version) in &reply.resources {
            next.insert(name.clone(), (*item, version.clone()));
        }
        let is_bad = reply.resources.iter().any(|(_, item, _)| item.is_bad());
        let keys: BTreeSet<u8> = next.values().map(|(item, _)| item.key).collect();
        if is_bad || keys.len() < next.len() {
            return false;
        }
        self.held = next;
        self.accepted.clone_from(&reply.version);
        true
    }

    pub(crate) fn keys(&self) -> BTreeSet<u8> {
        self.held.values().map(|(item, _)| item.key).collect()
    }

    /// Drops what belongs to the stream.
    pub(crate) fn cut(&mut self) {
        self.inbox.clear();
        self.parents.clear();
    }
}
