//! The rules for every response, checked against the ledger of the stream and the naive view.

use std::collections::BTreeSet;

use chancery_model::types::Properties;
use chancery_protocol::Protocol;

use crate::model::{
    cover::{Cover, Law, law},
    ledger::{Content, Got, LastReport, Ledger, Reply, SendReason, Sent, TypeLedger},
    naive::{N_TYPES, Oracle, Seen, TYPES, is_full_state, properties, rejects_whole},
    order,
};

/// The context in which a response is checked.
pub(crate) struct CheckContext<'a> {
    pub(crate) oracle: &'a Oracle,
    pub(crate) now: u64,
    pub(crate) ack_timeout: u64,
    pub(crate) bytes_target: usize,
    /// Whether resource errors are enabled.
    pub(crate) errors: bool,
    /// The time since which the caller polls whenever the session asks for it, and no event occurs
    /// except the passage of time.
    pub(crate) prompt_since: Option<u64>,
    pub(crate) cover: &'a mut Cover,
}

impl Ledger {
    /// Checks a response and records it in the ledger.
    pub(crate) fn on_reply(&mut self, reply: &Reply, context: &mut CheckContext<'_>) -> Law {
        let t = reply.t;
        context.cover.hit("responses");
        context.cover.add("resources", reply.resources.len());
        context.cover.add("removals", reply.removed.len());
        context.cover.add("absent names reported by alias", reply.absent.len());
        self.check_form(reply, context)?;
        let Some(seen) = context.oracle.seen_at(reply.revision) else {
            law!(false, "OPS-05", "a response though the node has no assignment: {reply:?}");
            return Ok(());
        };
        let full = is_full_state(self.protocol, t);
        self.lines[t].check_content(reply, full, seen, context)?;
        self.lines[t].check_asked(reply, seen)?;
        self.lines[t].check_errors(reply, self.protocol, seen, context)?;
        check_size(reply, full || rejects_whole(self.protocol, t), context)?;
        self.check_pace(reply, context)?;
        self.lines[t].check_wait(t, context)?;
        if full {
            self.lines[t].check_full_state(reply, seen, context)?;
        } else {
            self.lines[t].check_needed(reply, seen, context)?;
        }
        if self.aggregated {
            order::check_additions(self, reply, seen, context)?;
        }
        self.enter(reply, full, seen, context);
        Ok(())
    }

    /// Checks the form of a response.
    ///
    /// SOTW-10, DELTA-10: the nonce is new and not empty. SOTW-17: the version is not empty.
    /// SOTW-92: no state is older than a previous one. Late binding: a response is built from the
    /// newest state, unless it is the rest of a split state. SOTW-74, DELTA-47: no name occurs
    /// twice.
    fn check_form(&mut self, reply: &Reply, context: &CheckContext<'_>) -> Law {
        let line = &self.lines[reply.t];
        law!(!reply.nonce.is_empty(), "SOTW-10", "the nonce is empty");
        law!(
            self.nonces.insert(reply.nonce.clone()),
            "SOTW-10",
            "nonce {} is repeated",
            reply.nonce
        );
        law!(!reply.version.is_empty(), "SOTW-17", "the version is empty");
        let (old, new) = (line.revision, context.oracle.revision());
        law!(reply.revision >= old, "SOTW-92", "revision {} after {old}", reply.revision);
        let is_rest = line.n_sent > 0 && reply.revision == old;
        // A type that directly follows other types is planned together with them.
        let follows =
            self.types_before(reply.t).any(|t| self.lines[t].revisions.contains(&reply.revision));
        law!(
            reply.revision == new || is_rest || follows,
            "design 4.6",
            "built from revision {} at {new}",
            reply.revision
        );
        let mut names = BTreeSet::new();
        let aliases = |got: &Got| match self.protocol {
            Protocol::Delta => got.aliases.clone(),
            Protocol::Sotw => Vec::new(),
            Protocol::Mcp => unreachable!("a test of xDS"),
        };
        let own = reply.resources.iter().map(|got| got.name.clone());
        let others = reply.resources.iter().flat_map(|got| aliases(got));
        let said = reply.removed.iter().chain(&reply.absent).cloned();
        for name in own.chain(others).chain(said) {
            law!(names.insert(name.clone()), "DELTA-47", "{name} occurs twice: {reply:?}");
        }
        let says = !reply.removed.is_empty() || !reply.absent.is_empty();
        law!(!(says && self.protocol == Protocol::Sotw), "SOTW-78", "SotW cannot express removals");
        Ok(())
    }

    /// SOTW-36: while a response is unanswered, the next response of its type waits for the ACK
    /// timeout. Exceptions are a new request of the client, and the rest of a split state.
    fn check_pace(&self, reply: &Reply, context: &mut CheckContext<'_>) -> Law {
        let line = &self.lines[reply.t];
        let waits = |at: u64| at + context.ack_timeout > context.now;
        let Some((_, at)) = line.unacked.back().filter(|(_, at)| waits(*at)) else {
            context.cover.hit_if(!line.unacked.is_empty(), "sent after an ACK timeout");
            return Ok(());
        };
        let asked = line.opening || line.urgent || line.owed.values().any(|fresh| *fresh);
        let is_rest = self.protocol == Protocol::Delta && reply.revision == line.revision;
        let hurries = self.is_awaited(reply.t, context);
        context.cover.hit_if(hurries && !asked && !is_rest, "sent early for a later type");
        law!(
            asked || is_rest || hurries,
            "SOTW-36",
            "a response is unanswered since {at}, the time is {}: {reply:?}",
            context.now
        );
        context.cover.hit_if(asked, "answers during an unanswered response");
        context.cover.hit_if(is_rest && !asked, "parts of a split state");
        Ok(())
    }

    /// Returns the types that must be sent before this one.
    fn types_before(&self, t: usize) -> impl Iterator<Item = usize> {
        let Properties { after, behind, .. } = properties(t);
        let before = move |other: &usize| {
            let url = TYPES[*other];
            after.contains(&url) || behind.contains(&url)
        };
        (0..N_TYPES).filter(move |_| self.aggregated).filter(before)
    }

    /// ADS-06, ADS-22, ADS-26: returns whether a later type must no longer wait, because it
    /// has waited for an ACK timeout or was requested.
    fn is_awaited(&self, t: usize, context: &CheckContext<'_>) -> bool {
        (0..N_TYPES).filter(|other| self.types_before(*other).any(|before| before == t)).any(
            |other| {
                let line = &self.lines[other];
                let asked = line.opening || line.urgent || !line.owed.is_empty();
                // The ledger does not record since when a child waits to be sent again.
                asked
                    || !line.child_due.is_empty()
                    || self.waited(other, context.now) >= context.ack_timeout
            },
        )
    }

    fn enter(&mut self, reply: &Reply, full: bool, seen: &Seen, context: &mut CheckContext<'_>) {
        let is_late = self.waited(reply.t, context.now) >= context.ack_timeout;
        let line = &mut self.lines[reply.t];
        line.overdue = is_late || (line.overdue && reply.revision == line.revision);
        let mut parents = Vec::new();
        for got in &reply.resources {
            let old = line.sent.get(&got.name).map(|sent| sent.version.clone());
            let again = line.opening
                || line.full_due
                || line.owed.contains_key(&got.name)
                || line.may_retry
                || line.may_repeat(&got.name, reply.t, seen);
            let changed = old.as_ref() != Some(&got.version);
            let why = match (changed, old.is_none()) {
                (true, true) => Some(SendReason::New),
                (true, false) => Some(SendReason::Changed),
                (false, _) => again.then_some(SendReason::AskedAgain),
            };
            parents.extend(why.map(|why| (got.body.clone(), why)));
            let was_due = line.child_due.contains(&got.name);
            context
                .cover
                .hit_if(was_due && old.as_ref() == Some(&got.version), "children sent again");
        }
        if full {
            // The client drops resources that are not in the response.
            let names: BTreeSet<&String> = reply.resources.iter().map(|got| &got.name).collect();
            line.sent.retain(|name, _| names.contains(name));
            line.owed.clear();
            line.lapsed.clear();
            (line.full_due, line.opening) = (false, false);
        }
        for got in &reply.resources {
            line.enter_resource(got, context.now);
            // The rest of a split state may have resources that no longer exist.
            let now = context.oracle.seen();
            if now.is_some_and(|now| now.get(reply.t, &got.name).is_none()) {
                line.lapsed.insert(got.name.clone());
            }
        }
        for name in &reply.removed {
            line.enter_removal(name);
        }
        for name in &reply.absent {
            // A report of absence does not remove the resource that the client holds, or that it
            // knows by the name. A removal does.
            line.owed.remove(name);
            if !line.sent.contains_key(name) && !line.extra.contains(name) {
                line.enter_absence(name);
            }
        }
        line.enter_errors(reply);
        line.on_contents(reply);
        // The rest of an earlier split state may come first.
        let is_empty = reply.resources.is_empty() && reply.removed.is_empty();
        line.opening &= self.protocol == Protocol::Delta && !is_empty;
        if line.unacked.is_empty() {
            line.passed.clear();
        }
        line.unacked.push_back((reply.nonce.clone(), context.now));
        line.last_nonce.clone_from(&reply.nonce);
        line.revision = reply.revision;
        line.revisions.insert(reply.revision);
        line.may_retry &= rejects_whole(self.protocol, reply.t);
        line.n_sent += 1;
        line.due_since = None;
        line.mark_due(reply.t, context.oracle.seen().map_or(seen, |seen| seen), context.now);
        for (body, why) in parents {
            self.on_parent_sent(reply.t, &body, why);
        }
    }
}

/// OPS-12, DELTA-53: checks that responses are split at the byte target, by names as well as
/// resources.
fn check_size(reply: &Reply, is_whole: bool, context: &mut CheckContext<'_>) -> Law {
    let n = reply.resources.len() + reply.removed.len() + reply.absent.len();
    // Each resource takes at least its body and two bytes. Each name takes at least its length, or
    // twice its length, and two bytes.
    let resources = reply.resources.iter().map(|got| got.body.len() + 2);
    let removed = reply.removed.iter().map(|name| name.len() + 2);
    let absent = reply.absent.iter().map(|name| 2 * name.len() + 2);
    let bytes: usize = resources.chain(removed).chain(absent).sum();
    context.cover.hit_if(reply.removed.len() > 1, "responses with several removals");
    law!(is_whole || n < 2 || bytes <= context.bytes_target, "OPS-12", "{bytes} bytes: {reply:?}");
    Ok(())
}

impl TypeLedger {
    /// ADS-22: checks that other types delay a change by at most one ACK timeout, after the type's
    /// own. For a type that depends on clusters, the wait counts from its last cluster, and lasts at
    /// most three ACK timeouts.
    fn check_wait(&self, t: usize, context: &CheckContext<'_>) -> Law {
        let (Some(since), Some(prompt)) = (self.due_since, context.prompt_since) else {
            return Ok(());
        };
        let since = since.max(prompt);
        let own = self.unacked.back().map_or(0, |(_, at)| at + context.ack_timeout);
        let waits = if properties(t).after.is_empty() { 1 } else { 3 };
        let end = since.max(own) + waits * context.ack_timeout;
        law!(context.now <= end, "ADS-22", "sent at {}, the latest time was {end}", context.now);
        Ok(())
    }

    /// SOTW-93, SOTW-14: checks that a response shows the state of one revision. A full state may
    /// hold back removed resources, in the client's version, until nothing refers to them (ADS-08).
    fn check_content(
        &self,
        reply: &Reply,
        full: bool,
        seen: &Seen,
        context: &mut CheckContext<'_>,
    ) -> Law {
        for got in &reply.resources {
            match seen.of[reply.t].get(&got.name) {
                Some(item) => {
                    let same = item.body == got.body && item.aliases == got.aliases;
                    let begins = crate::model::ledger::base36(item.changed);
                    law!(
                        same && got.version.starts_with(&begins),
                        "SOTW-93",
                        "{got:?} is not {item:?} of revision {}",
                        reply.revision
                    );
                }
                None => {
                    let known = self.sent.get(&got.name).map(|sent| &sent.version);
                    law!(
                        full && known == Some(&got.version),
                        "SOTW-93",
                        "{got:?} does not exist at revision {}, and was sent as {known:?}",
                        reply.revision
                    );
                    context.cover.hit("resources held back in a full state");
                }
            }
        }
        Ok(())
    }

    /// SOTW-48, SOTW-46, DELTA-28, DELTA-56: checks that the client subscribes to everything in the
    /// response. DELTA-46: removals of resources that it claims to hold are allowed.
    fn check_asked(&self, reply: &Reply, seen: &Seen) -> Law {
        for got in &reply.resources {
            let asked = self.asked.covers(&got.name, &got.aliases);
            law!(asked, "SOTW-48", "{} was not requested", got.name);
        }
        for name in reply.removed.iter().chain(&reply.absent) {
            let aliases = self.sent.get(name).map_or(&[][..], |sent| &sent.aliases);
            let asked = self.asked.covers(name, aliases)
                || self.extra.contains(name)
                || self.owed.contains_key(name);
            law!(asked, "DELTA-28", "{name} was not requested, but is removed");
            law!(seen.get(reply.t, name).is_none(), "P-30", "{name} exists, but is removed");
        }
        Ok(())
    }

    /// SOTW-70, SOTW-73, SOTW-43: checks that a full state is complete. SOTW-90, SOTW-23: it is
    /// sent only if it differs from the previous one, or was requested.
    fn check_full_state(&self, reply: &Reply, seen: &Seen, context: &mut CheckContext<'_>) -> Law {
        let now: Content =
            (reply.resources.iter()).map(|got| (got.name.clone(), got.version.clone())).collect();
        for name in seen.of[reply.t].keys() {
            let asked = self.asked.covers(name, &[]);
            law!(!asked || now.contains_key(name), "SOTW-70", "{name} is missing: {reply:?}");
        }
        let before: Content =
            self.sent.iter().map(|(name, sent)| (name.clone(), sent.version.clone())).collect();
        let asked = self.opening || self.full_due || !self.owed.is_empty();
        law!(
            asked || before != now || !self.lapsed.is_empty() || self.may_retry,
            "SOTW-90",
            "sent again although nothing has changed: {reply:?}"
        );
        context.cover.hit_if(asked, "requested full states");
        context.cover.hit_if(
            before.keys().any(|name| !now.contains_key(name)),
            "full states with fewer resources",
        );
        Ok(())
    }

    /// Checks that each part of the response has a reason.
    ///
    /// SOTW-90, SOTW-75, DELTA-52: a resource is new or changed for the client, or the client has
    /// requested it since it was sent, or a parent was sent again (ADS-11). A rejection is not a
    /// reason (SOTW-23, DELTA-16, DELTA-17). DELTA-44, DELTA-40, P-30: a removal is sent once, for
    /// a resource that the client has or has just requested. DELTA-55, SOTW-79: an empty response
    /// answers only a first request, of a type for which clients wait.
    fn check_needed(&self, reply: &Reply, seen: &Seen, context: &mut CheckContext<'_>) -> Law {
        let owes = |name: &String| self.owed.contains_key(name) || self.may.contains(name);
        for got in &reply.resources {
            let all = || std::iter::once(&got.name).chain(&got.aliases);
            let other = self.sent.get(&got.name).is_none_or(|sent| sent.version != got.version);
            let asked = all().any(owes);
            let child = all().any(|name| self.child_due.contains(name));
            let lapsed = self.lapsed.contains(&got.name);
            law!(
                other
                    || asked
                    || child
                    || lapsed
                    || self.may_retry
                    || self.may_repeat(&got.name, reply.t, seen),
                "DELTA-52",
                "{} of {} is sent again at version {} for no reason",
                got.name,
                TYPES[reply.t],
                got.version
            );
            context.cover.hit_if(!other && asked, "unchanged resources sent on request");
        }
        for name in reply.removed.iter().chain(&reply.absent) {
            let known = self.sent.contains_key(name)
                || self.told.get(name) == Some(&LastReport::There)
                || self.extra.contains(name);
            // If a wildcard ends, the rest of a split state is dropped. It is no longer known
            // whether the client received a name beside it, so the name is reported again.
            let again = self.may.contains(name) && self.told.get(name) == Some(&LastReport::Absent);
            law!(
                known || again || self.owed.contains_key(name) || self.may_retry,
                "DELTA-44",
                "{name} is removed, but the client neither has it nor requested it"
            );
            context.cover.hit_if(!known, "names that do not exist");
            context.cover.hit_if(
                self.extra.contains(name),
                "removals of resources that a client claims to hold",
            );
        }
        let absent = |name: &&String| seen.get(reply.t, name).is_none();
        let said = reply.absent.iter().chain(&reply.removed).filter(absent).count();
        let empty = reply.resources.is_empty() && said == 0 && reply.errors.is_empty();
        law!(
            !empty || (self.opening && properties(reply.t).answer_empty),
            "DELTA-55",
            "an empty response that no client waits for: {reply:?}"
        );
        context.cover.hit_if(empty, "empty answers to a first request");
        Ok(())
    }

    fn enter_resource(&mut self, got: &Got, now: u64) {
        let sent = Sent { version: got.version.clone(), aliases: got.aliases.clone(), at: now };
        self.sent.insert(got.name.clone(), sent);
        self.lapsed.remove(&got.name);
        for name in std::iter::once(&got.name).chain(&got.aliases) {
            self.owed.remove(name);
            self.may.remove(name);
            self.child_due.remove(name);
            if self.asked.names.contains(name) {
                self.told.insert(name.clone(), LastReport::There);
            }
        }
    }

    fn enter_absence(&mut self, name: &String) {
        self.owed.remove(name);
        self.may.remove(name);
        self.child_due.remove(name);
        if self.asked.names.contains(name) {
            self.told.insert(name.clone(), LastReport::Absent);
        }
    }

    fn enter_removal(&mut self, name: &String) {
        self.enter_absence(name);
        self.extra.remove(name);
        self.sent.remove(name);
        // The client may have known a resource by this name.
        let Self { asked, sent, .. } = self;
        let named = |n: &String, s: &Sent| {
            let others = s.aliases.iter().filter(|alias| *alias != name).cloned();
            asked.covers(n, &others.collect::<Vec<_>>())
        };
        sent.retain(|n, s| !s.aliases.contains(name) || named(n, s));
    }
}
