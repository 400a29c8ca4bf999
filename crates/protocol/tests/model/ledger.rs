//! What one stream was asked for and was sent, kept by hand: the books by which each response is judged.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use chancery_protocol::{DeltaRequest, Protocol, Receipt, Request, SotwRequest, Verdict};

use crate::{
    cover::{Cover, Law, law},
    naive::{
        Asked, CDS, N_TYPES, Seen, Turn, children, is_full_state, is_parent, plain, properties,
    },
};

/// A resource as the client was last sent it, or says that it holds it.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) version: String,
    pub(crate) aliases: Vec<String>,
    pub(crate) at: u64,
}

/// What the client was last told of a name that it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    Absent,
    There,
}

/// Why a parent was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// The client did not have it.
    New,
    /// It had another version.
    Changed,
    /// It asked for it again.
    AskedAgain,
}

/// The books on one type.
#[derive(Debug, Default)]
pub(crate) struct Line {
    pub(crate) asked: Asked,
    /// The opening request says that the client holds something from before.
    pub(crate) resumed: bool,
    pub(crate) opened_at: u64,
    pub(crate) sent: BTreeMap<String, Sent>,
    pub(crate) told: BTreeMap<String, Told>,
    /// Names that were asked for since they were last answered, and whether the request that asked was
    /// up to date (SOTW-34).
    pub(crate) owed: BTreeMap<String, bool>,
    /// Names of nothing that were asked for since the server came to rest: if they come to be, that is
    /// an answer.
    pub(crate) maybe: BTreeSet<String>,
    /// Something was asked for since the server came to rest.
    pub(crate) urgent: bool,
    /// Something was asked for by requests that were not up to date.
    pub(crate) late: bool,
    /// Names that a repeated request may be answered with (ADS-12).
    pub(crate) may: BTreeSet<String>,
    /// Children of a parent that was sent changed (ADS-11).
    pub(crate) child_due: BTreeSet<String>,
    /// Names that were gone from the view for a while since they were sent.
    pub(crate) lapsed: BTreeSet<String>,
    /// Names that the client said it holds though it does not ask for them (DELTA-46).
    pub(crate) extra: BTreeSet<String>,
    /// What had been sent when it was given up with responses unanswered: the client may keep it if it takes
    /// them only when it asks for everything.
    adrift: BTreeSet<String>,
    /// The opening request, or a new wildcard, is answered even with nothing.
    pub(crate) opening: bool,
    /// How many responses had been sent when that was asked for.
    pub(crate) opening_mark: usize,
    /// The request that it answers was up to date.
    pub(crate) opening_fresh: bool,
    /// All of it is to be sent.
    pub(crate) full_due: bool,
    pub(crate) unacked: VecDeque<(String, u64)>,
    /// Delta: the nonces of responses after which a later one was acknowledged, as long as others of their
    /// state are unanswered.
    pub(crate) passed: BTreeSet<String>,
    pub(crate) last_nonce: String,
    /// Revision of the last response.
    pub(crate) revision: u64,
    /// Revisions of all responses.
    pub(crate) revisions: BTreeSet<u64>,
    pub(crate) n_sent: usize,
    /// Since when a change waits to be sent.
    pub(crate) due_since: Option<u64>,
    /// Since when the server may have something to look at: a removal, or nothing that can be seen.
    pub(crate) marked_since: Option<u64>,
    /// The last response had waited for as long as anything waits; what is left of its state may follow.
    pub(crate) overdue: bool,
    /// A parent without known children of this type was sent changed: a repeated request may mean its children.
    childless: bool,
    /// It was rejected something on this stream.
    pub(crate) rejected: bool,
}

/// The books on one stream.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) protocol: Protocol,
    pub(crate) lines: [Line; N_TYPES],
    pub(crate) nonces: BTreeSet<String>,
    /// Several types share the stream.
    pub(crate) aggregated: bool,
}

/// What the answer to a request is, by the naive reading of its nonce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    None,
    Ack,
    Nack,
}

impl Ledger {
    pub(crate) fn new(protocol: Protocol, aggregated: bool) -> Self {
        Self { protocol, lines: Default::default(), nonces: BTreeSet::new(), aggregated }
    }

    /// How long a type may have waited: one that may have changed waits like one that has (ADS-22).
    pub(crate) fn waited(&self, t: usize, now: u64) -> u64 {
        let line = &self.lines[t];
        let since = [line.due_since, line.marked_since].into_iter().flatten().min();
        since.map_or(0, |since| now - since)
    }

    /// Takes a request; says what word on a response it is.
    pub(crate) fn on_request(
        &mut self,
        t: usize,
        request: &Request,
        seen: Option<&Seen>,
        now: u64,
    ) -> Word {
        let before = self.lines[t].asked.clone();
        let (line, protocol) = (&mut self.lines[t], self.protocol);
        let (nonce, error) = match request {
            Request::Sotw(r) => (&r.response_nonce, r.error_detail.is_some()),
            Request::Delta(r) => (&r.response_nonce, r.error_detail.is_some()),
        };
        let first = !line.asked.opened;
        if first {
            line.opened_at = now;
        }
        // SOTW-05, DELTA-05: the nonce of an opening request is of another stream.
        let answered = !first && line.take_answer(protocol, nonce, error);
        match request {
            Request::Sotw(r) => line.on_sotw(t, r, seen, first, answered),
            Request::Delta(r) => line.on_delta(t, r, first, now),
        }
        line.rejected |= answered && error;
        let after = line.asked.clone();
        // A parent that is given up while the rest of a cut state has yet to be sent: its children may have
        // been planned already. With a delta wildcard that ends the rest is dropped, and what stays asked for
        // is sent whether or not it was in it: whether the client has an older one is not known any more, so
        // its children come again (ADS-11 before DELTA-52).
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
            (false, _) => Word::None,
            (true, false) => Word::Ack,
            (true, true) => Word::Nack,
        }
    }

    /// SOTW-20, SOTW-21, DELTA-11: the presence of the error decides, the nonce says what it is about.
    pub(crate) fn check_receipt(word: Word, receipt: &Receipt, cover: &mut Cover) -> Law {
        let found = match &receipt.verdict {
            None => Word::None,
            Some(Verdict::Ack { .. }) => Word::Ack,
            Some(Verdict::Nack { .. }) => Word::Nack,
        };
        law!(found == word, "SOTW-20", "a request is {word:?}, but was taken for {found:?}");
        cover.hit(match word {
            Word::None => "requests that answer nothing",
            Word::Ack => "acks",
            Word::Nack => "nacks",
        });
        Ok(())
    }

    /// Something has changed for the node.
    pub(crate) fn on_commit(&mut self, seen: Option<&Seen>, now: u64) {
        let Some(seen) = seen else { return };
        for (t, line) in self.lines.iter_mut().enumerate() {
            let gone = line.sent.keys().filter(|name| !seen.of[t].contains_key(*name));
            line.lapsed.extend(gone.cloned().collect::<Vec<_>>());
            if self.protocol == Protocol::Sotw && !is_full_state(self.protocol, t) {
                // ADS-20, ADS-26: a request that was not answered yet stays one if what it asks for comes
                // back before it is.
                let Line { owed, maybe, .. } = &mut *line;
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

    /// ADS-11, ADS-14: a parent was sent that is new or changed for the client.
    pub(crate) fn on_parent_sent(&mut self, t: usize, body: &str, why: Why) {
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
            // In delta, a client uses the routes that it has for a new listener or scope; in SotW it may have dropped
            // them. One that asks again for what it was sent may have lost what belongs to it.
            match (t, why) {
                (CDS, Why::New) | (_, Why::Changed) => line.child_due.insert(name),
                (_, Why::New) if self.protocol == Protocol::Sotw => line.child_due.insert(name),
                (_, Why::New) => continue,
                (_, Why::AskedAgain) => line.may.insert(name),
            };
        }
    }
}

impl Line {
    /// Whether the request answers a response, by its nonce. SotW: the last one, and with it those before
    /// it, or an earlier one alone. Delta: that one, and those before it count as taken, but may still
    /// be rejected (DELTA-19).
    fn take_answer(&mut self, protocol: Protocol, nonce: &str, rejects: bool) -> bool {
        if let Some(at) = self.unacked.iter().position(|(known, _)| known == nonce) {
            match protocol {
                Protocol::Sotw if nonce == self.last_nonce => self.unacked.clear(),
                Protocol::Sotw => drop(self.unacked.remove(at)),
                Protocol::Delta => {
                    let over = self.unacked.drain(..=at).map(|(nonce, _)| nonce);
                    self.passed.extend(over.filter(|over| over != nonce));
                }
            }
            return true;
        }
        self.passed.remove(nonce) && rejects
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
        // SOTW-34: the client has caught up, and its list has what it asked for in vain.
        self.owed.values_mut().for_each(|was_fresh| *was_fresh |= fresh);
        self.late |= turn.started || !turn.added.is_empty();
        self.urgent |= fresh && std::mem::take(&mut self.late);
        for name in &turn.added {
            // SOTW-78, SOTW-43: that there is none is said by a full state alone.
            let exists = seen.is_none_or(|seen| seen.get(t, name).is_some());
            if exists || is_full_state(Protocol::Sotw, t) {
                self.owed.insert(name.clone(), fresh);
            } else {
                self.maybe.insert(name.clone());
            }
        }
        let repeats = !first && current && !answered && request.error_detail.is_none();
        if repeats && turn.added.is_empty() && turn.gone.is_empty() && !turn.started {
            // ADS-12: all of them, if unsure.
            if std::mem::take(&mut self.childless) {
                self.may.extend(self.asked.names.iter().cloned());
            }
        }
        if first {
            self.resumed = !request.version_info.is_empty();
            self.opening = is_full_state(Protocol::Sotw, t) && !self.asked.is_empty();
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
        // DELTA-35 is about a wildcard; one that was given up before it was answered needs no answer.
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
                    self.told.insert(name, Told::There);
                } else {
                    self.extra.insert(name);
                }
            }
        }
    }

    /// Forgets what the client no longer asks for (SOTW-44, DELTA-27).
    fn close(&mut self, turn: &Turn) {
        for name in &turn.gone {
            self.told.remove(name);
            self.owed.remove(name);
            self.may.remove(name);
            self.maybe.remove(name);
            self.child_due.remove(name);
        }
        let Self { asked, sent, .. } = self;
        sent.retain(|name, sent| asked.covers(name, &sent.aliases));
        if turn.ended {
            self.owed.retain(|name, _| asked.names.contains(name));
            for name in &self.asked.names {
                let is_there = self.sent.contains_key(name);
                self.told.insert(name.clone(), if is_there { Told::There } else { Told::Absent });
            }
            // A client that does not ask for everything any more is brought to the end of what it
            // still names, even if a part of it was sent.
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

    /// Whether the client asks for something that it was not sent as it is now.
    pub(crate) fn is_behind(&self, t: usize, seen: &Seen) -> bool {
        seen.of[t].values().any(|item| {
            let is_sent = |sent: &Sent| sent.version.starts_with(&base36(item.changed));
            let asked = self.asked.covers(&item.name, &item.aliases);
            asked && !self.sent.get(&item.name).is_some_and(is_sent)
        })
    }

    /// A wait lasts until the server has looked at the type again.
    pub(crate) fn mark_due(&mut self, t: usize, seen: &Seen, now: u64) {
        if self.is_behind(t, seen) {
            self.due_since = self.due_since.or(Some(now));
        }
    }
}

/// How versions begin: the revision and a dash.
pub(crate) fn base36(mut n: u64) -> String {
    let mut digits = Vec::new();
    while n > 0 || digits.is_empty() {
        digits.push(char::from_digit(u32::try_from(n % 36).unwrap(), 36).unwrap());
        n /= 36;
    }
    digits.into_iter().rev().chain(['-']).collect()
}

/// Resources by name, to be compared.
pub(crate) type Content = BTreeMap<String, String>;

/// A response as the laws see it.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) t: usize,
    pub(crate) nonce: String,
    pub(crate) version: String,
    pub(crate) revision: u64,
    pub(crate) resources: Vec<Arc<Got>>,
    pub(crate) removed: Vec<String>,
    pub(crate) absent: Vec<String>,
}

/// A resource as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Got {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) body: String,
    pub(crate) aliases: Vec<String>,
}
