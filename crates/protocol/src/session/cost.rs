//! The cost of a session: the work of the next call, and the memory of its names.
//!
//! A caller bounds both before the call. The unit of work is a name or resource, which takes about
//! a microsecond. The figures are upper bounds. Computing them does not visit the names that the
//! session keeps.

use crate::{
    NameList, Request, Session, VersionList,
    subscription::{NAME_COST_BYTES, REMOVAL_COST_BYTES, Subscription},
};

/// The bytes of a list that are read in the time that one name takes.
const BYTES_PER_NAME: usize = 64;

impl Session {
    /// Returns the maximum number of names that [`Session::on_request`] visits.
    #[must_use]
    pub fn cost_of_request(&self, request: &Request) -> usize {
        let kept_of = |type_url: &str| self.of_text(type_url).map_or(0, Subscription::n_kept);
        let type_url = request.type_url();
        let listed = match request {
            // The new list replaces the previous one.
            Request::Sotw(r) => cost_of(&r.resource_names) + kept_of(type_url),
            Request::Delta(r) => {
                let versions = &r.initial_resource_versions;
                let listed = cost_of(&r.subscribe) + cost_of(&r.unsubscribe);
                let listed = listed + cost_of_versions(versions);
                // A `*` in a short list may unsubscribe from everything.
                let has_star = listed < BYTES_PER_NAME
                    && r.subscribe.iter().chain(r.unsubscribe.iter()).any(|name| name == "*");
                listed + if has_star { kept_of(type_url) } else { 0 }
            }
            Request::Mcp(r) => cost_of_versions(&r.initial_resource_versions) + kept_of(type_url),
        };
        let rejecting = self.of_text(type_url).filter(|_| request.error_detail().is_some());
        let rejected = rejecting.map_or(0, |s| s.delivery.n_unanswered());
        listed + rejected
    }

    /// Restarts the wait for further requests of the types that opened at or after `since`.
    ///
    /// A caller calls it after the session took a request that had waited from `since` to `now`.
    /// The further requests of the client could not arrive earlier.
    pub fn taken_at(&mut self, since: u64, now: u64) {
        for subscription in self.subscriptions.iter_mut().filter(|s| s.opened_at >= since) {
            subscription.opened_at = now;
        }
    }

    /// Returns the maximum number of names that [`Session::poll`] visits.
    #[must_use]
    pub fn cost_of_poll(&self) -> usize {
        // A poll visits pending removals even without other work.
        let plans = self.subscriptions.iter().map(Subscription::cost_of_plan).sum::<usize>();
        plans + self.cost_of_late()
    }

    /// Returns the maximum number of resources that [`Session::renew`] visits at this time.
    #[must_use]
    pub fn cost_of_renewal(&self, now: u64) -> usize {
        let timeout = self.config.ack_timeout_ms;
        let is_due = |s: &&Subscription| s.renewal_at(timeout, now).is_some_and(|due| due <= now);
        let renewals = self.subscriptions.iter().filter(is_due).map(Subscription::cost_of_renewal);
        let refreshes = self.subscriptions.iter().map(|s| s.cost_of_refresh(now));
        renewals.chain(refreshes).sum()
    }

    /// Returns the number of names and removals that are freed with the session.
    #[must_use]
    pub fn cost_of_end(&self) -> usize {
        self.subscriptions.iter().map(Subscription::n_kept).sum()
    }

    /// Returns the number of names that the session subscribes to, over all types.
    #[must_use]
    pub fn n_names(&self) -> usize {
        self.subscriptions.iter().map(|s| s.names.len()).sum()
    }

    /// Returns the memory of the session's names in bytes, including their entries in the caller's
    /// index, and of the messages of the client's rejections.
    #[must_use]
    pub fn retained_bytes(&self) -> usize {
        self.subscriptions.iter().map(Subscription::retained_bytes).sum()
    }

    /// Returns the maximum of [`Session::retained_bytes`] after a request.
    #[must_use]
    pub fn retained_bytes_after(&self, request: &Request) -> usize {
        // The session keeps a rejection twice: as the last one, and for the revisions that it rejects.
        let message = request.error_detail().map_or(0, |error| error.message.len());
        let message = 2 * message.min(self.config.nack_message_bytes_max);
        let before = self.retained_bytes();
        let names = match request {
            Request::Sotw(r) => {
                let of_type = self.of_text(&r.type_url);
                let held = of_type.map_or(0, Subscription::retained_bytes);
                let rejections = of_type.map_or(0, Subscription::rejection_bytes);
                (before - held) + held.max(bytes_of(&r.resource_names) + rejections)
            }
            Request::Delta(r) => {
                before + bytes_of(&r.subscribe) + bytes_of_versions(&r.initial_resource_versions)
            }
            Request::Mcp(r) => before + bytes_of_versions(&r.initial_resource_versions),
        };
        names + message
    }

    /// Returns the subscription for the type of a request.
    fn of_text(&self, text: &str) -> Option<&Subscription> {
        match &self.kind.type_url {
            Some(_) => self.subscriptions.first(),
            None => self.subscriptions.iter().find(|s| s.type_url.as_str() == text),
        }
    }
}

fn cost_of(list: &NameList) -> usize {
    list.len() + list.n_bytes() / BYTES_PER_NAME
}

fn cost_of_versions(list: &VersionList) -> usize {
    list.len() + list.n_bytes() / BYTES_PER_NAME
}

fn bytes_of_versions(list: &VersionList) -> usize {
    // A name may be both subscribed and pending removal.
    let each = NAME_COST_BYTES + REMOVAL_COST_BYTES;
    list.len() * each + 3 * list.n_bytes()
}

fn bytes_of(list: &NameList) -> usize {
    if list.is_empty() { 0 } else { list.len() * NAME_COST_BYTES + list.n_bytes() }
}
