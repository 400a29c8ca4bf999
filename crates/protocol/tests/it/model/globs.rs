//! Random walks of a delta client with names, glob collections and the wildcard, over structured names
//! in several spellings. At the end, the client must hold exactly what it subscribes to.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use chancery_model::{
    Incarnation, ResourceDraft, ResourceKey, ResourceName, ScopeName, State, StructuredName,
    Transaction, TypeUrl, Upsert, canonical_name, types::CLUSTER,
};
use chancery_protocol::{
    Config, DeltaRequest, InterestChange, Protocol, Request, Response, Session, StreamKind,
};
use chancery_view::{Differ, View, changed_collections};

use crate::model::rng::Rng;

const CASES: u64 = 300;
const STEPS: usize = 60;

/// The canonical names of all resources that may exist.
fn resource_names() -> Vec<String> {
    let structured = ["p/a", "p/b", "p/c/d", "q/a"].iter().flat_map(|id| {
        ["", "?k=1&l=2"].map(|rest| format!("xdstp://m/envoy.config.cluster.v3.Cluster/{id}{rest}"))
    });
    structured.chain(["n0", "n1"].map(str::to_owned)).collect()
}

fn glob_names() -> Vec<String> {
    let globs = ["p/*", "p/*?k=1&l=2", "p/c/*", "q/*", "r/*"];
    globs.map(|id| format!("xdstp://m/envoy.config.cluster.v3.Cluster/{id}")).to_vec()
}

/// A client, its server, and what both know.
struct Walk {
    rng: Rng,
    state: State,
    scopes: Vec<ScopeName>,
    session: Session,
    differ: Differ,
    now: u64,
    body: u64,
    /// The client's subscriptions, by canonical name, with its spelling.
    wanted: BTreeMap<String, String>,
    held: BTreeMap<String, String>,
    unanswered: Vec<String>,
}

impl Walk {
    fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            state: State::new(Incarnation(1)),
            scopes: vec![scope(0)],
            session: session(),
            differ: Differ::new(),
            now: 1_000,
            body: 0,
            wanted: BTreeMap::new(),
            held: BTreeMap::new(),
            unanswered: Vec::new(),
        }
    }

    fn view(&self) -> View {
        View::resolve(&self.state, &self.scopes)
    }

    fn is_wanted(&self, name: &str) -> bool {
        let is_member = StructuredName::parse(name)
            .is_ok_and(|parsed| self.wanted.contains_key(&parsed.collection()));
        self.wanted.contains_key("*") || self.wanted.contains_key(name) || is_member
    }

    /// Changes and removes a few resources.
    fn commit(&mut self) {
        let names = resource_names();
        let mut transaction = Transaction::default();
        for at in self.rng.some(3, names.len()).into_iter().collect::<BTreeSet<_>>() {
            let (key, scope) = (key(&names[at]), scope(self.rng.below(2)));
            if self.rng.percent(40) {
                transaction.deletes.push((scope, key));
            } else {
                self.body += 1;
                let draft = ResourceDraft::new(key, Bytes::from(self.body.to_string()));
                transaction.upserts.push(Upsert { scope, draft });
            }
        }
        let before = std::mem::replace(&mut self.state, State::new(Incarnation(1)));
        self.state = before.apply(&transaction).state;
        let is_exact = self.rng.percent(70);
        for delta in changed_collections(&self.differ, &before, &self.state) {
            if !self.scopes.contains(delta.scope()) {
                continue;
            }
            if !is_exact {
                self.session.handle_changes(&delta);
                continue;
            }
            for interest in self.session.interest() {
                let steps = (0..delta.n_steps()).flat_map(|step| delta.subscribed_at(step));
                match interest {
                    InterestChange::Wildcard(url) => self.session.handle_change(&url, None),
                    InterestChange::Name(url, name) => steps
                        .filter(|(key, _)| **key == name)
                        .for_each(|(_, name)| self.session.handle_change(&url, Some(name))),
                    InterestChange::NoName(..) | InterestChange::NoWildcard(_) => {}
                }
            }
        }
    }

    fn change_scopes(&mut self) {
        let all = [vec![0], vec![0, 1], vec![1, 0], vec![1]];
        self.scopes = all[self.rng.below(4)].iter().map(|n| scope(*n)).collect();
        self.session.handle_new_view();
    }

    /// Returns a random spelling of a canonical name.
    fn spell(&mut self, name: &str) -> String {
        match self.rng.below(3) {
            0 => name.replace("//m/", "//%6d/").replace("?k=1&l=2", "?l=2&k=1"),
            1 if name.starts_with("xdstp:") => format!("{name}#entry=x"),
            _ => name.to_owned(),
        }
    }

    /// Subscribes and unsubscribes at random.
    fn request(&mut self) {
        let names: Vec<String> =
            resource_names().into_iter().chain(glob_names()).chain(["*".to_owned()]).collect();
        let (mut subscribe, mut unsubscribe) = (Vec::new(), Vec::new());
        for at in self.rng.some(3, names.len()).into_iter().collect::<BTreeSet<_>>() {
            let spelling = self.spell(&names[at]);
            if self.rng.percent(45) {
                unsubscribe.push(spelling);
                self.wanted.remove(&names[at]);
            } else {
                let urn = spelling.split('#').next().unwrap_or_default().to_owned();
                subscribe.push(spelling);
                self.wanted.insert(names[at].clone(), urn);
            }
        }
        if subscribe.is_empty() && unsubscribe.is_empty() {
            return;
        }
        // A client drops what it no longer subscribes to.
        let mut held = std::mem::take(&mut self.held);
        held.retain(|name, _| self.is_wanted(name));
        self.held = held;
        let nonce = self.rng.percent(50).then(|| self.unanswered.pop()).flatten();
        self.send(DeltaRequest {
            type_url: CLUSTER.to_owned(),
            subscribe: subscribe.into(),
            unsubscribe: unsubscribe.into(),
            response_nonce: nonce.unwrap_or_default(),
            ..DeltaRequest::default()
        });
    }

    fn send(&mut self, request: DeltaRequest) {
        let view = self.view();
        self.session.handle_request(Request::Delta(request), Some(&view), self.now).unwrap();
        let _ = self.session.drain_interest();
    }

    /// The client reconnects with what it holds.
    fn reconnect(&mut self) {
        self.session = session();
        self.unanswered.clear();
        let view = self.view().of_type(&TypeUrl::from_static(CLUSTER));
        let version = |(name, body): (&String, &String)| {
            let current =
                view.get(name).filter(|resource| resource.body().unwrap() == body.as_bytes());
            let version = current.map_or("1-0".to_owned(), |found| found.version().to_string());
            (name.clone(), version)
        };
        let versions: Vec<_> = self.held.iter().map(version).collect();
        let subscribe: Vec<String> = self.wanted.values().cloned().collect();
        // Without any list, the request would be for the wildcard.
        let unsubscribe = if subscribe.is_empty() { vec!["*".to_owned()] } else { Vec::new() };
        self.send(DeltaRequest {
            type_url: CLUSTER.to_owned(),
            subscribe: subscribe.into(),
            unsubscribe: unsubscribe.into(),
            initial_resource_versions: versions.into(),
            ..DeltaRequest::default()
        });
    }

    fn poll(&mut self) -> bool {
        let view = self.view();
        let Some(response) = self.session.poll(Some(&view), &self.differ, self.now) else {
            return false;
        };
        self.unanswered.push(response.nonce());
        self.take(&response);
        true
    }

    fn take(&mut self, response: &Response) {
        let mut seen = BTreeSet::new();
        for resource in response.resources() {
            let (name, sent_as) = (resource.name().to_string(), response.name_of(resource));
            if let Some(spelling) = self.wanted.get(&name) {
                assert_eq!(sent_as.as_str(), spelling, "XDSTP-03");
            }
            assert!(seen.insert(name.clone()), "DELTA-47: {name}");
            if self.is_wanted(&name) {
                let body = String::from_utf8(resource.body().unwrap().to_vec()).unwrap();
                self.held.insert(name, body);
            }
        }
        for name in response.removed() {
            let name = canonical_name(name.as_str()).into_owned();
            assert!(seen.insert(name.clone()), "DELTA-47: {name}");
            self.held.remove(&name);
        }
    }

    fn finish(&mut self) {
        loop {
            while self.poll() {}
            let Some(nonce) = self.unanswered.pop() else { break };
            self.unanswered.clear();
            let type_url = CLUSTER.to_owned();
            self.send(DeltaRequest { type_url, response_nonce: nonce, ..DeltaRequest::default() });
        }
        let view = self.view().of_type(&TypeUrl::from_static(CLUSTER));
        let wanted = view.iter().filter(|resource| self.is_wanted(resource.name().as_str()));
        let body = |body: Bytes| String::from_utf8(body.to_vec()).unwrap();
        let wanted: BTreeMap<String, String> =
            wanted.map(|one| (one.name().to_string(), body(one.body().unwrap()))).collect();
        assert_eq!(self.held, wanted, "with {:?}", self.wanted);
    }
}

fn session() -> Session {
    let type_url = Some(TypeUrl::from_static(CLUSTER));
    Session::new(StreamKind { protocol: Protocol::Delta, type_url }, Arc::new(Config::DEFAULTS))
}

fn scope(n: usize) -> ScopeName {
    ScopeName::new(["a", "b"][n]).unwrap()
}

fn key(name: &str) -> ResourceKey {
    ResourceKey { type_url: TypeUrl::from_static(CLUSTER), name: ResourceName::new(name).unwrap() }
}

/// XDSTP-03, XDSTP-15, XDSTP-16, XDSTP-18, DELTA-47, DELTA-52: after any walk, the client holds exactly the
/// resources that it subscribes to by name, by collection or by the wildcard.
#[test]
fn client_with_globs_converges_after_any_walk() {
    for seed in 0..CASES {
        let mut walk = Walk::new(seed);
        walk.commit();
        for _ in 0..STEPS {
            match walk.rng.below(20) {
                0..6 => walk.commit(),
                6..12 => walk.request(),
                12 => walk.reconnect(),
                13 => walk.change_scopes(),
                14 => walk.now += 6_000,
                _ => drop(walk.poll()),
            }
        }
        let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| walk.finish()));
        assert!(seen.is_ok(), "case {seed}");
    }
}
