//! The rules that Envoy's code checks beyond those of the proto files.
//!
//! Each rule is a function of one message and what is in it. Its ID names the subject and the defect. The
//! table below gives the types of messages to which a function applies.

mod address;
mod bind;
mod cluster;
mod cluster_kind;
mod common;
mod config_source;
mod dns;
mod endpoint;
mod extensions;
mod format;
mod headers;
mod health_check;
mod http_options;
mod lb_policy;
mod listener;
mod pem;
mod regex;
mod route;
mod tls;
mod transport_socket;

use std::{collections::HashMap, sync::LazyLock};

use super::{findings::Findings, tree::Message};

/// A function that checks one message.
type Check = for<'m, 'a> fn(&'m Message<'a>, &mut Findings<'m>);

/// The types of messages, each with a function that checks them.
const CHECKS: &[(&str, Check)] = &[
    (CLUSTER, cluster_kind::extension),
    (CLUSTER, cluster::eds_source),
    (CLUSTER, cluster::load_balancing),
    (CLUSTER, cluster::lb_options),
    (CLUSTER, cluster::endpoints),
    (CLUSTER, cluster::original_dst),
    (CLUSTER, cluster::legacy_policy),
    (CLUSTER, cluster::filters),
    (CLUSTER, http_options::protocol_options),
    (CLUSTER, http_options::protocols),
    (CLUSTER, health_check::cluster),
    (CLUSTER, dns::cluster),
    (CLUSTER, transport_socket::sockets),
    ("envoy.config.cluster.v3.CircuitBreakers", cluster::limits_per_host),
    ("envoy.config.cluster.v3.OutlierDetection", cluster::outlier_times),
    ("envoy.config.cluster.v3.LoadBalancingPolicy", lb_policy::policies),
    (
        "envoy.extensions.load_balancing_policies.load_aware_locality.v3.LoadAwareLocality",
        lb_policy::load_aware,
    ),
    ("envoy.extensions.load_balancing_policies.maglev.v3.Maglev", cluster::maglev_table),
    (
        "envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost",
        lb_policy::override_sources,
    ),
    ("envoy.extensions.load_balancing_policies.ring_hash.v3.RingHash", cluster::ring_size),
    ("envoy.extensions.load_balancing_policies.subset.v3.Subset", lb_policy::subset),
    (
        "envoy.extensions.load_balancing_policies.wrr_locality.v3.WrrLocality",
        lb_policy::wrr_locality,
    ),
    ("envoy.extensions.clusters.dns.v3.DnsCluster", dns::settings),
    (
        "envoy.extensions.clusters.dynamic_forward_proxy.v3.ClusterConfig",
        http_options::forward_proxy,
    ),
    ("envoy.extensions.clusters.original_dst.v3.OriginalDstCluster", cluster::header_use),
    ("envoy.extensions.common.dynamic_forward_proxy.v3.DnsCacheConfig", dns::cache),
    ("envoy.extensions.health_checkers.thrift.v3.Thrift", health_check::thrift),
    (
        "envoy.extensions.transport_sockets.internal_upstream.v3.InternalUpstreamTransport",
        transport_socket::passed_metadata,
    ),
    (HTTP_OPTIONS, http_options::parts),
    (HTTP_OPTIONS, listener::upstream_http_filters),
    (HTTP_OPTIONS, route::mirrors),
    ("envoy.config.core.v3.BindConfig", bind::config),
    ("envoy.config.core.v3.GrpcService", config_source::grpc_service),
    ("envoy.config.core.v3.GrpcService.EnvoyGrpc", config_source::retry_intervals),
    ("envoy.config.core.v3.HealthCheck", health_check::extensions),
    ("envoy.config.core.v3.HealthCheck.Payload", health_check::payload),
    ("envoy.config.core.v3.HealthCheck.GrpcHealthCheck", health_check::grpc_metadata),
    (HTTP_HEALTH_CHECK, health_check::expected_statuses),
    (HTTP_HEALTH_CHECK, health_check::http_payloads),
    (HTTP_HEALTH_CHECK, headers::changes),
    ("envoy.config.core.v3.Http1ProtocolOptions.HeaderKeyFormat", extensions::header_formatter),
    ("envoy.config.core.v3.Http2ProtocolOptions", http_options::http2_settings),
    ("envoy.config.common.key_value.v3.KeyValueStoreConfig", extensions::key_value_store),
    ("envoy.config.endpoint.v3.LedsClusterLocalityConfig", endpoint::collection_name),
    ("envoy.config.endpoint.v3.ClusterLoadAssignment", endpoint::weights),
    ("envoy.config.endpoint.v3.ClusterLoadAssignment", endpoint::priorities),
    ("envoy.config.endpoint.v3.ClusterLoadAssignment", endpoint::resource_addresses),
    ("envoy.config.endpoint.v3.ClusterLoadAssignment", endpoint::drop_overloads),
    ("envoy.config.endpoint.v3.LocalityLbEndpoints", endpoint::sources),
    ("envoy.config.listener.v3.Listener", listener::addresses),
    ("envoy.config.listener.v3.Listener", listener::filter_chains),
    ("envoy.config.listener.v3.FilterChain", listener::network_filters),
    ("envoy.config.listener.v3.FilterChainMatch", listener::server_names),
    ("envoy.config.listener.v3.Filter", listener::filter_config),
    ("envoy.config.listener.v3.ListenerFilter", listener::filter_config),
    ("envoy.config.core.v3.TransportSocket", listener::filter_config),
    ("envoy.config.accesslog.v3.AccessLog", listener::filter_config),
    (HTTP_FILTER, listener::filter_config),
    (HCM, listener::http_filters),
    (HCM, listener::upgrades),
    (HCM, listener::remote_address),
    ("envoy.config.route.v3.RouteConfiguration", route::domains),
    ("envoy.config.route.v3.RouteConfiguration", headers::changes),
    ("envoy.config.route.v3.VirtualHost", headers::changes),
    ("envoy.config.route.v3.Route", headers::changes),
    ("envoy.config.route.v3.WeightedCluster.ClusterWeight", headers::changes),
    ("envoy.config.route.v3.RouteAction", route::rewrites),
    ("envoy.config.route.v3.RouteAction", route::mirrors),
    ("envoy.config.route.v3.VirtualCluster", route::virtual_cluster),
    ("envoy.config.route.v3.WeightedCluster", route::weights),
    ("envoy.config.route.v3.RetryPolicy", route::retries),
    ("envoy.config.core.v3.HeaderValueOption", headers::value_format),
    ("envoy.config.core.v3.SubstitutionFormatString", format::text_format),
    ("envoy.extensions.access_loggers.file.v3.FileAccessLog", format::file_format),
    ("envoy.config.core.v3.CidrRange", address::cidr),
    ("envoy.config.core.v3.ApiConfigSource", config_source::api_source),
    ("envoy.config.core.v3.ApiConfigSource", extensions::config_validators),
    ("envoy.type.matcher.v3.RegexMatcher", regex::matcher),
    ("envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext", tls::server_context),
    ("envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", tls::client_context),
    ("envoy.extensions.transport_sockets.tls.v3.CommonTlsContext", tls::names),
    ("envoy.extensions.transport_sockets.tls.v3.Secret", tls::names),
    ("envoy.extensions.transport_sockets.tls.v3.TlsCertificate", tls::certificate),
    ("envoy.extensions.transport_sockets.tls.v3.CertificateValidationContext", tls::validation),
];

const CLUSTER: &str = "envoy.config.cluster.v3.Cluster";
const HTTP_HEALTH_CHECK: &str = "envoy.config.core.v3.HealthCheck.HttpHealthCheck";
const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
const HTTP_FILTER: &str = "envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter";
const HCM: &str = common::HCM;

/// Returns the index of the only policy of a list that clients use.
pub(crate) fn used_policy(message: &Message<'_>) -> Option<usize> {
    lb_policy::used(message)
}

/// Checks one message, without the messages in it.
pub(crate) fn check<'m>(message: &'m Message<'_>, findings: &mut Findings<'m>) {
    static BY_TYPE: LazyLock<HashMap<&str, Vec<Check>>> = LazyLock::new(|| {
        let mut by_type: HashMap<&str, Vec<Check>> = HashMap::new();
        for (name, check) in CHECKS {
            by_type.entry(name).or_default().push(*check);
        }
        by_type
    });
    for check in BY_TYPE.get(message.kind.name.as_str()).into_iter().flatten() {
        check(message, findings);
    }
}
