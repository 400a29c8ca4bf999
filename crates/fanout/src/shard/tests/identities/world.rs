//! A shard, its clients, and what each of them may receive.

use super::*;

/// A resource as it was published: its scope, type and name.
#[derive(Debug, Clone)]
pub(super) struct Published {
    pub(super) scope: ScopeName,
    pub(super) key: chancery_model::ResourceKey,
    deleted_at: Option<Revision>,
}

/// The identity of a client: its principal and its node.
type ClientId = (Principal, Arc<Node>);

pub(super) struct World {
    pub(super) harness: ShardHarness,
    access: AccessControl,
    /// All resources that ever existed, by number. Each body has its number.
    published: Vec<Published>,
    /// The number of the body of each resource that exists.
    present: BTreeMap<(String, String, String), usize>,
    /// The numbers of the bodies that each client has received.
    received: HashMap<ClientId, HashSet<usize>>,
    /// The scopes that the streams of each client had.
    had: HashMap<ClientId, BTreeSet<ScopeName>>,
    /// The versions of types that any client has seen, and the nonces of no use.
    pub(super) versions: Vec<(String, String)>,
    /// All states so far.
    history: Vec<Arc<State>>,
    /// Repeats a random case.
    pub(super) seed: u64,
    /// The number of deleted resources that were sent again to their own client.
    pub(super) n_resumed: usize,
}

pub(super) struct Stream {
    pub(super) client: Client,
    pub(super) protocol: Protocol,
    pub(super) identity: Arc<Identity>,
    pub(super) node: Arc<Node>,
    /// The nodes that the stream had before.
    past_nodes: Vec<Arc<Node>>,
    is_new: std::cell::Cell<bool>,
    opened_at: Revision,
    /// The scopes that the stream had.
    had: BTreeSet<ScopeName>,
    /// The last version of each type.
    pub(super) versions: HashMap<String, String>,
    /// The names of each type, which SotW repeats.
    names: std::cell::RefCell<HashMap<String, Vec<String>>>,
    pub(super) unanswered: Vec<(String, String, String)>,
    pub(super) end: Option<End>,
}

impl Stream {
    fn id(&self) -> ClientId {
        (self.identity.principal.clone(), Arc::clone(&self.node))
    }
}

pub(super) fn node(id: &str) -> Node {
    Node { id: id.into(), ..Node::default() }
}

impl World {
    pub(super) fn new(access: AccessControl) -> Self {
        Self {
            harness: ShardHarness::with(Config { access, ..Config::default() }),
            access,
            published: Vec::new(),
            present: BTreeMap::new(),
            received: HashMap::new(),
            had: HashMap::new(),
            versions: Vec::new(),
            history: Vec::new(),
            seed: 0,
            n_resumed: 0,
        }
    }

    pub(super) fn settle(&mut self) {
        self.harness.settle();
    }

    pub(super) fn apply(&mut self, transaction: &Transaction) {
        self.harness.apply(transaction);
        self.history.push(Arc::clone(&self.harness.state));
        self.settle();
    }

    /// Returns the version of a type that every replica sends to nodes with these scopes now.
    pub(super) fn version(&self, type_url: &str, scopes: &[&str]) -> String {
        let scopes: Vec<ScopeName> = scopes.iter().map(|name| scope(name)).collect();
        let view = chancery_view::View::resolve(&self.harness.state, &scopes);
        view.of_type(&TypeUrl::new(type_url).unwrap()).version().to_string()
    }

    /// Returns whether any replica could have sent a body to the client of a stream.
    fn could_have(&self, stream: &Stream, number: usize) -> bool {
        let Published { scope, key, .. } = &self.published[number];
        let body = format!("<<{number}>>");
        let may_have = |state: &State, node: &Node| {
            let authorized = self.access.authorize(state, Some(&stream.identity), node);
            authorized.is_ok_and(|authorization| authorization.scopes().contains(scope))
        };
        self.history.iter().any(|state| {
            let present = state.get(scope, key).and_then(|resource| resource.body());
            let mut nodes = stream.past_nodes.iter().chain([&stream.node]);
            present.is_some_and(|present| present == body.as_bytes())
                && nodes.any(|node| may_have(state, node))
        })
    }

    /// Publishes a new version of a resource.
    pub(super) fn put(&mut self, in_scope: &str, type_url: &str, name: &str) {
        self.put_with(in_scope, type_url, name, None);
    }

    pub(super) fn put_with(
        &mut self,
        in_scope: &str,
        type_url: &str,
        name: &str,
        ttl: Option<Duration>,
    ) {
        let key = key_of(type_url, name);
        let body = Bytes::from(format!("<<{}>>", self.published.len()));
        let mut draft = chancery_model::ResourceDraft::new(key.clone(), body);
        draft.ttl = ttl;
        let upserts = vec![Upsert { scope: scope(in_scope), draft }];
        let place = (in_scope.to_owned(), type_url.to_owned(), name.to_owned());
        self.apply(&Transaction { upserts, ..Transaction::default() });
        if let Some(old) = self.present.insert(place, self.published.len()) {
            self.published[old].deleted_at = Some(self.harness.state.revision);
        }
        self.published.push(Published { scope: scope(in_scope), key, deleted_at: None });
    }

    pub(super) fn delete(&mut self, in_scope: &str, type_url: &str, name: &str) {
        let place = (in_scope.to_owned(), type_url.to_owned(), name.to_owned());
        let Some(number) = self.present.remove(&place) else { return };
        let deletes = vec![(scope(in_scope), key_of(type_url, name))];
        self.apply(&Transaction { deletes, ..Transaction::default() });
        self.published[number].deleted_at = Some(self.harness.state.revision);
    }

    /// Returns the scopes and names of the resources of a type.
    pub(super) fn present(&self, type_url: &str) -> Vec<(String, String)> {
        let of_type = self.present.keys().filter(|(_, of, _)| of == type_url);
        of_type.map(|(scope, _, name)| (scope.clone(), name.clone())).collect()
    }

    pub(super) fn assignment(&self, name: &str, cluster: &str, scopes: &[&str]) -> Transaction {
        let scopes = scopes.iter().map(|text| ScopeTemplate::parse(text).unwrap()).collect();
        let matcher = NodeMatcher { cluster: Some(Glob::new(cluster)), ..NodeMatcher::default() };
        let assignment = Assignment { name: name.into(), priority: 1, matcher, scopes };
        Transaction { assignments: vec![AssignmentOp::Put(assignment)], ..Transaction::default() }
    }

    pub(super) fn assign(&mut self, name: &str, cluster: &str, scopes: &[&str]) {
        let transaction = self.assignment(name, cluster, scopes);
        self.apply(&transaction);
    }

    /// Returns the rule of an identity, which lets it read scopes, without their secrets.
    pub(super) fn rule(&self, identity: &str, scopes: &[&str]) -> AccessRule {
        let identities = vec![IdentityPattern::parse(identity).unwrap()];
        let variables = Variables { identities: &identities, node: true };
        let template = |text: &&str| Template::parse(text, variables).unwrap();
        let read: Vec<Template> = scopes.iter().map(template).collect();
        AccessRule { read, ..access_rule(identity, identity, "x") }
    }

    pub(super) fn permit(&mut self, identity: &str, scopes: &[&str]) {
        let rule = Box::new(self.rule(identity, scopes));
        let access = vec![AccessOp::PutRule(rule)];
        self.apply(&Transaction { access, ..Transaction::default() });
    }

    pub(super) fn open(&mut self, protocol: Protocol, identity: &str, id: &str) -> Stream {
        self.open_with(protocol, None, identity, node(id))
    }

    pub(super) fn open_with(
        &mut self,
        protocol: Protocol,
        type_url: Option<&str>,
        identity: &str,
        node: Node,
    ) -> Stream {
        let principal = Principal::new(identity).unwrap();
        let identity = Arc::new(Identity { principal, token: None });
        let type_url = type_url.map(|text| TypeUrl::new(text).unwrap());
        let kind = chancery_protocol::StreamKind { protocol, type_url };
        let client = self.harness.open_stream(kind, Some(Arc::clone(&identity)));
        let (node, opened_at) = (Arc::new(node), self.harness.state.revision);
        Stream {
            client,
            protocol,
            identity,
            node,
            past_nodes: Vec::new(),
            is_new: std::cell::Cell::new(true),
            opened_at,
            had: BTreeSet::new(),
            versions: HashMap::new(),
            names: std::cell::RefCell::default(),
            unanswered: Vec::new(),
            end: None,
        }
    }

    /// Sends a subscription to names, or to all names. `version` is what a SotW client claims to have.
    pub(super) fn request(
        &mut self,
        stream: &Stream,
        type_url: &str,
        names: &[&str],
        version: &str,
    ) {
        let type_url = type_url.to_owned();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        stream.names.borrow_mut().insert(type_url.clone(), names.clone());
        let request = match stream.protocol {
            Protocol::Sotw => Request::Sotw(SotwRequest {
                type_url,
                version_info: version.to_owned(),
                resource_names: names.into(),
                ..SotwRequest::default()
            }),
            Protocol::Delta => Request::Delta(DeltaRequest {
                type_url,
                subscribe: names.into(),
                ..DeltaRequest::default()
            }),
            Protocol::Mcp => {
                Request::Mcp(McpRequest { collection: type_url, ..McpRequest::default() })
            }
        };
        self.send(stream, request);
    }

    pub(super) fn send(&mut self, stream: &Stream, request: Request) {
        let node = stream.is_new.replace(false).then(|| Arc::clone(&stream.node));
        let slot = Arc::clone(&stream.client.slot);
        let event = Event::Request { slot, request, node, permit: None };
        self.harness.handle(event);
    }

    /// Sends the present node of a stream with its next request.
    pub(super) fn adopt(&mut self, stream: &mut Stream, node: Node) {
        let received = self.received.get(&stream.id()).cloned().unwrap_or_default();
        // The stream may have resumed scopes that only an earlier one had.
        stream.had.extend(self.had.get(&stream.id()).into_iter().flatten().cloned());
        stream.past_nodes.push(std::mem::replace(&mut stream.node, Arc::new(node)));
        stream.is_new.set(true);
        self.received.entry(stream.id()).or_default().extend(received);
    }

    fn assigned(&self, node: &Node) -> Vec<ScopeName> {
        let assignment = self.harness.state.assignments.for_node(node);
        assignment.map_or_else(Vec::new, |one| one.scopes_for(node))
    }

    /// Records the present scopes of a stream.
    pub(super) fn note_scopes(&mut self, stream: &mut Stream) {
        if stream.end.is_some() || stream.is_new.get() {
            return;
        }
        stream.had.extend(self.assigned(&stream.node));
        self.had.entry(stream.id()).or_default().extend(stream.had.iter().cloned());
    }

    /// Checks one body that a client has received.
    fn check(&mut self, stream: &Stream, number: usize) -> String {
        let published = self.published[number].clone();
        let Published { scope, key, deleted_at } = &published;
        let (state, identity, node) = (&self.harness.state, &*stream.identity, &*stream.node);
        let id = stream.id();
        let (seed, rules) = (self.seed, &state.access.rules);
        let what = || format!("seed {seed}: {scope} {key} to {id:?}, rules {rules:?}");
        if self.access == AccessControl::Enforced {
            let rights =
                state.access.decide_stream(identity, node, std::slice::from_ref(scope), None);
            let Ok(rights) = rights else { panic!("not readable: {}", what()) };
            let is_secret = key.type_url.as_str() == SECRET;
            assert!(!is_secret || rights.secrets.permits(scope, &key.name), "secret: {}", what());
        }
        let is_proven =
            self.access == AccessControl::Enforced && !identity.principal.is_anonymous();
        let had_before = self.could_have(stream, number)
            || self.had.get(&id).is_some_and(|had| had.contains(scope));
        let is_given = self.assigned(node).contains(scope)
            || stream.had.contains(scope)
            || is_proven && had_before;
        assert!(is_given, "never assigned: {}", what());
        if deleted_at.is_some_and(|deleted| deleted <= stream.opened_at) {
            let had = self.received.get(&id).is_some_and(|received| received.contains(&number));
            assert!(had || self.could_have(stream, number), "of another client: {}", what());
            self.n_resumed += 1;
        }
        self.received.entry(id).or_default().insert(number);
        format!("{scope}/{}", key.name)
    }

    /// Reads all responses, checks every body, and acknowledges. Returns what the responses contain.
    pub(super) fn read(&mut self, stream: &mut Stream) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            all.extend(self.take(stream));
            let answers = std::mem::take(&mut stream.unanswered);
            if answers.is_empty() {
                all.sort();
                all.dedup();
                return all;
            }
            for (type_url, version, nonce) in answers {
                self.answer(stream, &type_url, &version, &nonce, None);
            }
        }
    }

    pub(super) fn answer(
        &mut self,
        stream: &Stream,
        type_url: &str,
        version: &str,
        nonce: &str,
        error_detail: Option<chancery_protocol::ErrorDetail>,
    ) {
        let (type_url, response_nonce) = (type_url.to_owned(), nonce.to_owned());
        let names = stream.names.borrow().get(&type_url).cloned().unwrap_or_default();
        let request = match stream.protocol {
            Protocol::Sotw => Request::Sotw(SotwRequest {
                type_url,
                response_nonce,
                error_detail,
                version_info: version.to_owned(),
                resource_names: names.into(),
            }),
            Protocol::Delta => Request::Delta(DeltaRequest {
                type_url,
                response_nonce,
                error_detail,
                ..DeltaRequest::default()
            }),
            Protocol::Mcp => Request::Mcp(McpRequest {
                collection: type_url,
                response_nonce,
                error_detail,
                ..McpRequest::default()
            }),
        };
        self.send(stream, request);
    }

    /// Reads all responses that arrive without an answer, and checks every body.
    pub(super) fn take(&mut self, stream: &mut Stream) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            self.settle();
            self.note_scopes(stream);
            match stream.client.poll() {
                Poll::Ready(Delivery::Message(message)) => {
                    let bytes: Vec<u8> = message.flat_map(|chunk| chunk.to_vec()).collect();
                    for number in numbers(&bytes) {
                        all.push(self.check(stream, number));
                    }
                    self.note(stream, &bytes);
                }
                Poll::Ready(Delivery::End(end)) => {
                    stream.end = Some(end);
                    stream.unanswered.clear();
                    return all;
                }
                Poll::Pending if self.harness.ready_list_is_empty() => return all,
                Poll::Pending => {}
            }
        }
    }

    /// Keeps the version and the nonce of a response for its answer.
    fn note(&mut self, stream: &mut Stream, bytes: &[u8]) {
        let fields = [[1, 4, 5], [1, 4, 5], [1, 2, 5]][stream.protocol as usize];
        let [version, type_url, nonce] = fields.map(|field| text_field(bytes, field));
        self.versions.push((type_url.clone(), version.clone()));
        stream.versions.insert(type_url.clone(), version.clone());
        stream.unanswered.push((type_url, version, nonce));
    }

    /// Ends a stream from the side of its client. A response that the client has not read counts as received.
    pub(super) fn close(&mut self, mut stream: Stream) {
        if let Poll::Ready(Delivery::Message(message)) = stream.client.poll() {
            let bytes: Vec<u8> = message.flat_map(|chunk| chunk.to_vec()).collect();
            self.received.entry(stream.id()).or_default().extend(numbers(&bytes));
        }
        drop(stream);
        self.settle();
    }

    /// Checks that CSDS names all scopes of what it shows of a stream.
    pub(super) fn check_contents(&mut self, stream: &Stream, type_url: &str) {
        let (reply, mut answer) = tokio::sync::oneshot::channel();
        let (slot, type_url) = (Arc::clone(&stream.client.slot), TypeUrl::new(type_url).unwrap());
        self.harness.handle(Event::Contents { slot, type_url, after: None, reply });
        let Ok(contents) = answer.try_recv() else { return };
        let statuses = chancery_protocol::ContentsReader::default().read(contents.page);
        for resource in statuses.into_iter().filter_map(|status| status.resource) {
            let body = resource.body().unwrap_or_default();
            for number in numbers(&body) {
                let scope = &self.published[number].scope;
                let is_named = contents.scopes.as_ref().is_none_or(|all| all.contains(scope));
                assert!(is_named, "CSDS shows {scope} without naming it");
            }
        }
    }
}

/// Returns the numbers of the bodies in a message.
fn numbers(bytes: &[u8]) -> Vec<usize> {
    let text = String::from_utf8_lossy(bytes);
    let parts = text.split("<<").skip(1);
    parts.map(|part| part.split(">>").next().unwrap().parse().unwrap()).collect()
}

/// Returns the first field of a message with this number and a length, as text.
fn text_field(bytes: &[u8], wanted: u32) -> String {
    let mut fields = chancery_model::wire::Fields::new(0, bytes.len());
    while let Ok(Some(token)) = fields.next(bytes) {
        if let chancery_model::wire::Token::Bytes { field, content } = token
            && field == wanted
        {
            return String::from_utf8_lossy(content).into_owned();
        }
    }
    String::new()
}
