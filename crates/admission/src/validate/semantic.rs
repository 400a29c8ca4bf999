//! The rules that Envoy's code checks beyond those of the proto files.
//!
//! Each rule is a function of one message and what is in it. Its ID names the subject and the defect. The
//! table below gives the types of messages to which a function applies.

mod address;
mod cluster;
mod common;
mod endpoint;
mod format;
mod headers;
mod listener;
mod pem;
mod regex;
mod route;
mod tls;

use std::{collections::HashMap, sync::LazyLock};

use super::{findings::Findings, tree::Message};

/// A function that checks one message.
type Check = for<'m, 'a> fn(&'m Message<'a>, &mut Findings<'m>);

/// The types of messages, each with a function that checks them.
const CHECKS: &[(&str, Check)] = &[
    ("envoy.config.cluster.v3.Cluster", cluster::eds_source),
    ("envoy.config.cluster.v3.Cluster", cluster::load_balancing),
    ("envoy.config.cluster.v3.Cluster", cluster::endpoints),
    ("envoy.config.cluster.v3.Cluster", cluster::protocol_options),
    ("envoy.config.cluster.v3.Cluster", cluster::legacy_policy),
    ("envoy.extensions.load_balancing_policies.ring_hash.v3.RingHash", cluster::ring_size),
    ("envoy.extensions.load_balancing_policies.maglev.v3.Maglev", cluster::maglev_table),
    ("envoy.config.cluster.v3.OutlierDetection", cluster::outlier_times),
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
    ("envoy.extensions.upstreams.http.v3.HttpProtocolOptions", listener::upstream_http_filters),
    ("envoy.config.route.v3.RouteConfiguration", route::domains),
    ("envoy.config.route.v3.RouteConfiguration", headers::changes),
    ("envoy.config.route.v3.VirtualHost", headers::changes),
    ("envoy.config.route.v3.Route", headers::changes),
    ("envoy.config.route.v3.WeightedCluster.ClusterWeight", headers::changes),
    ("envoy.config.route.v3.RouteAction", route::rewrites),
    ("envoy.config.route.v3.RouteAction", route::mirrors),
    ("envoy.config.route.v3.VirtualCluster", route::virtual_cluster),
    ("envoy.config.cluster.v3.LoadBalancingPolicy", cluster::policies),
    ("envoy.config.core.v3.HealthCheck.HttpHealthCheck", cluster::expected_statuses),
    ("envoy.config.route.v3.WeightedCluster", route::weights),
    ("envoy.config.route.v3.RetryPolicy", route::retries),
    ("envoy.config.core.v3.HeaderValueOption", headers::value_format),
    ("envoy.config.core.v3.SubstitutionFormatString", format::text_format),
    ("envoy.extensions.access_loggers.file.v3.FileAccessLog", format::file_format),
    ("envoy.config.core.v3.CidrRange", address::cidr),
    ("envoy.config.core.v3.ApiConfigSource", cluster::api_source),
    ("envoy.type.matcher.v3.RegexMatcher", regex::matcher),
    ("envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext", tls::server_context),
    ("envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", tls::client_context),
    ("envoy.extensions.transport_sockets.tls.v3.CommonTlsContext", tls::names),
    ("envoy.extensions.transport_sockets.tls.v3.Secret", tls::names),
    ("envoy.extensions.transport_sockets.tls.v3.TlsCertificate", tls::certificate),
    ("envoy.extensions.transport_sockets.tls.v3.CertificateValidationContext", tls::validation),
];

const HTTP_FILTER: &str = "envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter";
const HCM: &str = common::HCM;

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
