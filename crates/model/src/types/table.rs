//! The table of resource types and their properties.
//!
//! Sources: SOTW-68, -70, -73, ADS-04, DELTA-48, -61, -63.

use super::exclusion::Exclusion;

/// `envoy.config.listener.v3.Listener`.
pub const LISTENER: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
/// `envoy.config.listener.v3.FilterChain`.
pub const FILTER_CHAIN: &str = "type.googleapis.com/envoy.config.listener.v3.FilterChain";
/// `envoy.config.route.v3.RouteConfiguration`.
pub const ROUTE: &str = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";
/// `envoy.config.route.v3.ScopedRouteConfiguration`.
pub const SCOPED_ROUTE: &str = "type.googleapis.com/envoy.config.route.v3.ScopedRouteConfiguration";
/// `envoy.config.route.v3.VirtualHost`.
pub const VIRTUAL_HOST: &str = "type.googleapis.com/envoy.config.route.v3.VirtualHost";
/// `envoy.config.cluster.v3.Cluster`.
pub const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
/// `envoy.config.endpoint.v3.ClusterLoadAssignment`.
pub const ENDPOINT: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
/// `envoy.config.endpoint.v3.LbEndpoint`.
pub const LOCALITY_ENDPOINT: &str = "type.googleapis.com/envoy.config.endpoint.v3.LbEndpoint";
/// `envoy.config.endpoint.v3.LbEndpointCollection`: a list of endpoints of a locality.
pub const LOCALITY_ENDPOINTS: &str =
    "type.googleapis.com/envoy.config.endpoint.v3.LbEndpointCollection";
/// `envoy.extensions.transport_sockets.tls.v3.Secret`.
pub const SECRET: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";
/// `envoy.service.runtime.v3.Runtime`.
pub const RUNTIME: &str = "type.googleapis.com/envoy.service.runtime.v3.Runtime";
/// `envoy.config.core.v3.TypedExtensionConfig`.
pub const EXTENSION: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";

/// A gRPC discovery service: ADS, or the separate service of one type.
#[derive(Debug)]
pub struct Service {
    /// The full name of the service, including its package.
    pub name: &'static str,
    /// The name of the SotW method; VHDS and LEDS have none (SVC-05).
    pub sotw: Option<&'static str>,
    /// The name of the delta method.
    pub delta: &'static str,
    /// The path of REST-JSON polling; ADS, VHDS and LEDS have none (REST-09).
    pub rest: Option<&'static str>,
}

/// The properties of a resource type.
#[derive(Debug)]
pub struct Properties {
    /// The type URL; empty for [`UNKNOWN`].
    pub url: &'static str,
    /// The short names for the command line, the most common one first.
    pub aliases: &'static [&'static str],
    /// The message field that contains the resource name (SVC-22).
    pub name_field: Option<&'static str>,
    /// Whether SotW clients delete a resource that is missing from a response (SOTW-70, -73).
    pub full_state: bool,
    /// Whether an empty first list, or `*`, subscribes to the whole view (SOTW-68, DELTA-38,
    /// DELTA-61).
    pub wildcard: bool,
    /// Whether the server answers a first request even if the response is empty (SOTW-69, SOTW-80,
    /// DELTA-35).
    pub answer_empty: bool,
    /// The position in the sending order of an aggregated stream (ADS-04); lower is sent first.
    pub order: u8,
    /// The types whose resources may refer to resources of this type. The server removes a resource
    /// only after the referrers that the client holds no longer refer to it (ADS-08).
    pub referrers: &'static [&'static str],
    /// The parent types. After a change of a parent, SotW clients may request this type again
    /// (ADS-12).
    pub parents: &'static [&'static str],
    /// The types that the server sends, and the client acknowledges, before a push of this type
    /// (ADS-06).
    pub after: &'static [&'static str],
    /// The types whose pending changes the server sends before those of this type. In contrast to
    /// `after`, the server does not wait for the acknowledgement (ADS-03, ADS-05).
    pub behind: &'static [&'static str],
    /// The content by which resources of this type exclude each other at a client. A removal goes out with the
    /// resource that takes its place.
    pub exclusion: Exclusion,
    /// The types whose accepted changes may remove the cause of a rejection of this type. After such a change,
    /// the server sends the rejected resources again once.
    pub retried_after: &'static [&'static str],
    /// Whether a delta response announces the removal of a resource that the client holds. This is
    /// false for types whose clients reject removals or stop serving traffic (DELTA-48).
    pub announce_removal: bool,
    /// Whether a missing resource is reported as a resource without a body, with the name as an
    /// alias (DELTA-63), and not in `removed_resources`.
    pub absent_as_alias: bool,
    /// The separate discovery service of this type.
    pub service: Option<Service>,
}

/// The properties that most known types have.
pub(super) const BASE: Properties = Properties {
    url: "",
    aliases: &[],
    name_field: None,
    full_state: false,
    wildcard: false,
    answer_empty: false,
    order: u8::MAX,
    referrers: &[],
    parents: &[],
    after: &[],
    behind: &[],
    exclusion: Exclusion::None,
    retried_after: &[],
    announce_removal: true,
    absent_as_alias: false,
    service: None,
};

/// The properties of a type that is not in the table, such as a collection of MCP. A client that names no resource
/// receives all of them, and in SotW each response is a full state (MCP-06, MCP-17, P-07). The client's
/// implementation of the type is unknown, and it may wait for an answer.
pub static UNKNOWN: Properties =
    Properties { full_state: true, wildcard: true, answer_empty: true, ..BASE };

/// The known types, in the sending order of ADS-04.
pub static KNOWN: [Properties; 11] = [
    Properties {
        url: CLUSTER,
        aliases: &["cluster", "cds", "clusters"],
        name_field: Some("name"),
        full_state: true,
        wildcard: true,
        answer_empty: true,
        order: 0,
        referrers: &[LISTENER, FILTER_CHAIN, ROUTE, SCOPED_ROUTE, VIRTUAL_HOST, EXTENSION],
        service: Some(Service {
            name: "envoy.service.cluster.v3.ClusterDiscoveryService",
            sotw: Some("StreamClusters"),
            delta: "DeltaClusters",
            rest: Some("/v3/discovery:clusters"),
        }),
        ..BASE
    },
    Properties {
        url: ENDPOINT,
        aliases: &["endpoint", "eds", "endpoints"],
        name_field: Some("cluster_name"),
        order: 1,
        referrers: &[CLUSTER, LISTENER, FILTER_CHAIN, ROUTE, SCOPED_ROUTE, VIRTUAL_HOST],
        parents: &[CLUSTER],
        behind: &[CLUSTER],
        service: Some(Service {
            name: "envoy.service.endpoint.v3.EndpointDiscoveryService",
            sotw: Some("StreamEndpoints"),
            delta: "DeltaEndpoints",
            rest: Some("/v3/discovery:endpoints"),
        }),
        ..BASE
    },
    Properties {
        url: LOCALITY_ENDPOINT,
        aliases: &["locality-endpoint", "leds"],
        order: 2,
        referrers: &[ENDPOINT],
        service: Some(Service {
            name: "envoy.service.endpoint.v3.LocalityEndpointDiscoveryService",
            sotw: None,
            delta: "DeltaLocalityEndpoints",
            rest: None,
        }),
        ..BASE
    },
    Properties {
        url: LISTENER,
        exclusion: Exclusion::Address,
        aliases: &["listener", "lds", "listeners"],
        name_field: Some("name"),
        full_state: true,
        wildcard: true,
        answer_empty: true,
        order: 3,
        after: &[CLUSTER, ENDPOINT],
        service: Some(Service {
            name: "envoy.service.listener.v3.ListenerDiscoveryService",
            sotw: Some("StreamListeners"),
            delta: "DeltaListeners",
            rest: Some("/v3/discovery:listeners"),
        }),
        ..BASE
    },
    Properties {
        // Envoy requests each chain by its name, from the ADS stream (FCDS, since 1.40). A removal takes the chain, with
        // its connections, from listeners that still name it. Envoy itself drops chains that no listener names.
        url: FILTER_CHAIN,
        aliases: &["filter-chain", "fcds", "filter-chains"],
        name_field: Some("name"),
        order: 4,
        referrers: &[LISTENER],
        parents: &[LISTENER],
        after: &[CLUSTER, ENDPOINT],
        behind: &[LISTENER],
        announce_removal: false,
        ..BASE
    },
    Properties {
        url: ROUTE,
        aliases: &["route", "rds", "routes"],
        name_field: Some("name"),
        order: 5,
        referrers: &[LISTENER, FILTER_CHAIN, SCOPED_ROUTE],
        parents: &[LISTENER, FILTER_CHAIN, SCOPED_ROUTE],
        after: &[CLUSTER, ENDPOINT],
        behind: &[LISTENER, FILTER_CHAIN],
        // A virtual host and one in the route configuration exclude each other by their domains.
        retried_after: &[VIRTUAL_HOST],
        service: Some(Service {
            name: "envoy.service.route.v3.RouteDiscoveryService",
            sotw: Some("StreamRoutes"),
            delta: "DeltaRoutes",
            rest: Some("/v3/discovery:routes"),
        }),
        ..BASE
    },
    Properties {
        url: SCOPED_ROUTE,
        aliases: &["scoped-route", "srds", "scoped-routes"],
        name_field: Some("name"),
        full_state: true,
        wildcard: true,
        answer_empty: true,
        order: 6,
        referrers: &[LISTENER, FILTER_CHAIN],
        after: &[CLUSTER, ENDPOINT],
        exclusion: Exclusion::ScopeKey,
        retried_after: &[LISTENER],
        service: Some(Service {
            // The protocol documents omit the `s` of `Routes` (SVC-03); the proto file has it.
            name: "envoy.service.route.v3.ScopedRoutesDiscoveryService",
            sotw: Some("StreamScopedRoutes"),
            delta: "DeltaScopedRoutes",
            rest: Some("/v3/discovery:scoped-routes"),
        }),
        ..BASE
    },
    Properties {
        url: VIRTUAL_HOST,
        aliases: &["virtual-host", "vhds", "virtual-hosts"],
        // The name is `<route configuration>/<host>` (DELTA-60). Envoy keeps a virtual host under the name in its body,
        // and removes the one with the name of the removed resource.
        name_field: Some("name"),
        wildcard: true,
        order: 7,
        referrers: &[ROUTE],
        after: &[CLUSTER, ENDPOINT],
        answer_empty: true,
        exclusion: Exclusion::Domain,
        retried_after: &[ROUTE],
        absent_as_alias: true,
        service: Some(Service {
            name: "envoy.service.route.v3.VirtualHostDiscoveryService",
            sotw: None,
            delta: "DeltaVirtualHosts",
            rest: None,
        }),
        ..BASE
    },
    Properties {
        url: SECRET,
        aliases: &["secret", "sds", "secrets"],
        name_field: Some("name"),
        order: 8,
        referrers: &[CLUSTER, LISTENER, FILTER_CHAIN],
        parents: &[CLUSTER, ENDPOINT, LISTENER, FILTER_CHAIN],
        service: Some(Service {
            name: "envoy.service.secret.v3.SecretDiscoveryService",
            sotw: Some("StreamSecrets"),
            delta: "DeltaSecrets",
            rest: Some("/v3/discovery:secrets"),
        }),
        ..BASE
    },
    Properties {
        url: RUNTIME,
        aliases: &["runtime", "rtds", "runtimes"],
        name_field: Some("name"),
        order: 9,
        announce_removal: false,
        service: Some(Service {
            name: "envoy.service.runtime.v3.RuntimeDiscoveryService",
            sotw: Some("StreamRuntime"),
            delta: "DeltaRuntime",
            rest: Some("/v3/discovery:runtime"),
        }),
        ..BASE
    },
    Properties {
        url: EXTENSION,
        aliases: &["extension", "ecds", "extensions"],
        name_field: Some("name"),
        order: 10,
        referrers: &[LISTENER, FILTER_CHAIN],
        parents: &[LISTENER, FILTER_CHAIN],
        announce_removal: false,
        service: Some(Service {
            name: "envoy.service.extension.v3.ExtensionConfigDiscoveryService",
            sotw: Some("StreamExtensionConfigs"),
            delta: "DeltaExtensionConfigs",
            rest: Some("/v3/discovery:extension_configs"),
        }),
        ..BASE
    },
];

/// Types of Envoy that clients request only by name.
pub(super) static BY_NAME: [Properties; 4] = [
    Properties { url: LOCALITY_ENDPOINTS, ..BASE },
    Properties {
        url: "type.googleapis.com/envoy.extensions.filters.network.dubbo_proxy.v3.MultipleRouteConfiguration",
        ..BASE
    },
    Properties {
        url: "type.googleapis.com/envoy.extensions.filters.network.generic_proxy.v3.RouteConfiguration",
        ..BASE
    },
    Properties {
        url: "type.googleapis.com/envoy.extensions.filters.network.thrift_proxy.v3.RouteConfiguration",
        ..BASE
    },
];

/// The aggregated discovery service, ADS (SVC-02).
pub static AGGREGATED: Service = Service {
    name: "envoy.service.discovery.v3.AggregatedDiscoveryService",
    sotw: Some("StreamAggregatedResources"),
    delta: "DeltaAggregatedResources",
    rest: None,
};
