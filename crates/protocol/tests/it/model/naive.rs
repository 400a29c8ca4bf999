//! All resources, and the part that a node sees, as plain maps: no sharing, no layers, no
//! differences.
//!
//! This is the reference for the session. It is written to be obviously correct, and takes nothing
//! from the code under test except the table of types.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use chancery_model::{
    TypeUrl,
    types::{self, Properties},
};
use chancery_protocol::{DeltaRequest, Protocol, SotwRequest};

/// The types that the model uses; one is opaque.
pub(crate) const TYPES: [&str; 9] = [
    types::CLUSTER,
    types::ENDPOINT,
    types::LISTENER,
    types::ROUTE,
    types::SCOPED_ROUTE,
    types::VIRTUAL_HOST,
    types::SECRET,
    types::RUNTIME,
    "type.googleapis.com/x.Opaque",
];
pub(crate) const N_TYPES: usize = TYPES.len();
pub(crate) const CDS: usize = 0;
pub(crate) const EDS: usize = 1;
pub(crate) const LDS: usize = 2;
pub(crate) const RDS: usize = 3;
pub(crate) const SRDS: usize = 4;
pub(crate) const VHDS: usize = 5;
pub(crate) const SDS: usize = 6;
pub(crate) const RTDS: usize = 7;
pub(crate) const OPAQUE: usize = 8;

pub(crate) const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
pub(crate) const SCOPES: [&str; 3] = ["default", "eu", "node/1"];

pub(crate) fn type_url(t: usize) -> TypeUrl {
    TypeUrl::from_static(TYPES[t])
}

pub(crate) fn properties(t: usize) -> &'static Properties {
    types::properties(&type_url(t))
}

/// SOTW-70, -73: returns whether a response must be complete.
pub(crate) fn is_full_state(protocol: Protocol, t: usize) -> bool {
    protocol == Protocol::Sotw && matches!(t, CDS | LDS | SRDS | OPAQUE)
}

/// Returns whether a delta client applies nothing of a response that it rejects. Its responses are not split.
pub(crate) fn rejects_whole(protocol: Protocol, t: usize) -> bool {
    protocol == Protocol::Delta && matches!(t, SRDS | VHDS)
}

/// SOTW-68, DELTA-38, DELTA-61, SVC-05: returns whether the type supports a wildcard.
pub(crate) fn has_wildcard(protocol: Protocol, t: usize) -> bool {
    matches!(t, CDS | LDS | SRDS | OPAQUE) || (t == VHDS && protocol == Protocol::Delta)
}

/// One resource. Its body encodes its references: `2>x,y` has the children x and y, and `2:x` is a
/// route to the cluster x. The digit represents all other content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) name: String,
    pub(crate) body: String,
    pub(crate) aliases: Vec<String>,
    /// The revision that last changed it.
    pub(crate) changed: u64,
}

/// Returns whether clients request resources of type `child` because of those of type `parent`.
pub(crate) fn is_parent(parent: usize, child: usize) -> bool {
    matches!((parent, child), (CDS, EDS | SDS) | (EDS, SDS) | (LDS, RDS | SDS) | (SRDS, RDS))
}

/// Returns the children of a resource: the names that a client requests because of it.
pub(crate) fn children(t: usize, body: &str) -> Vec<(usize, String)> {
    let child = match t {
        CDS => EDS,
        LDS | SRDS => RDS,
        _ => return Vec::new(),
    };
    list_after(body, '>').map(|name| (child, name)).collect()
}

/// Returns the references of a resource: its children, or the clusters of a route.
pub(crate) fn references(t: usize, body: &str) -> Vec<(usize, String)> {
    match t {
        RDS => list_after(body, ':').map(|name| (CDS, name)).collect(),
        _ => children(t, body),
    }
}

fn list_after(body: &str, mark: char) -> impl Iterator<Item = String> + '_ {
    let list = body.split_once(mark).map_or("", |(_, list)| list);
    list.split(',').filter(|name| !name.is_empty()).map(str::to_owned)
}

/// Returns whether a picky client rejects this content.
pub(crate) fn is_bad(body: &str) -> bool {
    body.starts_with('3')
}

/// The resources that a node sees, by type and name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) of: [BTreeMap<String, Arc<Item>>; N_TYPES],
}

impl Seen {
    /// Returns a resource by name, or else by alias (DELTA-29).
    pub(crate) fn get(&self, t: usize, name: &str) -> Option<&Arc<Item>> {
        let by_alias = || self.of[t].values().find(|item| item.aliases.iter().any(|a| a == name));
        self.of[t].get(name).or_else(by_alias)
    }
}

/// One resource of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) scope: usize,
    pub(crate) t: usize,
    pub(crate) name: String,
    /// The body and aliases; `None` deletes the resource.
    pub(crate) content: Option<(String, Vec<String>)>,
}

/// The current resources, and the history of what the node saw.
#[derive(Debug)]
pub(crate) struct Oracle {
    content: BTreeMap<(usize, usize, String), Arc<Item>>,
    /// The scopes of the node; `None` if it has no assignment.
    scopes: Option<Vec<usize>>,
    /// The resources that the node saw, by revision.
    history: Vec<Option<Arc<Seen>>>,
    /// The time and revision of the removal of each resource that the node once saw.
    pub(crate) gone_since: BTreeMap<(usize, String), (u64, u64)>,
}

impl Oracle {
    pub(crate) fn new() -> Self {
        Self {
            content: BTreeMap::new(),
            scopes: Some(vec![0]),
            history: vec![Some(Arc::default())],
            gone_since: BTreeMap::new(),
        }
    }

    pub(crate) fn revision(&self) -> u64 {
        self.history.len() as u64 - 1
    }

    /// Iterates over all resources, visible or not: scope, type, item.
    pub(crate) fn content(&self) -> impl Iterator<Item = (usize, usize, &Arc<Item>)> {
        self.content.iter().map(|((scope, t, _), item)| (*scope, *t, item))
    }

    /// Returns the resources that the node sees now.
    pub(crate) fn seen(&self) -> Option<&Arc<Seen>> {
        self.history.last().unwrap().as_ref()
    }

    /// Returns the resources that the node saw at a revision.
    pub(crate) fn seen_at(&self, revision: u64) -> Option<&Arc<Seen>> {
        self.history.get(usize::try_from(revision).unwrap())?.as_ref()
    }

    /// Applies one transaction: deletes first, then upserts. The last change of a name takes
    /// effect.
    pub(crate) fn commit(&mut self, changes: &[Change], now: u64) {
        let revision = self.revision() + 1;
        let (deletes, upserts): (Vec<_>, Vec<_>) =
            changes.iter().partition(|change| change.content.is_none());
        let wanted: BTreeMap<_, _> = deletes
            .into_iter()
            .chain(upserts)
            .map(|c| ((c.scope, c.t, c.name.clone()), c.content.clone()))
            .collect();
        let before = self.content.clone();
        for (key, content) in wanted {
            match content {
                None => drop(self.content.remove(&key)),
                Some((body, aliases)) => {
                    let old = self.content.get(&key);
                    if old.is_some_and(|old| old.body == body && old.aliases == aliases) {
                        continue;
                    }
                    let item = Item { name: key.2.clone(), body, aliases, changed: revision };
                    self.content.insert(key, Arc::new(item));
                }
            }
        }
        if self.content != before {
            self.show(now);
        }
    }

    /// Assigns another list of scopes to the node, or none.
    pub(crate) fn assign(&mut self, scopes: Option<Vec<usize>>, now: u64) {
        if self.scopes != scopes {
            self.scopes = scopes;
            self.show(now);
        }
    }

    fn show(&mut self, now: u64) {
        let seen = self.scopes.as_ref().map(|scopes| {
            let mut seen = Seen::default();
            // Later insertions replace earlier ones, so the scopes are visited from the last to the
            // first.
            for scope in scopes.iter().rev() {
                for ((_, t, name), item) in self.content.iter().filter(|(key, _)| key.0 == *scope) {
                    seen.of[*t].insert(name.clone(), Arc::clone(item));
                }
            }
            Arc::new(seen)
        });
        if let (Some(seen), Some(before)) = (&seen, self.last_seen()) {
            for t in 0..N_TYPES {
                for name in before.of[t].keys().filter(|name| !seen.of[t].contains_key(*name)) {
                    let revision = self.history.len() as u64;
                    self.gone_since.entry((t, name.clone())).or_insert((now, revision));
                }
            }
        }
        self.history.push(seen);
    }

    /// Returns whether any state published since this revision has a reference from `from` to `to`.
    pub(crate) fn referred(&self, since: u64, from: (usize, &str), to: (usize, &str)) -> bool {
        let states = self.history.iter().skip(usize::try_from(since).unwrap()).flatten();
        states
            .filter_map(|seen| seen.get(from.0, from.1))
            .any(|item| references(from.0, &item.body).iter().any(|(t, name)| (*t, &**name) == to))
    }

    /// Records that the server has processed some types. A resource that has reappeared by now was
    /// never removed for it.
    pub(crate) fn on_rest(&mut self, looked: [bool; N_TYPES]) {
        let Some(seen) = self.seen().cloned() else { return };
        self.gone_since.retain(|(t, name), _| !looked[*t] || !seen.of[*t].contains_key(name));
    }

    fn last_seen(&self) -> Option<Arc<Seen>> {
        self.history.iter().rev().flatten().next().cloned()
    }
}

/// The subscription of one stream to one type.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asked {
    pub(crate) opened: bool,
    named: bool,
    pub(crate) wildcard: bool,
    pub(crate) names: BTreeSet<String>,
}

/// The changes by a request.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    pub(crate) added: BTreeSet<String>,
    pub(crate) gone: BTreeSet<String>,
    pub(crate) started: bool,
    pub(crate) ended: bool,
}

impl Asked {
    pub(crate) fn covers(&self, name: &str, aliases: &[String]) -> bool {
        self.wildcard || self.names.contains(name) || aliases.iter().any(|a| self.names.contains(a))
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.wildcard && self.names.is_empty()
    }

    /// SOTW-40, SOTW-60 to -68: each list replaces the previous one.
    pub(crate) fn sotw(&mut self, t: usize, request: &SotwRequest) -> Turn {
        let list = &request.resource_names.to_vec();
        self.opened = true;
        self.named |= list.iter().any(|name| !name.is_empty());
        let star = list.iter().any(|name| name == "*") || !self.named;
        self.turn(star && has_wildcard(Protocol::Sotw, t), plain(list))
    }

    /// DELTA-20 to -38; DELTA-22 for a client that subscribes to names only by claiming to hold
    /// them.
    pub(crate) fn delta(&mut self, t: usize, request: &DeltaRequest) -> Turn {
        let (plus, minus) = (&request.subscribe.to_vec(), &request.unsubscribe.to_vec());
        let opening = !std::mem::replace(&mut self.opened, true);
        let has_star = |list: &[String]| list.iter().any(|name| name == "*");
        let can = has_wildcard(Protocol::Delta, t);
        let is_blank = plus.is_empty() || (can && plus.iter().all(String::is_empty));
        let is_bare = opening && is_blank && minus.is_empty();
        let star = (self.wildcard || has_star(plus) || is_bare) && !has_star(minus) && can;
        let minus = plain(minus);
        let mut names: BTreeSet<String> = self.names.difference(&minus).cloned().collect();
        names.extend(plain(plus));
        if is_bare && !can {
            let held = request.initial_resource_versions.iter().map(|(name, _)| name.to_owned());
            names.extend(plain(&held.collect::<Vec<_>>()));
        }
        self.turn(star, names)
    }

    fn turn(&mut self, star: bool, names: BTreeSet<String>) -> Turn {
        let turn = Turn {
            added: names.difference(&self.names).cloned().collect(),
            gone: self.names.difference(&names).cloned().collect(),
            started: star && !self.wildcard,
            ended: !star && self.wildcard,
        };
        (self.wildcard, self.names) = (star, names);
        turn
    }
}

/// Returns the names in a list, without the wildcard.
pub(crate) fn plain(list: &[String]) -> BTreeSet<String> {
    list.iter().filter(|name| !name.is_empty() && *name != "*").cloned().collect()
}
