//! Runs scripts.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use chancery_model::{
    Incarnation, Node, ResourceDraft, ResourceKey, ResourceName, Revision, ScopeName, State,
    Transaction, TypeUrl, Upsert, Version, types,
};
use chancery_protocol::{
    Config, ContentsReader, DeltaRequest, EndpointLists, ErrorDetail, InterestChange,
    LifetimeSupport, Protocol, Request, ResourceState, Response, ResumeState, Session, SotwRequest,
    StreamKind,
};
use chancery_view::{Differ, View};

fn type_url(abbreviation: &str) -> TypeUrl {
    if abbreviation.contains('.') {
        types::by_alias(abbreviation).unwrap()
    } else {
        types::by_alias(&abbreviation.to_lowercase()).unwrap()
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
    let scoped = text.split_once(':').filter(|(scope, _)| !scope.ends_with("xdstp"));
    let (scope, rest) = scoped.unwrap_or(("default", text));
    (ScopeName::new(scope).unwrap(), rest)
}

/// The client's state of one type.
#[derive(Default)]
struct Client {
    names: Vec<String>,
    last: Option<(String, String)>,
    accepted: String,
    /// The revision of the last response.
    revision: Option<Revision>,
}

/// One stream: the session and its client.
struct Stream {
    session: Session,
    clients: BTreeMap<TypeUrl, Client>,
    nonces: BTreeSet<String>,
    /// The versions of the resources that were sent with their content.
    sent: BTreeMap<(TypeUrl, ResourceName), Version>,
    /// The nonces by their names in the script.
    named_nonces: BTreeMap<String, String>,
    /// Whether a request has ended the stream with an error.
    ended: bool,
}

struct World {
    protocol: Protocol,
    config: Arc<Config>,
    state: State,
    scopes: Vec<ScopeName>,
    /// The streams by the name before the colon. The unnamed stream always exists.
    streams: BTreeMap<String, Stream>,
    /// The stream of the current event.
    at: String,
    /// The resume states that the replica has.
    resume_states: Vec<Arc<ResumeState>>,
    differ: Differ,
    now: u64,
    /// The node of the clients.
    node: Node,
    /// Whether the lifetimes of resources are renewed.
    renews: bool,
    /// The versions by their names in the script.
    named_versions: BTreeMap<String, String>,
    /// The maximum number of names that a poll visits after the last commit.
    cost: usize,
}

/// Runs a script on a new stream. `only` is the type of a stream of one type; empty for an
/// aggregated stream.
pub(crate) fn check(protocol: Protocol, only: &str, script: &str) {
    check_with(protocol, only, Config::DEFAULTS, script);
}

/// Runs a script like [`check`], with other limits.
pub(crate) fn check_with(protocol: Protocol, only: &str, config: Config, script: &str) {
    let mut world = World {
        protocol,
        config: Arc::new(config),
        state: State::new(Incarnation(7)),
        scopes: vec![ScopeName::new("default").unwrap()],
        streams: BTreeMap::new(),
        at: String::new(),
        resume_states: Vec::new(),
        differ: Differ::new(),
        // Not 0. The stream is as old as its first request.
        now: 1_000_000,
        node: Node::default(),
        renews: true,
        named_versions: BTreeMap::new(),
        cost: 0,
    };
    world.open(only);
    let lines: Vec<&str> = script.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let is_outcome =
        |line: &str| ["<- ", "= ", "! "].iter().any(|mark| bare(line).1.starts_with(mark));
    let mut at = 0;
    while at < lines.len() {
        let event = lines[at];
        let mut expected = Vec::new();
        while let Some(line) = lines.get(at + 1).filter(|line| is_outcome(line)) {
            expected.push(*line);
            at += 1;
        }
        at += 1;
        let found = world.run(event);
        let text: Vec<&str> = found.iter().map(|outcome| outcome.text.as_str()).collect();
        let wanted: Vec<String> = expected.iter().map(|line| without_marks(line)).collect();
        assert_eq!(text, wanted, "after `{event}` in:\n{script}");
        for (outcome, line) in found.iter().zip(&expected) {
            world.bind(outcome, line);
        }
    }
}

/// The encoded `policy.endpoint_stale_after` of a body, up to the number of seconds.
const STALE_AFTER: [u8; 5] = [0x22, 4, 0x22, 2, 0x08];

/// Returns the start of a body with these keys. A scope has one key, a virtual host has domains, and a listener has
/// addresses.
fn keys_prefix(of: &ResourceKey, keys: &str) -> Vec<u8> {
    let len = |field: u8, content: &[u8]| {
        [&[field << 3 | 2, u8::try_from(content.len()).unwrap()], content].concat()
    };
    let key = |key: &str| match of.type_url.as_str() {
        types::SCOPED_ROUTE => len(3, &len(1, &len(1, key.as_bytes()))),
        types::VIRTUAL_HOST => len(2, key.as_bytes()),
        types::LISTENER => len(2, &len(2, &len(1, key.as_bytes()))),
        other => panic!("{other} has no keys"),
    };
    keys.split(',').filter(|key| !key.is_empty()).flat_map(key).collect()
}

/// Removes the keys from the start of a body.
fn without_keys(mut body: &[u8]) -> &[u8] {
    while let [0x12 | 0x1a, len, rest @ ..] = body {
        body = &rest[usize::from(*len)..];
    }
    body
}

fn first_and_rest<'a>(text: &'a str, separator: &str) -> (&'a str, &'a str) {
    text.split_once(separator).unwrap_or((text, ""))
}

/// Splits a line into the name of its stream and the rest.
fn bare(line: &str) -> (&str, &str) {
    line.split_once(": ")
        .filter(|(stream, _)| stream.chars().all(|c| c.is_ascii_alphanumeric()))
        .unwrap_or(("", line))
}

/// Returns the name that a script gives to a nonce (`@A`) or to a version (`v=X`).
fn mark<'a>(word: &'a str, prefix: &str) -> Option<&'a str> {
    word.strip_prefix(prefix).filter(|name| name.starts_with(|c: char| c.is_ascii_uppercase()))
}

/// Returns the value of a name, or the word itself if it is not a name.
fn meant<'a>(names: &'a BTreeMap<String, String>, word: &'a str) -> &'a str {
    assert!(mark(word, "").is_none() || names.contains_key(word), "no value is named {word}");
    names.get(word).map_or(word, String::as_str)
}

/// Returns an expected line without the names of its nonce and its version.
fn without_marks(line: &str) -> String {
    let is_mark = |word: &str| mark(word, "@").is_some() || mark(word, "v=").is_some();
    line.split_whitespace().filter(|word| !is_mark(word)).collect::<Vec<_>>().join(" ")
}

/// An outcome of an event.
struct Outcome {
    stream: String,
    text: String,
    nonce: String,
    version: String,
}

impl World {
    /// Replaces the stream of the event by a new one.
    fn open(&mut self, only: &str) {
        let type_url = (!only.is_empty()).then(|| type_url(only));
        let kind = StreamKind { protocol: self.protocol, type_url };
        let mut session = Session::new(kind, Arc::clone(&self.config));
        session.support_lifetimes(LifetimeSupport::of(&self.node, 0));
        let stream = Stream {
            session,
            clients: BTreeMap::new(),
            nonces: BTreeSet::new(),
            sent: BTreeMap::new(),
            named_nonces: BTreeMap::new(),
            ended: false,
        };
        self.streams.insert(self.at.clone(), stream);
    }

    fn stream(&mut self) -> &mut Stream {
        self.streams.get_mut(&self.at).expect("a stream that was opened")
    }

    fn run(&mut self, event: &str) -> Vec<Outcome> {
        let (stream, event) = bare(event);
        stream.clone_into(&mut self.at);
        let (verb, rest) = event.split_once(' ').unwrap_or((event, ""));
        let mut outcomes = Vec::new();
        match verb {
            "open" => {
                self.resume_states.clear();
                self.open(rest);
            }
            "resume" => {
                let ended = self.stream().session.take_resume_state();
                self.resume_states.extend(ended.map(Arc::new));
                self.open(rest);
            }
            "commit" => self.commit(rest),
            "scopes" => {
                self.scopes = rest.split(',').map(|name| ScopeName::new(name).unwrap()).collect();
                self.streams.values_mut().for_each(|stream| stream.session.handle_new_view());
            }
            "->" => outcomes.extend(self.request(rest)),
            "ack" | "nack" => outcomes.extend(self.answer(rest, verb == "nack")),
            "features" => {
                self.node.client_features = rest.split(' ').map(str::to_owned).collect();
                let support = LifetimeSupport::of(&self.node, 0);
                let lists = EndpointLists::of(&self.node);
                self.stream().session.support_lifetimes(support);
                self.stream().session.support_endpoint_lists(lists);
            }
            "agent" => {
                rest.clone_into(&mut self.node.user_agent);
                let support = LifetimeSupport::of(&self.node, 0);
                self.stream().session.support_lifetimes(support);
            }
            "node" => rest.clone_into(&mut self.node.id),
            "renewals" => self.renews = rest == "on",
            "cost" => {
                let max = rest.parse::<usize>().unwrap();
                assert!(self.cost <= max, "a poll after the commit visits {} names", self.cost);
            }
            "status" => outcomes.push(self.status(rest)),
            "acceptance" => outcomes.push(self.acceptance()),
            "contents" => outcomes.push(self.contents(rest)),
            "wait" => {
                let until = self.now + rest.parse::<u64>().unwrap();
                // Like a real caller, it sleeps until a session asks for a poll, whether or not
                // that poll has a response.
                let now = self.now;
                let renewal = |s: &Stream| s.session.renewal_at(now).filter(|_| self.renews);
                let wakes =
                    |s: &Stream| [s.session.wake_at(now), renewal(s).map(|at| at.max(now + 1))];
                let wakes = self.streams.values().flat_map(wakes).flatten();
                if let Some(wake) = wakes.filter(|wake| *wake <= until).min() {
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
        outcomes.extend(self.poll());
        outcomes
    }

    /// Assigns the names in the script to the nonce and the version of a response. A name has one
    /// value, and two names never have the same value.
    fn bind(&mut self, outcome: &Outcome, line: &str) {
        let named_nonces = &mut self.streams.get_mut(&outcome.stream).unwrap().named_nonces;
        for word in line.split_whitespace() {
            for (prefix, names, value) in [
                ("@", &mut *named_nonces, &outcome.nonce),
                ("v=", &mut self.named_versions, &outcome.version),
            ] {
                let Some(name) = mark(word, prefix) else { continue };
                let other = names.iter().find(|(other, of)| *other != name && *of == value);
                assert_eq!(other, None, "{prefix}{name} has the value of another name in `{line}`");
                let known = names.entry(name.to_owned()).or_insert_with(|| value.clone());
                assert_eq!(known, value, "{prefix}{name} has two values, the second in `{line}`");
            }
        }
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
            let (text, aliases) = first_and_rest(children.next().unwrap(), "|");
            let (text, ttl) = first_and_rest(text, ";ttl=");
            let (text, stale_after) = first_and_rest(text, ";stale=");
            let (text, keys) = first_and_rest(text, ";key=");
            // A structured name may have `=` in its parameters.
            let (name, body) = text.rsplit_once('=').unwrap();
            let name = key(name);
            let prefix = match stale_after.parse::<u8>() {
                Ok(seconds) => [&STALE_AFTER, &[seconds][..]].concat(),
                Err(_) => keys_prefix(&name, keys),
            };
            let body = [&prefix, body.as_bytes()].concat();
            let mut draft = ResourceDraft::new(name, Bytes::from(body));
            let aliases = aliases.split('|').filter(|alias| !alias.is_empty());
            draft.aliases = aliases.map(|alias| ResourceName::new(alias).unwrap()).collect();
            draft.ttl = ttl.parse().ok().map(Duration::from_millis);
            draft.children = children.map(key).collect();
            transaction.upserts.push(Upsert { scope, draft });
        }
        let before = self.state.clone();
        self.state = self.state.apply(&transaction).state;
        for delta in chancery_view::changed_collections(&self.differ, &before, &self.state) {
            if !self.scopes.contains(delta.scope()) {
                continue;
            }
            // Like a shard, it notifies the session only of names that the session watches.
            let steps = (0..delta.n_steps()).flat_map(|step| delta.subscribed_at(step));
            let names: BTreeSet<(&ResourceName, &ResourceName)> = steps.collect();
            for Stream { session, .. } in self.streams.values_mut() {
                for interest in session.interest() {
                    match interest {
                        InterestChange::Wildcard(t) if t == *delta.type_url() => {
                            session.handle_change(&t, None);
                        }
                        InterestChange::Name(t, n) if t == *delta.type_url() => {
                            let changed = names.iter().filter(|(key, _)| **key == n);
                            changed.for_each(|(_, name)| session.handle_change(&t, Some(name)));
                        }
                        _ => {}
                    }
                }
            }
        }
        let costs = self.streams.values().map(|stream| stream.session.cost_of_poll());
        self.cost = costs.max().unwrap();
    }

    fn request(&mut self, text: &str) -> Option<Outcome> {
        let mut words = text.split_whitespace();
        let type_url = type_url(words.next().unwrap());
        let (mut sotw, mut delta) = (SotwRequest::default(), DeltaRequest::default());
        (sotw.type_url, delta.type_url) = (type_url.to_string(), type_url.to_string());
        // '' is the empty name.
        let list = |text: &str| -> Vec<String> {
            let names = text.split(',').filter(|name| !name.is_empty());
            names.map(|name| if name == "''" { String::new() } else { name.to_owned() }).collect()
        };
        for word in words {
            if let Some(code) = word.strip_prefix("nack") {
                let code = code.strip_prefix('=').map_or(13, |code| code.parse().unwrap());
                let error = ErrorDetail { code, message: "rejected".to_owned() };
                (sotw.error_detail, delta.error_detail) = (Some(error.clone()), Some(error));
            } else if let Some(nonce) = word.strip_prefix('@') {
                let nonce = meant(&self.stream().named_nonces, nonce);
                (sotw.response_nonce, delta.response_nonce) = (nonce.into(), nonce.into());
            } else if let Some(version) = word.strip_prefix("v=") {
                sotw.version_info = meant(&self.named_versions, version).to_owned();
            } else if let Some(held) = word.strip_prefix("irv=") {
                let mut versions = delta.initial_resource_versions.to_vec();
                for entry in list(held) {
                    let (name, version) = entry.split_once('@').unwrap();
                    let shown = View::resolve(&self.state, &self.scopes).of_type(&type_url);
                    let current = || shown.get(name).unwrap().version().to_string();
                    let version = if version == "held" { current() } else { version.to_owned() };
                    versions.push((name.to_owned(), version));
                }
                delta.initial_resource_versions = versions.into();
            } else if let Some(names) = word.strip_prefix('+') {
                delta.subscribe = list(names).into();
            } else if let Some(names) = word.strip_prefix('-') {
                delta.unsubscribe = list(names).into();
            } else {
                sotw.resource_names = list(word).into();
            }
        }
        let names = &mut self.stream().clients.entry(type_url).or_default().names;
        *names = sotw.resource_names.to_vec();
        self.send(match self.protocol {
            Protocol::Sotw => Request::Sotw(sotw),
            Protocol::Delta => Request::Delta(delta),
            Protocol::Mcp => unreachable!("a test of xDS"),
        })
    }

    fn answer(&mut self, text: &str, reject: bool) -> Option<Outcome> {
        let (type_name, code) = text.split_once(' ').unwrap_or((text, "13"));
        let type_url = type_url(type_name);
        let client = self.stream().clients.get_mut(&type_url).unwrap();
        let (nonce, version) = client.last.clone().expect("a response to answer");
        let code = code.parse().unwrap();
        let error_detail = reject.then(|| ErrorDetail { code, message: "rejected".to_owned() });
        if !reject {
            client.accepted = version;
        }
        let sotw = SotwRequest {
            type_url: type_url.to_string(),
            version_info: client.accepted.clone(),
            resource_names: client.names.clone().into(),
            response_nonce: nonce.clone(),
            error_detail: error_detail.clone(),
        };
        self.send(match self.protocol {
            Protocol::Sotw => Request::Sotw(sotw),
            Protocol::Delta => Request::Delta(DeltaRequest {
                type_url: type_url.to_string(),
                response_nonce: nonce,
                error_detail,
                ..DeltaRequest::default()
            }),
            Protocol::Mcp => unreachable!("a test of xDS"),
        })
    }

    fn view(&self) -> View {
        View::resolve(&self.state, &self.scopes).with_node(Arc::new(self.node.clone()))
    }

    fn send(&mut self, request: Request) -> Option<Outcome> {
        let view = self.view();
        let (now, resume_states) = (self.now, self.resume_states.clone());
        let stream = self.stream();
        let taken = stream.session.handle_request(request, Some(&view), now);
        if let Some(receipt) = taken.as_ref().ok()
            && stream.session.needs_resume_state(&receipt.type_url)
        {
            stream.session.resume_from(&receipt.type_url, &resume_states);
        }
        let error = taken.err();
        let _ = stream.session.drain_interest();
        stream.ended |= error.is_some();
        error.map(|error| self.outcome(format!("! {error}")))
    }

    fn outcome(&self, text: String) -> Outcome {
        let at = self.at.clone();
        let text = if at.is_empty() { text } else { format!("{at}: {text}") };
        Outcome { stream: at, text, nonce: String::new(), version: String::new() }
    }

    /// Returns the status that the session reports for a type.
    fn status(&mut self, text: &str) -> Outcome {
        let type_url = type_url(text);
        let all = self.stream().session.status();
        let status = all.into_iter().find(|status| status.type_url == type_url).unwrap();
        let mut text = format!("= {text} {}", format!("{:?}", status.state).to_lowercase());
        for (what, version) in [("sent", status.sent), ("acked", status.acked)] {
            let Some(version) = version.map(|version| version.to_string()) else { continue };
            let named = self.named_versions.iter().find(|(_, of)| **of == version);
            write!(text, " {what}={}", named.map_or(&version, |(name, _)| name)).unwrap();
        }
        if let Some(nack) = status.nack {
            write!(text, " nack={} {}", nack.code, nack.message).unwrap();
        }
        self.outcome(text)
    }

    /// Returns what the session reports about the client's acceptance of the last commit.
    fn acceptance(&mut self) -> Outcome {
        let revision = self.state.revision;
        let session = &self.stream().session;
        let all = session.acceptance(revision).map(|(type_url, acceptance)| {
            format!(" {}:{}", abbreviation(type_url), format!("{acceptance:?}").to_lowercase())
        });
        let text = format!("={}", all.collect::<String>());
        self.outcome(text)
    }

    /// Returns the name that the transcript gave to a version.
    fn name_of_version<'a>(&'a self, version: &'a str) -> &'a str {
        let named = self.named_versions.iter().find(|(_, of)| *of == version);
        named.map_or(version, |(name, _)| name)
    }

    /// Returns the resources that the session reports for a type, read in pages of two names.
    fn contents(&mut self, text: &str) -> Outcome {
        let (type_url, now) = (type_url(text), self.now);
        let view = self.view();
        let (mut reader, mut after) = (ContentsReader::default(), None);
        let mut text = format!("= {text}");
        loop {
            let session = &self.stream().session;
            let page = session.contents(&type_url, Some(&view), after.as_ref(), 2, now).unwrap();
            assert!(page.len() <= 2);
            after = page.next().cloned();
            for one in reader.read(page) {
                let state = format!("{:?}", one.state).to_lowercase();
                write!(text, " {}", one.name).unwrap();
                if let Some(resource) = &one.resource {
                    write!(
                        text,
                        "={}",
                        String::from_utf8(resource.body().unwrap().to_vec()).unwrap()
                    )
                    .unwrap();
                }
                write!(text, ":{state}").unwrap();
                if self.protocol == Protocol::Delta {
                    let own = one.resource.as_ref().map(|r| r.version().to_string());
                    assert_eq!(one.version, own.unwrap_or_default(), "CSDS-10");
                } else if !one.version.is_empty() {
                    write!(text, "@{}", self.name_of_version(&one.version)).unwrap();
                }
                let same = one.unchanged_since.filter(|_| one.state == ResourceState::Rejected);
                if let Some(version) = same {
                    write!(text, ",same@{}", self.name_of_version(&version)).unwrap();
                }
            }
            if after.is_none() {
                return self.outcome(text);
            }
        }
    }

    fn poll(&mut self) -> Vec<Outcome> {
        let view = self.view();
        let mut out = Vec::new();
        for at in self.streams.keys().cloned().collect::<Vec<_>>() {
            self.at.clone_from(&at);
            while !self.streams[&at].ended
                && let Stream { session, .. } = self.streams.get_mut(&at).unwrap()
                && let renewal = session.renewal_at(self.now).filter(|_| self.renews)
                && let Some(response) = renewal
                    .and_then(|_| session.renew(&self.differ, self.now))
                    .or_else(|| session.poll(Some(&view), &self.differ, self.now))
            {
                let text = self.show(&response);
                let mut outcome = self.outcome(format!("<- {text}"));
                outcome.nonce = response.nonce();
                outcome.version = response.version().to_string();
                out.push(outcome);
            }
        }
        out
    }

    fn show(&mut self, response: &Response) -> String {
        let protocol = self.protocol;
        let stream = self.stream();
        // SOTW-10, DELTA-10, SOTW-17, SOTW-92: rules for every response.
        assert!(!response.nonce().is_empty() && stream.nonces.insert(response.nonce()));
        assert!(!response.version().to_string().is_empty());
        let mut names = BTreeSet::new();
        let mut text = abbreviation(response.type_url());
        for resource in response.resources() {
            // SOTW-74, DELTA-47.
            assert!(names.insert(resource.name().clone()), "{} twice", resource.name());
            let body = resource.body().unwrap();
            let content = body.strip_prefix(&STALE_AFTER).map_or(&*body, |rest| &rest[1..]);
            let content = without_keys(content);
            let body = String::from_utf8(content.to_vec()).unwrap();
            for alias in resource.aliases().iter().filter(|_| protocol == Protocol::Delta) {
                assert!(names.insert(alias.clone()), "{alias} twice");
            }
            write!(text, " {}={body}", response.name_of(resource)).unwrap();
            if let Some(ttl) = resource.ttl().filter(|_| response.has_lifetimes()) {
                write!(text, ";ttl={}", ttl.as_millis()).unwrap();
            }
        }
        for resource in response.heartbeats() {
            assert!(names.insert(resource.name().clone()), "{} twice", resource.name());
            // TTL-04.
            let known = stream.sent.get(&(response.type_url().clone(), resource.name().clone()));
            assert_eq!(known, Some(&resource.version()), "a heartbeat for {}", resource.name());
            write!(text, " {};ttl={}", resource.name(), resource.ttl().unwrap().as_millis())
                .unwrap();
        }
        for resource in response.resources() {
            let key = (response.type_url().clone(), resource.name().clone());
            stream.sent.insert(key, resource.version());
        }
        for name in response.removed() {
            assert!(names.insert(name.clone()), "{name} twice");
            write!(text, " -{name}").unwrap();
        }
        for name in response.absent() {
            assert!(names.insert(name.clone()), "{name} twice");
            write!(text, " ~{name}").unwrap();
        }
        for name in response.errors() {
            // ERR-03, ERR-09: in delta, the removal is beside the error.
            let is_removed = response.removed().contains(name);
            assert_eq!(is_removed, protocol == Protocol::Delta, "{name}");
            assert!(is_removed || names.insert(name.clone()), "{name} twice");
            write!(text, " ?{name}").unwrap();
        }
        let client = stream.clients.entry(response.type_url().clone()).or_default();
        let revision = Some(response.revision());
        assert!(revision >= client.revision, "the response is older than the previous one");
        client.revision = revision;
        client.last = Some((response.nonce(), response.version().to_string()));
        text
    }
}
