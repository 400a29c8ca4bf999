//! The reference model of a random history: the content at every revision.

use std::collections::{BTreeMap, BTreeSet};

use chancery_model::types;
use fastrand::Rng;
use serde_json::{Value, json};

/// The scopes with random content. The first one hides resources of the second.
pub(super) const SCOPES: [&str; 2] = ["red", "blue"];
/// The types of the random content, each with the first letter of its names.
const TYPES: [(&str, &str); 4] =
    [(types::CLUSTER, "c"), (types::ENDPOINT, "e"), (types::ROUTE, "r"), (types::RUNTIME, "t")];
/// The number of names of each type.
const NAMES: usize = 4;

/// A scope, a type URL and a name.
pub(super) type Key = (String, String, String);

/// A resource.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) body: Value,
    pub(super) ttl_ms: u64,
    pub(super) labels: BTreeMap<String, String>,
    /// The revision in the version of the resource.
    pub(super) set_at: u64,
}

impl Item {
    /// Returns whether two resources are equal, whatever their versions.
    pub(super) fn equals(&self, other: &Self) -> bool {
        self.is_sent_as(other) && self.labels == other.labels
    }

    /// Returns whether clients receive the same for both resources.
    fn is_sent_as(&self, other: &Self) -> bool {
        self.body == other.body && self.ttl_ms == other.ttl_ms
    }

    /// Reads a resource of a list.
    pub(super) fn read(listed: &Value) -> (Key, Self) {
        let text = |name: &str| listed[name].as_str().unwrap().to_owned();
        let labels = listed["labels"].as_object().into_iter().flatten();
        let labels = labels.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()));
        let item = Self {
            body: listed["body"].clone(),
            ttl_ms: listed["ttl_ms"].as_u64().unwrap_or(0),
            labels: labels.collect(),
            set_at: listed["revision"].as_u64().unwrap(),
        };
        ((text("scope"), text("type_url"), text("name")), item)
    }

    /// Returns the entry of a manifest that publishes the resource.
    pub(super) fn entry(&self) -> Value {
        let mut entry = json!({"resource": self.body, "labels": self.labels});
        if self.ttl_ms > 0 {
            entry["ttl"] = json!(format!("{}s", self.ttl_ms / 1000));
        }
        entry
    }
}

/// All content at a revision.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    pub(super) items: BTreeMap<Key, Item>,
    /// The scopes of each assignment.
    pub(super) assignments: BTreeMap<String, Vec<String>>,
}

/// The part of the content that a rollback restores.
#[derive(Debug, Clone)]
pub(super) enum Part {
    All,
    Scope(String),
    Type(String, String),
    Resource(Key),
}

impl Part {
    pub(super) fn random(random: &mut Rng, content: &Content) -> Self {
        let (type_url, letter) = TYPES[random.usize(0..TYPES.len())];
        let scope = SCOPES[random.usize(0..2)].to_owned();
        match random.usize(0..4) {
            0 => Self::All,
            1 => Self::Scope(scope),
            2 => Self::Type(scope, type_url.to_owned()),
            _ => {
                let any = content.items.keys().nth(random.usize(0..=content.items.len()));
                let name = format!("{letter}{}", random.usize(0..NAMES));
                Self::Resource(any.cloned().unwrap_or((scope, type_url.to_owned(), name)))
            }
        }
    }

    fn includes(&self, key: &Key) -> bool {
        match self {
            Self::All => true,
            Self::Scope(scope) => *scope == key.0,
            Self::Type(scope, type_url) => *scope == key.0 && *type_url == key.1,
            Self::Resource(only) => only == key,
        }
    }

    /// Returns the arguments of `rollback` that select the part.
    pub(super) fn args(&self) -> Vec<String> {
        match self.clone() {
            Self::All => vec!["--all".to_owned()],
            Self::Scope(scope) => vec![scope],
            Self::Type(scope, type_url) => vec![scope, type_url],
            Self::Resource((scope, type_url, name)) => vec![scope, type_url, name],
        }
    }
}

/// The result of `undo`.
#[derive(Debug)]
pub(super) enum Undone {
    To(Box<Content>),
    /// The resources that later revisions changed, each with the next revision that did, and the assignments.
    Conflicts(BTreeMap<Key, u64>, BTreeSet<String>),
}

impl Content {
    /// Returns whether both have the same content, whatever the versions.
    pub(super) fn equals(&self, other: &Self) -> bool {
        self.assignments == other.assignments
            && self.items.keys().eq(other.items.keys())
            && self.items.iter().all(|(key, item)| item.equals(&other.items[key]))
    }

    /// Returns the content after a rollback of a part to `then`.
    pub(super) fn rolled_back(&self, part: &Part, then: &Self) -> Self {
        let mut next = self.clone();
        next.items.retain(|key, _| !part.includes(key));
        let restored = then.items.iter().filter(|(key, _)| part.includes(key));
        next.items.extend(restored.map(|(key, item)| (key.clone(), item.clone())));
        if matches!(part, Part::All) {
            next.assignments.clone_from(&then.assignments);
        }
        next
    }

    /// Returns the marks of the clusters of a client that gets the scopes of the assignment `each`.
    pub(super) fn clusters(&self) -> BTreeMap<String, (i64, Value)> {
        let mut seen = BTreeMap::new();
        // Earlier scopes hide resources of later ones.
        for scope in self.assignments["each"].iter().rev() {
            for ((of, type_url, name), item) in &self.items {
                if of == scope && type_url == types::CLUSTER {
                    let timeout = item.body["connect_timeout"].as_str().unwrap();
                    let mark = timeout.trim_end_matches('s').parse().unwrap();
                    seen.insert(name.clone(), (mark, item.body.clone()));
                }
            }
        }
        seen
    }
}

/// The content at every revision of a history.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) states: BTreeMap<u64, Content>,
}

impl Model {
    pub(super) fn newest(&self) -> (u64, &Content) {
        self.states.last_key_value().map(|(revision, content)| (*revision, content)).unwrap()
    }

    /// Adds a revision.
    pub(super) fn push(&mut self, revision: u64, mut next: Content) {
        let (newest, before) = self.newest();
        assert!(revision > newest, "{revision} is not after {newest}");
        for (key, item) in &mut next.items {
            let old = before.items.get(key).filter(|old| old.is_sent_as(item));
            item.set_at = old.map_or(revision, |old| old.set_at);
        }
        self.states.insert(revision, next);
    }

    /// Returns the content before a revision.
    pub(super) fn before(&self, revision: u64) -> &Content {
        self.states.range(..revision).next_back().unwrap().1
    }

    /// Returns the oldest revision whose content is kept, if `kept` revisions are.
    pub(super) fn oldest_of(&self, kept: usize) -> u64 {
        self.states.keys().rev().nth(kept).copied().unwrap_or(0)
    }

    /// Returns the content after `undo`.
    pub(super) fn undone(&self, revision: u64) -> Undone {
        let (then, wanted) = (&self.states[&revision], self.before(revision));
        let now = self.newest().1;
        let is_same = |one: Option<&Item>, other: Option<&Item>| match (one, other) {
            (Some(one), Some(other)) => one.equals(other),
            (one, other) => one.is_none() && other.is_none(),
        };
        let mut next = now.clone();
        let (mut resources, mut assignments) = (BTreeMap::new(), BTreeSet::new());
        let keys: BTreeSet<&Key> = then.items.keys().chain(wanted.items.keys()).collect();
        for key in keys {
            let of = |content: &'_ Content| content.items.get(key).cloned();
            let [then, wanted, now] = [of(then), of(wanted), of(now)];
            let [then, wanted, now] = [then.as_ref(), wanted.as_ref(), now.as_ref()];
            if is_same(then, wanted) {
                continue;
            }
            if is_same(then, now) {
                next.items.remove(key);
                next.items.extend(wanted.map(|wanted| (key.clone(), wanted.clone())));
            } else if !is_same(wanted, now) {
                let mut later = self.states.range(revision + 1..);
                let differs = |content: &Content| !is_same(content.items.get(key), then);
                let next = later.find(|(_, content)| differs(content)).unwrap();
                resources.insert(key.clone(), *next.0);
            }
        }
        let names = then.assignments.keys().chain(wanted.assignments.keys());
        for name in names.collect::<BTreeSet<_>>() {
            let [then, wanted, now] =
                [then, wanted, now].map(|content| content.assignments.get(name));
            if then == wanted {
                continue;
            }
            if then == now {
                next.assignments.remove(name);
                next.assignments.extend(wanted.map(|wanted| (name.clone(), wanted.clone())));
            } else if wanted != now {
                assignments.insert(name.clone());
            }
        }
        if resources.is_empty() && assignments.is_empty() {
            return Undone::To(Box::new(next));
        }
        Undone::Conflicts(resources, assignments)
    }
}

/// A random write of a scope.
pub(super) struct Write {
    pub(super) scope: &'static str,
    /// Whether the write removes all other resources of the scope.
    pub(super) prunes: bool,
    items: BTreeMap<Key, Item>,
    /// The new scopes of the assignment `each`.
    assignment: Option<Vec<String>>,
}

impl Write {
    pub(super) fn random(random: &mut Rng) -> Self {
        let scope = SCOPES[random.usize(0..2)];
        let n = random.usize(1..5);
        let items = (0..n).map(|_| item(random, scope)).collect();
        let assignment = (random.usize(0..6) == 0).then(|| {
            let all = [&["red", "blue"][..], &["blue", "red"], &["red"], &["blue"]];
            all[random.usize(0..4)].iter().map(|scope| (*scope).to_owned()).collect()
        });
        Self { scope, prunes: random.usize(0..3) == 0, items, assignment }
    }

    /// Returns a write that assigns both scopes to all clients.
    pub(super) fn first() -> Self {
        let both = SCOPES.map(str::to_owned).to_vec();
        Self { scope: "red", prunes: false, items: BTreeMap::new(), assignment: Some(both) }
    }

    /// Returns a write of `bytes` bytes.
    pub(super) fn large(number: u64, bytes: usize) -> Self {
        let body = json!({"@type": types::RUNTIME, "name": "large", "layer": {
            "n": number.to_string(), "x": "x".repeat(bytes)}});
        let key = ("blue".to_owned(), types::RUNTIME.to_owned(), "large".to_owned());
        let item = Item { body, ttl_ms: 0, labels: BTreeMap::new(), set_at: 0 };
        Self { scope: "blue", prunes: false, items: [(key, item)].into(), assignment: None }
    }

    pub(super) fn applied_to(&self, content: &Content) -> Content {
        let mut next = content.clone();
        if self.prunes {
            next.items.retain(|(scope, _, _), _| scope != self.scope);
        }
        next.items.extend(self.items.clone());
        next.assignments.extend(self.assignment.clone().map(|scopes| ("each".to_owned(), scopes)));
        next
    }

    pub(super) fn manifest(&self) -> String {
        let entries: Vec<Value> = self.items.values().map(Item::entry).collect();
        let mut manifest = json!({"resources": entries});
        if let Some(scopes) = &self.assignment {
            manifest["assignments"] =
                json!([{"name": "each", "priority": 1, "match": {"id": "*"}, "scopes": scopes}]);
        }
        manifest.to_string()
    }
}

fn item(random: &mut Rng, scope: &str) -> (Key, Item) {
    let (type_url, letter) = TYPES[random.usize(0..TYPES.len())];
    let (name, n) = (format!("{letter}{}", random.usize(0..NAMES)), random.usize(1..4));
    let mut body = match letter {
        "c" => json!({"name": name, "connect_timeout": format!("{n}s")}),
        "e" => json!({"cluster_name": name, "endpoints": [{"lb_endpoints": [{"endpoint":
            {"address": {"socket_address": {"address": "127.0.0.1", "port_value": n}}}}]}]}),
        "r" => {
            json!({"name": name, "response_headers_to_remove": [format!("x-{n}")]})
        }
        _ => json!({"name": name, "layer": {"n": n.to_string()}}),
    };
    body["@type"] = json!(type_url);
    let ttl_ms = if random.usize(0..4) == 0 { 3_600_000 * random.u64(1..3) } else { 0 };
    let labels = match random.usize(0..3) {
        0 => BTreeMap::from([("team".to_owned(), random.usize(0..2).to_string())]),
        _ => BTreeMap::new(),
    };
    ((scope.to_owned(), type_url.to_owned(), name), Item { body, ttl_ms, labels, set_at: 0 })
}
