//! The cost of the events of a shard, in steps.

use chancery_protocol::{DeltaRequest, Request, SotwRequest};

use super::budget::{INLINE_NAMES_MAX, cost_of};
use crate::{messages::event::Event, rejection};

/// Returns the cost of handling an event. `page` is the page size of status queries.
pub(crate) fn cost_of_event(event: &Event, page: usize) -> usize {
    match event {
        Event::Request { request: Request::Sotw(SotwRequest { resource_names, .. }), .. } => {
            cost_of(resource_names.len())
        }
        Event::Request { request: Request::Mcp(request), .. } => {
            cost_of(request.initial_resource_versions.len())
        }
        Event::Request { request: Request::Delta(request), .. } => {
            let DeltaRequest { subscribe, unsubscribe, initial_resource_versions, .. } = request;
            cost_of(subscribe.len() + unsubscribe.len() + initial_resource_versions.len())
        }
        Event::HalfClose { .. } => 1,
        Event::Status { .. } | Event::Contents { .. } | Event::Concerned { .. } => page,
    }
}

/// Returns the cost of cleaning the text of a rejection. Long texts are large work.
pub(crate) fn cost_of_text(event: &Event) -> usize {
    match event {
        Event::Request { request, .. } => {
            cost_of(rejection::cost_of_text(request).min(INLINE_NAMES_MAX)) - 1
        }
        _ => 0,
    }
}
