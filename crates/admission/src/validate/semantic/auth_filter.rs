//! Filters that authenticate and authorize requests.

use super::{
    common::{repeated, signed},
    format, headers, uri,
};
use crate::{
    node::named,
    validate::{
        findings::Findings,
        tree::{Message, nanos},
    },
};

/// An HTTP service for authorization gets one path, and headers that it may have.
pub(super) fn authorization<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    let Some(service) = filter.message("http_service") else { return };
    let request = service.message("authorization_request");
    let is_twice = request.is_some_and(|request| request.has("allowed_headers"));
    if is_twice && filter.has("allowed_headers") {
        findings.field("allowed_headers", |findings| {
            let rule = "is also in http_service.authorization_request";
            findings.refuse_with_fix("ext_authz.headers", rule, "remove one of the two");
        });
    }
    findings.field("http_service", |findings| {
        for field in ["path_prefix", "path_override"] {
            let path = service.text(field);
            if !path.is_empty() && !path.starts_with('/') {
                findings.field(field, |f| f.refuse("ext_authz.path_prefix", "must begin with /"));
            }
        }
        if !service.text("path_prefix").is_empty() && !service.text("path_override").is_empty() {
            findings.field("path_override", |findings| {
                let rule = "cannot be combined with path_prefix";
                findings.refuse_with_fix("ext_authz.path_prefix", rule, "remove one of the two");
            });
        }
        let added = request.into_iter().flat_map(|request| request.messages("headers_to_add"));
        for (index, header) in added.enumerate() {
            findings.field("authorization_request", |findings| {
                findings.item("headers_to_add", index, |findings| {
                    headers::name(header, findings);
                    if let Err(rule) = format::check(header.text("value")) {
                        findings.field("value", |findings| format::refuse(rule, findings));
                    }
                });
            });
        }
    });
}

/// The value of `ProcessingMode.BodySendMode` for a duplex stream, and that of `HeaderSendMode` for sending.
const FULL_DUPLEX: u64 = 4;
const SEND: u64 = 1;

/// A body as a duplex stream ends with the trailers.
pub(super) fn processing_mode<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    if filter.bits("disable_clear_route_cache") != 0 && filter.bits("route_cache_action") != 0 {
        findings.field("disable_clear_route_cache", |findings| {
            let rule = "cannot be combined with route_cache_action";
            findings.refuse_with_fix("ext_proc.route_cache", rule, "use route_cache_action");
        });
    }
    let Some(mode) = filter.message("processing_mode") else { return };
    for (body, trailers) in [
        ("request_body_mode", "request_trailer_mode"),
        ("response_body_mode", "response_trailer_mode"),
    ] {
        if mode.bits(body) == FULL_DUPLEX && mode.bits(trailers) != SEND {
            findings.field("processing_mode", |findings| {
                findings.field(body, |findings| {
                    let rule = format!("FULL_DUPLEX_STREAMED needs {trailers}: SEND");
                    findings.refuse("ext_proc.mode", rule);
                });
            });
        }
    }
}

/// The value of `OAuth2Config.auth_type` for authentication by a certificate.
const TLS_CLIENT_AUTH: u64 = 2;

/// The endpoints of OAuth 2.0 are URIs, and one thing at most is in the header `authorization`.
pub(super) fn oauth<'m>(config: &'m Message<'_>, findings: &mut Findings<'m>) {
    let endpoint = config.text("authorization_endpoint");
    if !endpoint.is_empty() && !uri::is_absolute(endpoint) {
        findings.field("authorization_endpoint", |f| uri::refuse(endpoint, f));
    }
    let has_secret = config.message("credentials").is_none_or(|it| it.has("token_secret"));
    if !has_secret && config.bits("auth_type") != TLS_CLIENT_AUTH {
        findings.field("credentials", |findings| {
            findings.field("token_secret", |findings| {
                let rule = "is required without auth_type: TLS_CLIENT_AUTH, but missing";
                findings.refuse("oauth2.secret", rule);
            });
        });
    }
    let header = config.message("forward_id_token").map_or("", |it| it.text("header"));
    if headers::is_fixed(header) {
        findings.field("forward_id_token", |findings| {
            let rule = format!("{} cannot be changed here", named(header));
            findings.field("header", |findings| findings.refuse("header.fixed", rule));
        });
    }
    let users = [
        config.bits("forward_bearer_token") != 0,
        config.bits("preserve_authorization_header") != 0,
        header.eq_ignore_ascii_case("authorization"),
    ];
    if users.into_iter().filter(|is_user| *is_user).count() > 1 {
        let rule = "forward_bearer_token, preserve_authorization_header and a forward_id_token with the header authorization exclude each other";
        findings.refuse("oauth2.authorization_header", rule);
    }
    let has_openid = config.texts("auth_scopes").any(|scope| scope == "openid");
    if !config.text("end_session_endpoint").is_empty() && !has_openid {
        findings.field("end_session_endpoint", |findings| {
            findings.refuse("oauth2.end_session", "needs the scope openid in auth_scopes");
        });
    }
}

/// The keys of a provider come from a URI, at intervals in the right order.
pub(super) fn remote_keys<'m>(keys: &'m Message<'_>, findings: &mut Findings<'m>) {
    let uri = keys.message("http_uri").map_or("", |it| it.text("uri"));
    if !uri.is_empty() && !uri::is_absolute(uri) {
        findings.field("http_uri", |findings| {
            findings.field("uri", |findings| uri::refuse(uri, findings));
        });
    }
    let backoff = keys.message("retry_policy").and_then(|it| it.message("retry_back_off"));
    if backoff.is_some_and(is_reversed) {
        findings.field("retry_policy", |findings| {
            findings.field("retry_back_off", |findings| {
                findings.field("max_interval", |findings| {
                    findings.refuse("backoff.max_interval", "is shorter than base_interval");
                });
            });
        });
    }
}

/// Returns whether the longest interval of retries is below the base interval.
pub(super) fn is_reversed(backoff: &Message<'_>) -> bool {
    let base = backoff.message("base_interval").map_or(0, nanos);
    backoff.message("max_interval").is_some_and(|max| nanos(max) < base)
}

/// The longest interval of reconnections is not below the base interval.
pub(super) fn reconnections<'m>(owner: &'m Message<'_>, findings: &mut Findings<'m>) {
    if owner.message("backoff_options").is_some_and(is_reversed) {
        findings.field("backoff_options", |findings| {
            findings.field("max_interval", |findings| {
                findings.refuse("backoff.max_interval", "is shorter than base_interval");
            });
        });
    }
}

/// The largest end of a range of ports.
const PORT_END: i32 = 65536;

/// A range of ports begins before its end. The end is not part of the range.
pub(super) fn ports<'m>(permission: &'m Message<'_>, findings: &mut Findings<'m>) {
    let Some(range) = permission.message("destination_port_range") else { return };
    let (start, end) = (signed(range, "start"), signed(range, "end"));
    let rule = if !(0..PORT_END).contains(&start) {
        format!("the start {start} is not a port")
    } else if end > PORT_END {
        format!("the end is {end}, but must be at most {PORT_END}")
    } else if start >= end {
        format!("the start {start} is not below the end {end}")
    } else {
        return;
    };
    findings.field("destination_port_range", |findings| findings.refuse("rbac.port_range", rule));
}

/// Each key of clients occurs once.
pub(super) fn api_keys<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    let keys = filter.messages("credentials").map(|credential| credential.text("key"));
    for (index, first) in repeated(keys) {
        findings.item("credentials", index, |findings| {
            findings.field("key", |findings| {
                findings.refuse(
                    "api_key.duplicate",
                    format!("repeats the key of credentials[{first}]"),
                );
            });
        });
    }
}

/// The value of `AwsRequestSigning.signing_algorithm` for sets of regions.
const SIGV4A: u64 = 1;

/// A signature of version 4 is for one region.
pub(super) fn region<'m>(signing: &'m Message<'_>, findings: &mut Findings<'m>) {
    let region = signing.text("region");
    if region.contains(['*', ',']) && signing.bits("signing_algorithm") != SIGV4A {
        findings.field("region", |findings| {
            let rule = format!("{} is not one region", named(region));
            findings.refuse_with_fix("aws.region", rule, "use signing_algorithm: AWS_SIGV4A");
        });
    }
}
