//! The HTTP filters before the router.

use chancery_model::types;

use crate::{
    message::{Content, Msg},
    walk::Walk,
};

/// HTTP filters that neither answer requests nor change what the router sees.
const PASSIVE: &[&str] = &[
    "adaptive_concurrency",
    "alpn",
    "alternate_protocols_cache",
    "bandwidth_limit",
    "buffer",
    "compressor",
    "decompressor",
    "grpc_stats",
    "on_demand",
    "proto_message_logging",
    "router",
    "stateful_session",
    "tap",
];

/// Returns the configuration of a filter, also of one that the node requests (ECDS).
pub(crate) fn content(walk: &mut Walk<'_>, filter: Msg<'_>) -> Option<Content> {
    if !filter.has("config_discovery") {
        return filter.any("typed_config");
    }
    let extension = walk.fetch(types::EXTENSION, filter.text("name"))?;
    Msg(&extension).any("typed_config")
}

/// Notes the HTTP filters that may answer requests, or change what the router sees. Returns whether the node requests
/// resources on demand.
pub(crate) fn note_http_filters(walk: &mut Walk<'_>, manager: Msg<'_>) -> bool {
    let mut is_on_demand = false;
    for (index, filter) in manager.list("http_filters").enumerate() {
        let content = content(walk, filter);
        let name = content.as_ref().and_then(|content| {
            let name = content.type_name.strip_prefix("envoy.extensions.filters.http.")?;
            name.split('.').next().map(str::to_owned)
        });
        let name = name.unwrap_or_else(|| filter.text("name").to_owned());
        is_on_demand |= name == "on_demand";
        let is_preflight = walk.request.method == "OPTIONS";
        let is_passive = PASSIVE.contains(&name.as_str()) || name == "cors" && !is_preflight;
        if !is_passive && !filter.flag("disabled") {
            let place = format!("http_filters[{index}] {name}");
            let reason = "the filter may answer the request, or change what the router sees";
            walk.doubt(&place, reason, "");
        }
    }
    is_on_demand
}
