//! Planned responses that are held back, because the client has not requested the endpoints of the
//! clusters before them (ADS-06).

use chancery_model::ResourceName;

use super::{Changed, Pace, Subscription};

impl Subscription {
    /// Returns whether the planned response is held back.
    pub(crate) fn is_held_back(&self) -> bool {
        self.held_back_since().is_some()
    }

    /// Returns the time since which the type has waited, if its planned response is held back.
    pub(crate) fn held_back_since(&self) -> Option<u64> {
        match self.delivery.pending.as_ref()?.pace {
            Pace::HeldBack { gated_since } => Some(gated_since),
            Pace::Wait | Pace::FirstAtOnce | Pace::AtOnce => None,
        }
    }

    /// Returns whether the client waits for an answer. A resuming client has its earlier resources
    /// until the first response.
    pub(crate) fn is_asked(&self) -> bool {
        self.work.is_requested() && !self.is_first_of_resumed()
    }

    /// Returns whether the type has no response yet, and the client holds resources from an earlier
    /// stream.
    pub(crate) fn is_first_of_resumed(&self) -> bool {
        self.resumption.has_resources && self.delivery.last_nonce == 0
    }

    /// Returns whether the client subscribes to a resource, and the answer to its request was sent.
    pub(crate) fn has_answered(&self, name: &ResourceName) -> bool {
        let mut names = self.names.of_base(name.as_str()).peekable();
        (self.is_wildcard() || names.peek().is_some())
            && !names.any(|name| self.work.requested.contains(name))
    }

    /// Withdraws the response that is held back. Its resources are planned again. Its removals are sent
    /// without them, except in a full state.
    pub(crate) fn withdraw_plan(&mut self) {
        let gated_since = self.held_back_since();
        let Some(mut pending) = self.delivery.pending.take_if(|_| gated_since.is_some()) else {
            return;
        };
        self.work.gated_since = gated_since;
        self.work.state_due = self.is_full_state() || pending.is_empty();
        self.delivery.included = pending.carried.after;
        self.delivery.planned = pending.carried.after;
        if self.is_full_state() {
            let names = &self.names;
            let unsent = pending.errors.into_iter().filter(|name| names.contains(name.as_str()));
            self.work.requested.extend(unsent);
            return;
        }
        let is_difference = pending.n_names() == 0 && !self.names.has_located();
        if let Some(base) = pending.base.take().filter(|_| is_difference) {
            let wildcard = self.wildcard.as_mut();
            wildcard.into_iter().for_each(|wildcard| wildcard.base = Some(base.clone()));
            self.work.changed = Changed::All;
            return;
        }
        let resources = std::mem::take(&mut pending.resources);
        let names = resources.iter().flat_map(|resource| self.held_names(resource.base_name()));
        let names: Vec<ResourceName> = names.collect();
        self.work.resent.extend(names);
        if !pending.is_empty() {
            pending.pace = Pace::FirstAtOnce;
            self.delivery.pending = Some(pending);
        }
    }
}
