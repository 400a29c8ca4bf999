//! Which sessions care about a name of a type in a scope.
//!
//! Costs: finding them is O(changed names + sessions found), registering is O(1) per name and scope.
//! Nothing here is O(sessions), but for the sessions that do care.

use std::collections::{HashMap, HashSet};

use chancery_model::{ResourceName, ScopeName, TypeUrl};
use chancery_protocol::Interest;
use smallvec::SmallVec;

/// A session's place in its shard.
pub(crate) type Key = u32;

/// Past so many members a set is hashed; up to it, it is searched.
const LINEAR_MAX: usize = 16;

/// Sessions by what they care about.
#[derive(Debug, Default)]
pub(crate) struct Index {
    // Few types per scope: searched, not hashed. Names come from clients: the standard hasher, which
    // they can not attack.
    scopes: HashMap<ScopeName, Vec<(TypeUrl, Interested)>>,
}

#[derive(Debug, Default)]
struct Interested {
    wildcard: KeySet,
    names: HashMap<ResourceName, KeySet>,
}

#[derive(Debug)]
enum KeySet {
    Few(SmallVec<[Key; 4]>),
    Many(HashSet<Key>),
}

// === impl Index ===

impl Index {
    /// Registers or takes back one interest of a session, under each scope that it sees.
    pub(crate) fn note(&mut self, key: Key, scopes: &[ScopeName], interest: &Interest) {
        for scope in scopes {
            match interest {
                Interest::Name(type_url, name) => {
                    let names = &mut self.entry(scope, type_url).names;
                    match names.get_mut(name) {
                        Some(keys) => keys.insert(key),
                        None => drop(names.insert(name.clone(), KeySet::of(key))),
                    }
                }
                Interest::Wildcard(type_url) => self.entry(scope, type_url).wildcard.insert(key),
                Interest::NoName(type_url, name) => self.remove_name(key, scope, type_url, name),
                Interest::NoWildcard(type_url) => self.remove_wildcard(key, scope, type_url),
            }
        }
    }

    /// Takes back one interest, given as it was registered, under each of `scopes`.
    pub(crate) fn forget(&mut self, key: Key, scopes: &[ScopeName], interest: &Interest) {
        for scope in scopes {
            match interest {
                Interest::Name(type_url, name) | Interest::NoName(type_url, name) => {
                    self.remove_name(key, scope, type_url, name);
                }
                Interest::Wildcard(type_url) | Interest::NoWildcard(type_url) => {
                    self.remove_wildcard(key, scope, type_url);
                }
            }
        }
    }

    /// Calls `found` for the sessions that care about any of `names`, with the name; without one for
    /// those that care about all.
    pub(crate) fn interested<'a>(
        &self,
        scope: &ScopeName,
        type_url: &TypeUrl,
        names: impl Iterator<Item = &'a ResourceName>,
        mut found: impl FnMut(Key, Option<&ResourceName>),
    ) {
        let Some(types) = self.scopes.get(scope) else { return };
        let Some((_, interested)) = types.iter().find(|(known, _)| known == type_url) else {
            return;
        };
        interested.wildcard.for_each(|key| found(key, None));
        if interested.names.is_empty() {
            return;
        }
        for name in names {
            if let Some(keys) = interested.names.get(name) {
                keys.for_each(|key| found(key, Some(name)));
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.scopes.is_empty()
    }

    fn entry(&mut self, scope: &ScopeName, type_url: &TypeUrl) -> &mut Interested {
        // Not `entry`: it would clone the name even if it is there.
        if !self.scopes.contains_key(scope) {
            self.scopes.insert(scope.clone(), Vec::with_capacity(1));
        }
        let types = self.scopes.get_mut(scope).expect("it was inserted if it was not there");
        let at = types.iter().position(|(known, _)| known == type_url).unwrap_or_else(|| {
            types.push((type_url.clone(), Interested::default()));
            types.len() - 1
        });
        &mut types[at].1
    }

    fn remove_name(
        &mut self,
        key: Key,
        scope: &ScopeName,
        type_url: &TypeUrl,
        name: &ResourceName,
    ) {
        self.change(scope, type_url, |interested| {
            if let Some(keys) = interested.names.get_mut(name) {
                keys.remove(key);
                if keys.is_empty() {
                    interested.names.remove(name);
                }
            }
        });
    }

    fn remove_wildcard(&mut self, key: Key, scope: &ScopeName, type_url: &TypeUrl) {
        self.change(scope, type_url, |interested| interested.wildcard.remove(key));
    }

    /// Changes what is there, and drops it when nothing is left.
    fn change(
        &mut self,
        scope: &ScopeName,
        type_url: &TypeUrl,
        change: impl FnOnce(&mut Interested),
    ) {
        let Some(types) = self.scopes.get_mut(scope) else { return };
        let Some(at) = types.iter().position(|(known, _)| known == type_url) else { return };
        change(&mut types[at].1);
        if types[at].1.wildcard.is_empty() && types[at].1.names.is_empty() {
            types.swap_remove(at);
            if types.is_empty() {
                self.scopes.remove(scope);
            }
        }
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

    fn insert(&mut self, key: Key) {
        match self {
            Self::Few(keys) if keys.contains(&key) => {}
            Self::Few(keys) if keys.len() < LINEAR_MAX => keys.push(key),
            Self::Few(keys) => {
                *self = Self::Many(keys.iter().copied().chain([key]).collect());
            }
            Self::Many(keys) => drop(keys.insert(key)),
        }
    }

    fn remove(&mut self, key: Key) {
        match self {
            Self::Few(keys) => {
                if let Some(at) = keys.iter().position(|known| *known == key) {
                    keys.swap_remove(at);
                }
            }
            Self::Many(keys) => {
                keys.remove(&key);
                // Half the limit, so that one that comes and goes does not rebuild the set each time.
                if keys.len() <= LINEAR_MAX / 2 {
                    *self = Self::Few(keys.iter().copied().collect());
                }
            }
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Few(keys) => keys.is_empty(),
            Self::Many(keys) => keys.is_empty(),
        }
    }

    fn for_each(&self, mut f: impl FnMut(Key)) {
        match self {
            Self::Few(keys) => keys.iter().copied().for_each(&mut f),
            Self::Many(keys) => keys.iter().copied().for_each(&mut f),
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
        let names: Vec<ResourceName> = names.iter().map(|n| name(n)).collect();
        let mut keys = Vec::new();
        index.interested(&scope(in_scope), &url(), names.iter(), |key, _| keys.push(key));
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// SOTW-91: a change that concerns other names or scopes wakes nobody.
    #[test]
    fn only_those_who_care_are_found() {
        let mut index = Index::default();
        let both = [scope("a"), scope("b")];
        index.note(1, &both, &Interest::Name(url(), name("x")));
        index.note(2, &both[..1], &Interest::Wildcard(url()));
        assert_eq!(found(&index, "a", &["x"]), [1, 2]);
        assert_eq!(found(&index, "a", &["y"]), [2]);
        assert_eq!(found(&index, "b", &["x", "y"]), [1]);
        assert!(found(&index, "b", &["y"]).is_empty());
        assert!(found(&index, "c", &["x"]).is_empty());
    }

    #[test]
    fn nothing_is_left_of_those_who_left() {
        let mut index = Index::default();
        let scopes = [scope("a"), scope("b")];
        for key in 0..100 {
            index.note(key, &scopes, &Interest::Name(url(), name("x")));
            index.note(key, &scopes, &Interest::Wildcard(url()));
        }
        assert_eq!(found(&index, "b", &["x"]).len(), 100);
        for key in 0..100 {
            index.note(key, &scopes, &Interest::NoName(url(), name("x")));
            index.forget(key, &scopes, &Interest::Wildcard(url()));
            assert_eq!(found(&index, "a", &["x"]).len(), 99 - key as usize);
        }
        assert!(index.is_empty());
    }
}
