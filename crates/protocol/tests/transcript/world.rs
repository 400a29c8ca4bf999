//! Runs scripts.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::Arc,
};

use bytes::Bytes;
use chancery_model::{
    Incarnation, ResourceDraft, ResourceKey, ResourceName, Revision, ScopeName, State, Transaction,
    TypeUrl, Upsert, types,
};
use chancery_protocol::{
    Config, DeltaRequest, ErrorDetail, Interest, Protocol, Request, Response, Session, SotwRequest,
    StreamKind,
};
use chancery_view::{Differ, View};

fn type_url(abbreviation: &str) -> TypeUrl {
    match abbreviation.contains('.') {
        true => types::by_alias(abbreviation).unwrap(),
        false => types::by_alias(&abbreviation.to_lowercase()).unwrap(),
    }
}

fn abbreviation(type_url: &TypeUrl) -> String {
    let known = types::properties(type_url);
    let short = known.aliases.iter().find(|alias| alias.len() <= 4 && alias.ends_with("ds"));
    short.map_or_else(|| type_url.message_name().to_owned(), |alias| alias.to_uppercase())
}

fn key(text: &str) -> ResourceKey {
    let (type_name, name) = text.split_once('/').unwrap();
    ResourceKey { type_url: type_url(type_name), name: ResourceName::new(name).unwrap() }
}

fn scoped(text: &str) -> (ScopeName, &str) {
    let (scope, rest) = text.split_once(':').unwrap_or(("default", text));
    (ScopeName::new(scope).unwrap(), rest)
}

#[derive(Default)]
struct Client {
    names: Vec<String>,
    last: Option<(String, String)>,
    accepted: String,
}

struct World {
    protocol: Protocol,
    state: State,
    scopes: Vec<ScopeName>,
    session: Session,
    differ: Differ,
    now: u64,
    clients: BTreeMap<TypeUrl, Client>,
    nonces: BTreeSet<String>,
    revision: Revision,
}

/// Runs a script on a new stream; `only` is the type of a per-type stream, empty for an aggregated one.
pub(crate) fn check(protocol: Protocol, only: &str, script: &str) {
    check_with(protocol, only, Config::DEFAULTS, script);
}

/// As [`check`], with other limits.
pub(crate) fn check_with(protocol: Protocol, only: &str, config: Config, script: &str) {
    let kind = StreamKind { protocol, type_url: (!only.is_empty()).then(|| type_url(only)) };
    let mut world = World {
        protocol,
        state: State::new(Incarnation(7)),
        scopes: vec![ScopeName::new("default").unwrap()],
        session: Session::new(kind, Arc::new(config)),
        differ: Differ::new(),
        // Not 0, and the stream is as old as the first request.
        now: 1_000_000,
        clients: BTreeMap::new(),
        nonces: BTreeSet::new(),
        revision: Revision(0),
    };
    let lines: Vec<&str> = script.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let mut at = 0;
    while at < lines.len() {
        let event = lines[at];
        let mut expected = Vec::new();
        while let Some(line) = lines.get(at + 1).and_then(|line| line.strip_prefix("<- ")) {
            expected.push(line.to_owned());
            at += 1;
        }
        at += 1;
        let found = world.run(event);
        assert_eq!(found, expected, "after `{event}` in:\n{script}");
    }
}

impl World {
    fn run(&mut self, event: &str) -> Vec<String> {
        let (verb, rest) = event.split_once(' ').unwrap_or((event, ""));
        match verb {
            "commit" => self.commit(rest),
            "scopes" => {
                self.scopes = rest.split(',').map(|name| ScopeName::new(name).unwrap()).collect();
                self.session.on_new_view();
            }
            "->" => self.request(rest),
            "ack" | "nack" => self.answer(rest, verb == "nack"),
            "wait" => {
                let until = self.now + rest.parse::<u64>().unwrap();
                // A caller sleeps until the session wants to be polled, not until anything is due.
                if let Some(wake) = self.session.wake_at(self.now).filter(|wake| *wake <= until) {
                    self.now = wake;
                    let first = self.poll();
                    if !first.is_empty() || self.now == until {
                        self.now = until;
                        return first;
                    }
                    return self.run(&format!("wait {}", until - self.now));
                }
                self.now = until;
            }
            _ => panic!("unknown event {event:?}"),
        }
        self.poll()
    }

    fn commit(&mut self, text: &str) {
        let mut transaction = Transaction::default();
        for word in text.split_whitespace() {
            if let Some(gone) = word.strip_prefix('-') {
                let (scope, rest) = scoped(gone);
                transaction.deletes.push((scope, key(rest)));
                continue;
            }
            let (scope, rest) = scoped(word);
            let mut children = rest.split('>');
            let (name, body) = children.next().unwrap().split_once('=').unwrap();
            let (body, aliases) = body.split_once('|').unwrap_or((body, ""));
            let mut draft = ResourceDraft::new(key(name), Bytes::copy_from_slice(body.as_bytes()));
            let aliases = aliases.split('|').filter(|alias| !alias.is_empty());
            draft.aliases = aliases.map(|alias| ResourceName::new(alias).unwrap()).collect();
            draft.children = children.map(key).collect();
            transaction.upserts.push(Upsert { scope, draft });
        }
        let before = self.state.clone();
        self.state = self.state.apply(&transaction).state;
        for delta in chancery_view::changed_collections(&self.differ, &before, &self.state) {
            if !self.scopes.contains(delta.scope()) {
                continue;
            }
            // As a shard does: only for the names that the session asked for.
            let names: BTreeSet<&ResourceName> = delta.names().collect();
            for interest in self.session.interest() {
                match interest {
                    Interest::Wildcard(t) if t == *delta.type_url() => {
                        self.session.on_change(&t, None);
                    }
                    Interest::Name(t, n) if t == *delta.type_url() && names.contains(&n) => {
                        self.session.on_change(&t, Some(&n));
                    }
                    _ => {}
                }
            }
        }
    }

    fn request(&mut self, text: &str) {
        let mut words = text.split_whitespace();
        let type_url = type_url(words.next().unwrap());
        let (mut sotw, mut delta) = (SotwRequest::default(), DeltaRequest::default());
        (sotw.type_url, delta.type_url) = (type_url.to_string(), type_url.to_string());
        let list = |text: &str| -> Vec<String> {
            text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
        };
        let error = ErrorDetail { code: 13, message: "rejected".to_owned() };
        for word in words {
            if word == "nack" {
                (sotw.error_detail, delta.error_detail) =
                    (Some(error.clone()), Some(error.clone()));
            } else if let Some(nonce) = word.strip_prefix('@') {
                (sotw.response_nonce, delta.response_nonce) = (nonce.into(), nonce.into());
            } else if let Some(version) = word.strip_prefix("v=") {
                sotw.version_info = version.to_owned();
            } else if let Some(held) = word.strip_prefix("irv=") {
                for entry in list(held) {
                    let (name, version) = entry.split_once('@').unwrap();
                    let shown = View::resolve(&self.state, &self.scopes).of_type(&type_url);
                    let current = || shown.get(name).unwrap().version().to_string();
                    let version = if version == "held" { current() } else { version.to_owned() };
                    delta.initial_resource_versions.push((name.to_owned(), version));
                }
            } else if let Some(names) = word.strip_prefix('+') {
                delta.subscribe = list(names);
            } else if let Some(names) = word.strip_prefix('-') {
                delta.unsubscribe = list(names);
            } else {
                sotw.resource_names = list(word);
            }
        }
        self.clients.entry(type_url).or_default().names.clone_from(&sotw.resource_names);
        self.send(match self.protocol {
            Protocol::Sotw => Request::Sotw(sotw),
            Protocol::Delta => Request::Delta(delta),
        });
    }

    fn answer(&mut self, text: &str, reject: bool) {
        let type_url = type_url(text);
        let client = self.clients.get_mut(&type_url).unwrap();
        let (nonce, version) = client.last.clone().expect("a response to answer");
        let error_detail = reject.then(|| ErrorDetail { code: 13, message: "rejected".to_owned() });
        if !reject {
            client.accepted = version;
        }
        let request = match self.protocol {
            Protocol::Sotw => Request::Sotw(SotwRequest {
                type_url: type_url.to_string(),
                version_info: client.accepted.clone(),
                resource_names: client.names.clone(),
                response_nonce: nonce,
                error_detail,
            }),
            Protocol::Delta => Request::Delta(DeltaRequest {
                type_url: type_url.to_string(),
                response_nonce: nonce,
                error_detail,
                ..DeltaRequest::default()
            }),
        };
        self.send(request);
    }

    fn send(&mut self, request: Request) {
        let view = View::resolve(&self.state, &self.scopes);
        self.session.on_request(request, Some(&view), self.now).unwrap();
        let _ = self.session.drain_interest();
    }

    fn poll(&mut self) -> Vec<String> {
        let view = View::resolve(&self.state, &self.scopes);
        let mut out = Vec::new();
        while let Some(response) = self.session.poll(Some(&view), &self.differ, self.now) {
            out.push(self.show(&response));
        }
        out
    }

    fn show(&mut self, response: &Response) -> String {
        // SOTW-10, DELTA-10, SOTW-17, SOTW-92: laws of every response.
        assert!(!response.nonce().is_empty() && self.nonces.insert(response.nonce()));
        assert!(!response.version().to_string().is_empty());
        assert!(response.revision() >= self.revision, "never an older state");
        self.revision = response.revision();
        let mut names = BTreeSet::new();
        let mut text = abbreviation(response.type_url());
        for resource in response.resources() {
            // SOTW-74, DELTA-47.
            assert!(names.insert(resource.name().clone()), "{} twice", resource.name());
            let body = String::from_utf8(resource.body().to_vec()).unwrap();
            for alias in resource.aliases().iter().filter(|_| self.protocol == Protocol::Delta) {
                assert!(names.insert(alias.clone()), "{alias} twice");
            }
            write!(text, " {}={body}", resource.name()).unwrap();
        }
        for name in response.removed() {
            assert!(names.insert(name.clone()), "{name} twice");
            write!(text, " -{name}").unwrap();
        }
        for name in response.absent() {
            assert!(names.insert(name.clone()), "{name} twice");
            write!(text, " ~{name}").unwrap();
        }
        let client = self.clients.entry(response.type_url().clone()).or_default();
        client.last = Some((response.nonce(), response.version().to_string()));
        text
    }
}
