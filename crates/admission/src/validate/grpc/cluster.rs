//! Clusters (GRPCV-40 to -50).

use std::net::Ipv4Addr;

use super::{
    metadata, policy,
    rules::{
        ALL, At, CPP, DURATION, GO, JAVA, NODE, Rules, SIGNED_MAX, extension, ip, is_duration,
        is_duration_of_java, is_own_source,
    },
    tls,
};
use crate::{node::shown, validate::tree::Message};

// Values of `Cluster.type`.
const LOGICAL_DNS: u64 = 2;
const EDS: u64 = 3;

const AGGREGATE: &str = "envoy.clusters.aggregate";
const AGGREGATE_CONFIG: &str = "envoy.extensions.clusters.aggregate.v3.ClusterConfig";
const UPSTREAM_TLS: &str = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
/// The name of a transport socket with TLS.
pub(super) const TLS_SOCKET: &str = "envoy.transport_sockets.tls";

/// Returns whether the type of a cluster is one that gRPC clients know.
pub(super) fn is_for_grpc(cluster: &Message<'_>) -> bool {
    match cluster.message("cluster_type") {
        Some(custom) => {
            let config = custom.message("typed_config");
            custom.text("name") == AGGREGATE
                || config.is_some_and(|config| extension(config).name == AGGREGATE_CONFIG)
        }
        None => matches!(cluster.bits("type"), EDS | LOGICAL_DNS),
    }
}

pub(super) fn check(cluster: &Message<'_>, body: &[u8], at: &At<'_>, rules: &mut Rules) {
    match cluster.message("cluster_type") {
        Some(custom) => custom_type(custom, cluster.text("name"), &at.field("cluster_type"), rules),
        None => match cluster.bits("type") {
            EDS => eds(cluster, at, rules),
            LOGICAL_DNS => logical_dns(cluster, &at.field("load_assignment"), rules),
            _ => {
                let reason =
                    "gRPC supports only the types EDS, LOGICAL_DNS and envoy.clusters.aggregate";
                let fix = "set type to EDS or LOGICAL_DNS";
                rules.refuse(&at.field("type"), ALL, "grpc.cluster_type", reason, fix);
            }
        },
    }
    policy::check(cluster, body, at, rules);
    if let Some(metadata) = cluster.message("metadata") {
        metadata::check(metadata, &at.field("metadata"), rules);
    }
    // Java reads none of the other fields of an aggregate cluster.
    let readers = ALL - JAVA.when(cluster.has("cluster_type"));
    rules.only(readers, |rules| connections(cluster, at, rules));
}

/// Checks how clients connect to the endpoints of a cluster.
fn connections(cluster: &Message<'_>, at: &At<'_>, rules: &mut Rules) {
    if cluster.has("transport_socket_matches") {
        let reason = "gRPC does not support transport_socket_matches";
        let fix = "use transport_socket";
        let at = at.field("transport_socket_matches");
        rules.refuse(&at, GO | JAVA, "grpc.socket_matches", reason, fix);
    }
    if let Some(socket) = cluster.message("transport_socket") {
        transport_socket(socket, &at.field("transport_socket"), rules);
    }
    if cluster.message("lrs_server").is_some_and(|server| !server.has("self")) {
        let reason = "gRPC reports load only to the server that sent the cluster";
        let fix = "set lrs_server to {self: {}}";
        rules.refuse(&at.field("lrs_server"), ALL, "grpc.lrs_server", reason, fix);
    }
    if let Some(detection) = cluster.message("outlier_detection") {
        outlier_detection(detection, &at.field("outlier_detection"), rules);
    }
    if let Some(config) = cluster.message("upstream_config") {
        upstream_config(config, &at.field("upstream_config"), rules);
    }
}

fn custom_type(custom: &Message<'_>, name: &str, at: &At<'_>, rules: &mut Rules) {
    const ID: &str = "grpc.cluster_type";
    let config = custom.message("typed_config");
    let at_config = at.field("typed_config");
    if config.is_none_or(|config| extension(config).name != AGGREGATE_CONFIG) {
        let reason = "gRPC supports only the cluster_type envoy.clusters.aggregate";
        return rules.refuse(&at_config, ALL, ID, reason, "set type to EDS or LOGICAL_DNS");
    }
    if config.is_some_and(|config| extension(config).is_struct) {
        let reason = "the aggregate cluster needs its own message, not a TypedStruct";
        rules.refuse(&at_config, CPP | NODE, ID, reason, "");
    }
    if custom.text("name") != AGGREGATE {
        let reason = "gRPC recognizes an aggregate cluster by this name";
        let fix = "set the name to envoy.clusters.aggregate";
        rules.refuse(&at.field("name"), GO | JAVA, ID, reason, fix);
    }
    let content = custom.any("typed_config");
    let mut inner = content.into_iter().flat_map(|content| content.texts("clusters"));
    if inner.any(|inner| inner == name) {
        let effect = "every RPC fails, because the aggregate cluster contains itself";
        let at = at_config.field("clusters");
        let fix = "remove the cluster from its list";
        rules.effect(&at, GO | JAVA, "grpc.effect.aggregate_loop", effect, fix);
    }
    if content
        .is_some_and(|content| content.kind.name == AGGREGATE_CONFIG && !content.has("clusters"))
    {
        let reason = "an aggregate cluster needs at least one underlying cluster";
        let clients = ALL - JAVA.until(75);
        rules.refuse(&at_config.field("clusters"), clients, "grpc.aggregate_empty", reason, "");
    }
}

fn eds(cluster: &Message<'_>, at: &At<'_>, rules: &mut Rules) {
    let config = cluster.message("eds_cluster_config");
    let at = at.field("eds_cluster_config");
    if !is_own_source(config.and_then(|config| config.message("eds_config"))) {
        let reason = "gRPC receives endpoints only from the server that sent the cluster";
        let fix = "set eds_config to {ads: {}, resource_api_version: V3}";
        rules.refuse(&at.field("eds_config"), ALL, "grpc.eds_config", reason, fix);
    }
    let service_name = config.map_or("", |config| config.text("service_name"));
    if cluster.text("name").starts_with("xdstp:") && service_name.is_empty() {
        let reason = "an EDS cluster whose name starts with xdstp: needs a service_name";
        let at = at.field("service_name");
        rules.refuse(&at, GO | JAVA | NODE, "grpc.service_name", reason, "give service_name");
    }
    if let Some(authority) = authority(service_name) {
        let rule = format!(
            "gRPC clients whose bootstrap has no authority {} never ask for these endpoints, and every RPC fails",
            shown(authority)
        );
        rules.note(&at.field("service_name"), GO | JAVA, "grpc.authority", rule);
    }
}

/// Returns the authority of a structured name.
fn authority(name: &str) -> Option<&str> {
    name.strip_prefix("xdstp://")?.split('/').next()
}

fn logical_dns(cluster: &Message<'_>, at: &At<'_>, rules: &mut Rules) {
    const ID: &str = "grpc.logical_dns";
    let localities: Vec<&Message<'_>> = cluster
        .message("load_assignment")
        .into_iter()
        .flat_map(|assignment| assignment.messages("endpoints"))
        .collect();
    let endpoints: Vec<&Message<'_>> =
        localities.iter().flat_map(|locality| locality.messages("lb_endpoints")).collect();
    if localities.len() != 1 || endpoints.len() != 1 {
        let reason = "a cluster of type LOGICAL_DNS needs exactly one locality with one endpoint";
        return rules.refuse(&at.field("endpoints"), ALL, ID, reason, "");
    }
    let at = at.field("endpoints");
    let at = at.index(0);
    let at = at.field("lb_endpoints");
    let at = at.index(0);
    let at = at.field("endpoint");
    let at = at.field("address");
    let at = at.field("socket_address");
    let address = endpoints[0].message("endpoint").and_then(|one| one.message("address"));
    let Some(socket) = address.and_then(|address| address.message("socket_address")) else {
        let reason = "the endpoint of a LOGICAL_DNS cluster needs a socket_address";
        return rules.refuse(&at, ALL, ID, reason, "");
    };
    if !socket.text("resolver_name").is_empty() {
        let reason = "gRPC does not support resolver_name";
        let fix = "remove resolver_name";
        rules.refuse(&at.field("resolver_name"), CPP | GO | JAVA, ID, reason, fix);
    }
    if socket.text("address").is_empty() {
        let reason = "the name to resolve is missing";
        rules.refuse(&at.field("address"), CPP | GO | NODE, ID, reason, "");
    }
    if !is_host_of_java(socket.text("address")) || socket.bits("port_value") > 65535 {
        let effect = "every RPC fails until the application creates another channel, because Java cannot read the name \
                      and the port as those of a URI";
        let fix = "use a DNS name of letters, digits, hyphens and dots";
        rules.effect(&at.field("address"), JAVA, "grpc.effect.dns_name", effect, fix);
    }
    if socket.has("port_value") && socket.bits("port_value") == 0 {
        let effect = "every RPC fails, because the port is 0";
        rules.effect(&at.field("port_value"), JAVA, "grpc.effect.port", effect, "give port_value");
    }
    let has_port = socket.has("port_value");
    let clients = (CPP | NODE | JAVA).when(!has_port) | GO.when(socket.bits("port_value") == 0);
    rules.refuse(&at.field("port_value"), clients, ID, "a port other than 0 is required", "");
}

fn transport_socket(socket: &Message<'_>, at: &At<'_>, rules: &mut Rules) {
    const ID: &str = "grpc.transport_socket";
    if socket.text("name") != TLS_SOCKET {
        let reason =
            "gRPC supports only transport sockets with the name envoy.transport_sockets.tls";
        let fix = "set the name to envoy.transport_sockets.tls";
        rules.refuse(&at.field("name"), GO | JAVA, ID, reason, fix);
    }
    let at = at.field("typed_config");
    let config = socket.message("typed_config").map(extension);
    if config.is_none_or(|config| config.name != UPSTREAM_TLS || config.is_struct) {
        let reason = "gRPC supports only a transport socket with an UpstreamTlsContext";
        return rules.refuse(&at, ALL, ID, reason, "");
    }
    if let Some(context) = socket.any("typed_config") {
        tls::client(context, &at, rules);
    }
}

/// The counts of hosts and requests that Java reads with a sign.
const SIGNED_COUNTS: [&str; 4] = [
    "success_rate_minimum_hosts",
    "success_rate_request_volume",
    "failure_percentage_minimum_hosts",
    "failure_percentage_request_volume",
];

/// Returns whether Java's `URI` reads a text as a host: an IP address, or a name whose last label begins with a letter.
fn is_host_of_java(text: &str) -> bool {
    let inside = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    if let Some(inside) = inside {
        return ip(inside).is_some_and(|ip| ip.is_ipv6());
    }
    let name = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        is_end(label.chars().next())
            && is_end(label.chars().last())
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    let last = name.rsplit('.').next().unwrap_or_default();
    text.parse::<Ipv4Addr>().is_ok()
        || name.split('.').all(is_label) && last.starts_with(|c: char| c.is_ascii_alphabetic())
}

fn outlier_detection(detection: &Message<'_>, at: &At<'_>, rules: &mut Rules) {
    const ID: &str = "grpc.outlier_detection";
    for field in ["interval", "base_ejection_time", "max_ejection_time"] {
        if let Some(duration) = detection.message(field) {
            let clients =
                ALL.when(!is_duration(duration)) | JAVA.when(!is_duration_of_java(duration));
            rules.refuse(&at.field(field), clients, ID, DURATION, "");
        }
    }
    for field in SIGNED_COUNTS {
        if let Some(n) = detection.wrapped(field).filter(|n| *n > SIGNED_MAX) {
            let effect = format!(
                "every RPC fails until the application creates another channel, because {n} is above {SIGNED_MAX}"
            );
            rules.effect(&at.field(field), JAVA, "grpc.effect.outlier_count", effect, "lower it");
        }
    }
    for (field, clients) in [
        ("max_ejection_percent", ALL),
        ("enforcing_success_rate", ALL),
        ("enforcing_failure_percentage", ALL),
        ("failure_percentage_threshold", ALL - CPP),
    ] {
        if let Some(percent) = detection.wrapped(field).filter(|percent| *percent > 100) {
            let reason = format!("{percent} is more than 100 percent");
            rules.refuse(&at.field(field), clients, ID, reason, "");
        }
    }
}

/// Only C-core reads this field (gRFC A75).
fn upstream_config(config: &Message<'_>, at: &At<'_>, rules: &mut Rules) {
    const ID: &str = "grpc.upstream_config";
    let at = at.field("typed_config");
    let kind = config.message("typed_config").map(extension);
    if kind.is_none_or(|kind| kind.name != HTTP_OPTIONS || kind.is_struct) {
        let reason = "upstream_config does not contain HttpProtocolOptions";
        return rules.refuse(&at, CPP, ID, reason, "");
    }
    let options = config.any("typed_config");
    let options = options.and_then(|options| options.message("common_http_protocol_options"));
    let timeout = options.and_then(|options| options.message("idle_timeout"));
    if timeout.is_some_and(|timeout| !is_duration(timeout)) {
        let at = at.field("common_http_protocol_options");
        rules.refuse(&at.field("idle_timeout"), CPP, ID, DURATION, "");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_of_java_is_a_name_or_an_address() {
        for host in ["web", "web.example", "web.example.", "a-b.c1", "10.0.0.1", "[::1]"] {
            assert!(is_host_of_java(host), "{host}");
        }
        for host in ["", "a_b.example", "-a.example", "a..b", "a b", "1.2.3", "web.1", "::1", "a/b"]
        {
            assert!(!is_host_of_java(host), "{host}");
        }
    }
}
