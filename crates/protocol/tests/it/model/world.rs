//! A server with one client: the session on one side, the ledger and the naive view on the other.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use chancery_model::{
    Assignment, AssignmentOp, Incarnation, Node, NodeMatcher, ResourceDraft, ResourceKey,
    ResourceName, ScopeName, ScopeTemplate, State, Transaction, TypeUrl, Upsert,
};
use chancery_protocol::{Config, InterestChange, Request, Response, Session, StreamKind};
use chancery_view::{Differ, View, changed_collections};

use crate::model::{
    client::{Client, Which},
    cover::{Cover, Law, law},
    laws::CheckContext,
    ledger::{Content, Got, Ledger, Reply},
    naive::{Asked, Change, N_TYPES, Oracle, SCOPES, TYPES, children, is_full_state, type_url},
    order,
    script::{Case, Tuning},
};

pub(crate) const ACK_TIMEOUT: u64 = 5_000;
pub(crate) const RESUME_HOLD: u64 = 1_000;

/// The time for which the removals of clusters are kept back for listeners that drain, in milliseconds.
pub(crate) const DRAIN_HOLD: u64 = 10_000;

/// The maximum number of responses without another event between them.
const BURST_MAX: usize = 200;

#[derive(Debug)]
pub(crate) struct World<'a> {
    pub(crate) state: State,
    pub(crate) oracle: Oracle,
    pub(crate) session: Session,
    pub(crate) ledger: Ledger,
    pub(crate) client: Client,
    pub(crate) now: u64,
    pub(crate) cover: &'a mut Cover,
    differ: Differ,
    /// The time since which the caller polls whenever the session asks for it.
    pub(crate) prompt_since: Option<u64>,
    /// The log of requests and responses, if one is wanted.
    pub(crate) log: Option<&'a mut Vec<String>>,
    /// The responses in flight.
    pub(crate) pipe: VecDeque<Reply>,
    /// The names that the session watches, as in the index of the fan-out.
    interest: BTreeSet<(TypeUrl, Option<ResourceName>)>,
    /// Earlier requests.
    pub(crate) past: Vec<(usize, Request)>,
    /// The resources that were sent, by type, name and version.
    resources: BTreeMap<(usize, String, String), Arc<Got>>,
    /// The full states that were sent, by type and version.
    wholes: BTreeMap<(usize, String), Content>,
}

fn session(tuning: &Tuning, case: &Case) -> Session {
    let config = Config {
        ack_timeout_ms: ACK_TIMEOUT,
        resume_hold_ms: RESUME_HOLD,
        drain_hold_ms: DRAIN_HOLD,
        response_bytes_target: tuning.bytes_target,
        first_state_listed_max: tuning.listed_max,
        resource_errors: tuning.errors,
        ..Config::DEFAULTS
    };
    let kind =
        StreamKind { protocol: case.profile.protocol(), type_url: tuning.only.map(type_url) };
    Session::new(kind, Arc::new(config))
}

fn short(t: usize) -> &'static str {
    TYPES[t].rsplit('.').next().unwrap_or_default()
}

fn shown(t: usize, request: &Request) -> String {
    let (parts, nonce, error) = match request {
        Request::Sotw(r) => (
            format!("{:?} v={}", r.resource_names, r.version_info),
            &r.response_nonce,
            &r.error_detail,
        ),
        Request::Delta(r) => {
            let held = &r.initial_resource_versions;
            let parts = format!("+{:?} -{:?} irv={held:?}", r.subscribe, r.unsubscribe);
            (parts, &r.response_nonce, &r.error_detail)
        }
        Request::Mcp(_) => unreachable!("a test of xDS"),
    };
    let nack = if error.is_some() { " nack" } else { "" };
    format!("{} {parts} @{nonce}{nack}", short(t))
}

/// Returns changes as a transaction.
pub(crate) fn transaction(changes: &[Change]) -> Transaction {
    let mut transaction = Transaction::default();
    for change in changes {
        let scope = ScopeName::new(SCOPES[change.scope]).unwrap();
        let name = |name: &String| ResourceName::new(name).unwrap();
        let key = ResourceKey { type_url: type_url(change.t), name: name(&change.name) };
        let Some((body, aliases)) = &change.content else {
            transaction.deletes.push((scope, key));
            continue;
        };
        let mut draft = ResourceDraft::new(key, Bytes::copy_from_slice(body.as_bytes()));
        draft.aliases = aliases.iter().map(name).collect();
        let children = children(change.t, body).into_iter();
        draft.children = children
            .map(|(t, child)| ResourceKey { type_url: type_url(t), name: name(&child) })
            .collect();
        transaction.upserts.push(Upsert { scope, draft });
    }
    transaction
}

/// Returns the assignment of a list of scopes to every node.
pub(crate) fn assignment(scopes: &[usize]) -> AssignmentOp {
    AssignmentOp::Put(Assignment {
        name: "default".into(),
        priority: i64::MIN,
        matcher: NodeMatcher::default(),
        scopes: scopes.iter().map(|at| ScopeTemplate::parse(SCOPES[*at]).unwrap()).collect(),
    })
}

impl Reply {
    fn shown(&self) -> String {
        let resources = self.resources.iter().map(|g| format!(" {}={}", g.name, g.body));
        let gone = self.removed.iter().map(|name| format!(" -{name}"));
        let absent = self.absent.iter().map(|name| format!(" ~{name}"));
        let errors = self.errors.iter().map(|name| format!(" ?{name}"));
        let all: String = resources.chain(gone).chain(absent).chain(errors).collect();
        format!("{} @{} v={}{all}", short(self.t), self.nonce, self.version)
    }
}

impl<'a> World<'a> {
    pub(crate) fn new(case: &Case, cover: &'a mut Cover, log: Option<&'a mut Vec<String>>) -> Self {
        let tuning = &case.tuning;
        Self {
            state: State::new(Incarnation(3)),
            oracle: Oracle::new(),
            session: session(tuning, case),
            ledger: Ledger::new(case.profile.protocol(), tuning.only.is_none()),
            client: Client::new(case.profile, tuning.clone()),
            now: 1_000_000,
            cover,
            prompt_since: None,
            log,
            differ: Differ::new(),
            pipe: VecDeque::new(),
            interest: BTreeSet::new(),
            past: Vec::new(),
            resources: BTreeMap::new(),
            wholes: BTreeMap::new(),
        }
    }

    pub(crate) fn asked(&self) -> [Asked; N_TYPES] {
        std::array::from_fn(|t| self.ledger.lines[t].asked.clone())
    }

    /// Logs a line of the conversation.
    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(line());
        }
    }

    fn view(&self) -> Option<View> {
        let node = Node::default();
        let rule = self.state.assignments.for_node(&node)?;
        Some(View::resolve(&self.state, &rule.scopes_for(&node)))
    }

    // === the server's side ===

    pub(crate) fn commit(&mut self, changes: &[Change]) -> Law {
        self.note(|| {
            let shown = changes.iter().map(|c| match &c.content {
                Some((body, _)) => format!("{}:{}/{}={body}", c.scope, short(c.t), c.name),
                None => format!("-{}:{}/{}", c.scope, short(c.t), c.name),
            });
            format!("commit {}", shown.collect::<Vec<_>>().join(" "))
        });
        self.oracle.commit(changes, self.now);
        self.apply(&transaction(changes))
    }

    /// Assigns another list of scopes to the node, or none.
    pub(crate) fn assign(&mut self, scopes: Option<&Vec<usize>>) -> Law {
        let op = match scopes {
            None => AssignmentOp::Delete("default".into()),
            Some(list) => assignment(list),
        };
        self.note(|| format!("scopes {scopes:?}"));
        self.oracle.assign(scopes.cloned(), self.now);
        self.cover.hit_if(scopes.is_none(), "no assignment");
        self.apply(&Transaction { assignments: vec![op], ..Transaction::default() })
    }

    /// Applies a transaction like a shard: only interested sessions are marked.
    fn apply(&mut self, transaction: &Transaction) -> Law {
        let next = self.state.apply(transaction).state;
        let before = std::mem::replace(&mut self.state, next);
        let (found, wanted) = (self.state.revision.0, self.oracle.revision());
        law!(found == wanted, "SOTW-14", "the state is at revision {found}, not at {wanted}");
        if before.revision == self.state.revision {
            self.cover.hit("commits that change nothing");
            return Ok(());
        }
        self.cover.hit("commits");
        if before.assignments.changed != self.state.assignments.changed {
            self.session.handle_new_view();
            for line in &mut self.ledger.lines {
                line.marked_since = line.marked_since.or(Some(self.now));
            }
        }
        let node = Node::default();
        let rule = self.state.assignments.for_node(&node);
        let scopes = rule.map_or_else(Vec::new, |rule| rule.scopes_for(&node));
        for delta in changed_collections(&self.differ, &before, &self.state) {
            if !scopes.contains(delta.scope()) {
                continue;
            }
            let t = TYPES.iter().position(|url| *url == delta.type_url().as_str()).unwrap();
            let line = &mut self.ledger.lines[t];
            line.marked_since = line.marked_since.or(Some(self.now));
            if self.client.tuning.tells_all {
                self.session.handle_changes(&delta);
                continue;
            }
            let names: BTreeSet<&ResourceName> = delta.names().collect();
            for (type_url, name) in &self.interest {
                let concerns = name.as_ref().is_none_or(|name| names.contains(name));
                if type_url == delta.type_url() && concerns {
                    self.session.handle_change(type_url, name.as_ref());
                }
            }
        }
        self.ledger.on_commit(self.oracle.seen().map(|seen| &**seen), self.now);
        Ok(())
    }

    /// Polls while there are responses and the transport has room. Returns the number of responses.
    pub(crate) fn poll(&mut self, room: usize) -> Result<usize, crate::model::cover::Breach> {
        let view = self.view();
        for n in 0..room {
            law!(n < BURST_MAX, "ADS-22", "the session never stops sending responses");
            let response = self.session.poll(view.as_ref(), &self.differ, self.now);
            let Some(response) = response else {
                self.check_rest()?;
                return Ok(n);
            };
            law!(view.is_some(), "OPS-05", "a response without an assignment");
            let reply = self.read(&response)?;
            let now = self.now;
            self.note(|| format!("{now} <- {}", reply.shown()));
            let mut context = CheckContext {
                oracle: &self.oracle,
                now: self.now,
                ack_timeout: ACK_TIMEOUT,
                bytes_target: self.client.tuning.bytes_target,
                errors: self.client.tuning.errors,
                prompt_since: self.prompt_since,
                cover: self.cover,
            };
            order::check_removals(&self.ledger, &self.client, &reply, &mut context)?;
            self.ledger.on_reply(&reply, &mut context)?;
            self.pipe.push_back(reply);
        }
        self.cover.hit("no room in the transport");
        Ok(room)
    }

    /// Converts a response to the client's form. SOTW-14, SOTW-15, DELTA-51: a name and a version
    /// always stand for the same bytes, and the version of a type for the same full state.
    fn read(&mut self, response: &Response) -> Result<Reply, crate::model::cover::Breach> {
        let t = TYPES.iter().position(|url| *url == response.type_url().as_str()).unwrap();
        let mut resources = Vec::new();
        for resource in response.resources() {
            let got = Arc::new(Got {
                name: resource.name().to_string(),
                version: resource.version().to_string(),
                body: String::from_utf8(resource.body().unwrap().to_vec()).unwrap(),
                aliases: resource.aliases().iter().map(ToString::to_string).collect(),
            });
            let key = (t, got.name.clone(), got.version.clone());
            let known = self.resources.entry(key).or_insert_with(|| Arc::clone(&got));
            law!(*known == got, "SOTW-15", "{got:?} has the version of {known:?}");
            resources.push(got);
        }
        let version = response.version().to_string();
        let line = &self.ledger.lines[t];
        if is_full_state(self.ledger.protocol, t) && line.asked.wildcard {
            let whole: Content =
                resources.iter().map(|got| (got.name.clone(), got.version.clone())).collect();
            // Names beside the wildcard add nothing, because the wildcard covers the view.
            let known = self.wholes.entry((t, version.clone())).or_insert_with(|| whole.clone());
            law!(*known == whole, "SOTW-15", "version {version} is {whole:?} and {known:?}");
        }
        let names = |list: &[ResourceName]| list.iter().map(ToString::to_string).collect();
        Ok(Reply {
            t,
            nonce: response.nonce(),
            version,
            revision: response.revision().0,
            resources,
            removed: names(response.removed()),
            absent: names(response.absent()),
            errors: names(response.errors()),
        })
    }

    // === the client's side ===

    pub(crate) fn send(&mut self, t: usize, request: Request) -> Law {
        if self.client.tuning.only.is_some_and(|only| only != t) {
            return Ok(());
        }
        let now = self.now;
        self.note(|| format!("{now} -> {}", shown(t, &request)));
        self.past.push((t, request.clone()));
        if let Request::Sotw(request) = &request {
            self.client.list[t] = request.resource_names.to_vec();
        }
        let view = self.view();
        let first = !self.ledger.lines[t].asked.opened;
        if first && let Request::Delta(request) = &request {
            self.claim(t, &request.initial_resource_versions.to_vec());
        }
        let seen = self.oracle.seen().map(|seen| &**seen);
        let word = self.ledger.on_request(t, &request, seen, self.now);
        let receipt = self.session.handle_request(request, view.as_ref(), self.now);
        let receipt = match receipt {
            Ok(receipt) => receipt,
            Err(error) => {
                law!(false, "SOTW-110", "the session rejected a request: {error}");
                return Ok(());
            }
        };
        Ledger::check_receipt(word, &receipt, self.cover)?;
        self.client.forget(t, &self.ledger.lines[t].asked);
        if let Some(seen) = self.oracle.seen() {
            self.ledger.lines[t].mark_due(t, seen, self.now);
        }
        self.take_interest()
    }

    /// Gives the client the resources that it claims to hold when it opens a type.
    fn claim(&mut self, t: usize, versions: &[(String, String)]) {
        self.cover.hit_if(!versions.is_empty(), "opening requests with held versions");
        let claimed =
            versions.iter().filter(|(name, _)| !name.is_empty()).map(|(name, version)| {
                let key = (t, name.clone(), version.clone());
                let unknown = || {
                    let (name, version, body) = (name.clone(), version.clone(), "?".to_owned());
                    Arc::new(Got { name, version, body, aliases: Vec::new() })
                };
                (name.clone(), self.resources.get(&key).cloned().unwrap_or_else(unknown))
            });
        self.client.held[t] = claimed.collect();
    }

    /// Updates the index with the changes that the session reports, and checks it against the
    /// complete interest.
    fn take_interest(&mut self) -> Law {
        for interest in self.session.drain_interest() {
            match interest {
                InterestChange::Name(t, name) => drop(self.interest.insert((t, Some(name)))),
                InterestChange::NoName(t, name) => drop(self.interest.remove(&(t, Some(name)))),
                InterestChange::Wildcard(t) => drop(self.interest.insert((t, None))),
                InterestChange::NoWildcard(t) => drop(self.interest.remove(&(t, None))),
            }
        }
        let mut wanted = BTreeSet::new();
        for (t, line) in self.ledger.lines.iter().enumerate() {
            if line.asked.wildcard {
                wanted.insert((type_url(t), None));
            }
            let name = |name: &String| ResourceName::requested(name).unwrap();
            wanted.extend(line.asked.names.iter().map(|n| (type_url(t), Some(name(n)))));
        }
        let (noted, all) = (&self.interest, self.session.interest());
        law!(*noted == wanted, "SOTW-40", "interest is {noted:?}, not {wanted:?}");
        law!(all.len() == wanted.len(), "SOTW-40", "interest is {all:?}, not {wanted:?}");
        Ok(())
    }

    pub(crate) fn deliver(&mut self, n: usize) {
        for _ in 0..n {
            let Some(reply) = self.pipe.pop_front() else { return };
            self.client.take(&reply, &self.ledger.lines[reply.t].asked, self.now);
        }
    }

    pub(crate) fn habits(&mut self) -> Law {
        let asked = self.asked();
        for (t, request) in self.client.habits(&asked, self.now) {
            self.send(t, request)?;
        }
        Ok(())
    }

    pub(crate) fn answer(&mut self, t: usize, which: Which) -> Law {
        match self.client.answer(t, which) {
            Some(request) => self.send(t, request),
            None => Ok(()),
        }
    }

    /// Breaks the stream. The next request belongs to a new stream.
    pub(crate) fn cut(&mut self, case: &Case) {
        self.session = session(&case.tuning, case);
        let aggregated = self.ledger.aggregated;
        self.ledger = Ledger::new(self.ledger.protocol, aggregated);
        self.pipe.clear();
        self.interest.clear();
        self.client.on_cut();
        self.cover.hit("streams that break");
        self.note(|| "cut".to_owned());
    }
}
