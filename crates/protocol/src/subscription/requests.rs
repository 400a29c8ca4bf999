//! Requests: the names that they subscribe to, and the responses that they answer.

use std::sync::Arc;

use chancery_model::{ResourceName, Version};
use chancery_view::{Resources, TypeView};

use super::{Answer, Held, Subscription, WILDCARD};
use crate::{DeltaRequest, Interest, NameList, Protocol, ProtocolError, SotwRequest};

impl Subscription {
    /// Returns whether the type supports a wildcard (SOTW-68). In SotW, a type without a SotW
    /// method is opaque (SVC-05).
    fn wildcard_allowed(&self) -> bool {
        let service = self.properties.service.as_ref();
        self.properties.wildcard
            && (self.protocol == Protocol::Delta || service.is_some_and(|s| s.sotw.is_some()))
    }

    /// Processes a SotW request.
    pub(crate) fn on_sotw(
        &mut self,
        request: &SotwRequest,
        shared: &Names<'_>,
        now: u64,
    ) -> Result<Option<Answer>, ProtocolError> {
        let first = !std::mem::replace(&mut self.opened, true);
        let nonce = parse_nonce(&request.response_nonce);
        // SOTW-34: a request with an older nonce gets no response of its own. Its names are still
        // used (SOTW-35). The client's later ACK repeats them, and then they are not new.
        let current = nonce == Some(self.last_nonce);
        let was_wildcard = self.wildcard;
        let (added, removed) = self.set_names(&request.resource_names, shared)?;
        if added || removed || was_wildcard != self.wildcard {
            self.replan_full_state();
        }
        // An answer to the last response also answers the earlier ones. The client may still reject
        // an earlier one first.
        let at = self.outstanding.iter().position(|sent| Some(sent.nonce) == nonce && !first);
        let answer = match at {
            Some(_) if current => self.outstanding.drain(..).next_back(),
            Some(at) => self.outstanding.remove(at),
            None => None,
        };
        let repeated = current && answer.is_none() && !added && !removed;
        if repeated && request.error_detail.is_none() && std::mem::take(&mut self.repeat_due) {
            self.pending.extend(self.names.keys().cloned());
        }
        if first {
            let asks = self.wildcard || !self.names.is_empty();
            // SOTW-79: for other types, an empty response has no meaning. A type without a SotW
            // method is one of them (SVC-05).
            self.answer_due |= self.properties.answer_empty && self.properties.full_state && asks;
            self.resumed = !request.version_info.is_empty();
            let remembered = self.resumed && self.is_remembered();
            self.came_with = remembered.then(|| request.version_info.clone());
        }
        // SOTW-37: an empty nonce is a new subscription, not a stale one. Names of a stale request
        // become urgent when the client has caught up, because its list then includes them again
        // (SOTW-34).
        self.review_urgency();
        let up_to_date = current || first || request.response_nonce.is_empty();
        self.late |= added;
        self.urgent |= up_to_date && std::mem::take(&mut self.late);
        let answer = answer.map(|sent| self.on_answer(sent, request.error_detail.as_ref(), now));
        self.review_rejections();
        Ok(answer)
    }

    /// Replaces the list of names (SOTW-40, SOTW-60 to -67). Returns whether names were added, and
    /// whether names were removed.
    fn set_names(
        &mut self,
        list: &NameList,
        shared: &Names<'_>,
    ) -> Result<(bool, bool), ProtocolError> {
        let legacy = list.is_empty() && !self.named;
        self.named |= !list.is_empty();
        let asked = legacy || list.iter().any(|name| name == WILDCARD);
        let wildcard = self.wildcard_allowed() && asked;
        let started = wildcard && !self.wildcard;
        let ended = self.wildcard && !wildcard;
        if wildcard != self.wildcard {
            self.wildcard = wildcard;
            shared.note(Interest::wildcard(&self.type_url, wildcard));
        }
        if started {
            (self.base, self.answer_due, self.dirty) = (None, true, true);
            self.rejected.touch_all();
        }
        let mut wanted: Vec<&str> =
            list.iter().filter(|name| !name.is_empty() && *name != WILDCARD).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let (mut fresh, mut gone) = (Vec::new(), Vec::new());
        if !wanted.iter().copied().eq(self.names.keys().map(ResourceName::as_str)) {
            for name in wanted.iter().filter(|name| !self.names.contains_key(**name)) {
                fresh.push(shared.name(name)?);
            }
            let is_gone = |name: &&ResourceName| wanted.binary_search(&name.as_str()).is_err();
            gone.extend(self.names.keys().filter(is_gone).cloned());
        }
        for name in &gone {
            self.forget(name, shared);
        }
        let removed = !gone.is_empty();
        let added = started || !fresh.is_empty();
        for name in fresh {
            self.ask(name, shared);
        }
        if ended {
            // The client keeps the wildcard's resources of the names that it now subscribes to.
            self.remember_names();
        }
        if !wildcard {
            self.base = None;
            let names = &self.names;
            self.lingering.retain(|name, _| names.contains_key(name));
            self.answer_due &= !names.is_empty();
        }
        shared.check_count(self.n_remembered())?;
        Ok((added, removed))
    }

    /// Drops a full state that was planned for an earlier request and is not sent yet. The next
    /// plan replaces it.
    fn replan_full_state(&mut self) {
        if self.is_full_state() && self.train.take().is_some() {
            self.dirty = true;
            self.answer_due = self.wildcard || !self.names.is_empty();
            // Responses that depend on it may already be planned.
            self.urgent = self.answer_due;
        }
    }

    /// Processes a delta request.
    pub(crate) fn on_delta(
        &mut self,
        request: &DeltaRequest,
        shared: &Names<'_>,
        now: u64,
    ) -> Result<Option<Answer>, ProtocolError> {
        let first = !std::mem::replace(&mut self.opened, true);
        let named = |list: &NameList| list.iter().any(|name| name == WILDCARD);
        let lists_empty = request.subscribe.is_empty() && request.unsubscribe.is_empty();
        // DELTA-20: if `*` is in both lists, unsubscribe takes precedence.
        let star_off = named(&request.unsubscribe);
        let star_on = (named(&request.subscribe) || (first && lists_empty))
            && !star_off
            && self.wildcard_allowed();
        // No resource has an empty name. A subscription to it is answered like one to any name that
        // does not exist (DELTA-40).
        let subscribe: Vec<ResourceName> = (request.subscribe.iter())
            .filter(|name| *name != WILDCARD)
            .map(|name| shared.name(name))
            .collect::<Result<_, _>>()?;
        // The wildcard changes first. If a request replaces a name by the wildcard, the client
        // unsubscribes from the name beside the wildcard (DELTA-24).
        if star_off && self.wildcard {
            self.end_wildcard(shared);
        }
        if star_on && !self.wildcard {
            self.start_wildcard(shared);
        }
        for name in request.unsubscribe.iter().filter(|name| *name != WILDCARD) {
            let Some((name, _)) = self.names.get_key_value(name) else { continue };
            let name = name.clone();
            self.forget(&name, shared);
            if self.wildcard {
                // DELTA-24: the client does not know whether the wildcard still covers the name.
                self.pending.insert(name);
                self.urgent = true;
            }
        }
        if first {
            self.take_initial_versions(request, shared)?;
        }
        for name in subscribe {
            self.ask(name, shared);
            self.urgent = true;
        }
        self.review_urgency();
        let nonce = parse_nonce(&request.response_nonce).filter(|_| !first);
        let answered = self.take_answered(nonce, request.error_detail.is_some());
        let answer = answered.map(|sent| self.on_answer(sent, request.error_detail.as_ref(), now));
        self.review_rejections();
        shared.check_count(self.n_remembered())?;
        Ok(answer)
    }

    /// Processes the resources that the client claims to hold (DELTA-22, -46, -57 to -59).
    fn take_initial_versions(
        &mut self,
        request: &DeltaRequest,
        shared: &Names<'_>,
    ) -> Result<(), ProtocolError> {
        let versions = &request.initial_resource_versions;
        // A client may subscribe to names only by listing them here (`clients.md` rule 7). This
        // applies to types without a wildcard.
        let implied = request.subscribe.is_empty()
            && request.unsubscribe.is_empty()
            && !self.wildcard_allowed();
        shared.check_count(self.names.len() + versions.len())?;
        self.resumed = !versions.is_empty();
        for (name, version) in versions.iter().filter(|(name, _)| !name.is_empty()) {
            let name = shared.name(name)?;
            let version = Version::parse(version);
            if implied {
                shared.note(Interest::Name(self.type_url.clone(), name.clone()));
                let held = version.map_or(Held::Nothing, Held::Version);
                let check = if held == Held::Nothing { &mut self.pending } else { &mut self.stale };
                check.insert(name.clone());
                if self.names.insert(name.clone(), held).is_none() {
                    self.names_bytes += name.as_str().len();
                }
            }
            self.known_bytes += name.as_str().len();
            self.known.insert(name, version);
        }
        // Removed resources are reported at once, even to a client that subscribes to nothing
        // (DELTA-46).
        self.dirty |= !self.known.is_empty();
        Ok(())
    }

    fn start_wildcard(&mut self, shared: &Names<'_>) {
        // The wildcard delivers the unsubscribed resources again.
        self.drop_given_up();
        self.wildcard = true;
        shared.note(Interest::wildcard(&self.type_url, true));
        // The client may have dropped resources that it listed but did not subscribe to.
        self.known.values_mut().for_each(|version| *version = None);
        // The key is the resource's own name, even if the client uses an alias.
        let held = self.names.iter().filter_map(|(name, held)| match held {
            Held::Sent(resource) => Some((resource.name().clone(), Some(resource.version()))),
            Held::Version(version) => Some((name.clone(), Some(*version))),
            Held::Nothing | Held::Absent => None,
        });
        self.known.extend(held);
        // Resources in unanswered responses arrive after the client has started the wildcard, so it
        // may keep them. Their removal is not sent again if it is also in flight (DELTA-44).
        let unanswered = self.outstanding.iter().filter_map(|sent| sent.resources.as_ref());
        for name in unanswered.flat_map(Resources::iter).map(|resource| resource.name()) {
            if !matches!(self.names.get(name), Some(Held::Absent)) {
                self.known.entry(name.clone()).or_insert(None);
            }
        }
        (self.base, self.answer_due, self.dirty) = (None, self.properties.answer_empty, true);
        self.urgent = true;
        self.rejected.touch_all();
    }

    /// Ends the wildcard. Named resources stay subscribed, and the subscription remembers what the
    /// wildcard sent of them (DELTA-36).
    fn end_wildcard(&mut self, shared: &Names<'_>) {
        self.wildcard = false;
        shared.note(Interest::wildcard(&self.type_url, false));
        self.answer_due = false;
        self.remember_names();
        self.base = None;
        // The client drops all resources that it does not name, including those that it claimed to
        // hold.
        self.lingering.retain(|name, _| self.names.contains_key(name));
        self.known.retain(|name, _| self.names.contains_key(name));
        self.pending.retain(|name| self.names.contains_key(name));
        self.again.retain(|name| self.names.contains_key(name));
        // The rest of an incompletely sent state is no longer subscribed.
        if self.train.take().is_some() && !self.names.is_empty() {
            self.pending.extend(self.names.keys().cloned());
            // The client requested the names earlier and has no answer yet (ADS-26).
            self.urgent = true;
        }
    }

    /// Records what the wildcard sent of the names that stay subscribed.
    fn remember_names(&mut self) {
        let ahead = std::mem::take(&mut self.ahead);
        self.rejected.touch_all();
        let Self { names, base, lingering, .. } = self;
        for (name, held) in names {
            let resource = base.as_ref().and_then(|base| base.get(name.as_str()));
            let resource = match ahead.get(name) {
                Some(told) => told.as_ref(),
                None => resource,
            };
            let resource = resource.or_else(|| Some(&lingering.get(name)?.resource));
            match resource {
                Some(resource) => *held = Held::Sent(Arc::clone(resource)),
                None if base.is_some() => *held = Held::Absent,
                None => {}
            }
        }
        let names = &self.names;
        let left = names.values().filter_map(|held| match held {
            Held::Sent(resource) => Some(resource),
            Held::Nothing | Held::Absent | Held::Version(_) => None,
        });
        self.rejected.list_first(left.clone());
        // The named resources are also all that is left of a rejected full state.
        if self.is_full_state() && std::mem::take(&mut self.rejects_state) {
            self.rejected.list(left);
        }
    }

    fn ask(&mut self, name: ResourceName, shared: &Names<'_>) {
        if !self.names.contains_key(&name) {
            shared.note(Interest::Name(self.type_url.clone(), name.clone()));
            self.names_bytes += name.as_str().len();
            self.names.insert(name.clone(), Held::Nothing);
        }
        self.pending.insert(name);
    }

    /// Clears the urgency if nothing requested is left to plan.
    fn review_urgency(&mut self) {
        let asked = self.answer_due || !self.pending.is_empty();
        self.urgent &= asked;
        self.late &= asked;
    }

    /// Drops a name and everything that is remembered of it. A later subscription to it sends the
    /// resource again (SOTW-44, DELTA-27).
    fn forget(&mut self, name: &ResourceName, shared: &Names<'_>) {
        shared.note(Interest::NoName(self.type_url.clone(), name.clone()));
        if let Some(held) = self.names.remove(name) {
            self.names_bytes -= name.as_str().len();
            if let Held::Sent(sent) = held {
                self.rejected.touch(sent.name());
            }
        }
        self.pending.remove(name);
        self.again.remove(name);
        self.unmet.remove(name);
        self.stale.remove(name);
        if let Some(train) = &mut self.train {
            train.given_up.insert(name.clone());
        }
        if !self.wildcard {
            self.known.remove(name);
            if let Some(gone) = self.lingering.remove(name) {
                self.rejected.touch(gone.resource.name());
            }
        }
    }
}

/// Parses a nonce. Returns `None` if Chancery cannot have written it.
pub(crate) fn parse_nonce(text: &str) -> Option<u64> {
    let nonce = text.parse().ok().filter(|nonce| *nonce > 0)?;
    (text == u64::to_string(&nonce)).then_some(nonce)
}

/// The context of a request: names shared with the view, the limit on the number of names, and the
/// log of changes of interest.
pub(crate) struct Names<'a> {
    pub(crate) view: Option<TypeView>,
    pub(crate) others: usize,
    pub(crate) max: usize,
    pub(crate) interest: &'a std::cell::RefCell<Vec<Interest>>,
}

impl Names<'_> {
    /// Returns the name from the view if there is one, so that the subscription holds no copy.
    fn name(&self, name: &str) -> Result<ResourceName, ProtocolError> {
        let resource = self.view.as_ref().and_then(|view| view.get(name));
        match resource.filter(|resource| resource.name().as_str() == name) {
            Some(resource) => Ok(resource.name().clone()),
            None => ResourceName::requested(name).map_err(ProtocolError::Name),
        }
    }

    fn check_count(&self, names: usize) -> Result<(), ProtocolError> {
        let found = self.others + names;
        if found > self.max {
            return Err(ProtocolError::NamesTooMany { found, max: self.max });
        }
        Ok(())
    }

    fn note(&self, interest: Interest) {
        self.interest.borrow_mut().push(interest);
    }
}
