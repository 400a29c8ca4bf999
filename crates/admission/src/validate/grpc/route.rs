//! Route configurations (GRPCV-25 to -35).

use std::collections::HashMap;

use super::{
    filters::{self, Side},
    lookup, matchers, retry,
    rules::{
        ALL, At, CPP, Clients, DURATION, GO, JAVA, NODE, NONE, Rules, SIGNED_MAX, bad_struct_url,
        extension, is_duration, is_duration_of_java,
    },
};
use crate::{node::shown, validate::tree::Message};

/// The only cluster specifier plugin that clients have.
const RLS: &str = "grpc.lookup.v1.RouteLookupClusterSpecifier";

/// Checks a route configuration. `side` is that of its only listener, if the listener contains it.
pub(super) fn check(config: &Message<'_>, side: Option<Side>, at: &At<'_>, rules: &mut Rules) {
    let plugins = plugins(config, at, rules);
    for (index, host) in config.messages("virtual_hosts").enumerate() {
        let list = at.field("virtual_hosts");
        let at = list.index(index);
        domains(host, &at, rules);
        filters::overrides(host, ALL, &at, rules);
        if let Some(policy) = host.message("retry_policy") {
            // Java does not read it.
            rules.only(ALL - JAVA, |rules| {
                retry::check(policy, &at.field("retry_policy"), rules);
            });
        }
        if side != Some(Side::Server) && has_no_cluster(host) {
            let effect = "every RPC of the channel fails, because no route of the virtual host selects a cluster";
            let fix = "add a route with a cluster";
            rules.effect(&at.field("routes"), JAVA, "grpc.effect.no_cluster", effect, fix);
        }
        for (index, route) in host.messages("routes").enumerate() {
            let list = at.field("routes");
            self::route(route, &plugins, side, &list.index(index), rules);
        }
    }
}

/// Returns whether a virtual host has routes, and Java skips all of them, or finds no cluster in them.
fn has_no_cluster(host: &Message<'_>) -> bool {
    const KINDS: [&str; 3] = ["cluster", "weighted_clusters", "cluster_specifier_plugin"];
    let is_skipped = |route: &Message<'_>| {
        let matcher = route.message("match");
        let action = route.message("route");
        matcher.is_some_and(|matcher| matcher.has("query_parameters"))
            || action.is_some_and(|action| !KINDS.iter().any(|kind| action.has(kind)))
    };
    host.has("routes") && host.messages("routes").all(is_skipped)
}

/// The plugins by name: whether clients without the plugin skip the routes that use it.
type Plugins<'m> = HashMap<&'m str, bool>;

/// Checks the cluster specifier plugins. Node ignores them.
fn plugins<'m>(config: &Message<'m>, at: &At<'_>, rules: &mut Rules) -> Plugins<'m> {
    const ID: &str = "grpc.specifier_plugin";
    let mut plugins = Plugins::new();
    for (index, plugin) in config.messages("cluster_specifier_plugins").enumerate() {
        let list = at.field("cluster_specifier_plugins");
        let at = list.index(index);
        let at = at.field("extension");
        let is_optional = plugin.bits("is_optional") != 0;
        let Some(own) = plugin.message("extension") else {
            let clients = CPP | GO.when(!is_optional);
            rules.refuse(&at, clients, ID, "the extension is missing", "");
            continue;
        };
        let at_config = at.field("typed_config");
        let config = own.message("typed_config");
        let kind = config.map(extension);
        let has_message = kind.as_ref().is_some_and(|kind| kind.name == RLS);
        let is_known = has_message && !kind.is_some_and(|kind| kind.is_struct);
        let refusing = match config {
            _ if !is_optional && !is_known => CPP | GO | JAVA,
            // C-core reads optional plugins too.
            None => CPP,
            Some(_) => CPP.when(has_message && !is_known),
        };
        let reason = "gRPC does not support this cluster specifier plugin";
        let fix = "set is_optional to true, so that clients skip the routes that use it";
        rules.refuse(&at_config, refusing, ID, reason, if is_optional { "" } else { fix });
        if let Some(reason) = config.and_then(bad_struct_url) {
            rules.refuse(&at_config, CPP, ID, reason, "");
        }
        if is_known && let Some(config) = config {
            lookup::check(config.bytes("value"), &at_config, rules);
        }
        if plugins.insert(own.text("name"), is_optional && !is_known).is_some() {
            let reason = "two cluster specifier plugins have this name";
            rules.refuse(&at.field("name"), CPP, ID, reason, "");
        }
    }
    plugins
}

fn domains(host: &Message<'_>, at: &At<'_>, rules: &mut Rules) {
    const ID: &str = "grpc.domain";
    if !host.has("domains") {
        let reason = "the virtual host has no domain";
        rules.refuse(&at.field("domains"), CPP, ID, reason, "");
    }
    for (index, domain) in host.texts("domains").enumerate() {
        // A star is the whole domain, or its first or last character.
        let first = domain.find('*');
        let at_an_end = |star: usize| star == 0 || star + 1 == domain.len();
        let is_inside = first.is_some_and(|star| !at_an_end(star));
        let is_repeated = domain.rfind('*') != first;
        let is_bad_for_cpp = domain.is_empty() || is_inside && !domain.ends_with('*');
        let clients = CPP.when(is_bad_for_cpp) | NODE.when(is_inside || is_repeated);
        if clients == NONE {
            continue;
        }
        let list = at.field("domains");
        let reason = format!(
            "{} is not a domain: a domain has text, and at most one * at its start or end",
            shown(domain)
        );
        rules.refuse(&list.index(index), clients, ID, reason, "");
    }
}

fn route(
    route: &Message<'_>,
    plugins: &Plugins<'_>,
    side: Option<Side>,
    at: &At<'_>,
    rules: &mut Rules,
) {
    let at_match = at.field("match");
    let Some(matcher) = route.message("match") else {
        return rules.refuse(
            &at_match,
            ALL,
            "grpc.path_matcher",
            "a route needs a match",
            "give match",
        );
    };
    // All but Node skip a route with query parameters (GRPCV-26).
    let clients = if matcher.has("query_parameters") { NODE } else { ALL };
    let clients = matchers::path(matcher, clients, &at_match, rules);
    matchers::headers(matcher, clients, &at_match, rules);
    let fraction = matcher.message("runtime_fraction");
    let fraction = fraction.and_then(|fraction| fraction.message("default_value"));
    if fraction.is_some_and(|fraction| fraction.bits("denominator") > 2) {
        let at = at_match.field("runtime_fraction");
        let reason = "the denominator is not HUNDRED, TEN_THOUSAND or MILLION";
        rules.refuse(&at, clients & (CPP | JAVA), "grpc.path_matcher", reason, "");
    }
    let action = route.message("route");
    usable_action(route, side, clients, at, rules);
    let readers = match action {
        Some(action) => self::action(action, plugins, clients, &at.field("route"), rules),
        None => clients - NODE,
    };
    // Java reads the overrides before it skips a route because of its action.
    filters::overrides(route, readers | clients & JAVA, at, rules);
}

/// Checks that a route has an action of its side (GRPCV-14 and -28).
fn usable_action(
    route: &Message<'_>,
    side: Option<Side>,
    clients: Clients,
    at: &At<'_>,
    rules: &mut Rules,
) {
    const ID: &str = "grpc.route_action";
    let mut refusing = NODE;
    let reason = match (route.has("route"), route.has("non_forwarding_action"), side) {
        (false, false, _) => {
            refusing = JAVA | NODE;
            "the action of the route is neither route nor non_forwarding_action"
        }
        (false, true, Some(Side::Client)) => {
            "Node ends its process if a client has a non_forwarding_action"
        }
        (false, true, None) => {
            let rule = "Node clients end their process if they get a non_forwarding_action, which is for \
                        servers";
            return rules.note(at, clients & NODE, ID, rule);
        }
        (true, _, Some(Side::Server)) => "",
        _ => return,
    };
    let refusing = refusing.when(!reason.is_empty());
    rules.refuse(at, clients & refusing, ID, reason, "");
    let rule = match side {
        Some(Side::Server) => {
            "gRPC servers fail the requests of a route whose action is not non_forwarding_action"
        }
        _ => "gRPC clients fail the requests of a route whose action is not route",
    };
    rules.note(at, clients - refusing, ID, rule);
}

/// Checks the action of a route. Returns the clients that do not skip the route because of it.
fn action(
    action: &Message<'_>,
    plugins: &Plugins<'_>,
    clients: Clients,
    at: &At<'_>,
    rules: &mut Rules,
) -> Clients {
    if let Some(stream) = action.message("max_stream_duration") {
        let fields = ["grpc_timeout_header_max", "max_stream_duration"];
        let given = fields.into_iter().find_map(|field| Some((field, stream.message(field)?)));
        if let Some((field, duration)) = given {
            let refusing =
                CPP.when(!is_duration(duration)) | JAVA.when(!is_duration_of_java(duration));
            let at = at.field("max_stream_duration");
            let at = at.field(field);
            rules.refuse(&at, clients & refusing, "grpc.max_stream_duration", DURATION, "");
        }
    }
    if action.wrapped("auto_host_rewrite") == Some(1) {
        let rule = "gRPC clients ignore auto_host_rewrite, unless their bootstrap marks this server as \
                    trusted_xds_server";
        rules.note(&at.field("auto_host_rewrite"), clients, "grpc.host_rewrite", rule);
    }
    hash_policies(action, clients, at, rules);
    if let Some(policy) = action.message("retry_policy") {
        let at = at.field("retry_policy");
        // Go first skips a route to another kind of destination.
        let kinds = ["cluster", "weighted_clusters", "cluster_specifier_plugin"];
        let readers = clients - GO.when(!kinds.into_iter().any(|kind| action.has(kind)));
        rules.only(readers, |rules| retry::check(policy, &at, rules));
    }
    if action.has("cluster") {
        if action.text("cluster").is_empty() {
            let reason = "the name of the cluster is empty";
            let at = at.field("cluster");
            rules.refuse(&at, clients & CPP, "grpc.route_cluster", reason, "");
            no_name(&at, clients, rules);
        }
        return clients;
    }
    if let Some(weighted) = action.message("weighted_clusters") {
        weighted_clusters(weighted, clients, &at.field("weighted_clusters"), rules);
        return clients;
    }
    if action.has("cluster_specifier_plugin") {
        let name = action.text("cluster_specifier_plugin");
        let at = at.field("cluster_specifier_plugin");
        let id = "grpc.specifier_plugin";
        let reason = "Node does not support cluster specifier plugins";
        rules.refuse(&at, clients & NODE, id, reason, "");
        if name.is_empty() {
            rules.refuse(&at, clients & CPP, id, "the name of the plugin is empty", "");
        }
        let clients = clients - NODE;
        return match plugins.get(name) {
            Some(is_skipped) => clients - ALL.when(*is_skipped),
            None => {
                let reason = format!("there is no cluster specifier plugin {}", shown(name));
                rules.refuse(&at, clients, id, reason, "add it to cluster_specifier_plugins");
                NONE
            }
        };
    }
    if action.has("inline_cluster_specifier_plugin") {
        let at = at.field("inline_cluster_specifier_plugin");
        let reason = "Node does not support cluster specifier plugins";
        rules.refuse(&at, clients & NODE, "grpc.specifier_plugin", reason, "");
    }
    // Other clients skip the route (GRPCV-28).
    clients & NODE
}

/// Records that the calls of a channel fail because a cluster has no name.
fn no_name(at: &At<'_>, clients: Clients, rules: &mut Rules) {
    let effect = "every RPC of the channel fails, because the name of a cluster is empty";
    rules.effect(at, clients & (GO | JAVA), "grpc.effect.cluster_name", effect, "name a cluster");
}

/// Checks the hash policies. Clients ignore those of other kinds (GRPCV-33).
fn hash_policies(action: &Message<'_>, clients: Clients, at: &At<'_>, rules: &mut Rules) {
    const ID: &str = "grpc.hash_policy";
    for (index, policy) in action.messages("hash_policy").enumerate() {
        let Some(header) = policy.message("header") else { continue };
        let list = at.field("hash_policy");
        let at = list.index(index);
        let at = at.field("header");
        if header.text("header_name").is_empty() {
            let reason = "the name of the header is empty";
            rules.refuse(&at.field("header_name"), clients & CPP, ID, reason, "");
        }
        let Some(rewrite) = header.message("regex_rewrite") else { continue };
        let at = at.field("regex_rewrite");
        let at = at.field("pattern");
        match rewrite.message("pattern").filter(|pattern| !pattern.text("regex").is_empty()) {
            None => rules.refuse(&at, clients & CPP, ID, "the pattern is missing", ""),
            Some(pattern) => matchers::plain_expression(pattern, clients, &at, rules),
        }
    }
}

/// Checks weighted clusters. Clients drop those with the weight 0 (GRPCV-29).
fn weighted_clusters(weighted: &Message<'_>, clients: Clients, at: &At<'_>, rules: &mut Rules) {
    const ID: &str = "grpc.weighted_clusters";
    let mut sum: u64 = 0;
    let at = at.field("clusters");
    for (index, cluster) in weighted.messages("clusters").enumerate() {
        let at = at.index(index);
        let weight = cluster.wrapped("weight");
        sum = sum.saturating_add(weight.unwrap_or(0));
        if cluster.text("name").is_empty() {
            let reason = "the name of a weighted cluster is empty";
            let at = at.field("name");
            rules.refuse(&at, clients & CPP, ID, reason, "give name");
            no_name(&at, clients - GO.when(weight.unwrap_or(0) == 0), rules);
        }
        if weight.is_none() {
            let reason = "a weighted cluster needs a weight";
            rules.refuse(&at.field("weight"), clients & CPP, ID, reason, "give weight");
        }
        if weight.is_some_and(|weight| weight > SIGNED_MAX) {
            let reason = format!("the weight is above {SIGNED_MAX}");
            rules.refuse(&at.field("weight"), clients & JAVA.until(71), ID, reason, "");
        }
        let readers = clients - GO.when(weight.unwrap_or(0) == 0);
        filters::overrides(cluster, readers, &at, rules);
    }
    if sum == 0 || sum > u32::MAX.into() {
        let reason = format!("the sum of the weights is {sum}, but must be from 1 to {}", u32::MAX);
        rules.refuse(&at, clients, ID, reason, "");
    }
}
