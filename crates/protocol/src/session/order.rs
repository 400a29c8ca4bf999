//! The order between the types of an aggregated stream.

use chancery_model::{
    Revision, TypeUrl,
    types::{CLUSTER, ENDPOINT, SECRET},
};
use chancery_view::Resources;

use super::Session;
use crate::{
    Protocol,
    plan::{Release, Touched},
    subscription::Subscription,
};

/// What of a type may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    /// Everything.
    Open,
    /// What was asked for.
    Asked,
    /// What was asked for, and what is sent again for a parent's sake.
    AskedAndAgain,
    /// Nothing.
    Closed,
}

/// Maximum number of endpoints for which secrets wait; those of further clusters are sent with their cluster.
const SECRETS_WAITING_MAX: usize = 1_000;

/// Opens a type that is sent before a type planned together with it: for all changes.
pub(super) fn changes(s: &Subscription) -> Gate {
    if s.has_changes() { Gate::Open } else { Gate::Closed }
}

/// Opens a type that is sent before a type planned earlier: for the names that the client has asked for.
pub(super) fn asked(s: &Subscription) -> Gate {
    match s.is_asked() {
        false => Gate::Closed,
        // A first answer, and a full state, can only be given whole.
        true if s.answer_due || s.is_full_state() => Gate::Open,
        true => Gate::Asked,
    }
}

impl Session {
    /// What of a type may be sent now. Pushes wait until the types that come before it are
    /// acknowledged (ADS-06), or at least sent (ADS-05), for a bounded time (ADS-22). What a client has
    /// just asked for does not wait (ADS-20, ADS-26), unless it resumes: then it may hold routes to
    /// clusters that it has yet to get.
    pub(super) fn gate(&self, at: usize, now: u64) -> Gate {
        let s = &self.subscriptions[at];
        let timeout = self.config.ack_timeout_ms;
        let expired = s.gated_since.is_some_and(|since| since + timeout <= now);
        if self.kind.type_url.is_some() || expired {
            return Gate::Open;
        }
        let others = |types: &'static [&'static str]| {
            self.subscriptions.iter().filter(|other| types.contains(&other.type_url.as_str()))
        };
        let unanswered = others(s.properties.after).any(|other| !other.is_quiet(&self.config, now));
        let unsent = others(s.properties.behind).any(Subscription::has_work);
        // ADS-11: children come again after their parent, also where that is in a later part of its state.
        let again = !s.again.is_empty();
        let parting = again && others(s.properties.parents).any(|other| other.train.is_some());
        if !unanswered && !unsent && !parting {
            return Gate::Open;
        }
        if unanswered && s.resumed && s.last_nonce == 0 {
            return Gate::Closed;
        }
        // A first answer, and a full state, can only be given whole.
        let asked = s.urgent || s.answer_due;
        if asked && (s.answer_due || s.is_full_state()) {
            return Gate::Open;
        }
        // What is sent again for a parent's sake goes to a client that is waiting for it.
        match (asked && !s.pending.is_empty(), !unanswered && again && !parting) {
            (_, true) => Gate::AskedAndAgain,
            (true, false) => Gate::Asked,
            (false, false) => Gate::Closed,
        }
    }

    /// Which of a type's removals may be announced now (ADS-08, ADS-09).
    pub(super) fn release(&self, at: usize, now: u64) -> Release {
        let s = &self.subscriptions[at];
        if self.kind.type_url.is_some() || s.properties.referrers.is_empty() {
            return Release::ALL;
        }
        if s.opened_at + self.config.resume_hold_ms > now {
            return Release::Nothing;
        }
        let types = s.properties.referrers;
        let referrers =
            || self.subscriptions.iter().filter(|other| types.contains(&other.type_url.as_str()));
        let rejected = referrers().any(|other| other.nack().is_some());
        if rejected && s.lingering.len() <= self.config.held_removals_max {
            return Release::Nothing;
        }
        let timeout = self.config.ack_timeout_ms;
        // A referrer may have to wait for the answer to what it sent before, then for the types before it,
        // and then for its own answer.
        let since = now.saturating_sub(3 * timeout);
        // gRPC learns of a new cluster from the route, and drops the old name once the new one works; it
        // is given the time that the referrers would have had (`clients.md` rule 4).
        let drops = !s.wildcard && s.protocol == Protocol::Sotw;
        let recent =
            |other: &Subscription| other.last_sent_at.is_some_and(|sent| sent + timeout > now);
        if drops && referrers().any(recent) {
            return Release::UpTo { revision: Revision(0), since };
        }
        let reached = referrers().map(|other| other.reached(&self.config, now)).min();
        Release::UpTo { revision: reached.unwrap_or(Revision(u64::MAX)), since }
    }

    /// ADS-11: a client that gets a changed parent finishes warming it only when it gets the children
    /// again, changed or not.
    pub(super) fn resend_children(&mut self, at: usize, touched: &Touched) {
        let parent = self.subscriptions[at].type_url.clone();
        let protocol = self.subscriptions[at].protocol;
        let is_cluster = parent.as_str() == CLUSTER;
        if touched.resources.is_empty() {
            return;
        }
        if parent.as_str() == ENDPOINT && !self.secrets_waiting.is_empty() {
            self.resend_secrets(&touched.resources);
        }
        let Self { subscriptions, secrets_waiting, .. } = self;
        let has_endpoints = subscriptions.iter().any(|s| s.type_url.as_str() == ENDPOINT);
        let mut known: Vec<&TypeUrl> = Vec::new();
        for resource in touched.resources.iter() {
            // A new cluster needs its children even if the client has them for another cluster. So does any new
            // parent in SotW: where references move between parents, Envoy drops the child and asks for it again
            // with an unchanged list of names. In delta, Envoy uses the child that it has, except for secrets: each
            // reference with another configuration of its source waits for the secret.
            let uses_held =
                !is_cluster && protocol == Protocol::Delta && touched.is_fresh(resource);
            let endpoints = resource
                .children()
                .iter()
                .find(|child| is_cluster && has_endpoints && child.type_url.as_str() == ENDPOINT);
            for child in resource.children() {
                if !known.contains(&&child.type_url) {
                    known.push(&child.type_url);
                }
                if uses_held && child.type_url.as_str() != SECRET {
                    continue;
                }
                let is_secret = child.type_url.as_str() == SECRET;
                let mut others = subscriptions.iter_mut();
                let other = others.find(|other| other.type_url == child.type_url);
                let Some(other) = other.filter(|other| other.holds(&child.name)) else { continue };
                match endpoints {
                    Some(endpoints) if is_secret && secrets_waiting.len() < SECRETS_WAITING_MAX => {
                        let waiting = secrets_waiting.entry(endpoints.name.clone()).or_default();
                        waiting.insert(child.name.clone());
                    }
                    _ => drop(other.again.insert(child.name.clone())),
                }
            }
        }
        // ADS-12: a client that asks for children again, where none of the parents is known to have any of this
        // type, knows better.
        for other in subscriptions {
            if other.properties.parents.contains(&parent.as_str()) {
                other.repeat_due = !known.contains(&&other.type_url);
            }
        }
    }

    /// Sends the secrets again that waited for these endpoints.
    fn resend_secrets(&mut self, endpoints: &Resources) {
        let mut subscriptions = self.subscriptions.iter_mut();
        let Some(secrets) = subscriptions.find(|s| s.type_url.as_str() == SECRET) else { return };
        for resource in endpoints.iter() {
            let mut waiting = self.secrets_waiting.remove(resource.name()).unwrap_or_default();
            waiting.retain(|name| secrets.holds(name));
            secrets.again.append(&mut waiting);
        }
    }
}
