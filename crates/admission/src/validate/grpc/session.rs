//! The filter for stateful sessions (gRFC A55). Only C-core has it.

use super::rules::{At, CPP, Clients, DURATION, Rules, extension, is_duration};
use crate::validate::tree::Message;

const ID: &str = "grpc.stateful_session";
const COOKIE_STATE: &str =
    "envoy.extensions.http.stateful_session.cookie.v3.CookieBasedSessionState";

/// Checks the configuration of the filter, or the one of an override. Without `session_state`, the filter does
/// nothing.
pub(super) fn check(filter: &Message<'_>, clients: Clients, at: &At<'_>, rules: &mut Rules) {
    let clients = clients & CPP;
    let Some(state) = filter.message("session_state") else { return };
    let at = at.field("session_state");
    let at = at.field("typed_config");
    let kind = state.message("typed_config").map(extension);
    if kind.is_none_or(|kind| kind.name != COOKIE_STATE || kind.is_struct) {
        let reason = "gRPC supports only CookieBasedSessionState";
        return rules.refuse(&at, clients, ID, reason, "");
    }
    let Some(state) = state.any("typed_config") else { return };
    let at = at.field("cookie");
    let Some(cookie) = state.message("cookie") else {
        return rules.refuse(&at, clients, ID, "the cookie is missing", "give cookie");
    };
    if cookie.text("name").is_empty() {
        let reason = "the cookie has no name";
        rules.refuse(&at.field("name"), clients, ID, reason, "give name");
    }
    if cookie.message("ttl").is_some_and(|ttl| !is_duration(ttl)) {
        rules.refuse(&at.field("ttl"), clients, ID, DURATION, "");
    }
}
