//! The rules of filters and of their parts: the types of messages, each with a function that checks them.

use super::{
    access_log, address, auth_filter, cel, common::Check, config_source, format_fields, lb_policy,
    limit_filter, listener, matcher_tree, network_filter, other_filter, regex, route,
    transport_socket,
};

/// The types of messages, each with a function that checks them.
pub(super) const CHECKS: &[(&str, Check)] = &[
    ("envoy.config.cluster.v3.Cluster", matcher_tree::transport_sockets),
    ("envoy.config.cluster.v3.Cluster.EdsClusterConfig", config_source::own_source),
    ("envoy.config.core.v3.ExtensionConfigSource", config_source::own_source),
    ("envoy.config.core.v3.KeyValueAppend", format_fields::query_parameters),
    ("envoy.config.ratelimit.v3.RateLimitServiceConfig", config_source::version),
    ("envoy.config.rbac.v3.Permission", auth_filter::ports),
    ("envoy.config.route.v3.InternalRedirectPolicy", route::copied_headers),
    ("envoy.config.route.v3.Route", route::prefixes),
    ("envoy.config.route.v3.RouteConfiguration", route::mirrors),
    ("envoy.config.route.v3.VirtualHost", route::mirrors),
    ("envoy.config.trace.v3.XRayConfig", other_filter::x_ray),
    ("envoy.config.accesslog.v3.ExtensionFilter", listener::filter_config),
    ("envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter", cel::log_filter),
    ("envoy.extensions.access_loggers.fluentd.v3.FluentdAccessLogConfig", format_fields::fluentd),
    ("envoy.extensions.access_loggers.grpc.v3.CommonGrpcAccessLogConfig", config_source::version),
    (
        "envoy.extensions.access_loggers.open_telemetry.v3.OpenTelemetryAccessLogConfig",
        format_fields::open_telemetry,
    ),
    (
        "envoy.extensions.access_loggers.fluentd.v3.FluentdAccessLogConfig.RetryOptions",
        auth_filter::reconnections,
    ),
    ("envoy.extensions.access_loggers.stats.v3.Config.Gauge", access_log::gauge),
    ("envoy.extensions.common.matching.v3.ExtensionWithMatcher", matcher_tree::filters),
    ("envoy.extensions.common.tap.v3.CommonExtensionConfig", other_filter::tap),
    (
        "envoy.extensions.filters.http.admission_control.v3.AdmissionControl",
        limit_filter::threshold,
    ),
    (
        "envoy.extensions.filters.http.admission_control.v3.AdmissionControl.SuccessCriteria",
        limit_filter::success,
    ),
    ("envoy.extensions.filters.http.api_key_auth.v3.ApiKeyAuth", auth_filter::api_keys),
    ("envoy.extensions.filters.http.api_key_auth.v3.ApiKeyAuthPerRoute", auth_filter::api_keys),
    ("envoy.extensions.filters.http.aws_request_signing.v3.AwsRequestSigning", auth_filter::region),
    ("envoy.extensions.filters.http.cdn_loop.v3.CdnLoopConfig", other_filter::cdn_id),
    ("envoy.extensions.filters.http.ext_authz.v3.ExtAuthz", auth_filter::authorization),
    ("envoy.extensions.filters.http.ext_authz.v3.ExtAuthz", config_source::version),
    ("envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor", auth_filter::processing_mode),
    ("envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor", cel::attributes),
    ("envoy.extensions.filters.http.file_server.v3.FileServerConfig", other_filter::file_server),
    (
        "envoy.extensions.filters.http.json_to_metadata.v3.JsonToMetadata.Rule",
        other_filter::json_to_metadata,
    ),
    ("envoy.extensions.filters.http.jwt_authn.v3.RemoteJwks", auth_filter::remote_keys),
    ("envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit", limit_filter::local_limits),
    ("envoy.extensions.filters.http.oauth2.v3.OAuth2Config", auth_filter::oauth),
    ("envoy.extensions.filters.http.on_demand.v3.OnDemandCds", config_source::own_source),
    ("envoy.extensions.filters.http.ratelimit.v3.RateLimit", limit_filter::global_limits),
    ("envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute", limit_filter::global_limits),
    (
        "envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol",
        network_filter::proxy_protocol,
    ),
    ("envoy.extensions.filters.network.dubbo_proxy.v3.DubboFilter", network_filter::dubbo_filter),
    ("envoy.extensions.filters.network.ext_authz.v3.ExtAuthz", config_source::version),
    (
        "envoy.extensions.filters.network.generic_proxy.v3.GenericProxy",
        network_filter::generic_proxy,
    ),
    (
        "envoy.extensions.filters.network.generic_proxy.v3.RouteConfiguration",
        network_filter::generic_hosts,
    ),
    ("envoy.extensions.filters.network.http_connection_manager.v3.Rds", config_source::own_source),
    (
        "envoy.extensions.filters.network.http_connection_manager.v3.ScopedRds",
        config_source::own_source,
    ),
    ("envoy.extensions.filters.network.ratelimit.v3.RateLimit", format_fields::descriptors),
    ("envoy.extensions.filters.network.rbac.v3.RBAC", matcher_tree::network_access),
    ("envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy", auth_filter::reconnections),
    ("envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy", network_filter::early_data),
    ("envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.OnDemand", config_source::own_source),
    ("envoy.extensions.filters.network.thrift_proxy.v3.RouteMatch", network_filter::thrift_match),
    ("envoy.extensions.filters.network.thrift_proxy.v3.ThriftFilter", listener::filter_config),
    (
        "envoy.extensions.filters.network.zookeeper_proxy.v3.ZooKeeperProxy",
        network_filter::zookeeper,
    ),
    (
        "envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig.SessionFilter",
        listener::filter_config,
    ),
    (
        "envoy.extensions.http.custom_response.redirect_policy.v3.RedirectPolicy",
        other_filter::response_redirect,
    ),
    (
        "envoy.extensions.load_balancing_policies.common.v3.ConsistentHashingLbConfig",
        lb_policy::hash_policies,
    ),
    (
        "envoy.extensions.matching.input_matchers.consistent_hashing.v3.ConsistentHashing",
        other_filter::consistent_hashing,
    ),
    ("envoy.extensions.rate_limit_descriptors.expr.v3.Descriptor", cel::descriptor),
    (
        "envoy.extensions.transport_sockets.http_11_proxy.v3.Http11ProxyUpstreamTransport",
        transport_socket::proxy_address,
    ),
    ("envoy.extensions.transport_sockets.tls.v3.SdsSecretConfig", config_source::own_source),
    ("envoy.extensions.wasm.v3.PluginConfig", other_filter::wasm),
    ("xds.core.v3.CidrRange", address::cidr),
    ("xds.type.matcher.v3.RegexMatcher", regex::matcher),
];
