//! A client: the resources that it holds, and its answers. The habits of real clients are in
//! `habits`.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use chancery_protocol::{DeltaRequest, ErrorDetail, Protocol, Request, SotwRequest};

use crate::model::{
    ledger::{Got, Reply},
    naive::{Asked, CDS, EDS, N_TYPES, TYPES, children, is_bad, is_full_state},
    script::{Profile, Tuning},
};

/// The time for which Envoy waits for endpoints, in milliseconds (`initial_fetch_timeout`).
pub(crate) const FETCH_TIMEOUT: u64 = 15_000;

/// A pending answer.
#[derive(Debug, Clone)]
struct Answer {
    nonce: String,
    version: String,
    /// The rejected resources: name and version.
    bad: Vec<(String, String)>,
}

/// The response that is answered.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Which {
    Oldest,
    Newest,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) profile: Profile,
    pub(crate) tuning: Tuning,
    /// The resources in use. They outlive the client's streams.
    pub(crate) held: [BTreeMap<String, Arc<Got>>; N_TYPES],
    answers: [VecDeque<Answer>; N_TYPES],
    pub(crate) muted: [bool; N_TYPES],
    /// The last accepted version.
    pub(crate) accepted: [String; N_TYPES],
    /// The nonce of the last answered response.
    pub(crate) nonce: [String; N_TYPES],
    /// The nonces received on this stream.
    pub(crate) heard: [Vec<String>; N_TYPES],
    /// The list of the last SotW request.
    pub(crate) list: [Vec<String>; N_TYPES],
    /// The resources that the client rejected on this stream.
    pub(crate) rejected: BTreeSet<(usize, String, String)>,
    /// The clusters that wait for their endpoints.
    pub(crate) warming: BTreeMap<String, BTreeSet<String>>,
    pub(crate) warming_since: u64,
    /// The listeners that a gRPC client requests.
    pub(crate) roots: BTreeSet<String>,
    /// Whether a cluster has changed, so that the client requests its endpoints again.
    pub(crate) repeat: bool,
    /// Whether the client has reached the point at which it requests listeners.
    pub(crate) booted: bool,
}

impl Client {
    pub(crate) fn new(profile: Profile, tuning: Tuning) -> Self {
        Self {
            profile,
            tuning,
            held: Default::default(),
            answers: Default::default(),
            muted: [false; N_TYPES],
            accepted: Default::default(),
            nonce: Default::default(),
            heard: Default::default(),
            list: Default::default(),
            rejected: BTreeSet::new(),
            warming: BTreeMap::new(),
            warming_since: 0,
            roots: BTreeSet::from(["a".to_owned()]),
            repeat: false,
            booted: false,
        }
    }

    fn is_envoy(&self) -> bool {
        matches!(self.profile, Profile::EnvoySotw | Profile::EnvoyDelta)
    }

    /// Drops the state of the stream (SOTW-11, CLI-E-10).
    pub(crate) fn on_cut(&mut self) {
        self.answers = Default::default();
        self.nonce = Default::default();
        self.heard = Default::default();
        self.list = Default::default();
        self.rejected.clear();
        self.warming.clear();
        self.repeat = false;
    }

    /// Processes a response: applies the good resources and queues the answer.
    pub(crate) fn take(&mut self, reply: &Reply, asked: &Asked, now: u64) {
        let t = reply.t;
        let mut bad = Vec::new();
        let old = self.held[t].clone();
        if is_full_state(self.profile.protocol(), t) {
            let names: BTreeSet<&String> = reply.resources.iter().map(|got| &got.name).collect();
            self.held[t].retain(|name, _| names.contains(name));
        }
        for got in &reply.resources {
            if !asked.covers(&got.name, &got.aliases) {
                continue;
            }
            if self.tuning.picky && is_bad(&got.body) {
                bad.push((got.name.clone(), got.version.clone()));
                continue;
            }
            self.held[t].insert(got.name.clone(), Arc::clone(got));
        }
        for name in reply.removed.iter().chain(&reply.absent) {
            let stays = |held: &Got| {
                let others = held.aliases.iter().filter(|alias| *alias != name).cloned();
                asked.covers(&held.name, &others.collect::<Vec<_>>())
            };
            self.held[t]
                .retain(|n, held| n != name && (!held.aliases.contains(name) || stays(held)));
        }
        self.heard[t].push(reply.nonce.clone());
        let (nonce, version) = (reply.nonce.clone(), reply.version.clone());
        self.answers[t].push_back(Answer { nonce, version, bad });
        if self.is_envoy() {
            self.warm(reply, &old, now);
        }
    }

    /// Rule 3: a new or changed cluster waits for its endpoints, even if the client has them.
    fn warm(&mut self, reply: &Reply, old: &BTreeMap<String, Arc<Got>>, now: u64) {
        if reply.t == CDS {
            for (name, got) in &self.held[CDS] {
                let endpoints = children(CDS, &got.body).into_iter().map(|(_, name)| name);
                let endpoints: BTreeSet<String> = endpoints.collect();
                if old.get(name) != Some(got) && endpoints.is_empty() {
                    self.warming.remove(name);
                } else if old.get(name) != Some(got) {
                    if self.warming.is_empty() {
                        self.warming_since = now;
                    }
                    self.warming.insert(name.clone(), endpoints);
                    self.repeat = self.tuning.classic;
                }
            }
            let held = &self.held[CDS];
            self.warming.retain(|name, _| held.contains_key(name));
        }
        if reply.t == EDS {
            let came = reply.resources.iter().map(|got| &got.name).chain(&reply.removed);
            let came: BTreeSet<&String> = came.collect();
            self.warming.retain(|_, endpoints| !endpoints.iter().all(|name| came.contains(name)));
        }
    }

    /// CLI-E-16: Envoy delays the ACK of clusters until their endpoints arrive or its timeout ends.
    pub(crate) fn is_warming(&self, now: u64) -> bool {
        !self.warming.is_empty() && self.warming_since + FETCH_TIMEOUT > now
    }

    /// Returns the types with a response that can be answered now.
    pub(crate) fn ready(&self, now: u64) -> Vec<usize> {
        let holds = |t: usize| t == CDS && self.is_envoy() && self.is_warming(now);
        let ready = |t: &usize| !self.answers[*t].is_empty() && !self.muted[*t] && !holds(*t);
        (0..N_TYPES).filter(ready).collect()
    }

    pub(crate) fn has_unanswered(&self) -> bool {
        self.answers.iter().any(|answers| !answers.is_empty())
    }

    /// Answers the oldest response of a type, or the newest (DELTA-19).
    pub(crate) fn answer(&mut self, t: usize, which: Which) -> Option<Request> {
        let answer = match which {
            Which::Oldest => self.answers[t].pop_front()?,
            Which::Newest => self.answers[t].pop_back()?,
        };
        self.nonce[t].clone_from(&answer.nonce);
        let error = (!answer.bad.is_empty())
            .then(|| ErrorDetail { code: 13, message: format!("{:?} is bad", answer.bad) });
        if error.is_none() {
            self.accepted[t] = answer.version;
        }
        self.rejected.extend(answer.bad.into_iter().map(|(name, version)| (t, name, version)));
        Some(self.request(t, DeltaRequest::default(), answer.nonce, error))
    }

    /// Creates a request of the client's protocol: the current list for SotW, or these changes for
    /// delta.
    pub(crate) fn request(
        &self,
        t: usize,
        delta: DeltaRequest,
        response_nonce: String,
        error_detail: Option<ErrorDetail>,
    ) -> Request {
        let type_url = TYPES[t].to_owned();
        match self.profile.protocol() {
            Protocol::Delta => {
                Request::Delta(DeltaRequest { type_url, response_nonce, error_detail, ..delta })
            }
            Protocol::Sotw => Request::Sotw(SotwRequest {
                type_url,
                version_info: self.accepted[t].clone(),
                resource_names: self.list[t].clone().into(),
                response_nonce,
                error_detail,
            }),
            Protocol::Mcp => unreachable!("a test of xDS"),
        }
    }

    /// Drops resources that the client no longer subscribes to.
    pub(crate) fn forget(&mut self, t: usize, asked: &Asked) {
        self.held[t].retain(|name, got| asked.covers(name, &got.aliases));
    }
}
