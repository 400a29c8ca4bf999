//! The author, the session and the client of one case.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use chancery_model::{
    Incarnation, ResourceDraft, ResourceKey, ResourceName, ScopeName, State, Transaction, TypeUrl,
    Upsert, types,
};
use chancery_protocol::{
    Config, DeltaRequest, ErrorDetail, Protocol, Request, Response, ResumeState, Session,
    SotwRequest, StreamKind,
};
use chancery_view::{Differ, View};

use crate::exclusion::client::{Client, Item, Reply};

const KEYS: u8 = 4;
const STEPS: usize = 40;
/// The maximum number of responses that follow the last event.
const SETTLING_MAX: usize = 60;

pub(crate) struct World {
    protocol: Protocol,
    child: TypeUrl,
    parent: TypeUrl,
    seed: u64,
    random: u64,
    config: Arc<Config>,
    state: State,
    session: Session,
    differ: Differ,
    now: u64,
    client: Client,
    /// The author's resources of the child type.
    view: BTreeMap<String, Item>,
    n_names: usize,
    /// Whether the client rejected a response while a later one was on its way. The later one was built without
    /// knowledge of the rejection.
    is_overtaken: bool,
    pub(crate) is_shown: bool,
}

fn scope() -> ScopeName {
    ScopeName::new("default").unwrap()
}

/// Encodes a field with a length.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(content.len()).unwrap()], content].concat()
}

impl World {
    pub(crate) fn new(
        protocol: Protocol,
        child: &'static str,
        parent: &'static str,
        seed: u64,
    ) -> Self {
        let mut world = Self {
            protocol,
            child: TypeUrl::from_static(child),
            parent: TypeUrl::from_static(parent),
            seed,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            config: Arc::new(Config::DEFAULTS),
            state: State::new(Incarnation(7)),
            session: Session::new(
                StreamKind { protocol, type_url: None },
                Arc::new(Config::DEFAULTS),
            ),
            differ: Differ::new(),
            now: 1_000_000,
            client: Client::default(),
            view: BTreeMap::new(),
            n_names: 0,
            is_overtaken: false,
            is_shown: false,
        };
        let response_bytes_target = if world.below(2) == 0 { 1 } else { 3 << 20 };
        let first_state_listed_max = if world.below(2) == 0 { 1 } else { 1000 };
        let config = Config { response_bytes_target, first_state_listed_max, ..Config::DEFAULTS };
        world.config = Arc::new(config);
        world
    }

    /// Returns a number below `n`.
    fn below(&mut self, n: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        usize::try_from((mixed ^ (mixed >> 27)) % n as u64).unwrap()
    }

    fn show(&self, text: impl Fn() -> String) {
        if self.is_shown {
            use std::io::Write as _;
            drop(writeln!(std::io::stderr(), "{} {}", self.now, text()));
        }
    }

    fn body(&self, item: Item) -> Vec<u8> {
        let key = [b'a' + item.key];
        let key = if self.child.as_str() == types::SCOPED_ROUTE {
            field(3, &field(1, &field(1, &key)))
        } else {
            field(2, &key)
        };
        [key, vec![0x78, item.content]].concat()
    }

    fn upsert(&self, type_url: &TypeUrl, name: &str, body: Vec<u8>) -> Upsert {
        let key =
            ResourceKey { type_url: type_url.clone(), name: ResourceName::new(name).unwrap() };
        Upsert { scope: scope(), draft: ResourceDraft::new(key, Bytes::from(body)) }
    }

    /// Publishes a new view of the child type, and the parent with this content.
    fn commit(&mut self, view: BTreeMap<String, Item>, parent: Option<u8>) {
        self.show(|| format!("commit {view:?} {parent:?}"));
        let mut transaction = Transaction::default();
        for (name, item) in &view {
            transaction.upserts.push(self.upsert(&self.child, name, self.body(*item)));
        }
        for name in self.view.keys().filter(|name| !view.contains_key(*name)) {
            let name = ResourceName::new(name).unwrap();
            let key = ResourceKey { type_url: self.child.clone(), name };
            transaction.deletes.push((scope(), key));
        }
        if let Some(content) = parent {
            transaction.upserts.push(self.upsert(&self.parent, "parent", vec![0x78, content]));
        }
        self.view = view;
        self.state = self.state.apply(&transaction).state;
        self.session.handle_new_view();
        self.poll();
    }

    /// Takes every response that can be sent now.
    fn poll(&mut self) -> usize {
        let view = View::resolve(&self.state, &[scope()]);
        let mut n = 0;
        while let Some(response) = self.session.poll(Some(&view), &self.differ, self.now) {
            n += 1;
            assert!(n < 1_000, "seed {}: responses without end", self.seed);
            self.receive(&response);
        }
        n
    }

    fn receive(&mut self, response: &Response) {
        let names = response.removed().iter().map(|name| name.as_str().to_owned());
        let (nonce, version) = (response.nonce(), response.version().to_string());
        if *response.type_url() == self.parent {
            let is_bad = |body: Bytes| body.last().is_some_and(|last| last.is_multiple_of(10));
            let is_valid = !response.resources().any(|one| one.body().is_some_and(is_bad));
            self.client.parents.push_back((nonce, version, is_valid));
            return;
        }
        let item = |body: Bytes| {
            let n = body.len();
            Item { key: body[n - 3] - b'a', content: body[n - 1] }
        };
        let resources = response.resources().map(|one| {
            let name = one.name().as_str().to_owned();
            (name, item(one.body().unwrap()), one.version().to_string())
        });
        let keys = self.view.values().map(|item| item.key).collect();
        let (resources, removed) = (resources.collect(), names.collect());
        let reply = Reply { nonce, version, resources, removed, keys };
        self.show(|| format!("<- {reply:?}"));
        self.client.inbox.push_back(reply);
    }

    fn request(&mut self, delta: DeltaRequest, sotw: SotwRequest) {
        let view = View::resolve(&self.state, &[scope()]);
        let request = match self.protocol {
            Protocol::Delta => Request::Delta(delta),
            Protocol::Sotw | Protocol::Mcp => Request::Sotw(sotw),
        };
        self.session.handle_request(request, Some(&view), self.now).unwrap();
        self.poll();
    }

    fn answer(&mut self, type_url: String, nonce: String, version: String, accepts: bool) {
        let error = ErrorDetail { code: 13, message: "no".to_owned() };
        let error_detail = (!accepts).then_some(error);
        let resource_names = self.names_of(&type_url).into();
        let sotw = SotwRequest {
            type_url: type_url.clone(),
            version_info: version,
            response_nonce: nonce.clone(),
            error_detail: error_detail.clone(),
            resource_names,
        };
        let delta = DeltaRequest {
            type_url,
            response_nonce: nonce,
            error_detail,
            ..DeltaRequest::default()
        };
        self.request(delta, sotw);
    }

    /// Returns the names to which the client subscribes; none for a wildcard.
    fn names_of(&self, type_url: &str) -> Vec<String> {
        let is_named = type_url == types::ROUTE;
        is_named.then(|| "parent".to_owned()).into_iter().collect()
    }

    /// Opens a stream with what the client has.
    fn open(&mut self, resume: Option<Arc<ResumeState>>) {
        let kind = StreamKind { protocol: self.protocol, type_url: None };
        self.session = Session::new(kind, Arc::clone(&self.config));
        for type_url in [self.parent.to_string(), self.child.to_string()] {
            let is_child = type_url == self.child.as_str();
            let names = self.names_of(&type_url);
            let held = self.client.held.iter().filter(|_| is_child);
            let held: Vec<(String, String)> =
                held.map(|(name, (_, version))| (name.clone(), version.clone())).collect();
            let delta = DeltaRequest {
                type_url: type_url.clone(),
                subscribe: names.clone().into(),
                initial_resource_versions: held.into(),
                ..DeltaRequest::default()
            };
            let accepted =
                if is_child { &self.client.accepted } else { &self.client.accepted_parent };
            let sotw = SotwRequest {
                type_url: type_url.clone(),
                version_info: accepted.clone(),
                resource_names: names.into(),
                ..SotwRequest::default()
            };
            let view = View::resolve(&self.state, &[scope()]);
            let request = match self.protocol {
                Protocol::Delta => Request::Delta(delta),
                Protocol::Sotw | Protocol::Mcp => Request::Sotw(sotw),
            };
            self.session.handle_request(request, Some(&view), self.now).unwrap();
            let type_url = TypeUrl::new(&type_url).unwrap();
            if self.session.needs_resume_state(&type_url) {
                let states: Vec<_> = resume.iter().cloned().collect();
                self.session.resume_from(&type_url, &states);
            }
            self.poll();
        }
    }

    /// Lets the client process the oldest response of one type. Returns whether there was one.
    fn process(&mut self, is_child: bool) -> bool {
        if !is_child {
            let Some((nonce, version, is_valid)) = self.client.parents.pop_front() else {
                return false;
            };
            self.show(|| format!("-> parent {is_valid}"));
            if is_valid {
                self.client.accepted_parent = version;
            }
            let accepted = self.client.accepted_parent.clone();
            self.answer(self.parent.to_string(), nonce, accepted, is_valid);
            return true;
        }
        let Some(reply) = self.client.inbox.pop_front() else { return false };
        let before = self.client.keys();
        let accepts = self.client.take(&reply, self.protocol == Protocol::Sotw);
        self.show(|| format!("-> {accepts}; {:?}", self.client.held));
        let keys = self.client.keys();
        let mut missing = before.intersection(&reply.keys).filter(|key| !keys.contains(key));
        self.is_overtaken |= !accepts && !self.client.inbox.is_empty();
        let missing = missing.next().filter(|_| !self.is_overtaken);
        assert_eq!(missing, None, "seed {}: a key is not served", self.seed);
        let accepted = self.client.accepted.clone();
        self.answer(self.child.to_string(), reply.nonce, accepted, accepts);
        true
    }

    fn wait(&mut self, ms: u64) -> usize {
        self.now += ms;
        self.poll()
    }

    /// Processes everything until nothing happens for a long time.
    fn settle(&mut self) {
        let mut n = 0;
        for _ in 0..30 {
            while self.process(false) || self.process(true) {
                n += 1;
            }
            n += self.wait(2_000);
            assert!(n < SETTLING_MAX, "seed {}: {n} responses without an event", self.seed);
        }
        self.is_overtaken = false;
    }

    fn new_name(&mut self) -> String {
        self.n_names += 1;
        if self.child.as_str() == types::VIRTUAL_HOST {
            format!("parent/{}", self.n_names)
        } else {
            format!("n{}", self.n_names)
        }
    }

    /// Returns valid content, or sometimes invalid content.
    fn content(&mut self) -> u8 {
        let n = u8::try_from(1 + self.below(9)).unwrap();
        if self.below(6) == 0 { 10 * n } else { n }
    }

    /// Returns a changed view.
    fn edited(&mut self) -> BTreeMap<String, Item> {
        let mut view = self.view.clone();
        for _ in 0..=self.below(2) {
            let names: Vec<String> = view.keys().cloned().collect();
            let pick = |at: usize| names.get(at % names.len().max(1)).cloned();
            let (one, two) = (pick(self.below(8)), pick(self.below(8)));
            let content = self.content();
            match (self.below(8), one, two) {
                (0..=2, Some(old), _) => {
                    let key = view.remove(&old).unwrap().key;
                    view.insert(self.new_name(), Item { key, content });
                }
                (3, Some(one), Some(two)) => {
                    let (a, b) = (view[&one], view[&two]);
                    view.insert(one, Item { key: b.key, ..a });
                    view.insert(two, Item { key: a.key, ..b });
                }
                (4, Some(old), _) => drop(view.remove(&old)),
                (5, Some(name), _) => {
                    view.entry(name).and_modify(|item| item.content = content);
                }
                // A conflict, if the key is in use.
                (6, _, _) => {
                    let key = u8::try_from(self.below(usize::from(KEYS))).unwrap();
                    view.insert(self.new_name(), Item { key, content });
                }
                _ => {
                    let used: BTreeSet<u8> = view.values().map(|item| item.key).collect();
                    if let Some(key) = (0..KEYS).find(|key| !used.contains(key)) {
                        view.insert(self.new_name(), Item { key, content });
                    }
                }
            }
        }
        view
    }

    pub(crate) fn run(&mut self) {
        let first = BTreeMap::from([(self.new_name(), Item { key: 0, content: 1 })]);
        self.commit(first, Some(1));
        self.open(None);
        for _ in 0..STEPS {
            match self.below(20) {
                0..=5 => {
                    let view = self.edited();
                    let parent = (self.below(4) == 0).then(|| self.content());
                    self.commit(view, parent);
                }
                6..=13 => drop(self.process(!self.random.is_multiple_of(3))),
                14..=16 => {
                    let ms = [10, 600, 2_000, 6_000][self.below(4)];
                    self.wait(ms);
                }
                17 => self.settle(),
                18 => {
                    self.client.cut();
                    let resume = self.session.take_resume_state().map(Arc::new);
                    let resume = resume.filter(|_| self.below(2) == 0);
                    if self.below(2) == 0 {
                        let view = self.edited();
                        self.commit(view, None);
                        self.client.cut();
                    }
                    self.show(|| "cut".to_owned());
                    self.open(resume);
                }
                _ => {}
            }
        }
        self.repair();
    }

    /// Repairs the author's resources, and checks that the client gets them.
    fn repair(&mut self) {
        let mut used = BTreeSet::new();
        let mut view = self.view.clone();
        view.retain(|_, item| used.insert(item.key));
        view.values_mut()
            .for_each(|item| item.content = if item.is_bad() { 1 } else { item.content });
        self.commit(view, Some(1));
        self.settle();
        let held: BTreeMap<String, Item> =
            self.client.held.iter().map(|(name, (item, _))| (name.clone(), *item)).collect();
        assert_eq!(held, self.view, "seed {}: the client does not have the view", self.seed);
        let pending: usize = self.session.status().iter().map(|s| s.n_pending_removals).sum();
        assert_eq!(pending, 0, "seed {}: removals are pending", self.seed);
    }
}
