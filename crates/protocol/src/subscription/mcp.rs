//! Collections of MCP: the requests of a sink, and the choice between a full state and an incremental response.
//!
//! The request of a sink is a wildcard subscription (MCP-17). In contrast to xDS, each request states whether the sink
//! accepts an incremental response, and the session sends nothing while a response is unanswered (MCP-30).

use chancery_model::{CollectionVersion, has_internal_mark};
use chancery_view::TypeView;

use super::{
    agreement::Agreement,
    delivery::Delivery,
    interest::{Interest, Requests},
    kind::Kind,
    rejections::Rejections,
    requests::{RequestContext, Requested, parse_nonce},
    resumption::Resumption,
    work::Work,
};
use crate::{InterestChange, McpRequest, ProtocolError};

/// The subscription of a sink to a collection while a request changes it.
#[derive(Debug)]
pub(super) struct SinkUpdate<'a> {
    pub(super) kind: &'a Kind,
    pub(super) interest: &'a mut Interest,
    pub(super) work: &'a mut Work,
    pub(super) delivery: &'a mut Delivery,
    pub(super) rejections: &'a mut Rejections,
    pub(super) resumption: &'a mut Resumption,
    pub(super) agreement: &'a mut Agreement,
}

impl SinkUpdate<'_> {
    /// Processes a request of a sink.
    pub(super) fn on_request(
        &mut self,
        request: &McpRequest,
        context: &mut RequestContext<'_>,
    ) -> Result<Requested, ProtocolError> {
        // MCP-24: the first request for a collection answers nothing. Its nonce, if any, is that of another stream.
        if self.interest.requests() == Requests::None || request.response_nonce.is_empty() {
            let subscribes = self.watch_collection(request, context)?;
            return Ok(Requested { answered: None, subscribes });
        }
        let rejects = request.error_detail.is_some();
        let nonce = parse_nonce(&request.response_nonce);
        let answered = nonce.and_then(|nonce| self.delivery.take_answered_delta(nonce, rejects));
        // MCP-23: a request with another nonce changes nothing.
        if answered.is_some() {
            self.agreement.on_answer(request.incremental, rejects);
        }
        Ok(Requested { answered, subscribes: false })
    }

    /// Subscribes to the collection, or restarts the subscription (MCP-27). While a response is unanswered, only
    /// records whether the sink accepts an incremental response. Returns whether a response follows.
    fn watch_collection(
        &mut self,
        request: &McpRequest,
        context: &mut RequestContext<'_>,
    ) -> Result<bool, ProtocolError> {
        self.agreement.on_request(request.incremental);
        if !self.delivery.unanswered().is_empty() {
            return Ok(false);
        }
        let versions = &request.initial_resource_versions;
        context.check_count(versions.len())?;
        self.interest.on_request(Requests::Unnamed);
        self.agreement.on_restarted();
        self.delivery.restart();
        *self.resumption = Resumption::default();
        // Versions of another cluster say nothing about the state of the sink (MCP-37).
        let own = context.view.as_ref().map(TypeView::incarnation);
        for (name, version) in versions.iter() {
            let version = CollectionVersion::parse(version)
                .filter(|of| Some(of.incarnation) == own && !has_internal_mark(name))
                .map(|of| of.version);
            if version.is_some() {
                self.resumption.claim(context.name(name)?, version);
            } else {
                self.agreement.on_unknown_version();
            }
        }
        if !self.interest.is_wildcard() {
            context.note(InterestChange::wildcard(&self.kind.type_url, true));
        }
        self.interest.start_wildcard();
        self.work.set_answer_due(true);
        self.work.on_all_changed();
        self.rejections.touch_all();
        Ok(true)
    }
}
