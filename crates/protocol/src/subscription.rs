//! A subscription: the state of one type of a stream.
//!
//! Each part of the state has a type of its own, which alone changes it:
//! - [`Interest`]: what the client subscribes to, with its versions; [`Orphans`]: what it keeps of the past;
//! - [`Work`]: the changes that are not planned yet;
//! - [`Delivery`]: the responses on their way; [`Agreement`]: the form of the next one;
//! - [`PendingRemovals`] and [`Rejections`]: what delays or follows responses;
//! - [`Renewals`] and [`Refresh`]: what is sent again in time;
//! - [`Resumption`]: what the client holds from an earlier stream.
//!
//! This file passes each event to the parts that it concerns. What needs several parts is a type that
//! borrows exactly these: [`InterestUpdate`] for a request, [`Planner`] for a plan, [`Splitter`] for a
//! response, [`Causes`] for rejections whose cause has ended, [`Contents`] for introspection, and [`Cost`] for limits.

use std::sync::Arc;

use chancery_model::{
    DynamicParameters, ResourceName, Revision, TypeUrl, TypeVersion, types::Properties,
};
use chancery_view::{Differ, LayerDelta, Resources, TypeView, View};

use crate::{
    Config, ContentsPage, EndpointLists, ErrorDetail, LifetimeSupport, Nack, Protocol,
    ProtocolError, Request, Response, SubscriptionStatus, SyncState, Synchronization,
    plan::{self, PlanContext, Planner, Selection, Touched},
    spelling::{Speller, Spellings},
};

mod acceptance;
mod agreement;
mod answers;
mod causes;
mod client_resources;
mod contents;
mod cost;
mod delivery;
mod globs;
mod held_back;
mod interest;
mod kind;
mod mcp;
mod members;
mod names;
mod orphans;
mod parameters;
mod part;
mod refresh;
mod rejections;
mod removals;
mod renewals;
mod requests;
mod resumption;
mod variants;
mod wildcard;
mod work;

pub use acceptance::Acceptance;
use agreement::Agreement;
use answers::Answers;
use causes::Causes;
pub(crate) use client_resources::ClientResources;
use contents::Contents;
use cost::Cost;
pub(crate) use cost::{NAME_COST_BYTES, REMOVAL_COST_BYTES};
pub(crate) use delivery::{CarriedRevisions, Delivery, Pace, PendingResponse, SentResponse};
pub(crate) use interest::Interest;
pub(crate) use kind::Kind;
use mcp::SinkUpdate;
use members::Members;
pub(crate) use names::ClientVersion;
pub(crate) use orphans::Orphans;
use part::Splitter;
use refresh::Refresh;
pub(crate) use rejections::{Rejections, Retried};
pub(crate) use removals::{PendingRemoval, PendingRemovals, Release, UnnamedRemovals};
pub(crate) use renewals::Renewals;
use requests::{Answer, Effect, InterestUpdate, Requested};
pub(crate) use requests::{RequestContext, parse_nonce};
pub use resumption::ResumeState;
pub(crate) use resumption::{KeptResponse, Resumption};
pub(crate) use variants::{has_elsewhere, is_replaced, is_replaced_by, tells_replaced};
pub(crate) use wildcard::Wildcard;
pub(crate) use work::{Changed, Work};

/// The state of one type of a stream.
#[derive(Debug)]
pub(crate) struct Subscription {
    kind: Kind,
    opened_at: u64,
    interest: Interest,
    work: Work,
    delivery: Delivery,
    /// Removed resources, whose removal waits for the types that refer to them (ADS-08).
    removals: PendingRemovals,
    orphans: Orphans,
    /// Rejected resources for which the client has not accepted a replacement.
    rejections: Rejections,
    resumption: Resumption,
    renewals: Renewals,
    refresh: Refresh,
    /// MCP: the form of the next response.
    agreement: Agreement,
}

impl Subscription {
    pub(crate) fn new(type_url: TypeUrl, protocol: Protocol, config: &Config, now: u64) -> Self {
        Self {
            kind: Kind::new(type_url, protocol, config),
            opened_at: now,
            interest: Interest::default(),
            work: Work::default(),
            delivery: Delivery::new(now),
            removals: PendingRemovals::default(),
            orphans: Orphans::default(),
            rejections: Rejections::new(config.first_state_listed_max),
            resumption: Resumption::default(),
            renewals: Renewals::new(now),
            refresh: Refresh::default(),
            agreement: Agreement::default(),
        }
    }

    // The parts, to read.

    pub(crate) fn type_url(&self) -> &TypeUrl {
        &self.kind.type_url
    }

    pub(crate) fn properties(&self) -> &'static Properties {
        self.kind.properties
    }

    pub(crate) fn protocol(&self) -> Protocol {
        self.kind.protocol
    }

    pub(crate) fn is_full_state(&self) -> bool {
        self.kind.is_full_state()
    }

    pub(crate) fn opened_at(&self) -> u64 {
        self.opened_at
    }

    pub(crate) fn interest(&self) -> &Interest {
        &self.interest
    }

    pub(crate) fn work(&self) -> &Work {
        &self.work
    }

    pub(crate) fn delivery(&self) -> &Delivery {
        &self.delivery
    }

    pub(crate) fn removals(&self) -> &PendingRemovals {
        &self.removals
    }

    pub(crate) fn orphans(&self) -> &Orphans {
        &self.orphans
    }

    pub(crate) fn resumption(&self) -> &Resumption {
        &self.resumption
    }

    pub(crate) fn nack(&self) -> Option<&Nack> {
        self.rejections.nack()
    }

    // The features of the client.

    /// Sets the support of the client for lifetimes.
    pub(crate) fn support_lifetimes(&mut self, support: LifetimeSupport) {
        let client = ClientResources::new(&self.interest, &self.removals);
        self.renewals.set_support(support, &self.kind, client);
        self.refresh.set_seed(support.seed());
    }

    /// Adopts the node's parameters (DYN-11).
    pub(crate) fn set_node_parameters(&mut self, parameters: Option<Arc<DynamicParameters>>) {
        if self.interest.set_node_parameters(parameters) {
            self.on_view_changed();
        }
    }

    /// Returns the part of a view that the client can request, with its parameters. A wildcard does not ask for the
    /// names of other nodes.
    pub(crate) fn visible(&self, lists: EndpointLists, view: &View) -> TypeView {
        let parameters = self.interest.variants().parameters();
        let all = lists.visible(view, &self.kind.type_url).with_parameters(parameters);
        let hides_others = self.interest.is_wildcard();
        if hides_others { all.hiding_other_nodes(|| view.node().cloned()) } else { all }
    }

    // Requests.

    /// Converts the structured names of a request to the form that the session uses.
    pub(crate) fn spell(&mut self, request: &mut Request, config: &Config) {
        if request.has_locators() {
            // The server resends earlier variants with constraints.
            let again = self.interest.on_locators();
            self.work.request_at_once(again);
        }
        let spellings = match (request.protocol(), self.interest.take_spellings()) {
            // The new list replaces the previous one.
            (Protocol::Sotw, _) => Spellings::default(),
            (Protocol::Delta | Protocol::Mcp, spellings) => spellings,
        };
        let mut speller = Speller { type_url: &self.kind.type_url, config, spellings };
        speller.convert_request(request);
        self.interest.set_spellings(speller.spellings);
    }

    /// Processes a request.
    pub(crate) fn on_request(
        &mut self,
        request: &Request,
        context: &mut RequestContext<'_>,
        now: u64,
    ) -> Result<Effect, ProtocolError> {
        let Requested { answered, subscribes } = match request {
            Request::Sotw(request) => self.update().on_sotw(request, context)?,
            Request::Delta(request) => self.update().on_delta(request, context)?,
            Request::Mcp(request) => self.sink_update().on_request(request, context)?,
        };
        let is_xds = self.kind.protocol != Protocol::Mcp;
        let is_answer = answered.is_some();
        let answer = answered.map(|sent| self.on_answer(sent, request.error_detail(), now));
        if is_xds || is_answer {
            self.review_rejections();
        }
        if self.kind.protocol == Protocol::Delta {
            self.update().forget_spellings();
        }
        if is_xds {
            context.check_count(self.cost().n_remembered())?;
        }
        Ok(Effect { answer, subscribes })
    }

    /// Records an ACK or a NACK (SOTW-20, SOTW-28).
    fn on_answer(
        &mut self,
        mut sent: SentResponse,
        error: Option<&ErrorDetail>,
        now: u64,
    ) -> Answer {
        self.delivery.on_answer(now);
        let Some(error) = error else {
            let is_settled = self.delivery.on_ack(&sent);
            self.rejections.on_ack(&sent, is_settled);
            if self.kind.is_remembered() {
                self.resumption.on_accepted(&sent.version, sent.resources.take());
            }
            return Answer { response: sent, nack: None };
        };
        let nack = Nack {
            version: sent.version.clone(),
            code: error.code,
            message: error.message.clone(),
            at_ms: now,
        };
        let (is_wildcard, is_full_state) = (self.interest.is_wildcard(), self.kind.is_full_state());
        self.rejections.on_nack(&sent, nack.clone(), is_wildcard, is_full_state);
        let removed = std::mem::take(&mut sent.removed);
        self.causes().on_nack(removed, sent.nonce);
        Answer { response: sent, nack: Some(nack) }
    }

    /// Handles an accepted response of another type, which may have ended the cause of rejections before it.
    pub(crate) fn on_cause_ended(&mut self, nonce: u64) {
        self.causes().on_cause_ended(nonce);
    }

    /// Sends the resources again that were rejected with others that are gone, when they are due.
    pub(crate) fn retry_when_due(&mut self, now: u64) {
        self.causes().retry_when_due(now);
    }

    /// Returns the time of the next retry of rejected resources.
    pub(crate) fn retry_at(&self) -> Option<u64> {
        causes::retry_at(&self.kind, &self.delivery, &self.rejections)
    }

    fn review_rejections(&mut self) {
        let client = ClientResources::new(&self.interest, &self.removals);
        self.rejections.on_event(client, self.delivery.is_settled());
    }

    /// Adds the resources that the client holds from its earlier streams.
    pub(crate) fn resume_from(&mut self, states: &[Arc<ResumeState>]) {
        self.resumption.resume_from(&self.kind.type_url, states);
    }

    /// Sets the view that has the client's version.
    pub(crate) fn resume_from_view(&mut self, lists: EndpointLists, view: &View) {
        self.resumption.resume_from_view(self.visible(lists, view));
    }

    /// Returns the resources that the client may hold when the stream ends.
    pub(crate) fn take_resume_state(&mut self) -> Vec<KeptResponse> {
        if !self.kind.is_remembered() {
            return Vec::new();
        }
        let kept = |(version, resources): (TypeVersion, Resources)| KeptResponse {
            type_url: self.kind.type_url.clone(),
            version: version.to_string(),
            resources,
        };
        let unanswered = self.delivery.take_contents();
        self.resumption.take_accepted().into_iter().chain(unanswered).map(kept).collect()
    }

    /// Restarts the wait for further requests, if the subscription was opened at or after `since`.
    pub(crate) fn taken_at(&mut self, since: u64, now: u64) {
        if self.opened_at >= since {
            self.opened_at = now;
        }
    }

    // Changes of the state.

    /// Marks a change of the resource or alias `name`, or of any resource for a wildcard.
    pub(crate) fn on_change(&mut self, name: Option<&ResourceName>) {
        match name {
            Some(name) if !self.interest.is_wildcard() => {
                self.on_changed_name(name);
            }
            _ if self.interest.is_wildcard() => self.work.on_all_changed(),
            _ => {}
        }
    }

    /// Marks all changes of one collection, whether or not the client subscribes to them. Returns whether the client
    /// may subscribe to one of them.
    pub(crate) fn on_changes(&mut self, delta: &LayerDelta) -> bool {
        if self.interest.is_wildcard() || self.interest.names().len() < delta.n_steps() {
            if self.interest.is_subscribed() {
                self.work.on_all_changed();
            }
            return self.interest.is_subscribed();
        }
        let mut found = false;
        for name in delta.names() {
            found |= self.on_changed_name(name);
        }
        found
    }

    /// Marks a changed name. Returns whether the client subscribes to it, or to its collection.
    fn on_changed_name(&mut self, name: &ResourceName) -> bool {
        let mut is_known = false;
        for known in self.interest.names().of_base(name.as_str()) {
            self.work.on_changed(known.clone());
            is_known = true;
        }
        if !is_known && self.interest.globs().covers(name.as_str()) {
            self.work.on_changed(name.clone());
            is_known = true;
        }
        is_known
    }

    /// Marks everything as changed, because the node sees other scopes now.
    pub(crate) fn on_new_view(&mut self) {
        self.withdraw_plan();
        self.on_view_changed();
    }

    /// Marks everything as changed, because other resources are visible.
    fn on_view_changed(&mut self) {
        self.work.on_all_changed();
        // A resource that comes into view may be of any revision.
        self.delivery.on_interest_grown();
    }

    /// Lets the next plan send names again.
    pub(crate) fn resend(&mut self, names: impl IntoIterator<Item = ResourceName>) {
        self.work.resend(names);
    }

    /// Sets whether a request that repeats the last one asks for the children again (ADS-12).
    pub(crate) fn set_repeat_due(&mut self, is_due: bool) {
        self.work.set_repeat_due(is_due);
    }

    /// Marks the removals that are kept back for a listener that drains.
    pub(crate) fn mark_kept(
        &mut self,
        n_changes: u64,
        until: u64,
        is_kept: impl Fn(Option<&ResourceName>, Revision) -> bool,
    ) {
        self.removals.mark_kept(n_changes, until, is_kept);
    }

    // Plans.

    /// Begins to wait for the types before this one, unless the type waits already.
    pub(crate) fn begin_wait(&mut self, now: u64) {
        self.work.begin_wait(now);
    }

    /// Ends the wait for the types before this one.
    pub(crate) fn end_wait(&mut self) {
        self.work.end_wait();
    }

    /// Plans the next response from the view.
    pub(crate) fn plan(
        &mut self,
        context: PlanContext<'_>,
        release: Release,
        differ: &Differ,
    ) -> Touched {
        self.members().update(context.view);
        let touched = plan::plan(&mut self.planner(), context, release, differ);
        self.refresh.on_planned(self.interest.names(), context.now);
        touched
    }

    /// Plans a response to the requested names only.
    pub(crate) fn plan_requested(
        &mut self,
        context: PlanContext<'_>,
        selection: Selection,
    ) -> Touched {
        self.members().update(context.view);
        let touched = plan::plan_requested(&mut self.planner(), context, selection);
        self.refresh.on_planned(self.interest.names(), context.now);
        touched
    }

    /// Plans the renewal of the lifetimes that are due.
    pub(crate) fn plan_renewal(&mut self, differ: &Differ, now: u64) {
        let Self { kind, interest, removals, rejections, delivery, renewals, .. } = self;
        let client = ClientResources::new(interest, removals);
        let planned = renewals.plan(kind, client, rejections, delivery, differ, now);
        if let Some(pending) = planned {
            delivery.set_pending(pending);
        }
    }

    /// Requests the endpoints that are due before they are stale.
    pub(crate) fn request_refresh(&mut self, now: u64) {
        self.work.resend(self.refresh.take_due(self.interest.names(), &self.rejections, now));
    }

    /// Returns the time of the next refresh of endpoints, in O(classes).
    pub(crate) fn refresh_at(&self) -> Option<u64> {
        self.refresh.next_at(self.interest.names())
    }

    /// Returns the time of the next renewal of lifetimes, unless a response is on its way that is sent first.
    pub(crate) fn renewal_at(&self, ack_timeout_ms: u64, now: u64) -> Option<u64> {
        self.renewals.next_at(&self.delivery, ack_timeout_ms, now)
    }

    // The planned response.

    /// Sets the pace of the planned response. Returns whether there is one.
    pub(crate) fn set_pace(&mut self, pace: Pace) -> bool {
        self.delivery.set_pace(pace)
    }

    /// Withdraws the response that is held back. Its resources are planned again.
    pub(crate) fn withdraw_plan(&mut self) {
        let Self { kind, delivery, interest, work, .. } = self;
        held_back::withdraw(kind, delivery, interest, work);
    }

    /// Sends the next part of the planned response, of about `target` bytes.
    pub(crate) fn send_part(&mut self, nonce: u64, target: usize, now: u64) -> Option<Response> {
        if !self.delivery.drop_unsubscribed(|resource| self.interest.covers(resource)) {
            self.review_rejections();
            return None;
        }
        let mut pending = self.delivery.take_pending()?;
        let part = self.splitter().take_part(&mut pending, target);
        let Self { interest, work, resumption, .. } = self;
        part::clear_requests(&part, &pending.version, interest, work, resumption);
        let response = self.splitter().response(part, &pending, nonce);
        self.delivery.on_sent(SentResponse {
            nonce,
            sent_at: now,
            version: pending.version.clone(),
            revision: pending.covers,
            carried: pending.carried,
            first_state: pending.first_state.then_some(pending.revision).or(pending.repeats),
            resources: Some(response.contents()),
            removed: std::mem::take(&mut pending.announced),
            changes: pending.changes && pending.is_empty(),
        });
        let client = ClientResources::new(&self.interest, &self.removals);
        self.renewals.on_sent(&response.resources, &pending, &self.kind, client, now);
        if !pending.is_empty() {
            self.delivery.set_pending(pending);
        }
        Some(response)
    }

    // Questions about several parts.

    /// Returns whether there may be something to send. It compares no resources.
    pub(crate) fn has_work(&self) -> bool {
        self.work.has_changes() || self.delivery.pending().is_some()
    }

    /// Returns whether one of the allowed removals may be announced without any other change.
    pub(crate) fn has_releasable(&self, release: Release) -> bool {
        self.removals.has_releasable(release, || self.rejections.rejects_present(&self.removals))
    }

    /// Returns whether the client waits for an answer. A resuming client has its earlier resources
    /// until the first response.
    pub(crate) fn is_asked(&self) -> bool {
        self.work.is_requested() && !self.is_first_of_resumed()
    }

    /// Returns whether the type has no response yet, and the client holds resources from an earlier
    /// stream.
    pub(crate) fn is_first_of_resumed(&self) -> bool {
        self.resumption.has_resources() && self.delivery.last_nonce() == 0
    }

    /// Returns whether the client subscribes to a resource, and the answer to its request was sent.
    pub(crate) fn has_answered(&self, name: &ResourceName) -> bool {
        let mut names = self.interest.names().of_base(name.as_str()).peekable();
        (self.interest.is_wildcard() || names.peek().is_some())
            && !names.any(|name| self.work.requested().contains(name))
    }

    /// Returns whether everything was sent, and was answered or has timed out.
    pub(crate) fn is_quiet(&self, config: &Config, now: u64) -> bool {
        !self.has_work() && !self.delivery.awaits_answer(config.ack_timeout_ms, now)
    }

    /// Returns the revision up to which the client has acknowledged everything, or has let the ACK
    /// timeout pass.
    pub(crate) fn reached(&self, config: &Config, now: u64) -> Revision {
        self.answers().reached(config.ack_timeout_ms, now)
    }

    /// Returns the time since which the client has not answered; `None` if it owes no answer. A
    /// client without subscriptions owes no answer: gRPC ignores responses of a type that it no
    /// longer subscribes to (CLI-G-13).
    pub(crate) fn silent_since(&self) -> Option<u64> {
        self.delivery.silent_since().filter(|_| self.interest.is_subscribed())
    }

    /// Returns whether the client has accepted what `revision` changed for these names.
    pub(crate) fn acceptance(&self, revision: Revision, names: &[ResourceName]) -> Acceptance<'_> {
        self.answers().acceptance(revision, names)
    }

    /// Returns whether the client has accepted all changes up to `revision`.
    pub(crate) fn acceptance_until(&self, revision: Revision) -> Acceptance<'_> {
        self.answers().acceptance_until(revision)
    }

    /// Returns one page of the resources: at most `max` names after `after`.
    pub(crate) fn contents(
        &self,
        view: &TypeView,
        after: Option<&ResourceName>,
        max: usize,
        now: u64,
    ) -> ContentsPage {
        let Self { kind, interest, delivery, removals, rejections, .. } = self;
        let contents = Contents { kind, interest, delivery, removals, rejections };
        contents.page(view, after, max, now)
    }

    /// Returns the synchronization at the cost of a few reads.
    pub(crate) fn synchronization(&self) -> Synchronization {
        let is_unanswered = !self.delivery.unanswered().is_empty();
        let state = match self.nack() {
            Some(_) if !is_unanswered => SyncState::Nacked,
            _ if self.has_work() || is_unanswered => SyncState::Pending,
            _ if self.delivery.acked_version().is_some() => SyncState::Synced,
            _ => SyncState::Idle,
        };
        let is_expected = !self.kind.properties.absent_as_alias && !self.interest.is_wildcard();
        let n_missing = if is_expected { self.interest.names().n_absent() } else { 0 };
        Synchronization { state, n_missing, unanswered_since: self.silent_since() }
    }

    pub(crate) fn status(&self) -> SubscriptionStatus {
        let Synchronization { state, n_missing, unanswered_since } = self.synchronization();
        let names = self.interest.names();
        SubscriptionStatus {
            type_url: self.kind.type_url.clone(),
            wildcard: self.interest.is_wildcard(),
            n_names: names.len(),
            sent: self.delivery.sent_version().cloned(),
            acked: self.delivery.acked_version().cloned(),
            state,
            nack: self.nack().cloned(),
            n_missing,
            missing: names.first_absent().filter(|_| n_missing > 0).cloned(),
            unanswered_since,
            n_pending_removals: self.removals.len(),
        }
    }

    // The parts that an event concerns.

    fn update(&mut self) -> InterestUpdate<'_> {
        InterestUpdate {
            kind: &self.kind,
            interest: &mut self.interest,
            work: &mut self.work,
            delivery: &mut self.delivery,
            removals: &mut self.removals,
            orphans: &mut self.orphans,
            rejections: &mut self.rejections,
            resumption: &mut self.resumption,
        }
    }

    fn sink_update(&mut self) -> SinkUpdate<'_> {
        SinkUpdate {
            kind: &self.kind,
            interest: &mut self.interest,
            work: &mut self.work,
            delivery: &mut self.delivery,
            rejections: &mut self.rejections,
            resumption: &mut self.resumption,
            agreement: &mut self.agreement,
        }
    }

    fn planner(&mut self) -> Planner<'_> {
        let is_known = self.interest.base().is_some() || !self.resumption.claimed().is_empty();
        Planner {
            is_incremental: self.kind.protocol == Protocol::Mcp
                && self.agreement.is_incremental(is_known),
            kind: &self.kind,
            opened_at: self.opened_at,
            interest: &mut self.interest,
            work: &mut self.work,
            delivery: &mut self.delivery,
            removals: &mut self.removals,
            orphans: &mut self.orphans,
            rejections: &mut self.rejections,
            resumption: &mut self.resumption,
            renewals: &self.renewals,
        }
    }

    fn answers(&self) -> Answers<'_> {
        let Self { kind, interest, work, delivery, removals, rejections, .. } = self;
        Answers { kind, interest, work, delivery, removals, rejections }
    }

    fn causes(&mut self) -> Causes<'_> {
        Causes {
            kind: &self.kind,
            delivery: &self.delivery,
            work: &mut self.work,
            rejections: &mut self.rejections,
            removals: &mut self.removals,
        }
    }

    /// Returns the figures that bound the work and the memory of the subscription.
    pub(crate) fn cost(&self) -> Cost<'_> {
        Cost {
            kind: &self.kind,
            interest: &self.interest,
            work: &self.work,
            delivery: &self.delivery,
            removals: &self.removals,
            orphans: &self.orphans,
            rejections: &self.rejections,
            resumption: &self.resumption,
            refresh: &self.refresh,
        }
    }

    fn members(&mut self) -> Members<'_> {
        let Self { interest, work, resumption, .. } = self;
        Members { interest, work, resumption }
    }

    fn splitter(&self) -> Splitter<'_> {
        Splitter { kind: &self.kind, interest: &self.interest, renewals: &self.renewals }
    }
}
