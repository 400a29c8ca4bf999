//! The rules that Envoy's code checks beyond those of the proto files.
//!
//! Each rule is a function of one message and what is in it. Its ID names the subject and the defect. The
//! table below gives the types of messages to which a function applies.

mod access_log;
mod address;
mod auth_filter;
mod bind;
mod cel;
mod certificate;
mod choices;
mod cipher_list;
mod cluster;
mod cluster_kind;
mod common;
mod config_source;
mod dns;
mod endpoint;
mod extensions;
mod filter_checks;
mod format;
mod format_fields;
mod format_parameter;
mod headers;
mod health_check;
mod http_filter;
mod http_options;
mod jwt;
mod lb_policy;
mod limit_filter;
mod listener;
mod listener_kind;
mod lua;
mod manager;
mod matcher_inputs;
mod matcher_tree;
mod network_filter;
pub(super) mod newer;
mod older;
mod other_filter;
mod path_template;
mod pem;
mod per_filter;
pub(super) mod regex;
mod registry;
mod route;
mod routing;
mod runtime;
mod tls;
mod tls_parameters;
mod transport_socket;
mod uri;
pub(in crate::validate) mod versions;

use std::{collections::BTreeMap, sync::LazyLock};

use super::{findings::Findings, tree::Message};
use common::Check;

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
    ("envoy.config.listener.v3.FilterChain", listener_kind::discovered_chain),
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
    ("envoy.config.core.v3.HeaderValueOption", headers::addition),
    ("envoy.type.tracing.v3.CustomTag", headers::tag_format),
    ("envoy.config.core.v3.SubstitutionFormatString", format::text_format),
    ("envoy.config.core.v3.SubstitutionFormatString", format::json_format),
    ("envoy.extensions.access_loggers.file.v3.FileAccessLog", format::file_format),
    ("envoy.extensions.access_loggers.file.v3.FileAccessLog", format::json_format),
    ("envoy.config.core.v3.CidrRange", address::cidr),
    ("envoy.service.runtime.v3.Runtime", runtime::layer),
    ("envoy.config.core.v3.ApiConfigSource", config_source::api_source),
    ("envoy.config.core.v3.ApiConfigSource", extensions::config_validators),
    ("envoy.config.core.v3.TlvEntry", transport_socket::proxy_value),
    ("envoy.type.matcher.v3.RegexMatcher", regex::matcher),
    ("envoy.type.matcher.v3.StringMatcher", regex::text_matcher),
    ("envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext", tls::server_context),
    ("envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", tls::client_context),
    (
        "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        transport_socket::name_comparison,
    ),
    ("envoy.extensions.transport_sockets.tls.v3.CommonTlsContext", tls::names),
    ("envoy.extensions.transport_sockets.tls.v3.Secret", tls::names),
    ("envoy.extensions.transport_sockets.tls.v3.TlsCertificate", tls::certificate),
    ("envoy.extensions.transport_sockets.tls.v3.CertificateValidationContext", tls::validation),
    ("envoy.extensions.transport_sockets.tls.v3.CommonTlsContext", tls::common),
    (SPIFFE, tls::spiffe),
    ("envoy.config.listener.v3.Listener", listener_kind::options),
    ("envoy.config.listener.v3.Listener", listener_kind::chain_names),
    ("envoy.config.listener.v3.FilterChainMatch", listener_kind::implemented),
    ("envoy.config.listener.v3.Filter", registry::discovery),
    ("envoy.config.listener.v3.ListenerFilter", registry::discovery),
    (HTTP_FILTER, registry::discovery),
    ("envoy.config.core.v3.TypedExtensionConfig", registry::resource),
    ("envoy.config.route.v3.RetryPolicy.RetryHostPredicate", listener::filter_config),
    ("envoy.config.route.v3.RetryPolicy.RetryPriority", listener::filter_config),
    ("envoy.config.trace.v3.Tracing.Http", listener::filter_config),
    (HCM, manager::options),
    (HCM, manager::header_validator),
    ("envoy.config.route.v3.VirtualHost", matcher_tree::routes),
    ("envoy.config.listener.v3.Listener", matcher_tree::filter_chains),
    ("envoy.extensions.filters.http.rbac.v3.RBAC", matcher_tree::access),
    (
        "envoy.extensions.access_loggers.open_telemetry.v3.OpenTelemetryAccessLogConfig",
        manager::open_telemetry_log,
    ),
    ("envoy.extensions.http.original_ip_detection.xff.v3.XffConfig", manager::forwarded_for),
    ("envoy.extensions.filters.network.thrift_proxy.v3.ThriftProxy", manager::thrift),
    (UPGRADE, listener::upgrade_filters),
    ("envoy.extensions.filters.http.router.v3.Router", listener::router_filters),
    (RDS, manager::route_source),
    (HEADER_KEY, manager::header_key),
    (INLINE_SCOPES, manager::inline_scopes),
    ("envoy.config.route.v3.RouteConfiguration", routing::definitions),
    ("envoy.config.route.v3.RouteConfiguration", per_filter::configurations),
    ("envoy.config.route.v3.VirtualHost", per_filter::configurations),
    ("envoy.config.route.v3.Route", per_filter::configurations),
    ("envoy.config.route.v3.WeightedCluster.ClusterWeight", per_filter::configurations),
    ("envoy.config.route.v3.VirtualHost", routing::host),
    ("envoy.config.route.v3.Route", routing::templates),
    ("envoy.config.route.v3.RouteAction", routing::upgrades),
    ("envoy.config.route.v3.Vhds", routing::discovered_hosts),
    ("envoy.config.route.v3.ScopedRouteConfiguration", routing::scope),
    ("envoy.extensions.path.match.uri_template.v3.UriTemplateMatchConfig", routing::match_template),
    (
        "envoy.extensions.path.rewrite.uri_template.v3.UriTemplateRewriteConfig",
        routing::rewrite_template,
    ),
    ("envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit", http_filter::token_bucket),
    (
        "envoy.extensions.filters.network.local_ratelimit.v3.LocalRateLimit",
        http_filter::token_bucket,
    ),
    (
        "envoy.extensions.filters.listener.local_ratelimit.v3.LocalRateLimit",
        http_filter::token_bucket,
    ),
    ("envoy.extensions.filters.http.health_check.v3.HealthCheck", http_filter::health_check),
    ("envoy.extensions.filters.http.lua.v3.Lua", http_filter::lua),
    ("envoy.extensions.filters.http.lua.v3.Lua", lua::scripts),
    ("envoy.extensions.filters.http.lua.v3.LuaPerRoute", lua::scripts),
    ("envoy.extensions.string_matcher.lua.v3.Lua", lua::scripts),
    ("envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication", jwt::requirements),
    ("envoy.extensions.filters.http.jwt_authn.v3.JwtProvider", jwt::provider),
    (
        "envoy.extensions.filters.http.grpc_json_transcoder.v3.GrpcJsonTranscoder",
        http_filter::transcoder,
    ),
    ("envoy.config.trace.v3.ZipkinConfig", manager::zipkin),
    ("envoy.config.trace.v3.OpenTelemetryConfig", manager::open_telemetry),
    ("envoy.extensions.filters.http.basic_auth.v3.BasicAuth", http_filter::basic_auth),
    ("envoy.extensions.filters.http.ip_tagging.v3.IPTagging", http_filter::ip_tags),
    ("envoy.extensions.filters.http.aws_lambda.v3.Config", http_filter::aws_function),
    (
        "envoy.extensions.filters.http.stateful_session.v3.StatefulSession",
        http_filter::session_state,
    ),
    (
        "envoy.extensions.filters.common.set_filter_state.v3.FilterStateValue",
        http_filter::filter_state,
    ),
    ("envoy.extensions.filters.network.redis_proxy.v3.RedisProxy", http_filter::redis),
    (HTTP_FILTER, per_filter::filter),
    (
        "envoy.extensions.filters.http.header_to_metadata.v3.Config.Rule",
        http_filter::header_to_metadata,
    ),
    ("envoy.extensions.filters.http.ext_authz.v3.CheckSettings", http_filter::check_settings),
    ("envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor", http_filter::ext_proc),
    ("envoy.extensions.filters.network.rbac.v3.RBAC", http_filter::network_rbac),
    ("envoy.extensions.transport_sockets.tls.v3.TlsSessionTicketKeys", tls::ticket_keys),
];

const CLUSTER: &str = "envoy.config.cluster.v3.Cluster";
const HTTP_HEALTH_CHECK: &str = "envoy.config.core.v3.HealthCheck.HttpHealthCheck";
const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
const SPIFFE: &str = "envoy.extensions.transport_sockets.tls.v3.SPIFFECertValidatorConfig";
const UPGRADE: &str = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager.UpgradeConfig";
const RDS: &str = "envoy.extensions.filters.network.http_connection_manager.v3.Rds";
const HEADER_KEY: &str = "envoy.extensions.filters.network.http_connection_manager.v3.ScopedRoutes.ScopeKeyBuilder.FragmentBuilder.HeaderValueExtractor";
const INLINE_SCOPES: &str =
    "envoy.extensions.filters.network.http_connection_manager.v3.ScopedRouteConfigurationsList";

const HTTP_FILTER: &str = common::HTTP_FILTER;
const HCM: &str = common::HCM;

/// Returns the index of the only policy of a list that clients use.
pub(crate) fn used_policy(message: &Message<'_>) -> Option<usize> {
    lb_policy::used(message)
}

/// Checks one message, without the messages in it.
pub(crate) fn check<'m>(message: &'m Message<'_>, findings: &mut Findings<'m>) {
    static BY_TYPE: LazyLock<Vec<(&str, Vec<Check>)>> = LazyLock::new(|| {
        let mut by_type: BTreeMap<&str, Vec<Check>> = BTreeMap::new();
        for (name, check) in CHECKS.iter().chain(filter_checks::CHECKS).chain(older::CHECKS) {
            by_type.entry(name).or_default().push(*check);
        }
        for name in choices::kinds() {
            by_type.entry(name).or_default().push(choices::fields);
        }
        for name in format_fields::kinds() {
            by_type.entry(name).or_default().push(format_fields::fields);
        }
        for name in matcher_tree::kinds() {
            by_type.entry(name).or_default().push(matcher_tree::other);
        }
        for name in registry::kinds() {
            by_type.entry(name).or_default().push(registry::chosen);
        }
        for name in older::kinds() {
            by_type.entry(name).or_default().push(older::required);
        }
        by_type.into_iter().collect()
    });
    let kind = message.kind;
    let find = || BY_TYPE.iter().position(|(name, _)| *name == kind.name).unwrap_or(usize::MAX);
    let found = BY_TYPE.get(*kind.checks.get_or_init(find));
    for check in found.into_iter().flat_map(|(_, checks)| checks) {
        check(message, findings);
    }
}

/// Returns the key of a scope.
pub(crate) fn scope_key(message: &Message<'_>) -> Vec<String> {
    manager::scope_key(message)
}

/// Returns the types of messages that the tables of rules name, each with its fields.
#[cfg(test)]
pub(super) fn named_fields() -> Vec<(&'static str, Vec<&'static str>)> {
    let checks = CHECKS.iter().chain(filter_checks::CHECKS).chain(older::CHECKS);
    let checked = checks.map(|(kind, _)| (*kind, Vec::new()));
    let named = choices::named_fields().chain(format_fields::named_fields());
    checked.chain(named).chain(matcher_tree::named_fields()).collect()
}
