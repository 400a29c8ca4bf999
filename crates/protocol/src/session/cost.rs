//! The cost of a session: the work that a call is about to do, and the memory that its names keep.
//!
//! A caller bounds both before it calls. Work is counted in names or resources, each of about a
//! microsecond. The figures are upper bounds, found without looking at the names.

use crate::{
    NameList, Request, Session,
    subscription::{NAME_COST_BYTES, REMOVAL_COST_BYTES, Subscription},
};

/// Bytes of a list that are read in the time that a name takes.
const BYTES_PER_NAME: usize = 64;

impl Session {
    /// The names that [`Session::on_request`] looks at.
    #[must_use]
    pub fn cost_of_request(&self, request: &Request) -> usize {
        let kept_of = |type_url: &str| self.of_text(type_url).map_or(0, Subscription::n_kept);
        let (type_url, listed, has_error) = match request {
            Request::Sotw(r) => {
                // The list replaces the one before.
                let listed = cost_of(&r.resource_names) + kept_of(&r.type_url);
                (&r.type_url, listed, r.error_detail.is_some())
            }
            Request::Delta(r) => {
                let versions = &r.initial_resource_versions;
                let listed = cost_of(&r.subscribe) + cost_of(&r.unsubscribe);
                let listed = listed + versions.len() + versions.n_bytes() / BYTES_PER_NAME;
                // A short list can give up everything by its `*`.
                let has_star = listed < BYTES_PER_NAME
                    && r.subscribe.iter().chain(r.unsubscribe.iter()).any(|name| name == "*");
                let all = if has_star { kept_of(&r.type_url) } else { 0 };
                (&r.type_url, listed + all, r.error_detail.is_some())
            }
        };
        let rejected = self.of_text(type_url).filter(|_| has_error).map_or(0, Subscription::n_sent);
        listed + rejected
    }

    /// Takes account of a request that was given to the session at `since` and taken only now: what waits for
    /// further requests of the client waits from now on, since those could not come earlier.
    pub fn taken_at(&mut self, since: u64, now: u64) {
        for subscription in self.subscriptions.iter_mut().filter(|s| s.opened_at >= since) {
            subscription.opened_at = now;
        }
    }

    /// The number of names that [`Session::poll`] visits.
    #[must_use]
    pub fn cost_of_poll(&self) -> usize {
        // A poll visits pending removals even without other work.
        self.subscriptions.iter().map(Subscription::cost_of_plan).sum()
    }

    /// The names and removals that are freed with the session.
    #[must_use]
    pub fn cost_of_end(&self) -> usize {
        self.subscriptions.iter().map(Subscription::n_kept).sum()
    }

    /// The names that the session asks for, over all types.
    #[must_use]
    pub fn n_names(&self) -> usize {
        self.subscriptions.iter().map(|s| s.names.len()).sum()
    }

    /// The bytes that the session's names take, here and in an index of them.
    #[must_use]
    pub fn retained_bytes(&self) -> usize {
        self.subscriptions.iter().map(Subscription::retained_bytes).sum()
    }

    /// The most that [`Session::retained_bytes`] can be after a request.
    #[must_use]
    pub fn retained_bytes_after(&self, request: &Request) -> usize {
        let before = self.retained_bytes();
        match request {
            Request::Sotw(r) => {
                let of_type = self.of_text(&r.type_url).map_or(0, Subscription::retained_bytes);
                (before - of_type) + of_type.max(bytes_of(&r.resource_names))
            }
            Request::Delta(r) => {
                let versions = &r.initial_resource_versions;
                // A name may be asked for, and its removal wait.
                let each = NAME_COST_BYTES + REMOVAL_COST_BYTES;
                let held = versions.len() * each + 3 * versions.n_bytes();
                before + bytes_of(&r.subscribe) + held
            }
        }
    }

    /// The subscription for the type of a request.
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

fn bytes_of(list: &NameList) -> usize {
    match list.is_empty() {
        true => 0,
        false => list.len() * NAME_COST_BYTES + list.n_bytes(),
    }
}
