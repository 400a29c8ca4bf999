//! HTTP filters and their overrides in routes (GRPCV-04, -05, -34, -70 to -73).

use std::collections::{BTreeMap, HashSet};

use super::{
    composite, rbac,
    rules::{
        ALL, At, CPP, Clients, DURATION, GO, JAVA, NODE, NONE, Rules, bad_struct_url, extension,
        is_duration, is_duration_of_java,
    },
    session,
};
use crate::{
    node::{named, shown},
    validate::tree::Message,
};

/// The side of a connection that uses filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

const ROUTER: &str = "envoy.extensions.filters.http.router.v3.Router";
const FAULT: &str = "envoy.extensions.filters.http.fault.v3.HTTPFault";
const RBAC: &str = "envoy.extensions.filters.http.rbac.v3.RBAC";
const RBAC_PER_ROUTE: &str = "envoy.extensions.filters.http.rbac.v3.RBACPerRoute";
const STATEFUL_SESSION: &str = "envoy.extensions.filters.http.stateful_session.v3.StatefulSession";
const STATEFUL_SESSION_PER_ROUTE: &str =
    "envoy.extensions.filters.http.stateful_session.v3.StatefulSessionPerRoute";
const GCP_AUTHN: &str = "envoy.extensions.filters.http.gcp_authn.v3.GcpAuthnFilterConfig";
const EXT_AUTHZ_PER_ROUTE: &str = "envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute";
const JAVA_WITH_GCP_AUTHN: Clients = JAVA.since(77);
/// The message around a composite filter.
const COMPOSITE: &str = "envoy.extensions.common.matching.v3.ExtensionWithMatcher";
const FILTER_CONFIG: &str = "envoy.config.route.v3.FilterConfig";

/// Returns the clients that have a filter at all, and those that have it on a side.
fn known(name: &str, side: Side) -> (Clients, Clients) {
    let client = side == Side::Client;
    match name {
        ROUTER => (ALL, ALL),
        FAULT => (ALL, ALL.when(client)),
        RBAC => (CPP | GO | JAVA, (CPP | GO | JAVA).when(!client)),
        STATEFUL_SESSION => (CPP, CPP.when(client)),
        GCP_AUTHN => {
            let all = CPP | JAVA_WITH_GCP_AUTHN;
            (all, all.when(client))
        }
        // Go and Java register the filter under both types.
        RBAC_PER_ROUTE => (GO | JAVA, JAVA.when(!client)),
        _ => (NONE, NONE),
    }
}

/// Returns the clients that accept a type as the override of a filter.
fn known_overrides(name: &str) -> Clients {
    match name {
        FAULT => ALL,
        ROUTER => NODE,
        RBAC_PER_ROUTE => CPP | GO | JAVA,
        STATEFUL_SESSION_PER_ROUTE => CPP,
        GCP_AUTHN => JAVA_WITH_GCP_AUTHN,
        EXT_AUTHZ_PER_ROUTE => JAVA.since(85),
        _ => NONE,
    }
}

/// The clients that compare the filters that they keep.
const COMPARING: [Clients; 3] = [CPP, GO, NODE];

/// The filters of a chain that clients keep.
#[derive(Default)]
struct Chain {
    /// The position of the last filter that a client keeps, and whether it ends the chain, by [`COMPARING`].
    last: [Option<(usize, bool)>; 3],
    /// The clients that reject a filter because of its position: a router, or another filter.
    misplaced: BTreeMap<(usize, bool), Clients>,
}

/// Checks the HTTP filters of a connection manager.
pub(super) fn check(
    manager: &Message<'_>,
    side: Side,
    clients: Clients,
    at: &At<'_>,
    rules: &mut Rules,
) {
    const ID: &str = "grpc.http_filter";
    let list = at.field("http_filters");
    let mut names = HashSet::new();
    let mut chain = Chain::default();
    let n = manager.messages("http_filters").count();
    let mut refused = NONE;
    for (index, filter) in manager.messages("http_filters").enumerate() {
        let at = list.index(index);
        let name = filter.text("name");
        if name.is_empty() {
            let reason = "a filter needs a name";
            rules.refuse(&at.field("name"), clients & (CPP | GO), ID, reason, "give name");
            refused = refused | CPP | GO;
        }
        if !names.insert(name) {
            let reason = format!("another filter has the name {}", shown(name));
            let clients = clients & (ALL - (CPP | GO).when(name.is_empty()));
            rules.refuse(&at.field("name"), clients, ID, reason, "give each filter its own name");
            refused = ALL;
        }
        let keeping = one(filter, side, clients, &at, rules, &mut refused);
        chain.put(index, filter, keeping & clients);
        // Java looks at all filters, also at optional ones that it skips.
        if is_router(filter) != (index + 1 == n) {
            chain.blame(index, is_router(filter), JAVA);
        }
    }
    let mut empty = JAVA.when(n == 0);
    for (position, client) in COMPARING.into_iter().enumerate() {
        match chain.last[position] {
            None => empty = empty | (client - (NODE | refused)),
            Some((last, false)) => chain.blame(last, false, client),
            Some((_, true)) => {}
        }
    }
    let reason = "the list has no filter that the client supports";
    rules.refuse(&list, clients & empty, ID, reason, ROUTER_LAST);
    for ((index, is_router), found) in chain.misplaced {
        let (reason, fix) = if is_router {
            ("the router is not the last filter", "move the router to the end")
        } else {
            ("the last filter is not the router", ROUTER_LAST)
        };
        rules.refuse(&list.index(index), clients & found, "grpc.router", reason, fix);
    }
}

impl Chain {
    /// Adds a filter to the chains of the clients that keep it. Only the last filter is the router.
    fn put(&mut self, index: usize, filter: &Message<'_>, clients: Clients) {
        for (position, client) in COMPARING.into_iter().enumerate() {
            if !clients.intersects(client) {
                continue;
            }
            if let Some((before, true)) = self.last[position] {
                self.blame(before, true, client);
            }
            self.last[position] = Some((index, is_router(filter)));
        }
    }

    /// Records that a filter is a router before the end, or another filter at the end.
    fn blame(&mut self, index: usize, is_router: bool, clients: Clients) {
        let found = self.misplaced.entry((index, is_router)).or_default();
        *found = *found | clients;
    }
}

const ROUTER_LAST: &str = "add envoy.filters.http.router at the end";

fn is_router(filter: &Message<'_>) -> bool {
    filter.message("typed_config").is_some_and(|config| extension(config).name == ROUTER)
}

/// Checks one filter. Returns the clients that keep it. Only Node keeps an optional filter that it does not
/// have.
fn one(
    filter: &Message<'_>,
    side: Side,
    clients: Clients,
    at: &At<'_>,
    rules: &mut Rules,
    refused: &mut Clients,
) -> Clients {
    const ID: &str = "grpc.http_filter";
    let is_optional = filter.bits("is_optional") != 0;
    let at = at.field("typed_config");
    let Some(config) = filter.message("typed_config") else {
        // Go and Java skip an optional filter without a configuration.
        let clients = clients & (ALL - (GO | JAVA).when(is_optional));
        rules.refuse(&at, clients, ID, "a filter needs a typed_config", "");
        *refused = *refused | clients;
        return NONE;
    };
    let kind = extension(config);
    if kind.name == COMPOSITE {
        composite::check(config, &at, rules);
    }
    let (mut known, mut on_side) = known(kind.name, side);
    if kind.is_struct && !has_full_url(config) {
        (known, on_side) = (known - (GO | NODE), on_side - (GO | NODE));
    }
    if !is_optional {
        let fix = "remove the filter, or set is_optional to true";
        let reason = format!("the HTTP filter {} is not supported", named(kind.name));
        rules.refuse(&at, clients & (ALL - known), ID, reason, fix);
        let side = if side == Side::Client { "clients" } else { "servers" };
        let reason = format!("the HTTP filter {} is not supported for {side}", named(kind.name));
        rules.refuse(&at, clients & (known - on_side), ID, reason, fix);
        *refused = *refused | (clients & (ALL - on_side));
    }
    // Go parses an optional filter of the other side too.
    let parsing = clients & (on_side | known & GO);
    if kind.is_struct {
        if let Some(reason) = bad_struct_url(config) {
            rules.refuse(&at, clients & CPP, ID, reason, "");
        }
        // Java and Node do not read the configuration of the router.
        let parsing = parsing - (JAVA | NODE).when(kind.name == ROUTER);
        rules.refuse(&at, parsing, ID, OWN_MESSAGE, "");
    } else if kind.name == RBAC_PER_ROUTE {
        let reason = "RBACPerRoute is only an override";
        rules.refuse(&at, parsing, ID, reason, "use RBAC");
    } else if let Some(content) = filter.any("typed_config") {
        self::content(content, parsing, &at, rules);
    }
    on_side | NODE
}

const OWN_MESSAGE: &str = "the filter needs its own message, not a TypedStruct";

/// Returns whether a `TypedStruct` names its type in the form that Go and Node compare.
fn has_full_url(config: &Message<'_>) -> bool {
    let content = config.content.as_deref();
    content.is_some_and(|content| content.text("type_url").starts_with("type.googleapis.com/"))
}

/// Checks the configuration of a filter, or its override.
fn content(content: &Message<'_>, clients: Clients, at: &At<'_>, rules: &mut Rules) {
    match content.kind.name.as_str() {
        FAULT => fault(content, clients, at, rules),
        RBAC => rbac::check(content, clients, at, rules),
        RBAC_PER_ROUTE => {
            if let Some(own) = content.message("rbac") {
                rbac::check(own, clients, &at.field("rbac"), rules);
            }
        }
        STATEFUL_SESSION => session::check(content, clients, at, rules),
        STATEFUL_SESSION_PER_ROUTE if content.bits("disabled") == 0 => {
            if let Some(own) = content.message("stateful_session") {
                session::check(own, clients, &at.field("stateful_session"), rules);
            }
        }
        GCP_AUTHN => {
            let size =
                content.message("cache_config").and_then(|cache| cache.wrapped("cache_size"));
            if size == Some(0) {
                let at = at.field("cache_config");
                let reason = "cache_size is 0, but must be at least 1";
                rules.refuse(&at.field("cache_size"), clients, "grpc.gcp_authn", reason, "");
            }
        }
        _ => {}
    }
}

fn fault(fault: &Message<'_>, clients: Clients, at: &At<'_>, rules: &mut Rules) {
    const ID: &str = "grpc.fault";
    for field in ["abort", "delay"] {
        let share = fault.message(field).and_then(|own| own.message("percentage"));
        if share.is_some_and(|share| share.bits("denominator") > 2) {
            let at = at.field(field);
            let reason = "the denominator is not HUNDRED, TEN_THOUSAND or MILLION";
            rules.refuse(&at.field("percentage"), clients & JAVA, ID, reason, "");
        }
    }
    if let Some(abort) = fault.message("abort") {
        let at = at.field("abort");
        let status = abort.bits("grpc_status");
        if status > 16 {
            let reason = format!("{status} is not a gRPC status code");
            rules.refuse(&at.field("grpc_status"), clients & CPP, ID, reason, "");
        }
        if !abort.has("percentage") {
            let reason = "Node needs the percentage of an abort";
            rules.refuse(&at.field("percentage"), clients & NODE, ID, reason, "give percentage");
        }
        if !["http_status", "grpc_status", "header_abort"].iter().any(|form| abort.has(form)) {
            let reason = "the abort has none of http_status, grpc_status and header_abort";
            rules.refuse(&at, clients & (JAVA | NODE), ID, reason, "");
        }
    }
    if let Some(delay) = fault.message("delay") {
        let at = at.field("delay");
        if let Some(fixed) = delay.message("fixed_delay") {
            let refusing = CPP.when(!is_duration(fixed)) | JAVA.when(!is_duration_of_java(fixed));
            rules.refuse(&at.field("fixed_delay"), clients & refusing, ID, DURATION, "");
        }
        if !delay.has("percentage") {
            let reason = "Node needs the percentage of a delay";
            rules.refuse(&at.field("percentage"), clients & NODE, ID, reason, "give percentage");
        }
        if !["fixed_delay", "header_delay"].iter().any(|form| delay.has(form)) {
            rules.refuse(&at, clients & NODE, ID, "Node needs fixed_delay or header_delay", "");
        }
    }
}

/// Checks the overrides of filters in a virtual host, a route or a weighted cluster.
pub(super) fn overrides(parent: &Message<'_>, clients: Clients, at: &At<'_>, rules: &mut Rules) {
    const ID: &str = "grpc.filter_override";
    let at = at.field("typed_per_filter_config");
    for entry in parent.messages("typed_per_filter_config") {
        let key = entry.text("key");
        let at = at.key(key);
        if key.is_empty() {
            let reason = "the name of the filter is empty";
            rules.refuse(&at, clients & CPP, ID, reason, "");
        }
        let Some(mut config) = entry.message("value") else { continue };
        let (mut is_optional, mut path) = (false, None);
        if extension(config).name == FILTER_CONFIG
            && let Some(wrapper) = config.content.as_deref()
        {
            is_optional = wrapper.bits("is_optional") != 0;
            path = Some("config");
            match wrapper.message("config") {
                Some(inner) => config = inner,
                None => {
                    let clients = clients & (ALL - (GO | JAVA).when(is_optional));
                    rules.refuse(&at, clients, ID, "the override has no config", "");
                    continue;
                }
            }
        }
        let outer = at;
        let at = path.map_or(outer, |path| outer.field(path));
        override_of_type(config, is_optional, path.is_some(), clients, &at, rules);
    }
}

/// Checks an override without the `FilterConfig` around it.
fn override_of_type(
    config: &Message<'_>,
    is_optional: bool,
    is_wrapped: bool,
    clients: Clients,
    at: &At<'_>,
    rules: &mut Rules,
) {
    const ID: &str = "grpc.filter_override";
    let kind = extension(config);
    let mut accepting = known_overrides(kind.name);
    let mut registered = known(kind.name, Side::Server).0 & (GO | JAVA);
    if kind.is_struct {
        if let Some(reason) = bad_struct_url(config) {
            rules.refuse(at, clients & CPP, ID, reason, "");
        }
        let has_full_url = has_full_url(config);
        accepting = accepting - GO.when(!has_full_url) - NODE.when(!has_full_url || is_wrapped);
        registered = registered & (JAVA | GO.when(has_full_url));
        let parsing = accepting - NODE.when(kind.name == ROUTER);
        rules.refuse(at, clients & parsing, ID, OWN_MESSAGE, "");
    }
    let refusing = if is_optional {
        // Go and Java skip an optional override only if they do not have the filter.
        registered - accepting
    } else {
        ALL - accepting
    };
    let reason = format!("the filter override {} is not supported", named(kind.name));
    let fix = "wrap it in a FilterConfig with is_optional: true";
    rules.refuse(at, clients & refusing, ID, reason, if is_optional { "" } else { fix });
    let Some(own) = config.content.as_deref().filter(|_| !kind.is_struct) else { return };
    if is_wrapped && kind.name == FAULT {
        let reason = "Node cannot read a fault in a FilterConfig";
        rules.refuse(at, clients & NODE, ID, reason, "give it without FilterConfig");
    }
    if kind.name == RBAC_PER_ROUTE && !own.has("rbac") {
        rules.refuse(&at.field("rbac"), clients & GO, ID, "rbac is missing", "give rbac");
    }
    self::content(own, clients & accepting, at, rules);
}
