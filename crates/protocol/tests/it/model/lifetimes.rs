//! Lifetimes: a client with timers, whose server is prompt.
//!
//! Random commits publish resources with and without lifetimes. The client accepts or rejects each
//! response after a short time. It checks every response and its timers.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use chancery_model::{
    Incarnation, Node, ResourceDraft, ResourceKey, ResourceName, ScopeName, State, Transaction,
    TypeUrl, Upsert, Version, types,
};
use chancery_protocol::{
    Config, DeltaRequest, ErrorDetail, LifetimeSupport, Protocol, Request, Response, Session,
    SotwRequest, StreamKind,
};
use chancery_view::{Differ, View, changed_collections};

use crate::model::rng::Rng;

/// The time within which the client answers, in milliseconds.
const ANSWER_MS: usize = 200;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// A resource at the client.
#[derive(Debug, Clone)]
struct Held {
    /// Delta: the version of the resource. SotW: that of the response.
    version: String,
    resource: Version,
    body: Bytes,
    ttl: Option<Duration>,
    /// The time of the last response with the resource or a heartbeat.
    renewed_at: u64,
    /// The time of the last response with the content.
    content_at: u64,
    is_rejected: bool,
}

struct Walk {
    protocol: Protocol,
    type_url: TypeUrl,
    rng: Rng,
    state: State,
    session: Session,
    differ: Differ,
    now: u64,
    held: BTreeMap<ResourceName, Held>,
    /// The responses to answer, each with the time and the names.
    pending: VecDeque<(u64, String, Vec<ResourceName>)>,
    n_heartbeats: usize,
}

fn scope() -> ScopeName {
    ScopeName::new("default").unwrap()
}

impl Walk {
    fn new(protocol: Protocol, type_url: &'static str, seed: u64) -> Self {
        let mut session =
            Session::new(StreamKind { protocol, type_url: None }, Arc::new(Config::DEFAULTS));
        let features = ["xds.config.supports-resource-ttl", "xds.config.resource-in-sotw"];
        let client_features = features.map(str::to_owned).to_vec();
        let node = Node { client_features, ..Node::default() };
        session.support_lifetimes(LifetimeSupport::of(&node, seed));
        Self {
            protocol,
            type_url: TypeUrl::from_static(type_url),
            rng: Rng::new(seed),
            state: State::new(Incarnation(7)),
            session,
            differ: Differ::new(),
            now: 1_000_000,
            held: BTreeMap::new(),
            pending: VecDeque::new(),
            n_heartbeats: 0,
        }
    }

    fn is_full_state(&self) -> bool {
        self.protocol == Protocol::Sotw && self.type_url.as_str() == types::CLUSTER
    }

    fn request(&mut self, nonce: &str, error_detail: Option<ErrorDetail>) {
        let is_wildcard = self.type_url.as_str() == types::CLUSTER;
        let is_first = nonce.is_empty();
        let names = NAMES.iter().map(|name| (*name).to_owned());
        let names: Vec<String> = names.filter(|_| !is_wildcard).collect();
        let (type_url, response_nonce) = (self.type_url.to_string(), nonce.to_owned());
        let request = match self.protocol {
            Protocol::Sotw => Request::Sotw(SotwRequest {
                type_url,
                resource_names: names.into(),
                response_nonce,
                error_detail,
                ..SotwRequest::default()
            }),
            Protocol::Delta => Request::Delta(DeltaRequest {
                type_url,
                subscribe: if is_first { names } else { vec![] }.into(),
                response_nonce,
                error_detail,
                ..DeltaRequest::default()
            }),
            Protocol::Mcp => unreachable!("a test of xDS"),
        };
        let view = View::resolve(&self.state, &[scope()]);
        self.session.handle_request(request, Some(&view), self.now).unwrap();
    }

    fn commit(&mut self) {
        let name = ResourceName::new(NAMES[self.rng.below(NAMES.len())]).unwrap();
        let key = ResourceKey { type_url: self.type_url.clone(), name };
        let mut transaction = Transaction::default();
        if self.rng.percent(15) {
            transaction.deletes.push((scope(), key));
        } else {
            let body = Bytes::from(self.rng.below(3).to_string());
            let mut draft = ResourceDraft::new(key, body);
            let ttls = [None, Some(1_500), Some(3_000), Some(9_000)];
            draft.ttl = ttls[self.rng.below(ttls.len())].map(Duration::from_millis);
            transaction.upserts.push(Upsert { scope: scope(), draft });
        }
        let next = self.state.apply(&transaction).state;
        let before = std::mem::replace(&mut self.state, next);
        for delta in changed_collections(&self.differ, &before, &self.state) {
            self.session.handle_changes(&delta);
        }
    }

    /// Takes all responses that the session sends now.
    fn poll(&mut self) {
        let view = View::resolve(&self.state, &[scope()]);
        loop {
            let response = self.session.renew(&self.differ, self.now);
            let response =
                response.or_else(|| self.session.poll(Some(&view), &self.differ, self.now));
            let Some(response) = response else { return };
            self.read(&response);
        }
    }

    fn read(&mut self, response: &Response) {
        let type_version = response.version().to_string();
        let of = |resource: &chancery_model::Resource| match response.protocol() {
            Protocol::Sotw => type_version.clone(),
            Protocol::Delta => resource.version().to_string(),
            Protocol::Mcp => unreachable!("a test of xDS"),
        };
        let mut names = Vec::new();
        for resource in response.heartbeats() {
            self.n_heartbeats += 1;
            let held = self.held.get_mut(resource.name()).expect("TTL-04: it was not sent");
            assert!(!held.is_rejected, "TTL-04: a heartbeat for the rejected {resource:?}");
            assert_eq!(held.version, of(resource), "TTL-03: the version of {resource:?}");
            assert_eq!(held.body, resource.body().unwrap(), "TTL-03: the content of {resource:?}");
            let ttl = resource.ttl().expect("TTL-03: a heartbeat has a lifetime");
            // TTL-13. In a full state, the lifetimes of all resources are renewed together.
            let since_content = Duration::from_millis(self.now - held.content_at);
            let is_early = since_content < ttl / 4 && self.protocol == Protocol::Delta;
            assert!(!is_early, "TTL-13: {resource:?} was sent {since_content:?} before");
            (held.ttl, held.renewed_at) = (Some(ttl), self.now);
            names.push(resource.name().clone());
        }
        for resource in response.resources() {
            let held = Held {
                version: of(resource),
                resource: resource.version(),
                body: resource.body().unwrap(),
                ttl: resource.ttl(),
                renewed_at: self.now,
                content_at: self.now,
                is_rejected: false,
            };
            self.held.insert(resource.name().clone(), held);
            names.push(resource.name().clone());
        }
        for name in response.removed() {
            self.held.remove(name);
        }
        if self.is_full_state() {
            self.held.retain(|name, _| names.contains(name));
        }
        let at = self.now + 1 + self.rng.below(ANSWER_MS) as u64;
        self.pending.push_back((at, response.nonce(), names));
    }

    fn answer(&mut self) {
        while let Some((_, nonce, names)) = self.pending.pop_front_if(|(at, ..)| *at <= self.now) {
            let rejects = self.rng.percent(10);
            let error = ErrorDetail { code: 13, message: "no".to_owned() };
            self.request(&nonce, rejects.then_some(error));
            for name in names {
                if let Some(held) = self.held.get_mut(&name) {
                    held.is_rejected = rejects;
                }
            }
        }
    }

    /// TTL-08, TTL-12: checks that no lifetime is close to its end.
    fn check_timers(&self) {
        let view = View::resolve(&self.state, &[scope()]).of_type(&self.type_url);
        for (name, held) in &self.held {
            let is_current =
                view.get(name.as_str()).is_some_and(|one| one.version() == held.resource);
            let Some(ttl) = held.ttl.filter(|_| is_current && !held.is_rejected) else { continue };
            let age = Duration::from_millis(self.now - held.renewed_at);
            let max = ttl / 3 + Duration::from_millis(ANSWER_MS as u64);
            assert!(age <= max, "TTL-08: {name} was renewed {age:?} ago: {held:?}");
        }
    }

    fn run(mut self, steps: usize) -> usize {
        self.request("", None);
        for _ in 0..steps {
            if self.rng.percent(30) {
                self.commit();
            }
            let end = self.now + self.rng.below(700) as u64;
            loop {
                self.poll();
                self.answer();
                self.poll();
                self.check_timers();
                let wakes = [
                    self.session.wake_at(self.now),
                    self.session.renewal_at(self.now),
                    self.pending.front().map(|(at, ..)| *at),
                ];
                match wakes.into_iter().flatten().min().filter(|at| *at <= end) {
                    Some(at) => {
                        assert!(at > self.now, "the session asks for a poll that has no effect");
                        self.now = at;
                    }
                    None => break,
                }
            }
            self.now = end;
        }
        self.n_heartbeats
    }
}

/// TTL-03, TTL-04, TTL-08, TTL-13: no heartbeat is wrong, and no lifetime comes close to its end.
#[test]
fn lifetimes_of_a_prompt_client_never_end() {
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        for type_url in [types::CLUSTER, types::ENDPOINT] {
            let of_seed = |seed| Walk::new(protocol, type_url, seed).run(200);
            let n_heartbeats: usize = (0..10).map(of_seed).sum();
            assert!(n_heartbeats > 100, "{n_heartbeats} heartbeats of {protocol:?} {type_url}");
        }
    }
}
