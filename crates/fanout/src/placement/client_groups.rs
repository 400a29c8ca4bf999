//! The clients of a replica, in groups.
//!
//! Each validated write reads them. The shards count them when they place a session, so that writes can reuse a list while
//! no group appears or ends.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use chancery_model::ScopeName;
use parking_lot::Mutex;

/// Clients with equal user agents that receive the same scopes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientGroup {
    /// The scopes that these clients receive.
    pub scopes: Vec<ScopeName>,
    /// [`Node::user_agent`](chancery_model::Node::user_agent) of the nodes.
    pub user_agent: String,
}

/// The groups of the clients of all shards. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClientGroups(Arc<Mutex<Groups>>);

#[derive(Debug, Default)]
struct Groups {
    /// The number of sessions of each group.
    counts: HashMap<Arc<ClientGroup>, u64>,
    version: u64,
}

/// The membership of a session in its group. Dropping it ends the membership.
#[derive(Debug)]
pub(crate) struct Membership {
    groups: ClientGroups,
    group: Arc<ClientGroup>,
}

impl ClientGroup {
    fn new(scopes: &[ScopeName], user_agent: &str) -> Self {
        Self { scopes: scopes.to_vec(), user_agent: user_agent.to_owned() }
    }
}

impl ClientGroups {
    /// Adds a session to the group of these scopes and this user agent.
    pub(crate) fn join(&self, scopes: &[ScopeName], user_agent: &str) -> Membership {
        let group = Arc::new(ClientGroup::new(scopes, user_agent));
        let mut groups = self.0.lock();
        let group = match groups.counts.entry(group) {
            Entry::Occupied(mut known) => {
                *known.get_mut() += 1;
                Arc::clone(known.key())
            }
            Entry::Vacant(new) => {
                let group = Arc::clone(new.key());
                new.insert(1);
                groups.version += 1;
                group
            }
        };
        Membership { groups: self.clone(), group }
    }

    /// Returns a number that changes with the set of groups, and the number of groups.
    pub(crate) fn version(&self) -> (u64, usize) {
        let groups = self.0.lock();
        (groups.version, groups.counts.len())
    }

    /// Returns the groups in any order, each with the number of its sessions, and their version.
    pub(crate) fn list(&self) -> (u64, Vec<(Arc<ClientGroup>, u64)>) {
        let groups = self.0.lock();
        let counts = groups.counts.iter();
        (groups.version, counts.map(|(group, n)| (Arc::clone(group), *n)).collect())
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut groups = self.groups.0.lock();
        if let Some(count) = groups.counts.get_mut(&self.group) {
            *count -= 1;
            if *count == 0 {
                groups.counts.remove(&self.group);
                groups.version += 1;
            }
        }
    }
}
