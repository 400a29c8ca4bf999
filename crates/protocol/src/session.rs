//! The session: all types of one stream and the order between them.

use std::{collections::BTreeMap, sync::Arc};

use chancery_model::{DynamicParameters, ResourceName, Revision, TypeUrl, types::CLUSTER};
use chancery_view::{Differ, LayerDelta, Resources, TypeView, View};

use crate::{
    Acceptance, Config, ContentsPage, EndpointLists, InterestChange, LifetimeSupport, Nack,
    Protocol, ProtocolError, Receipt, Request, RequestKind, Response, ResumeState, StreamKind,
    SubscriptionStatus, Synchronization, Verdict,
    subscription::{RequestContext, Subscription, parse_nonce},
};

mod children;
mod cost;
mod drains;
mod endpoint_wait;
mod order;
mod poll;
mod turn;
mod unanswered_clusters;
mod watch;

use children::Children;
use endpoint_wait::cost_of_late;
use poll::{Poll, Unopened};
use turn::Turn;
use unanswered_clusters::UnansweredClusters;
pub use watch::Overdue;

/// The protocol state of one stream.
///
/// The session has no thread, clock or socket. A *driver* (a shard of `fanout`) owns it, calls it, and
/// acts on each result as this table describes. All times are milliseconds of the driver's clock, which must not
/// go back.
///
/// | when | call | what the driver does with the result |
/// |---|---|---|
/// | the node of the client is known, or has changed | [`support_lifetimes`](Self::support_lifetimes), [`support_endpoint_lists`](Self::support_endpoint_lists), [`set_dynamic_parameters`](Self::set_dynamic_parameters) | before the first request: nothing. Later: poll |
/// | a request arrived | [`handle_request`](Self::handle_request) | `Err`: end the stream with the error. `Ok`: record the verdict, apply the next three rows, then poll |
/// | after each request | [`drain_interest`](Self::drain_interest) | update the index that maps names to sessions |
/// | after the first request of a type | [`needs_resume_state`](Self::needs_resume_state) | if `true`, call [`resume_from`](Self::resume_from) before the next poll |
/// | after [`resume_from`](Self::resume_from) | [`unknown_version`](Self::unknown_version) | `Some`: find the view that has this version, and pass it to [`resume_from_view`](Self::resume_from_view) before the next poll. `None`: poll |
/// | a request had waited before the call of [`handle_request`](Self::handle_request) | [`taken_at`](Self::taken_at) | nothing; the session waits again for further requests |
/// | a commit changed watched names | [`handle_change`](Self::handle_change), [`handle_changes`](Self::handle_changes) | poll |
/// | the node sees other scopes | [`handle_new_view`](Self::handle_new_view) | poll with the new view |
/// | the transport can take a response, and [`renewal_at`](Self::renewal_at) has passed | [`renew`](Self::renew) | `Some`: send it. `None`: poll |
/// | the transport can take a response | [`poll`](Self::poll) | `Some`: send it, and poll again when the transport can take the next. `None`: wait for an event, or for the time in the next row |
/// | after each poll that returned `None` | [`wake_at`](Self::wake_at) | poll at that time; `None`: no deadline is pending |
/// | a timer of the driver | [`overdue_at`](Self::overdue_at), [`overdue`](Self::overdue) | `overdue_at`: set a timer for that time. `overdue`: `Some`: close the stream |
/// | after each poll that returned `None` | [`unopened_since`](Self::unopened_since) | if a stream of one type has waited for too long, end it with UNAVAILABLE |
/// | the stream ended | [`take_resume_state`](Self::take_resume_state) | keep it for the next streams of the same identity and node, for about half a minute |
///
/// A driver that must bound its work reads the `cost_of_…` methods before the call, and the
/// `retained_bytes` methods before it accepts a request. The order of calls is otherwise free. A
/// session misses an update only if the driver omits `handle_change`, `handle_changes` or `handle_new_view`.
#[derive(Debug)]
pub struct Session {
    kind: StreamKind,
    config: Arc<Config>,
    lifetimes: LifetimeSupport,
    endpoint_lists: EndpointLists,
    /// The node's dynamic parameters, by type URL.
    parameters: BTreeMap<String, Arc<DynamicParameters>>,
    /// The subscriptions in the order of sending (ADS-04).
    subscriptions: Vec<Subscription>,
    interest: Vec<InterestChange>,
    children: Children,
    unanswered_clusters: UnansweredClusters,
    last_nonce: u64,
    /// The type with resources that the replica has not opened, and the time since when it has waited for them.
    unopened: Unopened,
}

impl Session {
    /// Creates the state of a new stream.
    #[must_use]
    pub fn new(kind: StreamKind, config: Arc<Config>) -> Self {
        Self {
            config: config.of(kind.protocol),
            kind,
            lifetimes: LifetimeSupport::default(),
            endpoint_lists: EndpointLists::default(),
            parameters: BTreeMap::new(),
            subscriptions: Vec::new(),
            interest: Vec::new(),
            children: Children::default(),
            unanswered_clusters: UnansweredClusters::default(),
            last_nonce: 0,
            unopened: None,
        }
    }

    /// Sets the support of the client for lifetimes. Without a call, no lifetimes are sent (TTL-02).
    pub fn support_lifetimes(&mut self, support: LifetimeSupport) {
        self.lifetimes = support;
        self.subscriptions.iter_mut().for_each(|s| s.support_lifetimes(support));
    }

    /// Sets the support of the client for lists of endpoints. Without a call, the client is not sent
    /// endpoints with such a list (XDSTP-28).
    pub fn support_endpoint_lists(&mut self, support: EndpointLists) {
        if std::mem::replace(&mut self.endpoint_lists, support) != support {
            self.handle_new_view();
        }
    }

    /// Adopts the dynamic parameters of the client's node (DYN-11). They select the variants for plain
    /// names and for wildcards.
    pub fn set_dynamic_parameters(&mut self, parameters: &BTreeMap<String, DynamicParameters>) {
        let given = parameters.iter().filter(|(_, all)| !all.is_empty());
        self.parameters = given.map(|(url, all)| (url.clone(), Arc::new(all.clone()))).collect();
        for subscription in &mut self.subscriptions {
            let of_type = self.parameters.get(subscription.type_url().as_str());
            subscription.set_node_parameters(of_type.cloned());
        }
    }

    /// Processes a request. `view` is the current view of the node; `None` if no assignment matches
    /// the node.
    ///
    /// # Errors
    /// Returns an error if the request violates the protocol or exceeds a limit. The driver then ends the stream.
    pub fn handle_request(
        &mut self,
        mut request: Request,
        view: Option<&View>,
        now: u64,
    ) -> Result<Receipt, ProtocolError> {
        if request.protocol() != self.kind.protocol {
            return Err(ProtocolError::Variant);
        }
        let is_mcp = self.kind.protocol == Protocol::Mcp;
        let type_url = self.type_of(request.type_url()).map_err(|error| {
            if is_mcp { ProtocolError::Collection(request.type_url().to_owned()) } else { error }
        })?;
        if is_mcp && !self.serves(&type_url) {
            return if self.config.ignore_other_collections {
                Ok(Receipt { type_url, verdict: None, kind: RequestKind::Stale })
            } else {
                Err(ProtocolError::Collection(type_url.to_string()))
            };
        }
        if let Some(error) = request.error_detail_mut() {
            cut(&mut error.message, self.config.nack_message_bytes_max);
        }
        let at = self.subscription_of(&type_url, now)?;
        self.subscriptions[at].spell(&mut request, &self.config);
        let n_all: usize = self.subscriptions.iter().map(|s| s.cost().n_remembered()).sum();
        let subscription = &mut self.subscriptions[at];
        let mut context = RequestContext {
            view: view.map(|view| subscription.visible(self.endpoint_lists, view)),
            n_others: n_all - subscription.cost().n_remembered(),
            max: self.config.names_max,
            interest: &mut self.interest,
        };
        let effect = subscription.on_request(&request, &mut context, now)?;
        let accepted = effect.answer.as_ref().filter(|answer| answer.nack.is_none());
        if let Some(nonce) = accepted.filter(|a| a.response.changes).map(|a| a.response.nonce) {
            self.retry_dependents(&type_url, nonce);
        }
        let delivery = self.subscriptions[at].delivery();
        if type_url.as_str() == CLUSTER && delivery.is_settled() {
            self.unanswered_clusters = UnansweredClusters::default();
        }
        let nonce = request.response_nonce();
        let kind = match &effect.answer {
            Some(answer) if answer.nack.is_none() => RequestKind::Ack,
            Some(_) => RequestKind::Nack,
            None if nonce.is_empty() || effect.subscribes => RequestKind::Subscribe,
            None if parse_nonce(nonce) != Some(delivery.last_nonce()) => RequestKind::Stale,
            None => RequestKind::Repeat,
        };
        let verdict = effect.answer.map(|answer| match answer.nack {
            Some(Nack { version, code, message, .. }) => Verdict::Nack { version, code, message },
            None => Verdict::Ack {
                revision: answer.response.revision,
                waited_ms: now.saturating_sub(answer.response.sent_at),
            },
        });
        Ok(Receipt { type_url, verdict, kind })
    }

    /// Sends the rejected resources of other types again once, if an accepted change of this type may have removed
    /// the cause (ADR 4). Types on streams of their own have no order, so that nothing follows from it.
    fn retry_dependents(&mut self, type_url: &TypeUrl, nonce: u64) {
        for other in &mut self.subscriptions {
            let is_cause = other.properties().retried_after.contains(&type_url.as_str());
            if is_cause {
                other.on_cause_ended(nonce);
            }
        }
    }

    /// Returns whether a collection of MCP is served.
    fn serves(&self, collection: &TypeUrl) -> bool {
        let listed = self.config.collections.as_ref();
        collection.is_collection() && listed.is_none_or(|all| all.contains(collection.as_str()))
    }

    /// Returns the type and the contents of the response that `request` answers, or `None` if the
    /// session no longer has them.
    #[must_use]
    pub fn answered_contents(&self, request: &Request) -> Option<(&TypeUrl, &Resources)> {
        let (type_url, nonce) = (self.type_of(request.type_url()).ok()?, request.response_nonce());
        let subscription = self.of_type(&type_url)?;
        let contents = subscription.delivery().contents_of(parse_nonce(nonce)?)?;
        Some((subscription.type_url(), contents))
    }

    /// Iterates over the types and the contents of all responses that are unanswered, or that a
    /// later answer skipped.
    pub fn unanswered_contents(&self) -> impl Iterator<Item = (&TypeUrl, &Resources)> {
        self.subscriptions.iter().flat_map(|subscription| {
            let contents = subscription.delivery().unanswered_contents();
            contents.map(move |contents| (subscription.type_url(), contents))
        })
    }

    /// Returns the length to which the text of a rejection is truncated.
    #[must_use]
    pub fn nack_message_bytes_max(&self) -> usize {
        self.config.nack_message_bytes_max
    }

    /// Returns the type of a request (SVC-06 to -10).
    fn type_of(&self, text: &str) -> Result<TypeUrl, ProtocolError> {
        match &self.kind.type_url {
            Some(only) if text.is_empty() || text == only.as_str() => Ok(only.clone()),
            Some(only) => Err(ProtocolError::TypeForeign {
                expected: only.to_string(),
                found: text.to_owned(),
            }),
            None if text.is_empty() => Err(ProtocolError::TypeMissing),
            None => match self.subscriptions.iter().find(|s| s.type_url().as_str() == text) {
                Some(known) => Ok(known.type_url().clone()),
                None => TypeUrl::new(text).map_err(ProtocolError::Type),
            },
        }
    }

    /// Returns the index of the subscription of a type, and opens the subscription if necessary.
    fn subscription_of(&mut self, type_url: &TypeUrl, now: u64) -> Result<usize, ProtocolError> {
        if let Some(at) = self.subscriptions.iter().position(|s| s.type_url() == type_url) {
            return Ok(at);
        }
        if self.subscriptions.len() >= self.config.types_max {
            return Err(ProtocolError::TypesTooMany { max: self.config.types_max });
        }
        let mut new = Subscription::new(type_url.clone(), self.kind.protocol, &self.config, now);
        new.support_lifetimes(self.lifetimes);
        new.set_node_parameters(self.parameters.get(type_url.as_str()).cloned());
        let place = (new.properties().order, new.type_url());
        let is_before = |s: &Subscription| (s.properties().order, s.type_url()) < place;
        let at = self.subscriptions.partition_point(is_before);
        self.subscriptions.insert(at, new);
        Ok(at)
    }

    /// Ends the session. Returns the resources that a SotW client may hold, because it does not
    /// report them when it reconnects. The caller passes them to the client's next stream with
    /// [`Session::resume_from`].
    pub fn take_resume_state(&mut self) -> Option<ResumeState> {
        // On a stream of one type, nothing waits for other types (ADS-24).
        if self.kind.type_url.is_some() {
            return None;
        }
        let kept: Vec<_> =
            self.subscriptions.iter_mut().flat_map(Subscription::take_resume_state).collect();
        (!kept.is_empty()).then_some(ResumeState(kept))
    }

    /// Returns whether the session needs the resources of the client's earlier stream for this
    /// type. The caller then calls [`Session::resume_from`].
    #[must_use]
    pub fn needs_resume_state(&self, type_url: &TypeUrl) -> bool {
        let of_type = self.of_type(type_url);
        self.kind.type_url.is_none() && of_type.is_some_and(|s| s.resumption().needs_resume_state())
    }

    /// Adds the resources that the client holds from its earlier streams. Responses may contain them, so the caller
    /// passes only states whose resources the client may have now.
    pub fn resume_from(&mut self, type_url: &TypeUrl, states: &[Arc<ResumeState>]) {
        if let Some(s) = self.of_type_mut(type_url) {
            s.resume_from(states);
        }
    }

    /// Returns the version that the client reports of this type, if [`Session::resume_from`] has not found its resources.
    /// The caller then calls [`Session::resume_from_view`] if it finds the view that has this version.
    #[must_use]
    pub fn unknown_version(&self, type_url: &TypeUrl) -> Option<&str> {
        self.of_type(type_url)?.resumption().unknown_version()
    }

    /// Sets the view in which the type has the client's version. Responses may contain resources that were removed
    /// since, so the caller passes only a view that the client may have now.
    pub fn resume_from_view(&mut self, type_url: &TypeUrl, view: &View) {
        let lists = self.endpoint_lists;
        if let Some(s) = self.of_type_mut(type_url) {
            s.resume_from_view(lists, view);
        }
    }

    /// Returns the names and wildcards that the session began or ceased to watch since the last call.
    #[must_use]
    pub fn drain_interest(&mut self) -> Vec<InterestChange> {
        std::mem::take(&mut self.interest)
    }

    /// Returns everything that the session watches.
    #[must_use]
    pub fn interest(&self) -> Vec<InterestChange> {
        let mut all = Vec::new();
        for s in &self.subscriptions {
            if s.interest().is_wildcard() {
                all.push(InterestChange::Wildcard(s.type_url().clone()));
            }
            let named = s.interest().named();
            all.extend(named.map(|n| InterestChange::Name(s.type_url().clone(), n.to_base())));
        }
        all
    }

    /// Iterates over the synchronization of the types, in the order of sending.
    pub fn synchronization(&self) -> impl Iterator<Item = Synchronization> {
        self.subscriptions.iter().map(Subscription::synchronization)
    }

    /// Returns the status of each type, in the order of sending.
    #[must_use]
    pub fn status(&self) -> Vec<SubscriptionStatus> {
        self.subscriptions.iter().map(Subscription::status).collect()
    }

    /// Returns one page of the resources of a type: at most `max` names after `after`. `view` is the
    /// current view of the node. `None` if the session has no such type.
    ///
    /// The cost is O(`max` + unanswered responses), whatever the size of the view.
    #[must_use]
    pub fn contents(
        &self,
        type_url: &TypeUrl,
        view: Option<&View>,
        after: Option<&ResourceName>,
        max: usize,
        now: u64,
    ) -> Option<ContentsPage> {
        let subscription = self.of_type(type_url)?;
        let visible = |view| subscription.visible(self.endpoint_lists, view);
        let view = view.map_or_else(TypeView::empty, visible);
        Some(subscription.contents(&view, after, max, now))
    }

    /// Iterates over the types with what is known about the client's acceptance of `revision`. The
    /// caller must have marked all changes up to that revision.
    ///
    /// The result says nothing about types to which the client does not subscribe, and
    /// [`Acceptance::Accepted`] if the client is sent nothing because of the revision.
    pub fn acceptance(
        &self,
        revision: Revision,
    ) -> impl Iterator<Item = (&TypeUrl, Acceptance<'_>)> {
        self.subscriptions.iter().map(move |s| (s.type_url(), s.acceptance(revision, &[])))
    }

    /// Does the same for all changes up to `revision`: the rejection of an earlier one counts while it applies.
    pub fn acceptance_until(
        &self,
        revision: Revision,
    ) -> impl Iterator<Item = (&TypeUrl, Acceptance<'_>)> {
        self.subscriptions.iter().map(move |s| (s.type_url(), s.acceptance_until(revision)))
    }

    /// Returns what is known about the client's acceptance of these resources of one type, as they
    /// were at `revision`. The result is more exact than that of [`acceptance`](Self::acceptance).
    #[must_use]
    pub fn acceptance_of(
        &self,
        revision: Revision,
        type_url: &TypeUrl,
        names: &[ResourceName],
    ) -> Acceptance<'_> {
        let of_type = self.of_type(type_url);
        of_type.map_or(Acceptance::Accepted, |s| s.acceptance(revision, names))
    }

    /// Marks a change of one type in which the session is interested: the resource or alias `name`,
    /// or any resource for a wildcard.
    pub fn handle_change(&mut self, type_url: &TypeUrl, name: Option<&ResourceName>) {
        if let Some(s) = self.of_type_mut(type_url) {
            s.on_change(name);
        }
    }

    /// Marks all changes of one collection, whether or not the session is interested in them.
    /// Returns whether the session may be interested.
    ///
    /// The cost is O(changes · log names). If the session has fewer names than there are changes,
    /// the cost is O(1), and the next plan checks all names.
    pub fn handle_changes(&mut self, delta: &LayerDelta) -> bool {
        self.of_type_mut(delta.type_url()).is_some_and(|s| s.on_changes(delta))
    }

    /// Marks everything as changed, because the node sees other scopes now.
    pub fn handle_new_view(&mut self) {
        self.subscriptions.iter_mut().for_each(Subscription::on_new_view);
    }

    /// Returns the next response to send now, built from `view`, or `None`.
    ///
    /// The caller calls it when the stream can take a response, and repeats the call until it
    /// returns `None`. `view` must not be older than in the previous call.
    pub fn poll(&mut self, view: Option<&View>, differ: &Differ, now: u64) -> Option<Response> {
        // OPS-05: an unknown view is not an empty view.
        let view = view?;
        let turn = Turn {
            is_aggregated: self.kind.type_url.is_none(),
            config: &self.config,
            endpoint_lists: self.endpoint_lists,
            subscriptions: &mut self.subscriptions,
            children: &mut self.children,
            unanswered_clusters: &mut self.unanswered_clusters,
            last_nonce: &mut self.last_nonce,
            view,
            differ,
            now,
        };
        Poll { turn, unopened: &mut self.unopened }.run()
    }

    /// Returns the next response that renews the lifetimes of resources, or `None` if none is due
    /// (TTL-03, TTL-08). Such a response carries no change. Endpoints that would become stale at the client
    /// are sent again by the next [`Session::poll`] (CLI-E-34).
    ///
    /// The caller calls it when the stream can take a response, before [`Session::poll`]. Otherwise,
    /// constant changes would delay renewals until lifetimes end. A caller that must not renew lifetimes, because its state may be outdated, does not
    /// call it (TTL-11). Resources whose lifetime may have ended meanwhile are then sent in full.
    pub fn renew(&mut self, differ: &Differ, now: u64) -> Option<Response> {
        let nonce = self.last_nonce + 1;
        let (timeout, target) = (self.config.ack_timeout_ms, self.config.response_bytes_target);
        for subscription in &mut self.subscriptions {
            subscription.request_refresh(now);
            if subscription.renewal_at(timeout, now).is_none_or(|due| due > now) {
                continue;
            }
            subscription.plan_renewal(differ, now);
            if let Some(response) = subscription.send_part(nonce, target, now) {
                self.last_nonce = nonce;
                return Some(response);
            }
        }
        None
    }

    /// Returns the time at which [`Session::renew`] is to be called next; `None` if the client has no
    /// resource with a lifetime, and no endpoints that become stale. It may be in the past.
    #[must_use]
    pub fn renewal_at(&self, now: u64) -> Option<u64> {
        let timeout = self.config.ack_timeout_ms;
        let due =
            |s: &Subscription| s.renewal_at(timeout, now).into_iter().chain(s.refresh_at()).min();
        self.subscriptions.iter().filter_map(due).min()
    }

    /// Returns the time of the next poll that is necessary even without further events. `None`
    /// means that no deadline is pending.
    #[must_use]
    pub fn wake_at(&self, now: u64) -> Option<u64> {
        let Self { subscriptions, unanswered_clusters, config, unopened, .. } = self;
        poll::wake_at(subscriptions, unanswered_clusters, config, unopened, now)
    }

    /// Returns the type that the last poll did not answer, because the replica has not opened its sealed resources, and
    /// the time of the first such poll. They are not absent, so nothing of the type is sent. Other types go on.
    #[must_use]
    pub fn unopened_since(&self) -> Option<(&TypeUrl, u64)> {
        self.unopened.as_ref().map(|(type_url, since)| (type_url, *since))
    }

    /// Returns whether the session may have something to send. It compares no resources.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.subscriptions.iter().any(Subscription::has_work)
    }

    /// Returns whether the session may have something to send of one type.
    #[must_use]
    pub fn has_work_of(&self, type_url: &TypeUrl) -> bool {
        self.of_type(type_url).is_some_and(Subscription::has_work)
    }

    /// Returns whether a response of the type is unanswered, or partly unsent.
    #[must_use]
    pub fn is_under_way(&self, type_url: &TypeUrl) -> bool {
        self.of_type(type_url).is_some_and(|s| !s.delivery().is_settled())
    }

    /// Returns whether a rejection of the client still applies.
    #[must_use]
    pub fn is_rejecting(&self) -> bool {
        self.subscriptions.iter().any(|s| s.nack().is_some())
    }

    /// Returns the time since which the client has not answered, for the type where that is
    /// longest. `None` means that the client owes no answer.
    #[must_use]
    pub fn silent_since(&self) -> Option<u64> {
        self.subscriptions.iter().filter_map(Subscription::silent_since).min()
    }

    /// Returns the time at which the stream becomes overdue if the client sends nothing until then.
    #[must_use]
    pub fn overdue_at(&self) -> Option<u64> {
        let patience = self.config.ack_close_after_ms?;
        self.silent_since().map(|since| since.saturating_add(patience))
    }

    /// Returns the response that the client has left unanswered for too long, if any. The caller
    /// then closes the stream.
    #[must_use]
    pub fn overdue(&self, now: u64) -> Option<Overdue> {
        Overdue::find(&self.subscriptions, self.config.ack_close_after_ms?, now)
    }

    /// Returns the maximum number of names that [`Session::handle_request`] visits.
    #[must_use]
    pub fn cost_of_request(&self, request: &Request) -> usize {
        cost::cost_of_request(request, self.of_text(request.type_url()))
    }

    /// Restarts the wait for further requests of the types that opened at or after `since`.
    ///
    /// A caller calls it after the session took a request that had waited from `since` to `now`.
    /// The further requests of the client could not arrive earlier.
    pub fn taken_at(&mut self, since: u64, now: u64) {
        self.subscriptions.iter_mut().for_each(|s| s.taken_at(since, now));
    }

    /// Returns the maximum number of names that [`Session::poll`] visits.
    #[must_use]
    pub fn cost_of_poll(&self) -> usize {
        // A poll visits pending removals even without other work.
        let plans = self.subscriptions.iter().map(|s| s.cost().of_plan()).sum::<usize>();
        plans + cost_of_late(&self.subscriptions, &self.unanswered_clusters)
    }

    /// Returns the maximum number of resources that [`Session::renew`] visits at this time.
    #[must_use]
    pub fn cost_of_renewal(&self, now: u64) -> usize {
        let timeout = self.config.ack_timeout_ms;
        let is_due = |s: &&Subscription| s.renewal_at(timeout, now).is_some_and(|due| due <= now);
        let renewals = self.subscriptions.iter().filter(is_due).map(|s| s.cost().of_renewal());
        let refreshes = self.subscriptions.iter().map(|s| s.cost().of_refresh(now));
        renewals.chain(refreshes).sum()
    }

    /// Returns the number of names and removals that are freed with the session.
    #[must_use]
    pub fn cost_of_end(&self) -> usize {
        self.subscriptions.iter().map(|s| s.cost().n_kept()).sum()
    }

    /// Returns the number of names that the session subscribes to, over all types.
    #[must_use]
    pub fn n_names(&self) -> usize {
        self.subscriptions.iter().map(|s| s.interest().names().len()).sum()
    }

    /// Returns the memory of the session's names in bytes, including their entries in the caller's
    /// index, and of the messages of the client's rejections.
    #[must_use]
    pub fn retained_bytes(&self) -> usize {
        self.subscriptions.iter().map(|s| s.cost().retained_bytes()).sum()
    }

    /// Returns the maximum of [`Session::retained_bytes`] after a request.
    #[must_use]
    pub fn retained_bytes_after(&self, request: &Request) -> usize {
        let (of_type, max) = (self.of_text(request.type_url()), self.config.nack_message_bytes_max);
        cost::retained_bytes_after(request, of_type, self.retained_bytes(), max)
    }

    fn of_type(&self, type_url: &TypeUrl) -> Option<&Subscription> {
        self.subscriptions.iter().find(|s| s.type_url() == type_url)
    }

    fn of_type_mut(&mut self, type_url: &TypeUrl) -> Option<&mut Subscription> {
        self.subscriptions.iter_mut().find(|s| s.type_url() == type_url)
    }

    /// Returns the subscription for the type of a request.
    fn of_text(&self, text: &str) -> Option<&Subscription> {
        match &self.kind.type_url {
            Some(_) => self.subscriptions.first(),
            None => self.subscriptions.iter().find(|s| s.type_url().as_str() == text),
        }
    }
}

/// Truncates text to at most `max` bytes, at a character boundary.
fn cut(text: &mut String, max: usize) {
    if text.len() > max {
        let mut end = max;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
}
