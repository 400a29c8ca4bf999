//! The work of a subscription: changes and requests that are not planned yet.

use std::collections::BTreeSet;

use chancery_model::ResourceName;

/// The names that may have changed since the last plan.
#[derive(Debug)]
pub(crate) enum Changed {
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
    requested: BTreeSet<ResourceName>,
    /// Names that are sent again because a resource that refers to them was sent (ADS-11).
    resent: BTreeSet<ResourceName>,
    /// Delta: names of `resent` that are not in the view. The client waits for them. If they
    /// reappear, they are sent even if they did not change.
    awaited: BTreeSet<ResourceName>,
    changed: Changed,
    /// Whether a withdrawn response is sent again even if nothing has changed since its plan.
    state_due: bool,
    /// Whether the opening request gets a response even if the response is empty.
    answer_due: bool,
    urgency: Urgency,
    /// Whether a request that repeats the last one asks for the children again (ADS-12).
    repeat_due: bool,
    /// The time since which the type waits for the types before it.
    gated_since: Option<u64>,
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

    /// Returns whether the opening request gets a response even if the response is empty.
    pub(crate) fn is_answer_due(&self) -> bool {
        self.answer_due
    }

    /// Returns whether a response is due that may have no content.
    pub(crate) fn is_state_due(&self) -> bool {
        self.answer_due || self.state_due
    }

    /// Returns the names that the client requested.
    pub(crate) fn requested(&self) -> &BTreeSet<ResourceName> {
        &self.requested
    }

    /// Returns the names that are sent again.
    pub(crate) fn resent(&self) -> &BTreeSet<ResourceName> {
        &self.resent
    }

    /// Returns the names that may have changed.
    pub(crate) fn changed(&self) -> &Changed {
        &self.changed
    }

    /// Returns whether the client requested a name, or whether the name is sent again.
    pub(crate) fn is_marked(&self, name: &ResourceName) -> bool {
        self.requested.contains(name) || self.resent.contains(name)
    }

    /// Returns whether the client waits for a name that did not exist when it was to be sent again.
    pub(crate) fn is_awaited(&self, name: &ResourceName) -> bool {
        self.awaited.contains(name)
    }

    /// Returns whether the requested names do not wait for the answer to the last response.
    pub(crate) fn is_urgent(&self) -> bool {
        self.urgency == Urgency::AtOnce
    }

    /// Returns the time since which the type waits for the types before it.
    pub(crate) fn gated_since(&self) -> Option<u64> {
        self.gated_since
    }

    /// Begins to wait for the types before it, unless the type waits already.
    pub(crate) fn begin_wait(&mut self, now: u64) {
        self.gated_since = self.gated_since.or(Some(now));
    }

    /// Ends the wait for the types before it.
    pub(crate) fn end_wait(&mut self) {
        self.gated_since = None;
    }

    /// Marks all names as changed.
    pub(crate) fn on_all_changed(&mut self) {
        self.changed.set_all();
    }

    /// Marks a name as changed.
    pub(crate) fn on_changed(&mut self, name: ResourceName) {
        self.changed.insert(name);
    }

    /// Records that a change of a name is planned.
    pub(crate) fn on_change_planned(&mut self, name: &ResourceName) {
        self.changed.remove(name);
    }

    /// Keeps the marks of the changed names for which `keeps` returns `true`.
    pub(super) fn retain_changed(&mut self, keeps: impl FnMut(&ResourceName) -> bool) {
        if let Changed::Names(changed) = &mut self.changed {
            changed.retain(keeps);
        }
    }

    /// Requests a name.
    pub(crate) fn request(&mut self, name: ResourceName) {
        self.requested.insert(name);
    }

    /// Requests names.
    pub(crate) fn request_all(&mut self, names: impl IntoIterator<Item = ResourceName>) {
        self.requested.extend(names);
    }

    /// Requests names that do not wait for the answer to the last response, if there are any.
    pub(super) fn request_at_once(&mut self, names: Vec<ResourceName>) {
        if !names.is_empty() {
            self.requested.extend(names);
            self.urgency = Urgency::AtOnce;
        }
    }

    /// Records that a response answers the request for a name. Returns whether the client requested it.
    pub(crate) fn on_answered(&mut self, name: &ResourceName) -> bool {
        self.requested.remove(name)
    }

    /// Lets the next plan send names again.
    pub(crate) fn resend(&mut self, names: impl IntoIterator<Item = ResourceName>) {
        self.resent.extend(names);
    }

    /// Records that a name was sent again.
    pub(crate) fn on_resent(&mut self, name: &ResourceName) {
        self.resent.remove(name);
    }

    /// Keeps the requested and resent names for which `keeps` returns `true`.
    pub(super) fn retain_marked(&mut self, keeps: impl Fn(&ResourceName) -> bool) {
        self.requested.retain(&keeps);
        self.resent.retain(&keeps);
    }

    /// Records that the client waits for a name that does not exist.
    pub(crate) fn await_name(&mut self, name: ResourceName) {
        self.awaited.insert(name);
    }

    /// Records that a name for which the client may have waited is sent.
    pub(crate) fn end_await(&mut self, name: &ResourceName) {
        self.awaited.remove(name);
    }

    /// Sets whether the opening request gets a response even if the response is empty.
    pub(crate) fn set_answer_due(&mut self, is_due: bool) {
        self.answer_due = is_due;
    }

    /// Sets whether a request that repeats the last one asks for the children again (ADS-12).
    pub(crate) fn set_repeat_due(&mut self, is_due: bool) {
        self.repeat_due = is_due;
    }

    /// Requests the names again if a request that repeats the last one asks for the children again.
    pub(super) fn on_repeated(&mut self, names: impl Iterator<Item = ResourceName>) {
        if std::mem::take(&mut self.repeat_due) {
            self.requested.extend(names);
        }
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

    /// Records that a planned response is withdrawn. `state_due` means that it is sent again even if nothing has
    /// changed since its plan. The type has waited since `gated_since`.
    pub(super) fn on_withdrawn(&mut self, state_due: bool, gated_since: Option<u64>) {
        (self.state_due, self.gated_since) = (state_due, gated_since);
    }

    /// Takes the requested names, which a plan covers. The others wait for the answer to that plan.
    pub(crate) fn take_requested(&mut self) -> BTreeSet<ResourceName> {
        self.urgency = Urgency::AfterAnswer;
        std::mem::take(&mut self.requested)
    }

    /// Takes the names that are sent again, which a plan covers.
    pub(crate) fn take_resent(&mut self) -> BTreeSet<ResourceName> {
        std::mem::take(&mut self.resent)
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
