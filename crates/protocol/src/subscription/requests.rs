//! Requests: the names that they subscribe to, and the responses that they answer.

use chancery_model::{ResourceName, Version};
use chancery_view::TypeView;

use super::{
    delivery::{Delivery, SentResponse},
    interest::{Interest, Requests},
    kind::Kind,
    members::Members,
    names::ClientVersion,
    orphans::Orphans,
    rejections::Rejections,
    removals::PendingRemovals,
    resumption::Resumption,
    wildcard::Wildcard,
    work::{Urgency, Work},
};
use crate::{
    DeltaRequest, InterestChange, Nack, NameList, Protocol, ProtocolError, SotwRequest,
    list::{WILDCARD, is_wildcard},
};

/// The number of unused spellings that are kept in any case.
const UNUSED_SPELLINGS_MAX: usize = 16;

/// The client's answer to a response.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) response: SentResponse,
    /// The rejection, if the answer is a NACK.
    pub(crate) nack: Option<Nack>,
}

/// The effect of a request.
#[derive(Debug)]
#[must_use]
pub(crate) struct Effect {
    /// The client's answer, if the request answers a response.
    pub(crate) answer: Option<Answer>,
    /// Whether the request changes what the client subscribes to.
    pub(crate) subscribes: bool,
}

/// The effect of a request, before its answer to a response is processed.
#[derive(Debug)]
#[must_use]
pub(crate) struct Requested {
    /// The response that the request answers, if any.
    pub(crate) answered: Option<SentResponse>,
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
    pub(crate) interest: &'a mut Vec<InterestChange>,
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

    pub(super) fn note(&mut self, interest: InterestChange) {
        self.interest.push(interest);
    }
}

/// The interest of a client while a request changes it, with the parts of a subscription that follow the interest.
#[derive(Debug)]
pub(crate) struct InterestUpdate<'a> {
    pub(super) kind: &'a Kind,
    pub(super) interest: &'a mut Interest,
    pub(super) work: &'a mut Work,
    pub(super) delivery: &'a mut Delivery,
    pub(super) removals: &'a mut PendingRemovals,
    pub(super) orphans: &'a mut Orphans,
    pub(super) rejections: &'a mut Rejections,
    pub(super) resumption: &'a mut Resumption,
}

impl InterestUpdate<'_> {
    /// Processes a SotW request.
    pub(super) fn on_sotw(
        &mut self,
        request: &SotwRequest,
        context: &mut RequestContext<'_>,
    ) -> Result<Requested, ProtocolError> {
        let first = self.interest.requests() == Requests::None;
        let nonce = parse_nonce(&request.response_nonce).filter(|_| !first);
        // SOTW-34: a request with an older nonce gets no response of its own. Its names are still
        // used (SOTW-35). The client's later ACK repeats them, and then they are not new.
        let current = nonce == Some(self.delivery.last_nonce());
        let ListEffect { added, removed, ended } =
            self.set_names(&request.resource_names, context)?;
        let subscribes = added || removed || ended;
        if subscribes {
            self.replan_full_state();
        }
        let answered = nonce.and_then(|nonce| self.delivery.take_answered_sotw(nonce));
        let repeated = current && answered.is_none() && !added && !removed;
        if repeated && request.error_detail.is_none() {
            self.work.on_repeated(self.interest.names().keys().cloned());
        }
        if first {
            // SOTW-79: for other types, an empty response has no meaning. A type without a SotW
            // method is one of them (SVC-05).
            let properties = self.kind.properties;
            let answers_empty = properties.answer_empty && properties.full_state;
            if answers_empty && self.interest.is_subscribed() {
                self.work.set_answer_due(true);
            }
            self.resumption.set_has_resources(!request.version_info.is_empty());
            if self.resumption.has_resources() && self.kind.is_remembered() {
                self.resumption.set_version(&request.version_info);
            }
        }
        // SOTW-37: an empty nonce is a new subscription, not a stale one. Names of a stale request
        // become urgent when the client has caught up, because its list then includes them again
        // (SOTW-34).
        let is_current = current || first || request.response_nonce.is_empty();
        self.work.on_names_added(added, is_current);
        Ok(Requested { answered, subscribes })
    }

    /// Replaces the list of names (SOTW-40, SOTW-60 to -67).
    fn set_names(
        &mut self,
        list: &NameList,
        context: &mut RequestContext<'_>,
    ) -> Result<ListEffect, ProtocolError> {
        let is_blank = list.is_blank();
        let legacy = is_blank && self.interest.requests() < Requests::Named;
        self.interest.on_request(if is_blank { Requests::Unnamed } else { Requests::Named });
        let star = list.wildcard().or(legacy.then_some(WILDCARD));
        let star = star.filter(|_| self.kind.allows_wildcard());
        self.set_wildcard_parameters(star.unwrap_or(WILDCARD));
        let started = star.is_some() && !self.interest.is_wildcard();
        let ended = if star.is_some() { None } else { self.interest.end_wildcard() };
        if started {
            self.interest.start_wildcard();
            self.work.set_answer_due(true);
            self.work.on_all_changed();
            self.rejections.touch_all();
            self.leave_members_to_wildcard();
        }
        if started || ended.is_some() {
            context.note(InterestChange::wildcard(&self.kind.type_url, star.is_some()));
        }
        let mut wanted: Vec<&str> =
            list.iter().filter(|name| !name.is_empty() && !is_wildcard(name)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let (mut fresh, mut gone) = (Vec::new(), Vec::new());
        let interest = &*self.interest;
        if !wanted.iter().copied().eq(interest.named().map(ResourceName::as_str)) {
            for name in wanted.iter().filter(|name| !interest.is_named(name)) {
                fresh.push(context.name(name)?);
            }
            let is_gone = |name: &&ResourceName| wanted.binary_search(&name.as_str()).is_err();
            gone.extend(interest.named().filter(is_gone).cloned());
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
            let names = self.interest.names();
            self.removals.retain(|name, _| names.contains(name.as_str()));
            self.removals.set_unnamed(None);
            if names.is_empty() {
                self.work.set_answer_due(false);
            }
        }
        Ok(effect)
    }

    /// Drops a full state that was planned for an earlier request and is not sent yet. The next
    /// plan replaces it.
    fn replan_full_state(&mut self) {
        if self.kind.is_full_state()
            && let Some(dropped) = self.delivery.drop_pending()
        {
            self.work.on_all_changed();
            self.work.set_answer_due(self.interest.is_subscribed());
            // The dropped errors were not sent. The next plan reports them.
            let names = self.interest.names();
            let unsent = dropped.errors.into_iter().filter(|name| names.contains(name.as_str()));
            self.work.request_all(unsent);
            // Responses that depend on it may already be planned.
            self.work.set_urgency(Urgency::AtOnce);
            self.work.review_urgency();
        }
    }

    /// Processes a delta request.
    pub(super) fn on_delta(
        &mut self,
        request: &DeltaRequest,
        context: &mut RequestContext<'_>,
    ) -> Result<Requested, ProtocolError> {
        let first = self.interest.requests() == Requests::None;
        self.interest.on_request(Requests::Unnamed);
        let opens_legacy = first
            && request.subscribe.is_blank()
            && request.unsubscribe.is_empty()
            && self.kind.allows_wildcard();
        // DYN-12: an unsubscription ends only the wildcard with the same parameters. DELTA-20: if that
        // wildcard is in both lists, unsubscribe takes precedence.
        let ends = |star: &str| request.unsubscribe.iter().any(|name| name == star);
        let star_off =
            self.interest.is_wildcard() && ends(&self.interest.variants().wildcard_name());
        let star_on = request.subscribe.wildcard().or(opens_legacy.then_some(WILDCARD));
        let star_on = star_on.filter(|star| !ends(star) && self.kind.allows_wildcard());
        // No resource has an empty name. A subscription to it is answered like one to any name that
        // does not exist (DELTA-40).
        let names: Vec<ResourceName> = (request.subscribe.iter())
            .filter(|name| !is_wildcard(name) && !opens_legacy)
            .map(|name| context.name(name))
            .collect::<Result<_, _>>()?;
        // The wildcard changes first. If a request replaces a name with the wildcard, the
        // unsubscription then happens while the wildcard is active (DELTA-24).
        let mut subscribes = false;
        if star_off && let Some(wildcard) = self.interest.end_wildcard() {
            self.end_wildcard(&wildcard, context);
            self.set_wildcard_parameters(WILDCARD);
            subscribes = true;
        }
        if let Some(star) = star_on {
            self.set_wildcard_parameters(star);
            if !self.interest.is_wildcard() {
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
        let rejects = request.error_detail.is_some();
        let answered = nonce.and_then(|nonce| self.delivery.take_answered_delta(nonce, rejects));
        Ok(Requested { answered, subscribes })
    }

    /// Unsubscribes from names. Returns whether the client subscribed to any of them.
    fn unsubscribe(&mut self, names: &NameList, context: &mut RequestContext<'_>) -> bool {
        let mut found = false;
        for name in names.iter().filter(|name| !is_wildcard(name)) {
            let (known, globs) = (self.interest.names(), self.interest.globs());
            let named = known.key(name).filter(|name| !globs.has_member(name.as_str()));
            let Some(name) = named.cloned() else { continue };
            self.forget(&name, context);
            found = true;
            if self.interest.is_wildcard() {
                // DELTA-24: the client does not know whether the wildcard still covers the name.
                self.work.request(name.to_base());
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
            && !self.kind.allows_wildcard();
        context.check_count(self.interest.names().len() + versions.len())?;
        self.resumption.set_has_resources(!versions.is_empty());
        let mut subscribes = false;
        for (name, version) in versions.iter().filter(|(name, _)| !name.is_empty()) {
            let name = context.name(name)?;
            let version = Version::parse(version);
            if implied {
                subscribes = true;
                let type_url = self.kind.type_url.clone();
                context.note(InterestChange::Name(type_url, name.clone()));
                match version {
                    Some(_) => self.work.on_changed(name.clone()),
                    None => self.work.request(name.clone()),
                }
                let claimed = version.map_or(ClientVersion::Nothing, ClientVersion::Claimed);
                self.interest.add_claimed(name.clone(), claimed);
            }
            self.resumption.claim(name, version);
        }
        // Removed resources are reported at once, even to a client that subscribes to nothing
        // (DELTA-46).
        if !self.resumption.claimed().is_empty() {
            self.work.on_all_changed();
        }
        Ok(subscribes)
    }

    fn start_wildcard(&mut self, context: &mut RequestContext<'_>) {
        // The wildcard delivers the unsubscribed resources again.
        let _is_left = self.delivery.drop_unsubscribed(|resource| self.interest.covers(resource));
        self.interest.start_wildcard();
        self.delivery.on_interest_grown();
        context.note(InterestChange::wildcard(&self.kind.type_url, true));
        let unanswered = self.delivery.unanswered().iter();
        let unanswered = unanswered.filter_map(|sent| sent.resources.as_ref());
        self.resumption.on_wildcard_started(self.interest.names(), unanswered);
        self.leave_members_to_wildcard();
        self.work.set_answer_due(self.kind.properties.answer_empty);
        self.work.on_all_changed();
        self.work.set_urgency(Urgency::AtOnce);
        self.rejections.touch_all();
    }

    /// Handles the end of the wildcard. Named resources stay subscribed, and the subscription
    /// remembers what the wildcard sent of them (DELTA-36).
    fn end_wildcard(&mut self, wildcard: &Wildcard, context: &mut RequestContext<'_>) {
        context.note(InterestChange::wildcard(&self.kind.type_url, false));
        self.work.set_answer_due(false);
        self.remember_names(wildcard);
        // The client drops all resources that it does not name, including those that it claimed to
        // hold.
        let names = self.interest.names();
        let is_named = |name: &ResourceName| names.contains(name.as_str());
        self.removals.retain(|name, _| is_named(name));
        self.resumption.retain_claims(is_named);
        self.work.retain_marked(is_named);
        // The rest of an incompletely sent state is no longer subscribed.
        if self.delivery.take_pending().is_some() && !names.is_empty() {
            self.work.request_all(names.keys().cloned());
            // The client requested the names earlier and has no answer yet (ADS-26).
            self.work.set_urgency(Urgency::AtOnce);
        }
    }

    /// Records what an ended wildcard sent of the names that stay subscribed.
    fn remember_names(&mut self, wildcard: &Wildcard) {
        self.rejections.touch_all();
        self.members().take_over(wildcard);
        let removals = &*self.removals;
        let removed = |name: &ResourceName| Some(&removals.get(name)?.resource);
        self.interest.remember_names(wildcard, removed);
        let left = self.interest.names().values().filter_map(ClientVersion::sent);
        self.rejections.list_first(left.clone());
        // The named resources are also all that is left of a rejected full state.
        if self.kind.is_full_state() && self.rejections.accept_state() {
            self.rejections.list(left);
        }
    }

    /// Leaves all members of collections to a wildcard that starts.
    fn leave_members_to_wildcard(&mut self) {
        for member in self.interest.leave_members_to_wildcard() {
            self.work.forget(&member);
        }
    }

    /// Adopts the parameters in the name of a wildcard subscription.
    pub(super) fn set_wildcard_parameters(&mut self, name: &str) {
        if self.interest.set_wildcard_parameters(name) {
            self.work.on_all_changed();
            // A variant that comes into view may be of any revision.
            self.delivery.on_interest_grown();
        }
    }

    /// Requests a name. Returns whether the client did not subscribe to it before.
    fn request(&mut self, name: ResourceName, context: &mut RequestContext<'_>) -> bool {
        let is_new = self.interest.add_named(&name, context.view.as_ref());
        if is_new {
            let type_url = self.kind.type_url.clone();
            context.note(InterestChange::Name(type_url, name.to_base()));
        }
        self.work.request(name);
        is_new
    }

    /// Drops a name and everything that is remembered of it. A later subscription to it sends the
    /// resource again (SOTW-44, DELTA-27).
    fn forget(&mut self, name: &ResourceName, context: &mut RequestContext<'_>) {
        // Subscriptions to one name with different parameters share the interest in it.
        if self.interest.names().of_base(name.base()).all(|other| other == name) {
            let type_url = self.kind.type_url.clone();
            context.note(InterestChange::NoName(type_url, name.to_base()));
        }
        self.forget_collection(name);
        if !self.keep_as_member(name) {
            self.drop_name(name);
        }
    }

    /// Handles the end of the subscription to a name that a collection still covers. Returns whether
    /// there is such a collection.
    fn keep_as_member(&mut self, name: &ResourceName) -> bool {
        let is_member = self.interest.keep_as_member(name);
        if is_member && self.kind.protocol == Protocol::Delta {
            // XDSTP-18, like DELTA-24: the client may have dropped the resource.
            self.work.request(name.clone());
            self.work.set_urgency(Urgency::AtOnce);
        }
        is_member
    }

    /// Ends the subscription to a collection, if `name` is one. Members that another collection covers
    /// stay. Those that the client names itself are sent again (XDSTP-18).
    fn forget_collection(&mut self, name: &ResourceName) {
        let Some((glob, gone)) = self.interest.end_collection(name) else { return };
        for member in gone {
            self.drop_name(&member);
        }
        let (names, globs) = (self.interest.names(), self.interest.globs());
        self.work
            .retain_changed(|name| names.contains(name.as_str()) || globs.covers(name.as_str()));
        if self.kind.protocol == Protocol::Delta && !self.interest.is_wildcard() {
            let named = names.keys().filter(|member| glob.has_member(member.as_str()));
            self.work.request_at_once(named.cloned().collect());
        }
    }

    /// Drops everything that is remembered of a name.
    fn drop_name(&mut self, name: &ResourceName) {
        if let Some(ClientVersion::Sent(sent, _)) = self.interest.remove(name) {
            self.rejections.touch(sent.name());
        }
        self.work.forget(name);
        self.orphans.remove(name);
        self.delivery.on_unsubscribed(name);
        if !self.interest.is_wildcard() {
            self.resumption.disclaim(name);
            if let Some(removal) = self.removals.remove(name) {
                self.rejections.touch(removal.resource.name());
            }
        }
    }

    fn members(&mut self) -> Members<'_> {
        let Self { interest, work, resumption, .. } = self;
        Members { interest, work, resumption }
    }

    /// Drops the spellings of names that are no longer used, if more than half of them may be
    /// unused. A request therefore costs O(1) in the mean, however many names are spelled.
    pub(super) fn forget_spellings(&mut self) {
        let Self { interest, work, resumption, removals, .. } = self;
        let (requested, claimed) = (work.requested(), resumption.claimed());
        let used = interest.names().len() + requested.len() + claimed.len() + removals.len();
        if interest.spellings().len() <= 2 * used + UNUSED_SPELLINGS_MAX {
            return;
        }
        interest.forget_spellings(|name| {
            requested.contains(name) || claimed.contains_key(name) || removals.get(name).is_some()
        });
    }
}

/// Parses a nonce. Returns `None` if Chancery cannot have written it.
pub(crate) fn parse_nonce(text: &str) -> Option<u64> {
    let nonce = text.parse().ok().filter(|nonce| *nonce > 0)?;
    (text == u64::to_string(&nonce)).then_some(nonce)
}
