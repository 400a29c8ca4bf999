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

/// The part of a type that may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    /// Everything.
    Open,
    /// The names that the client requested.
    Asked,
    /// The requested names, and the names that are sent again because a parent was sent.
    AskedAndAgain,
    /// Nothing.
    Closed,
}

/// The maximum number of endpoints for which secrets wait. The secrets of further clusters are sent
/// with their cluster.
const SECRETS_WAITING_MAX: usize = 1_000;

/// Returns the gate of a type that precedes another type in the same plan: open if it has changes.
pub(super) fn changes(s: &Subscription) -> Gate {
    if s.has_changes() { Gate::Open } else { Gate::Closed }
}

/// Returns the gate of a type that precedes a type planned earlier: open for the names that the
/// client requested.
pub(super) fn asked(s: &Subscription) -> Gate {
    match s.is_asked() {
        false => Gate::Closed,
        // A first answer and a full state are always complete.
        true if s.answer_due || s.is_full_state() => Gate::Open,
        true => Gate::Asked,
    }
}

impl Session {
    /// Returns which part of a type may be sent now.
    ///
    /// A push waits until the types before it are acknowledged (ADS-06), or at least sent (ADS-05),
    /// for a bounded time (ADS-22). Requested names do not wait (ADS-20, ADS-26), except on a type
    /// that the client resumes. Such a client may hold routes to clusters that it does not have
    /// yet.
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
        // ADS-11: children are sent again after their parent, even if the parent is in a later part
        // of its response.
        let again = !s.again.is_empty();
        let parting = again && others(s.properties.parents).any(|other| other.train.is_some());
        if !unanswered && !unsent && !parting {
            return Gate::Open;
        }
        if unanswered && s.resumed && s.last_nonce == 0 {
            return Gate::Closed;
        }
        // A first answer and a full state are always complete.
        let asked = s.urgent || s.answer_due;
        if asked && (s.answer_due || s.is_full_state()) {
            return Gate::Open;
        }
        // The client waits for the resources in `again`.
        match (asked && !s.pending.is_empty(), !unanswered && again && !parting) {
            (_, true) => Gate::AskedAndAgain,
            (true, false) => Gate::Asked,
            (false, false) => Gate::Closed,
        }
    }

    /// Returns which removals of a type may be announced now (ADS-08, ADS-09).
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
        // A referrer may wait for the answer to its previous response, for the types before it, and
        // for its own answer.
        let since = now.saturating_sub(3 * timeout);
        // gRPC learns of a new cluster from the route, and drops the old name when the new cluster
        // works. It gets the time that the referrers would have had (`clients.md` rule 4).
        let drops = !s.wildcard && s.protocol == Protocol::Sotw;
        let recent =
            |other: &Subscription| other.last_sent_at.is_some_and(|sent| sent + timeout > now);
        if drops && referrers().any(recent) {
            return Release::UpTo { revision: Revision(0), since };
        }
        let reached = referrers().map(|other| other.reached(&self.config, now)).min();
        Release::UpTo { revision: reached.unwrap_or(Revision(u64::MAX)), since }
    }

    /// Marks children of changed parents to be sent again (ADS-11). A client completes the warming
    /// of a changed parent only when it receives the children again, even if they are unchanged.
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
            // A new cluster needs its children even if the client has them for another cluster. So
            // does any new parent in SotW: if a reference moves between parents, Envoy drops the
            // child and requests it again with an unchanged list of names. In delta, Envoy uses the
            // child that it has, except for secrets. Each reference with another configuration of
            // its source waits for the secret.
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
        // ADS-12: if no parent is known to have children of this type, a client that requests
        // children again is right.
        for other in subscriptions {
            if other.properties.parents.contains(&parent.as_str()) {
                other.repeat_due = !known.contains(&&other.type_url);
            }
        }
    }

    /// Marks the secrets that waited for these endpoints to be sent again.
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
