//! The requests of clients with habits, which follow from the resources that they hold (CLI-E,
//! CLI-G).

use std::collections::BTreeSet;

use chancery_protocol::{DeltaRequest, Protocol, Request};

use crate::model::{
    client::Client,
    naive::{Asked, CDS, EDS, LDS, N_TYPES, RDS, references},
    script::Profile,
};

type Names = BTreeSet<String>;

impl Client {
    /// Returns the requests that the client sends now. `asked` has its subscriptions on this
    /// stream.
    pub(crate) fn habits(&mut self, asked: &[Asked; N_TYPES], now: u64) -> Vec<(usize, Request)> {
        match self.profile {
            Profile::EnvoySotw | Profile::EnvoyDelta => self.envoy(asked, now),
            Profile::Grpc => self.grpc(asked),
            Profile::AnySotw | Profile::AnyDelta => Vec::new(),
        }
    }

    /// CLI-E-01, -02, -12, -16, -17, CLI-E-38: clusters, their endpoints, then listeners and their
    /// routes.
    fn envoy(&mut self, asked: &[Asked; N_TYPES], now: u64) -> Vec<(usize, Request)> {
        let mut out = Vec::new();
        if !asked[CDS].opened {
            out.push((CDS, self.open(CDS)));
        }
        let endpoints = self.children_of(CDS, EDS);
        let repeat = std::mem::take(&mut self.repeat) && asked[EDS].opened;
        if endpoints != asked[EDS].names {
            out.extend(self.ask(EDS, &asked[EDS], &endpoints));
        } else if repeat && !endpoints.is_empty() && self.profile == Profile::EnvoySotw {
            // Rule 3: a repeated request, with the nonce of the last answered response.
            out.push((EDS, self.repeated(EDS)));
        }
        self.booted |= !self.heard[CDS].is_empty() && !self.is_warming(now);
        if !asked[LDS].opened && self.booted {
            out.push((LDS, self.open(LDS)));
        }
        let mut routes = self.children_of(LDS, RDS);
        // CLI-E-17: Envoy requests the old and new routes together until it has acknowledged the
        // listeners.
        if self.heard[LDS].last().is_some_and(|last| *last != self.nonce[LDS]) {
            routes.extend(asked[RDS].names.iter().cloned());
        }
        if routes != asked[RDS].names {
            out.extend(self.ask(RDS, &asked[RDS], &routes));
        }
        out
    }

    /// CLI-G-02, -07, -09: names from the listener down. An old cluster is dropped when the new
    /// clusters and their endpoints have arrived.
    fn grpc(&mut self, asked: &[Asked; N_TYPES]) -> Vec<(usize, Request)> {
        let mut out = Vec::new();
        let routes = self.children_of(LDS, RDS);
        let mut clusters = self.children_of(RDS, CDS);
        let works = clusters.iter().all(|name| {
            self.held[CDS].get(name).is_some_and(|got| {
                references(CDS, &got.body).iter().all(|(t, n)| self.held[*t].contains_key(n))
            })
        });
        if !works {
            clusters.extend(asked[CDS].names.iter().cloned());
        }
        let endpoints = self.children_of(CDS, EDS);
        let roots = self.roots.clone();
        for (t, names) in [(LDS, roots), (RDS, routes), (CDS, clusters), (EDS, endpoints)] {
            if names != asked[t].names {
                out.extend(self.ask(t, &asked[t], &names));
            }
        }
        out
    }

    fn children_of(&self, parent: usize, child: usize) -> Names {
        let held = self.held[parent].values();
        let all = held.flat_map(|got| references(parent, &got.body));
        all.filter(|(t, _)| *t == child).map(|(_, name)| name).collect()
    }

    /// Subscribes to a whole type, with the resources held from earlier streams.
    fn open(&mut self, t: usize) -> Request {
        let delta = DeltaRequest {
            initial_resource_versions: self.versions(t).into(),
            ..DeltaRequest::default()
        };
        self.list[t].clear();
        self.request(t, delta, String::new(), None)
    }

    fn repeated(&mut self, t: usize) -> Request {
        self.request(t, DeltaRequest::default(), self.nonce[t].clone(), None)
    }

    /// Changes the subscription to these names. A type is not opened without names.
    fn ask(&mut self, t: usize, asked: &Asked, names: &Names) -> Option<(usize, Request)> {
        if !asked.opened && names.is_empty() {
            return None;
        }
        let versions = if asked.opened { Vec::new() } else { self.versions(t) };
        let delta = DeltaRequest {
            subscribe: names.difference(&asked.names).cloned().collect(),
            unsubscribe: asked.names.difference(names).cloned().collect(),
            initial_resource_versions: versions.into(),
            ..DeltaRequest::default()
        };
        self.list[t] = names.iter().cloned().collect();
        let nonce = match self.profile.protocol() {
            Protocol::Sotw => self.nonce[t].clone(),
            Protocol::Delta => String::new(),
            Protocol::Mcp => unreachable!("a test of xDS"),
        };
        Some((t, self.request(t, delta, nonce, None)))
    }

    /// Returns the names and versions that the client holds (CLI-E-21).
    pub(crate) fn versions(&self, t: usize) -> Vec<(String, String)> {
        let held = self.held[t].values();
        held.map(|got| (got.name.clone(), got.version.clone())).collect()
    }
}
