//! Sessions with the views of a world, and the work that a commit causes for each session.

use std::{hint::black_box, sync::Arc};

use chancery_model::{Node, ResourceName, TypeUrl};
use chancery_protocol::{
    Config, DeltaRequest, ErrorDetail, LifetimeSupport, McpRequest, Protocol, Request, Response,
    Session, SotwRequest, StreamKind,
};
use chancery_view::{Differ, View, changed_collections};

use crate::{
    stopwatch::{Stopwatch, Tally},
    world::{BODY_BYTES, World, name},
};

/// The feature of a client that supports lifetimes.
const LIFETIMES: &str = "xds.config.supports-resource-ttl";

/// The times of one kind of session, by operation.
#[derive(Debug, Default)]
pub(crate) struct Tallies {
    pub(crate) poll: Tally,
    pub(crate) encode: Tally,
    pub(crate) ack: Tally,
    pub(crate) nack: Tally,
    pub(crate) subscribe: Tally,
    pub(crate) subscribed: Tally,
}

/// The answer of a client to a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Ack,
    Nack,
}

/// Sessions with equal subscriptions, distributed over the views.
#[derive(Debug)]
pub(crate) struct Fleet {
    protocol: Protocol,
    /// The numbers of the resources that the sessions name; empty for a wildcard.
    named: Vec<usize>,
    names: Vec<String>,
    sessions: Vec<Session>,
    differ: Differ,
    now: u64,
}

/// The nonce and version of a received response.
struct Received {
    nonce: String,
    version: String,
}

/// Returns a configuration that sends full states in one response. `DeltaFull` measures the splitting.
pub(crate) fn config() -> Arc<Config> {
    Arc::new(Config { response_bytes_target: usize::MAX, ..Config::DEFAULTS })
}

impl Fleet {
    /// Opens sessions, which receive and acknowledge the current state.
    pub(crate) fn synced(world: &World, protocol: Protocol, named: Vec<usize>, n: usize) -> Self {
        let mut fleet = Self::opened(world, protocol, named, n);
        for at in 0..fleet.sessions.len() {
            fleet.acknowledge_all(at, &world.view(at), &world.type_url);
        }
        fleet
    }

    /// Opens sessions and sends their first requests.
    pub(crate) fn opened(world: &World, protocol: Protocol, named: Vec<usize>, n: usize) -> Self {
        let config = config();
        let kind = StreamKind { protocol, type_url: None };
        let new = |_| Session::new(kind.clone(), Arc::clone(&config));
        let sessions = (0..n).map(new).collect();
        let names = named.iter().map(|n| name(*n)).collect();
        let mut fleet =
            Self { protocol, named, names, sessions, differ: Differ::new(), now: 1_000_000 };
        for at in 0..fleet.sessions.len() {
            let view = world.view(at);
            let first = fleet.request(&world.type_url, None, &fleet.names, None);
            fleet.send(at, first, &view);
        }
        fleet
    }

    /// Like [`Self::synced`], with sessions that support lifetimes and subscribe by a wildcard.
    pub(crate) fn renewed(world: &World, protocol: Protocol, n: usize) -> Self {
        let mut fleet = Self::opened(world, protocol, Vec::new(), n);
        let node = Node { client_features: vec![LIFETIMES.to_owned()], ..Node::default() };
        for (at, session) in (0..).zip(&mut fleet.sessions) {
            session.support_lifetimes(LifetimeSupport::of(&node, at));
        }
        for at in 0..fleet.sessions.len() {
            fleet.acknowledge_all(at, &world.view(at), &world.type_url);
        }
        fleet
    }

    /// Waits for the next heartbeat of every session, sends it and acknowledges it.
    ///
    /// # Panics
    /// If a heartbeat is as long as a body.
    pub(crate) fn renew(
        &mut self,
        world: &World,
        watch: Stopwatch,
        renew: &mut Tally,
        encoded: &mut Tally,
    ) {
        let n = self.sessions.len();
        let due = self.sessions.iter().filter_map(|session| session.renewal_at(self.now)).max();
        self.now = due.expect("every session has a resource with a lifetime");
        let mut responses = Vec::with_capacity(n);
        watch.time(renew, n, || {
            for session in &mut self.sessions {
                responses.extend(session.renew(&self.differ, self.now));
            }
        });
        assert_eq!(responses.len(), n, "each session has one heartbeat");
        let received: Vec<Received> = responses.iter().map(Received::of).collect();
        let bytes = watch.time(encoded, n, || responses.drain(..).map(encode).sum::<usize>());
        assert!(bytes < n * BODY_BYTES / 2, "heartbeats have no body: {bytes} bytes");
        for (at, received) in received.iter().enumerate() {
            let ack = self.request(&world.type_url, Some(received), &[], None);
            self.send(at, ack, &world.view(at));
        }
    }

    /// Returns the number of sessions.
    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Returns the number of a pseudo-random resource to which all sessions subscribe.
    pub(crate) fn subscribed_resource(&self, world: &mut World) -> usize {
        let any = world.any();
        if self.named.is_empty() { any } else { self.named[any % self.named.len()] }
    }

    /// Changes one resource, sends it to all sessions, and handles their answers.
    pub(crate) fn step(
        &mut self,
        world: &mut World,
        resource: usize,
        answer: Answer,
        watch: Stopwatch,
        tallies: &mut Tallies,
    ) {
        let n = self.sessions.len();
        self.now += 1;
        let views = self.commit(world, resource);
        let changed = ResourceName::new(&name(resource)).expect("a valid name");
        let changed = (!self.names.is_empty()).then_some(&changed);
        let mut responses = Vec::with_capacity(n);
        watch.time(&mut tallies.poll, n, || {
            for (session, view) in self.sessions.iter_mut().zip(&views) {
                session.handle_change(&world.type_url, changed);
                responses.extend(session.poll(Some(view), &self.differ, self.now));
            }
        });
        assert_eq!(responses.len(), n, "each session has one response");
        let received: Vec<Received> = responses.iter().map(Received::of).collect();
        if responses[0].n_resources() == 1 {
            watch.time(&mut tallies.encode, n, || responses.drain(..).map(encode).sum::<usize>());
        }
        drop(responses);
        let error = ErrorDetail { code: 13, message: "rejected: the cluster has no name".into() };
        let error = (answer == Answer::Nack).then_some(&error);
        let answers: Vec<Request> = received
            .iter()
            .map(|received| {
                self.request(&world.type_url, Some(received), self.repeated_names(), error)
            })
            .collect();
        let tally = match answer {
            Answer::Ack => &mut tallies.ack,
            Answer::Nack => &mut tallies.nack,
        };
        watch.time(tally, n, || {
            for ((session, view), answer) in self.sessions.iter_mut().zip(&views).zip(answers) {
                drop(black_box(session.handle_request(answer, Some(view), self.now)));
            }
        });
    }

    /// Sends the first state to all sessions, and handles their rejections.
    pub(crate) fn reject_first(&mut self, world: &World, watch: Stopwatch, tally: &mut Tally) {
        let views = self.views(world);
        let error = ErrorDetail { code: 13, message: "rejected: a cluster has no name".into() };
        let mut answers = Vec::with_capacity(views.len());
        for (session, view) in self.sessions.iter_mut().zip(&views) {
            let response = session.poll(Some(view), &self.differ, self.now).expect("a first state");
            answers.push(Received::of(&response));
        }
        let answers: Vec<Request> = answers
            .iter()
            .map(|it| self.request(&world.type_url, Some(it), self.repeated_names(), Some(&error)))
            .collect();
        watch.time(tally, views.len(), || {
            for ((session, view), answer) in self.sessions.iter_mut().zip(&views).zip(answers) {
                drop(black_box(session.handle_request(answer, Some(view), self.now)));
            }
        });
    }

    /// Subscribes every session to one more name, and unsubscribes it afterwards.
    pub(crate) fn subscribe(
        &mut self,
        world: &World,
        resource: usize,
        watch: Stopwatch,
        tallies: &mut Tallies,
    ) {
        let n = self.sessions.len();
        self.now += 1;
        let more = name(resource);
        let views = self.views(world);
        let requests: Vec<Request> =
            (0..n).map(|_| self.subscription(&world.type_url, &more)).collect();
        watch.time(&mut tallies.subscribe, n, || {
            for ((session, view), request) in self.sessions.iter_mut().zip(&views).zip(requests) {
                drop(black_box(session.handle_request(request, Some(view), self.now)));
                black_box(session.drain_interest());
            }
        });
        let mut responses = Vec::with_capacity(n);
        watch.time(&mut tallies.subscribed, n, || {
            for (session, view) in self.sessions.iter_mut().zip(&views) {
                responses.extend(session.poll(Some(view), &self.differ, self.now));
            }
        });
        assert_eq!(responses.len(), n, "each session is answered");
        for (at, response) in responses.iter().enumerate() {
            let request = match self.request(
                &world.type_url,
                Some(&Received::of(response)),
                self.repeated_names(),
                None,
            ) {
                Request::Delta(ack) => {
                    Request::Delta(DeltaRequest { unsubscribe: vec![more.clone()].into(), ..ack })
                }
                other @ (Request::Sotw(_) | Request::Mcp(_)) => other,
            };
            self.send(at, request, &views[at]);
            self.acknowledge_all(at, &views[at], &world.type_url);
        }
    }

    /// Commits a change and returns the new views. Like a shard, it computes the differences of
    /// collections before the sessions are polled.
    fn commit(&mut self, world: &mut World, resource: usize) -> Vec<View> {
        let transaction = world.change(&[resource]);
        let new = world.state.apply(&transaction).state;
        black_box(changed_collections(&self.differ, &world.state, &new));
        world.state = new;
        self.views(world)
    }

    /// Returns the view of each session.
    fn views(&self, world: &World) -> Vec<View> {
        (0..self.sessions.len()).map(|at| world.view(at)).collect()
    }

    /// Returns the names in a request that does not change the subscription.
    fn repeated_names(&self) -> &[String] {
        match self.protocol {
            Protocol::Sotw => &self.names,
            Protocol::Delta | Protocol::Mcp => &[],
        }
    }

    /// Returns a request that adds one name to the subscription.
    fn subscription(&self, type_url: &TypeUrl, more: &str) -> Request {
        let mut names = self.repeated_names().to_vec();
        names.push(more.to_owned());
        self.request(type_url, None, &names, None)
    }

    fn request(
        &self,
        type_url: &TypeUrl,
        answered: Option<&Received>,
        names: &[String],
        error: Option<&ErrorDetail>,
    ) -> Request {
        let type_url = type_url.to_string();
        let response_nonce = answered.map_or_else(String::new, |it| it.nonce.clone());
        match self.protocol {
            Protocol::Sotw => Request::Sotw(SotwRequest {
                type_url,
                version_info: answered.map_or_else(String::new, |it| it.version.clone()),
                resource_names: names.to_vec().into(),
                response_nonce,
                error_detail: error.cloned(),
            }),
            Protocol::Delta => Request::Delta(DeltaRequest {
                type_url,
                subscribe: names.to_vec().into(),
                response_nonce,
                error_detail: error.cloned(),
                ..DeltaRequest::default()
            }),
            Protocol::Mcp => Request::Mcp(McpRequest {
                collection: type_url,
                response_nonce,
                error_detail: error.cloned(),
                incremental: true,
                ..McpRequest::default()
            }),
        }
    }

    fn send(&mut self, at: usize, request: Request, view: &View) {
        let session = &mut self.sessions[at];
        session.handle_request(request, Some(view), self.now).expect("a valid request");
        drop(session.drain_interest());
    }

    /// Acknowledges all pending responses of a session.
    fn acknowledge_all(&mut self, at: usize, view: &View, type_url: &TypeUrl) {
        while let Some(response) = self.sessions[at].poll(Some(view), &self.differ, self.now) {
            let received = Received::of(&response);
            let ack = self.request(type_url, Some(&received), self.repeated_names(), None);
            self.send(at, ack, view);
        }
    }
}

impl Received {
    fn of(response: &Response) -> Self {
        Self { nonce: response.nonce(), version: response.version().to_string() }
    }
}

/// Encodes a response into the pieces for the socket, and returns their total size in bytes.
pub(crate) fn encode(response: Response) -> usize {
    response.into_message("chancery").map(|piece| black_box(piece).len()).sum()
}
