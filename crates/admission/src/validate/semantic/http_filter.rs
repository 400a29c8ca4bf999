//! The configurations of single HTTP filters.

use std::collections::HashSet;

use prost::Message as _;

use super::{common::repeated, pem};
use crate::{
    node::named,
    validate::{
        findings::Findings,
        tree::{Message, nanos},
    },
};

/// The minimum time between two refills of a token bucket.
const FILL_NANOS_MIN: i128 = 50_000_000;

/// A token bucket of a local rate limit is not refilled too often.
pub(super) fn token_bucket<'m>(limit: &'m Message<'_>, findings: &mut Findings<'m>) {
    let interval = |bucket: &Message<'_>| bucket.message("fill_interval").map(nanos);
    let own = limit.message("token_bucket").and_then(interval);
    let too_short = |nanos: Option<i128>| nanos.is_some_and(|n| (1..FILL_NANOS_MIN).contains(&n));
    let rule = "must be at least 0.05s";
    if too_short(own) {
        findings.field("token_bucket", |findings| {
            findings.field("fill_interval", |f| f.refuse("rate_limit.fill_interval", rule));
        });
    }
    for (index, descriptor) in limit.messages("descriptors").enumerate() {
        let part = descriptor.message("token_bucket").and_then(interval);
        if !too_short(part) {
            continue;
        }
        findings.item("descriptors", index, |findings| {
            findings.field("token_bucket", |findings| {
                findings.field("fill_interval", |f| f.refuse("rate_limit.fill_interval", rule));
            });
        });
    }
    let entries = |descriptor: &'m Message<'_>| -> Vec<(&'m str, &'m str)> {
        let entries = descriptor.messages("entries");
        entries.map(|entry| (entry.text("key"), entry.text("value"))).collect()
    };
    for (index, first) in repeated(limit.messages("descriptors").map(entries)) {
        findings.item("descriptors", index, |findings| {
            let rule = format!("repeats the entries of descriptors[{first}]");
            findings.refuse("rate_limit.duplicate_descriptor", rule);
        });
    }
}

/// A health check caches only answers of the upstream.
pub(super) fn health_check<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    let passes = filter.wrapped("pass_through_mode") == Some(1);
    if !passes && filter.message("cache_time").is_some_and(|time| nanos(time) > 0) {
        findings.field("cache_time", |findings| {
            findings.refuse("health_check.pass_through", "needs pass_through_mode: true");
        });
    }
}

/// A Lua filter has one default script.
pub(super) fn lua<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    if filter.has("inline_code") && filter.has("default_source_code") {
        findings.field("inline_code", |findings| {
            let rule = "cannot be combined with default_source_code";
            findings.refuse_with_fix("lua.source", rule, "remove one of the two");
        });
    }
}

/// The inline descriptors of a transcoder parse, and contain its services.
pub(super) fn transcoder<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    if !filter.has("proto_descriptor_bin") {
        return;
    }
    let set = prost_types::FileDescriptorSet::decode(filter.bytes("proto_descriptor_bin"));
    let Ok(set) = set else {
        return findings.field("proto_descriptor_bin", |findings| {
            findings.refuse("transcoder.descriptors", "is not an encoded FileDescriptorSet");
        });
    };
    let services: HashSet<String> = set
        .file
        .iter()
        .flat_map(|file| {
            let package = match file.package() {
                "" => String::new(),
                package => format!("{package}."),
            };
            file.service.iter().map(move |service| format!("{package}{}", service.name()))
        })
        .collect();
    for (index, name) in filter.texts("services").enumerate() {
        if !services.contains(name) {
            findings.item("services", index, |findings| {
                let rule = format!("{} is not in proto_descriptor_bin", named(name));
                findings.refuse("transcoder.service", rule);
            });
        }
    }
}

/// A rule that copies headers to metadata has one source and an effect.
pub(super) fn header_to_metadata<'m>(rule: &'m Message<'_>, findings: &mut Findings<'m>) {
    let (header, cookie) = (!rule.text("header").is_empty(), !rule.text("cookie").is_empty());
    if header == cookie {
        let rule = "needs exactly one of header and cookie";
        findings.refuse("header_to_metadata.source", rule);
    }
    if !rule.has("on_header_present") && !rule.has("on_header_missing") {
        let rule = "needs on_header_present or on_header_missing";
        findings.refuse("header_to_metadata.effect", rule);
    }
    for (field, is_wrong, why) in [
        (
            "on_header_present",
            |pair: &Message<'_>| !pair.text("value").is_empty() && pair.has("regex_value_rewrite"),
            "has both value and regex_value_rewrite",
        ),
        (
            "on_header_missing",
            |pair: &Message<'_>| pair.text("value").is_empty(),
            "needs a value, because there is no header to copy",
        ),
    ] as [(&'static str, fn(&Message<'_>) -> bool, &str); 2]
    {
        if rule.message(field).is_some_and(is_wrong) {
            findings.field(field, |f| f.refuse("header_to_metadata.value", why));
        }
    }
    if cookie && rule.bits("remove") != 0 {
        findings.field("remove", |findings| {
            findings.refuse("header_to_metadata.source", "cannot be combined with cookie");
        });
    }
}

/// Only one way to pass the body of a request to the authorization server is in use.
pub(super) fn check_settings<'m>(settings: &'m Message<'_>, findings: &mut Findings<'m>) {
    if settings.bits("disable_request_body_buffering") != 0 && settings.has("with_request_body") {
        findings.field("with_request_body", |findings| {
            let rule = "cannot be combined with disable_request_body_buffering";
            findings.refuse("ext_authz.body", rule);
        });
    }
}

/// An external processor is reached in one way.
pub(super) fn ext_proc<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    if filter.has("grpc_service") == filter.has("http_service") {
        let rule = "needs exactly one of grpc_service and http_service";
        findings.refuse("ext_proc.service", rule);
    }
    let mode = filter.message("processing_mode");
    let sends = |field| mode.is_some_and(|mode| mode.bits(field) != 0);
    // Trailers are sent by the value SEND.
    let sends_trailers = ["request_trailer_mode", "response_trailer_mode"]
        .iter()
        .any(|field| mode.is_some_and(|mode| mode.bits(field) == 1));
    let sends_body = sends("request_body_mode") || sends("response_body_mode");
    if filter.has("http_service") && (sends_body || sends_trailers) {
        findings.field("processing_mode", |findings| {
            let rule = "an HTTP service receives neither bodies nor trailers";
            findings.refuse("ext_proc.mode", rule);
        });
    }
}

/// Rules of role-based access control by connection do not look at requests.
pub(super) fn network_rbac<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    for field in ["rules", "shadow_rules"] {
        let policies =
            filter.message(field).into_iter().flat_map(|rules| rules.messages("policies"));
        for entry in policies {
            let Some(policy) = entry.message("value") else { continue };
            for list in ["permissions", "principals"] {
                for (index, rule) in policy.messages(list).enumerate() {
                    if looks_at_requests(rule) {
                        findings.field(field, |findings| {
                            findings.field("policies", |findings| {
                                findings.key(entry.text("key"), |findings| {
                                    findings.item(list, index, |findings| {
                                        let rule = "a network filter sees no headers or paths";
                                        findings.refuse("rbac.network", rule);
                                    });
                                });
                            });
                        });
                    }
                }
            }
        }
    }
}

/// Returns whether a permission or principal, or one in it, reads headers.
fn looks_at_requests(rule: &Message<'_>) -> bool {
    const SETS: [&str; 4] = ["and_rules", "or_rules", "and_ids", "or_ids"];
    let inner = SETS.iter().filter_map(|set| rule.message(set));
    let inner = inner.flat_map(|set| set.messages("rules").chain(set.messages("ids")));
    let negated = ["not_rule", "not_id"].into_iter().filter_map(|field| rule.message(field));
    rule.has("header") || inner.chain(negated).any(looks_at_requests)
}

/// The users of basic authentication are lines of names and hashes.
pub(super) fn basic_auth<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    const HASH_BYTES: usize = 28;
    let Some((field, content)) = filter.message("users").and_then(pem::inline) else { return };
    let text = String::from_utf8_lossy(content);
    let mut names = HashSet::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let rule = match line.split_once(':') {
            None | Some((_, "") | ("", _)) => "has a line that is not user:{SHA}hash",
            Some((_, hash)) => match hash.strip_prefix("{SHA}") {
                None => "has a user whose hash does not begin with {SHA}",
                Some(hash) if hash.len() != HASH_BYTES => "has a user whose hash is not SHA-1",
                Some(_) if names.insert(line.split(':').next()) => continue,
                Some(_) => "has a user twice",
            },
        };
        return findings.field("users", |findings| {
            findings.field(field, |findings| findings.refuse("basic_auth.users", rule));
        });
    }
}

/// A tag of addresses needs addresses.
pub(super) fn ip_tags<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    if !filter.has("ip_tags") && !filter.has("ip_tags_datasource") {
        findings.field("ip_tags", |f| f.refuse("ip_tagging.tags", "is required, but missing"));
    }
}

/// A function of AWS has a resource name with seven parts.
pub(super) fn aws_function<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    let arn = filter.text("arn");
    if !arn.is_empty() && (!arn.starts_with("arn:") || arn.split(':').count() < 7) {
        findings.field("arn", |findings| {
            let rule =
                "is not the ARN of a function, such as arn:aws:lambda:REGION:ACCOUNT:function:NAME";
            findings.refuse("aws_lambda.arn", rule);
        });
    }
}

/// The types of session state. Envoy finds them by name.
const SESSION_STATES: [&str; 3] = [
    "envoy.http.stateful_session.cookie",
    "envoy.http.stateful_session.envelope",
    "envoy.http.stateful_session.header",
];

/// A state of sessions has the name of its kind.
pub(super) fn session_state<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    let Some(state) = filter.message("session_state") else { return };
    let name = state.text("name");
    if !name.is_empty() && !SESSION_STATES.contains(&name) {
        findings.field("session_state", |findings| {
            findings.field("name", |findings| {
                let rule = format!("{} is not one of {}", named(name), SESSION_STATES.join(", "));
                findings.refuse("stateful_session.name", rule);
            });
        });
    }
}

/// The objects that a filter can put into the state of a request.
const STATE_OBJECTS: [&str; 21] = [
    "envoy.ai.llm_protocol.request",
    "envoy.ai.model.request",
    "envoy.bool",
    "envoy.filters.listener.original_dst.local_ip",
    "envoy.filters.listener.original_dst.remote_ip",
    "envoy.hashable_string",
    "envoy.network.application_protocols",
    "envoy.network.ip",
    "envoy.network.network_namespace",
    "envoy.network.transport_socket.http_11_proxy.info",
    "envoy.network.transport_socket.original_dst_address",
    "envoy.network.upstream_server_name",
    "envoy.network.upstream_subject_alt_names",
    "envoy.ratelimit.hits_addend",
    "envoy.router.debug_config",
    "envoy.string",
    "envoy.tcp_proxy.cluster",
    "envoy.tcp_proxy.disable_tunneling",
    "envoy.tcp_proxy.per_connection_idle_timeout_ms",
    "envoy.upstream.dynamic_host",
    "envoy.upstream.dynamic_port",
];

/// A value of the state of a request has a known kind.
pub(super) fn filter_state<'m>(value: &'m Message<'_>, findings: &mut Findings<'m>) {
    let (key, factory) = (value.text("object_key"), value.text("factory_key"));
    let (field, kind) = match factory {
        "" => ("object_key", key),
        factory => ("factory_key", factory),
    };
    if !kind.is_empty() && !STATE_OBJECTS.contains(&kind) {
        findings.field(field, |findings| {
            let rule = format!("Envoy has no filter state object {}", named(kind));
            findings.refuse_with_fix("filter_state.key", rule, "give factory_key: envoy.string");
        });
    }
}

/// A proxy for Redis has routes, each with a prefix of its own.
pub(super) fn redis<'m>(proxy: &'m Message<'_>, findings: &mut Findings<'m>) {
    let routes = proxy.message("prefix_routes");
    if !routes.is_some_and(|routes| routes.has("routes") || routes.has("catch_all_route")) {
        return findings.field("prefix_routes", |findings| {
            findings.refuse("redis.routes", "needs routes or catch_all_route");
        });
    }
    let ignores_case = routes.is_some_and(|routes| routes.bits("case_insensitive") != 0);
    let prefix = |route: &Message<'_>| {
        if ignores_case {
            route.text("prefix").to_ascii_lowercase()
        } else {
            route.text("prefix").to_owned()
        }
    };
    let prefixes = routes.into_iter().flat_map(|routes| routes.messages("routes")).map(prefix);
    for (index, first) in repeated(prefixes) {
        findings.field("prefix_routes", |findings| {
            findings.item("routes", index, |findings| {
                findings.refuse("redis.prefix", format!("repeats the prefix of routes[{first}]"));
            });
        });
    }
}
