//! The table of the resource types of v2 (`spec/requirements.md` Table 2), which are served only from
//! resources that authors store under these types (SVC-15).
//!
//! The Envoy API no longer has their messages, so that their bodies are opaque and their names are
//! those that the author gives.

use super::{
    exclusion::Exclusion,
    table::{BASE, Properties, Service},
};

const LISTENER: &str = "type.googleapis.com/envoy.api.v2.Listener";
const ROUTE: &str = "type.googleapis.com/envoy.api.v2.RouteConfiguration";
const SCOPED_ROUTE: &str = "type.googleapis.com/envoy.api.v2.ScopedRouteConfiguration";
const VIRTUAL_HOST: &str = "type.googleapis.com/envoy.api.v2.route.VirtualHost";
const CLUSTER: &str = "type.googleapis.com/envoy.api.v2.Cluster";
const ENDPOINT: &str = "type.googleapis.com/envoy.api.v2.ClusterLoadAssignment";
pub(super) const SECRET: &str = "type.googleapis.com/envoy.api.v2.auth.Secret";
const RUNTIME: &str = "type.googleapis.com/envoy.service.discovery.v2.Runtime";

/// The types of v2, in the sending order of ADS-04. Each has the properties of the type of v3 that
/// replaced it.
pub static V2: [Properties; 8] = [
    Properties {
        url: CLUSTER,
        full_state: true,
        wildcard: true,
        answer_empty: true,
        order: 0,
        referrers: &[LISTENER, ROUTE, SCOPED_ROUTE, VIRTUAL_HOST],
        service: Some(Service {
            name: "envoy.api.v2.ClusterDiscoveryService",
            sotw: Some("StreamClusters"),
            delta: "DeltaClusters",
            rest: Some("/v2/discovery:clusters"),
        }),
        ..BASE
    },
    Properties {
        url: ENDPOINT,
        order: 1,
        referrers: &[CLUSTER, LISTENER, ROUTE, SCOPED_ROUTE, VIRTUAL_HOST],
        parents: &[CLUSTER],
        behind: &[CLUSTER],
        service: Some(Service {
            name: "envoy.api.v2.EndpointDiscoveryService",
            sotw: Some("StreamEndpoints"),
            delta: "DeltaEndpoints",
            rest: Some("/v2/discovery:endpoints"),
        }),
        ..BASE
    },
    Properties {
        url: LISTENER,
        exclusion: Exclusion::Address,
        full_state: true,
        wildcard: true,
        answer_empty: true,
        order: 3,
        after: &[CLUSTER, ENDPOINT],
        service: Some(Service {
            name: "envoy.api.v2.ListenerDiscoveryService",
            sotw: Some("StreamListeners"),
            delta: "DeltaListeners",
            rest: Some("/v2/discovery:listeners"),
        }),
        ..BASE
    },
    Properties {
        url: ROUTE,
        retried_after: &[VIRTUAL_HOST],
        order: 5,
        referrers: &[LISTENER, SCOPED_ROUTE],
        parents: &[LISTENER, SCOPED_ROUTE],
        after: &[CLUSTER, ENDPOINT],
        behind: &[LISTENER],
        service: Some(Service {
            name: "envoy.api.v2.RouteDiscoveryService",
            sotw: Some("StreamRoutes"),
            delta: "DeltaRoutes",
            rest: Some("/v2/discovery:routes"),
        }),
        ..BASE
    },
    Properties {
        url: SCOPED_ROUTE,
        exclusion: Exclusion::ScopeKey,
        retried_after: &[LISTENER],
        full_state: true,
        wildcard: true,
        answer_empty: true,
        order: 6,
        referrers: &[LISTENER],
        after: &[CLUSTER, ENDPOINT],
        service: Some(Service {
            name: "envoy.api.v2.ScopedRoutesDiscoveryService",
            sotw: Some("StreamScopedRoutes"),
            delta: "DeltaScopedRoutes",
            rest: Some("/v2/discovery:scoped-routes"),
        }),
        ..BASE
    },
    Properties {
        url: VIRTUAL_HOST,
        exclusion: Exclusion::Domain,
        retried_after: &[ROUTE],
        wildcard: true,
        order: 7,
        referrers: &[ROUTE],
        after: &[CLUSTER, ENDPOINT],
        answer_empty: true,
        absent_as_alias: true,
        service: Some(Service {
            name: "envoy.api.v2.VirtualHostDiscoveryService",
            sotw: None,
            delta: "DeltaVirtualHosts",
            rest: None,
        }),
        ..BASE
    },
    Properties {
        url: SECRET,
        order: 8,
        referrers: &[CLUSTER, LISTENER],
        parents: &[CLUSTER, ENDPOINT, LISTENER],
        service: Some(Service {
            name: "envoy.service.discovery.v2.SecretDiscoveryService",
            sotw: Some("StreamSecrets"),
            delta: "DeltaSecrets",
            rest: Some("/v2/discovery:secrets"),
        }),
        ..BASE
    },
    Properties {
        url: RUNTIME,
        order: 9,
        announce_removal: false,
        service: Some(Service {
            name: "envoy.service.discovery.v2.RuntimeDiscoveryService",
            sotw: Some("StreamRuntime"),
            delta: "DeltaRuntime",
            rest: Some("/v2/discovery:runtime"),
        }),
        ..BASE
    },
];

/// The aggregated discovery service of v2.
pub static AGGREGATED_V2: Service = Service {
    name: "envoy.service.discovery.v2.AggregatedDiscoveryService",
    sotw: Some("StreamAggregatedResources"),
    delta: "DeltaAggregatedResources",
    rest: None,
};
