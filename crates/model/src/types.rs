//! What is known of each resource type (design 4.11): types are data.
//!
//! The core stores and serves any type URL; a type that is not in the table is opaque and gets
//! [`OPAQUE`]. Sources: `spec/requirements.md` Table 1, SOTW-68, -70, -73, ADS-04, DELTA-48, -61, -63.

use crate::TypeUrl;

/// `envoy.config.listener.v3.Listener`.
pub const LISTENER: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
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
/// `envoy.extensions.transport_sockets.tls.v3.Secret`.
pub const SECRET: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";
/// `envoy.service.runtime.v3.Runtime`.
pub const RUNTIME: &str = "type.googleapis.com/envoy.service.runtime.v3.Runtime";
/// `envoy.config.core.v3.TypedExtensionConfig`.
pub const EXTENSION: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";

/// A discovery service of its own, beside ADS.
#[derive(Debug)]
pub struct Service {
    /// Package and service.
    pub name: &'static str,
    /// The SotW method; VHDS and LEDS have none (SVC-05).
    pub sotw: Option<&'static str>,
    /// The delta method.
    pub delta: &'static str,
}

/// What the core has to know of a type.
#[derive(Debug)]
pub struct Properties {
    /// The type URL; empty for [`OPAQUE`].
    pub url: &'static str,
    /// Short names for the command line, the common one first.
    pub aliases: &'static [&'static str],
    /// The field of the message that holds its name (SVC-22).
    pub name_field: Option<&'static str>,
    /// In SotW, a resource that is missing from a response is deleted (SOTW-70, -73).
    pub full_state: bool,
    /// An empty first list, or `*`, asks for all of the view (SOTW-68, DELTA-38, DELTA-61).
    pub wildcard: bool,
    /// A first request that can be answered with nothing is answered all the same (SOTW-69, SOTW-80,
    /// DELTA-35).
    pub answer_empty: bool,
    /// Place in the order of sending on an aggregated stream (ADS-04); smaller goes first.
    pub order: u8,
    /// Types whose resources may refer to this one: they have to move away from a resource before
    /// it is removed (ADS-08).
    pub referrers: &'static [&'static str],
    /// Types after a change of which SotW clients may ask for this one again (ADS-12).
    pub parents: &'static [&'static str],
    /// Types that have to be sent and acknowledged before a push of this one (ADS-06).
    pub after: &'static [&'static str],
    /// Types whose changes are sent first, where both have some; unlike with `after`, their
    /// acknowledgement is not waited for (ADS-03, ADS-05).
    pub behind: &'static [&'static str],
    /// A delta removal of what the client holds is announced. Not for types where that breaks traffic
    /// or is rejected (DELTA-48).
    pub announce_removal: bool,
    /// "There is no such thing" is a resource without a body that repeats the name as an alias
    /// (DELTA-63), not an entry of `removed_resources`.
    pub absent_as_alias: bool,
    /// The service of its own.
    pub service: Option<Service>,
}

/// Properties of a type that is not in the table.
pub static OPAQUE: Properties = Properties {
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
    announce_removal: true,
    absent_as_alias: false,
    service: None,
};

/// The known types, in the order of ADS-04.
pub static KNOWN: [Properties; 10] = [
    Properties {
        url: CLUSTER,
        aliases: &["cluster", "cds", "clusters"],
        name_field: Some("name"),
        full_state: true,
        wildcard: true,
        answer_empty: true,
        order: 0,
        referrers: &[LISTENER, ROUTE, SCOPED_ROUTE, VIRTUAL_HOST, EXTENSION],
        service: Some(Service {
            name: "envoy.service.cluster.v3.ClusterDiscoveryService",
            sotw: Some("StreamClusters"),
            delta: "DeltaClusters",
        }),
        ..OPAQUE
    },
    Properties {
        url: ENDPOINT,
        aliases: &["endpoint", "eds", "endpoints"],
        name_field: Some("cluster_name"),
        order: 1,
        referrers: &[CLUSTER, LISTENER, ROUTE, SCOPED_ROUTE, VIRTUAL_HOST],
        parents: &[CLUSTER],
        behind: &[CLUSTER],
        service: Some(Service {
            name: "envoy.service.endpoint.v3.EndpointDiscoveryService",
            sotw: Some("StreamEndpoints"),
            delta: "DeltaEndpoints",
        }),
        ..OPAQUE
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
        }),
        ..OPAQUE
    },
    Properties {
        url: LISTENER,
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
        }),
        ..OPAQUE
    },
    Properties {
        url: ROUTE,
        aliases: &["route", "rds", "routes"],
        name_field: Some("name"),
        order: 4,
        referrers: &[LISTENER, SCOPED_ROUTE],
        parents: &[LISTENER, SCOPED_ROUTE],
        after: &[CLUSTER, ENDPOINT],
        behind: &[LISTENER],
        service: Some(Service {
            name: "envoy.service.route.v3.RouteDiscoveryService",
            sotw: Some("StreamRoutes"),
            delta: "DeltaRoutes",
        }),
        ..OPAQUE
    },
    Properties {
        url: SCOPED_ROUTE,
        aliases: &["scoped-route", "srds", "scoped-routes"],
        name_field: Some("name"),
        full_state: true,
        wildcard: true,
        answer_empty: true,
        order: 5,
        referrers: &[LISTENER],
        after: &[CLUSTER, ENDPOINT],
        service: Some(Service {
            // The protocol documents print it without the `s` (SVC-03); the proto decides.
            name: "envoy.service.route.v3.ScopedRoutesDiscoveryService",
            sotw: Some("StreamScopedRoutes"),
            delta: "DeltaScopedRoutes",
        }),
        ..OPAQUE
    },
    Properties {
        url: VIRTUAL_HOST,
        aliases: &["virtual-host", "vhds", "virtual-hosts"],
        // The wire name is `<route configuration>/<host>`: not a field of the message (DELTA-60).
        name_field: None,
        wildcard: true,
        order: 6,
        referrers: &[ROUTE],
        after: &[CLUSTER, ENDPOINT],
        answer_empty: true,
        absent_as_alias: true,
        service: Some(Service {
            name: "envoy.service.route.v3.VirtualHostDiscoveryService",
            sotw: None,
            delta: "DeltaVirtualHosts",
        }),
        ..OPAQUE
    },
    Properties {
        url: SECRET,
        aliases: &["secret", "sds", "secrets"],
        name_field: Some("name"),
        order: 7,
        referrers: &[CLUSTER, LISTENER],
        parents: &[CLUSTER, LISTENER],
        service: Some(Service {
            name: "envoy.service.secret.v3.SecretDiscoveryService",
            sotw: Some("StreamSecrets"),
            delta: "DeltaSecrets",
        }),
        ..OPAQUE
    },
    Properties {
        url: RUNTIME,
        aliases: &["runtime", "rtds", "runtimes"],
        name_field: Some("name"),
        order: 8,
        announce_removal: false,
        service: Some(Service {
            name: "envoy.service.runtime.v3.RuntimeDiscoveryService",
            sotw: Some("StreamRuntime"),
            delta: "DeltaRuntime",
        }),
        ..OPAQUE
    },
    Properties {
        url: EXTENSION,
        aliases: &["extension", "ecds", "extensions"],
        name_field: Some("name"),
        order: 9,
        referrers: &[LISTENER],
        parents: &[LISTENER],
        announce_removal: false,
        service: Some(Service {
            name: "envoy.service.extension.v3.ExtensionConfigDiscoveryService",
            sotw: Some("StreamExtensionConfigs"),
            delta: "DeltaExtensionConfigs",
        }),
        ..OPAQUE
    },
];

/// The aggregated service (SVC-02).
pub static AGGREGATED: Service = Service {
    name: "envoy.service.discovery.v3.AggregatedDiscoveryService",
    sotw: Some("StreamAggregatedResources"),
    delta: "DeltaAggregatedResources",
};

/// What is known of a type; [`OPAQUE`] if nothing is.
#[must_use]
pub fn properties(type_url: &TypeUrl) -> &'static Properties {
    KNOWN.iter().find(|known| known.url == type_url.as_str()).unwrap_or(&OPAQUE)
}

/// The type that a person means: an alias (`cds`) or a full type URL, with or without
/// `type.googleapis.com/`.
///
/// # Errors
/// A sentence that lists the aliases, if it is neither.
pub fn by_alias(text: &str) -> Result<TypeUrl, String> {
    if let Some(known) = KNOWN.iter().find(|known| known.aliases.contains(&text)) {
        return Ok(TypeUrl::from_static(known.url));
    }
    let url = match text {
        _ if text.contains('/') => text.to_owned(),
        _ if text.contains('.') => format!("type.googleapis.com/{text}"),
        _ => {
            let known: Vec<&str> = KNOWN.iter().map(|known| known.aliases[0]).collect();
            let known = known.join(", ");
            return Err(format!(
                "unknown resource type {text:?}: give a full type URL or one of {known}"
            ));
        }
    };
    TypeUrl::new(&url).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_table_is_consistent() {
        let mut aliases = BTreeSet::new();
        for (place, known) in KNOWN.iter().enumerate() {
            assert_eq!(usize::from(known.order), place, "{}: sorted by order", known.url);
            assert!(known.aliases.iter().all(|alias| aliases.insert(*alias)), "{}", known.url);
            let others = known.referrers.iter().chain(known.parents);
            for other in others.chain(known.after).chain(known.behind) {
                assert!(KNOWN.iter().any(|k| k.url == *other), "{other}");
                assert_ne!(*other, known.url);
            }
            for earlier in known.after.iter().chain(known.behind) {
                let earlier = properties(&TypeUrl::from_static(earlier));
                assert!(earlier.order < known.order, "{} waits for what comes later", known.url);
            }
        }
    }

    #[test]
    fn a_type_is_found_by_alias_and_by_url() {
        assert_eq!(by_alias("cds").unwrap().as_str(), CLUSTER);
        assert_eq!(by_alias(CLUSTER).unwrap().as_str(), CLUSTER);
        assert_eq!(by_alias("envoy.config.cluster.v3.Cluster").unwrap().as_str(), CLUSTER);
        assert_eq!(by_alias("x.y/a.B").unwrap().as_str(), "x.y/a.B");
        assert!(by_alias("clutser").unwrap_err().contains("one of cluster, endpoint"));
    }
}
