//! Rules for a server that has nothing more to send now, for clients that never answer, and for the
//! final state.

use std::collections::BTreeMap;

use chancery_protocol::{Acceptance, Protocol, SyncState};

use crate::model::{
    client::{FETCH_TIMEOUT, Which},
    cover::{Breach, Law, law},
    ledger::base36,
    naive::{CDS, Change, EDS, N_TYPES, RDS, RTDS, Seen, TYPES, is_bad, is_full_state},
    script::Profile,
    world::World,
};

/// The maximum number of steps until everything is idle.
const STEPS_MAX: usize = 120;

/// The time between steps, in milliseconds.
const STEP: u64 = 500;

impl World<'_> {
    /// Checks the state after a poll without a response.
    ///
    /// ADS-20, ADS-26, SOTW-41, DELTA-21, DELTA-40: requested names are answered at once. Only a
    /// client that resumes may wait for other types, and SotW parts for their ACKs. SOTW-69,
    /// DELTA-35: a first request is also answered at once. SOTW-90: once every response is
    /// answered, the client was sent the current version of everything that it subscribes to.
    pub(crate) fn check_rest(&mut self) -> Law {
        let Some(seen) = self.oracle.seen().cloned() else { return Ok(()) };
        let protocol = self.ledger.protocol;
        let cuts = self.client.tuning.bytes_target < 1 << 20;
        let quiet = self.ledger.lines.iter().all(|line| line.unacked.is_empty());
        for (t, line) in self.ledger.lines.iter_mut().enumerate() {
            line.resume_held(t, &seen, &self.client, self.now);
            let resumes = line.resumed && line.n_sent == 0 && self.ledger.aggregated;
            let answered = line.unacked.is_empty();
            let parts = protocol == Protocol::Sotw && cuts && !answered;
            let is_due = |name: &String, fresh: bool| {
                let waits = resumes || (parts && !is_full_state(protocol, t));
                let exists = seen.get(t, name).is_some();
                // DELTA-48: the client continues to use what it holds from an earlier stream.
                let is_held = line.sent.contains_key(name) || line.extra.contains(name);
                let is_kept = t == RTDS && line.resumed && is_held;
                (exists || protocol == Protocol::Delta && !is_kept) && !waits && fresh
            };
            let due = line.owed.iter().find(|(name, fresh)| is_due(name, **fresh));
            law!(due.is_none(), "ADS-26", "{due:?} of {} waits for an answer", TYPES[t]);
            line.opening &= protocol == Protocol::Sotw || line.n_sent == line.opening_mark;
            let waits = line.opening && line.opening_fresh && !resumes;
            law!(!waits, "SOTW-69", "{} waits for a first answer", TYPES[t]);
            let waits_for_parts = parts && !is_full_state(protocol, t);
            if !resumes && !waits_for_parts {
                line.urgent = false;
                if !line.late {
                    line.maybe.clear();
                }
                line.owed.retain(|name, fresh| seen.get(t, name).is_some() || !*fresh);
            }
            if !line.is_behind(t, &seen) {
                line.due_since = None;
            }
            law!(
                !quiet || !line.is_behind(t, &seen),
                "SOTW-90",
                "everything is answered, but {} was not sent: {:?} of {:?}",
                TYPES[t],
                line.sent,
                seen.of[t]
            );
        }
        let status = self.session.status();
        let held = status.iter().any(|status| status.n_pending_removals > 0);
        let rejects = status.iter().any(|status| status.nack.is_some());
        self.cover.hit_if(held, "idle with removals held back");
        self.cover.hit_if(held && rejects && quiet, "idle with removals held back for a rejection");
        // The session does not compare a type that has an unanswered response.
        let lines = &self.ledger.lines;
        let looked = |t: usize| lines[t].unacked.is_empty() && !lines[t].is_behind(t, &seen);
        self.oracle.on_rest(std::array::from_fn(looked));
        if quiet {
            self.ledger.lines.iter_mut().for_each(|line| line.marked_since = None);
        }
        self.cover.hit_if(quiet, "idle with everything sent and answered");
        Ok(())
    }

    /// Checks a client that never answers. ADS-22, SOTW-31, CLI-E-08: it is still sent everything
    /// in bounded time, if the caller polls only when the session asks for it.
    pub(crate) fn check_silent_client(&mut self) -> Law {
        self.client.muted = [true; N_TYPES];
        self.prompt_since = Some(self.now);
        for step in 0.. {
            law!(step < STEPS_MAX, "ADS-22", "the session never stops asking for polls");
            self.poll(usize::MAX)?;
            self.deliver(usize::MAX);
            self.habits()?;
            if self.poll(usize::MAX)? > 0 {
                continue;
            }
            match self.session.wake_at(self.now) {
                Some(at) => self.now = at,
                None => break,
            }
        }
        self.prompt_since = None;
        let Some(seen) = self.oracle.seen().cloned() else { return Ok(()) };
        let rejects = self.session.status().iter().any(|status| status.nack.is_some());
        for (t, line) in self.ledger.lines.iter().enumerate() {
            law!(!line.is_behind(t, &seen), "ADS-22", "{} was never sent: {line:?}", TYPES[t]);
        }
        for status in self.session.status() {
            let held = status.n_pending_removals;
            law!(rejects || held == 0, "ADS-22", "{held} removals are held back forever");
        }
        self.cover.hit("clients that never answer");
        Ok(())
    }

    /// Lets the client answer everything, repairs all bad content, and lets time pass.
    pub(crate) fn settle(&mut self) -> Law {
        self.client.muted = [false; N_TYPES];
        self.assign(Some(&vec![1, 0]))?;
        while self.flow()? {}
        // The session cannot know which resource of a rejected response was meant (SOTW-30), so all
        // are replaced.
        let rejected = self.ledger.lines.iter().any(|line| line.rejected);
        let picky = self.client.tuning.picky;
        let repaired = self.oracle.touched(|_, body| is_bad(body) || (picky && rejected));
        self.commit(&repaired)?;
        self.come_to_rest()?;
        if self.session.status().iter().any(|status| status.nack.is_some()) {
            // A removed resource that was held back in a full state was rejected together with good
            // ones.
            let all = self.oracle.touched(|_, _| true);
            self.commit(&all)?;
            self.come_to_rest()?;
        }
        if matches!(self.client.profile, Profile::EnvoySotw | Profile::EnvoyDelta) {
            // Every cluster changes, but not its endpoints.
            let clusters = self.oracle.touched(|t, _| t == CDS);
            self.commit(&clusters)?;
            self.come_to_rest()?;
        }
        self.check_end()
    }

    fn come_to_rest(&mut self) -> Law {
        self.client.warming_since = self.now;
        for step in 0.. {
            law!(step < STEPS_MAX, "ADS-22", "no rest: {:?}", self.session.status());
            while self.flow()? {}
            self.check_warming()?;
            let rests = self.pipe.is_empty() && !self.client.has_unanswered();
            match self.session.wake_at(self.now) {
                None if rests => return Ok(()),
                Some(at) => self.now = at.min(self.now + STEP),
                None => self.now += STEP,
            }
        }
        Ok(())
    }

    /// ADS-11, ADS-13, P-40, P-41: checks that a cluster gets its endpoints again in time.
    fn check_warming(&mut self) -> Law {
        let Some(seen) = self.oracle.seen() else { return Ok(()) };
        let exists = |name: &String| seen.of[EDS].contains_key(name);
        let stuck = self.client.warming.iter().find(|(_, names)| names.iter().all(exists));
        let late = self.client.warming_since + FETCH_TIMEOUT - 2 * STEP <= self.now;
        law!(stuck.is_none() || !late, "ADS-11", "{stuck:?} is still without endpoints");
        self.cover.hit_if(stuck.is_none(), "clusters warm");
        Ok(())
    }

    /// Runs one round of delivering, requesting, sending and answering. Returns whether anything
    /// happened.
    pub(crate) fn flow(&mut self) -> Result<bool, Breach> {
        let before = (self.past.len(), self.ledger.nonces.len());
        self.deliver(usize::MAX);
        self.habits()?;
        self.poll(usize::MAX)?;
        for t in self.client.ready(self.now) {
            self.answer(t, Which::Oldest)?;
        }
        self.habits()?;
        self.poll(usize::MAX)?;
        Ok(before != (self.past.len(), self.ledger.nonces.len()))
    }

    fn check_end(&mut self) -> Law {
        let Some(seen) = self.oracle.seen().cloned() else { return Ok(()) };
        let protocol = self.ledger.protocol;
        for t in 0..N_TYPES {
            if self.ledger.lines[t].asked.opened {
                self.check_held(t, &seen)?;
                self.check_reported(t, &seen)?;
            }
        }
        // A reconnecting delta client may have requested the routes before it reported its
        // listeners.
        let again: &[usize] = if protocol == Protocol::Sotw { &[EDS, RDS] } else { &[EDS] };
        for t in again.iter().copied() {
            let line = &self.ledger.lines[t];
            let due = line.child_due.iter().find(|name| seen.of[t].contains_key(*name));
            law!(due.is_none(), "ADS-11", "{due:?} of {} was not sent again", TYPES[t]);
        }
        for status in self.session.status() {
            let t = TYPES.iter().position(|url| *url == status.type_url.as_str()).unwrap();
            let line = &self.ledger.lines[t];
            law!(status.nack.is_none(), "SOTW-27", "a rejection still applies: {status:?}");
            let settled = matches!(status.state, SyncState::Synced | SyncState::Idle);
            law!(settled, "SOTW-28", "everything was answered: {status:?}");
            law!(status.n_pending_removals == 0, "ADS-22", "removals are held back: {status:?}");
            let shown = (status.wildcard, status.n_names);
            let asked = (line.asked.wildcard, line.asked.names.len());
            law!(shown == asked, "SOTW-28", "subscribed to {asked:?}: {status:?}");
            law!(line.rejected || status.acked == status.sent, "SOTW-28", "{status:?}");
        }
        for (type_url, acceptance) in self.session.acceptance(self.state.revision) {
            let t = TYPES.iter().position(|url| *url == type_url.as_str()).unwrap();
            let known = self.ledger.lines[t].rejected || acceptance == Acceptance::Accepted;
            law!(known, "SOTW-28", "{acceptance:?} at the end: {type_url}");
        }
        self.now += 60_000;
        let wake = self.session.wake_at(self.now);
        law!(wake.is_none(), "SOTW-90", "the session still asks for a poll at {wake:?}");
        let n = self.poll(usize::MAX)?;
        law!(n == 0, "SOTW-90", "{n} responses after the end");
        Ok(())
    }

    /// ERR-01, ERR-12: checks that each subscribed name without a resource has an error.
    fn check_reported(&self, t: usize, seen: &Seen) -> Law {
        let line = &self.ledger.lines[t];
        if !self.client.tuning.errors || self.ledger.protocol != Protocol::Sotw || t == RTDS {
            return Ok(());
        }
        let missing = line.asked.names.iter().filter(|name| seen.get(t, name).is_none());
        let silent = missing.clone().find(|name| !line.reported.contains(*name));
        law!(silent.is_none(), "ERR-01", "{silent:?} of {} has no error", TYPES[t]);
        law!(missing.count() == line.reported.len(), "ERR-04", "{:?}", line.reported);
        Ok(())
    }

    /// Checks that the client holds exactly the subscribed resources of the naive view.
    fn check_held(&self, t: usize, seen: &Seen) -> Law {
        let asked = &self.ledger.lines[t].asked;
        let protocol = self.ledger.protocol;
        let wanted: BTreeMap<&String, (String, &String)> = (seen.of[t].values())
            .filter(|item| asked.covers(&item.name, &item.aliases))
            .map(|item| (&item.name, (base36(item.changed), &item.body)))
            .collect();
        let silent = (protocol == Protocol::Sotw && !is_full_state(protocol, t)) || t == RTDS;
        let held: BTreeMap<&String, (String, &String)> = (self.client.held[t].values())
            // SOTW-85, DELTA-48: no message reports the removal of these resources.
            .filter(|got| {
                let item = seen.of[t].get(&got.name);
                !silent || item.is_some_and(|item| asked.covers(&item.name, &item.aliases))
            })
            .map(|got| {
                let revision = got.version.split_inclusive('-').next().unwrap_or_default();
                (&got.name, (revision.to_owned(), &got.body))
            })
            .collect();
        law!(
            held == wanted,
            "SOTW-41",
            "of {} the client holds {held:?}, not {wanted:?}",
            TYPES[t]
        );
        Ok(())
    }
}

impl crate::model::naive::Oracle {
    /// Returns changes that give good new content to all selected resources.
    pub(crate) fn touched(&self, which: impl Fn(usize, &str) -> bool) -> Vec<Change> {
        let all = self.content().filter(|(_, t, item)| which(*t, &item.body));
        all.map(|(scope, t, item)| {
            let digit = if item.body.starts_with('4') { '5' } else { '4' };
            let body = format!("{digit}{}", &item.body[1..]);
            let content = Some((body, item.aliases.clone()));
            Change { scope, t, name: item.name.clone(), content }
        })
        .collect()
    }
}
