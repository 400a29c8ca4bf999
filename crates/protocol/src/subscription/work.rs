//! The work of a subscription: changes and requests that are not planned yet.

use std::collections::BTreeSet;

use chancery_model::ResourceName;

/// The names that may have changed since the last plan.
#[derive(Debug)]
pub(crate) enum Changed {
    /// These names.
    Names(BTreeSet<ResourceName>),
    /// Any name.
    All,
}

impl Default for Changed {
    fn default() -> Self {
        Self::Names(BTreeSet::new())
    }
}

impl Changed {
    pub(crate) fn is_all(&self) -> bool {
        matches!(self, Self::All)
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Names(names) if names.is_empty())
    }

    /// Returns the number of single names.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Names(names) => names.len(),
            Self::All => 0,
        }
    }

    pub(crate) fn contains(&self, name: &ResourceName) -> bool {
        match self {
            Self::Names(names) => names.contains(name),
            Self::All => true,
        }
    }

    pub(crate) fn set_all(&mut self) {
        *self = Self::All;
    }

    pub(crate) fn insert(&mut self, name: ResourceName) {
        if let Self::Names(names) = self {
            names.insert(name);
        }
    }

    /// Removes a single name. Has no effect on [`Changed::All`].
    pub(crate) fn remove(&mut self, name: &ResourceName) {
        if let Self::Names(names) = self {
            names.remove(name);
        }
    }
}

/// The point in time at which requested names are planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Urgency {
    /// After the answer to the last response, like any change.
    #[default]
    AfterAnswer,
    /// As soon as the client has caught up: a request added the names before the client received the
    /// last response (SOTW-34).
    WhenCaughtUp,
    /// At once: the client has just requested the names (SOTW-36).
    AtOnce,
}

/// The work that the next plan covers.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// Names that the client requested. They are answered even if they did not change.
    pub(crate) requested: BTreeSet<ResourceName>,
    /// Names that are sent again because a resource that refers to them was sent (ADS-11).
    pub(crate) resent: BTreeSet<ResourceName>,
    /// Delta: names of `resent` that are not in the view. The client waits for them. If they
    /// reappear, they are sent even if they did not change.
    pub(crate) awaited: BTreeSet<ResourceName>,
    pub(crate) changed: Changed,
    /// Whether a withdrawn response is sent again even if nothing has changed since its plan.
    pub(crate) state_due: bool,
    /// Whether the opening request gets a response even if the response is empty.
    pub(crate) answer_due: bool,
    urgency: Urgency,
    /// Whether a request that repeats the last one asks for the children again (ADS-12).
    pub(crate) repeat_due: bool,
    /// The time since which the type waits for the types before it.
    pub(crate) gated_since: Option<u64>,
}

impl Work {
    /// Returns whether there may be something to plan.
    pub(crate) fn has_changes(&self) -> bool {
        self.is_requested() || self.state_due || !self.changed.is_empty() || !self.resent.is_empty()
    }

    /// Returns whether the client has requested something that is not planned yet.
    pub(crate) fn is_requested(&self) -> bool {
        self.answer_due || !self.requested.is_empty()
    }

    /// Returns whether the requested names do not wait for the answer to the last response.
    pub(crate) fn is_urgent(&self) -> bool {
        self.urgency == Urgency::AtOnce
    }

    pub(crate) fn set_urgency(&mut self, urgency: Urgency) {
        self.urgency = urgency;
    }

    /// Records that a SotW request may have added names. `is_current` means that the client sent it
    /// after it received the last response.
    pub(crate) fn on_names_added(&mut self, added: bool, is_current: bool) {
        self.review_urgency();
        if added && self.urgency == Urgency::AfterAnswer {
            self.urgency = Urgency::WhenCaughtUp;
        }
        if is_current && self.urgency == Urgency::WhenCaughtUp {
            self.urgency = Urgency::AtOnce;
        }
    }

    /// Clears the urgency if nothing requested is left to plan.
    pub(crate) fn review_urgency(&mut self) {
        if !self.is_requested() {
            self.urgency = Urgency::AfterAnswer;
        }
    }

    /// Drops a name.
    pub(crate) fn forget(&mut self, name: &ResourceName) {
        self.requested.remove(name);
        self.resent.remove(name);
        self.awaited.remove(name);
        self.changed.remove(name);
    }

    /// Records that a plan covers everything. Returns whether a response was due.
    ///
    /// Awaited names and the time of waiting outlive a plan.
    pub(crate) fn take_all(&mut self) -> bool {
        self.requested.clear();
        self.resent.clear();
        self.changed = Changed::default();
        self.urgency = Urgency::AfterAnswer;
        std::mem::take(&mut self.state_due) | std::mem::take(&mut self.answer_due)
    }

    /// Returns the number of marked names.
    pub(crate) fn n_names(&self) -> usize {
        self.changed.len() + self.requested.len() + self.resent.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_request_names_become_urgent_after_client_catches_up() {
        let mut work = Work::default();
        work.requested.insert(ResourceName::new("a").unwrap());
        work.on_names_added(true, false);
        assert!(!work.is_urgent());
        work.on_names_added(false, true);
        assert!(work.is_urgent());
        work.requested.clear();
        work.review_urgency();
        assert!(!work.is_urgent());
    }

    #[test]
    fn all_names_remain_changed_until_planned() {
        let mut work = Work { changed: Changed::All, ..Work::default() };
        let name = ResourceName::new("a").unwrap();
        work.forget(&name);
        assert!(work.changed.contains(&name) && work.has_changes());
        assert!(!work.take_all());
        assert!(!work.has_changes());
    }
}
