//! The ledger of one stream: its subscriptions and responses, recorded independently of the
//! session. The rules judge each response by it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use chancery_protocol::{DeltaRequest, Protocol, Receipt, Request, SotwRequest, Verdict};

use crate::model::{
    client::Client,
    cover::{Cover, Law, law},
    naive::{
        Asked, CDS, Item, N_TYPES, Seen, TYPES, Turn, children, is_full_state, is_parent, plain,
        properties, rejects_whole,
    },
};

/// A resource as the client was last sent it, or as it claims to hold it.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) version: String,
    pub(crate) aliases: Vec<String>,
    pub(crate) at: u64,
}

/// The last information that the client received about a name that it subscribes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastReport {
    Absent,
    There,
}

/// The reason for which a parent was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendReason {
    /// The client did not have it.
    New,
    /// The client had another version.
    Changed,
    /// The client requested it again.
    AskedAgain,
}

/// The ledger of one type.
#[derive(Debug, Default)]
pub(crate) struct TypeLedger {
    pub(crate) asked: Asked,
    /// Whether the opening request claims resources of an earlier stream.
    pub(crate) resumed: bool,
    /// SotW: whether the opening request has the version of a state with removed resources, until the server is idle.
    resumes_held: bool,
    pub(crate) opened_at: u64,
    pub(crate) sent: BTreeMap<String, Sent>,
    pub(crate) told: BTreeMap<String, LastReport>,
    /// Names that were requested and not answered since. The value is whether the request was up to
    /// date (SOTW-34).
    pub(crate) owed: BTreeMap<String, bool>,
    /// Names without a resource that were requested since the server was last idle. If a resource
    /// appears, its response is an answer.
    pub(crate) maybe: BTreeSet<String>,
    /// Whether anything was requested since the server was last idle.
    pub(crate) urgent: bool,
    /// Whether anything was requested by requests that were not up to date.
    pub(crate) late: bool,
    /// Names that may be sent in answer to a repeated request (ADS-12).
    pub(crate) may: BTreeSet<String>,
    /// Children of a parent that was sent changed (ADS-11).
    pub(crate) child_due: BTreeSet<String>,
    /// Names that were absent from the view for a while since they were sent.
    pub(crate) lapsed: BTreeSet<String>,
    /// Names that the client claims to hold but does not subscribe to (DELTA-46).
    pub(crate) extra: BTreeSet<String>,
    /// Resources that had been sent when the client unsubscribed from them with responses
    /// unanswered. The client may keep them if it processes those responses only after it has
    /// subscribed to everything.
    adrift: BTreeSet<String>,
    /// Whether the opening request, or a new wildcard, gets a response even if the response is
    /// empty.
    pub(crate) opening: bool,
    /// The number of responses that had been sent at that request.
    pub(crate) opening_mark: usize,
    /// Whether that request was up to date.
    pub(crate) opening_fresh: bool,
    /// Whether the whole view is to be sent.
    pub(crate) full_due: bool,
    pub(crate) unacked: VecDeque<(String, u64)>,
    /// Delta: the nonces that the client skipped by answering a later response, while other
    /// responses of their state are unanswered.
    pub(crate) passed: BTreeSet<String>,
    pub(crate) last_nonce: String,
    /// The revision of the last response.
    pub(crate) revision: u64,
    /// The revisions of all responses.
    pub(crate) revisions: BTreeSet<u64>,
    pub(crate) n_sent: usize,
    /// The time since which a change waits to be sent.
    pub(crate) due_since: Option<u64>,
    /// The time since which the server may have a mark to process: a removal, or a change without a
    /// visible effect.
    pub(crate) marked_since: Option<u64>,
    /// Whether the last response had waited for the maximum time. The rest of its state may follow.
    pub(crate) overdue: bool,
    /// A changed parent without known children of this type was sent. A repeated request may ask
    /// for its children.
    childless: bool,
    /// Whether the client rejected a response on this stream.
    pub(crate) rejected: bool,
    /// Whether rejected resources and removals may be sent again, because the cause of the rejection may have
    /// ended.
    pub(crate) may_retry: bool,
    /// The revision and the resources of each unanswered response.
    contents: BTreeMap<String, (u64, Vec<(String, String)>)>,
    /// The resources of all responses of each revision. If the client rejects a part of a first state, all of it
    /// counts as rejected.
    parts: BTreeMap<u64, Vec<(String, String)>>,
    /// The rejected resources and their versions, until they are replaced or accepted.
    refused: BTreeMap<String, String>,
    /// Whether a rejected resource is gone since the others were sent again. They may be sent again once.
    lost_one: bool,
    /// The rest of the resources that are being sent again for this reason.
    repeatable: BTreeSet<String>,
    /// SotW: the names with an error, until their resource is sent.
    pub(crate) reported: BTreeSet<String>,
}

/// The ledger of one stream.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) protocol: Protocol,
    pub(crate) lines: [TypeLedger; N_TYPES],
    pub(crate) nonces: BTreeSet<String>,
    /// Whether the stream carries several types.
    pub(crate) aggregated: bool,
}

/// The kind of answer in a request, by the naive reading of its nonce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerKind {
    None,
    Ack,
    Nack,
}

impl Ledger {
    pub(crate) fn new(protocol: Protocol, aggregated: bool) -> Self {
        Self { protocol, lines: Default::default(), nonces: BTreeSet::new(), aggregated }
    }

    /// Returns how long a type may have waited. A mark without a visible change also counts
    /// (ADS-22).
    pub(crate) fn waited(&self, t: usize, now: u64) -> u64 {
        let line = &self.lines[t];
        let since = [line.due_since, line.marked_since].into_iter().flatten().min();
        since.map_or(0, |since| now - since)
    }

    /// Records a request and returns the kind of answer in it.
    pub(crate) fn on_request(
        &mut self,
        t: usize,
        request: &Request,
        seen: Option<&Seen>,
        now: u64,
    ) -> AnswerKind {
        let before = self.lines[t].asked.clone();
        let (line, protocol) = (&mut self.lines[t], self.protocol);
        let (nonce, error) = match request {
            Request::Sotw(r) => (&r.response_nonce, r.error_detail.is_some()),
            Request::Delta(r) => (&r.response_nonce, r.error_detail.is_some()),
            Request::Mcp(_) => unreachable!("a test of xDS"),
        };
        let first = !line.asked.opened;
        if first {
            line.opened_at = now;
        }
        // SOTW-05, DELTA-05: the nonce of an opening request belongs to another stream.
        let answered = !first && line.take_answer(protocol, nonce, error);
        if answered {
            line.on_verdict(nonce, error);
        }
        match request {
            Request::Sotw(r) => line.on_sotw(t, r, seen, first, answered),
            Request::Delta(r) => line.on_delta(t, r, first, now),
            Request::Mcp(_) => unreachable!("a test of xDS"),
        }
        line.rejected |= answered && error;
        line.may_retry |= answered && error && rejects_whole(protocol, t);
        if answered && !error {
            for (other, line) in self.lines.iter_mut().enumerate() {
                line.may_retry |=
                    line.rejected && properties(other).retried_after.contains(&TYPES[t]);
            }
        }
        let line = &self.lines[t];
        let after = line.asked.clone();
        // If the client unsubscribes from a parent while the rest of a split state is unsent, the
        // children of the parent may already be planned. If a delta wildcard ends, the rest is
        // dropped, and the names that stay subscribed are sent whether or not the rest had them.
        // Whether the client has an older version is no longer known, so their children are sent
        // again (ADS-11 before DELTA-52).
        let ended = protocol == Protocol::Delta && before.wildcard && !after.wildcard;
        let given_up = before.names.difference(&after.names);
        let stays = after.names.iter().filter(|_| ended);
        for item in given_up.chain(stays).filter_map(|name| seen?.of[t].get(name)) {
            for (child, name) in children(t, &item.body) {
                if self.lines[child].asked.covers(&name, &[]) {
                    self.lines[child].may.insert(name);
                }
            }
        }
        match (answered, error) {
            (false, _) => AnswerKind::None,
            (true, false) => AnswerKind::Ack,
            (true, true) => AnswerKind::Nack,
        }
    }

    /// SOTW-20, SOTW-21, DELTA-11: the presence of the error decides, and the nonce identifies the
    /// response.
    pub(crate) fn check_receipt(word: AnswerKind, receipt: &Receipt, cover: &mut Cover) -> Law {
        let found = match &receipt.verdict {
            None => AnswerKind::None,
            Some(Verdict::Ack { .. }) => AnswerKind::Ack,
            Some(Verdict::Nack { .. }) => AnswerKind::Nack,
        };
        law!(
            found == word,
            "SOTW-20",
            "the request is {word:?}, but the session treated it as {found:?}"
        );
        cover.hit(match word {
            AnswerKind::None => "requests that answer nothing",
            AnswerKind::Ack => "acks",
            AnswerKind::Nack => "nacks",
        });
        Ok(())
    }

    /// Records that the view of the node has changed.
    pub(crate) fn on_commit(&mut self, seen: Option<&Seen>, now: u64) {
        let Some(seen) = seen else { return };
        for (t, line) in self.lines.iter_mut().enumerate() {
            let gone = line.sent.keys().filter(|name| !seen.of[t].contains_key(*name));
            line.lapsed.extend(gone.cloned().collect::<Vec<_>>());
            if self.protocol == Protocol::Sotw && !is_full_state(self.protocol, t) {
                // ADS-20, ADS-26: an unanswered request stays valid if its resource reappears
                // before the answer.
                let TypeLedger { owed, maybe, .. } = &mut *line;
                owed.retain(|name, _| {
                    let exists = seen.get(t, name).is_some();
                    if !exists {
                        maybe.insert(name.clone());
                    }
                    exists
                });
            }
            line.mark_due(t, seen, now);
        }
    }

    /// ADS-11, ADS-14: records that a parent was sent that is new or changed for the client.
    pub(crate) fn on_parent_sent(&mut self, t: usize, body: &str, why: SendReason) {
        let children = children(t, body);
        for (child, line) in self.lines.iter_mut().enumerate() {
            let has_known = children.iter().any(|(known, _)| *known == child);
            line.childless |= is_parent(t, child) && !has_known;
        }
        for (child, name) in children {
            let line = &mut self.lines[child];
            if !line.asked.covers(&name, &[]) {
                continue;
            }
            // In delta, a client uses the routes that it has for a new listener or scope. In SotW,
            // it may have dropped them. A client that requests a sent resource again may have lost
            // its children.
            match (t, why) {
                (CDS, SendReason::New) | (_, SendReason::Changed) => line.child_due.insert(name),
                (_, SendReason::New) if self.protocol == Protocol::Sotw => {
                    line.child_due.insert(name)
                }
                (_, SendReason::New) => continue,
                (_, SendReason::AskedAgain) => line.may.insert(name),
            };
        }
    }
}

impl TypeLedger {
    /// Returns whether the request answers a response, by its nonce. In SotW, the last nonce
    /// answers all responses, and an earlier nonce only its own. In delta, a nonce also accepts the
    /// earlier responses, but the client may still reject them (DELTA-19).
    fn take_answer(&mut self, protocol: Protocol, nonce: &str, rejects: bool) -> bool {
        if let Some(at) = self.unacked.iter().position(|(known, _)| known == nonce) {
            match protocol {
                Protocol::Sotw if nonce == self.last_nonce => self.unacked.clear(),
                Protocol::Sotw => drop(self.unacked.remove(at)),
                Protocol::Delta => {
                    let over = self.unacked.drain(..=at).map(|(nonce, _)| nonce);
                    self.passed.extend(over.filter(|over| over != nonce));
                }
                Protocol::Mcp => unreachable!("a test of xDS"),
            }
            return true;
        }
        self.passed.remove(nonce) && rejects
    }

    /// Records what an answer says about the resources of its response.
    fn on_verdict(&mut self, nonce: &str, is_rejected: bool) {
        let Some((revision, mut contents)) = self.contents.remove(nonce) else { return };
        if is_rejected {
            contents = self.parts[&revision].clone();
        }
        for (name, version) in contents {
            if is_rejected {
                self.refused.insert(name, version);
            } else if self.refused.get(&name) == Some(&version) {
                self.refused.remove(&name);
            }
        }
        // A later response may have replaced them before the answer.
        let Self { refused, sent, .. } = self;
        let is_replaced =
            |name: &&String| sent.get(*name).is_none_or(|sent| sent.version != refused[*name]);
        let replaced: Vec<String> = refused.keys().filter(is_replaced).cloned().collect();
        replaced.iter().for_each(|name| self.on_gone(name));
    }

    /// Records that the client no longer has a resource, or has another version of it.
    fn on_gone(&mut self, name: &str) {
        self.lost_one |= self.refused.remove(name).is_some();
    }

    /// Returns whether a rejected resource may be sent again. SotW clients are not told that a resource is gone.
    pub(crate) fn may_repeat(&self, name: &str, t: usize, seen: &Seen) -> bool {
        let is_gone = |name: &String| seen.get(t, name).is_none();
        self.repeatable.contains(name)
            || (self.refused.contains_key(name)
                && (self.lost_one || self.refused.keys().any(is_gone)))
    }

    /// Records the resources of a response.
    pub(crate) fn on_contents(&mut self, reply: &Reply) {
        let is_repeated = |got: &Arc<Got>| self.refused.get(&got.name) == Some(&got.version);
        if self.lost_one && reply.resources.iter().any(is_repeated) {
            self.lost_one = false;
            self.repeatable = self.refused.keys().cloned().collect();
        }
        for got in &reply.resources {
            self.repeatable.remove(&got.name);
            if self.refused.get(&got.name).is_some_and(|version| *version != got.version) {
                self.on_gone(&got.name);
            }
        }
        reply.removed.iter().for_each(|name| self.on_gone(name));
        let contents = reply.resources.iter().map(|got| (got.name.clone(), got.version.clone()));
        let contents: Vec<_> = contents.collect();
        self.parts.entry(reply.revision).or_default().extend(contents.clone());
        self.contents.insert(reply.nonce.clone(), (reply.revision, contents));
    }

    fn on_sotw(
        &mut self,
        t: usize,
        request: &SotwRequest,
        seen: Option<&Seen>,
        first: bool,
        answered: bool,
    ) {
        let turn = self.asked.sotw(t, request);
        let current = request.response_nonce == self.last_nonce;
        let fresh = first || request.response_nonce.is_empty() || current;
        // SOTW-34: the client has caught up, and its list includes the names whose requests were
        // stale.
        self.owed.values_mut().for_each(|was_fresh| *was_fresh |= fresh);
        self.late |= turn.started || !turn.added.is_empty();
        self.urgent |= fresh && std::mem::take(&mut self.late);
        for name in &turn.added {
            // SOTW-78, SOTW-43: only a full state can report that a resource does not exist.
            let exists = seen.is_none_or(|seen| seen.get(t, name).is_some());
            if exists || is_full_state(Protocol::Sotw, t) {
                self.owed.insert(name.clone(), fresh);
            } else {
                self.maybe.insert(name.clone());
            }
        }
        let repeats = !first && current && !answered && request.error_detail.is_none();
        if repeats && turn.added.is_empty() && turn.gone.is_empty() && !turn.started {
            // ADS-12: all names, because the ledger does not know which.
            if std::mem::take(&mut self.childless) {
                self.may.extend(self.asked.names.iter().cloned());
            }
        }
        if first {
            self.resumed = !request.version_info.is_empty();
            self.opening = is_full_state(Protocol::Sotw, t) && !self.asked.is_empty();
            self.resumes_held = request.version_info.contains("-held-") && self.asked.wildcard;
        }
        if turn.started {
            (self.full_due, self.opening, self.opening_fresh) = (true, true, fresh);
        }
        self.opening_fresh |= fresh;
        self.close(&turn);
    }

    fn on_delta(&mut self, t: usize, request: &DeltaRequest, first: bool, now: u64) {
        let before = self.asked.names.clone();
        let turn = self.asked.delta(t, request);
        if (turn.ended || !turn.gone.is_empty()) && !self.unacked.is_empty() {
            self.adrift.extend(self.sent.keys().cloned());
        }
        self.close(&turn);
        for name in plain(&request.unsubscribe.to_vec()).intersection(&before) {
            self.told.remove(name);
            // DELTA-24.
            if self.asked.wildcard {
                self.owed.insert(name.clone(), true);
            }
        }
        for name in plain(&request.subscribe.to_vec()) {
            self.owed.insert(name, true);
        }
        // DELTA-35 is about a wildcard. A wildcard that ends before its answer needs no answer.
        self.opening &= !turn.ended;
        self.urgent |= turn.started || !self.owed.is_empty();
        if turn.started {
            (self.opening, self.opening_fresh) = (properties(t).answer_empty, true);
            self.opening_mark = self.n_sent;
            self.extra.append(&mut self.adrift);
        }
        if first {
            self.resumed = !request.initial_resource_versions.is_empty();
            for (name, version) in request.initial_resource_versions.to_vec() {
                if name.is_empty() {
                    continue;
                }
                let aliases = Vec::new();
                let sent = Sent { version, aliases, at: now };
                if self.asked.covers(&name, &[]) {
                    self.sent.insert(name.clone(), sent);
                    self.told.insert(name, LastReport::There);
                } else {
                    self.extra.insert(name);
                }
            }
        }
    }

    /// Removes the state of names that the client no longer subscribes to (SOTW-44, DELTA-27).
    fn close(&mut self, turn: &Turn) {
        for name in &turn.gone {
            self.told.remove(name);
            self.owed.remove(name);
            self.may.remove(name);
            self.maybe.remove(name);
            self.child_due.remove(name);
            self.reported.remove(name);
        }
        let Self { asked, sent, .. } = self;
        sent.retain(|name, sent| asked.covers(name, &sent.aliases));
        let lost: Vec<String> =
            self.refused.keys().filter(|name| !sent.contains_key(*name)).cloned().collect();
        lost.iter().for_each(|name| self.on_gone(name));
        if turn.ended {
            let asked = &self.asked;
            self.owed.retain(|name, _| asked.names.contains(name));
            for name in &self.asked.names {
                let is_there = self.sent.contains_key(name);
                self.told.insert(
                    name.clone(),
                    if is_there { LastReport::There } else { LastReport::Absent },
                );
            }
            // A client that ends its wildcard is sent everything that it still names, even if a
            // part was sent before.
            self.may.extend(self.asked.names.iter().cloned());
        }
        if self.asked.is_empty() {
            (self.opening, self.full_due) = (false, false);
        }
        let asked = &self.asked;
        self.child_due.retain(|name| asked.covers(name, &[]));
        if asked.is_empty() {
            self.due_since = None;
        }
    }

    /// Returns whether the client subscribes to a resource whose current version it was not sent.
    pub(crate) fn is_behind(&self, t: usize, seen: &Seen) -> bool {
        seen.of[t].values().any(|item| {
            let is_sent = |sent: &Sent| sent.version.starts_with(&base36(item.changed));
            let asked = self.asked.covers(&item.name, &item.aliases);
            asked && !self.sent.get(&item.name).is_some_and(is_sent)
        })
    }

    /// Records that the client resumes with a version that only this state and removed resources have, and holds the
    /// whole state. It is sent nothing then (ADS-08).
    pub(crate) fn resume_held(&mut self, t: usize, seen: &Seen, client: &Client, now: u64) {
        if !std::mem::take(&mut self.resumes_held) || self.n_sent > 0 {
            return;
        }
        let held = &client.held[t];
        let has = |(name, item): (&String, &Arc<Item>)| {
            held.get(name).is_some_and(|got| got.version.starts_with(&base36(item.changed)))
        };
        if seen.of[t].iter().all(has) {
            let sent = |got: &Arc<Got>| Sent {
                version: got.version.clone(),
                aliases: got.aliases.clone(),
                at: now,
            };
            self.sent = held.iter().map(|(name, got)| (name.clone(), sent(got))).collect();
            self.told.extend(held.keys().map(|name| (name.clone(), LastReport::There)));
            (self.opening, self.full_due) = (false, false);
        }
    }

    /// Starts a wait, which lasts until the server has processed the type again.
    pub(crate) fn mark_due(&mut self, t: usize, seen: &Seen, now: u64) {
        if self.is_behind(t, seen) {
            self.due_since = self.due_since.or(Some(now));
        }
    }
}

/// Returns the start of a version: the revision in base 36, and a dash.
pub(crate) fn base36(mut n: u64) -> String {
    let mut digits = Vec::new();
    while n > 0 || digits.is_empty() {
        digits.push(char::from_digit(u32::try_from(n % 36).unwrap(), 36).unwrap());
        n /= 36;
    }
    digits.into_iter().rev().chain(['-']).collect()
}

/// Resources by name, for comparison.
pub(crate) type Content = BTreeMap<String, String>;

/// A response in the form that the rules check.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) t: usize,
    pub(crate) nonce: String,
    pub(crate) version: String,
    pub(crate) revision: u64,
    pub(crate) resources: Vec<Arc<Got>>,
    pub(crate) removed: Vec<String>,
    pub(crate) absent: Vec<String>,
    pub(crate) errors: Vec<String>,
}

/// A received resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Got {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) body: String,
    pub(crate) aliases: Vec<String>,
}
