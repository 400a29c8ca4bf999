//! The index from names to the sessions that subscribe to them, by scope and type.
//!
//! Finding sessions costs O(changed names + sessions found). Registration costs O(1) per name and
//! scope. No operation costs O(sessions).
//!
//! An iteration over a set from its end to its front may pause. The last session replaces a session
//! that leaves, and the iteration has already visited it. New sessions are appended. The iteration
//! therefore visits every session that was present at its start and stays.

use std::collections::{BTreeMap, HashMap};

use chancery_model::{ResourceName, ScopeName, TypeUrl};
use chancery_protocol::InterestChange;
use smallvec::SmallVec;

use crate::messages::session::{Key, Size};

/// The number of members up to which a set is searched linearly. Larger sets are hashed.
const LINEAR_MAX: usize = 16;

/// The sessions by subscription.
#[derive(Debug, Default)]
pub(crate) struct Index {
    // There are few types per scope, so a linear search suffices. Clients choose the names, so the
    // standard hasher is used: it resists collision attacks.
    scopes: HashMap<ScopeName, Vec<(TypeUrl, Interested)>>,
    size: Size,
}

#[derive(Debug, Default)]
struct Interested {
    wildcard: KeySet,
    /// A tree rather than a hash table: it never moves all names at once, and frees memory as names
    /// leave.
    names: BTreeMap<ResourceName, KeySet>,
}

/// A set of sessions. The last session takes the place of one that leaves.
#[derive(Debug)]
enum KeySet {
    Few(SmallVec<[Key; 4]>),
    // Boxed, so that the few names with many subscribers do not enlarge the others.
    Many(Box<Many>),
}

#[derive(Debug)]
struct Many {
    keys: Vec<Key>,
    positions: HashMap<Key, usize>,
}

// === impl Index ===

impl Index {
    /// Registers or removes one interest of a session, under each scope that it sees.
    pub(crate) fn note(&mut self, key: Key, scopes: &[ScopeName], interest: &InterestChange) {
        for scope in scopes {
            match interest {
                InterestChange::Name(type_url, name) => {
                    let names = &mut self.entry(scope, type_url).names;
                    let is_new = match names.get_mut(name) {
                        Some(keys) => keys.insert(key),
                        None => names.insert(name.clone(), KeySet::of(key)).is_none(),
                    };
                    self.size.names += usize::from(is_new);
                }
                InterestChange::Wildcard(type_url) => {
                    let is_new = self.entry(scope, type_url).wildcard.insert(key);
                    self.size.wildcards += usize::from(is_new);
                }
                InterestChange::NoName(type_url, name) => {
                    self.remove_name(key, scope, type_url, name)
                }
                InterestChange::NoWildcard(type_url) => self.remove_wildcard(key, scope, type_url),
            }
        }
    }

    /// Removes one interest, given as it was registered, under each of `scopes`.
    pub(crate) fn forget(&mut self, key: Key, scopes: &[ScopeName], interest: &InterestChange) {
        for scope in scopes {
            match interest {
                InterestChange::Name(type_url, name) | InterestChange::NoName(type_url, name) => {
                    self.remove_name(key, scope, type_url, name);
                }
                InterestChange::Wildcard(type_url) | InterestChange::NoWildcard(type_url) => {
                    self.remove_wildcard(key, scope, type_url);
                }
            }
        }
    }

    /// Removes one interest under the scopes that a session has left, and registers it under those that it has joined.
    pub(crate) fn move_interest(
        &mut self,
        key: Key,
        left: &[ScopeName],
        joined: &[ScopeName],
        interest: &InterestChange,
    ) {
        self.forget(key, left, interest);
        self.note(key, joined, interest);
    }

    /// Returns the sessions that subscribe to all resources of a type in a scope.
    pub(crate) fn wildcards(&self, scope: &ScopeName, type_url: &TypeUrl) -> &[Key] {
        self.find(scope, type_url).map_or(&[], |interested| interested.wildcard.as_slice())
    }

    /// Returns the sessions that subscribe to a name.
    pub(crate) fn named(
        &self,
        scope: &ScopeName,
        type_url: &TypeUrl,
        name: &ResourceName,
    ) -> &[Key] {
        let names = self.find(scope, type_url).and_then(|interested| interested.names.get(name));
        names.map_or(&[], KeySet::as_slice)
    }

    /// Returns whether any session subscribes to names of a type in a scope.
    pub(crate) fn has_names(&self, scope: &ScopeName, type_url: &TypeUrl) -> bool {
        self.find(scope, type_url).is_some_and(|interested| !interested.names.is_empty())
    }

    /// Returns the number of registrations.
    pub(crate) fn size(&self) -> Size {
        self.size
    }

    fn find(&self, scope: &ScopeName, type_url: &TypeUrl) -> Option<&Interested> {
        let types = self.scopes.get(scope)?;
        types.iter().find(|(known, _)| known == type_url).map(|(_, interested)| interested)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.scopes.is_empty()
    }

    fn entry(&mut self, scope: &ScopeName, type_url: &TypeUrl) -> &mut Interested {
        // `entry` would clone the name even if it is present.
        if !self.scopes.contains_key(scope) {
            self.scopes.insert(scope.clone(), Vec::with_capacity(1));
        }
        let types = self.scopes.get_mut(scope).expect("a missing scope was inserted above");
        let position = types.iter().position(|(known, _)| known == type_url).unwrap_or_else(|| {
            types.push((type_url.clone(), Interested::default()));
            types.len() - 1
        });
        &mut types[position].1
    }

    fn remove_name(
        &mut self,
        key: Key,
        scope: &ScopeName,
        type_url: &TypeUrl,
        name: &ResourceName,
    ) {
        let is_removed = self.change(scope, type_url, |interested| {
            let Some(keys) = interested.names.get_mut(name) else { return false };
            let is_removed = keys.remove(key);
            if keys.is_empty() {
                interested.names.remove(name);
            }
            is_removed
        });
        self.size.names -= usize::from(is_removed);
    }

    fn remove_wildcard(&mut self, key: Key, scope: &ScopeName, type_url: &TypeUrl) {
        let is_removed = self.change(scope, type_url, |interested| interested.wildcard.remove(key));
        self.size.wildcards -= usize::from(is_removed);
    }

    /// Changes the sessions of a type in a scope, and drops empty entries. Returns whether anything was
    /// removed.
    fn change(
        &mut self,
        scope: &ScopeName,
        type_url: &TypeUrl,
        change: impl FnOnce(&mut Interested) -> bool,
    ) -> bool {
        let Some(types) = self.scopes.get_mut(scope) else { return false };
        let Some(position) = types.iter().position(|(known, _)| known == type_url) else {
            return false;
        };
        let changed = change(&mut types[position].1);
        if types[position].1.wildcard.is_empty() && types[position].1.names.is_empty() {
            types.swap_remove(position);
            if types.is_empty() {
                self.scopes.remove(scope);
            }
        }
        changed
    }
}

// === impl KeySet ===

impl Default for KeySet {
    fn default() -> Self {
        Self::Few(SmallVec::new())
    }
}

impl KeySet {
    fn of(key: Key) -> Self {
        let mut keys = Self::default();
        keys.insert(key);
        keys
    }

    /// Returns whether the key is new.
    fn insert(&mut self, key: Key) -> bool {
        match self {
            Self::Few(keys) if keys.contains(&key) => return false,
            Self::Few(keys) if keys.len() < LINEAR_MAX => keys.push(key),
            Self::Few(keys) => {
                let keys: Vec<Key> = keys.iter().copied().chain([key]).collect();
                let positions = keys.iter().enumerate().map(|(n, key)| (*key, n)).collect();
                *self = Self::Many(Box::new(Many { keys, positions }));
            }
            Self::Many(many) => {
                let Many { keys, positions } = &mut **many;
                if positions.contains_key(&key) {
                    return false;
                }
                positions.insert(key, keys.len());
                keys.push(key);
            }
        }
        true
    }

    /// Returns whether the key was present.
    fn remove(&mut self, key: Key) -> bool {
        match self {
            Self::Few(keys) => match keys.iter().position(|known| *known == key) {
                Some(position) => drop(keys.swap_remove(position)),
                None => return false,
            },
            Self::Many(many) => {
                let Many { keys, positions } = &mut **many;
                let Some(position) = positions.remove(&key) else { return false };
                keys.swap_remove(position);
                if let Some(moved) = keys.get(position) {
                    positions.insert(*moved, position);
                }
                // Half the limit, so that a session that comes and goes does not rebuild the set each
                // time.
                if keys.len() <= LINEAR_MAX / 2 {
                    *self = Self::Few(SmallVec::from_slice(keys));
                }
            }
        }
        true
    }

    fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }

    fn as_slice(&self) -> &[Key] {
        match self {
            Self::Few(keys) => keys,
            Self::Many(many) => &many.keys,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(name: &str) -> ScopeName {
        ScopeName::new(name).unwrap()
    }

    fn url() -> TypeUrl {
        TypeUrl::new("t/x").unwrap()
    }

    fn name(name: &str) -> ResourceName {
        ResourceName::new(name).unwrap()
    }

    fn found(index: &Index, in_scope: &str, names: &[&str]) -> Vec<Key> {
        let scope = scope(in_scope);
        let mut keys = index.wildcards(&scope, &url()).to_vec();
        for found in names {
            keys.extend(index.named(&scope, &url(), &name(found)));
        }
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// SOTW-91: a change of other names or scopes wakes no session.
    #[test]
    fn index_finds_only_interested_sessions() {
        let mut index = Index::default();
        let both = [scope("a"), scope("b")];
        index.note(1, &both, &InterestChange::Name(url(), name("x")));
        index.note(2, &both[..1], &InterestChange::Wildcard(url()));
        assert_eq!(found(&index, "a", &["x"]), [1, 2]);
        assert_eq!(found(&index, "a", &["y"]), [2]);
        assert_eq!(found(&index, "b", &["x", "y"]), [1]);
        assert!(found(&index, "b", &["y"]).is_empty());
        assert!(found(&index, "c", &["x"]).is_empty());
    }

    #[test]
    fn removed_sessions_leave_no_index_entries() {
        let mut index = Index::default();
        let scopes = [scope("a"), scope("b")];
        for key in 0..100 {
            index.note(key, &scopes, &InterestChange::Name(url(), name("x")));
            index.note(key, &scopes, &InterestChange::Wildcard(url()));
        }
        assert_eq!(found(&index, "b", &["x"]).len(), 100);
        for key in 0..100 {
            index.note(key, &scopes, &InterestChange::NoName(url(), name("x")));
            index.forget(key, &scopes, &InterestChange::Wildcard(url()));
            assert_eq!(found(&index, "a", &["x"]).len(), 99 - key as usize);
            assert_eq!(
                index.size(),
                Size { names: 198 - 2 * key as usize, wildcards: 198 - 2 * key as usize }
            );
        }
        assert!(index.is_empty());
    }

    /// An iteration from the end to the front visits every session that was present at its start and
    /// stays. Sessions may come and go in its pauses.
    #[test]
    fn paused_iteration_visits_every_remaining_session() {
        for (n, leave_every) in [(3_u32, 2), (16, 3), (40, 2), (100, 7), (100, 1)] {
            let mut index = Index::default();
            let here = [scope("a")];
            let all = InterestChange::Wildcard(url());
            (0..n).for_each(|key| index.note(key, &here, &all));
            let (mut below, mut met) = (usize::MAX, Vec::new());
            let mut gone = Vec::new();
            let mut turn = 0;
            loop {
                let keys = index.wildcards(&here[0], &url());
                below = below.min(keys.len());
                if below == 0 {
                    break;
                }
                below -= 1;
                met.push(keys[below]);
                // One session leaves, at any place, and one arrives.
                let leaver = (turn * 13) % n;
                if turn % leave_every == 0 && !gone.contains(&leaver) {
                    index.forget(leaver, &here, &all);
                    gone.push(leaver);
                }
                index.note(1000 + turn, &here, &all);
                turn += 1;
            }
            let missed: Vec<u32> =
                (0..n).filter(|key| !gone.contains(key) && !met.contains(key)).collect();
            assert!(missed.is_empty(), "of {n} sessions, {missed:?} were missed");
        }
    }
}
