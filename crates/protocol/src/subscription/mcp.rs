//! Collections of MCP: the requests of a sink, and the choice between a full state and an incremental response.
//!
//! The request of a sink is a wildcard subscription (MCP-17). In contrast to xDS, each request states whether the sink
//! accepts an incremental response, and the session sends nothing while a response is unanswered (MCP-30).

use chancery_model::{CollectionVersion, Revision, has_internal_mark};
use chancery_view::TypeView;

use super::{
    Agreement, Changed, RequestContext, Requests, Resumption, Subscription, Wildcard, parse_nonce,
    requests::Effect,
};
use crate::{Interest, McpRequest, Protocol, ProtocolError};

impl Subscription {
    /// Processes a request of a sink.
    pub(crate) fn on_mcp(
        &mut self,
        request: &McpRequest,
        context: &mut RequestContext<'_>,
        now: u64,
    ) -> Result<Effect, ProtocolError> {
        // MCP-24: the first request for a collection answers nothing. Its nonce, if any, is that of another stream.
        if self.requests == Requests::None || request.response_nonce.is_empty() {
            let subscribes = self.watch_collection(request, context)?;
            return Ok(Effect { answer: None, subscribes });
        }
        let error = request.error_detail.as_ref();
        let nonce = parse_nonce(&request.response_nonce);
        let answered =
            nonce.and_then(|nonce| self.delivery.take_answered_delta(nonce, error.is_some()));
        // MCP-23: a request with another nonce changes nothing.
        let Some(sent) = answered else { return Ok(Effect { answer: None, subscribes: false }) };
        self.agreement = Agreement {
            accepts_incremental: request.incremental,
            needs_full_state: error.is_some(),
        };
        let answer = self.on_answer(sent, error, now);
        self.review_rejections();
        Ok(Effect { answer: Some(answer), subscribes: false })
    }

    /// Subscribes to the collection, or restarts the subscription (MCP-27). While a response is unanswered, only
    /// records whether the sink accepts an incremental response. Returns whether a response follows.
    fn watch_collection(
        &mut self,
        request: &McpRequest,
        context: &mut RequestContext<'_>,
    ) -> Result<bool, ProtocolError> {
        self.agreement.accepts_incremental = request.incremental;
        if !self.delivery.unanswered.is_empty() {
            return Ok(false);
        }
        let versions = &request.initial_resource_versions;
        context.check_count(versions.len())?;
        self.requests = Requests::Unnamed;
        self.agreement.needs_full_state = false;
        (self.delivery.pending, self.delivery.included) = (None, Revision(0));
        self.resumption = Resumption::default();
        // Versions of another cluster say nothing about the state of the sink (MCP-37).
        let own = context.view.as_ref().map(TypeView::incarnation);
        for (name, version) in versions.iter() {
            let version = CollectionVersion::parse(version)
                .filter(|of| Some(of.incarnation) == own && !has_internal_mark(name))
                .map(|of| of.version);
            self.agreement.needs_full_state |= version.is_none();
            if version.is_some() {
                self.resumption.claim(context.name(name)?, version);
            }
        }
        if !self.is_wildcard() {
            context.note(Interest::wildcard(&self.type_url, true));
        }
        self.wildcard = Some(Wildcard::default());
        (self.work.answer_due, self.work.changed) = (true, Changed::All);
        self.rejections.touch_all();
        Ok(true)
    }

    /// Returns whether the next response is incremental. The first response of a collection is the full state, unless
    /// the sink has listed the versions that it holds (MCP-36).
    pub(crate) fn sends_incremental(&self) -> bool {
        let Agreement { accepts_incremental, needs_full_state } = self.agreement;
        let is_known = self.base().is_some() || !self.resumption.claimed.is_empty();
        self.protocol == Protocol::Mcp && accepts_incremental && !needs_full_state && is_known
    }
}
