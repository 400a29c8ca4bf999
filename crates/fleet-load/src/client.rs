//! The clients of a fleet: connections, streams and answers.

use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Error, Result, anyhow};
use bytes::Bytes;
use chancery_proto::{
    discovery::{DeltaDiscoveryRequest, DiscoveryRequest, Status},
    node::{Locality, Node, UserAgentVersion},
};
use chancery_tls::ClientTls;
use futures::{StreamExt as _, stream::FuturesUnordered};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::{
    sync::{Notify, Semaphore},
    time::{sleep, timeout},
};

use crate::{
    marker::Markers,
    measures::{Measures, record},
    names::Names,
    plan::{ClientKind, Habit, Plan, Protocol},
    scan::{self, End, Event, Scanner},
    state::{self, Arrival, ClientState, Content},
    stream::{self, DELTA, Ended, Requests, Responses, SOTW, Target, Windows},
};

/// The maximum time to connect.
const CONNECT: Duration = Duration::from_secs(10);
/// The connections that are opened at the same time.
const CONNECTING_MAX: usize = 256;
/// The wait before the first and the longest one before a further attempt to connect.
const WAITS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];
/// The pause of slow clients, and that of clients that acknowledge late.
const SLOW: Duration = Duration::from_millis(200);
const LATE: Duration = Duration::from_secs(1);
/// `INVALID_ARGUMENT`, the code of a rejection.
const REJECTED: i32 = 3;

/// The parts that all clients of a run share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) plan: Plan,
    pub(crate) run: String,
    /// The type URLs, in the order of the subscriptions.
    pub(crate) types: Vec<String>,
    pub(crate) targets: Vec<Target>,
    pub(crate) markers: Markers,
    pub(crate) measures: Mutex<Measures>,
    names: Mutex<Names>,
    pub(crate) clients: Vec<Mutex<Client>>,
    connecting: Semaphore,
}

/// A client, connected or not.
#[derive(Debug)]
pub(crate) struct Client {
    id: String,
    region: String,
    habit: Habit,
    state: ClientState,
    is_connected: bool,
    /// The time since which it has its first state.
    since: Option<Instant>,
    /// The TLS settings of its connection, if they are its own.
    tls: Option<ClientTls>,
}

/// Several clients with one connection.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) clients: Range<usize>,
    /// Ends the connection.
    pub(crate) reconnect: Arc<Notify>,
}

impl Client {
    fn new(plan: &Plan, id: String, n: usize, habit: Habit) -> Self {
        let region = plan.regions.get(n % plan.regions.len().max(1)).cloned().unwrap_or_default();
        Self {
            id,
            region,
            habit,
            state: ClientState::new(resources(plan)),
            is_connected: false,
            since: None,
            tls: None,
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn habit(&self) -> Habit {
        self.habit
    }

    pub(crate) fn state(&self) -> &ClientState {
        &self.state
    }

    /// Returns whether it is connected, and has its first state.
    pub(crate) fn is_established(&self) -> bool {
        self.since.is_some()
    }

    fn node(&self, kind: ClientKind) -> Bytes {
        let (name, version) = match kind {
            ClientKind::Envoy => ("envoy", "1.40.0"),
            ClientKind::Grpc => ("gRPC Go", "1.85.0"),
        };
        let locality = Locality { region: self.region.clone(), ..Locality::default() };
        let node = Node {
            id: self.id.clone(),
            cluster: "loadtest".to_owned(),
            locality: Some(locality),
            user_agent_name: name.to_owned(),
            user_agent_version: Some(UserAgentVersion::Text(version.to_owned())),
            ..Node::default()
        };
        node.encode_to_vec().into()
    }
}

/// Returns the number of resources that the test itself changes.
fn resources(plan: &Plan) -> usize {
    if plan.has_writes() { plan.resources } else { 0 }
}

impl Shared {
    /// Prepares the clients of a plan. Further ones are references ([`Shared::n_clients`]).
    pub(crate) fn new(
        plan: Plan,
        run: String,
        types: Vec<String>,
        targets: Vec<Target>,
    ) -> Arc<Self> {
        let n_references = targets.len();
        let id = |n: usize| match plan.node_id.as_str() {
            "" => format!("{run}-{n}"),
            id => id.replace("{n}", &n.to_string()),
        };
        let client = |n| {
            let is_reference = n >= plan.clients;
            let habit = if is_reference { Habit::Ordinary } else { plan.habit(n) };
            Mutex::new(Client::new(&plan, id(n), n, habit))
        };
        Arc::new(Self {
            clients: (0..plan.clients + n_references).map(client).collect(),
            markers: Markers::new(&run),
            measures: Mutex::new(Measures::new(resources(&plan))),
            names: Mutex::default(),
            connecting: Semaphore::new(CONNECTING_MAX),
            plan,
            run,
            types,
            targets,
        })
    }

    /// Gives the first client of each connection TLS settings of its own.
    ///
    /// # Errors
    /// Fails if `of` fails for a client.
    pub(crate) fn identify(
        &self,
        of: &dyn Fn(&str) -> Result<ClientTls, String>,
    ) -> Result<(), String> {
        let groups = (0..self.plan.clients).step_by(self.plan.streams_per_connection);
        for n in groups.chain(self.plan.clients..self.clients.len()) {
            let mut client = self.clients[n].lock();
            client.tls = Some(of(&client.id)?);
        }
        Ok(())
    }

    /// Returns the targets with the TLS settings of a connection.
    pub(crate) fn targets_of(&self, group: &Group, targets: &[Target]) -> Vec<Target> {
        let tls = self.clients[group.clients.start].lock().tls.clone();
        let own = |target: &Target| match &tls {
            Some(tls) => target.clone().with_tls(tls.clone()),
            None => target.clone(),
        };
        targets.iter().map(own).collect()
    }

    /// Returns the number of clients without references.
    pub(crate) fn n_clients(&self) -> usize {
        self.plan.clients
    }

    /// Returns the number of resources that the test itself changes.
    pub(crate) fn n_resources(&self) -> usize {
        resources(&self.plan)
    }

    /// Returns the name of a resource.
    pub(crate) fn name(&self, number: u32) -> String {
        self.names.lock().text(number)
    }

    /// Keeps a connection until the task ends. A client whose connection ends uses the next address.
    pub(crate) async fn keep(self: Arc<Self>, group: Group, targets: Vec<Target>) {
        let mut turn = group.clients.start / self.plan.streams_per_connection;
        let mut wait = WAITS[0];
        loop {
            let target = &targets[turn % targets.len()];
            let opened = Instant::now();
            let is_wanted = tokio::select! {
                error = self.connection(target, group.clients.clone()) => {
                    let at = target.at;
                    self.measures.lock().error(format!("{at}: {}", in_words(&error)));
                    turn += 1;
                    false
                }
                () = group.reconnect.notified() => true,
            };
            group.clients.clone().for_each(|n| self.disconnected(n));
            if is_wanted {
                self.measures.lock().reconnected();
                continue;
            }
            if opened.elapsed() > WAITS[1] {
                wait = WAITS[0];
            }
            sleep(wait.mul_f64(0.5 + fastrand::f64())).await;
            wait = (wait * 2).min(WAITS[1]);
        }
    }

    /// Connects, and runs the streams of clients. Returns the error that ended one of them.
    async fn connection(&self, target: &Target, clients: Range<usize>) -> Error {
        let start = Instant::now();
        let connected = {
            let Ok(_permit) = self.connecting.acquire().await else { return anyhow!("stopped") };
            timeout(CONNECT, stream::connect(target.clone(), Windows::ENVOY)).await
        };
        let (mut sender, mut connection) = match connected {
            Ok(Ok(connected)) => connected,
            Ok(Err(error)) => return error,
            Err(_) => return anyhow!("no connection within {CONNECT:?}"),
        };
        let mut streams = FuturesUnordered::new();
        for n in clients {
            // The sender is ready when the connection has been polled.
            let opened = tokio::select! {
                opened = self.open(sender, target, n) => opened,
                ended = &mut connection => return ended_connection(ended),
            };
            match opened {
                Ok((next, requests, responses, is_resumed)) => {
                    sender = next;
                    streams.push(self.stream(n, start, requests, responses, is_resumed));
                }
                Err(error) => return error,
            }
        }
        tokio::select! {
            ended = connection => ended_connection(ended),
            Some(error) = streams.next() => error,
        }
    }

    /// Opens the stream of a client.
    async fn open(
        &self,
        sender: h2::client::SendRequest<Bytes>,
        target: &Target,
        n: usize,
    ) -> Result<(h2::client::SendRequest<Bytes>, Requests, Responses, bool)> {
        let node = Some(self.clients[n].lock().node(self.plan.client));
        let is_resumed = self.plan.resume && !self.clients[n].lock().state.held().is_empty();
        if !is_resumed {
            self.clients[n].lock().state.clear();
        }
        let of_type = |number: usize| (number == 0).then(|| node.clone()).flatten();
        let types = self.types.iter().enumerate();
        let (sender, requests, responses) = match self.plan.protocol {
            Protocol::Delta => {
                let first = types.map(|(number, type_url)| DeltaDiscoveryRequest {
                    node: of_type(number),
                    type_url: type_url.clone(),
                    resource_names_subscribe: self.plan.names.clone(),
                    initial_resource_versions: if is_resumed {
                        self.versions(n, number)
                    } else {
                        Default::default()
                    },
                    ..DeltaDiscoveryRequest::default()
                });
                let first: Vec<DeltaDiscoveryRequest> = first.collect();
                stream::open_with(sender, target.clone(), DELTA, &first).await?
            }
            Protocol::Sotw => {
                let first = types.map(|(number, type_url)| DiscoveryRequest {
                    node: of_type(number),
                    type_url: type_url.clone(),
                    resource_names: self.plan.names.clone(),
                    ..DiscoveryRequest::default()
                });
                let first: Vec<DiscoveryRequest> = first.collect();
                stream::open_with(sender, target.clone(), SOTW, &first).await?
            }
        };
        Ok((sender, requests, responses, is_resumed))
    }

    /// Returns the versions of a type that a client has.
    fn versions(&self, n: usize, type_number: usize) -> std::collections::BTreeMap<String, String> {
        let (client, names) = (self.clients[n].lock(), self.names.lock());
        let held = client.state.held().iter();
        held.filter(|((of_type, _), _)| usize::from(*of_type) == type_number)
            .map(|((_, name), content)| (names.text(*name), names.text(content.version)))
            .collect()
    }

    /// Runs a stream until it ends.
    async fn stream(
        &self,
        n: usize,
        start: Instant,
        mut requests: Requests,
        responses: Responses,
        is_resumed: bool,
    ) -> Error {
        let run = async {
            let mut body = responses.open().await?;
            self.clients[n].lock().is_connected = true;
            if is_resumed && self.plan.protocol == Protocol::Delta {
                self.establish(n, None);
            }
            let kind = match self.plan.protocol {
                Protocol::Delta => scan::Responses::Delta,
                Protocol::Sotw => scan::Responses::Sotw,
            };
            let (mut scanner, mut session) = (Scanner::new(kind), Session::new(self, n, start));
            loop {
                let chunk = body.chunk().await?;
                scanner.feed(&chunk, &mut |event| session.on(event))?;
                let habit = session.habit;
                for answer in session.answers.drain(..) {
                    if habit == Habit::Late {
                        sleep(LATE).await;
                    }
                    match &answer {
                        Answer::Delta(request) => requests.send(request)?,
                        Answer::Sotw(request) => requests.send(request)?,
                    }
                }
                if habit == Habit::Slow {
                    sleep(SLOW).await;
                }
                body.release(chunk.len())?;
            }
        };
        let ended: Result<std::convert::Infallible> = run.await;
        match ended {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    /// Notes that a client has its first state. `time` is the time that it took.
    fn establish(&self, n: usize, time: Option<Duration>) {
        let mut client = self.clients[n].lock();
        if client.since.is_some() {
            return;
        }
        let mut measures = self.measures.lock();
        client.since = Some(Instant::now());
        if let Some(time) = time.filter(|_| n < self.n_clients()) {
            record(&mut measures.now().first_states, time);
        }
        if client.habit == Habit::Ordinary && n < self.n_clients() {
            measures.establish();
        }
    }

    /// Notes that the connection of a client has ended.
    fn disconnected(&self, n: usize) {
        let mut client = self.clients[n].lock();
        client.is_connected = false;
        client.state.interrupt();
        if let Some(since) = client.since.take()
            && client.habit == Habit::Ordinary
            && n < self.n_clients()
        {
            let n_resources = self.n_resources();
            self.measures.lock().leave(since, n_resources, |write| client.state.has(write));
        }
    }
}

/// An answer to a response.
enum Answer {
    Delta(DeltaDiscoveryRequest),
    Sotw(DiscoveryRequest),
}

/// A stream from its start.
struct Session<'a> {
    shared: &'a Shared,
    n: usize,
    start: Instant,
    habit: Habit,
    answers: Vec<Answer>,
    /// The version of each type that the client accepted last.
    accepted: Vec<String>,
    /// The types that have had a response.
    begun: Vec<bool>,
}

impl<'a> Session<'a> {
    fn new(shared: &'a Shared, n: usize, start: Instant) -> Self {
        Self {
            shared,
            n,
            start,
            habit: shared.clients[n].lock().habit,
            answers: Vec::new(),
            accepted: vec![String::new(); shared.types.len()],
            begun: vec![false; shared.types.len()],
        }
    }

    fn on(&mut self, event: Event<'_>) {
        let shared = self.shared;
        match event {
            Event::Resource { name, version, body } => {
                let name = if name.is_empty() { state::name_of(body).unwrap_or(b"") } else { name };
                let mut names = shared.names.lock();
                let content = Content { hash: state::hash(body), version: names.number(version) };
                let name = names.number(name);
                drop(names);
                let write = shared.markers.find(body);
                shared.clients[self.n].lock().state.arrive(Arrival { name, content, write });
            }
            Event::Removed { name } => {
                let name = shared.names.lock().number(name);
                shared.clients[self.n].lock().state.remove(name);
            }
            Event::End(end) => self.end(&end),
        }
    }

    /// Applies a response, and prepares its answer.
    fn end(&mut self, end: &End<'_>) {
        let type_url = String::from_utf8_lossy(end.type_url).into_owned();
        let shared = self.shared;
        let Some(number) = shared.types.iter().position(|one| *one == type_url) else {
            let error =
                format!("a response has the type {type_url:?}, which no client subscribes to");
            return shared.measures.lock().error(error);
        };
        let is_first = !std::mem::replace(&mut self.begun[number], true);
        let is_whole = shared.plan.protocol == Protocol::Sotw;
        let now = Instant::now();
        let mut client = shared.clients[self.n].lock();
        let n_resources = client.state.held().len();
        let type_number = u8::try_from(number).unwrap_or(u8::MAX);
        let applied = client.state.apply(type_number, is_whole, is_first);
        let is_current = shared.n_resources() == 0 || client.state.has_all();
        {
            let mut measures = shared.measures.lock();
            measures.responded(end.bytes, applied.changed.len());
            measures.out_of_order(applied.repeats, applied.older);
            if let Some(since) = client.since.filter(|_| self.habit == Habit::Ordinary)
                && self.n < shared.n_clients()
            {
                measures.received(&applied.writes, since, now);
                measures.replaced(applied.replaced);
                if shared.n_resources() == 0 && n_resources > 0 {
                    applied.changed.iter().for_each(|one| measures.seen(*one, now));
                }
            }
        }
        drop(client);
        if is_current && number == 0 {
            shared.establish(self.n, Some(self.start.elapsed()));
        }
        let is_rejected = self.habit == Habit::Rejecting && !is_first;
        self.answer(number, end, is_rejected);
    }

    fn answer(&mut self, number: usize, end: &End<'_>, is_rejected: bool) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (type_url, response_nonce) = (text(end.type_url), text(end.nonce));
        let error_detail = is_rejected.then(|| Status {
            code: REJECTED,
            message: "rejected by a load test".to_owned(),
            ..Status::default()
        });
        if self.shared.plan.protocol == Protocol::Delta {
            return self.answers.push(Answer::Delta(DeltaDiscoveryRequest {
                type_url,
                response_nonce,
                error_detail,
                ..DeltaDiscoveryRequest::default()
            }));
        }
        if !is_rejected {
            self.accepted[number] = text(end.version);
        }
        self.answers.push(Answer::Sotw(DiscoveryRequest {
            type_url,
            response_nonce,
            version_info: self.accepted[number].clone(),
            resource_names: self.shared.plan.names.clone(),
            error_detail,
            ..DiscoveryRequest::default()
        }));
    }
}

fn ended_connection(ended: Result<(), h2::Error>) -> Error {
    match ended.context("the connection failed") {
        Ok(()) => anyhow!("the server closed the connection"),
        Err(error) => error,
    }
}

/// Returns the text of an error without the parts that differ by client.
fn in_words(error: &Error) -> String {
    match error.downcast_ref::<Ended>() {
        Some(ended) => ended.to_string(),
        None => format!("{error:#}"),
    }
}
