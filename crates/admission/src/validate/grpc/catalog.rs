//! The rules of gRPC clients as data: for which clients and versions each rule holds, and its source.
//!
//! The page `docs/predictions.md` shows this table. In debug builds, a finding about clients that the table does not
//! name for its rule is an error, so that the table stays complete.

use std::sync::LazyLock;

use super::rules::{ALL, CPP, Clients, GO, JAVA, NODE};

/// A rule, as authors see it.
pub(in crate::validate) struct Rule {
    pub(in crate::validate) id: &'static str,
    /// The resources that the clients reject, or what happens to calls.
    #[cfg_attr(not(test), expect(dead_code, reason = "only the page shows it"))]
    pub(in crate::validate) what: &'static str,
    pub(in crate::validate) clients: Clients,
    #[cfg_attr(not(test), expect(dead_code, reason = "only the page shows it"))]
    pub(in crate::validate) source: &'static str,
}

fn rule(id: &'static str, what: &'static str, clients: Clients, source: &'static str) -> Rule {
    Rule { id, what, clients, source }
}

const MEASURED: &str = "measured: grpcio 1.85.1, grpc-go 1.85.0, grpc-java 1.85.1, grpc-js 1.14.1";
const A41: &str = "gRFC A41, A59; grpc-java RbacFilter";
const JAVA_CDS: &str = "grpc-java XdsClusterResource";
const JAVA_EDS: &str = "grpc-java XdsEndpointResource";
const JAVA_LDS: &str = "grpc-java XdsListenerResource";
const JAVA_RDS: &str = "grpc-java XdsRouteConfigureResource";

/// The rules in the order of the resources: clusters, endpoints, listeners, routes.
pub(in crate::validate) static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    vec![
        rule(
            "grpc.cluster_type",
            "another type than EDS, LOGICAL_DNS and envoy.clusters.aggregate",
            ALL,
            "gRFC A27, A37",
        ),
        rule(
            "grpc.eds_config",
            "endpoints from another source than the server of the cluster",
            ALL,
            "gRFC A27, A47",
        ),
        rule(
            "grpc.service_name",
            "a structured name without service_name",
            GO | JAVA | NODE,
            "gRFC A47",
        ),
        rule(
            "grpc.logical_dns",
            "LOGICAL_DNS without exactly one endpoint that has a name and a port",
            ALL,
            "gRFC A37",
        ),
        rule(
            "grpc.aggregate_empty",
            "an aggregate cluster without clusters",
            ALL - JAVA.until(75),
            JAVA_CDS,
        ),
        rule(
            "grpc.lb_policy",
            "a load balancing policy without a converter, or with invalid values",
            ALL,
            "gRFC A52; docs/lb-policy.md",
        ),
        rule(
            "grpc.lb_policy",
            "the lb_policy LEAST_REQUEST",
            CPP | JAVA.until(73) | NODE,
            JAVA_CDS,
        ),
        rule("grpc.socket_matches", "transport_socket_matches", GO | JAVA, "gRFC A29"),
        rule(
            "grpc.transport_socket",
            "a transport socket without TLS, or with another name",
            ALL,
            "gRFC A29",
        ),
        rule("grpc.tls", "TLS without a certificate provider", ALL, "gRFC A29, A82"),
        rule(
            "grpc.tls",
            "system_root_certs without a certificate provider in a cluster",
            GO | JAVA.until(77) | NODE,
            JAVA_CDS,
        ),
        rule(
            "grpc.tls",
            "a pin or a revocation list without a certificate provider, which Java ignores",
            JAVA,
            JAVA_CDS,
        ),
        rule("grpc.lrs_server", "load reports to another server", ALL, "gRFC A27"),
        rule(
            "grpc.outlier_detection",
            "percentages above 100, and durations that are not valid",
            ALL,
            "gRFC A50",
        ),
        rule(
            "grpc.upstream_config",
            "upstream_config without HttpProtocolOptions",
            CPP,
            "gRFC A75",
        ),
        rule(
            "grpc.metadata",
            "an audience without url, and a TypedStruct without a type",
            CPP | JAVA,
            "gRFC A83",
        ),
        rule(
            "grpc.metadata",
            "an address of a proxy that is not an IP address with a port",
            JAVA.since(72),
            "grpc-java MetadataRegistry",
        ),
        rule(
            "grpc.effect.ring_size",
            "every RPC fails after invalid sizes in ring_hash_lb_config",
            GO,
            MEASURED,
        ),
        rule(
            "grpc.effect.aggregate_loop",
            "every RPC fails if an aggregate cluster contains itself",
            GO | JAVA,
            MEASURED,
        ),
        rule(
            "grpc.effect.dns_name",
            "the channel fails if the name of LOGICAL_DNS is not one of a URI",
            JAVA,
            "grpc-java DnsNameResolver",
        ),
        rule(
            "grpc.effect.outlier_count",
            "the channel fails after counts of hosts or requests from 2147483648",
            JAVA,
            "grpc-java OutlierDetectionLoadBalancer",
        ),
        rule("grpc.address", "an endpoint without an address", CPP | JAVA | NODE, JAVA_EDS),
        rule("grpc.address", "a host name or a pipe", CPP | JAVA.since(74) | NODE, JAVA_EDS),
        rule("grpc.address", "a port above 65535", CPP | JAVA, JAVA_EDS),
        rule("grpc.duplicate_address", "an address that occurs twice", CPP | GO | NODE, MEASURED),
        rule("grpc.locality", "a locality without a name", CPP | GO | NODE, MEASURED),
        rule("locality.duplicate", "a locality that occurs twice in a priority", ALL, "gRFC A27"),
        rule("priority.gap", "priorities with a gap", ALL, "gRFC A27"),
        rule(
            "grpc.locality_weights",
            "weights of a priority above 4294967295 in sum",
            ALL - JAVA,
            "gRFC A27",
        ),
        rule("grpc.endpoint_weight", "an endpoint with the weight 0", CPP | GO, MEASURED),
        rule(
            "grpc.endpoint_weights",
            "weights of a locality above 4294967295 in sum",
            GO.since(76),
            "grpc-go 1.76 unmarshal_eds.go",
        ),
        rule("grpc.drop_overload", "a drop without category or share", CPP | GO | JAVA, JAVA_EDS),
        rule(
            "grpc.effect.locality_weight",
            "every RPC fails if all localities have weights from 2147483648",
            JAVA,
            JAVA_EDS,
        ),
        rule("grpc.effect.port", "RPCs to the port 0 fail", GO | JAVA, MEASURED),
        rule("grpc.api_listener", "an api_listener without content", ALL, "gRFC A27"),
        rule(
            "grpc.network_filter",
            "another network filter than the HttpConnectionManager",
            ALL,
            "gRFC A27, A36",
        ),
        rule(
            "grpc.route_source",
            "routes from another server, or without a source",
            ALL,
            "gRFC A27",
        ),
        rule(
            "grpc.effect.route_name",
            "every RPC fails after an empty route_config_name",
            JAVA,
            JAVA_LDS,
        ),
        rule(
            "grpc.remote_address",
            "xff_num_trusted_hops, original_ip_detection_extensions",
            CPP | GO | JAVA,
            "gRFC A41",
        ),
        rule(
            "grpc.max_stream_duration",
            "a duration that is not valid, or for Java longer than 292 years",
            CPP | JAVA,
            MEASURED,
        ),
        rule(
            "grpc.http_filter",
            "a required filter that the client does not have",
            ALL,
            "gRFC A39",
        ),
        rule(
            "grpc.http_filter",
            "the required filter gcp_authn",
            GO | JAVA.until(77) | NODE,
            "grpc-java FilterRegistry",
        ),
        rule(
            "grpc.router",
            "another last filter than the router; Java counts the optional filters that it skips",
            ALL,
            "gRFC A39",
        ),
        rule(
            "grpc.filter_override",
            "an override of a filter that the client does not have",
            ALL,
            "gRFC A39",
        ),
        rule(
            "grpc.filter_override",
            "an override of gcp_authn",
            CPP | GO | JAVA.until(77) | NODE,
            "grpc-java FilterRegistry",
        ),
        rule(
            "grpc.filter_override",
            "an override ExtAuthzPerRoute",
            CPP | GO | JAVA.until(85) | NODE,
            "measured: grpc-java 1.78.0, 1.85.1",
        ),
        rule(
            "grpc.fault",
            "a fault without percentage or error, or with an unknown status",
            CPP | JAVA | NODE,
            "gRFC A33",
        ),
        rule(
            "grpc.rbac",
            "conditions that gRPC does not have, and names or addresses that are not valid",
            ALL,
            A41,
        ),
        rule("grpc.gcp_authn", "a cache of the size 0", ALL, "gRFC A83"),
        rule("grpc.stateful_session", "a session without a cookie", CPP, "gRFC A55"),
        rule("grpc.listener_address", "a server without a socket address", CPP | GO, "gRFC A36"),
        rule(
            "grpc.listener_address",
            "an empty address, or a named port",
            JAVA.since(73),
            JAVA_LDS,
        ),
        rule(
            "grpc.traffic_direction",
            "the traffic_direction OUTBOUND of a server",
            JAVA,
            JAVA_LDS,
        ),
        rule("grpc.listener_filters", "listener filters", GO | JAVA | NODE, "gRFC A36"),
        rule("grpc.use_original_dst", "use_original_dst", ALL, "gRFC A36"),
        rule("grpc.filter_chains", "a server without a filter chain", CPP | GO | NODE, "gRFC A36"),
        rule(
            "grpc.filter_chain_match",
            "filter chains that match the same connections",
            ALL,
            "gRFC A36",
        ),
        rule("grpc.filter_chain_name", "filter chains with equal names", JAVA.since(72), JAVA_LDS),
        rule("grpc.address_range", "ranges that are not valid", ALL, "gRFC A36"),
        rule("grpc.domain", "domains with a star inside, or without text", CPP | NODE, MEASURED),
        rule("grpc.path_matcher", "a route without prefix, path or safe_regex", ALL, "gRFC A28"),
        rule("grpc.header_matcher", "headers without a form that the client has", ALL, "gRFC A28"),
        rule(
            "grpc.matcher",
            "a StringMatcher without a form, or for Go with an empty text",
            CPP | GO | JAVA,
            "gRFC A63",
        ),
        rule("grpc.regex", "regular expressions that are not valid", ALL, "gRFC A28"),
        rule(
            "grpc.route_action",
            "a route whose action is neither route nor non_forwarding_action",
            JAVA | NODE,
            JAVA_RDS,
        ),
        rule("grpc.route_cluster", "a route to a cluster without a name", CPP, MEASURED),
        rule(
            "grpc.weighted_clusters",
            "weights whose sum is not from 1 to 4294967295",
            ALL,
            "gRFC A28",
        ),
        rule("grpc.weighted_clusters", "a weight from 2147483648", JAVA.until(71), JAVA_RDS),
        rule(
            "grpc.specifier_plugin",
            "a required plugin that the client does not have",
            ALL,
            "gRFC A49",
        ),
        rule("grpc.hash_policy", "a hash policy without a header or a pattern", CPP, "gRFC A42"),
        rule("grpc.retry", "num_retries 0, and intervals that are not valid", ALL, "gRFC A44"),
        rule(
            "grpc.effect.cluster_name",
            "every RPC fails after a route to a cluster without a name",
            GO | JAVA,
            MEASURED,
        ),
        rule(
            "grpc.effect.no_cluster",
            "every RPC fails if no route of a virtual host selects a cluster",
            JAVA,
            MEASURED,
        ),
        rule(
            "grpc.effect.retries",
            "every RPC fails after num_retries 0, or from 2147483647, with a gRPC status in retry_on",
            JAVA,
            JAVA_RDS,
        ),
    ]
});

/// Returns whether the table names all clients for a rule.
pub(super) fn covers(id: &str, clients: Clients) -> bool {
    let own = RULES.iter().filter(|rule| rule.id == id);
    own.fold(clients, |left, rule| left - rule.clients) == Clients::default()
}
