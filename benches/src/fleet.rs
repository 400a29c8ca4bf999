//! Sessions over the views of a world, and what a commit makes each of them do.

use std::{hint::black_box, sync::Arc};

use chancery_model::{ResourceName, TypeUrl};
use chancery_protocol::{
    Config, DeltaRequest, ErrorDetail, Protocol, Request, Response, Session, SotwRequest,
    StreamKind,
};
use chancery_view::{Differ, View, changed_collections};

use crate::{
    stopwatch::{Stopwatch, Tally},
    world::{World, name},
};

/// Times of one kind of session, by what it does.
#[derive(Debug, Default)]
pub(crate) struct Tallies {
    pub(crate) poll: Tally,
    pub(crate) encode: Tally,
    pub(crate) ack: Tally,
    pub(crate) nack: Tally,
    pub(crate) subscribe: Tally,
    pub(crate) subscribed: Tally,
}

/// How a client answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Ack,
    Nack,
}

/// Sessions that all ask for the same, each over the next view.
#[derive(Debug)]
pub(crate) struct Fleet {
    protocol: Protocol,
    /// Numbers of the resources that the sessions name; empty for a wildcard.
    named: Vec<usize>,
    names: Vec<String>,
    sessions: Vec<Session>,
    differ: Differ,
    now: u64,
}

/// A response as the client remembers it.
struct Received {
    nonce: String,
    version: String,
}

/// Full states are sent whole here: cutting them into parts is measured elsewhere.
pub(crate) fn config() -> Arc<Config> {
    Arc::new(Config { response_bytes_target: usize::MAX, ..Config::DEFAULTS })
}

impl Fleet {
    /// Opens sessions and brings them up to date.
    pub(crate) fn synced(world: &World, protocol: Protocol, named: Vec<usize>, n: usize) -> Self {
        let mut fleet = Self::opened(world, protocol, named, n);
        for at in 0..fleet.sessions.len() {
            fleet.settle(at, &world.view(at), &world.type_url);
        }
        fleet
    }

    /// Opens sessions and has them ask.
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
            fleet.take(at, first, &view);
        }
        fleet
    }

    /// Number of sessions.
    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// A resource that all sessions ask for.
    pub(crate) fn asked(&self, world: &mut World) -> usize {
        let any = world.any();
        if self.named.is_empty() { any } else { self.named[any % self.named.len()] }
    }

    /// Changes one resource, sends it to all sessions and has them answer it.
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
                session.on_change(&world.type_url, changed);
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
                let again = self.again();
                self.request(&world.type_url, Some(received), again, error)
            })
            .collect();
        let tally = match answer {
            Answer::Ack => &mut tallies.ack,
            Answer::Nack => &mut tallies.nack,
        };
        watch.time(tally, n, || {
            for ((session, view), answer) in self.sessions.iter_mut().zip(&views).zip(answers) {
                drop(black_box(session.on_request(answer, Some(view), self.now)));
            }
        });
    }

    /// Sends all that there is to sessions that have nothing yet, and has them reject it.
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
            .map(|it| self.request(&world.type_url, Some(it), self.again(), Some(&error)))
            .collect();
        watch.time(tally, views.len(), || {
            for ((session, view), answer) in self.sessions.iter_mut().zip(&views).zip(answers) {
                drop(black_box(session.on_request(answer, Some(view), self.now)));
            }
        });
    }

    /// Has every session ask for one more name, and give it up again.
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
        let requests: Vec<Request> = (0..n).map(|_| self.ask(&world.type_url, &more)).collect();
        watch.time(&mut tallies.subscribe, n, || {
            for ((session, view), request) in self.sessions.iter_mut().zip(&views).zip(requests) {
                drop(black_box(session.on_request(request, Some(view), self.now)));
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
                self.again(),
                None,
            ) {
                Request::Delta(ack) => {
                    Request::Delta(DeltaRequest { unsubscribe: vec![more.clone()].into(), ..ack })
                }
                sotw @ Request::Sotw(_) => sotw,
            };
            self.take(at, request, &views[at]);
            self.settle(at, &views[at], &world.type_url);
        }
    }

    /// The new views, with the difference known as a shard knows it before it polls.
    fn commit(&mut self, world: &mut World, resource: usize) -> Vec<View> {
        let transaction = world.change(&[resource]);
        let new = world.state.apply(&transaction).state;
        black_box(changed_collections(&self.differ, &world.state, &new));
        world.state = new;
        self.views(world)
    }

    /// Of each session.
    fn views(&self, world: &World) -> Vec<View> {
        (0..self.sessions.len()).map(|at| world.view(at)).collect()
    }

    /// What a client lists in a request that asks for nothing new.
    fn again(&self) -> &[String] {
        match self.protocol {
            Protocol::Sotw => &self.names,
            Protocol::Delta => &[],
        }
    }

    fn ask(&self, type_url: &TypeUrl, more: &str) -> Request {
        let mut names = self.again().to_vec();
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
        }
    }

    fn take(&mut self, at: usize, request: Request, view: &View) {
        let session = &mut self.sessions[at];
        session.on_request(request, Some(view), self.now).expect("a request that is taken");
        drop(session.drain_interest());
    }

    /// Acknowledges all that the session still sends.
    fn settle(&mut self, at: usize, view: &View, type_url: &TypeUrl) {
        while let Some(response) = self.sessions[at].poll(Some(view), &self.differ, self.now) {
            let ack = self.request(type_url, Some(&Received::of(&response)), self.again(), None);
            self.take(at, ack, view);
        }
    }
}

impl Received {
    fn of(response: &Response) -> Self {
        Self { nonce: response.nonce(), version: response.version().to_string() }
    }
}

/// Makes the pieces that go to the socket. Returns their bytes.
pub(crate) fn encode(response: Response) -> usize {
    response.into_message("chancery").map(|piece| black_box(piece).len()).sum()
}
