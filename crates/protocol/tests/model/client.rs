//! A client: what it holds, and what it answers. The habits of real ones are in `habits`.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use chancery_protocol::{DeltaRequest, ErrorDetail, Protocol, Request, SotwRequest};

use crate::{
    ledger::{Got, Reply},
    naive::{Asked, CDS, EDS, N_TYPES, TYPES, children, is_bad, is_full_state},
    script::{Profile, Tuning},
};

/// How long Envoy waits for endpoints (`initial_fetch_timeout`).
pub(crate) const FETCH_TIMEOUT: u64 = 15_000;

/// An answer that is to be given.
#[derive(Debug, Clone)]
struct Answer {
    nonce: String,
    version: String,
    /// What it rejects: name and version.
    bad: Vec<(String, String)>,
}

/// Which response is answered.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Which {
    Oldest,
    Newest,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) profile: Profile,
    pub(crate) tuning: Tuning,
    /// What it works with. Outlives its streams.
    pub(crate) held: [BTreeMap<String, Arc<Got>>; N_TYPES],
    answers: [VecDeque<Answer>; N_TYPES],
    pub(crate) muted: [bool; N_TYPES],
    /// The last accepted version.
    pub(crate) accepted: [String; N_TYPES],
    /// The nonce of the last answered response.
    pub(crate) nonce: [String; N_TYPES],
    /// The nonces that it saw on this stream.
    pub(crate) heard: [Vec<String>; N_TYPES],
    /// The list of its last SotW request.
    pub(crate) list: [Vec<String>; N_TYPES],
    /// What it has told the server that it rejects, on this stream.
    pub(crate) rejected: BTreeSet<(usize, String, String)>,
    /// Clusters that wait for their endpoints.
    pub(crate) warming: BTreeMap<String, BTreeSet<String>>,
    pub(crate) warming_since: u64,
    /// The listeners that a gRPC client wants.
    pub(crate) roots: BTreeSet<String>,
    /// A changed cluster whose endpoints are asked for again.
    pub(crate) repeat: bool,
    /// It has come so far as to ask for listeners.
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

    /// The stream is gone, and with it all that belongs to it (SOTW-11, CLI-E-10).
    pub(crate) fn on_cut(&mut self) {
        self.answers = Default::default();
        self.nonce = Default::default();
        self.heard = Default::default();
        self.list = Default::default();
        self.rejected.clear();
        self.warming.clear();
        self.repeat = false;
    }

    /// Takes a response: applies what is good in it (`clients.md` rule 8), and notes the answer.
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

    /// Rule 3: a new or changed cluster waits for its endpoints, even for those that it has.
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

    /// CLI-E-16: Envoy holds the ACK of clusters back until their endpoints are there, or until its
    /// patience ends.
    pub(crate) fn is_warming(&self, now: u64) -> bool {
        !self.warming.is_empty() && self.warming_since + FETCH_TIMEOUT > now
    }

    /// The types of which a response can be answered now.
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
            .then(|| ErrorDetail { code: 13, message: format!("{:?} will not do", answer.bad) });
        if error.is_none() {
            self.accepted[t] = answer.version;
        }
        self.rejected.extend(answer.bad.into_iter().map(|(name, version)| (t, name, version)));
        Some(self.request(t, DeltaRequest::default(), answer.nonce, error))
    }

    /// A request of the client's protocol: SotW with the list as it is, or these changes.
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
        }
    }

    /// A client drops what it no longer asks for.
    pub(crate) fn forget(&mut self, t: usize, asked: &Asked) {
        self.held[t].retain(|name, got| asked.covers(name, &got.aliases));
    }
}
