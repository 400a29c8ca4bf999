//! Requests: the names that they subscribe to, and the responses that they answer.

use std::sync::Arc;

use chancery_model::{ResourceName, Revision, Version};
use chancery_view::{Resources, TypeView};

use super::{
    Answer, Changed, ClientVersion, Requests, Subscription, Urgency, Wildcard, interest::is_located,
};
use crate::{
    DeltaRequest, Interest, NameList, Protocol, ProtocolError, SotwRequest,
    list::{WILDCARD, is_wildcard},
};

/// The number of unused spellings that are kept in any case.
const UNUSED_SPELLINGS_MAX: usize = 16;

/// The effect of a request.
#[derive(Debug)]
pub(crate) struct Effect {
    /// The client's answer, if the request answers a response.
    pub(crate) answer: Option<Answer>,
    /// Whether the request changes what the client subscribes to.
    pub(crate) subscribes: bool,
}

/// The effect of a SotW list of names.
#[derive(Debug, Clone, Copy)]
struct ListEffect {
    /// Whether the list adds a name or the wildcard.
    added: bool,
    /// Whether the list removes a name.
    removed: bool,
    /// Whether the list ends the wildcard.
    ended: bool,
}

/// The context of a request.
pub(crate) struct RequestContext<'a> {
    /// The node's view of the type. The subscription shares the view's copies of the names.
    pub(crate) view: Option<TypeView>,
    /// The number of names of the stream's other types.
    pub(crate) n_others: usize,
    /// The limit on the number of names (SOTW-52).
    pub(crate) max: usize,
    /// The changes to the session's interest; the request appends its own.
    pub(crate) interest: &'a mut Vec<Interest>,
}

impl RequestContext<'_> {
    /// Returns the name from the view if there is one, so that the subscription holds no copy.
    pub(super) fn name(&self, name: &str) -> Result<ResourceName, ProtocolError> {
        let resource = self.view.as_ref().and_then(|view| view.get(name));
        match resource.filter(|resource| resource.name().as_str() == name) {
            Some(resource) => Ok(resource.name().clone()),
            None => ResourceName::requested(name).map_err(ProtocolError::Name),
        }
    }

    pub(super) fn check_count(&self, names: usize) -> Result<(), ProtocolError> {
        let found = self.n_others + names;
        if found > self.max {
            return Err(ProtocolError::NamesTooMany { found, max: self.max });
        }
        Ok(())
    }

    pub(super) fn note(&mut self, interest: Interest) {
        self.interest.push(interest);
    }
}

impl Subscription {
    /// Returns whether the type supports a wildcard (SOTW-68). In SotW, a type without a SotW
    /// method supports no wildcard (SVC-05).
    fn wildcard_allowed(&self) -> bool {
        let service = self.properties.service.as_ref();
        self.properties.wildcard
            && (self.protocol != Protocol::Sotw || service.is_none_or(|s| s.sotw.is_some()))
    }

    /// Processes a SotW request.
    pub(crate) fn on_sotw(
        &mut self,
        request: &SotwRequest,
        context: &mut RequestContext<'_>,
        now: u64,
    ) -> Result<Effect, ProtocolError> {
        let first = self.requests == Requests::None;
        let nonce = parse_nonce(&request.response_nonce).filter(|_| !first);
        // SOTW-34: a request with an older nonce gets no response of its own. Its names are still
        // used (SOTW-35). The client's later ACK repeats them, and then they are not new.
        let current = nonce == Some(self.delivery.last_nonce);
        let ListEffect { added, removed, ended } =
            self.set_names(&request.resource_names, context)?;
        let subscribes = added || removed || ended;
        if subscribes {
            self.replan_full_state();
        }
        let answered = nonce.and_then(|nonce| self.delivery.take_answered_sotw(nonce));
        let repeated = current && answered.is_none() && !added && !removed;
        let error = request.error_detail.as_ref();
        if repeated && error.is_none() && std::mem::take(&mut self.work.repeat_due) {
            self.work.requested.extend(self.names.keys().cloned());
        }
        if first {
            // SOTW-79: for other types, an empty response has no meaning. A type without a SotW
            // method is one of them (SVC-05).
            let answers_empty = self.properties.answer_empty && self.properties.full_state;
            self.work.answer_due |= answers_empty && self.is_subscribed();
            self.resumption.has_resources = !request.version_info.is_empty();
            if self.resumption.has_resources && self.is_remembered() {
                self.resumption.set_version(&request.version_info);
            }
        }
        // SOTW-37: an empty nonce is a new subscription, not a stale one. Names of a stale request
        // become urgent when the client has caught up, because its list then includes them again
        // (SOTW-34).
        let is_current = current || first || request.response_nonce.is_empty();
        self.work.on_names_added(added, is_current);
        let answer = answered.map(|sent| self.on_answer(sent, error, now));
        self.review_rejections();
        Ok(Effect { answer, subscribes })
    }

    /// Replaces the list of names (SOTW-40, SOTW-60 to -67).
    fn set_names(
        &mut self,
        list: &NameList,
        context: &mut RequestContext<'_>,
    ) -> Result<ListEffect, ProtocolError> {
        let is_blank = list.is_blank();
        let legacy = is_blank && self.requests < Requests::Named;
        let seen = if is_blank { Requests::Unnamed } else { Requests::Named };
        self.requests = self.requests.max(seen);
        let star = list.wildcard().or(legacy.then_some(WILDCARD));
        let star = star.filter(|_| self.wildcard_allowed());
        self.set_wildcard_parameters(star.unwrap_or(WILDCARD));
        let started = star.is_some() && !self.is_wildcard();
        let ended = if star.is_some() { None } else { self.wildcard.take() };
        if started {
            self.wildcard = Some(Wildcard::default());
            (self.work.answer_due, self.work.changed) = (true, Changed::All);
            self.rejections.touch_all();
            self.leave_members_to_wildcard();
        }
        if started || ended.is_some() {
            context.note(Interest::wildcard(&self.type_url, star.is_some()));
        }
        let mut wanted: Vec<&str> =
            list.iter().filter(|name| !name.is_empty() && !is_wildcard(name)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let (mut fresh, mut gone) = (Vec::new(), Vec::new());
        let named = self.names.keys().map(ResourceName::as_str);
        if !wanted.iter().copied().eq(named.filter(|name| !self.globs.has_member(name))) {
            for name in wanted.iter().filter(|name| !self.is_named(name)) {
                fresh.push(context.name(name)?);
            }
            let is_gone = |name: &&ResourceName| {
                let name = name.as_str();
                wanted.binary_search(&name).is_err() && !self.globs.has_member(name)
            };
            gone.extend(self.names.keys().filter(is_gone).cloned());
        }
        for name in &gone {
            self.forget(name, context);
        }
        let effect = ListEffect {
            added: started || !fresh.is_empty(),
            removed: !gone.is_empty(),
            ended: ended.is_some(),
        };
        for name in fresh {
            self.request(name, context);
        }
        if let Some(wildcard) = ended {
            // The client keeps the wildcard's resources of the names that it now subscribes to.
            self.remember_names(&wildcard);
        }
        if star.is_none() {
            let names = &self.names;
            self.removals.retain(|name, _| names.contains(name.as_str()));
            self.removals.set_unnamed(None);
            self.work.answer_due &= !names.is_empty();
        }
        context.check_count(self.n_remembered())?;
        Ok(effect)
    }

    /// Drops a full state that was planned for an earlier request and is not sent yet. The next
    /// plan replaces it.
    fn replan_full_state(&mut self) {
        if self.is_full_state()
            && let Some(dropped) = self.delivery.pending.take()
        {
            self.delivery.included = dropped.carried.after;
            self.work.changed = Changed::All;
            self.work.answer_due = self.is_subscribed();
            // The dropped errors were not sent. The next plan reports them.
            let names = &self.names;
            let unsent = dropped.errors.into_iter().filter(|name| names.contains(name.as_str()));
            self.work.requested.extend(unsent);
            // Responses that depend on it may already be planned.
            self.work.set_urgency(Urgency::AtOnce);
            self.work.review_urgency();
        }
    }

    /// Processes a delta request.
    pub(crate) fn on_delta(
        &mut self,
        request: &DeltaRequest,
        context: &mut RequestContext<'_>,
        now: u64,
    ) -> Result<Effect, ProtocolError> {
        let first = self.requests == Requests::None;
        self.requests = Requests::Unnamed;
        let opens_legacy = first
            && request.subscribe.is_blank()
            && request.unsubscribe.is_empty()
            && self.wildcard_allowed();
        // DYN-12: an unsubscription ends only the wildcard with the same parameters. DELTA-20: if that
        // wildcard is in both lists, unsubscribe takes precedence.
        let ends = |star: &str| request.unsubscribe.iter().any(|name| name == star);
        let star_off = self.is_wildcard() && ends(&self.variants.wildcard_name());
        let star_on = request.subscribe.wildcard().or(opens_legacy.then_some(WILDCARD));
        let star_on = star_on.filter(|star| !ends(star) && self.wildcard_allowed());
        // No resource has an empty name. A subscription to it is answered like one to any name that
        // does not exist (DELTA-40).
        let names: Vec<ResourceName> = (request.subscribe.iter())
            .filter(|name| !is_wildcard(name) && !opens_legacy)
            .map(|name| context.name(name))
            .collect::<Result<_, _>>()?;
        // The wildcard changes first. If a request replaces a name with the wildcard, the
        // unsubscription then happens while the wildcard is active (DELTA-24).
        let mut subscribes = false;
        if star_off && let Some(wildcard) = self.wildcard.take() {
            self.end_wildcard(&wildcard, context);
            self.set_wildcard_parameters(WILDCARD);
            subscribes = true;
        }
        if let Some(star) = star_on {
            self.set_wildcard_parameters(star);
            if !self.is_wildcard() {
                self.start_wildcard(context);
                subscribes = true;
            }
        }
        subscribes |= self.unsubscribe(&request.unsubscribe, context);
        if first {
            subscribes |= self.take_initial_versions(request, context)?;
        }
        for name in names {
            subscribes |= self.request(name, context);
            self.work.set_urgency(Urgency::AtOnce);
        }
        self.work.review_urgency();
        let nonce = parse_nonce(&request.response_nonce).filter(|_| !first);
        let error = request.error_detail.as_ref();
        let answered =
            nonce.and_then(|nonce| self.delivery.take_answered_delta(nonce, error.is_some()));
        let answer = answered.map(|sent| self.on_answer(sent, error, now));
        self.review_rejections();
        self.forget_spellings();
        context.check_count(self.n_remembered())?;
        Ok(Effect { answer, subscribes })
    }

    /// Drops the spellings of names that are no longer used, if more than half of them may be
    /// unused. A request therefore costs O(1) in the mean, however many names are spelled.
    fn forget_spellings(&mut self) {
        let Self { spellings, names, work, resumption, removals, .. } = self;
        let used = names.len() + work.requested.len() + resumption.claimed.len() + removals.len();
        if spellings.len() <= 2 * used + UNUSED_SPELLINGS_MAX {
            return;
        }
        spellings.retain(|name| {
            names.contains(name.as_str())
                || work.requested.contains(name)
                || resumption.claimed.contains_key(name)
                || removals.get(name).is_some()
        });
    }

    /// Unsubscribes from names. Returns whether the client subscribed to any of them.
    fn unsubscribe(&mut self, names: &NameList, context: &mut RequestContext<'_>) -> bool {
        let mut found = false;
        for name in names.iter().filter(|name| !is_wildcard(name)) {
            let named = self.names.key(name).filter(|name| !self.globs.has_member(name.as_str()));
            let Some(name) = named.cloned() else { continue };
            self.forget(&name, context);
            found = true;
            if self.is_wildcard() {
                // DELTA-24: the client does not know whether the wildcard still covers the name.
                self.work.requested.insert(name.to_base());
                self.work.set_urgency(Urgency::AtOnce);
            }
        }
        found
    }

    /// Processes the resources that the client claims to hold (DELTA-22, -46, -57 to -59). Returns
    /// whether the client thereby subscribes to them.
    fn take_initial_versions(
        &mut self,
        request: &DeltaRequest,
        context: &mut RequestContext<'_>,
    ) -> Result<bool, ProtocolError> {
        let versions = &request.initial_resource_versions;
        // A client may subscribe to names implicitly, by listing them here without a subscribe
        // list. This applies to types without a wildcard.
        let implied = request.subscribe.is_empty()
            && request.unsubscribe.is_empty()
            && !self.wildcard_allowed();
        context.check_count(self.names.len() + versions.len())?;
        self.resumption.has_resources = !versions.is_empty();
        let mut subscribes = false;
        for (name, version) in versions.iter().filter(|(name, _)| !name.is_empty()) {
            let name = context.name(name)?;
            let version = Version::parse(version);
            if implied {
                subscribes = true;
                context.note(Interest::Name(self.type_url.clone(), name.clone()));
                match version {
                    Some(_) => self.work.changed.insert(name.clone()),
                    None => drop(self.work.requested.insert(name.clone())),
                }
                let claimed = version.map_or(ClientVersion::Nothing, ClientVersion::Claimed);
                self.names.insert(name.clone(), claimed);
            }
            self.resumption.claim(name, version);
        }
        // Removed resources are reported at once, even to a client that subscribes to nothing
        // (DELTA-46).
        if !self.resumption.claimed.is_empty() {
            self.work.changed = Changed::All;
        }
        Ok(subscribes)
    }

    fn start_wildcard(&mut self, context: &mut RequestContext<'_>) {
        // The wildcard delivers the unsubscribed resources again.
        self.drop_unsubscribed();
        self.wildcard = Some(Wildcard::default());
        self.delivery.included = Revision(0);
        context.note(Interest::wildcard(&self.type_url, true));
        let claimed = &mut self.resumption.claimed;
        // The client may have dropped resources that it listed but did not subscribe to.
        claimed.values_mut().for_each(|version| *version = None);
        // The key is the resource's own name, even if the client uses an alias.
        claimed.extend(self.names.iter().filter_map(|(name, held)| {
            let own = held.sent().map_or(name, |resource| resource.name());
            Some((own.clone(), Some(held.version()?)))
        }));
        // Resources in unanswered responses arrive after the client has started the wildcard, so it
        // may keep them. The server does not repeat a removal that is also unanswered (DELTA-44).
        let unanswered = self.delivery.unanswered.iter().filter_map(|sent| sent.resources.as_ref());
        for name in unanswered.flat_map(Resources::iter).map(|resource| resource.name()) {
            if !matches!(self.names.get(name), Some(ClientVersion::Absent)) {
                claimed.entry(name.clone()).or_insert(None);
            }
        }
        self.leave_members_to_wildcard();
        (self.work.answer_due, self.work.changed) = (self.properties.answer_empty, Changed::All);
        self.work.set_urgency(Urgency::AtOnce);
        self.rejections.touch_all();
    }

    /// Handles the end of the wildcard. Named resources stay subscribed, and the subscription
    /// remembers what the wildcard sent of them (DELTA-36).
    fn end_wildcard(&mut self, wildcard: &Wildcard, context: &mut RequestContext<'_>) {
        context.note(Interest::wildcard(&self.type_url, false));
        self.work.answer_due = false;
        self.remember_names(wildcard);
        // The client drops all resources that it does not name, including those that it claimed to
        // hold.
        let is_named = |name: &ResourceName| self.names.contains(name.as_str());
        self.removals.retain(|name, _| is_named(name));
        self.resumption.claimed.retain(|name, _| is_named(name));
        self.work.requested.retain(is_named);
        self.work.resent.retain(is_named);
        // The rest of an incompletely sent state is no longer subscribed.
        if self.delivery.pending.take().is_some() && !self.names.is_empty() {
            self.work.requested.extend(self.names.keys().cloned());
            // The client requested the names earlier and has no answer yet (ADS-26).
            self.work.set_urgency(Urgency::AtOnce);
        }
    }

    /// Records what an ended wildcard sent of the names that stay subscribed.
    fn remember_names(&mut self, wildcard: &Wildcard) {
        self.rejections.touch_all();
        let base = wildcard.base.as_ref();
        let sent_in = Arc::new(wildcard.base_or_empty().version());
        self.take_members_of(wildcard);
        let removals = &self.removals;
        self.names.update(|name| {
            // The plans of the wildcard record what they send of names with parameters.
            if is_located(name) {
                return None;
            }
            let resource = match wildcard.sent_early.get(name) {
                Some(sent) => sent.as_ref(),
                None => base.and_then(|base| base.get(name.as_str())),
            };
            match resource.or_else(|| Some(&removals.get(name)?.resource)) {
                Some(resource) => Some(ClientVersion::sent_in(resource, &sent_in)),
                None => base.map(|_| ClientVersion::Absent),
            }
        });
        let is_full_state = self.is_full_state();
        let left = self.names.values().filter_map(ClientVersion::sent);
        self.rejections.list_first(left.clone());
        // The named resources are also all that is left of a rejected full state.
        if is_full_state && self.rejections.accept_state() {
            self.rejections.list(left);
        }
    }

    /// Requests a name. Returns whether the client did not subscribe to it before.
    fn request(&mut self, name: ResourceName, context: &mut RequestContext<'_>) -> bool {
        let is_new = self.name_explicitly(&name, context.view.as_ref());
        if is_new {
            context.note(Interest::Name(self.type_url.clone(), name.to_base()));
        }
        if !self.names.contains(name.as_str()) {
            self.names.insert(name.clone(), ClientVersion::Nothing);
        }
        self.work.requested.insert(name);
        is_new
    }

    /// Drops a name and everything that is remembered of it. A later subscription to it sends the
    /// resource again (SOTW-44, DELTA-27).
    fn forget(&mut self, name: &ResourceName, context: &mut RequestContext<'_>) {
        // Subscriptions to one name with different parameters share the interest in it.
        if self.names.of_base(name.base()).all(|other| other == name) {
            context.note(Interest::NoName(self.type_url.clone(), name.to_base()));
        }
        self.forget_collection(name);
        if !self.keep_as_member(name) {
            self.drop_name(name);
        }
    }

    /// Drops everything that is remembered of a name.
    pub(super) fn drop_name(&mut self, name: &ResourceName) {
        if let Some(ClientVersion::Sent(sent, _)) = self.names.remove(name) {
            self.rejections.touch(sent.name());
        }
        self.work.forget(name);
        self.orphans.remove(name);
        if let Some(pending) = &mut self.delivery.pending {
            pending.unsubscribed.insert(name.clone());
        }
        if !self.is_wildcard() {
            self.resumption.claimed.remove(name);
            if let Some(removal) = self.removals.remove(name) {
                self.rejections.touch(removal.resource.name());
            }
        }
    }
}

/// Parses a nonce. Returns `None` if Chancery cannot have written it.
pub(crate) fn parse_nonce(text: &str) -> Option<u64> {
    let nonce = text.parse().ok().filter(|nonce| *nonce > 0)?;
    (text == u64::to_string(&nonce)).then_some(nonce)
}
