//! The clients of the walk: a stream of SotW or delta, and a poller.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use chancery_model::types;
use chancery_protocol::{
    Config, DeltaRequest, ErrorDetail, PollResponse, Protocol, Request, Response, Session,
    SotwRequest, StreamKind,
};
use chancery_view::{Differ, View};

use super::{Held, WALKED, number};
use crate::model::naive::{N_TYPES, TYPES, is_bad, is_full_state, type_url};

/// The subscriptions, which all clients have. The name `*` is the wildcard.
#[derive(Debug, Clone, Default)]
pub(super) struct Wanted {
    pub(super) of: [BTreeSet<String>; N_TYPES],
}

impl Wanted {
    pub(super) fn covers(&self, t: usize, name: &str) -> bool {
        self.of[t].contains(name) || self.of[t].contains("*")
    }

    fn list(&self, t: usize) -> Vec<String> {
        self.of[t].iter().cloned().collect()
    }
}

/// A client of a stream with all types.
pub(super) struct Stream {
    protocol: Protocol,
    pub(super) session: Session,
    /// The resources that the client has accepted: body and version.
    pub(super) held: BTreeMap<(usize, String), (String, String)>,
    /// The last accepted version of each type.
    accepted: [String; N_TYPES],
    /// The nonce of the last answered response of each type.
    nonces: [String; N_TYPES],
    /// The responses to be answered: type, nonce, version, and whether they had bad content.
    unanswered: VecDeque<(usize, String, String, bool)>,
}

fn session(protocol: Protocol, bytes_target: usize) -> Session {
    let config = Config {
        ack_timeout_ms: 5_000,
        resume_hold_ms: 1_000,
        drain_hold_ms: 10_000,
        response_bytes_target: bytes_target,
        ..Config::DEFAULTS
    };
    Session::new(StreamKind { protocol, type_url: None }, Arc::new(config))
}

impl Stream {
    pub(super) fn new(protocol: Protocol) -> Self {
        Self {
            protocol,
            session: session(protocol, 1 << 20),
            held: BTreeMap::new(),
            accepted: Default::default(),
            nonces: Default::default(),
            unanswered: VecDeque::new(),
        }
    }

    pub(super) fn rejects(&self) -> bool {
        self.session.status().iter().any(|status| status.nack.is_some())
    }

    fn send(&mut self, t: usize, delta: DeltaRequest, sotw: SotwRequest, view: &View, now: u64) {
        let type_url = TYPES[t].to_owned();
        let request = match self.protocol {
            Protocol::Sotw => Request::Sotw(SotwRequest { type_url, ..sotw }),
            Protocol::Delta => Request::Delta(DeltaRequest { type_url, ..delta }),
            Protocol::Mcp => unreachable!("a test of xDS"),
        };
        self.session.handle_request(request, Some(view), now).unwrap();
        drop(self.session.drain_interest());
    }

    /// Changes the subscription to one type.
    pub(super) fn want(
        &mut self,
        t: usize,
        before: &Wanted,
        after: &Wanted,
        view: &View,
        now: u64,
    ) {
        let (old, new) = (&before.of[t], &after.of[t]);
        let delta = DeltaRequest {
            subscribe: new.difference(old).cloned().collect::<Vec<_>>().into(),
            unsubscribe: old.difference(new).cloned().collect::<Vec<_>>().into(),
            ..DeltaRequest::default()
        };
        let sotw = self.sotw(t, after, self.nonces[t].clone());
        self.send(t, delta, sotw, view, now);
        self.held.retain(|(of, name), _| *of != t || after.covers(t, name));
    }

    fn sotw(&self, t: usize, wanted: &Wanted, response_nonce: String) -> SotwRequest {
        SotwRequest {
            version_info: self.accepted[t].clone(),
            resource_names: wanted.list(t).into(),
            response_nonce,
            ..SotwRequest::default()
        }
    }

    /// Takes up to `room` responses. Returns their number.
    pub(super) fn take(
        &mut self,
        room: usize,
        wanted: &Wanted,
        view: &View,
        differ: &Differ,
        now: u64,
    ) -> usize {
        for n in 0..room {
            match self.session.poll(Some(view), differ, now) {
                Some(response) => self.apply(&response, wanted),
                None => return n,
            }
        }
        room
    }

    /// Takes over the good resources of a response.
    fn apply(&mut self, response: &Response, wanted: &Wanted) {
        let t = number(response.type_url().as_str());
        if is_full_state(self.protocol, t) {
            let names: BTreeSet<&str> = response.resources().map(|r| r.name().as_str()).collect();
            self.held.retain(|(of, name), _| *of != t || names.contains(name.as_str()));
        }
        for name in response.removed().iter().chain(response.absent()) {
            self.held.remove(&(t, name.to_string()));
        }
        let mut is_bad_response = false;
        for resource in response.resources() {
            let body = String::from_utf8(resource.body().unwrap().to_vec()).unwrap();
            let name = resource.name().to_string();
            if is_bad(&body) {
                is_bad_response = true;
            } else if wanted.covers(t, &name) {
                self.held.insert((t, name), (body, resource.version().to_string()));
            }
        }
        let (nonce, version) = (response.nonce(), response.version().to_string());
        self.unanswered.push_back((t, nonce, version, is_bad_response));
    }

    /// Answers the oldest response. Returns whether the answer is a NACK; `None` without a response.
    pub(super) fn answer(&mut self, wanted: &Wanted, view: &View, now: u64) -> Option<bool> {
        let (t, nonce, version, is_nack) = self.unanswered.pop_front()?;
        self.nonces[t].clone_from(&nonce);
        if !is_nack {
            self.accepted[t] = version;
        }
        let error_detail = is_nack.then(|| ErrorDetail { code: 13, message: "bad".to_owned() });
        let delta = DeltaRequest {
            response_nonce: nonce.clone(),
            error_detail: error_detail.clone(),
            ..DeltaRequest::default()
        };
        let sotw = SotwRequest { error_detail, ..self.sotw(t, wanted, nonce) };
        self.send(t, delta, sotw, view, now);
        Some(is_nack)
    }

    /// Starts a new stream. After a restart, the client has no resources.
    pub(super) fn cut(
        &mut self,
        is_restart: bool,
        bytes_target: usize,
        wanted: &Wanted,
        view: &View,
        now: u64,
    ) {
        self.session = session(self.protocol, bytes_target);
        self.unanswered.clear();
        self.nonces = Default::default();
        if is_restart {
            self.held.clear();
            self.accepted = Default::default();
        }
        for t in WALKED.into_iter().filter(|t| !wanted.of[*t].is_empty()) {
            let held = self.held.iter().filter(|((of, _), _)| *of == t);
            let versions = held.map(|((_, name), (_, version))| (name.clone(), version.clone()));
            let delta = DeltaRequest {
                subscribe: wanted.list(t).into(),
                initial_resource_versions: versions.collect(),
                ..DeltaRequest::default()
            };
            let sotw = self.sotw(t, wanted, String::new());
            self.send(t, delta, sotw, view, now);
        }
    }
}

/// A client that polls.
#[derive(Default)]
pub(super) struct Rest {
    pub(super) held: Held,
    /// The last accepted version of each type.
    accepted: [String; N_TYPES],
    /// The names of the last poll of each type.
    polled: [Vec<String>; N_TYPES],
}

impl Rest {
    /// Drops the resources of a type if the client no longer polls it. Another change of the names takes
    /// effect with the next poll.
    pub(super) fn want(&mut self, t: usize, wanted: &Wanted) {
        if wanted.of[t].is_empty() {
            self.held.retain(|(of, _), _| *of != t);
            self.accepted[t].clear();
        }
    }

    /// Polls each type once. Returns the number of accepted responses, and counts the rejected ones.
    pub(super) fn poll(&mut self, wanted: &Wanted, view: &View, nacks: &mut u64) -> usize {
        let mut n_accepted = 0;
        for t in WALKED.into_iter().filter(|t| !wanted.of[*t].is_empty()) {
            self.held.retain(|(of, name), _| *of != t || wanted.covers(t, name));
            let list = wanted.list(t);
            // Like Envoy, a poller of one name has no version of other names.
            if list != self.polled[t] && list.len() == 1 {
                self.accepted[t].clear();
            }
            self.polled[t].clone_from(&list);
            let (names, of_type) = (list.into(), view.of_type(&type_url(t)));
            let properties = types::properties(&type_url(t));
            let response =
                PollResponse::decide(&of_type, properties, &names, &self.accepted[t], false);
            let PollResponse::Changed { version, content } = response else { continue };
            let (mut resources, mut previous) = (BTreeMap::new(), None);
            while let Some(next) = content.next_after(previous.as_ref(), resources.len()) {
                let body = String::from_utf8(next.body().unwrap().to_vec()).unwrap();
                resources.insert((t, next.name().to_string()), body);
                previous = Some(next.name().clone());
            }
            if is_full_state(Protocol::Sotw, t) {
                self.held.retain(|key, _| key.0 != t || resources.contains_key(key));
            }
            let n = resources.len();
            resources.retain(|_, body| !is_bad(body));
            if resources.len() == n {
                self.accepted[t] = version;
                n_accepted += 1;
            } else {
                *nacks += 1;
            }
            self.held.extend(resources);
        }
        n_accepted
    }
}
