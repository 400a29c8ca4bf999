//! The fields by which resources refer to others. A test compares the tables with the descriptors.

use chancery_model::types::{
    ENDPOINT, LOCALITY_ENDPOINT, LOCALITY_ENDPOINTS, ROUTE, SCOPED_ROUTE, SECRET, VIRTUAL_HOST,
};

/// The fields with the names of clusters: message and field.
pub(super) const CLUSTER_FIELDS: &[(&str, &str)] = &[
    ("envoy.config.core.v3.GrpcService.EnvoyGrpc", "cluster_name"),
    ("envoy.config.core.v3.HttpUri", "cluster"),
    ("envoy.config.metrics.v3.StatsdSink", "tcp_cluster_name"),
    ("envoy.config.route.v3.RouteAction", "cluster"),
    ("envoy.config.route.v3.RouteAction.RequestMirrorPolicy", "cluster"),
    ("envoy.config.route.v3.WeightedCluster.ClusterWeight", "name"),
    ("envoy.config.trace.v3.DatadogConfig", "collector_cluster"),
    ("envoy.config.trace.v3.LightstepConfig", "collector_cluster"),
    ("envoy.config.trace.v3.ZipkinConfig", "collector_cluster"),
    ("envoy.data.dns.v3.DnsTable.DnsEndpoint", "cluster_name"),
    ("envoy.data.dns.v3.DnsTable.DnsServiceTarget", "cluster_name"),
    ("envoy.extensions.access_loggers.fluentd.v3.FluentdAccessLogConfig", "cluster"),
    ("envoy.extensions.clusters.aggregate.v3.ClusterConfig", "clusters"),
    ("envoy.extensions.clusters.composite.v3.ClusterConfig.ClusterEntry", "name"),
    ("envoy.extensions.clusters.mcp_multicluster.v3.ClusterConfig.McpCluster", "cluster"),
    ("envoy.extensions.filters.http.cache_v2.v3.CacheV2Config", "override_upstream_cluster"),
    ("envoy.extensions.filters.http.gcp_authn.v3.GcpAuthnFilterConfig", "cluster"),
    ("envoy.extensions.filters.http.mcp_router.v3.McpRouter.McpCluster", "cluster"),
    ("envoy.extensions.filters.network.dubbo_proxy.v3.RouteAction", "cluster"),
    ("envoy.extensions.filters.network.generic_proxy.action.v3.RouteAction", "cluster"),
    ("envoy.extensions.filters.network.redis_proxy.v3.RedisProxy.PrefixRoutes.Route", "cluster"),
    (
        "envoy.extensions.filters.network.redis_proxy.v3.RedisProxy.PrefixRoutes.Route.ReadCommandPolicy",
        "cluster",
    ),
    (
        "envoy.extensions.filters.network.redis_proxy.v3.RedisProxy.PrefixRoutes.Route.RequestMirrorPolicy",
        "cluster",
    ),
    ("envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy", "cluster"),
    (
        "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.WeightedCluster.ClusterWeight",
        "name",
    ),
    ("envoy.extensions.filters.network.thrift_proxy.v3.RouteAction", "cluster"),
    ("envoy.extensions.filters.network.thrift_proxy.v3.RouteAction.RequestMirrorPolicy", "cluster"),
    ("envoy.extensions.filters.network.thrift_proxy.v3.WeightedCluster.ClusterWeight", "name"),
    ("envoy.extensions.filters.udp.udp_proxy.v3.Route", "cluster"),
    ("envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig", "cluster"),
    ("envoy.extensions.router.cluster_specifiers.lua.v3.LuaConfig", "default_cluster"),
    ("envoy.extensions.router.cluster_specifiers.matcher.v3.ClusterAction", "cluster"),
    ("envoy.extensions.router.cluster_specifiers.priority_group.v3.ClusterWeight", "cluster_name"),
    ("envoy.extensions.tracers.fluentd.v3.FluentdConfig", "cluster"),
];

/// The field with the name of a route configuration that the listener of the scoped route requests.
pub(super) const SCOPED_ROUTE_FIELD: (&str, &str) =
    ("envoy.config.route.v3.ScopedRouteConfiguration", "route_configuration_name");

/// A message that requests a resource from its config source.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) message: &'static str,
    pub(super) source: &'static str,
    pub(super) name: Name,
    pub(super) type_url: &'static str,
}

/// The name of a requested resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    /// The value of a field.
    Field(&'static str),
    /// The value of a field, or the name of the resource itself if the field is empty.
    FieldOrOwn(&'static str),
    /// The value of a field, or all resources of the type if the field is empty.
    FieldOrAll(&'static str),
    /// The value of a field: a list, or a glob collection whose members have the type
    /// [`COLLECTION_MEMBER`].
    List(&'static str),
    /// All resources whose names begin with the name of the resource itself and `/`.
    BelowOwn,
}

/// The type of the members of a glob collection in [`Name::List`].
pub(super) const COLLECTION_MEMBER: &str = LOCALITY_ENDPOINT;

/// The messages that request resources, except for `ExtensionConfigSource`, whose name is in the message
/// around it.
pub(super) const REQUESTS: &[Request] = &[
    Request {
        message: "envoy.config.cluster.v3.Cluster.EdsClusterConfig",
        source: "eds_config",
        name: Name::FieldOrOwn("service_name"),
        type_url: ENDPOINT,
    },
    Request {
        message: "envoy.config.endpoint.v3.LedsClusterLocalityConfig",
        source: "leds_config",
        name: Name::List("leds_collection_name"),
        type_url: LOCALITY_ENDPOINTS,
    },
    Request {
        message: "envoy.config.route.v3.Vhds",
        source: "config_source",
        name: Name::BelowOwn,
        type_url: VIRTUAL_HOST,
    },
    Request {
        message: "envoy.extensions.filters.network.http_connection_manager.v3.Rds",
        source: "config_source",
        name: Name::Field("route_config_name"),
        type_url: ROUTE,
    },
    Request {
        message: "envoy.extensions.filters.network.http_connection_manager.v3.ScopedRds",
        source: "scoped_rds_config_source",
        name: Name::FieldOrAll("srds_resources_locator"),
        type_url: SCOPED_ROUTE,
    },
    Request {
        message: "envoy.extensions.transport_sockets.tls.v3.SdsSecretConfig",
        source: "sds_config",
        name: Name::Field("name"),
        type_url: SECRET,
    },
    Request {
        message: "envoy.extensions.filters.network.dubbo_proxy.v3.Drds",
        source: "config_source",
        name: Name::Field("route_config_name"),
        type_url: "type.googleapis.com/envoy.extensions.filters.network.dubbo_proxy.v3.MultipleRouteConfiguration",
    },
    Request {
        message: "envoy.extensions.filters.network.generic_proxy.v3.GenericRds",
        source: "config_source",
        name: Name::Field("route_config_name"),
        type_url: "type.googleapis.com/envoy.extensions.filters.network.generic_proxy.v3.RouteConfiguration",
    },
    Request {
        message: "envoy.extensions.filters.network.thrift_proxy.v3.Trds",
        source: "config_source",
        name: Name::Field("route_config_name"),
        type_url: "type.googleapis.com/envoy.extensions.filters.network.thrift_proxy.v3.RouteConfiguration",
    },
];

/// The message with the configuration source of an extension. The field [`NAME_FIELD`] of the message
/// around it has the name of the extension.
pub(super) const EXTENSION_SOURCE: &str = "envoy.config.core.v3.ExtensionConfigSource";
pub(super) const NAME_FIELD: &str = "name";

/// The messages without references. The clusters of a `ConfigSource` must be in the bootstrap of the node.
pub(super) const SKIPPED: &[&str] = &[CONFIG_SOURCE, "envoy.config.core.v3.Metadata"];

/// The message that says from which server or file a client requests a resource.
pub(super) const CONFIG_SOURCE: &str = "envoy.config.core.v3.ConfigSource";
/// The fields of a `ConfigSource` that name the server of the resource itself.
pub(super) const THIS_SERVER: [&str; 2] = ["ads", "self"];
