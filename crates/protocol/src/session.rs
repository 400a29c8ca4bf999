//! The session: all types of one stream and the order between them.

use std::{collections::BTreeMap, sync::Arc};

use chancery_model::{DynamicParameters, ResourceName, Revision, TypeUrl};
use chancery_view::{Resources, TypeView, View};

use crate::{
    Acceptance, Config, ContentsPage, EndpointLists, Interest, LifetimeSupport, Nack, NameList,
    Protocol, ProtocolError, Receipt, Request, RequestKind, ResumeState, StreamKind,
    SubscriptionStatus, Verdict,
    spelling::{Speller, Spellings},
    subscription::{RequestContext, Subscription, parse_nonce},
};

mod children;
mod cost;
mod drains;
mod endpoint_wait;
mod order;
mod poll;
mod unanswered_clusters;
mod watch;

use children::Children;
use order::TypeOrder;
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
/// | a request arrived | [`on_request`](Self::on_request) | `Err`: end the stream with the error. `Ok`: record the verdict, apply the next two rows, then poll |
/// | after each request | [`drain_interest`](Self::drain_interest) | update the index that maps names to sessions |
/// | after the first request of a type | [`needs_resume_state`](Self::needs_resume_state) | if `true`, call [`resume_from`](Self::resume_from) before the next poll |
/// | a commit changed watched names | [`on_change`](Self::on_change), [`on_changes`](Self::on_changes) | poll |
/// | the node sees other scopes | [`on_new_view`](Self::on_new_view) | poll with the new view |
/// | the transport can take a response, and [`renewal_at`](Self::renewal_at) has passed | [`renew`](Self::renew) | `Some`: send it. `None`: poll |
/// | the transport can take a response | [`poll`](Self::poll) | `Some`: send it, and poll again when the transport can take the next. `None`: wait for an event, or for the time in the next row |
/// | after each poll that returned `None` | [`wake_at`](Self::wake_at) | poll at that time; `None`: no deadline is pending |
/// | a timer of the driver | [`overdue_at`](Self::overdue_at), [`overdue`](Self::overdue) | `overdue_at`: set a timer for that time. `overdue`: `Some`: close the stream |
/// | after each poll that returned `None` | [`unopened_since`](Self::unopened_since) | if a stream of one type has waited for too long, end it with UNAVAILABLE |
/// | the stream ended | [`take_resume_state`](Self::take_resume_state) | keep it for the next streams of the same identity and node, for about half a minute |
///
/// A driver that must bound its work reads the `cost_of_…` methods before the call, and the
/// `retained_bytes` methods before it accepts a request. The order of calls is otherwise free. A
/// session misses an update only if the driver omits `on_change`, `on_changes` or `on_new_view`.
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
    interest: Vec<Interest>,
    children: Children,
    unanswered_clusters: UnansweredClusters,
    last_nonce: u64,
    /// The type with resources that the replica has not opened, and the time since when it has waited for them.
    unopened: Option<(TypeUrl, u64)>,
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
            self.on_new_view();
        }
    }

    /// Adopts the dynamic parameters of the client's node (DYN-11). They select the variants for plain
    /// names and for wildcards.
    pub fn set_dynamic_parameters(&mut self, parameters: &BTreeMap<String, DynamicParameters>) {
        let given = parameters.iter().filter(|(_, all)| !all.is_empty());
        self.parameters = given.map(|(url, all)| (url.clone(), Arc::new(all.clone()))).collect();
        for subscription in &mut self.subscriptions {
            let of_type = self.parameters.get(subscription.type_url.as_str());
            subscription.set_node_parameters(of_type.cloned());
        }
    }

    fn order(&self) -> TypeOrder<'_> {
        TypeOrder {
            subscriptions: &self.subscriptions,
            config: &self.config,
            is_aggregated: self.kind.type_url.is_none(),
        }
    }

    /// Processes a request. `view` is the current view of the node; `None` if no assignment matches
    /// the node.
    ///
    /// # Errors
    /// Returns an error if the request violates the protocol or exceeds a limit. The driver then ends the stream.
    pub fn on_request(
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
        self.spell(at, &mut request);
        let n_all: usize = self.subscriptions.iter().map(Subscription::n_remembered).sum();
        let subscription = &mut self.subscriptions[at];
        let mut context = RequestContext {
            view: view.map(|view| subscription.visible(self.endpoint_lists, view)),
            n_others: n_all - subscription.n_remembered(),
            max: self.config.names_max,
            interest: &mut self.interest,
        };
        let effect = match &request {
            Request::Sotw(r) => subscription.on_sotw(r, &mut context, now)?,
            Request::Delta(r) => subscription.on_delta(r, &mut context, now)?,
            Request::Mcp(r) => subscription.on_mcp(r, &mut context, now)?,
        };
        let accepted = effect.answer.as_ref().filter(|answer| answer.nack.is_none());
        if let Some(nonce) = accepted.filter(|a| a.response.changes).map(|a| a.response.nonce) {
            self.retry_dependents(&type_url, nonce);
        }
        self.forget_answered_clusters(at);
        let subscription = &self.subscriptions[at];
        let nonce = request.response_nonce();
        let kind = match &effect.answer {
            Some(answer) if answer.nack.is_none() => RequestKind::Ack,
            Some(_) => RequestKind::Nack,
            None if nonce.is_empty() || effect.subscribes => RequestKind::Subscribe,
            None if parse_nonce(nonce) != Some(subscription.delivery.last_nonce) => {
                RequestKind::Stale
            }
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
            let is_cause = other.properties.retried_after.contains(&type_url.as_str());
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

    /// Converts the structured names of a request to the form that the session uses. Names of MCP stay as they are
    /// (MCP-13).
    fn spell(&mut self, at: usize, request: &mut Request) {
        let Self { subscriptions, config, .. } = self;
        let subscription = &mut subscriptions[at];
        let lists = match &*request {
            Request::Sotw(r) => [Some(&r.resource_names), None],
            Request::Delta(r) => [Some(&r.subscribe), Some(&r.unsubscribe)],
            Request::Mcp(_) => return,
        };
        if lists.into_iter().flatten().any(NameList::has_locators) {
            subscription.use_locators();
        }
        let spellings = match request {
            // The new list replaces the previous one.
            Request::Sotw(_) | Request::Mcp(_) => Spellings::default(),
            Request::Delta(_) => std::mem::take(&mut subscription.spellings),
        };
        let mut speller = Speller { type_url: &subscription.type_url, config, spellings };
        match request {
            Request::Sotw(r) => speller.convert(&mut r.resource_names),
            Request::Delta(r) => {
                // The spelling of a subscription takes precedence.
                speller.convert_versions(&mut r.initial_resource_versions);
                speller.convert(&mut r.unsubscribe);
                speller.convert(&mut r.subscribe);
            }
            Request::Mcp(_) => {}
        }
        subscription.spellings = speller.spellings;
    }

    /// Returns the type and the contents of the response that `request` answers, or `None` if the
    /// session no longer has them.
    #[must_use]
    pub fn answered_contents(&self, request: &Request) -> Option<(&TypeUrl, &Resources)> {
        let (type_url, nonce) = (self.type_of(request.type_url()).ok()?, request.response_nonce());
        let subscription = self.subscriptions.iter().find(|s| s.type_url == type_url)?;
        Some((&subscription.type_url, subscription.delivery.contents_of(parse_nonce(nonce)?)?))
    }

    /// Iterates over the types and the contents of all responses that are unanswered, or that a
    /// later answer skipped.
    pub fn unanswered_contents(&self) -> impl Iterator<Item = (&TypeUrl, &Resources)> {
        self.subscriptions.iter().flat_map(|subscription| {
            let contents = subscription.delivery.unanswered_contents();
            contents.map(move |contents| (&subscription.type_url, contents))
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
            None => match self.subscriptions.iter().find(|s| s.type_url.as_str() == text) {
                Some(known) => Ok(known.type_url.clone()),
                None => TypeUrl::new(text).map_err(ProtocolError::Type),
            },
        }
    }

    /// Returns the index of the subscription of a type, and opens the subscription if necessary.
    fn subscription_of(&mut self, type_url: &TypeUrl, now: u64) -> Result<usize, ProtocolError> {
        if let Some(at) = self.subscriptions.iter().position(|s| s.type_url == *type_url) {
            return Ok(at);
        }
        if self.subscriptions.len() >= self.config.types_max {
            return Err(ProtocolError::TypesTooMany { max: self.config.types_max });
        }
        let mut new = Subscription::new(type_url.clone(), self.kind.protocol, &self.config, now);
        new.support_lifetimes(self.lifetimes);
        new.set_node_parameters(self.parameters.get(type_url.as_str()).cloned());
        let place = (new.properties.order, &new.type_url);
        let at = self.subscriptions.partition_point(|s| (s.properties.order, &s.type_url) < place);
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
        let of_type = self.subscriptions.iter().find(|s| s.type_url == *type_url);
        self.kind.type_url.is_none() && of_type.is_some_and(|s| s.resumption.needs_resume_state())
    }

    /// Adds the resources that the client holds from its earlier streams. Responses may contain them, so the caller
    /// passes only states whose resources the client may have now.
    pub fn resume_from(&mut self, type_url: &TypeUrl, states: &[Arc<ResumeState>]) {
        if let Some(s) = self.subscriptions.iter_mut().find(|s| s.type_url == *type_url) {
            s.resumption.resume_from(&s.type_url, states);
        }
    }

    /// Returns the names and wildcards that the session began or ceased to watch since the last call.
    #[must_use]
    pub fn drain_interest(&mut self) -> Vec<Interest> {
        std::mem::take(&mut self.interest)
    }

    /// Returns everything that the session watches.
    #[must_use]
    pub fn interest(&self) -> Vec<Interest> {
        let mut all = Vec::new();
        for s in &self.subscriptions {
            if s.is_wildcard() {
                all.push(Interest::Wildcard(s.type_url.clone()));
            }
            let named = s.names.keys().filter(|name| !s.globs.has_member(name.as_str()));
            all.extend(named.map(|n| Interest::Name(s.type_url.clone(), n.to_base())));
        }
        all
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
        let subscription = self.subscriptions.iter().find(|s| s.type_url == *type_url)?;
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
        self.subscriptions.iter().map(move |s| (&s.type_url, s.acceptance(revision, &[])))
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
        let of_type = self.subscriptions.iter().find(|s| s.type_url == *type_url);
        of_type.map_or(Acceptance::Accepted, |s| s.acceptance(revision, names))
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
